"""Elements of rows by their ranks, without sorting: a rank of a row for a block.

Digit by digit from the highest, elements that share the digits found so far are counted by their next one, until one is
left or all digits are known; of equal elements it is the one with as many before it as are still to come. Counters lie
in shared memory, eight of each digit, so that threads whose elements are alike (the first digit of floats is their
sign and exponent) rarely add to the same one.
"""

from numba import types

from ...blocks.cuda import SELECT
from ...build import jit
from ...cpu.reduce.select import median_rank
from ...cpu.reduce.sort import key_of
from ...lang.by_type import by_type
from ...lang.pieces import vload_span
from ...lang.ptx import WARP, atomic_count, barrier, count_bits, shared, thread, threads, voted
from ...lang.simd import address, lane, load, ptr, store
from ..block import block_running, block_sum, warp_sum, width
from .scan import offset

I32, I64, U64 = types.int32, types.int64, types.uint64
DIGITS, COPIES = 256, 8
COUNTERS = 4 * DIGITS * COPIES
WARPS = 8


@jit.inline
def clear(counts):
    """No element is counted; all threads see it."""
    for i in range(thread(), DIGITS * COPIES, threads()):
        store(counts, i, I32(0))
    barrier()


@jit.inline
def counted(counts):
    """How many elements have this thread's digit; all threads have counted theirs before."""
    here = 0
    for k in range(COPIES):
        here += I64(load(counts, thread() * COPIES + k))
    return here


@jit.inline
def note(counts, bits, inside, ends, found, E, KIND):
    """Count an element by its next digit, if it has the digits `found`: (shift, prefix). `ends`: (infinity, mask)."""
    key = E(key_of(bits, ends[0], ends[1], E, KIND) >> E(found[0]))
    if inside and U64(key) >> U64(8) == found[1]:
        digit = I64(key) & (DIGITS - 1)
        atomic_count(address(counts + (digit * COPIES + thread() % COPIES)))


@by_type
def note_each(counts, v, begin, apart, low, high, ends, found, E, KIND):
    """The same of the lanes of a vector of four pieces, which are elements where they lie in [low, high)."""
    width = v.lanes // 4
    lines = ["def made(counts, v, begin, apart, low, high, ends, found, E, KIND):"]
    for k in range(v.lanes):
        if k % width == 0:
            lines.append(f"    end = I32(min(high - begin - {k // width} * apart, {width}))")
        there = f"{k % width} < end" if k >= width else f"low - begin <= {k} < end"
        lines.append(f"    note(counts, lane(v, {k}), {there}, ends, found, E, KIND)")
    scope = {"note": note, "lane": lane, "I32": I32}
    exec("\n".join(lines), scope)
    return scope["made"]


@jit.inline
def count_digits(x, size, counts, ends, found, E, KIND):
    """Count all elements of a row that have the digits `found`."""
    W = width(x)
    low = offset(x, W)
    high, apart, begin = low + size, threads() * W, thread() * W
    while begin - thread() * W < high:
        v = vload_span(x + -low, begin, apart, high, W, 4)
        note_each(counts, v, begin, apart, low, high, ends, found, E, KIND)
        begin += 4 * apart


@jit.inline
def alike_at(x, i, last, ends, found, E, KIND):
    """Whether an element of the row, if there is one, has these digits."""
    bits = load(x, min(i, last - 1))
    return i < last and U64(E(key_of(bits, ends[0], ends[1], E, KIND) >> E(found[0]))) == found[1]


@jit.inline
def place_of(x, size, ends, found, left, sums, E, KIND):
    """Where the element number `left` of those stands that have these digits; -1 for threads that have not met it."""
    each = (size + threads() - 1) // threads() * WARP
    first = min(size, thread() // WARP * each)
    last, own, place = min(size, first + each), 0, -1
    for i in range(first + thread() % WARP, last, 4 * WARP):  # four on their way at once
        a, b = alike_at(x, i, last, ends, found, E, KIND), alike_at(x, i + WARP, last, ends, found, E, KIND)
        far = i + 2 * WARP
        c, d = alike_at(x, far, last, ends, found, E, KIND), alike_at(x, far + WARP, last, ends, found, E, KIND)
        own += I64(a) + I64(b) + I64(c) + I64(d)
    own = warp_sum(own)
    if thread() % WARP == 0:
        store(sums, thread() // WARP, own)
    barrier()
    before = 0
    for k in range(thread() // WARP):
        before += load(sums, k)
    if before <= left < before + own:
        for start in range(first, last, WARP):
            i = start + thread() % WARP
            same = voted(alike_at(x, i, last, ends, found, E, KIND))
            if (same >> (thread() % WARP)) & 1 != 0 and before + count_bits(
                same & ((1 << thread() % WARP) - 1)
            ) == left:
                place = i
            before += count_bits(same)
    return place


@jit.inline
def last_keys(x, size, ends, nbytes, E, KIND):
    """How many elements of a row have the last key, which of floats are NaN."""
    own, last = 0, (0, U64(1) << U64(8 * nbytes - 1) | ((U64(1) << U64(8 * nbytes - 1)) - U64(1)))
    for i in range(thread(), size, 4 * threads()):  # four on their way at once
        a, b = alike_at(x, i, size, ends, last, E, KIND), alike_at(x, i + threads(), size, ends, last, E, KIND)
        far = i + 2 * threads()
        c, d = alike_at(x, far, size, ends, last, E, KIND), alike_at(x, far + threads(), size, ends, last, E, KIND)
        own += I64(a) + I64(b) + I64(c) + I64(d)
    return block_sum(own)


@jit.inline
def select(args, lo, hi, E, KIND, BYTES):
    """Rank number `lo` of those of all rows; 1 where there is no such element."""
    row, size, ranks = lo // load(args, SELECT.count), load(args, SELECT.size), load(args, SELECT.ranks)
    x = ptr(load(args, SELECT.source), E) + row * load(args, SELECT.stride)
    counts, chosen = ptr(shared(COUNTERS), I32), ptr(shared(96), I64)
    shift, prefix, equal, ends = 8 * BYTES, U64(0), size, (E(load(args, SELECT.infinity)), E(0))
    left = load(ptr(ranks, I64), lo) if ranks != 0 else load(args, SELECT.rank)
    if ranks == 0 and left < 0:
        left = median_rank(left, size - last_keys(x, size, ends, BYTES, E, KIND), size)
    if left < 0 or left >= size:
        return 1
    while shift > 0 and equal > 1:
        shift -= 8
        clear(counts)
        count_digits(x, size, counts, ends, (shift, prefix), E, KIND)
        barrier()
        here = counted(counts)
        before = block_running(here)[0]
        if before <= left and before + here > left:
            store(chosen, 0, thread())
            store(chosen, 1, left - before)
            store(chosen, 2, here)
        barrier()
        prefix = prefix << U64(8) | U64(load(chosen, 0))
        left, equal = load(chosen, 1), load(chosen, 2)
    place = place_of(x, size, ends, (shift, prefix), left, chosen + 4, E, KIND)
    if place >= 0:
        store(ptr(load(args, SELECT.values), E), lo, load(x, place))
        store(ptr(load(args, SELECT.indices), I64), lo, place)
    return 0
