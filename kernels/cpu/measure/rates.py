"""Kernels that measure the machine's limits: multiply-add peak, and the bandwidth of reading and of updating.

`infinicore perf` reports every speed as a fraction of one of these, so they do nothing else: the
peaks are chains of multiply-adds in registers, the bandwidth is one load and one addition per vector
(software prefetching adds nothing: 36.1 GB/s with and without, two Zen 4 cores, 256 MB).
"""

from numba import types
from numba.extending import intrinsic

from ...blocks.measure import RATE, READ, UPDATE
from ...build import isa, jit
from ...lang.lowp import bfloat16
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
def _chains(product, c, a, b, steps):
    """`steps` rounds of twelve independent chains of `product`, summed so that none can be dropped.

    The chains start from twelve different vectors: equal ones would be merged into one chain.
    """
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 = c
    for _ in range(steps):
        c0, c1, c2, c3 = product(c0, a, b), product(c1, a, b), product(c2, a, b), product(c3, a, b)
        c4, c5, c6, c7 = product(c4, a, b), product(c5, a, b), product(c6, a, b), product(c7, a, b)
        c8, c9, c10, c11 = product(c8, a, b), product(c9, a, b), product(c10, a, b), product(c11, a, b)
    return ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7)) + ((c8 + c9) + (c10 + c11))


@jit.inline
def _four(p, W):
    return vload(p, 0, W), vload(p, W, W), vload(p, 2 * W, W), vload(p, 3 * W, W)


@jit.inline
def _rounds(args, lo, hi, product, S, T, W):
    """`hi - lo` times the rounds of chains of `product`: W sums of type S a register, operands of type T."""
    sums, operands = ptr(load(args, RATE.operands), S), ptr(load(args, RATE.operands), T)
    out = ptr(load(args, RATE.results), S)
    starts = _four(sums, W) + _four(sums + 4 * W, W) + _four(sums + 8 * W, W)
    a, b = vload(operands, CHAINS * W, W), vload(operands, (CHAINS + 1) * W, W)
    for i in range(lo, hi):
        vstore(out, i * W, _chains(product, starts, a, b, load(args, RATE.rounds)))
    return 0


@jit.inline
def fma_f32(args, lo, hi):
    """Multiply-adds of float32."""
    return _rounds(args, lo, hi, multiply_add, types.float32, types.float32, LANES)


@jit.inline
def fma_f64(args, lo, hi):
    """Multiply-adds of float64."""
    return _rounds(args, lo, hi, multiply_add, types.float64, types.float64, HALF)


@jit.inline
def dot_bf16_f32(args, lo, hi):
    """Products of pairs of bfloat16, summed in float32: 32 an instruction."""
    return _rounds(args, lo, hi, multiply_add, types.float32, types.uint32, LANES)


@jit.inline
def dot_i8_i32(args, lo, hi):
    """Products of four bytes, summed in int32 (modulo 2^32): 64 an instruction."""
    return _rounds(args, lo, hi, byte_dot, types.int32, types.int32, LANES)


@jit.inline
def tiles_bf16(args, lo, hi):
    """Products of bfloat16 by tile registers: 32 x 32 sums of tiles in the first-level cache, 32 of k a round."""
    a, strides = load(args, RATE.operands), (types.int64(ROW), types.int64(TILE_HALF * ROW), types.int64(0))
    b, b_strides, rounds = a + STEP_BYTES, (types.int64(2 * ROW), types.int64(0)), load(args, RATE.rounds)
    none = types.int64(0), types.int64(0)
    begin()
    for i in range(lo, hi):
        out = load(args, RATE.results) + i * TILE_BYTES
        tile_sums(
            bfloat16, a, strides, b, b_strides, none, out, 2 * TILE_HALF * 4, out, 2 * TILE_HALF * 4, rounds, 0, 2, 2
        )
    release()
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
