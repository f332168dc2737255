"""The first elements of runs of equal ones, in one launch that reads and writes each once; results have room for all.

A warp has neighbouring elements, 32 at a time, and knows by a vote which of them differ from the one before. What tiles
before have found comes through memory: a word for each, of its own count, or of all up to it. The threads of a warp
look at 32 of them at once, back to one that knows all.
"""

from numba import types

from ...blocks.cuda import FIRSTS
from ...build import jit
from ...lang.near import each, each_of, load_far, load_near, store_far, store_near, sums_before
from ...lang.ptx import WARP, barrier, count_bits, peek, post, shared, thread, voted
from ...lang.simd import load, ptr, store
from ..block import warp_sum
from .sizes import FIRSTS_EACH, THREADS

I32, I64, U32 = types.int32, types.int64, types.uint32
WARPS, TILE = THREADS // WARP, THREADS * FIRSTS_EACH
MEMORY = 8 * WARPS + 8  # bytes: the counts of warps, and that of the tiles before
OWN, ALL, BITS = 1, 2, 2  # what a word is: nothing yet, the count of a tile, that of all up to it; how many bits say it


@jit.inline
def begun_inside(x, k):
    """Bits of those of the warp's elements number k with which runs begin, where others stand before them all."""
    return U32(voted(load_far(x, k * WARP) != load_far(x, k * WARP - 1)))


@jit.inline
def element_inside(x, k):
    return load_far(x, k * WARP)


@jit.inline
def begun(state, k):
    """The same anywhere."""
    x, first, size = state
    i = first + k * WARP
    own, before = load_far(x, min(i, size - 1)), load_far(x, min(max(i - 1, 0), size - 1))
    return U32(voted(i < size and (i == 0 or own != before)))


@jit.inline
def element(state, k):
    x, first, size = state
    return load_far(x, min(first + k * WARP, size - 1))


@jit.inline
def how_many(state, k, bits):
    return I32(count_bits(bits))


@jit.inline
def write_first(state, k, bits, before, value):
    """An element to its place, if a run begins with it."""
    y, mine = state
    if (bits & mine) != 0:
        store_far(y, before + I32(count_bits(bits & U32(mine - 1))), value)
    return 0


@jit.inline
def before_tile(words, tile):
    """How many elements the tiles before have found, for all threads of the warp that ask."""
    total, going = I64(0), True
    while going:
        at, word = tile - 1 - thread() % WARP, I64(ALL)
        if at >= 0:
            word = peek(words + 8 * at)
            while word == 0:
                word = peek(words + 8 * at)
        ends = voted(word & ALL != 0)
        last = ends & -ends  # the bit of the nearest tile that knows all; 0: nobody does
        mine = I64(1) << (thread() % WARP)
        total += warp_sum(word >> BITS if last == 0 or mine <= last else I64(0))
        tile, going = tile - WARP, last == 0
    return total


@jit.inline
def first_of_runs(args, tile, hi, T, E):
    """The first elements of the runs that begin in a tile, behind those of others; the last tile tells how many."""
    size, words, lane = load(args, FIRSTS.size), load(args, FIRSTS.words), thread() % WARP
    first, memory = tile * TILE + thread() // WARP * (WARP * FIRSTS_EACH) + lane, ptr(shared(MEMORY), I64)
    x, words_of_x = ptr(load(args, FIRSTS.x), T), ptr(load(args, FIRSTS.x), E)
    if tile > 0 and (tile + 1) * TILE <= size:
        values = each(FIRSTS_EACH, element_inside, words_of_x + first)
        bits = each(FIRSTS_EACH, begun_inside, x + first)
    else:
        values = each(FIRSTS_EACH, element, (words_of_x, first, size))
        bits = each(FIRSTS_EACH, begun, (x, first, size))
    before, total = sums_before(each_of(bits, how_many, 0), I32(0))
    if lane == 0:
        store_near(memory, thread() // WARP, I64(total))
    barrier()
    if thread() < WARP:
        own = I64(0)
        if lane < WARPS:
            own = load_near(memory, lane)
        whole = warp_sum(own)
        if lane == 0:
            post(words + 8 * tile, whole << BITS | (ALL if tile == 0 else OWN))
        start = I64(0)
        if tile > 0:
            start = before_tile(words, tile)
            if lane == 0:
                post(words + 8 * tile, (start + whole) << BITS | ALL)
        if lane == 0:
            store_near(memory, WARPS, start)
            if (tile + 1) * TILE >= size:
                store(ptr(load(args, FIRSTS.count), I64), 0, start + whole)
    barrier()
    at = load_near(memory, WARPS)
    for k in range(thread() // WARP):
        at += load_near(memory, k)
    each_of((bits, before, values), write_first, (ptr(load(args, FIRSTS.y), E) + at, U32(1) << U32(lane)))
    return 0
