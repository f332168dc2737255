"""The first elements of runs of equal ones, in one launch that reads and writes each once; results have room for all.

A warp has neighbouring elements, 32 at a time, and knows by a vote which of them differ from the one before, which is
that of the thread below. What tiles before have found comes through memory: a word for each, of its own count, or of
all up to it. The threads of a warp look at 128 of them at once, back to one that knows all: with 32 at once, no more
than 32 tiles went on for each turn through memory, and 64 Mi elements of float32, 8,192 tiles, took 299 us (H200). What
a tile has found waits in shared memory for its place: in registers, of 16 elements, two blocks had room, now three.
"""

from numba import types

from ...blocks.cuda import FIRSTS
from ...build import jit
from ...lang.near import each, each_of, load_far, load_near, store_far, store_near, sums_before
from ...lang.ptx import WARP, barrier, count_bits, from_below, from_place, peek, post, shared, thread, voted
from ...lang.simd import load, ptr, store
from ..block import warp_sum
from .sizes import FIRSTS_BYTES, THREADS

I32, I64, U32 = types.int32, types.int64, types.uint32
WARPS = THREADS // WARP
MEMORY = 8 * WARPS + 4 * WARPS  # bytes: where the runs of each warp go, and the counts of warps; then elements
SHARED = MEMORY + FIRSTS_BYTES
OWN, ALL, BITS = 1, 2, 2  # what a word is: nothing yet, the count of a tile, that of all up to it; how many bits say it


@jit.inline
def inside(x, k):
    """An element of the warp where it has all of them."""
    return load_far(x, k * WARP)


@jit.inline
def within(state, k):
    """The same where x may end before; behind that its last element.

    By another instruction than `inside`, or LLVM would make one of the two, of addresses in 32 registers.
    """
    x, left = state
    return load(x, min(I32(k * WARP), left))


@jit.inline
def below(lane, k, own):
    """What the thread below has of the same 32 elements, the lowest one of the highest."""
    return from_place(own, (lane + WARP - 1) % WARP)


@jit.inline
def begun(state, k, own, before, lowest):
    """Bits of those of 32 elements with which runs begin."""
    lane, left = state
    return U32(voted(own != (before if lane > 0 else lowest) and I32(k * WARP) < left))


@jit.inline
def how_many(state, k, bits):
    return I32(count_bits(bits))


@jit.inline
def keep_first(state, k, bits, before, value):
    """An element to its place among those of the warp, if a run begins with it."""
    memory, mine = state
    if (bits & mine) != 0:
        store_near(memory, before + I32(count_bits(bits & U32(mine - 1))), value)
    return 0


@jit.inline
def told(words, tile):
    """The word of a tile; before the first one, that there is nothing."""
    return peek(words + 8 * tile) if tile >= 0 else I64(ALL)


@jit.inline
def further(found, word, words, tile):
    """(sum for this thread, whether it goes on) after the word of this thread's tile, the nearest for the first one."""
    total, going = found
    if going:
        while word == 0:
            word = peek(words + 8 * tile)
        ends = voted(word & ALL != 0)
        last = ends & -ends  # the bit of the nearest tile that knows all; 0: nobody does
        mine = I64(1) << (thread() % WARP)
        total, going = total + (word >> BITS if last == 0 or mine <= last else I64(0)), last == 0
    return total, going


@jit.inline
def before_tile(words, tile):
    """How many elements the tiles before have found, for all threads of the warp that ask.

    Four words of each thread are on their way at once.
    """
    at, found = tile - 1 - thread() % WARP, (I64(0), True)
    while found[1]:
        a, b, c, d = told(words, at), told(words, at - 32), told(words, at - 64), told(words, at - 96)
        found = further(further(found, a, words, at), b, words, at - 32)
        found = further(further(found, c, words, at - 64), d, words, at - 96)
        at -= 128
    return warp_sum(found[0])


@jit.inline
def places_of_warps(args, tile, last, begins, counts):
    """From the counts of warps to where each writes; tell others of them. For one warp."""
    words, lane = load(args, FIRSTS.words), thread() % WARP
    own = load_near(counts, min(lane, WARPS - 1)) if lane < WARPS else I32(0)
    upto = own
    for apart in (1, 2, 4, 8, 16):
        less = from_below(upto, apart)
        if lane >= apart:
            upto += less
    whole, start = I64(from_place(upto, WARP - 1)), I64(0)
    if tile > 0:
        if lane == 0:
            post(words + 8 * tile, whole << BITS | OWN)
        start = before_tile(words, tile)
    if lane == 0:
        post(words + 8 * tile, (start + whole) << BITS | ALL)
        if last:
            store(ptr(load(args, FIRSTS.count), I64), 0, start + whole)
    if lane < WARPS:
        store_near(begins, lane, start + I64(upto - own))


@jit.inline
def first_of_runs(args, tile, hi, T, E, K):
    """The first elements of the runs that begin in a tile of K elements for each thread, behind those of others; the
    last tile tells how many.
    """
    size, lane, warp = load(args, FIRSTS.size), thread() % WARP, thread() // WARP
    first = (tile * WARPS + warp) * (WARP * K) + lane
    memory = shared(SHARED)
    left, begins, counts = size - first, ptr(memory, I64), ptr(memory + 8 * WARPS, I32)
    x, words_of_x = ptr(load(args, FIRSTS.x), T), ptr(load(args, FIRSTS.x), E)
    if (tile + 1) * (THREADS * K) <= size:
        values, own = each(K, inside, words_of_x + first), each(K, inside, x + first)
    else:
        start = min(first, size - 1)
        ends = I32(min(size - 1 - start, WARP * K))
        values, own = each(K, within, (words_of_x + start, ends)), each(K, within, (x + start, ends))
    before = each_of(own, below, lane)
    lowest = (load_far(x, min(max(first - lane - 1, 0), size - 1)),) + before[:-1]
    bits = each_of((own, before, lowest), begun, (lane, I32(min(left, WARP * K))))
    if first == lane:
        bits = (U32(bits[0] | U32(1)),) + bits[1:]  # the first of all
    places, total = sums_before(each_of(bits, how_many, 0), I32(0))
    kept = ptr(memory + MEMORY, E) + warp * (WARP * K)
    each_of((bits, places, values), keep_first, (kept, U32(1) << U32(lane)))
    if lane == 0:
        store_near(counts, warp, total)
    barrier()
    if warp == 0:
        places_of_warps(args, tile, (tile + 1) * (THREADS * K) >= size, begins, counts)
    barrier()
    y, mine = ptr(load(args, FIRSTS.y), E) + load_near(begins, warp), load_near(counts, warp)
    for k in range(lane, mine, WARP):
        store_far(y, k, load_near(kept, k))
    return 0
