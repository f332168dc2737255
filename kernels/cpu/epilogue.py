"""What follows a product before its result is stored: scale, bias, activation, residual, one rounding."""

from numba import types
from numba.extending import overload

from . import vmath
from .microkernel import lanes_of
from .simd import select, vload, vload_first, vstore, vstore_first

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
        return lambda x, ACT: 0.5 * x * (1.0 + vmath.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
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
