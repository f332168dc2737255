"""Skinny products: a matrix with a few vectors (decoding). Bound by reading the matrix, once.

`dot_rows` serves matrices whose rows are contiguous along k (the weight of a linear layer),
`add_rows` those that are contiguous across k (B of x B with x of few rows).
"""

from numba import types
from numba.extending import overload

from .. import jit
from .gemm import batch_offsets
from .microkernel import dot_tile, itemsize, lanes, lanes_of, sum_ptr, sum_type
from .simd import bitcast, fill, load, ptr, reduce_add, stack, store, vload, vload_first, vstore

ROWS, TOKENS = 4, 4  # a register tile of sums
BLOCK_ROWS, BLOCK_TOKENS = 8, 16  # what shares a piece of k in the first-level cache
PIECE_BYTES = 1024
SUM_BYTES = BLOCK_ROWS * BLOCK_TOKENS * 64


def add_up(sums, index):
    """The sum of the lanes of vector `index`."""
    raise NotImplementedError("`add_up` is for jitted code")


@overload(add_up)
def _add_up(sums, index):
    count = lanes_of(sums.dtype)
    return lambda sums, index: reduce_add(vload(sums, index * count, count))


@jit.inline
def dot_rows(args, lo, hi, T):
    """out[n, m] = alpha * (w[n] . x[m]) + bias for blocks [lo, hi) of 8 rows of all matrices of a batch."""
    rows, tokens, k, w_stride = load(args, 5), load(args, 6), load(args, 7), load(args, 8)
    blocks = (rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    for item in range(lo, hi):
        matrix = item // blocks
        n = (item - matrix * blocks) * BLOCK_ROWS
        w_offset, x_offset, out = batch_offsets(args, matrix)
        w = ptr(load(args, 0), T) + (w_offset + n * w_stride)
        x = ptr(load(args, 1), T) + x_offset
        for m in range(0, tokens, BLOCK_TOKENS):
            height, width = min(BLOCK_ROWS, rows - n), min(BLOCK_TOKENS, tokens - m)
            dot_block(args, w, x + m * load(args, 9), n, m, out, height, width, k, T)
    return 0


@jit.inline
def dot_block(args, w, x, n, m, out_offset, height, width, k, T):
    """The dot products of up to 8 rows of w with up to 16 of x."""
    w_stride, x_stride = load(args, 8), load(args, 9)
    sums, count = sum_ptr(stack(SUM_BYTES), T), lanes(T)
    piece = PIECE_BYTES // itemsize(T)
    if width == 1:  # one row after the other: one sequential stream reads fastest
        for i in range(height):
            dot_tile(w + i * w_stride, w_stride, 1, x, x_stride, 1, k, sums + i * count, True, T, 1, 1, 4)
    else:
        for p in range(0, max(k, 1), piece):
            for j in range(0, width, TOKENS):
                for i in range(0, height, ROWS):
                    at = sums + (j * BLOCK_ROWS + i * TOKENS) * count
                    dot_tile(
                        w + (i * w_stride + p), w_stride, height - i, x + (j * x_stride + p), x_stride, width - j,
                        min(piece, k - p), at, p == 0, T, ROWS, TOKENS, 1,
                    )  # fmt: skip
    out, bias, alpha = ptr(load(args, 2), T) + out_offset, ptr(load(args, 3), T), bitcast(load(args, 4), types.float64)
    for i in range(height):
        for j in range(width):
            at = j // TOKENS * TOKENS * BLOCK_ROWS + i * TOKENS + j % TOKENS if width > 1 else i
            value = add_up(sums, at) * alpha
            if load(args, 3) != 0:
                value += load(bias, (n + i) * load(args, 12) + (m + j) * load(args, 13))
            store(out, (n + i) * load(args, 10) + (m + j) * load(args, 11), value)


ADD_TOKENS = 4
K_GROUP = 4
SUMS_BYTES = ADD_TOKENS * 4096  # a chunk of columns: 1024 sums in float32, 512 in float64


def add_products(sums, b, b_k, x, x_k, k, width, fresh):
    """sums[j] += sum over p < k of x[p * x_k] * b[p * b_k + j], for j < width; they were zero if `fresh`."""
    raise NotImplementedError("`add_products` is for jitted code")


@overload(add_products)
def _add_products(sums, b, b_k, x, x_k, k, width, fresh):
    count, kind = lanes_of(b.dtype), sum_type(b.dtype)

    def implementation(sums, b, b_k, x, x_k, k, width, fresh):
        zero = fill(0.0, kind, count)
        if k == 4:  # four rows at a time: one load and one store of a sum for four products
            b1, b2, b3 = b + b_k, b + 2 * b_k, b + 3 * b_k
            x0, x1, x2, x3 = load(x, 0), load(x, x_k), load(x, 2 * x_k), load(x, 3 * x_k)
            for j in range(0, width, count):
                n = width - j
                total = zero if fresh else vload(sums, j, count)
                if n >= count:
                    total = total + vload(b, j, count) * x0
                    total = total + vload(b1, j, count) * x1
                    total = total + vload(b2, j, count) * x2
                    total = total + vload(b3, j, count) * x3
                else:
                    total = total + vload_first(b, j, count, n) * x0
                    total = total + vload_first(b1, j, count, n) * x1
                    total = total + vload_first(b2, j, count, n) * x2
                    total = total + vload_first(b3, j, count, n) * x3
                vstore(sums, j, total)
            return
        for p in range(k):
            for j in range(0, width, count):
                row = vload_first(b, p * b_k + j, count, width - j)
                total = zero if fresh and p == 0 else vload(sums, j, count)
                vstore(sums, j, total + row * load(x, p * x_k))

    return implementation


@jit.inline
def add_rows(args, lo, hi, T):
    """out[m, n] = alpha * sum over k of x[m, k] * b[k, n] + bias for chunks [lo, hi) of columns, m < 4."""
    tokens, columns, k, chunk = load(args, 5), load(args, 6), load(args, 7), load(args, 13)
    out_step, out_stride, biased = load(args, 11), load(args, 12), load(args, 3) != 0
    x_k, b_k, alpha = load(args, 9), load(args, 10), bitcast(load(args, 4), types.float64)
    sums = sum_ptr(stack(SUMS_BYTES), T)
    chunks = (columns + chunk - 1) // chunk
    for item in range(lo, hi):
        matrix = item // chunks
        j = (item - matrix * chunks) * chunk
        width = min(chunk, columns - j)
        x_offset, b_offset, out_offset = batch_offsets(args, matrix)
        x = ptr(load(args, 0), T) + x_offset
        b = ptr(load(args, 1), T) + (b_offset + j)
        out = ptr(load(args, 2), T) + (out_offset + j * out_step)
        for p in range(0, k, K_GROUP):  # rows of B that stay in the first-level cache for the other tokens
            for m in range(tokens):
                part, rows = x + (m * load(args, 8) + p * x_k), b + p * b_k
                add_products(sums + m * chunk, rows, b_k, part, x_k, min(K_GROUP, k - p), width, p == 0)
        for m in range(tokens):
            for i in range(width):
                value = load(sums, m * chunk + i) * alpha if k > 0 else 0.0
                if biased:
                    value += load(ptr(load(args, 3), T), (j + i) * load(args, 14) + m * load(args, 15))
                store(out, m * out_stride + i * out_step, value)
    return 0
