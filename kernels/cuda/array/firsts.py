"""The first elements of runs of equal ones, in one launch; results have room for all.

A thread has 16 neighbouring elements, a warp a chunk of 512, and as many chunks as others, one behind the other. It
goes through them twice, and waits for nobody on the way: it counts, learns what the warps before it have found, and
writes, from those chunks alone where a run begins. When each tile of 6,144 was for a block of its own, 11,000 of them
waited for one another: 64 Mi elements took 370 us of float32, and 303 of bfloat16, of which 62 and 31 are reading
(H200; PyTorch 206 to 250 and 194 to 233); by warps that voted on each 32 elements 318 and 163. What blocks have found
comes through memory: a word for each, of its own count, or of all up to it, 128 of which a warp looks at at once.
What a chunk has found waits in shared memory for its place.
"""

from numba import types

from ...blocks.cuda import FIRSTS
from ...build import jit
from ...lang.by_type import by_type
from ...lang.near import each, load_near, store_far, store_near
from ...lang.ptx import (
    WARP,
    barrier,
    count_bits,
    from_below,
    from_place,
    peek,
    post,
    shared,
    thread,
    voted,
    warp_barrier,
)
from ...lang.simd import fill, load, ptr, store
from ...lang.simd import lane as lane_of
from ..block import read, warp_sum
from .chosen import begins
from .sizes import FIRSTS_THREADS, LANES

I32, I64, U64 = types.int32, types.int64, types.uint64
WARPS = FIRSTS_THREADS // WARP
HEAD, KEPT = 16 + 4 * WARPS, WARP * LANES + LANES  # bytes before elements, and elements of a warp's chunk, a few apart
OWN, ALL, BITS = 1, 2, 2  # what a word is: nothing yet, the count of a tile, that of all up to it; how many bits say it


def _keeper(k):
    """The function that stores lanes `k` to LANES - 1 of a vector whose bits are set, one behind the other."""
    after = _keeper(k + 1) if k + 1 < LANES else None

    @jit.inline
    def keep(kept, place, bits, v):
        bit = bits >> k & 1
        if bit != 0:
            store_near(kept, apart(place), lane_of(v, k))
        if after is not None:
            after(kept, place + bit, bits, v)

    return keep


keep_first = _keeper(0)


@jit.inline
def apart(place):
    """Where elements of a chunk lie in shared memory: those of neighbours, 16 from one another, in all banks."""
    return place + (place >> 5)


@jit.inline
def write_32(state, k):
    """The elements of a warp number 32 k and those behind it, if there are any."""
    y, kept, left = state
    if I32(WARP * k) < left:
        store_far(y, WARP * k, load_near(kept, (WARP + 1) * k))
    return 0


@jit.inline
def begun_in(args, chunk, T):
    """(place of a thread's first element of a warp's chunk, the bits of its LANES with which runs begin)."""
    size, i = load(args, FIRSTS.size), (chunk * WARP + thread() % WARP) * LANES
    return i, (I32(begins(ptr(load(args, FIRSTS.x), T), i, size, T)) if i < size else I32(0))


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


@by_type
def memory_of(x):
    """Shared memory: where the runs of a block begin, the counts of its warps, then a chunk of elements for each."""
    nbytes = HEAD + WARPS * KEPT * x.dtype.bitwidth // 8
    return lambda x: shared(nbytes)


@jit.inline
def first_of_runs(args, number, hi, T, E):
    """The first elements of the runs that begin in the chunks of a block's warps, behind those of chunks before."""
    lane, warp, size = thread() % WARP, thread() // WARP, load(args, FIRSTS.size)
    x, share = ptr(load(args, FIRSTS.x), E), load(args, FIRSTS.share)
    memory, first, total, some = memory_of(x), (number * WARPS + warp) * share, I32(0), U64(0)
    stop, shift = min(first + share, load(args, FIRSTS.chunks)), load(args, FIRSTS.shift)
    for chunk in range(first, stop):
        _, bits = begun_in(args, chunk, T)
        total += I32(count_bits(bits))
        if voted(bits != 0) != 0:
            some |= U64(1) << U64(chunk - first >> shift)  # chunks without any are not looked at again
    at = begin_of_warp(args, number, warp_sum(total), memory)
    kept = ptr(memory + HEAD, E) + warp * KEPT
    for chunk in range(first, stop):
        if some >> U64(chunk - first >> shift) & U64(1) != 0:
            i, bits = begun_in(args, chunk, T)
            mine = I32(count_bits(bits))
            upto = mine
            for by in (1, 2, 4, 8, 16):
                less = from_below(upto, by)
                if lane >= by:
                    upto += less
            keep_first(kept, upto - mine, bits, read(x, i, size - i, fill(0, E, LANES)))
            warp_barrier()
            count = from_place(upto, WARP - 1)
            each(LANES, write_32, (ptr(load(args, FIRSTS.y), E) + (at + lane), kept + lane, count - I32(lane)))
            at += I64(count)
            warp_barrier()
    return 0
