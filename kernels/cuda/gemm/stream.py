"""Products of a matrix and few rows of 16-bit floats, x, on Hopper: as fast as the matrix is read.

A block has some rows of the matrix, bands of 16 of them at a time for all of k, so that it reads x once for many rows.
Two of its warps let the copy engine bring them, and x, to a ring in shared memory (`cuda/ring.py`); the others multiply
32 of k each in turn on their matrix units. What they have is added up in their order.
"""

from numba import types

from ...blocks.cuda import STREAM
from ...build import jit
from ...lang.mma import load_shared, multiply_halves
from ...lang.ptx import (
    WARP,
    barrier,
    barrier_expect,
    barrier_of,
    barrier_wait,
    block,
    blocks,
    copy_tile,
    generic,
    thread,
    wait_for_others,
)
from ...lang.simd import address, fill, load
from ..made import gated, normed
from ..ring import (
    FREE,
    X,
    bring_x,
    carry,
    following,
    free,
    keep,
    let_pass,
    new_ring,
    places_of,
    stage_of,
    sums_memory,
    tell,
    total_of,
)
from .rows import finish
from .sizes import STREAM_BANDS, STREAM_WARPS, stream_head
from .wgmma import ratio

F32, U32 = types.float32, types.uint32
WARPS = STREAM_WARPS


@jit.inline
def bring_matrix(args, barriers, ring, stage_bytes, hi):
    """What one warp does: it brings the rows of the matrix, step by step."""
    k, stages, share, slabs = (
        load(args, STREAM.k), load(args, STREAM.stages), load(args, STREAM.share), load(args, STREAM.slabs),
    )  # fmt: skip
    w, map_w, rows = load(args, STREAM.map_w), address(args) + 8 * STREAM.map_w, load(args, STREAM.rows)
    begun, stage, phase, first_lane = 0, 0, 1, thread() % WARP == 0
    for item in range(block(), hi, blocks()):
        for start in range(0, k, 64 * slabs):
            here, to = stage_of(barriers, ring, stage_bytes, stage)
            barrier_wait(here + FREE, phase)
            if w & 15 != 0:
                carry(to, w, item * share, share, rows, load(args, STREAM.w_stride), start, slabs, k)
                tell(here)
            elif first_lane:
                let_pass(barriers, begun, stages, load(args, STREAM.ahead))
                barrier_expect(here, slabs * 128 * share)
                copy_tile(to, map_w, 0, item * share, start >> 6, 0, here)
            begun += 1
            stage, phase = following(stage, phase, stages)


def _product(tokens, bands, make=None):
    """The kernel for up to so many rows of x, and bands of 16 rows of the matrix; `make` (`cuda/made.py`) makes x."""
    lined = 16 * bands + 4  # rows of the sums of a row of x, so that a warp's lie in all banks
    head = stream_head(tokens, bands)

    @jit.inline
    def step(sums, at, x_at, x_below, T):
        """The sums of the bands with 32 more of k."""
        s0, s1, s2, s3, t0, t1, t2, t3 = sums
        y = load_shared(x_at, U32, 4, 1, 0)
        z = load_shared(x_below, U32, 4, 1, 0) if tokens > 8 else y
        a, b = load_shared(at, U32, 4, 1, 0), load_shared(at + 1024, U32, 4, 1, 0)
        s0 = multiply_halves(s0, a, b, y, T)
        if tokens > 8:
            t0 = multiply_halves(t0, a, b, z, T)
        if bands > 1:
            a, b = load_shared(at + 2048, U32, 4, 1, 0), load_shared(at + 3072, U32, 4, 1, 0)
            s1 = multiply_halves(s1, a, b, y, T)
            if tokens > 8:
                t1 = multiply_halves(t1, a, b, z, T)
        if bands > 2:
            a, b = load_shared(at + 4096, U32, 4, 1, 0), load_shared(at + 5120, U32, 4, 1, 0)
            s2 = multiply_halves(s2, a, b, y, T)
            if tokens > 8:
                t2 = multiply_halves(t2, a, b, z, T)
        if bands > 3:
            a, b = load_shared(at + 6144, U32, 4, 1, 0), load_shared(at + 7168, U32, 4, 1, 0)
            s3 = multiply_halves(s3, a, b, y, T)
            if tokens > 8:
                t3 = multiply_halves(t3, a, b, z, T)
        return s0, s1, s2, s3, t0, t1, t2, t3

    @jit.inline
    def multiply(args, barriers, x_whole, ring, stage_bytes, memory, hi, T, R, ACT, HOW, PIECES):
        """What the other warps do."""
        k, stages, share, count, slabs = (
            load(args, STREAM.k), load(args, STREAM.stages), load(args, STREAM.share), load(args, STREAM.tokens),
            load(args, STREAM.slabs),
        )  # fmt: skip
        warp, g, t, stage, phase = thread() // WARP, thread() % WARP // 4, thread() % 4, 0, 0
        # so numbered, neighbours of eight threads read different halves of their rows: they meet in no bank
        row, piece = g >> 1 | (g & 1) << 2, (warp & 1) * 4 + t
        own, within = memory + warp * tokens * lined, row * 128 + ((piece ^ row) << 4)
        upper, lower = min(row, count - 1), min(row + 8, count - 1)
        whole = load(args, STREAM.whole) != 0
        wait_for_others()
        if make is not None:
            make(args, STREAM.WIDTH, memory, generic(x_whole), count, T, HOW, PIECES)
        elif whole:
            barrier_wait(barriers + X, 0)
        for item in range(block(), hi, blocks()):
            none = fill(0.0, F32, 4)
            sums = none, none, none, none, none, none, none, none
            for start in range(0, k >> 6, slabs):
                here, place = stage_of(barriers, ring, stage_bytes, stage)
                barrier_wait(here, phase)
                if not whole:
                    barrier_wait(here + X, phase)
                x_at = x_whole if whole else place + slabs * share * 128
                for slab in range(warp >> 1, min(slabs, (k >> 6) - start), 4):
                    line = (start + slab if whole else slab) * count
                    sums = step(
                        sums, place + slab * share * 128 + within,
                        x_at + (line + upper) * 128 + ((piece ^ (line + upper & 7)) << 4),
                        x_at + (line + lower) * 128 + ((piece ^ (line + lower & 7)) << 4), T,
                    )  # fmt: skip
                free(here)
                stage, phase = following(stage, phase, stages)
            keep(own, t * lined + row, 4 * lined, 8, sums[0])
            if bands > 1:
                keep(own, t * lined + (16 + row), 4 * lined, 8, sums[1])
            if bands > 2:
                keep(own, t * lined + (32 + row), 4 * lined, 8, sums[2])
            if bands > 3:
                keep(own, t * lined + (48 + row), 4 * lined, 8, sums[3])
            if tokens > 8:
                keep(own, (8 + t) * lined + row, 4 * lined, 8, sums[4])
                if bands > 1:
                    keep(own, (8 + t) * lined + (16 + row), 4 * lined, 8, sums[5])
                if bands > 2:
                    keep(own, (8 + t) * lined + (32 + row), 4 * lined, 8, sums[6])
                if bands > 3:
                    keep(own, (8 + t) * lined + (48 + row), 4 * lined, 8, sums[7])
            barrier_of(1, WARPS * WARP)
            first = item * share
            here = min(share, load(args, STREAM.rows) - first)
            for i in range(thread(), here * count, WARPS * WARP):
                token = ratio(i, here)
                at_row = i - token * here
                total = total_of(memory, tokens, lined, token, at_row)
                finish(args, total, first + at_row, token, T, R, ACT)
            barrier_of(1, WARPS * WARP)

    @jit.inline
    def product(args, lo, hi, T, R, ACT, HOW=0, PIECES=0):
        share, count, slabs = load(args, STREAM.share), load(args, STREAM.tokens), load(args, STREAM.slabs)
        stages, k, whole = load(args, STREAM.stages), load(args, STREAM.k), load(args, STREAM.whole)
        matrix, memory = slabs * share * 128, sums_memory()
        barriers, x_whole, ring, stage_bytes = places_of(head, matrix, slabs, k, count, whole)
        warp = thread() // WARP
        if thread() == 0:
            new_ring(barriers, stages, WARPS)
        barrier()
        if warp == WARPS:
            bring_matrix(args, barriers, ring, stage_bytes, hi)
        elif warp > WARPS:
            if make is None:
                bring_x(
                    barriers, x_whole if whole else ring + matrix, stages, stage_bytes, hi, k, slabs,
                    address(args) + 8 * STREAM.map_x, load(args, STREAM.map_x), count, load(args, STREAM.x_stride),
                    whole,
                )  # fmt: skip
        else:
            multiply(args, barriers, x_whole, ring, stage_bytes, memory, hi, T, R, ACT, HOW, PIECES)
        return 0

    return product


_MAKES = {"normed": normed(WARPS * WARP), "gated": gated(WARPS * WARP, 4)}
for _bands in STREAM_BANDS:
    globals().update({f"product_{tokens}_{_bands}": _product(tokens, _bands) for tokens in (8, 16)})
    globals().update({f"{name}_8_{_bands}": _product(8, _bands, make) for name, make in _MAKES.items()})
