"""Products of any dtypes, strides and sizes on the ordinary units: a tile of 64 x 64 of c for a block of 256 threads.

Blocks of 16 of k go through shared memory; a thread has 4 x 4 sums in registers.
"""

from numba import types

from ...blocks.cuda import PANELS, PRODUCT
from ...build import jit
from ...cpu.gemm.epilogue import activate
from ...lang.by_type import by_type
from ...lang.ptx import barrier, shared, thread
from ...lang.simd import (
    bitcast,
    convert,
    fill,
    lane,
    load,
    muladd,
    ptr,
    store,
    vload_aligned,
)
from ...lang.vector import compute_type, is_float
from ..block import read, write
from .epilogue import alpha_of, bias_of, column_factors, factor_of_row, weighed

TILE, DEPTH, ROW = 64, 16, 68  # rows of shared memory end in 16 bytes of nothing, so that columns meet other banks
BYTES = DEPTH * ROW * 8
U64, I64, F64 = types.uint64, types.int64, types.float64


@by_type
def _add_product(total, a, b):
    """total + a * b."""
    if is_float(total.dtype):
        return lambda total, a, b: muladd(a, b, total)
    return lambda total, a, b: total + b * a


@by_type
def factor(bits, A):
    """`alpha` in the type of sums, from its word in a block."""
    kind = A.instance_type
    if is_float(kind):
        return lambda bits, A: kind(bitcast(bits, F64))
    return lambda bits, A: kind(bits)


@by_type
def _weighed(args, sums, row, column, T, R, A):
    """Sums times `alpha`, and, where they become floats of operands of 8 bits, times their scales."""
    if T.instance_type.bitwidth != 8 or not is_float(compute_type(R.instance_type)):
        return lambda args, sums, row, column, T, R, A: sums * factor(load(args, PRODUCT.alpha), A)

    def implementation(args, sums, row, column, T, R, A):
        left, alpha = load(args, PRODUCT.columns) - column, alpha_of(load(args, PRODUCT.alpha), A)
        factors = column_factors(load(args, PRODUCT.b_scales), load(args, PRODUCT.b_step), column, left, alpha, T)
        one = factor_of_row(load(args, PRODUCT.a_scales), row * load(args, PRODUCT.a_step), T)
        return weighed(sums, factors, one, R)

    return implementation


@by_type
def _as(x, value):
    """The lanes of `x` in the type of those of `value`."""
    kind = value.dtype
    return lambda x, value: convert(x, kind)


@jit.inline
def place(args, index, at, ndim):
    """Offsets in a, b and c of matrix number `index` of the batch whose dims stand in a block from `at` on."""
    rest, in_a, in_b, in_c = U64(index), 0, 0, 0
    for d in range(ndim - 1, -1, -1):
        size = U64(load(args, at + d))
        whole = rest // size
        i = I64(rest - whole * size)
        rest = whole
        in_a += i * load(args, at + ndim + d)
        in_b += i * load(args, at + 2 * ndim + d)
        in_c += i * load(args, at + 3 * ndim + d)
    return in_a, in_b, in_c


@jit.inline
def bring(memory, x, first, rows, start, k, stride, k_stride):
    """TILE rows (or columns) from `first` on and DEPTH of k from `start` on, to shared memory; zeros beyond."""
    for step in range(TILE * DEPTH // 256):
        index = thread() + 256 * step
        if k_stride == 1:
            row, at = index // DEPTH, index % DEPTH
        else:
            row, at = index % TILE, index // TILE
        if first + row < rows and start + at < k:
            store(memory, at * ROW + row, load(x, (first + row) * stride + (start + at) * k_stride))
        else:
            store(memory, at * ROW + row, 0)


@jit.inline
def finish(args, sums, row, column, in_c, T, R, A, ACT):
    """Some columns of a row of c, if they are in the matrix."""
    rows, columns = load(args, PRODUCT.rows), load(args, PRODUCT.columns)
    if row < rows and column < columns:
        at, left = in_c + row * columns + column, columns - column
        value = _weighed(args, sums, row, column, T, R, A)
        value = value + _as(bias_of(load(args, PRODUCT.bias), column, left, T, R, value), value)
        value = activate(value, ACT)
        if load(args, PRODUCT.residual) != 0:
            value = value + _as(read(ptr(load(args, PRODUCT.residual), R), at, left, value), value)
        write(ptr(load(args, PRODUCT.c), R), at, convert(value, R), left)


@jit.inline
def product(args, lo, hi, T, R, A, ACT):
    """Tile number `lo`. A: the type of sums."""
    tiles, across = load(args, PRODUCT.tiles), load(args, PRODUCT.across)
    k, a_k, b_k = load(args, PRODUCT.k), load(args, PRODUCT.a_k), load(args, PRODUCT.b_k)
    matrix = lo // tiles
    tile = lo - matrix * tiles
    first_row, first_column = tile // across * TILE, tile % across * TILE
    in_a, in_b, in_c = place(args, matrix, PRODUCT.dims, load(args, PRODUCT.ndim))
    a, b = ptr(load(args, PRODUCT.a), T) + in_a, ptr(load(args, PRODUCT.b), T) + in_b
    left, right = ptr(shared(BYTES), A), ptr(shared(BYTES), A)
    i, j = thread() // 16 * 4, thread() % 16 * 4
    s0, s1, s2, s3 = fill(0, A, 4), fill(0, A, 4), fill(0, A, 4), fill(0, A, 4)
    for start in range(0, k, DEPTH):
        bring(left, a, first_row, load(args, PRODUCT.rows), start, k, load(args, PRODUCT.a_stride), a_k)
        bring(right, b, first_column, load(args, PRODUCT.columns), start, k, load(args, PRODUCT.b_stride), b_k)
        barrier()
        for at in range(DEPTH):
            column, row = vload_aligned(left, at * ROW + i, 4), vload_aligned(right, at * ROW + j, 4)
            s0 = _add_product(s0, lane(column, 0), row)
            s1 = _add_product(s1, lane(column, 1), row)
            s2 = _add_product(s2, lane(column, 2), row)
            s3 = _add_product(s3, lane(column, 3), row)
        barrier()
    row, column = first_row + i, first_column + j
    finish(args, s0, row, column, in_c, T, R, A, ACT)
    finish(args, s1, row + 1, column, in_c, T, R, A, ACT)
    finish(args, s2, row + 2, column, in_c, T, R, A, ACT)
    finish(args, s3, row + 3, column, in_c, T, R, A, ACT)
    return 0


@jit.inline
def pack_weight(args, lo, hi, T):
    """A weight in the order in which it is read: row-major. Elements [lo, hi)."""
    w, panels, k = ptr(load(args, PANELS.w), T), ptr(load(args, PANELS.panels), T), load(args, PANELS.k)
    for index in range(lo, hi):
        row = index // k
        at = row * load(args, PANELS.stride) + (index - row * k) * load(args, PANELS.k_stride)
        store(panels, index, load(w, at))
    return 0
