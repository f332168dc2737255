"""What follows a product before its result is stored: scale, bias, activation, residual; and the way back."""

from numba import types
from numba.extending import overload

from ...build import jit
from ...lang import vmath
from ...lang.simd import fill, load, ptr, select, vload, vload_first, vstore, vstore_first
from .microkernel import lanes_of, sum_ptr, sum_type

ACTIVATIONS = (None, "relu", "silu", "gelu", "gelu_tanh")  # by number: the constant ACT of the kernels


def activate(x, ACT):
    """Activation number `ACT` (a literal) of a vector."""
    raise NotImplementedError("`activate` is for jitted code")


@overload(activate, prefer_literal=True)
def _activate(x, ACT):
    if not isinstance(ACT, types.IntegerLiteral):
        return None
    name = ACTIVATIONS[ACT.literal_value]
    if name == "relu":
        return lambda x, ACT: select(x < 0.0, 0.0, x)
    if name == "silu":
        return lambda x, ACT: x / (1.0 + vmath.exp(-x))
    if name == "gelu":
        return lambda x, ACT: x * vmath.normal_cdf(x)
    if name == "gelu_tanh":
        # 1 + tanh(u) = 2 sigmoid(2 u): a third of the time, and nothing cancels
        return lambda x, ACT: x / (1.0 + vmath.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    return lambda x, ACT: x


def finish_row(y, sums, bias, residual, alpha, given, width, ACT):
    """y[j] = residual[j] + activation(alpha * sums[j] + bias[j]) for j < width.

    `given` says whether there is a bias and whether there is a residual. Whole vectors of `sums` are read.
    """
    raise NotImplementedError("`finish_row` is for jitted code")


@overload(finish_row, prefer_literal=True)
def _finish_row(y, sums, bias, residual, alpha, given, width, ACT):
    if not isinstance(ACT, types.IntegerLiteral):
        return None
    count, KIND = lanes_of(y.dtype), ACT.literal_value

    def implementation(y, sums, bias, residual, alpha, given, width, ACT):
        for j in range(0, width, count):
            valid = width - j
            value = vload(sums, j, count) * alpha
            if given[0]:
                value = value + vload_first(bias, j, count, valid)
            value = activate(value, KIND)
            if given[1]:
                value = value + vload_first(residual, j, count, valid)
            if valid >= count:
                vstore(y, j, value)
            else:
                vstore_first(y, j, value, valid)

    return implementation


# ---- derivative ----------------------------------------------------------------------------------

ROWS_AT_A_TIME = 4  # of a chunk: their sums stay in registers


def slope(x, ACT):
    """The derivative of activation number `ACT` (a literal) at a vector."""
    raise NotImplementedError("`slope` is for jitted code")


@overload(slope, prefer_literal=True)
def _slope(x, ACT):
    if not isinstance(ACT, types.IntegerLiteral):
        return None
    name, kind, count = ACTIVATIONS[ACT.literal_value], x.dtype, x.lanes
    if name == "relu":
        return lambda x, ACT: select(x > 0.0, fill(1.0, kind, count), 0.0)
    if name == "silu":

        def silu(x, ACT):
            s = 1.0 / (1.0 + vmath.exp(-x))
            return s * (1.0 + x * (1.0 - s))

        return silu
    if name == "gelu":
        return lambda x, ACT: vmath.normal_cdf(x) + 0.3989422804014327 * x * vmath.exp(-0.5 * x * x)
    if name == "gelu_tanh":

        def gelu_tanh(x, ACT):
            s = 1.0 / (1.0 + vmath.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
            return s + x * (1.5957691216057308 + 0.21406444881780076 * x * x) * (s * (1.0 - s))

        return gelu_tanh
    return None


def add_rows(g, stride, places, columns, totals, rows, fresh, ACT):
    """totals[j] += the sum of some rows of out[j] = g[j] * activation'(before[j]); `places`: before, out.

    Whole vectors of `totals` are written, unread if they are `fresh`.
    """
    raise NotImplementedError("`add_rows` is for jitted code")


@overload(add_rows, prefer_literal=True)
def _add_rows(g, stride, places, columns, totals, rows, fresh, ACT):
    if not isinstance(ACT, types.IntegerLiteral):
        return None
    count, KIND, kind = lanes_of(g.dtype), ACT.literal_value, sum_type(g.dtype)

    def implementation(g, stride, places, columns, totals, rows, fresh, ACT):
        before, out = places
        whole = columns // count * count
        for j in range(0, whole, count):
            total = fill(0.0, kind, count) if fresh else vload(totals, j, count)
            for i in range(rows):
                value = vload(g, i * stride + j, count) * slope(vload(before, i * columns + j, count), KIND)
                vstore(out, i * columns + j, value)
                total = total + value
            vstore(totals, j, total)
        if whole < columns:
            left = columns - whole
            total = fill(0.0, kind, count) if fresh else vload(totals, whole, count)
            for i in range(rows):
                x = vload_first(before, i * columns + whole, count, left)
                value = vload_first(g, i * stride + whole, count, left) * slope(x, KIND)
                vstore_first(out, i * columns + whole, value, left)
                total = total + value
            vstore(totals, whole, total)

    return implementation


@jit.inline
def backward(args, lo, hi, T, ACT):
    """Chunks [lo, hi) of rows of out = g * activation'(before), and the sums of their columns: the bias's gradient.

    0-3: addresses of g, before, out, and the sums of the first chunk, 4: rows, 5: columns, 6: stride of the rows of g,
    7: rows of a chunk, 8: step to the sums of the next chunk, in whole vectors. Chunks follow from the shape alone, so
    the sums do not depend on threads.
    """
    rows, columns, stride = load(args, 4), load(args, 5), load(args, 6)
    chunk_rows, step = load(args, 7), load(args, 8)
    for chunk in range(lo, hi):
        start, stop = chunk * chunk_rows, min(rows, (chunk + 1) * chunk_rows)
        totals = sum_ptr(load(args, 3), T) + chunk * step
        for i in range(start, stop, ROWS_AT_A_TIME):
            g, few, fresh = ptr(load(args, 0), T) + i * stride, min(ROWS_AT_A_TIME, stop - i), i == start
            places = ptr(load(args, 1), T) + i * columns, ptr(load(args, 2), T) + i * columns
            add_rows(g, stride, places, columns, totals, few, fresh, ACT)
    return 0
