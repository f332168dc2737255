"""Skinny products: a matrix with a few vectors (decoding). Bound by reading the matrix, once.

`dot_rows` serves matrices whose rows are contiguous along k (the weight of a linear layer),
`add_rows` those that are contiguous across k (B of x B with x of few rows).
"""

from numba import types

from ...blocks.gemm import ADD_ROWS, DOT_ROWS
from ...build import isa, jit
from ...lang.by_type import by_type
from ...lang.simd import bitcast, fill, load, ptr, stack, store, vload, vload_first, vstore
from .blocked import batch_offsets
from .blocking import GROUP, LINE, PAIR_ROWS, QUAD_ROWS
from .epilogue import finish_row
from .microkernel import CACHED_STEP, add_up, dot_tile, fetch, itemsize, lanes, lanes_of, sum_ptr, sum_type

# Rows up to this size are read one after the other, others by groups. Zen 4, rows of 16,384 bytes of float32: 42 GB/s,
# by groups 53. 16 cores of Emerald Rapids, rows of 8 to 56 KB beside a loop in C: bfloat16 0.92 and 0.94, float32 0.96
# and 0.95; by groups 0.90 and 0.92, 0.92 and 0.92.
STREAM_BYTES = 65536 if isa.multiplies_faster_than_it_reads() else 12288
FAR_BYTES = 4 << 20  # from this size on, a weight is taken to come from memory and not from a cache
SUM_BYTES = GROUP * 4 * 64
RESULT_BYTES = 128  # GROUP sums, in whole vectors


@jit.inline
def dot_rows(args, lo, hi, T, ACT):
    """out[n, m] = residual + activation(alpha * (w[n] . x[m]) + bias[n]) for groups [lo, hi) of GROUP rows of w.

    Bias, activation and residual are for outputs whose neighbours are along n.
    """
    rows, tokens, k = load(args, DOT_ROWS.rows), load(args, DOT_ROWS.tokens), load(args, DOT_ROWS.k)
    w_stride, x_stride = load(args, DOT_ROWS.w_stride), load(args, DOT_ROWS.x_stride)
    # One short row of x stays in the first-level cache while w streams through it, and a single stream reads
    # fastest (bfloat16, K = 4096: 33 GB/s a core, 29 by groups). Otherwise x is read once per group of rows.
    stream = tokens == 1 and (rows == 1 or k * itemsize(T) <= STREAM_BYTES)
    far = rows * k * itemsize(T) >= FAR_BYTES
    groups, count, sums = (rows + GROUP - 1) // GROUP, lanes(T), sum_ptr(stack(SUM_BYTES), T)
    for item in range(lo, hi):
        matrix = item // groups
        n = (item - matrix * groups) * GROUP
        height = min(GROUP, rows - n)
        w_offset, x_offset, out = batch_offsets(args, DOT_ROWS.batch, matrix)
        w = ptr(load(args, DOT_ROWS.w), T) + (w_offset + n * w_stride)
        for m in range(0, tokens, 4):
            width, across = min(4, tokens - m), 2
            x = ptr(load(args, DOT_ROWS.x), T) + (x_offset + m * x_stride)
            if stream:
                for i in range(height):
                    row, at = w + i * w_stride, sums + 2 * i * count
                    if far:
                        dot_tile(row, w_stride, 1, x, x_stride, 1, k, at, T, 1, 1, 4, LINE)
                    else:
                        dot_tile(row, w_stride, 1, x, x_stride, 1, k, at, T, 1, 1, 4, CACHED_STEP)
            elif width <= 2:
                for i in range(0, height, PAIR_ROWS):
                    low, at = w + i * w_stride, sums + 2 * i * count
                    dot_tile(low, w_stride, height - i, x, x_stride, width, k, at, T, PAIR_ROWS, 2, 1, LINE)
            else:
                across = 4
                for i in range(0, height, QUAD_ROWS):
                    low, at = w + i * w_stride, sums + 4 * i * count
                    dot_tile(low, w_stride, height - i, x, x_stride, width, k, at, T, QUAD_ROWS, 4, 1, LINE)
            store_dots(args, sums, across, out, n, m, height, width, T, ACT)
    return 0


@jit.inline
def store_dots(args, sums, across, offset, n, m, height, width, T, ACT):
    """Add up the lanes of [height, width] sums, finish and store them."""
    n_stride, m_stride = load(args, DOT_ROWS.row_step), load(args, DOT_ROWS.token_step)
    at, alpha = offset + n * n_stride + m * m_stride, bitcast(load(args, DOT_ROWS.alpha), types.float64)
    out, residual = ptr(load(args, DOT_ROWS.out), T) + at, ptr(load(args, DOT_ROWS.residual), T) + at
    given = load(args, DOT_ROWS.bias) != 0, load(args, DOT_ROWS.residual) != 0
    results = sum_ptr(stack(RESULT_BYTES), T)
    for j in range(width):
        if across == 2:
            add_up(sums + j * lanes(T), 2, GROUP, results)
        else:
            add_up(sums + j * lanes(T), 4, GROUP, results)
        if n_stride == 1:
            to, bias = out + j * m_stride, ptr(load(args, DOT_ROWS.bias), T) + n
            finish_row(to, results, bias, residual + j * m_stride, alpha, given, height, ACT)
        else:
            for i in range(height):
                store(out, i * n_stride + j * m_stride, load(results, i) * alpha)


K_GROUP = 4  # rows of B at a time: one load and one store of a sum for four products
ADD_BYTES = 4 * 4096  # sums of 4 rows of x with a chunk of 1024 columns (512 in float64)


@by_type
def add_products(sums, b, b_k, x, x_k, k, width, fresh):
    """sums[j] += sum over p < k of x[p * x_k] * b[p * b_k + j], for j < width; they were zero if `fresh`."""
    count, kind = lanes_of(b.dtype), sum_type(b.dtype)

    def implementation(sums, b, b_k, x, x_k, k, width, fresh):
        zero = fill(0.0, kind, count)
        if k == K_GROUP:
            b1, b2, b3 = b + b_k, b + 2 * b_k, b + 3 * b_k
            x0, x1, x2, x3 = load(x, 0), load(x, x_k), load(x, 2 * x_k), load(x, 3 * x_k)
            for j in range(0, width, count):
                n = width - j
                total = zero if fresh else vload(sums, j, count)
                if n >= count:
                    for i in range(8, 12):  # two groups ahead
                        fetch(b, i * b_k + j)
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
def add_rows(args, lo, hi, T, ACT):
    """out[m, n] = residual + activation(alpha * sum over k of x[m, k] * b[k, n] + bias[n]), for m < 4 and k > 0.

    [lo, hi) are chunks of columns. Bias, activation and residual are for outputs whose neighbours are along n.
    """
    tokens, columns, k = load(args, ADD_ROWS.tokens), load(args, ADD_ROWS.columns), load(args, ADD_ROWS.k)
    chunk, x_stride = load(args, ADD_ROWS.chunk), load(args, ADD_ROWS.x_stride)
    out_step, out_stride = load(args, ADD_ROWS.column_step), load(args, ADD_ROWS.token_step)
    given = load(args, ADD_ROWS.bias) != 0, load(args, ADD_ROWS.residual) != 0
    x_k, b_k = load(args, ADD_ROWS.x_k), load(args, ADD_ROWS.b_k)
    alpha = bitcast(load(args, ADD_ROWS.alpha), types.float64)
    sums = sum_ptr(stack(ADD_BYTES), T)
    chunks = (columns + chunk - 1) // chunk
    for item in range(lo, hi):
        matrix = item // chunks
        j = (item - matrix * chunks) * chunk
        width = min(chunk, columns - j)
        x_offset, b_offset, out_offset = batch_offsets(args, ADD_ROWS.batch, matrix)
        x = ptr(load(args, ADD_ROWS.x), T) + x_offset
        b = ptr(load(args, ADD_ROWS.b), T) + (b_offset + j)
        out = ptr(load(args, ADD_ROWS.out), T) + (out_offset + j * out_step)
        residual = ptr(load(args, ADD_ROWS.residual), T) + (out_offset + j * out_step)
        bias = ptr(load(args, ADD_ROWS.bias), T) + j
        for p in range(0, k, K_GROUP):  # rows of B that stay in the first-level cache for the other tokens
            for m in range(tokens):
                part, rows = x + (m * x_stride + p * x_k), b + p * b_k
                add_products(sums + m * chunk, rows, b_k, part, x_k, min(K_GROUP, k - p), width, p == 0)
        for m in range(tokens):
            if out_step == 1:
                to, below = out + m * out_stride, residual + m * out_stride
                finish_row(to, sums + m * chunk, bias, below, alpha, given, width, ACT)
            else:
                for i in range(width):
                    store(out, m * out_stride + i * out_step, load(sums, m * chunk + i) * alpha)
    return 0
