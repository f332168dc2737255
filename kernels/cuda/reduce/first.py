"""The first ones of sorted rows, without sorting them: a row, or a part of a long one, for a block.

Digit by digit from the highest, the elements that share the digits found so far are counted by their next one, until
the last wanted key is known, or those that share its digits are as many as are still wanted. Then the elements before
it are collected in their order, with as many equal ones as there is room for, and these few are sorted. Where a row is
cut, a next launch has the first ones of all parts, in their order, as its rows: of equal elements the first ones win.
Where few are wanted, `sieve.py` tries first.
"""

from numba import types

from ...blocks.cuda import RADIX
from ...build import jit
from ...lang.ptx import WARP, barrier, count_bits, dynamic_memory, thread, threads, voted
from ...lang.simd import load, ptr, store
from ..block import block_running, warp_sum
from .radix import COUNTS, DIGITS, finish, key_at, part_of, rank_among, sort_shared, to_result
from .select import COUNTERS, clear, count_digits, counted
from .sieve import ELEMENTS, KEPT, WANTED, rank_of_kept, sieve

I32, I64, U16, U64 = types.int32, types.int64, types.uint16, types.uint64
LIST = 2048  # elements of up to 4 bytes that are sorted at the end, of 8 bytes half as many; in shared memory:
PLACES, RANKS, COUNTED = 8 * LIST, 16 * LIST, 18 * LIST  # where they begin, behind the elements
WARPS = 8


@jit.inline
def last_key(args, x, size, base, E, KIND, BYTES):
    """(shift, prefix, ties): of the wanted ones, `ties` have key >> shift == prefix, the others less."""
    shift, prefix, ties, equal = 8 * BYTES, U64(0), load(args, RADIX.wanted), -1
    counts, chosen = ptr(base, I32), ptr(base + COUNTERS, I64)
    ends = E(load(args, RADIX.infinity)), E(load(args, RADIX.mask))
    while shift > 0 and equal != ties:
        shift -= 8
        clear(counts)
        count_digits(x, size, counts, ends, (shift, prefix), E, KIND)
        barrier()
        here = counted(counts)
        before = block_running(here)[0]
        if before < ties and before + here >= ties:
            store(chosen, 0, thread())
            store(chosen, 1, ties - before)
            store(chosen, 2, here)
        barrier()
        prefix = prefix << U64(8) | U64(load(chosen, 0))
        ties, equal = load(chosen, 1), load(chosen, 2)
    return shift, prefix, ties


@jit.inline
def side_of(args, bits, found, E, KIND):
    """(whether an element comes before the last ones that are wanted, whether it is one of those)."""
    high = U64(key_at(args, bits, E, KIND)) >> U64(found[0])
    return high < found[1], high == found[1]


@jit.inline
def collect_one(args, bits, i, last, found, before, to, E, KIND):
    """An element of each thread of the warp to its place, if it is wanted, behind `before`: how many are less, equal.

    Returns how many are before the next ones.
    """
    wanted, ties, below, same = load(args, RADIX.wanted), found[2], False, False
    if i < last:
        below, same = side_of(args, bits, found, E, KIND)
    lows, sames, mine = voted(below), voted(same), (1 << thread() % WARP) - 1
    at = before[0] + count_bits(lows & mine)
    if same:
        tie = before[1] + count_bits(sames & mine)
        below, at = tie < ties, wanted - ties + tie
    if below:
        store(to[0], at, bits)
        store(to[1], at, I32(i))
    return before[0] + count_bits(lows), before[1] + count_bits(sames)


@jit.inline
def collect(args, x, size, found, to, sums, E, KIND):
    """The wanted ones in their order, then those that are equal to the last one, to `to`: (elements, places)."""
    first, last = part_of(size)
    lane, less, equal = thread() % WARP, 0, 0
    for start in range(first + lane, last, 4 * WARP):  # four on their way at once
        i, j, k = start + WARP, start + 2 * WARP, start + 3 * WARP
        a, b = load(x, start), load(x, min(i, last - 1))
        c, d = load(x, min(j, last - 1)), load(x, min(k, last - 1))
        (below, same), (below_b, same_b) = side_of(args, a, found, E, KIND), side_of(args, b, found, E, KIND)
        (below_c, same_c), (below_d, same_d) = side_of(args, c, found, E, KIND), side_of(args, d, found, E, KIND)
        less += I64(below) + I64(below_b and i < last) + I64(below_c and j < last) + I64(below_d and k < last)
        equal += I64(same) + I64(same_b and i < last) + I64(same_c and j < last) + I64(same_d and k < last)
    less, equal = warp_sum(less), warp_sum(equal)
    if lane == 0:
        store(sums, thread() // WARP, less)
        store(sums, WARPS + thread() // WARP, equal)
    barrier()
    less, equal = 0, 0
    for k in range(thread() // WARP):
        less += load(sums, k)
        equal += load(sums, WARPS + k)
    before = less, equal
    for start in range(first, last, 4 * WARP):  # the whole warp votes
        i, end = start + lane, last - 1
        a, b = load(x, min(i, end)), load(x, min(i + WARP, end))
        c, d = load(x, min(i + 2 * WARP, end)), load(x, min(i + 3 * WARP, end))
        before = collect_one(args, a, i, last, found, before, to, E, KIND)
        before = collect_one(args, b, i + WARP, last, found, before, to, E, KIND)
        before = collect_one(args, c, i + 2 * WARP, last, found, before, to, E, KIND)
        before = collect_one(args, d, i + 3 * WARP, last, found, before, to, E, KIND)
    barrier()


@jit.inline
def of_kept(args, lo, row, begin, x, count, memory, E, FIRST, LAST):
    """The first ones of those that the sieve has kept, in order."""
    wanted = load(args, RADIX.wanted)
    if thread() < count:
        place, rank = rank_of_kept(memory, count)
        bits = load(x, place)
        place += begin
        if not FIRST:
            place = I64(load(ptr(load(args, RADIX.order), I32) + row * load(args, RADIX.size), place))
        if LAST:
            to_result(args, row, rank, bits, place, E)
        elif rank < wanted:
            store(ptr(load(args, RADIX.to), E), lo * wanted + rank, bits)
            store(ptr(load(args, RADIX.order_to), I32), lo * wanted + rank, I32(place))
    return 0


@jit.inline
def first(args, lo, hi, E, KIND, BYTES, FIRST, LAST):
    """The first ones of part `lo` of all rows' parts; of whole rows, sorted to the results (`LAST`)."""
    parts, size, wanted = load(args, RADIX.tiles), load(args, RADIX.size), load(args, RADIX.wanted)
    row, base = lo // parts, dynamic_memory()
    begin, end = (lo - row * parts) * size // parts, (lo - row * parts + 1) * size // parts
    x = ptr(load(args, RADIX.source), E) + row * load(args, RADIX.stride) + begin
    kept, spare = ptr(base, E), ptr(base + 4 * LIST, E)
    places, spare_places = ptr(base + PLACES, I32), ptr(base + PLACES + 4 * LIST, I32)
    counts = ptr(base + COUNTED, I32)
    bases = counts + WARPS * COUNTS
    if wanted <= WANTED and end - begin >= ELEMENTS:
        found = sieve(args, x, end - begin, wanted, base, E, KIND)
        if found <= KEPT:
            return of_kept(args, lo, row, begin, x, found, base, E, FIRST, LAST)
        barrier()
    # the counts of the search lie where those of the sort will
    found = last_key(args, x, end - begin, base + COUNTED, E, KIND, BYTES)
    collect(args, x, end - begin, found, (kept, places), ptr(base + COUNTED + COUNTERS + 32, I64), E, KIND)
    if not FIRST:
        order = ptr(load(args, RADIX.order), I32) + row * size + begin
    for i in range(thread(), wanted, threads()):
        place = I64(load(places, i))
        if not FIRST:
            place = I64(load(order, place))
        else:
            place += begin
        if LAST:
            store(places, i, I32(place))
        else:
            store(ptr(load(args, RADIX.to), E), lo * wanted + i, load(kept, i))
            store(ptr(load(args, RADIX.order_to), I32), lo * wanted + i, I32(place))
    barrier()
    if LAST:
        if wanted <= threads():
            i = thread()
            if i < wanted:
                rank = rank_among(args, kept, wanted, i, E, KIND)
                to_result(args, row, rank, load(kept, i), load(places, i), E)
            return 0
        memory = ptr(base + RANKS, U16), counts, bases, bases + DIGITS
        if sort_shared(args, (kept, places), (spare, spare_places), wanted, memory, BYTES, E, KIND):
            kept, places = spare, spare_places
        finish(args, row, kept, places, wanted, E)
    return 0
