"""What sums and gathers of many elements need beside the copy engines, which carry them from GPU to GPU.

Kernels that carry elements take multiprocessors from the products of a backward pass (NCCL's: 4 ms of a step of GPT-2
on two H200); copy engines take none. Each rank has a window that all of them can read and write, in lanes of a stream
each. A round of a lane is, on every rank, in the order of its stream:

    push      own elements of each other rank's part -> the window of that rank, place of this one
    meet      (`meet`, one warp)
    join      own part of x + what came into the own window -> y, and place of this rank in its window (`join`)
    meet
    pull      the window of each other rank, its place -> its part of y

A reduce-scatter leaves out the pull, and joins into y alone. A gather is: meet, copy what this rank gives into its
place of its window, meet, pull. So of the places of a window, that of its own rank is written by that rank and read by
all others, and each other one is written by the rank that it is named after, and read by the own rank.

**What is read has been written.** A stream begins an operation when those before it have ended, so who stores the flag
of a meeting, with release at system scope, has all that its stream did before written and seen: a copy engine's writes
to the window of another GPU as well. There, flags are loaded with acquire at system scope, by a kernel that ends before
its stream joins or copies.

**What is written has been read.** A push of round k + 1 writes where the join of that rank in an earlier round has
read: that join came before the last meeting of its round, which this rank has passed. What a join, or the copy of a
gather, writes into its own place, others have pulled in earlier rounds: before they came to the first meeting of this
round, which this rank has passed. So each lane needs one place for each rank, and two meetings a round. Lanes have
places and flags of their own and know nothing of one another. Meetings are counted by the host; all ranks launch the
same rounds in the same lanes.

**All ranks have the same bits.** A part is joined by one rank, for all, with elements in the order of ranks, 16-bit
floats in float32, rounded once.
"""

from ...blocks.comm import AVG
from ...blocks.cuda import JOINED_PART, MEETING
from ...build import jit
from ...cpu.comm.combine import divided, two
from ...lang.ptx import load_of_system, store_to_system, thread, threads
from ...lang.simd import address, load, ptr, vload_aligned, vstore_aligned
from ..block import read, vector, width, write
from .peers import wait
from .sizes import COPIES_BROKEN, GAVE_UP

LANE = 1  # the thread that meets rank r is thread LANE * r


@jit.inline
def meet(args, lo, hi, SIZE):
    """Tell all ranks that this one has come to a meeting, and wait for theirs; a thread of the warp for each."""
    rank, own, k = load(args, MEETING.rank), load(args, MEETING.own), load(args, MEETING.k)
    at, broken, code = load(args, MEETING.flags), own + 8 * COPIES_BROKEN, 0
    for peer in range(SIZE):
        if thread() == LANE * peer and peer != rank:
            store_to_system(load(args, MEETING.windows + peer) + at + 8 * rank, k)
    if load_of_system(broken) != 0:
        return load(args, MEETING.what) + GAVE_UP
    for peer in range(SIZE):
        if thread() == LANE * peer and peer != rank:
            missing = wait(own + at + 8 * peer, k, peer, broken, load(args, MEETING.timeout))
            code = missing if missing != 0 else code
    if code == 0:
        return 0
    for r in range(SIZE):  # let the others know that this rank takes part in nothing any more
        store_to_system(load(args, MEETING.windows + r) + 8 * COPIES_BROKEN, 1)
    return load(args, MEETING.what) + code


@jit.inline
def of_rank(args, r, T):
    """Where the elements of the own part are that rank r has given: in the window, or, of the own rank, in x."""
    own, place = r == load(args, JOINED_PART.rank), load(args, JOINED_PART.given) + r * load(args, JOINED_PART.part)
    return ptr(place + own * (load(args, JOINED_PART.x) - place), T)


@jit.inline
def four(x, i, apart):
    """Four vectors, `apart` elements from each other."""
    lanes = width(x)
    return (
        vload_aligned(x, i, lanes),
        vload_aligned(x, i + apart, lanes),
        vload_aligned(x, i + 2 * apart, lanes),
        vload_aligned(x, i + 3 * apart, lanes),
    )


@jit.inline
def mean(total, HOW, SIZE):
    """What a sum stands for."""
    return divided(total, SIZE) if HOW == AVG else total


@jit.inline
def join(args, lo, hi, T, HOW, SIZE, PULLED):
    """Share `lo` of the own part, of a block; `PULLED`: others take it from the window as well.

    Each thread has eight vectors or more on their way at once, so that few blocks are enough: four of each rank, or, of
    more than four ranks, whose sixteen would not fit into registers, one.
    """
    x, y, rank = ptr(load(args, JOINED_PART.x), T), ptr(load(args, JOINED_PART.y), T), load(args, JOINED_PART.rank)
    to = ptr(load(args, JOINED_PART.given) + rank * load(args, JOINED_PART.part), T)
    count, lanes, like = load(args, JOINED_PART.count), width(x), vector(x, 0)
    i, apart = (lo * threads() + thread()) * lanes, load(args, JOINED_PART.shares) * threads() * lanes
    if (address(x) | address(y)) & 15 == 0:
        while SIZE <= 4 and i + 3 * apart + lanes <= count:
            a, b, c, d = four(of_rank(args, 0, T), i, apart)
            for r in range(1, SIZE):
                e, f, g, h = four(of_rank(args, r, T), i, apart)
                a, b, c, d = two(a, e, HOW), two(b, f, HOW), two(c, g, HOW), two(d, h, HOW)
            a, b, c, d = mean(a, HOW, SIZE), mean(b, HOW, SIZE), mean(c, HOW, SIZE), mean(d, HOW, SIZE)
            vstore_aligned(y, i, a)
            vstore_aligned(y, i + apart, b)
            vstore_aligned(y, i + 2 * apart, c)
            vstore_aligned(y, i + 3 * apart, d)
            if PULLED:
                vstore_aligned(to, i, a)
                vstore_aligned(to, i + apart, b)
                vstore_aligned(to, i + 2 * apart, c)
                vstore_aligned(to, i + 3 * apart, d)
            i += 4 * apart
        while i + lanes <= count:
            a = vload_aligned(of_rank(args, 0, T), i, lanes)
            for r in range(1, SIZE):
                a = two(a, vload_aligned(of_rank(args, r, T), i, lanes), HOW)
            a = mean(a, HOW, SIZE)
            vstore_aligned(y, i, a)
            if PULLED:
                vstore_aligned(to, i, a)
            i += apart
    while i < count:
        total = read(of_rank(args, 0, T), i, count - i, like)
        for r in range(1, SIZE):
            total = two(total, read(of_rank(args, r, T), i, count - i, like), HOW)
        total = mean(total, HOW, SIZE)
        write(y, i, total, count - i)
        if PULLED:
            write(to, i, total, count - i)
        i += apart
    return 0
