"""A ring of stages in shared memory that two warps of a block fill by the copy engine, one with a matrix, the other
with rows of x, for those that multiply, and the sums of these: `gemm/stream.py`, `quant/stream.py`, `quant/floats.py`.

Three barriers for each stage say that the matrix is there, that x is there, and that the stage is free. x of up to 32
KB lies beside the ring, as a whole, and the first stage's barrier says so; where kernels make x, it says that they may
begin to. The matrix of the first stages is read before the launches before this one have ended, some steps at a time:
what these read would wait behind two hundred kilobytes of each multiprocessor (with all steps at once, a rotary
embedding took 9 us instead of 3). After them nothing waits any more, and the ring is filled at once.
"""

from numba import types

from ..build import jit
from ..lang.fragments import store_16
from ..lang.mma import words
from ..lang.ptx import (
    WARP,
    barrier,
    barrier_arrive,
    barrier_expect,
    barrier_new,
    barrier_wait,
    barrier_wait_either,
    block,
    blocks,
    copy_tile,
    dynamic_shared,
    fence_barriers,
    fetch_map,
    generic,
    thread,
    wait_for_others,
    warp_barrier,
)
from ..lang.simd import lane, load, ptr, store, vload_first
from .gemm.sizes import STREAM_BARRIERS, STREAM_WARPS
from .gemm.wgmma import ratio

F32, U16, U32 = types.float32, types.uint16, types.uint32
X, FREE, APART = 8, 16, 32  # where barriers of a stage lie behind the first one, and how far apart stages are


@jit.inline
def places_of(head, matrix, slabs, k, rows, whole):
    """(barriers, x as a whole, the first stage, bytes of each): the first `head` bytes are those of barriers and sums.

    A step has so many bytes of the matrix, and `slabs` times 64 of k of `rows` rows of x unless it lies there `whole`.
    """
    barriers = dynamic_shared()
    x, x_bytes = barriers + head, (k * 2 if whole else slabs * 128) * rows + 1023 & -1024
    return barriers, x, x + (x_bytes if whole else 0), matrix + (0 if whole else x_bytes)


@jit.inline
def lanes_of(at):
    """How many lanes of a warp say that a step of an operand at this address is there: one where the copy engine brings
    it, all where they copy it themselves.
    """
    return WARP if at & 15 != 0 else 1


@jit.inline
def ask_for_map(tensor):
    """Let the copy engine read a map, if it is one."""
    if tensor != 0:
        fetch_map(tensor)


@jit.inline
def new_ring(barriers, stages, warps, w, x, maps):
    """What all warps do first: they make the barriers of a ring that so many of them read, of a matrix and x at these
    addresses, and those that bring them ask for their maps (of the matrix, of what belongs to it, of x; 0: none).

    By one thread, and each map when it was needed, 16 rows of 14336 x 4096 with 4 bits took 12.2 us instead of 11.9.
    """
    if thread() % WARP == 0:
        warp = thread() // WARP
        if warp == warps:
            ask_for_map(maps[0])
            ask_for_map(maps[1])
        elif warp > warps:
            ask_for_map(maps[2])
        for i in range(warp, stages, warps + 2):
            barrier_new(barriers + APART * i, lanes_of(w))
            barrier_new(barriers + APART * i + X, lanes_of(x))
            barrier_new(barriers + APART * i + FREE, warps * lanes_of(w | x))
        fence_barriers()
    barrier()


@jit.inline
def stage_of(barriers, ring, stage_bytes, stage):
    """(the first one of a stage's barriers, where the stage lies)."""
    return barriers + APART * stage, ring + stage * stage_bytes


@jit.inline
def following(stage, phase, stages):
    """The next stage, and the phase that its barriers are in."""
    stage = U32(stage + 1)
    if stage == stages:
        stage, phase = U32(0), U32(phase ^ 1)
    return stage, U32(phase)


@jit.inline
def free(stage_barriers, operands):
    """A warp needs a stage no more, of operands at addresses that are together these bits (`lanes_of`)."""
    warp_barrier()
    if thread() % WARP < lanes_of(operands):
        barrier_arrive(stage_barriers + FREE)


@jit.inline
def carry(there, to, x, first, count, rows, stride, start, slabs, k):
    """A warp copies what the copy engine would, wherever it lies: `count` rows of x, `slabs` times 64 of k; else 0.

    Each lane says at the barrier `there` that its part is there.
    """
    for i in range(thread() % WARP, count * slabs * 8, WARP):
        line, at = i >> 3, start + 8 * (i & 7)
        slab = ratio(line, count)
        row, at = first + line - slab * count, at + 64 * slab
        v = words(vload_first(ptr(x, U16), row * stride + at, 8, k - at if row < rows else 0))
        store_16(to + line * 128 + (((i ^ line) & 7) << 4), lane(v, 0), lane(v, 1), lane(v, 2), lane(v, 3))
    barrier_arrive(there)


@jit.inline
def bring_x(barriers, to, stages, stage_bytes, hi, k, slabs, tensor, x, tokens, lines, stride, whole):
    """What one warp does: it brings x for each step of all items, or once, behind the launches before this one: of each
    64 of k so many `lines`, which are zeros behind its rows.
    """
    stage, phase, first_lane = 0, 1, thread() % WARP == 0
    wait_for_others()
    if whole != 0:
        if x & 15 != 0:
            carry(barriers + X, to, x, 0, lines, tokens, stride, 0, k >> 6, k)
        elif first_lane:
            barrier_expect(barriers + X, 2 * k * lines)
            copy_tile(to, tensor, 0, 0, 0, 0, barriers + X)
        return
    for _ in range(block(), hi, blocks()):
        for start in range(0, k, 64 * slabs):
            here, place = stage_of(barriers, to, stage_bytes, stage)
            barrier_wait(here + FREE, phase)
            if x & 15 != 0:
                carry(here + X, place, x, 0, lines, tokens, stride, start, slabs, k)
            elif first_lane:
                barrier_expect(here + X, slabs * 128 * lines)
                copy_tile(place, tensor, 0, 0, start >> 6, 0, here + X)
            stage, phase = following(stage, phase, stages)


@jit.inline
def say_when_others_end(barriers):
    """What one warp does where x is made here: it says at the barrier of x when the launches before this one end."""
    if thread() % WARP == 0:
        wait_for_others()
        barrier_arrive(barriers + X)


@jit.inline
def let_pass(barriers, begun, stages, most):
    """Wait until few enough steps are on their way, as long as the ring fills for the first time and x is not there."""
    if most <= begun < stages:
        barrier_wait_either(barriers + APART * (begun - most), barriers + X, 0)


# ---- sums of warps -------------------------------------------------------------------------------


@jit.inline
def sums_at():
    """The shared address where they lie."""
    return dynamic_shared() + STREAM_BARRIERS


@jit.inline
def sums_memory():
    """The same, of floats: for each of STREAM_WARPS warps rows of x, of one for each row of the matrix and 4 more."""
    return ptr(generic(sums_at()), F32)


@jit.inline
def keep(memory, place, below, beside, sums):
    """Four values of a warp's tile: of two rows of x, `below` one another, and two rows of the matrix."""
    store(memory, place, lane(sums, 0))
    store(memory, place + below, lane(sums, 1))
    store(memory, place + beside, lane(sums, 2))
    store(memory, place + below + beside, lane(sums, 3))


@jit.inline
def total_of(memory, tokens, lined, token, row):
    """What all warps have kept for a row of x and of the matrix, in their order."""
    total = F32(0)
    for part in range(STREAM_WARPS):
        total += load(memory, (part * tokens + token) * lined + row)
    return total
