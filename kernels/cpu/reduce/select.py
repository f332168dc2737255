"""Elements of rows by their ranks: of sorted ones, or digit by digit.

Where a rank or two of a row are asked for, all keys (`sort.py`) are counted by their highest bits, and those that have
the same ones as what is sought are kept, with their places, and counted by their next bits: 3 ns an element of float32,
where a sort takes 9 of short rows and 29 of a million.
"""

from numba import types

from ...blocks.reduce import PICK, RANKED
from ...build import jit
from ...lang.simd import load, ptr, stack, store
from ...problems.reduce import MEDIAN
from .sort import insertion_sort, key_of, sign_of

I64, U32, U64 = types.int64, types.uint32, types.uint64
# Bits that keys are counted by. Of a million float32 in rows of 64 it took 11.6 ms with 11 and 4.5 with 8; of a million
# float64 in one row, whose first bits are sign and exponent, 12.6 to 13.0 and 13.5 to 14.5.
DIGIT, LONG_DIGIT, LONG = 8, 11, 8192
COUNTS_BYTES = 2 * (4 << LONG_DIGIT)  # of even and odd places: one counter for equal keys would wait for itself
FEW = 24  # keys that are sorted by insertion


@jit.inline
def median_rank(rank, numbers, size):
    """The rank of a median (MEDIAN or NANMEDIAN) where so many elements are no NaN."""
    if rank == MEDIAN:
        return (size - 1) // 2 if numbers == size else numbers
    return max(numbers - 1, 0) // 2


@jit.inline
def numbers_of(x, size, infinity, E):
    """How many elements of a sorted row of floats are no NaN, which are the last ones."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if E(load(x, middle) & E(~sign_of(E))) > E(infinity):
            high = middle
        else:
            low = middle + 1
    return low


@jit.inline
def pick(args, lo, hi, E):
    """Ranks [lo, hi) of all rows; 1 where there is no such element."""
    ranks, size, count = load(args, PICK.ranks), load(args, PICK.size), load(args, PICK.count)
    for item in range(lo, hi):
        row = ptr(load(args, PICK.ordered), E) + item // count * size
        rank = load(ptr(ranks, I64), item) if ranks != 0 else load(args, PICK.rank)
        if ranks == 0 and rank < 0:
            rank = median_rank(rank, numbers_of(row, size, load(args, PICK.infinity), E), size)
        if rank < 0 or rank >= size:
            return 1
        store(ptr(load(args, PICK.values), E), item, load(row, rank))
        at = item // count * size + rank
        store(ptr(load(args, PICK.indices), I64), item, load(ptr(load(args, PICK.order), I64), at))
    return 0


@jit.inline
def clear(counts, bits):
    """No keys of a digit of so many bits yet."""
    for i in range(2 << bits):
        store(counts, i, 0)


@jit.inline
def counted(counts, bits, digit, place):
    """One more key, at this place, that has this digit."""
    at = digit + ((place & 1) << bits)
    store(counts, at, load(counts, at) + 1)


@jit.inline
def digit_of_rank(counts, bits, rank):
    """(digit of the element with a rank, its rank among those that have it, how many these are)."""
    digit, found = 0, I64(load(counts, 0)) + load(counts, 1 << bits)
    while rank >= found:
        rank -= found
        digit += 1
        found = I64(load(counts, digit)) + load(counts, digit + (1 << bits))
    return digit, rank, found


@jit.inline
def place_of_rank(x, n, rank, keys, places, counts, bits, infinity, E, KIND):
    """The place of a row's element with a rank (or MEDIAN, NANMEDIAN); -1 where there is none."""
    width = min(bits, LONG_DIGIT if n >= LONG else DIGIT)
    shift, numbers, largest = U64(bits - width), 0, E(~E(0))
    clear(counts, width)
    for i in range(n):
        key = key_of(load(x, i), infinity, E(0), E, KIND)
        counted(counts, width, I64(U64(key) >> shift), i)
        numbers += I64(key != largest)
    if rank < 0:  # of floats alone, whose NaN are the largest key
        rank = median_rank(rank, numbers, n)
    if rank < 0 or rank >= n:
        return -1
    wanted, rank, _ = digit_of_rank(counts, width, rank)
    left = 0
    for i in range(n):
        key = key_of(load(x, i), infinity, E(0), E, KIND)
        store(keys, left, key)
        store(places, left, i)
        left += I64(I64(U64(key) >> shift) == wanted)
    while shift > U64(0) and left > FEW:
        width = min(I64(shift), DIGIT)
        shift -= U64(width)
        mask = U64((1 << width) - 1)
        clear(counts, width)
        for i in range(left):
            counted(counts, width, I64((U64(load(keys, i)) >> shift) & mask), i)
        wanted, rank, found = digit_of_rank(counts, width, rank)
        count = left if found < left else 0  # all of them stay where they are
        left = found
        at = 0
        for i in range(count):
            key = load(keys, i)
            store(keys, at, key)
            store(places, at, load(places, i))
            at += I64(I64((U64(key) >> shift) & mask) == wanted)
    if shift > U64(0):
        insertion_sort(keys, places, left)
    return load(places, rank)


@jit.inline
def ranked(args, lo, hi, E, KIND):
    """The share of slots [lo, hi) of what is asked for of all rows; 1 where there is no such element."""
    ranks, n, count, bits = (
        load(args, RANKED.ranks),
        load(args, RANKED.size),
        load(args, RANKED.count),
        load(args, RANKED.bits),
    )
    slots, items, infinity = load(args, RANKED.slots), load(args, RANKED.rows) * count, E(load(args, RANKED.infinity))
    counts = ptr(stack(COUNTS_BYTES), U32)
    for slot in range(lo, hi):
        room = load(args, RANKED.workspace) + slot * load(args, RANKED.room)
        places, keys = ptr(room, I64), ptr(room + 8 * (n + 1), E)
        for item in range(slot * items // slots, (slot + 1) * items // slots):
            x = ptr(load(args, RANKED.x), E) + item // count * load(args, RANKED.stride)
            rank = load(ptr(ranks, I64), item) if ranks != 0 else load(args, RANKED.rank)
            if ranks != 0 and rank < 0:
                return 1
            place = place_of_rank(x, n, rank, keys, places, counts, bits, infinity, E, KIND)
            if place < 0:
                return 1
            store(ptr(load(args, RANKED.values), E), item, load(x, place))
            store(ptr(load(args, RANKED.indices), I64), item, place)
    return 0
