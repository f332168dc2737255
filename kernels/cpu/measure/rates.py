"""Kernels that measure the machine's limits: multiply-add peak, and the bandwidth of reading and of updating.

`infinicore perf` reports every speed as a fraction of one of these, so they do nothing else: the
peaks are chains of multiply-adds in registers, the bandwidth is one load and one addition per vector
(software prefetching adds nothing: 36.1 GB/s with and without, two Zen 4 cores, 256 MB).
"""

from numba import types
from numba.extending import intrinsic

from ...blocks.measure import RATE, READ, UPDATE
from ...build import isa, jit
from ...lang.simd import Vector, fill, load, ptr, reduce_add, store, vload, vstore
from ..gemm.amx import HALF as TILE_HALF
from ..gemm.amx import ROW, STEP_BYTES, TILE_BYTES, begin, release, tile_sums
from ..gemm.microkernel import add_products_of
from ..quant.tile import dot_bytes
from .sizes import BLOCK_BYTES, CHAINS

LANES = isa.lanes()
HALF = LANES // 2  # float64 values in a register

WORDS = BLOCK_BYTES // 4


@intrinsic
def multiply_add(typingctx, total, a, b):
    """`total + a * b`, as the products of matrices do it; uint32 lanes are pairs of bfloat16."""
    if not isinstance(total, Vector):
        return None

    def codegen(context, builder, sig, args):
        return add_products_of(builder, args[1], args[2], args[0])

    return total(total, a, b), codegen


@intrinsic
def byte_dot(typingctx, total, a, b):
    """`total` (int32 lanes) plus the products of 4 unsigned bytes of `a` with 4 signed bytes of `b` in each lane."""
    if not isinstance(total, Vector):
        return None

    def codegen(context, builder, sig, args):
        return dot_bytes(builder, *args)

    return total(total, a, b), codegen


@jit.inline
def _chains(c, a, b, steps):
    """`steps` rounds of twelve independent chains, summed so that none can be dropped.

    The chains start from twelve different vectors: equal ones would be merged into one chain.
    """
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 = c
    for _ in range(steps):
        c0, c1, c2, c3 = multiply_add(c0, a, b), multiply_add(c1, a, b), multiply_add(c2, a, b), multiply_add(c3, a, b)
        c4, c5, c6, c7 = multiply_add(c4, a, b), multiply_add(c5, a, b), multiply_add(c6, a, b), multiply_add(c7, a, b)
        c8, c9, c10, c11 = (
            multiply_add(c8, a, b),
            multiply_add(c9, a, b),
            multiply_add(c10, a, b),
            multiply_add(c11, a, b),
        )
    return ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7)) + ((c8 + c9) + (c10 + c11))


@jit.inline
def _four(p):
    return vload(p, 0, LANES), vload(p, LANES, LANES), vload(p, 2 * LANES, LANES), vload(p, 3 * LANES, LANES)


@jit.inline
def _four_f64(p):
    return vload(p, 0, HALF), vload(p, HALF, HALF), vload(p, 2 * HALF, HALF), vload(p, 3 * HALF, HALF)


@jit.inline
def fma_f32(args, lo, hi):
    """`hi - lo` times the rounds of float32 chains."""
    p = ptr(load(args, RATE.operands), types.float32)
    out = ptr(load(args, RATE.results), types.float32)
    starts = _four(p) + _four(p + 4 * LANES) + _four(p + 8 * LANES)
    a = vload(p, CHAINS * LANES, LANES)
    b = vload(p, (CHAINS + 1) * LANES, LANES)
    for i in range(lo, hi):
        vstore(out, i * LANES, _chains(starts, a, b, load(args, RATE.rounds)))
    return 0


@jit.inline
def fma_f64(args, lo, hi):
    """As `fma_f32`, in float64."""
    p = ptr(load(args, RATE.operands), types.float64)
    out = ptr(load(args, RATE.results), types.float64)
    starts = _four_f64(p) + _four_f64(p + 4 * HALF) + _four_f64(p + 8 * HALF)
    a = vload(p, CHAINS * HALF, HALF)
    b = vload(p, (CHAINS + 1) * HALF, HALF)
    for i in range(lo, hi):
        vstore(out, i * HALF, _chains(starts, a, b, load(args, RATE.rounds)))
    return 0


@jit.inline
def dot_bf16_f32(args, lo, hi):
    """As `fma_f32`, with 32 bfloat16 products per instruction; the operands are pairs of bfloat16."""
    p = ptr(load(args, RATE.operands), types.float32)
    pairs = ptr(load(args, RATE.operands), types.uint32)
    out = ptr(load(args, RATE.results), types.float32)
    starts = _four(p) + _four(p + 4 * LANES) + _four(p + 8 * LANES)
    a = vload(pairs, CHAINS * LANES, LANES)
    b = vload(pairs, (CHAINS + 1) * LANES, LANES)
    for i in range(lo, hi):
        vstore(out, i * LANES, _chains(starts, a, b, load(args, RATE.rounds)))
    return 0


@jit.inline
def tiles_bf16(args, lo, hi):
    """As `fma_f32`, by tile registers: 32 x 32 sums of pairs of tiles in the first-level cache, 32 of k a round."""
    a, strides = load(args, RATE.operands), (types.int64(ROW), types.int64(TILE_HALF * ROW), types.int64(0))
    b, b_strides, rounds = a + STEP_BYTES, (types.int64(2 * ROW), types.int64(0)), load(args, RATE.rounds)
    none = types.int64(0), types.int64(0)
    begin()
    for i in range(lo, hi):
        out = load(args, RATE.results) + i * TILE_BYTES
        tile_sums(a, strides, b, b_strides, none, out, 2 * TILE_HALF * 4, out, 2 * TILE_HALF * 4, rounds, 0, 2, 2)
    release()
    return 0


@jit.inline
def _byte_chains(c, a, b, steps):
    """As `_chains`, of `byte_dot`."""
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 = c
    for _ in range(steps):
        c0, c1, c2, c3 = byte_dot(c0, a, b), byte_dot(c1, a, b), byte_dot(c2, a, b), byte_dot(c3, a, b)
        c4, c5, c6, c7 = byte_dot(c4, a, b), byte_dot(c5, a, b), byte_dot(c6, a, b), byte_dot(c7, a, b)
        c8, c9, c10, c11 = byte_dot(c8, a, b), byte_dot(c9, a, b), byte_dot(c10, a, b), byte_dot(c11, a, b)
    return ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7)) + ((c8 + c9) + (c10 + c11))


@jit.inline
def dot_i8_i32(args, lo, hi):
    """As `fma_f32`, with 64 products of bytes per instruction, summed in int32 (modulo 2^32)."""
    p = ptr(load(args, RATE.operands), types.int32)
    out = ptr(load(args, RATE.results), types.int32)
    starts = _four(p) + _four(p + 4 * LANES) + _four(p + 8 * LANES)
    a = vload(p, CHAINS * LANES, LANES)
    b = vload(p, (CHAINS + 1) * LANES, LANES)
    for i in range(lo, hi):
        vstore(out, i * LANES, _byte_chains(starts, a, b, load(args, RATE.rounds)))
    return 0


@jit.inline
def read(args, lo, hi):
    """Read blocks [lo, hi) of `BLOCK_BYTES` bytes, as uint32.

    The sum of the slice (modulo 2^32) goes to element `lo` of the sums, which nobody else writes.
    """
    out = ptr(load(args, READ.sums), types.int64)
    s0 = fill(0, types.uint32, LANES)
    s1, s2, s3 = s0, s0, s0
    p = ptr(load(args, READ.data), types.uint32) + lo * WORDS
    for _ in range(lo, hi):
        for j in range(0, WORDS, 4 * LANES):
            s0 = s0 + vload(p, j, LANES)
            s1 = s1 + vload(p, j + LANES, LANES)
            s2 = s2 + vload(p, j + 2 * LANES, LANES)
            s3 = s3 + vload(p, j + 3 * LANES, LANES)
        p = p + WORDS
    store(out, lo, types.int64(reduce_add((s0 + s1) + (s2 + s3))))
    return 0


@jit.inline
def update(args, lo, hi):
    """Blocks [lo, hi) of `BLOCK_BYTES` bytes of four float32 arrays: all are read, and all but the first written.

    The traffic of a step of AdamW (gradient, two running means, parameter), with no more arithmetic than keeps the
    values bounded.
    """
    gradient, first = ptr(load(args, UPDATE.gradient), types.float32), ptr(load(args, UPDATE.first), types.float32)
    second, value = ptr(load(args, UPDATE.second), types.float32), ptr(load(args, UPDATE.value), types.float32)
    for i in range(lo * WORDS, hi * WORDS, LANES):
        g = vload(gradient, i, LANES)
        m = vload(first, i, LANES)
        v = vload(second, i, LANES)
        p = vload(value, i, LANES)
        m = m + (g - m) * types.float32(0.125)
        vstore(first, i, m)
        vstore(second, i, v + (g - v) * types.float32(0.125))
        vstore(value, i, p + (m - p) * types.float32(0.125))
    return 0
