"""What sums and gathers of many elements need beside the copy engines, which carry them from GPU to GPU.

Kernels that carry elements take multiprocessors from the products of a backward pass; copy engines take none. Each rank
has a window that all of them can read and write, in lanes of a stream each. A round of a lane is, on every rank, in the
order of its stream:

    push      own elements of each other rank's part -> the window of that rank, place of this one
    meet      (`meet`, one warp)
    join      own part of x + what came into the own window -> y, and place of this rank in its window (`whole`)
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
places and flags of their own and know nothing of one another. A rank counts its own meetings of
a lane in its window, so a graph can hold rounds; all ranks launch the same ones in the same lanes, and what uses a lane
begins behind what used it before (`distributed/copies.py`).

**Products go on meanwhile.** A product of tiles has one block on each multiprocessor, from its beginning to its end,
with 64,512 of 65,536 registers and all shared memory but 3 KB. A block that finds no room waits for the end of one,
and a product that finds a multiprocessor taken begins there later. So blocks here are warps of up to 32 registers,
which fit beside it (a join of more than two ranks takes more), in streams of high priority. A join has eight for each
multiprocessor: beside each other where these are free, else one after the other.

**All ranks have the same bits.** A part is joined by one rank, for all, with elements in the order of ranks, 16-bit
floats in float32, rounded once.
"""

from numba import types

from ...blocks.comm import AVG
from ...blocks.cuda import JOINED_PART, MEETING
from ...build import jit
from ...cpu.comm.combine import divided, two
from ...lang.ptx import block, blocks, load_of_system, store_to_system, thread, threads, warp_barrier
from ...lang.simd import load, ptr, vload_aligned, vstore_aligned
from ..block import read, vector, width, write
from .peers import wait
from .sizes import COPIES_BROKEN, GAVE_UP

I64 = types.int64
STEP = 32  # from the peer of a thread to its next one: a warp has a thread for each


@jit.inline
def window(args, r, SIZE):
    """The window of rank r; a place of the block that is known only here would be looked up in a copy of it."""
    at = load(args, MEETING.windows)
    for k in range(1, SIZE):
        at = load(args, MEETING.windows + k) if r == k else at
    return at


@jit.inline
def meet(args, lo, hi, SIZE):
    """Tell all ranks that this one has come to a meeting, and wait for theirs; a thread of the warp for each."""
    rank, own, at = load(args, MEETING.rank), load(args, MEETING.own), load(args, MEETING.flags)
    broken, code, k = own + 8 * COPIES_BROKEN, 0, load(ptr(own + at + 8 * rank, I64), 0) + 1
    warp_barrier()  # all threads have the number before one of them counts on
    for peer in range(thread(), SIZE, STEP):
        store_to_system(window(args, peer, SIZE) + at + 8 * rank, k)
    if load_of_system(broken) != 0:
        return load(args, MEETING.what) + GAVE_UP
    for peer in range(thread(), SIZE, STEP):
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
def others(args, SIZE):
    """How many ranks come behind the first one; LLVM must not know of many, whose places would take registers each."""
    return 1 if SIZE == 2 else load(args, JOINED_PART.others)


@jit.inline
def whole(args, lo, hi, T, HOW, SIZE, PULLED):
    """The own part: vectors of 16 bytes at such addresses; with `PULLED` others take the result as well."""
    x, y, rank = ptr(load(args, JOINED_PART.x), T), ptr(load(args, JOINED_PART.y), T), load(args, JOINED_PART.rank)
    to, lanes = ptr(load(args, JOINED_PART.given) + rank * load(args, JOINED_PART.part), T), width(x)
    i = (block() * threads() + thread()) * lanes
    while i < load(args, JOINED_PART.count):
        total = vload_aligned(of_rank(args, 0, T), i, lanes)
        for r in range(1, 1 + others(args, SIZE)):
            total = two(total, vload_aligned(of_rank(args, r, T), i, lanes), HOW)
        total = divided(total, SIZE) if HOW == AVG else total
        vstore_aligned(y, i, total)
        if PULLED:
            vstore_aligned(to, i, total)
        i += blocks() * threads() * lanes
    return 0


@jit.inline
def ragged(args, lo, hi, T, HOW, SIZE, PULLED):
    """The same of any number of elements at any address."""
    x, y, rank = ptr(load(args, JOINED_PART.x), T), ptr(load(args, JOINED_PART.y), T), load(args, JOINED_PART.rank)
    to, like = ptr(load(args, JOINED_PART.given) + rank * load(args, JOINED_PART.part), T), vector(x, 0)
    i = (block() * threads() + thread()) * width(x)
    while i < load(args, JOINED_PART.count):
        left = load(args, JOINED_PART.count) - i
        total = read(of_rank(args, 0, T), i, left, like)
        for r in range(1, 1 + others(args, SIZE)):
            total = two(total, read(of_rank(args, r, T), i, left, like), HOW)
        total = divided(total, SIZE) if HOW == AVG else total
        write(y, i, total, left)
        if PULLED:
            write(to, i, total, left)
        i += blocks() * threads() * width(x)
    return 0
