"""Random words as uniform and normal numbers of float32, the same to the last bit on every CPU and GPU.

All is done by sums, products and square roots of float32, each of which is rounded by itself: a GPU would make one
instruction of a product and a sum, and so do CPUs that can. Polynomials are weighted fits of ours, the highest power
first.
"""

from numba import types

from ..build import isa, jit
from . import ptx
from .simd import bitcast, convert, select, vsqrt

F32, I32, U64 = types.float32, types.int32, types.uint64
LN2, SQRT2 = 0.6931471805599453, 1.4142135623730951
ABOVE_ROOT = 1518500249  # of 2^31, from which on there are 1 / sqrt(2) of it
FRACTION, ONE_BITS = 0x7FFFFF, 0x3F800000
# fmt: off
LOG = (  # log(1 + f) / f, 1 / sqrt(2) <= 1 + f <= sqrt(2): 3e-8
    0.08512213826179504, -0.14258426427841187, 0.14980237185955048, -0.16579727828502655, 0.199558287858963,
    -0.25001272559165955, 0.33334195613861084, -0.4999999701976776, 1.0,
)
# sin(2 pi t) / t and cos(2 pi t) over t^2, |t| <= 1/8: 3e-9 and 6e-11
SIN = (-75.3933334350586, 81.59234619140625, -41.34165954589844, 6.2831854820251465)
COS = (59.20267868041992, -85.44229125976562, 64.9393081665039, -19.739208221435547, 1.0)
# fmt: on

if isa.is_gpu():
    times, plus = ptx.product, ptx.sum_of_two
else:
    times, plus = jit.inline(lambda a, b: a * b), jit.inline(lambda a, b: a + b)


@jit.inline
def polynomial(t, coefficients):
    p = plus(times(t, coefficients[0]), coefficients[1])
    for c in coefficients[2:]:
        p = plus(times(p, t), c)
    return p


@jit.inline
def number(word):
    """An integer of up to 32 bits and a sign, rounded to float32."""
    return convert(convert(word, I32), F32)


@jit.inline
def placed(x, scale, shift):
    """x * scale + shift."""
    return plus(times(x, scale), shift)


@jit.inline
def uniform(word):
    """A number from [0, 1) with the 24 bits of a float32, from 32 bits."""
    return number(word >> U64(8)) * 2.0**-24


@jit.inline
def normals(one, other):
    """Two independent standard normal numbers of 32 random bits each (Box and Muller, 1958), up to 6.56.

    The distance from 0 is that of the share u of all points that lie further away, of which there are 2^31: 1 - u has
    all its digits, too, so that the smallest distances are no grid.
    """
    whole = convert(one >> U64(1), I32)
    bits = bitcast(convert(whole + 1, F32), I32)  # (2^31 is no int32, but replaced below)
    mantissa, exponent = bitcast(bits & FRACTION | ONE_BITS, F32), convert((bits >> 23) - (127 + 31), F32)
    high, near = mantissa > SQRT2, whole >= ABOVE_ROOT
    f = select(near, convert(0x7FFFFFFF - whole, F32) * -(2.0**-31), select(high, mantissa * 0.5, mantissa) - 1.0)
    exponent = select(near, exponent * 0.0, select(high, exponent + 1.0, exponent))
    radius = vsqrt(times(plus(times(exponent, LN2), times(f, polynomial(f, LOG))), -2.0))
    quarter = ((other >> U64(29)) + U64(1)) >> U64(1)  # the nearest one
    t = number(other << U64(2)) * 2.0**-34  # what is left, of a turn
    square = times(t, t)
    sine, cosine = times(t, polynomial(square, SIN)), polynomial(square, COS)
    odd = (quarter & U64(1)) != U64(0)
    first, second = select(odd, sine, cosine), select(odd, cosine, sine)
    first = select(((quarter + U64(1)) & U64(2)) != U64(0), 0.0 - first, first)
    second = select((quarter & U64(2)) != U64(0), 0.0 - second, second)
    return times(radius, first), times(radius, second)
