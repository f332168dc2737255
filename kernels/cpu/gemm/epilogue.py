"""What follows a product before its result is stored: scale, bias, activation, residual; and the way back.

The activation is the rule of an elementwise op, which the rendered kernel binds as a function, `ACT`, or its
derivative, `SLOPE` (`kernels/build/render.py`); None: there is none.
"""

from numba import types

from ...blocks.gemm import ACTIVATION_GRAD, SCALED
from ...build import jit
from ...lang.by_type import by_type
from ...lang.simd import bitcast, convert, fill, load, ptr, vload, vload_first, vstore, vstore_first
from .blocking import LANES
from .microkernel import lanes_of, sum_ptr, sum_type

F32 = types.float32


@by_type
def activates(ACT):
    """Whether there is an activation, at compile time."""
    given = isinstance(ACT, types.Dispatcher)
    return lambda ACT: given


@by_type
def activate(x, ACT):
    """The activation of a vector."""
    return (lambda x, ACT: ACT(x)) if isinstance(ACT, types.Dispatcher) else (lambda x, ACT: x)


@by_type
def finish_row(y, sums, bias, residual, alpha, given, width, ACT):
    """y[j] = residual[j] + activation(alpha * sums[j] + bias[j]) for j < width.

    `given` says whether there is a bias and whether there is a residual. Whole vectors of `sums` are read.
    """
    count = lanes_of(y.dtype)

    def implementation(y, sums, bias, residual, alpha, given, width, ACT):
        for j in range(0, width, count):
            valid = width - j
            value = vload(sums, j, count) * alpha
            if given[0]:
                value = value + vload_first(bias, j, count, valid)
            value = activate(value, ACT)
            if given[1]:
                value = value + vload_first(residual, j, count, valid)
            if valid >= count:
                vstore(y, j, value)
            else:
                vstore_first(y, j, value, valid)

    return implementation


@jit.inline
def scale(args, lo, hi, S, R, ACT):
    """Rows [lo, hi) of c = activation(alpha * sums * a_scales * b_scales + bias), for sums of type S."""
    columns, a_step, b_step = load(args, SCALED.columns), load(args, SCALED.a_step), load(args, SCALED.b_step)
    a_scales, b_scales = ptr(load(args, SCALED.a_scales), F32), ptr(load(args, SCALED.b_scales), F32)
    alpha, bias = F32(bitcast(load(args, SCALED.alpha), types.float64)), ptr(load(args, SCALED.bias), R)
    for i in range(lo, hi):
        sums, c = ptr(load(args, SCALED.sums), S) + i * columns, ptr(load(args, SCALED.c), R) + i * columns
        factor = alpha * load(a_scales, i * a_step)
        for j in range(0, columns, LANES):
            valid = columns - j
            value = convert(vload_first(sums, j, LANES, valid), F32) * factor
            if b_step == 0:
                value = value * load(b_scales, 0)
            else:
                value = value * vload_first(b_scales, j, LANES, valid)
            if load(args, SCALED.bias) != 0:
                value = value + vload_first(bias, j, LANES, valid)
            vstore_first(c, j, activate(value, ACT), valid)
    return 0


# ---- derivative ----------------------------------------------------------------------------------

ROWS_AT_A_TIME = 4  # of a chunk: their sums stay in registers


@by_type
def add_rows(g, stride, places, columns, totals, rows, fresh, SLOPE):
    """totals[j] += the sum of some rows of out[j] = SLOPE(g[j], before[j]); `places`: before, out.

    Whole vectors of `totals` are written, unread if they are `fresh`.
    """
    count, kind = lanes_of(g.dtype), sum_type(g.dtype)

    def implementation(g, stride, places, columns, totals, rows, fresh, SLOPE):
        before, out = places
        whole = columns // count * count
        for j in range(0, whole, count):
            total = fill(0.0, kind, count) if fresh else vload(totals, j, count)
            for i in range(rows):
                value = SLOPE(vload(g, i * stride + j, count), vload(before, i * columns + j, count))
                vstore(out, i * columns + j, value)
                total = total + value
            vstore(totals, j, total)
        if whole < columns:
            left = columns - whole
            total = fill(0.0, kind, count) if fresh else vload(totals, whole, count)
            for i in range(rows):
                x = vload_first(before, i * columns + whole, count, left)
                value = SLOPE(vload_first(g, i * stride + whole, count, left), x)
                vstore_first(out, i * columns + whole, value, left)
                total = total + value
            vstore(totals, whole, total)

    return implementation


@jit.inline
def backward(args, lo, hi, T, SLOPE):
    """Chunks [lo, hi) of rows of out = SLOPE(g, before), and the sums of their columns: the bias's gradient.

    Chunks follow from the shape alone, so the sums do not depend on threads; they are written in whole vectors.
    """
    rows, columns = load(args, ACTIVATION_GRAD.rows), load(args, ACTIVATION_GRAD.columns)
    stride, chunk_rows = load(args, ACTIVATION_GRAD.stride), load(args, ACTIVATION_GRAD.chunk_rows)
    g_start, before = ptr(load(args, ACTIVATION_GRAD.g), T), ptr(load(args, ACTIVATION_GRAD.before), T)
    out, sums = ptr(load(args, ACTIVATION_GRAD.out), T), sum_ptr(load(args, ACTIVATION_GRAD.sums), T)
    for chunk in range(lo, hi):
        start, stop = chunk * chunk_rows, min(rows, (chunk + 1) * chunk_rows)
        totals = sums + chunk * load(args, ACTIVATION_GRAD.step)
        for i in range(start, stop, ROWS_AT_A_TIME):
            g, few, fresh = g_start + i * stride, min(ROWS_AT_A_TIME, stop - i), i == start
            add_rows(g, stride, (before + i * columns, out + i * columns), columns, totals, few, fresh, SLOPE)
    return 0
