"""Rows sorted by their digits, least significant first, 8 bits a pass; equal digits keep their order.

A warp takes neighbouring elements, 32 at a time: those with equal digits find one another by votes on their bits, and
their ranks are how many of them stand before. So nothing is added up in an order that changes, and the sort is stable.
A row that has room in shared memory is read once and written once; longer ones are sorted by `sweep.py`.

Elements move as they are, and keys (those of `kernels/cpu/reduce/sort.py`) are made where they are compared: so the
last pass has the values at hand, and nobody gathers them.
"""

from numba import types

from ...blocks.cuda import RADIX
from ...build import jit
from ...cpu.reduce.sort import key_of
from ...lang.ptx import (
    WARP,
    alike_bits,
    barrier,
    count_bits,
    dynamic_memory,
    thread,
    threads,
    warp_barrier,
)
from ...lang.simd import load, ptr, store
from ..block import block_running

I32, I64, U16, U64 = types.int32, types.int64, types.uint16, types.uint64
DIGITS = 256
COUNTS = DIGITS + 1  # of a warp: the last one is for what lies behind the row
NONE = -1


@jit.inline
def key_at(args, bits, E, KIND):
    """The key of an element."""
    return key_of(bits, E(load(args, RADIX.infinity)), E(load(args, RADIX.mask)), E, KIND)


@jit.inline
def digit_of(key, shift):
    return I64((U64(key) >> U64(shift)) & U64(DIGITS - 1))


@jit.inline
def digit_at(args, x, i, last, shift, E, KIND):
    """The digit of an element; DIGITS behind the last one."""
    digit = digit_of(key_at(args, load(x, min(i, last - 1)), E, KIND), shift)
    return digit if i < last else DIGITS


@jit.inline
def rank_digit(ranks, counts, i, last, digit, same):
    """Count a digit of each thread of the warp, of which `same` have it, and store the ranks of their elements."""
    before, at = same & ((1 << thread() % WARP) - 1), I64(load(counts, digit))
    warp_barrier()
    if before == 0:
        store(counts, digit, I32(at + count_bits(same)))
    if i < last:
        store(ranks, i, U16(at + count_bits(before)))
    warp_barrier()


@jit.inline
def tally(args, x, ranks, counts, part, shift, E, KIND):
    """How many of this warp's `part` of x, [first, last), have each digit, and the rank of each element.

    Two elements of a thread are compared at once: votes wait for nothing, counters only for one another.
    """
    lane, last = thread() % WARP, part[1]
    for place in range(lane, COUNTS, WARP):
        store(counts, place, I32(0))
    warp_barrier()
    for start in range(part[0], last, 2 * WARP):
        i, j = start + lane, start + lane + WARP
        a, b = digit_at(args, x, i, last, shift, E, KIND), digit_at(args, x, j, last, shift, E, KIND)
        same, same_b = alike_bits(a, 9), alike_bits(b, 9)
        rank_digit(ranks, counts, i, last, a, same)
        rank_digit(ranks, counts, j, last, b, same_b)


@jit.inline
def place_digits(counts, bases):
    """From counts of warps to (the sum of those of the warps before), and where each digit begins in `bases`.

    Returns (how many have this thread's digit, where that begins); threads behind the digits have none.
    """
    total = 0
    if thread() < DIGITS:
        for k in range(threads() // WARP):
            here = load(counts, k * COUNTS + thread())
            store(counts, k * COUNTS + thread(), I32(total))
            total += I64(here)
    before = block_running(total)[0]
    if thread() < DIGITS:
        store(bases, thread(), I32(before))
    return total, before


@jit.inline
def part_of(size):
    """(first, last) of `size` elements that are this warp's: neighbours, a multiple of 32 but for the end."""
    each = (size + threads() - 1) // threads() * WARP
    first = min(size, thread() // WARP * each)
    return first, min(size, first + each)


@jit.inline
def settle(args, lists, memory, element, shift, E, KIND):
    """Bring (element, place, number among all) of this warp where it belongs among the sorted ones."""
    (ranks, counts, bases), (bits, place, i) = memory, element
    digit = digit_of(key_at(args, bits, E, KIND), shift)
    to = I64(load(bases, digit)) + I64(load(counts, digit)) + I64(load(ranks, i))
    store(lists[0], to, bits)
    store(lists[1], to, place)


@jit.inline
def sort_shared(args, lists, spare, size, memory, digits, E, KIND):
    """Sort (elements, places) in shared memory; returns whether they lie in `spare` then. All threads see them."""
    ranks, counts, bases, equal = memory
    part, own, swapped = part_of(size), counts + thread() // WARP * COUNTS, False
    if thread() == 0:
        store(equal, 0, I32(NONE))
    for digit in range(digits):
        x, places = spare if swapped else lists
        y, places_to = lists if swapped else spare
        tally(args, x, ranks, own, part, 8 * digit, E, KIND)
        barrier()
        if place_digits(counts, bases)[0] == size:
            store(equal, 0, I32(digit))
        barrier()
        if load(equal, 0) != digit:  # else all digits are the same
            for i in range(part[0] + thread() % WARP, part[1], WARP):
                element = load(x, i), load(places, i), i
                settle(args, (y, places_to), (ranks, own, bases), element, 8 * digit, E, KIND)
            swapped = not swapped
        barrier()
    return swapped


@jit.inline
def to_result(args, row, to, bits, place, E):
    """An element and its place to place `to` of a row of the results, if that is wanted."""
    wanted = load(args, RADIX.wanted)
    if to < wanted:
        store(ptr(load(args, RADIX.indices), I64), row * wanted + to, I64(place))
        if load(args, RADIX.values) != 0:
            store(ptr(load(args, RADIX.values), E), row * wanted + to, bits)


@jit.inline
def rank_among(args, x, size, i, E, KIND):
    """How many of the `size` elements of x come before element `i`: smaller ones, and equal ones that stand before."""
    key, rank = key_at(args, load(x, i), E, KIND), 0
    for k in range(size):
        other = key_at(args, load(x, k), E, KIND)
        rank += I64(other < key or (other == key and k < i))
    return rank


@jit.inline
def finish(args, row, x, places, size, E):
    """A sorted row in shared memory to the results."""
    for i in range(thread(), size, threads()):
        to_result(args, row, i, load(x, i), load(places, i), E)


def _rows(room, warps):
    """The kernel for rows that take up to 4 * `room` bytes."""

    @jit.inline
    def rows(args, lo, hi, E, KIND, BYTES):
        size, base = load(args, RADIX.size), dynamic_memory()
        x, spare = ptr(base, E), ptr(base + 4 * room, E)
        places, spare_places = ptr(base + 8 * room, U16), ptr(base + 10 * room, U16)
        counts = ptr(base + 14 * room, I32)
        bases = counts + warps * COUNTS
        source = ptr(load(args, RADIX.source), E) + lo * load(args, RADIX.stride)
        for i in range(thread(), size, threads()):
            store(x, i, load(source, i))
            store(places, i, U16(i))
        barrier()
        memory = ptr(base + 12 * room, U16), counts, bases, bases + DIGITS
        if sort_shared(args, (x, places), (spare, spare_places), size, memory, BYTES, E, KIND):
            x, places = spare, spare_places
        finish(args, lo, x, places, size, E)
        return 0

    return rows


rows_1024 = _rows(1024, 8)
rows_4096 = _rows(4096, 16)
rows_8192 = _rows(8192, 16)


@jit.inline
def short(args, lo, hi, E, KIND):
    """Elements [lo, hi) of all rows, which are short: each is compared with all."""
    size = load(args, RADIX.size)
    for at in range(lo, hi):
        row = at // size
        i, x = at - row * size, ptr(load(args, RADIX.source), E) + row * load(args, RADIX.stride)
        to_result(args, row, rank_among(args, x, size, i, E, KIND), load(x, i), i, E)
    return 0
