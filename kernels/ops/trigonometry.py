"""Hyperbolic functions, inverse functions, angles, and logarithms and powers to other bases."""

import numpy as np

from ..lang import scalar_math as m
from ..table.registry import INEXACT, alias, elementwise

# Integers become float32, as where `dtypes` names them; they are left out of the tests of every dtype, whose kernels
# would take as long to compile as those of floats.


@elementwise(ref=np.sinh, result="float", amp="float32", dtypes=INEXACT)
def sinh(input):
    """Hyperbolic sine."""
    return m.sinh(input)


@sinh.grad("input")
def _(g, input):
    return g * m.cosh(input)


@elementwise(ref=np.cosh, result="float", amp="float32", dtypes=INEXACT)
def cosh(input):
    """Hyperbolic cosine."""
    return m.cosh(input)


@cosh.grad("input")
def _(g, input):
    return g * m.sinh(input)


@elementwise(ref=np.tan, result="float", domain=(-1.3, 1.3), amp="float32", dtypes=INEXACT)
def tan(input):
    """Tangent of radians."""
    return m.tan(input)


@tan.grad("input")
def _(g, out):
    return g * (1.0 + out * out)


@elementwise(ref=np.arcsin, result="float", domain=(-0.9, 0.9), amp="float32", dtypes=INEXACT)
def asin(input):
    """The angle in [-pi/2, pi/2] whose sine it is; NaN beyond 1."""
    return m.asin(input)


@asin.grad("input")
def _(g, input):
    return g / m.sqrt((1.0 - input) * (1.0 + input))


@elementwise(ref=np.arccos, result="float", domain=(-0.9, 0.9), amp="float32", dtypes=INEXACT)
def acos(input):
    """The angle in [0, pi] whose cosine it is; NaN beyond 1."""
    return m.acos(input)


@acos.grad("input")
def _(g, input):
    return -g / m.sqrt((1.0 - input) * (1.0 + input))


@elementwise(ref=np.arctan, result="float", dtypes=INEXACT)
def atan(input):
    """The angle in (-pi/2, pi/2) whose tangent it is."""
    return m.atan(input)


@atan.grad("input")
def _(g, input):
    return g / (1.0 + input * input)


@elementwise(ref=np.arcsinh, result="float", dtypes=INEXACT)
def asinh(input):
    """The number whose hyperbolic sine it is."""
    return m.asinh(input)


@asinh.grad("input")
def _(g, input):
    return g / m.sqrt(1.0 + input * input)


@elementwise(ref=np.arccosh, result="float", domain=(1.1, 8), dtypes=INEXACT)
def acosh(input):
    """The number of 0 or more whose hyperbolic cosine it is; NaN below 1."""
    return m.acosh(input)


@acosh.grad("input")
def _(g, input):
    return g / (m.sqrt(input - 1.0) * m.sqrt(input + 1.0))


@elementwise(ref=np.arctanh, result="float", domain=(-0.9, 0.9), dtypes=INEXACT)
def atanh(input):
    """The number whose hyperbolic tangent it is; NaN beyond 1."""
    return m.atanh(input)


@atanh.grad("input")
def _(g, input):
    return g / ((1.0 - input) * (1.0 + input))


@elementwise(ref=np.arctan2, result="float", domain=(0.3, 4))
def atan2(input, other):
    """The angle in [-pi, pi] of the point with the coordinates x = `other`, y = `input`."""
    return m.atan2(input, other)


@atan2.grad("input")
def _(g, input, other):
    return m.where((input == 0.0) & (other == 0.0), 0.0, g * other / (input * input + other * other))


@atan2.grad("other")
def _(g, input, other):
    return m.where((input == 0.0) & (other == 0.0), 0.0, -g * input / (input * input + other * other))


@elementwise(ref=np.hypot, domain=(0.3, 4))
def hypot(input, other):
    """sqrt(input^2 + other^2), without overflow on the way."""
    return m.hypot(input, other)


@hypot.grad("input", "other")
def _(g, input, out):
    return g * input / out


@elementwise(ref=np.log2, result="float", domain=(0.05, 8), amp="float32", dtypes=INEXACT)
def log2(input):
    """Logarithm to base 2; NaN below 0."""
    return m.log2(input)


@log2.grad("input")
def _(g, input):
    return g * 1.4426950408889634 / input


@elementwise(ref=np.log10, result="float", domain=(0.05, 8), amp="float32", dtypes=INEXACT)
def log10(input):
    """Logarithm to base 10; NaN below 0."""
    return m.log10(input)


@log10.grad("input")
def _(g, input):
    return g * 0.4342944819032518 / input


@elementwise(ref=np.exp2, result="float", dtypes=INEXACT)
def exp2(input):
    """2 to the power of the input."""
    return m.exp2(input)


@exp2.grad("input")
def _(g, out):
    return g * 0.6931471805599453 * out


for _row in (sinh, cosh, tan, asin, acos, atan, asinh, acosh, atanh, atan2):
    if _row.name.startswith("a"):
        alias(_row, "arc" + _row.name[1:])
