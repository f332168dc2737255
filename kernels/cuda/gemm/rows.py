"""Products of a matrix and few rows, x: as fast as the matrix is read.

A block of four warps multiplies two rows of the matrix, all along k, by up to four rows of x, which come from the
caches. A thread takes 16 bytes of k, and then those 128 places further.
"""

from numba import types

from ...blocks.cuda import ROWS
from ...build import jit
from ...cpu.gemm.epilogue import activate
from ...lang.by_type import by_type
from ...lang.ptx import WARP, barrier, from_lane, shared, thread
from ...lang.simd import bitcast, fill, load, muladd, ptr, reduce_add, store, vload, vload_aligned, vload_first, vstore
from ..block import vector, width
from .wgmma import ratio

F32, F64 = types.float32, types.float64
THREADS, WARPS, MOST = 128, 4, 4
BYTES = 2 * MOST * WARPS * 4


@by_type
def quick(p, i):
    """16 bytes from element `i` on, at a multiple of 16."""
    lanes = 16 // (p.dtype.bitwidth // 8)
    return lambda p, i: vload_aligned(p, i, lanes)


@by_type
def careful(p, i, left):
    """As many elements, wherever they are; zeros behind the `left` first ones."""
    lanes = 16 // (p.dtype.bitwidth // 8)
    return lambda p, i, left: vload_first(p, i, lanes, left)


@jit.inline
def keep(memory, place, sums):
    """The sum over the warp of the lanes of a vector of each thread, to a place of shared memory for each warp."""
    total = reduce_add(sums)
    for apart in (16, 8, 4, 2, 1):
        total += from_lane(total, apart)
    if thread() % WARP == 0:
        store(memory, place * WARPS + thread() // WARP, total)


@jit.inline
def finish(args, total, row, token, T, R, ACT):
    """The epilogue of one element of the result."""
    value = fill(total * F32(bitcast(load(args, ROWS.alpha), F64)), F32, 1)
    if load(args, ROWS.bias) != 0:
        at = token if load(args, ROWS.bias_of_tokens) != 0 else row
        value = value + vload(ptr(load(args, ROWS.bias), T), at, 1)
    value = activate(value, ACT)
    at = row * load(args, ROWS.row_step) + token * load(args, ROWS.token_step)
    if load(args, ROWS.residual) != 0:
        value = value + vload(ptr(load(args, ROWS.residual), R), at, 1)
    vstore(ptr(load(args, ROWS.out), R), at, value)


def _product(tokens):
    """The kernel for so many rows of x at a time."""

    @jit.inline
    def product(args, lo, hi, T, R, ACT):
        k, stride, groups = load(args, ROWS.k), load(args, ROWS.x_stride), load(args, ROWS.groups)
        pair = ratio(lo, groups)
        row, first, last = 2 * pair, (lo - pair * groups) * tokens, load(args, ROWS.tokens) - 1
        w0, x = ptr(load(args, ROWS.w), T) + row * load(args, ROWS.w_stride), ptr(load(args, ROWS.x), T)
        w1 = w0 + (load(args, ROWS.w_stride) if row + 1 < load(args, ROWS.rows) else 0)
        x0, x1 = x + first * stride, x + min(first + 1, last) * stride
        x2, x3 = x + min(first + 2, last) * stride, x + min(first + 3, last) * stride
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = vector(x, 0.0)
        fits = load(args, ROWS.aligned) != 0 and (load(args, ROWS.w) | load(args, ROWS.x)) & 15 == 0
        whole, lanes = k // width(x) * width(x) if fits else 0, width(x)
        begin = thread() * lanes
        if tokens == 1:  # four steps on their way at once: a thread has no other work (8192 x 8192: 2.4 TB/s by one)
            step = THREADS * lanes
            while begin + 3 * step < whole:
                u, v, y = quick(w0, begin), quick(w1, begin), quick(x0, begin)
                p, q, z = quick(w0, begin + step), quick(w1, begin + step), quick(x0, begin + step)
                a0, b0 = muladd(p, z, muladd(u, y, a0)), muladd(q, z, muladd(v, y, b0))
                u, v, y = quick(w0, begin + 2 * step), quick(w1, begin + 2 * step), quick(x0, begin + 2 * step)
                p, q, z = quick(w0, begin + 3 * step), quick(w1, begin + 3 * step), quick(x0, begin + 3 * step)
                a0, b0 = muladd(p, z, muladd(u, y, a0)), muladd(q, z, muladd(v, y, b0))
                begin += 4 * step
        for i in range(begin, whole, THREADS * lanes):
            u, v, y = quick(w0, i), quick(w1, i), quick(x0, i)
            a0, b0 = muladd(u, y, a0), muladd(v, y, b0)
            if tokens > 1:
                y = quick(x1, i)
                a1, b1 = muladd(u, y, a1), muladd(v, y, b1)
            if tokens > 2:
                y, z = quick(x2, i), quick(x3, i)
                a2, b2, a3, b3 = muladd(u, y, a2), muladd(v, y, b2), muladd(u, z, a3), muladd(v, z, b3)
        for i in range(whole + thread() * lanes, k, THREADS * lanes):
            u, v, y = careful(w0, i, k - i), careful(w1, i, k - i), careful(x0, i, k - i)
            a0, b0 = muladd(u, y, a0), muladd(v, y, b0)
            if tokens > 1:
                y = careful(x1, i, k - i)
                a1, b1 = muladd(u, y, a1), muladd(v, y, b1)
            if tokens > 2:
                y, z = careful(x2, i, k - i), careful(x3, i, k - i)
                a2, b2, a3, b3 = muladd(u, y, a2), muladd(v, y, b2), muladd(u, z, a3), muladd(v, z, b3)
        memory = ptr(shared(BYTES), F32)
        keep(memory, 0, a0)
        keep(memory, 1, b0)
        if tokens > 1:
            keep(memory, 2, a1)
            keep(memory, 3, b1)
        if tokens > 2:
            keep(memory, 4, a2)
            keep(memory, 5, b2)
            keep(memory, 6, a3)
            keep(memory, 7, b3)
        barrier()
        at, token = row + (thread() & 1), first + (thread() >> 1)
        if thread() < 2 * tokens and at < load(args, ROWS.rows) and token <= last:
            total = F32(0)
            for warp in range(WARPS):
                total += load(memory, thread() * WARPS + warp)
            finish(args, total, at, token, T, R, ACT)
        return 0

    return product


product_1, product_2, product_4 = (_product(tokens) for tokens in (1, 2, 4))
