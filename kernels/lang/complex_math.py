"""The functions of rules for complex elements, one at a time: `m` of rendered complex kernels.

The functions of `cmath` compute in complex128 for complex64 as well, and are rounded once.
"""

import cmath
import math

from numba import types

from ..build import jit
from . import lowp
from .by_type import by_type, real  # noqa: F401

magnitude = abs  # Python's, of complex numbers as well
C128 = types.complex128
INF, NAN = math.inf, math.nan


@jit.inline
def abs(x):
    return magnitude(x)


@by_type
def as_type(x, T):
    """A scalar as the compute type of `T`: the real part where that is real, `x != 0` where it is bool."""
    target, given = T.instance_type, x
    if isinstance(target, lowp.StorageFloat):
        target = types.float32
    if isinstance(target, types.Boolean):
        return lambda x, T: x != 0
    if isinstance(given, types.Complex) and not isinstance(target, types.Complex):
        return lambda x, T: target(x.real)
    return lambda x, T: target(x)


@jit.inline
def div(x, y):
    """x / y, scaled so that no square overflows (Smith, 1962); by 0 infinite or NaN."""
    a, b = C128(x), C128(y)
    if magnitude(b.real) >= magnitude(b.imag):
        if b.real == 0 and b.imag == 0:
            return complex(a.real / b.real, a.imag / b.real)
        ratio = b.imag / b.real
        whole = b.real + b.imag * ratio
        return complex((a.real + a.imag * ratio) / whole, (a.imag - a.real * ratio) / whole)
    ratio = b.real / b.imag
    whole = b.real * ratio + b.imag
    return complex((a.real * ratio + a.imag) / whole, (a.imag * ratio - a.real) / whole)


def _of_cmath(name):
    function = getattr(cmath, name)

    @jit.inline
    def compute(x):
        return function(C128(x))

    compute.__doc__ = f"`cmath.{name}` in complex128."
    return compute


_exp, log, sqrt, sin, cos, tan = map(_of_cmath, ("exp", "log", "sqrt", "sin", "cos", "tan"))
sinh, cosh, tanh = map(_of_cmath, ("sinh", "cosh", "tanh"))
asin, acos, atan, asinh, acosh, atanh = map(_of_cmath, ("asin", "acos", "atan", "asinh", "acosh", "atanh"))


@jit.inline
def exp(x):
    """e^x; of a real number a real one, also where it is infinite, which times sin(0) would be NaN."""
    z = C128(x)
    return complex(math.exp(z.real), z.imag) if z.imag == 0.0 else _exp(z)


@jit.inline
def log2(x):
    z = log(x)  # each part by itself: an infinite one times a complex number would make NaN of the other
    return complex(z.real * 1.4426950408889634, z.imag * 1.4426950408889634)


@jit.inline
def log10(x):
    z = log(x)
    return complex(z.real * 0.4342944819032518, z.imag * 0.4342944819032518)


@jit.inline
def log1p(x):
    """log(1 + x), also for small x."""
    z = C128(x)
    a, b = z.real, z.imag
    if magnitude(a) < 0.5 and magnitude(b) < 0.5:
        return complex(0.5 * math.log1p(a * (2.0 + a) + b * b), math.atan2(b, 1.0 + a))
    return log(1.0 + z)


@jit.inline
def expm1(x):
    """exp(x) - 1, also for small x."""
    z = C128(x)
    half = math.sin(0.5 * z.imag)
    grown = math.expm1(z.real)
    return complex(grown * math.cos(z.imag) - 2.0 * half * half, math.exp(z.real) * math.sin(z.imag))


@jit.inline
def exp2(x):
    return exp(C128(x) * 0.6931471805599453)


@jit.inline
def sigmoid(x):
    return div(1.0, 1.0 + exp(-C128(x)))


@jit.inline
def pow(x, y):
    """x ** y: by squaring for small whole exponents, else exp(y log x); 0 ** 0 is 1."""
    a, b = C128(x), C128(y)
    if b.imag == 0 and magnitude(b.real) <= 64 and b.real == math.floor(b.real):
        left, result, square = int(magnitude(b.real)), C128(1.0), a
        while left:
            if left & 1:
                result = result * square
            square = square * square
            left >>= 1
        return div(1.0, result) if b.real < 0 else result
    if a.real == 0 and a.imag == 0:
        return C128(0.0) if b.real > 0 else complex(NAN, NAN)
    return exp(b * log(a))


@jit.inline
def conj(x):
    return complex(x.real, -x.imag)


@by_type
def where(condition, x, y):
    return lambda condition, x, y: x if condition else y
