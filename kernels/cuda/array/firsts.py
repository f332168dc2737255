"""The first elements of runs of equal ones, in one launch that reads and writes each once; results have room for all.

A warp has neighbouring elements, 32 at a time, and knows by a vote which of them differ from the one before, which is
that of the thread below. It has as many chunks as others, one behind the other, and goes through them twice, waiting
for nobody on the way: it counts, learns what the warps before it have found, and writes, from those chunks alone where
a run begins. When each tile of 6,144 was for a block of its own, 11,000 of them waited for one another: 64 Mi elements
took 370 us of float32, and 303 of bfloat16, of which 62 and 31 are reading; by blocks with a share of these tiles 292
and 231 (H200; PyTorch 223 to 250 and 202 to 233). What blocks have found comes through memory: a word for each, of its
own count, or of all up to it, 128 of which a warp looks at at once. What a chunk has found waits in shared memory for
its place.
"""

from numba import types

from ...blocks.cuda import FIRSTS
from ...build import jit
from ...lang.near import each, each_of, load_far, load_near, store_far, store_near, sums_before
from ...lang.ptx import WARP, barrier, count_bits, from_place, peek, post, shared, thread, voted, warp_barrier
from ...lang.simd import load, ptr, store
from ..block import warp_sum
from .sizes import FIRSTS_BYTES, THREADS

I32, I64, U32, U64 = types.int32, types.int64, types.uint32, types.uint64
WARPS = THREADS // WARP
MEMORY = 16 + 4 * WARPS  # bytes: where the runs of a block go, the counts of its warps; then elements
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
def begun_in(args, chunk, T, E, K):
    """(bits of elements of a warp's chunk with which runs begin, for each of K steps, the elements)."""
    size, lane = load(args, FIRSTS.size), thread() % WARP
    first = chunk * (WARP * K) + lane
    left, x, words_of_x = size - first, ptr(load(args, FIRSTS.x), T), ptr(load(args, FIRSTS.x), E)
    if (chunk + 1) * (WARP * K) <= size:
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
    return bits, values


@jit.inline
def begin_of_warp(args, number, total, memory):
    """What the warps before have found, also those of blocks before, for one that has found `total`; tell others."""
    words, begin, counts = load(args, FIRSTS.words), ptr(memory, I64), ptr(memory + 8, I32)
    lane, warp = thread() % WARP, thread() // WARP
    if lane == 0:
        store_near(counts, warp, total)
    barrier()
    found = load_near(counts, lane) if lane < WARPS else I32(0)
    if warp == 0:
        whole, start = I64(warp_sum(found)), I64(0)
        if number > 0:
            if lane == 0:
                post(words + 8 * number, whole << BITS | OWN)
            start = before_tile(words, number)
        if lane == 0:
            post(words + 8 * number, (start + whole) << BITS | ALL)
            if (number + 1) * WARPS * load(args, FIRSTS.share) >= load(args, FIRSTS.chunks):
                store(ptr(load(args, FIRSTS.count), I64), 0, start + whole)
            store_near(begin, 0, start)
    barrier()
    return load_near(begin, 0) + I64(warp_sum(found if lane < warp else I32(0)))


@jit.inline
def first_of_runs(args, number, hi, T, E, K):
    """The first elements of the runs that begin in the chunks of a block's warps, behind those of chunks before."""
    memory, lane, warp = shared(SHARED), thread() % WARP, thread() // WARP
    share, total, some = load(args, FIRSTS.share), I32(0), U64(0)
    first = (number * WARPS + warp) * share
    stop, apart = min(first + share, load(args, FIRSTS.chunks)), (share + 63) // 64
    for chunk in range(first, stop):
        bits, _ = begun_in(args, chunk, T, E, K)
        _, mine = sums_before(each_of(bits, how_many, 0), I32(0))
        total += mine
        if mine != 0:
            some |= U64(1) << U64((chunk - first) // apart)  # chunks without any are not looked at again
    at = begin_of_warp(args, number, total, memory)
    kept = ptr(memory + MEMORY, E) + warp * (WARP * K)
    for chunk in range(first, stop):
        if some >> U64((chunk - first) // apart) & U64(1) != 0:
            bits, values = begun_in(args, chunk, T, E, K)
            places, mine = sums_before(each_of(bits, how_many, 0), I32(0))
            each_of((bits, places, values), keep_first, (kept, U32(1) << U32(lane)))
            warp_barrier()
            y = ptr(load(args, FIRSTS.y), E) + at
            for k in range(lane, mine, WARP):
                store_far(y, k, load_near(kept, k))
            at += I64(mine)
            warp_barrier()
    return 0
