"""What follows a product of a type before its result is stored, and the way back through an activation, a part of some
rows for a block (formulas: `kernels/cpu/gemm/epilogue.py`).

Sums of operands of 8 bits may be multiplied with scales: a float32 number for each row, one for each column, or one for
all of either.
"""

from numba import types

from ...blocks.gemm import ACTIVATION_GRAD
from ...build import jit
from ...cpu.gemm.microkernel import sum_ptr
from ...lang.by_type import by_type
from ...lang.products import times_rows
from ...lang.ptx import thread, threads
from ...lang.simd import address, bitcast, convert, fill, load, ptr, vload_aligned, vstore_aligned
from ...lang.vector import compute_type, is_float
from ..block import read, vector, width, write

F32, F64 = types.float32, types.float64


def _is_byte(T):
    return T.instance_type.bitwidth == 8


@by_type
def alpha_of(bits, A):
    """`alpha`, whose float64 bits these are: float64 beside such sums, else float32."""
    kind = F64 if A.instance_type == F64 else F32
    return lambda bits, A: kind(bitcast(bits, F64))


@by_type
def column_factors(at, step, column, left, alpha, T):
    """What sums of four columns are multiplied with: `alpha`, and the scales at an address, `step` apart (0: one)."""
    if not _is_byte(T):
        return lambda at, step, column, left, alpha, T: alpha

    def implementation(at, step, column, left, alpha, T):
        factors = fill(alpha, F32, 4)
        if at != 0:
            if step == 0:
                return factors * load(ptr(at, F32), 0)
            return factors * read(ptr(at, F32), column, left, factors)
        return factors

    return implementation


@by_type
def factor_of_row(at, place, T):
    """What sums of a row are multiplied with: the scale at that place of an address."""
    if not _is_byte(T):
        return lambda at, place, T: None

    def implementation(at, place, T):
        if at != 0:
            return load(ptr(at, F32), place)
        return F32(1.0)

    return implementation


@by_type
def rows_weighed(sums, at, step, row, rows, T, R):
    """Sums of a warpgroup's thread, in rows `row` and `row` + 8, times the scales of these at an address, as floats."""
    if not _is_byte(T) or not is_float(compute_type(R.instance_type)):
        return lambda sums, at, step, row, rows, T, R: sums

    def implementation(sums, at, step, row, rows, T, R):
        last = rows - 1
        one, two = factor_of_row(at, min(row, last) * step, T), factor_of_row(at, min(row + 8, last) * step, T)
        return times_rows(sums, one, two)

    return implementation


@by_type
def weighed(sums, factors, factor, R):
    """Sums times their factors, as float32 or float64; int32 results are the sums themselves."""
    if not is_float(compute_type(R.instance_type)):
        return lambda sums, factors, factor, R: sums
    if factor == types.none:
        return lambda sums, factors, factor, R: sums * factors
    return lambda sums, factors, factor, R: convert(sums, F32) * (factors * factor)


@by_type
def bias_of(at, column, left, T, R, like):
    """The bias of columns, as many as the vector `like` has lanes: of the operands' dtype, or, where these have 8 bits,
    of the result's; or zeros."""
    kind, lanes = R if _is_byte(T) else T, like.lanes
    compute = compute_type(kind.instance_type)

    def implementation(at, column, left, T, R, like):
        bias = fill(0, compute, lanes)
        if at != 0:
            bias = read(ptr(at, kind), column, left, bias)
        return bias

    return implementation


@jit.inline
def backward(args, lo, hi, T, SLOPE):
    """Part `lo`: of a chunk of rows of out = SLOPE(g, before), as many columns as the threads have 16 bytes of.

    The sums of a chunk's columns, the bias's gradient, stay in registers until they are whole. Parts follow from the
    shape alone.
    """
    rows, columns = load(args, ACTIVATION_GRAD.rows), load(args, ACTIVATION_GRAD.columns)
    stride, chunk_rows = load(args, ACTIVATION_GRAD.stride), load(args, ACTIVATION_GRAD.chunk_rows)
    g, before = ptr(load(args, ACTIVATION_GRAD.g), T), ptr(load(args, ACTIVATION_GRAD.before), T)
    out, sums = ptr(load(args, ACTIVATION_GRAD.out), T), sum_ptr(load(args, ACTIVATION_GRAD.sums), T)
    lanes = width(g)
    across = (columns + threads() * lanes - 1) // (threads() * lanes)
    chunk = lo // across
    j = ((lo - chunk * across) * threads() + thread()) * lanes
    if j < columns:
        left, total = columns - j, vector(g, 0.0)
        i, stop = chunk * chunk_rows, min(rows, (chunk + 1) * chunk_rows)
        places = address(g + j) | address(before + j) | address(out + j) | address(ptr(0, T) + stride)
        if left >= lanes and (places | address(ptr(0, T) + columns)) & 15 == 0:
            while i + 1 < stop:  # two rows are on their way
                a, b = vload_aligned(g + i * stride, j, lanes), vload_aligned(g + (i + 1) * stride, j, lanes)
                c = vload_aligned(before + i * columns, j, lanes)
                d = vload_aligned(before + (i + 1) * columns, j, lanes)
                a, b = SLOPE(a, c), SLOPE(b, d)
                vstore_aligned(out + i * columns, j, a)
                vstore_aligned(out + (i + 1) * columns, j, b)
                total = total + a + b
                i += 2
        while i < stop:
            value = SLOPE(read(g + i * stride, j, left, total), read(before + i * columns, j, left, total))
            write(out + i * columns, j, value, left)
            total = total + value
            i += 1
        write(sums + chunk * load(args, ACTIVATION_GRAD.step), j, total, left)
    return 0
