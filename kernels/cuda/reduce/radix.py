"""Rows sorted by their digits, least significant first, 8 bits a pass; equal digits keep their order.

A pass has three launches: how many elements of each tile have each digit; where those of a tile begin (the sum of all
before, by digit, then by tile); and the move. A warp takes neighbouring elements, 32 at a time: those with equal
digits find one another by one instruction, and their ranks are how many of them stand before. So nothing is added up
in an order that changes, and the sort is stable. Keys are those of `kernels/cpu/reduce/sort.py`.
"""

from numba import types

from ...blocks.cuda import RADIX, SORTED
from ...build import jit
from ...cpu.reduce.sort import key_of
from ...lang.ptx import WARP, alike, barrier, count_bits, shared, thread, threads, warp_barrier
from ...lang.simd import load, ptr, store
from ..block import block_running

I32, I64, U64 = types.int32, types.int64, types.uint64
DIGITS = THREADS = 256
WARPS = 8
EACH = 16  # elements of a thread
TILE = THREADS * EACH
COUNTS = DIGITS + 32  # of a warp: the places behind the digits are for what lies behind the row
COUNTS_BYTES = 4 * WARPS * COUNTS


@jit.inline
def key_at(args, row, i, E, KIND, FIRST):
    """The key of element `i` of a row."""
    if FIRST:
        bits = load(ptr(load(args, RADIX.source), E), row * load(args, RADIX.stride) + i * load(args, RADIX.step))
        return key_of(bits, E(load(args, RADIX.infinity)), E(load(args, RADIX.mask)), E, KIND)
    return load(ptr(load(args, RADIX.source), E), row * load(args, RADIX.size) + i)


@jit.inline
def digit_of(args, key):
    return I64((U64(key) >> U64(load(args, RADIX.shift))) & U64(DIGITS - 1))


@jit.inline
def tally(args, counts, row, begin, E, KIND, FIRST):
    """Count the digits of this warp's part of a tile, from `begin` on."""
    size, lane = load(args, RADIX.size), thread() % WARP
    for place in range(lane, COUNTS, WARP):
        store(counts, place, 0)
    warp_barrier()
    for step in range(EACH):
        i, digit = begin + step * WARP + lane, DIGITS
        if i < size:
            digit = digit_of(args, key_at(args, row, i, E, KIND, FIRST))
        same = alike(digit)
        if same & ((1 << lane) - 1) == 0:
            store(counts, digit, load(counts, digit) + count_bits(same))
        warp_barrier()


@jit.inline
def count(args, lo, hi, E, KIND, FIRST):
    """The counts of tile `lo` of all rows' tiles."""
    tiles = load(args, RADIX.tiles)
    row, warp = lo // tiles, thread() // WARP
    tile = lo - row * tiles
    memory = ptr(shared(COUNTS_BYTES), I32)
    tally(args, memory + warp * COUNTS, row, tile * TILE + warp * (WARP * EACH), E, KIND, FIRST)
    barrier()
    total = 0
    for k in range(WARPS):
        total += load(memory, k * COUNTS + thread())
    store(ptr(load(args, RADIX.counts), I32), (row * DIGITS + thread()) * tiles + tile, total)
    return 0


@jit.inline
def offsets(args, lo, hi):
    """The counts of row `lo` become the sums of all before them."""
    entries = load(args, RADIX.tiles) * DIGITS
    counts = ptr(load(args, RADIX.counts), I32) + lo * entries
    each = (entries + threads() - 1) // threads()
    first = min(entries, thread() * each)
    last, own = min(entries, first + each), 0
    for i in range(first, last):
        own += I64(load(counts, i))
    running = block_running(own)[0]
    for i in range(first, last):
        here = I64(load(counts, i))
        store(counts, i, running)
        running += here
    return 0


@jit.inline
def move(args, lo, hi, E, KIND, FIRST):
    """The elements of tile `lo` of all rows' tiles, to their places by this digit."""
    tiles, size = load(args, RADIX.tiles), load(args, RADIX.size)
    row, warp, lane = lo // tiles, thread() // WARP, thread() % WARP
    tile = lo - row * tiles
    memory, begin = ptr(shared(COUNTS_BYTES), I32), tile * TILE + warp * (WARP * EACH)
    counts = memory + warp * COUNTS
    tally(args, counts, row, begin, E, KIND, FIRST)
    barrier()
    running = I64(load(ptr(load(args, RADIX.counts), I32), (row * DIGITS + thread()) * tiles + tile))
    for k in range(WARPS):
        here = I64(load(memory, k * COUNTS + thread()))
        store(memory, k * COUNTS + thread(), running)
        running += here
    barrier()
    places, places_to = ptr(load(args, RADIX.order), I32), ptr(load(args, RADIX.order_to), I32) + row * size
    to = ptr(load(args, RADIX.to), E) + row * size
    for step in range(EACH):
        i, digit = begin + step * WARP + lane, DIGITS
        key, place = E(0), i
        if i < size:
            key = key_at(args, row, i, E, KIND, FIRST)
            digit = digit_of(args, key)
            if not FIRST:
                place = I64(load(places, row * size + i))
        same = alike(digit)
        before, at = same & ((1 << lane) - 1), I64(load(counts, digit))
        warp_barrier()
        if before == 0:
            store(counts, digit, at + count_bits(same))
        warp_barrier()
        if i < size:
            at += count_bits(before)
            store(to, at, key)
            store(places_to, at, place)
    return 0


@jit.inline
def collect(args, lo, hi, E):
    """Places [lo, hi) of the result: indices, and the elements there."""
    size, wanted, x = load(args, SORTED.size), load(args, SORTED.wanted), ptr(load(args, SORTED.x), E)
    for at in range(lo, hi):
        row = at // wanted
        place = I64(load(ptr(load(args, SORTED.order), I32), row * size + at - row * wanted))
        store(ptr(load(args, SORTED.indices), I64), at, place)
        if load(args, SORTED.values) != 0:
            store(ptr(load(args, SORTED.values), E), at, load(x, row * load(args, SORTED.stride) + place))
    return 0
