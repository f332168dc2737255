"""Kernels that measure the machine's limits: rates of instructions, and the bandwidth of reading and of updating.

`infinicore perf` reports every speed as a fraction of one of these, and `survey.py` takes them to choose between
instructions, so they do nothing else: the peaks are chains of instructions in registers, the bandwidth is one load and
one addition per vector (software prefetching adds nothing: 36.1 GB/s with and without, two Zen 4 cores, 256 MB). No
choice of `build/rates.py` has a part in them.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...blocks.measure import RATE, READ, UPDATE
from ...build import isa, jit
from ...lang.dots import dot_pairs, dot_quads
from ...lang.lowp import bfloat16, float16_pairs
from ...lang.simd import Vector, bitcast, fill, load, muladd, ptr, reduce_add, store, vload, vstore
from ...lang.tile_registers import HALF as TILE_HALF
from ...lang.tile_registers import ROW, begin, release, tile_sums
from ...lang.vector import call_llvm
from .sizes import BLOCK_BYTES, CHAINS, TILE_BYTES, WIDENED_BYTES

LANES = isa.lanes()
HALF = LANES // 2  # float64 values in a register
HAS_FMA = isa.has_fma()

WORDS = BLOCK_BYTES // 4


@intrinsic
def multiply_add(typingctx, total, a, b):
    """`total + a * b`; uint32 lanes are pairs of bfloat16."""
    if not isinstance(total, Vector):
        return None

    def codegen(context, builder, sig, args):
        total, a, b = args
        if isinstance(a.type.element, ir.IntType):
            return dot_pairs(builder, total, a, b)
        if HAS_FMA:
            return call_llvm(builder, "llvm.fma", total.type, [a, b, total])
        return builder.fadd(total, builder.fmul(a, b))

    return total(total, a, b), codegen


@intrinsic
def byte_dot(typingctx, total, a, b):
    """`total` (int32 lanes) plus the products of 4 unsigned bytes of `a` with 4 signed bytes of `b` in each lane."""
    if not isinstance(total, Vector):
        return None
    return total(total, a, b), lambda context, builder, sig, args: dot_quads(builder, *args)


@jit.inline
def _divided(total, a, b):
    return a / total


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
def divide_f32(args, lo, hi):
    """Divisions of float32: each chain divides a number by what it had."""
    return _rounds(args, lo, hi, _divided, types.float32, types.float32, LANES)


@jit.inline
def idle(args, lo, hi):
    """Nothing: what a launch takes by itself."""
    return 0


@jit.inline
def _tiles(args, lo, hi, T):
    """Products by tile registers: 32 x 32 sums of tiles in the first-level cache, 64 bytes of k a round."""
    a, strides = load(args, RATE.operands), (types.int64(ROW), types.int64(TILE_HALF * ROW), types.int64(0))
    b, b_strides, rounds = a + TILE_BYTES // 2, (types.int64(2 * ROW), types.int64(0)), load(args, RATE.rounds)
    none, row = (types.int64(0), types.int64(0)), 2 * ROW
    begin()
    for i in range(lo, hi):
        out = load(args, RATE.results) + i * TILE_BYTES
        tile_sums(T, a, strides, b, b_strides, none, out, row, out, row, rounds, 0, 2, 2)
    release()
    return 0


@jit.inline
def tiles_bf16(args, lo, hi):
    """Products of bfloat16 by tile registers, summed in float32."""
    return _tiles(args, lo, hi, bfloat16)


@jit.inline
def tiles_f16(args, lo, hi):
    """Products of float16 by tile registers, summed in float32."""
    return _tiles(args, lo, hi, float16_pairs)


@jit.inline
def tiles_i8(args, lo, hi):
    """Products of bytes by tile registers, summed in int32."""
    return _tiles(args, lo, hi, types.int8)


@jit.inline
def widened(args, lo, hi):
    """`hi - lo` times, for `rounds` times: `WIDENED_BYTES` of bfloat16 by two vectors, widened as they are loaded."""
    p, out = ptr(load(args, RATE.operands), types.uint32), ptr(load(args, RATE.results), types.float32)
    even, odd = fill(0.25, types.float32, LANES), fill(0.75, types.float32, LANES)
    zero = fill(0.0, types.float32, LANES)
    for i in range(lo, hi):
        s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
        for _ in range(load(args, RATE.rounds)):
            for j in range(0, WIDENED_BYTES // 4, 4 * LANES):
                w0, w1 = vload(p, j, LANES), vload(p, j + LANES, LANES)
                w2, w3 = vload(p, j + 2 * LANES, LANES), vload(p, j + 3 * LANES, LANES)
                s0, s1 = muladd(_low(w0), even, s0), muladd(_high(w0), odd, s1)
                s2, s3 = muladd(_low(w1), even, s2), muladd(_high(w1), odd, s3)
                s4, s5 = muladd(_low(w2), even, s4), muladd(_high(w2), odd, s5)
                s6, s7 = muladd(_low(w3), even, s6), muladd(_high(w3), odd, s7)
        vstore(out, i * LANES, ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)))
    return 0


@jit.inline
def _low(words):
    return bitcast(words << 16, types.float32)


@jit.inline
def _high(words):
    return bitcast(words & types.uint32(0xFFFF0000), types.float32)


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
