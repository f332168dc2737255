"""Sorting rows, and the k largest elements of rows.

Elements are compared as keys: unsigned integers of their width that order as the elements do, with -0 equal to 0 and
NaN above everything; complemented for a descending order. Rows are sorted by a radix sort (least significant digit
first, 8 bits a pass; passes in which all digits are equal are left out), which is stable and needs 3 to 9 ns an element
of float32 at any length; short rows by insertion. The k largest are kept in a sorted list, into which few elements of
a long row get; whole vectors are skipped by one comparison.
"""

from numba import types

from ...blocks.reduce import SORT
from ...build import jit
from ...lang.simd import fill, load, ptr, reduce_or, select, stack, store, vload
from .sizes import LANES, LIST

I64, U64 = types.int64, types.uint64
SHORT = 48  # rows up to this length are sorted by insertion
DIGITS = 256
HISTOGRAMS_BYTES = 8 * 8 * DIGITS
LIST_BYTES = 8 * LIST
UNSIGNED, SIGNED, FLOAT = 0, 1, 2


@jit.inline
def key_of(bits, infinity, mask, E, KIND):
    """The key of one element's bits. `infinity`: the bits of a float's infinity; `mask`: all ones to complement."""
    if KIND == UNSIGNED:
        key = bits
    elif KIND == SIGNED:
        key = E(bits ^ sign_of(E))
    else:
        sign = sign_of(E)
        key = E(bits ^ (E(~E(0)) if bits >= sign else sign))
        if bits == sign:  # -0
            key = sign
        if E(bits & E(~sign)) > infinity:
            key = E(~E(0))
    return E(key ^ mask)


@jit.inline
def sign_of(E):
    """The highest bit of an unsigned type."""
    return E(E(~E(0)) - (E(~E(0)) >> E(1)))


@jit.inline
def insertion_sort(keys, places, n):
    """Keys and places sorted by key, equal keys in their order."""
    for i in range(1, n):
        key, place, j = load(keys, i), load(places, i), i
        while j > 0 and load(keys, j - 1) > key:
            store(keys, j, load(keys, j - 1))
            store(places, j, load(places, j - 1))
            j -= 1
        store(keys, j, key)
        store(places, j, place)


@jit.inline
def radix_sort(keys, places, other_keys, other_places, n, histograms, digits):
    """As `insertion_sort`; returns whether the result lies in the other two arrays."""
    for i in range(DIGITS * digits):
        store(histograms, i, 0)
    for i in range(n):
        key = U64(load(keys, i))
        for d in range(digits):
            at = d * DIGITS + I64((key >> U64(8 * d)) & U64(0xFF))
            store(histograms, at, load(histograms, at) + 1)
    swapped = False
    for d in range(digits):
        histogram, shift = histograms + d * DIGITS, U64(8 * d)
        if load(histogram, I64((U64(load(keys, 0)) >> shift) & U64(0xFF))) == n:
            continue
        begin = 0
        for i in range(DIGITS):
            found = load(histogram, i)
            store(histogram, i, begin)
            begin += found
        for i in range(n):
            key = load(keys, i)
            digit = I64((U64(key) >> shift) & U64(0xFF))
            at = load(histogram, digit)
            store(histogram, digit, at + 1)
            store(other_keys, at, key)
            store(other_places, at, load(places, i))
        keys, other_keys = other_keys, keys
        places, other_places = other_places, places
        swapped = not swapped
    return swapped


@jit.inline
def sort(args, lo, hi, E, KIND):
    """The share of slots [lo, hi) of the rows, sorted; each has `room` bytes of the workspace."""
    x, stride, rows = ptr(load(args, SORT.x), E), load(args, SORT.stride), load(args, SORT.rows)
    n, wanted, slots = load(args, SORT.size), load(args, SORT.wanted), load(args, SORT.slots)
    values, indices = ptr(load(args, SORT.values), E), ptr(load(args, SORT.indices), I64)
    infinity, mask, digits = E(load(args, SORT.infinity)), E(load(args, SORT.mask)), load(args, SORT.digits)
    histograms = ptr(stack(HISTOGRAMS_BYTES), I64)
    for slot in range(lo, hi):
        room = load(args, SORT.workspace) + slot * load(args, SORT.room)
        places, other_places = ptr(room, I64), ptr(room + 8 * n, I64)
        keys, other_keys = ptr(room + 16 * n, E), ptr(room + 24 * n, E)
        for row in range(slot * rows // slots, (slot + 1) * rows // slots):
            source = x + row * stride
            for i in range(n):
                store(keys, i, key_of(load(source, i), infinity, mask, E, KIND))
                store(places, i, i)
            result = places
            if n <= SHORT:
                insertion_sort(keys, places, n)
            elif radix_sort(keys, places, other_keys, other_places, n, histograms, digits):
                result = other_places
            for i in range(wanted):
                place = load(result, i)
                store(indices, row * wanted + i, place)
                if load(args, SORT.values) != 0:
                    store(values, row * wanted + i, load(source, place))
    return 0


@jit.inline
def keys_of(bits, infinity, mask, E, KIND):
    """`key_of` for the lanes of a vector."""
    if KIND == UNSIGNED:
        key = bits
    elif KIND == SIGNED:
        key = bits ^ sign_of(E)
    else:
        sign = sign_of(E)
        magnitude = bits & E(~sign)
        key = select(bits < sign, bits | sign, ~bits)
        key = select(magnitude == E(0), fill(sign, E, LANES), key)
        key = select(magnitude > infinity, fill(E(~E(0)), E, LANES), key)
    return key ^ mask


@jit.inline
def topk(args, lo, hi, E, KIND):
    """The k smallest keys of rows [lo, hi), sorted, the first of equal ones first; k <= LIST."""
    x, stride = ptr(load(args, SORT.x), E), load(args, SORT.stride)
    n, k = load(args, SORT.size), load(args, SORT.wanted)
    values, indices = ptr(load(args, SORT.values), E), ptr(load(args, SORT.indices), I64)
    infinity, mask = E(load(args, SORT.infinity)), E(load(args, SORT.mask))
    keys, places = ptr(stack(LIST_BYTES), E), ptr(stack(LIST_BYTES), I64)
    for row in range(lo, hi):
        source = x + row * stride
        for i in range(k):
            store(keys, i, key_of(load(source, i), infinity, mask, E, KIND))
            store(places, i, i)
        insertion_sort(keys, places, k)
        worst, start = load(keys, k - 1), k
        while start < n:
            left = min(LANES, n - start)
            if left == LANES and not reduce_or(keys_of(vload(source, start, LANES), infinity, mask, E, KIND) < worst):
                start += LANES
                continue
            for i in range(start, start + left):
                key = key_of(load(source, i), infinity, mask, E, KIND)
                if key < worst:
                    at = k - 1
                    while at > 0 and load(keys, at - 1) > key:
                        store(keys, at, load(keys, at - 1))
                        store(places, at, load(places, at - 1))
                        at -= 1
                    store(keys, at, key)
                    store(places, at, i)
                    worst = load(keys, k - 1)
            start += left
        for i in range(k):
            place = load(places, i)
            store(indices, row * k + i, place)
            store(values, row * k + i, load(source, place))
    return 0
