"""Blocked matrix product: C = alpha A B + bias, for any strides of A and B, batched.

One launch. The work is cut into tiles of C (a grid over each matrix of the batch); a tile packs its
own blocks of A and B, so threads share nothing and meet once. The loops are those of K. Goto and
R. van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).
"""

from numba import types
from numba.extending import overload

from .. import jit
from .blocking import BATCH, LANES, ROWS, SHORT_ROWS, VECTORS
from .microkernel import depth, lanes, lanes_of, panel_ptr, sum_ptr, tile_product
from .pack import pack_panels
from .simd import address, bitcast, fill, load, ptr, stack, store, vload, vload_first, vstore, vstore_first

TILE_BYTES = ROWS * VECTORS * 64


def finish(tile, part, part_stride, c, c_stride, bias, biased, alpha, height, width, first, last):
    """Add a tile of sums to the partial sums; after the last block of k, scale, add the bias and store."""
    raise NotImplementedError("`finish` is for jitted code")


@overload(finish)
def _finish(tile, part, part_stride, c, c_stride, bias, biased, alpha, height, width, first, last):
    count = lanes_of(c.dtype)
    across = VECTORS * count

    def implementation(tile, part, part_stride, c, c_stride, bias, biased, alpha, height, width, first, last):
        for i in range(height):
            for j in range(0, width, count):
                valid = width - j
                value = vload(tile, i * across + j, count)
                if not first:
                    if valid >= count:
                        value = value + vload(part, i * part_stride + j, count)
                    else:
                        value = value + vload_first(part, i * part_stride + j, count, valid)
                if last:
                    value = value * alpha
                    if biased:
                        value = value + vload_first(bias, j, count, valid)
                    if valid >= count:
                        vstore(c, i * c_stride + j, value)
                    else:
                        vstore_first(c, i * c_stride + j, value, valid)
                elif valid >= count:
                    vstore(part, i * part_stride + j, value)
                else:
                    vstore_first(part, i * part_stride + j, value, valid)

    return implementation


@jit.inline
def batch_offsets(args, index):
    """Element offsets of matrix `index` of the batch in A, B and C."""
    a = b = c = 0
    for d in range(load(args, BATCH) - 1, -1, -1):
        at = BATCH + 1 + 4 * d
        rest = index // load(args, at)
        i = index - rest * load(args, at)
        a, b, c = a + i * load(args, at + 1), b + i * load(args, at + 2), c + i * load(args, at + 3)
        index = rest
    return a, b, c


@jit.inline
def matmul(args, lo, hi, T):
    """Tiles [lo, hi) of C[M, N] = alpha A[M, K] B[K, N] + bias[N]; columns of C are contiguous.

    Blocks of `kc` by `nc` of B and of `mc` by `kc` of A are packed in turn, into the slice of the scratch
    that belongs to the first tile, and thus to the thread.
    """
    M, N, K, a_stride, a_k = load(args, 5), load(args, 6), load(args, 7), load(args, 8), load(args, 9)
    b_k, b_stride, c_stride = load(args, 10), load(args, 11), load(args, 12)
    grid_m, grid_n = load(args, 13), load(args, 14)
    mc, kc, nc, packed, part_offset = load(args, 17), load(args, 18), load(args, 19), load(args, 23), load(args, 25)
    scratch = load(args, 20) + lo // load(args, 22) * load(args, 21)
    a_block, b_block = panel_ptr(scratch, T), panel_ptr(scratch + load(args, 24), T)
    across, pair, height = VECTORS * lanes(T), depth(T), types.int64(ROWS)
    for item in range(lo, hi):
        matrix = item // (grid_m * grid_n)
        i_tile = (item - matrix * grid_m * grid_n) // grid_n
        i_start, j_start = i_tile * load(args, 15), (item - (matrix * grid_m + i_tile) * grid_n) * load(args, 16)
        i_stop, j_stop = min(M, i_start + load(args, 15)), min(N, j_start + load(args, 16))
        a_offset, b_offset, c_offset = batch_offsets(args, matrix)
        a = ptr(load(args, 0), T) + a_offset
        for j in range(j_start, j_stop, nc):
            columns = min(nc, j_stop - j)
            for p in range(0, max(K, 1), kc):  # also once when K is 0: the bias alone
                k = min(kc, K - p)
                steps = (k + pair - 1) // pair
                if packed:
                    panels, b_panel = panel_ptr(load(args, 1), T) + (j // across * packed + p // pair * across), packed
                else:
                    panels, b_panel = b_block, steps * across
                    b = ptr(load(args, 1), T) + (b_offset + j * b_stride + p * b_k)
                    pack_panels(panels, b_panel, b, columns, k, b_stride, b_k, across, T)
                for i in range(i_start, i_stop, mc):
                    rows, c_at, at = min(mc, i_stop - i), c_offset + i * c_stride + j, i * a_stride + p * a_k
                    pack_panels(a_block, (steps + 1) * height, a + at, rows, k, a_stride, a_k, height, T)
                    part, part_stride = sum_ptr(load(args, 2), T) + c_at, c_stride
                    if part_offset:
                        part, part_stride = sum_ptr(scratch + part_offset, T) + (i - i_start) * nc, nc
                    ends = p == 0, p + k >= K
                    block(args, a_block, panels, b_panel, steps, part, part_stride, c_at, j, rows, columns, ends, T)
    return 0


@jit.inline
def block(args, a_block, panels, b_panel, steps, part, part_stride, c_at, j_start, rows, columns, ends, T):
    """The product of a packed block of A and one of B, added to the partial sums; `ends`: first, last in k."""
    across = VECTORS * lanes(T)
    tile = sum_ptr(stack(TILE_BYTES), T)
    c, c_stride = ptr(load(args, 2), T) + c_at, load(args, 12)
    bias, biased, alpha = ptr(load(args, 3), T) + j_start, load(args, 3) != 0, bitcast(load(args, 4), types.float64)
    for j in range(0, columns, across):
        b, width = panels + j // across * b_panel, min(across, columns - j)
        i = 0
        while i < rows:
            height = min(ROWS, rows - i)
            a = a_block + (i // ROWS * (steps + 1) * ROWS + i % ROWS)
            if (height + SHORT_ROWS - 1) // SHORT_ROWS * SHORT_ROWS + i % ROWS < ROWS:
                height = min(SHORT_ROWS, height)
                tile_product(a, b, tile, steps, T, SHORT_ROWS, ROWS, VECTORS)
            else:
                tile_product(a, b, tile, steps, T, ROWS, ROWS, VECTORS)
            at, to = part + (i * part_stride + j), c + (i * c_stride + j)
            finish(tile, at, part_stride, to, c_stride, bias + j, biased, alpha, height, width, ends[0], ends[1])
            i += height


@jit.inline
def integer_rows(args, lo, hi, T):
    """Rows [lo, hi) of C = alpha A B in integers that wrap around: one row of B after the other."""
    M, N, K = load(args, 5), load(args, 6), load(args, 7)
    b_k, b_stride, alpha = load(args, 10), load(args, 11), load(ptr(address(args + 4), T), 0)
    for item in range(lo, hi):
        matrix = item // M
        i = item - matrix * M
        a_offset, b_offset, c_offset = batch_offsets(args, matrix)
        a = ptr(load(args, 0), T) + (a_offset + i * load(args, 8))
        b = ptr(load(args, 1), T) + b_offset
        c = ptr(load(args, 2), T) + (c_offset + i * load(args, 12))
        for j in range(0, N, LANES):
            vstore_first(c, j, fill(0, T, LANES), N - j)
        for p in range(K):
            value = load(a, p * load(args, 9)) * alpha
            row = b + p * b_k
            if b_stride == 1:
                for j in range(0, N, LANES):
                    term = vload_first(row, j, LANES, N - j) * value
                    vstore_first(c, j, vload_first(c, j, LANES, N - j) + term, N - j)
            else:
                for j in range(N):
                    store(c, j, load(c, j) + load(row, j * b_stride) * value)
    return 0
