"""Products of a matrix and few rows of 16-bit floats, x, on the matrix units of a warp: as fast as the matrix is read.

The matrix goes from memory to registers once, for up to 16 rows of x, which come from the caches. A block takes `16 *
tiles` rows of it, and its warps share k; what they have is added up in their order.
"""

from numba import types

from ...blocks.cuda import ROWS
from ...build import jit
from ...lang.mma import multiply_halves
from ...lang.ptx import WARP, barrier, shared, thread
from ...lang.simd import fill, lane, load, ptr, store, vload_aligned, vload_first
from .rows import finish
from .wgmma import ratio

F32, U32 = types.float32, types.uint32
WARPS, AT_ONCE = 8, 32  # of k for a product


@jit.inline
def keep(memory, place, pitch, sums):
    """Four values of a warp's tile: of two rows, of two neighbouring columns."""
    store(memory, place, lane(sums, 0))
    store(memory, place + 1, lane(sums, 1))
    store(memory, place + 8 * pitch, lane(sums, 2))
    store(memory, place + 8 * pitch + 1, lane(sums, 3))


def _product(tokens, tiles, unroll):
    """The kernel for so many rows of x (8 or 16) at a time, and tiles of 16 rows of the matrix."""
    rows, chunk, every = 16 * tiles, AT_ONCE * unroll, WARPS * AT_ONCE * unroll
    values, nbytes = rows * tokens, WARPS * rows * tokens * 4

    @jit.inline
    def product(args, lo, hi, T, R, ACT):
        k, groups, last = load(args, ROWS.k) // 2, load(args, ROWS.groups), load(args, ROWS.rows) - 1
        band = ratio(lo, groups)
        row, first, final = band * rows, (lo - band * groups) * tokens, load(args, ROWS.tokens) - 1
        warp, g, t = thread() // WARP, thread() % WARP // 4, thread() % 4
        w_stride, x_stride = load(args, ROWS.w_stride) // 2, load(args, ROWS.x_stride) // 2
        w, x = ptr(load(args, ROWS.w), U32) + 4 * t, ptr(load(args, ROWS.x), U32) + 4 * t
        w0, w1 = w + min(row + g, last) * w_stride, w + min(row + g + 8, last) * w_stride
        w2, w3 = w + min(row + g + 16, last) * w_stride, w + min(row + g + 24, last) * w_stride
        x0, x1 = x + min(first + g, final) * x_stride, x + min(first + g + 8, final) * x_stride
        s0 = s1 = s2 = s3 = fill(0.0, F32, 4)
        for start in range(warp * (chunk // 2), k, every // 2):
            if start + chunk // 2 <= k:
                for i in range(unroll):
                    at = start + i * 16
                    y0 = vload_aligned(x0, at, 4)
                    a, b = vload_aligned(w0, at, 4), vload_aligned(w1, at, 4)
                    s0 = multiply_halves(s0, a, b, y0, T)
                    if tokens > 8:
                        y1 = vload_aligned(x1, at, 4)
                        s1 = multiply_halves(s1, a, b, y1, T)
                    if tiles > 1:
                        a, b = vload_aligned(w2, at, 4), vload_aligned(w3, at, 4)
                        s2 = multiply_halves(s2, a, b, y0, T)
                        if tokens > 8:
                            s3 = multiply_halves(s3, a, b, y1, T)
            else:
                for at in range(start, k, 16):
                    left = k - at - 4 * t
                    y0, y1 = vload_first(x0, at, 4, left), vload_first(x1, at, 4, left)
                    a, b = vload_first(w0, at, 4, left), vload_first(w1, at, 4, left)
                    s0 = multiply_halves(s0, a, b, y0, T)
                    if tokens > 8:
                        s1 = multiply_halves(s1, a, b, y1, T)
                    if tiles > 1:
                        a, b = vload_first(w2, at, 4, left), vload_first(w3, at, 4, left)
                        s2 = multiply_halves(s2, a, b, y0, T)
                        if tokens > 8:
                            s3 = multiply_halves(s3, a, b, y1, T)
        memory = ptr(shared(nbytes), F32)
        place = warp * values + g * tokens + 2 * t
        keep(memory, place, tokens, s0)
        if tokens > 8:
            keep(memory, place + 8, tokens, s1)
        if tiles > 1:
            keep(memory, place + 16 * tokens, tokens, s2)
            if tokens > 8:
                keep(memory, place + 16 * tokens + 8, tokens, s3)
        barrier()
        for i in range(thread(), values, WARPS * WARP):
            at, token = row + i // tokens, first + i % tokens
            if at <= last and token <= final:
                total = F32(0)
                for part in range(WARPS):
                    total += load(memory, part * values + i)
                finish(args, total, at, token, T, R, ACT)
        return 0

    return product


e1 = _product(8, 1, 2)
e2 = _product(8, 2, 2)
e3 = _product(8, 1, 4)
e4 = _product(8, 2, 4)
f1 = _product(16, 1, 2)
f2 = _product(16, 2, 2)
f3 = _product(16, 1, 4)
f4 = _product(16, 2, 4)
