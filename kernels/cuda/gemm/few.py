"""Products of a matrix and few rows of 16-bit floats, x, on the matrix units of a warp: as fast as the matrix is read.

The matrix goes from memory to registers once, for up to 16 rows of x, which come from the caches. A block takes 16
rows of it, and its warps share k; what they have is added up in their order.
"""

from numba import types

from ...blocks.cuda import ROWS as FEW
from ...build import jit
from ...lang.mma import multiply_halves, words
from ...lang.ptx import WARP, barrier, shared, thread
from ...lang.simd import fill, lane, load, ptr, store, vload_aligned, vload_first
from .rows import finish
from .wgmma import ratio

F32, U16 = types.float32, types.uint16
WARPS, ROWS, CHUNK = 8, 16, 128  # of the matrix for a block, of k for a warp at a time


@jit.inline
def quick(p, i):
    """16 bytes from element i on, at a multiple of 16."""
    return words(vload_aligned(p, i, 8))


@jit.inline
def careful(p, i, left):
    """The same wherever they are; zeros behind the `left` first elements."""
    return words(vload_first(p, i, 8, left))


@jit.inline
def keep(memory, place, pitch, sums):
    """Four values of a warp's tile: of two rows, of two neighbouring columns."""
    store(memory, place, lane(sums, 0))
    store(memory, place + 1, lane(sums, 1))
    store(memory, place + 8 * pitch, lane(sums, 2))
    store(memory, place + 8 * pitch + 1, lane(sums, 3))


def _product(tokens):
    """The kernel for so many rows of x at a time: 8 or 16."""
    values, nbytes = ROWS * tokens, WARPS * ROWS * tokens * 4

    @jit.inline
    def product(args, lo, hi, T, R, ACT):
        k, groups, last = load(args, FEW.k), load(args, FEW.groups), load(args, FEW.rows) - 1
        band = ratio(lo, groups)
        row, first, final = band * ROWS, (lo - band * groups) * tokens, load(args, FEW.tokens) - 1
        warp, g, t = thread() // WARP, thread() % WARP // 4, thread() % 4
        w_stride, x_stride = load(args, FEW.w_stride), load(args, FEW.x_stride)
        w, x = ptr(load(args, FEW.w), U16) + 8 * t, ptr(load(args, FEW.x), U16) + 8 * t
        w0, w1 = w + min(row + g, last) * w_stride, w + min(row + g + 8, last) * w_stride
        x0, x1 = x + min(first + g, final) * x_stride, x + min(first + g + 8, final) * x_stride
        s0 = s1 = fill(0.0, F32, 4)
        fits = load(args, FEW.aligned) != 0 and (load(args, FEW.w) | load(args, FEW.x)) & 15 == 0
        for start in range(warp * CHUNK, k, WARPS * CHUNK):
            if fits and start + CHUNK <= k:
                for i in range(start, start + CHUNK, 32):
                    y0 = quick(x0, i)
                    a, b = quick(w0, i), quick(w1, i)
                    s0 = multiply_halves(s0, a, b, y0, T)
                    if tokens > 8:
                        s1 = multiply_halves(s1, a, b, quick(x1, i), T)
            else:
                for i in range(start, min(start + CHUNK, k), 32):
                    left = k - i - 8 * t
                    y0 = careful(x0, i, left)
                    a, b = careful(w0, i, left), careful(w1, i, left)
                    s0 = multiply_halves(s0, a, b, y0, T)
                    if tokens > 8:
                        s1 = multiply_halves(s1, a, b, careful(x1, i, left), T)
        memory = ptr(shared(nbytes), F32)
        place = warp * values + g * tokens + 2 * t
        keep(memory, place, tokens, s0)
        if tokens > 8:
            keep(memory, place + 8, tokens, s1)
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


product_8, product_16 = _product(8), _product(16)
