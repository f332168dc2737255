"""The functions of rules on GPUs where everything in memory is a 16-bit float: `m` of such kernels.

The numbers in between are float32, and right to 1e-5: bfloat16 rounds to 4e-3, float16 to 5e-4. With the exact
functions arithmetic, not memory, bounded the time: 0.6 x torch for silu, 205 us for the way back through 16384 x 3072
of GELU, which memory allows in 70.
"""

from numba import types

from ..build import jit
from . import functions, ptx
from .by_type import by_type
from .functions import *  # noqa: F403 (all others are the same)
from .gpu import are_apart, are_far, polynomial, whole_part
from .libm import rare_fmod, rare_libm
from .simd import bitcast, convert, muladd, reduce_or, select, vabs, vfloor, vmin, vround
from .vector import Vector
from .vmath import HALF_PI_HI_F32, HALF_PI_MID_F32, INF, LN2, LOG2E, MAGIC_F32, NAN, copysign

F32, I32, U32 = types.float32, types.int32, types.uint32
PI, HALF_PI, ONE_OVER_PI = 3.1415927410125732, 1.5707963267948966, 0.3183098861837907
PI_HI, PI_MID = 2.0 * HALF_PI_HI_F32, 2.0 * HALF_PI_MID_F32
LARGE = 65536.0  # from here on angles are not reduced by two parts of pi

# Weighted minimax fits of ours, the highest power first; errors are those of the functions, relative.
# fmt: off
LOG1P = (  # log1p(x) / x, |x| < 1/4: 1.2e-6
    -0.18349182605743408, 0.21419693529605865, -0.24936018884181976, 0.33299410343170166, -0.500006377696991,
    1.0000011920928955,
)
SIN = (-0.00018541960162110627, 0.008314266800880432, -0.16665852069854736)  # (sin(r) / r - 1) / r^2, pi / 2: 1.1e-6
SIN_NEAR = (0.00816294178366661, -0.16663376986980438)  # the same up to pi / 4: 1.9e-6
COS_NEAR = (-0.0013651979388669133, 0.04166125878691673)  # (cos(r) - 1 + r^2 / 2) / r^4 up to pi / 4: 6.7e-8
SINH = (0.00020377406326588243, 0.008330211043357849, 0.166667178273201)  # (sinh(x) / x - 1) / x^2, |x| < 1: 2.6e-8
ASINH = (0.020136956125497818, -0.04270651564002037, 0.07484862208366394, -0.16666293144226074)  # |x| < 1/2: 2.9e-8
ATANH = (0.1572188436985016, 0.1994660198688507, 0.3333389163017273)  # the same of atanh, |x| < 1/4: 1.8e-8
ASIN = (0.06417360156774521, 0.0718766376376152, 0.16680306196212769)  # the same of asin, |x| < 1/2: 1.8e-6
ATAN = (  # of atan, |x| < 1: 5e-6
    -0.01395488902926445, 0.05876973271369934, -0.12251456826925278, 0.19618293642997742, -0.3330889940261841,
)
ERFC = (  # log2(erfc(a)), 0 <= a < 9.4: 9e-6
    2.063202497737393e-09, -1.4053118491119676e-07, 4.1884918573487084e-06, -7.256052776938304e-05,
    0.0008188245119526982, -0.006407272536307573, 0.03630710020661354, -0.15509186685085297, -0.9156242609024048,
    -1.6283718347549438, 1.2726949535135645e-05,
)
ERFINV = (  # erfinv(x) / x over -log2(1 - x^2), up to 11.2: 4.5e-6
    1.7327703716318865e-08, -7.301902087419876e-07, 1.0555111657595262e-05, -2.7492656954564154e-05,
    -0.00081274175317958, 0.005619952455163002, 0.16077619791030884, 0.8862308859825134,
)
COS = (2.3194070308818482e-05, -0.001385591458529234, 0.041663989424705505, -0.4999993145465851)  # of cosines: 5e-8
LOG2 = (0.4317570924758911, 0.576713502407074, 0.9617988467216492, 2.885390043258667)  # log2(m) / s: 2.4e-10
LGAMMA = (  # log Gamma(x) / ((x - 1) (x - 2)), 1 <= x < 3: 1.4e-6
    0.00032567145535722375, -0.005887465085834265, 0.0467233881354332, -0.21391470730304718, 0.6245342493057251,
    -1.2145016193389893, 1.603482723236084, -1.4789365530014038, 1.2153891324996948,
)
# I_0(x) and I_1(x) / x over x^2, |x| < 4: 1.3e-6 and 3e-7; times sqrt(x) e^-x over 1 / x beyond: 2.8e-6 and 3.1e-6
I0 = (
    9.139835555060927e-08, 6.390805083356099e-06, 0.00043684226693585515, 0.015616384334862232, 0.25000888109207153,
    0.9999986886978149,
)
I1 = (
    7.372661148252746e-09, 6.484206096502021e-07, 5.448053343570791e-05, 0.002603413537144661, 0.06250087171792984,
    0.5,
)
I0_FAR = (0.14694102108478546, 0.01898987777531147, 0.02722669020295143, 0.04996573552489281, 0.39894118905067444)
I1_FAR = (-0.19374679028987885, -0.02287209965288639, -0.046480827033519745, -0.14969484508037567, 0.3989435136318207)
# fmt: on


def _of_float32(name, float32):
    """`name(x)`: `float32` of vectors of that type, else the exact function."""
    exact = getattr(functions, name)

    def choose(x):
        return float32 if isinstance(x, Vector) and x.dtype == F32 else lambda x: exact(x)

    choose.__name__ = choose.__qualname__ = name
    return by_type(choose)


def _exp(x):
    return ptx.exp2_small(x * LOG2E)  # subnormal results are 0


exp = _of_float32("exp", _exp)


def _exp2(x):
    return ptx.exp2_small(x)


exp2 = _of_float32("exp2", _exp2)


def _sigmoid(x):
    return ptx.reciprocal(1.0 + ptx.exp2_small(x * -LOG2E))


sigmoid = _of_float32("sigmoid", _sigmoid)


def _tanh(x):
    # 1 - 2 / (exp(2x) + 1) cancels for small x, for which two terms of the series serve.
    far = muladd(ptx.reciprocal(ptx.exp2_small(x * (2.0 * LOG2E)) + 1.0), -2.0, 1.0)
    return select(vabs(x) < 0.1, x * muladd(x * x, -1.0 / 3.0, 1.0), far)


tanh = _of_float32("tanh", _tanh)


def _normal_cdf(x):
    # log2 of Phi(-a), a polynomial of a = |x| fitted on a < 6.5, of relative error 4e-6 (3e-5 from 4 on, where it is
    # below 3e-5; from 7 on it goes to 0 sooner).
    a = vabs(x)
    p = muladd(a, -1.763282284628076e-06, 6.034511898178607e-05)
    p = muladd(p, a, -0.0009221306536346674)
    p = muladd(p, a, 0.00848079752177)
    p = muladd(p, a, -0.05391654744744301)
    p = muladd(p, a, -0.4584965407848358)
    p = muladd(p, a, -1.1512424945831299)
    p = ptx.exp2_small(muladd(p, a, -0.9999956488609314))
    return select(x > 0.0, 1.0 - p, p)


normal_cdf = _of_float32("normal_cdf", _normal_cdf)


# ---- logarithms and powers -------------------------------------------------------------------------


@jit.inline
def _around_one(x):
    """log(1 + x)."""
    far = ptx.log2_normal(1.0 + x) * LN2
    return select(vabs(x) < 0.25, polynomial(x, LOG1P) * x, far)


def _log1p(x):
    return _around_one(x)


def _log1p_exp(x):
    return _around_one(ptx.exp2_small(x * LOG2E))


log1p, log1p_exp = _of_float32("log1p", _log1p), _of_float32("log1p_exp", _log1p_exp)


def _of_two(name, float32):
    """The same of two vectors."""
    exact = getattr(functions, name)

    def choose(x, y):
        vectors = isinstance(x, Vector) and isinstance(y, Vector) and x.dtype == F32 and y.dtype == F32
        return float32 if vectors else lambda x, y: exact(x, y)

    choose.__name__ = choose.__qualname__ = name
    return by_type(choose)


@jit.inline
def _log2_of(a):
    """log2 of normal numbers by its series: factors of it multiply the error of the instruction, 2^-22 near 1."""
    shifted = bitcast(a, I32) - 0x3F3504F3  # the bits of sqrt(1/2)
    m = bitcast((shifted & 0x007FFFFF) + 0x3F3504F3, F32)
    s = (m - 1.0) * ptx.reciprocal(m + 1.0)
    return muladd(s, polynomial(s * s, LOG2), convert(shifted >> 23, F32))


def _pow(x, y):
    a, half, negative = vabs(x), 0.5 * y, bitcast(x, I32) < 0
    if reduce_or(bitcast(a, U32) - 0x00800000 >= 0x7F000000):  # 0, infinite, NaN or less than normal
        tiny = a < 1.17549435e-38
        log = _log2_of(select(tiny, a * 16777216.0, a))
        log = select(tiny, log - 24.0, log)
        log = select(a == 0.0, -INF, select(vabs(a) < INF, log, a))
    else:
        log = _log2_of(a)
    power = ptx.exp2_small(y * log)
    if reduce_or(negative):
        power = select(negative & (half != vfloor(half)) & (y == vfloor(y)), -power, power)
        power = select(negative & (y != vfloor(y)) & (a > 0.0) & (a < INF), NAN, power)
    return select((x == 1.0) | (y == 0.0) | ((a == 1.0) & (vabs(y) == INF)), 1.0, power)


pow = _of_two("pow", _pow)

# ---- angles and hyperbolic functions ---------------------------------------------------------------


@jit.inline
def _turned(r, shifted):
    """sin(r) for |r| <= pi / 2, negative where the lowest bit of `shifted` is set."""
    z = r * r
    y = muladd(polynomial(z, SIN) * z, r, r)
    return bitcast(bitcast(y, I32) ^ (bitcast(shifted, I32) << 31), F32)


def _sin(x):
    if reduce_or(vabs(x) >= LARGE):
        return rare_libm("sin", x)
    shifted = muladd(x, ONE_OVER_PI, MAGIC_F32)
    near = shifted - MAGIC_F32
    return select(x == 0.0, x, _turned(muladd(near, -PI_MID, muladd(near, -PI_HI, x)), shifted))


def _cos(x):
    if reduce_or(vabs(x) >= LARGE):
        return rare_libm("cos", x)
    shifted = muladd(x, ONE_OVER_PI, -0.5) + MAGIC_F32
    near = (shifted - MAGIC_F32) + 0.5  # cos(near pi + r) = -sin(r), or sin(r)
    return _turned(muladd(near, PI_MID, muladd(near, PI_HI, -x)), shifted)


def _tan(x):
    if reduce_or(vabs(x) >= LARGE):
        return rare_libm("tan", x)
    shifted = muladd(x, 2.0 * ONE_OVER_PI, MAGIC_F32)
    near = shifted - MAGIC_F32
    r = muladd(near, -HALF_PI_MID_F32, muladd(near, -HALF_PI_HI_F32, x))
    z = r * r
    s = muladd(muladd(z, SIN_NEAR[0], SIN_NEAR[1]) * z, r, r)
    c = muladd(muladd(z, COS_NEAR[0], COS_NEAR[1]) * z, z, muladd(z, -0.5, 1.0))
    odd = (bitcast(shifted, I32) & 1) == 1
    return select(x == 0.0, x, select(odd, -c, s) * ptx.reciprocal(select(odd, s, c)))


sin, cos, tan = _of_float32("sin", _sin), _of_float32("cos", _cos), _of_float32("tan", _tan)


@jit.inline
def _odd(x, z, coefficients):
    """x + x^3 p(z) with z = x^2."""
    return muladd(polynomial(z, coefficients) * z, x, x)


def _sinh(x):
    a = vabs(x)
    half = ptx.exp2_small(muladd(a, LOG2E, -1.0))
    return select(a < 1.0, _odd(x, x * x, SINH), copysign(muladd(ptx.reciprocal(half), -0.25, half), x))


def _cosh(x):
    half = ptx.exp2_small(muladd(vabs(x), LOG2E, -1.0))
    return muladd(ptx.reciprocal(half), 0.25, half)


@jit.inline
def _area(x, a, s, z):
    """asinh(x) with z = x^2; a and s, of a^2 = s^2 + 1 or the other way round, have the sum e^asinh|x|."""
    half = select(a > 1e9, a, 0.5 * (a + s))
    return select(z < 0.25, _odd(x, z, ASINH), muladd(ptx.log2_normal(half), LN2, LN2))


def _asinh(x):
    a, z = vabs(x), x * x
    return copysign(_area(a, a, ptx.square_root(z + 1.0), z), x)


def _acosh(x):
    z = (x - 1.0) * (x + 1.0)
    s = ptx.square_root(z)
    return select(x < 1.0, NAN, _area(s, x, s, z))


def _atanh(x):
    a = vabs(x)
    far = ptx.log2_normal((1.0 + a) * ptx.reciprocal(1.0 - a)) * (0.5 * LN2)
    far = select(a > 1.0, NAN, copysign(far, x))
    return select(a < 0.25, _odd(x, x * x, ATANH), far)


def _atan(x):
    a = vabs(x)
    steep = a > 1.0
    r = select(steep, ptx.reciprocal(a), a)
    y = _odd(r, r * r, ATAN)
    return copysign(select(steep, HALF_PI - y, y), x)


@jit.inline
def _half_asin(x):
    """(whether |x| > 1/2, the arc sine of |x|, or there of the square root of (1 - |x|) / 2)."""
    a = vabs(x)
    outer = a > 0.5
    z = select(outer, muladd(a, -0.5, 0.5), a * a)
    return outer, _odd(select(outer, ptx.square_root(z), a), z, ASIN)


def _asin(x):
    outer, p = _half_asin(x)
    return copysign(select(outer, muladd(p, -2.0, HALF_PI), p), x)


def _acos(x):
    outer, p = _half_asin(x)
    p = copysign(select(outer, p + p, p), x)
    return select(outer, select(x < 0.0, PI + p, p), HALF_PI - p)


def _atan2(x, y):
    # The angle of the point (y, x).
    a, b = vabs(y), vabs(x)
    steep = b > a
    low, high = select(steep, a, b), select(steep, b, a)
    r = select(low == high, select(high == 0.0, low, 1.0), ptx.quotient(low, high))
    t = _odd(r, r * r, ATAN)
    t = select(steep, HALF_PI - t, t)
    return copysign(select(bitcast(y, I32) < 0, PI - t, t), x)


def _hypot(x, y):
    # Squares of what is scaled by powers of 2 are numbers.
    a, b = vabs(x), vabs(y)
    most = select(a > b, a, b)
    huge, tiny = most > 1e18, most < 1e-18
    scale = select(huge, 2.0**-70, select(tiny, 2.0**100, 1.0 + 0.0 * a))
    back = select(huge, 2.0**70, select(tiny, 2.0**-100, 1.0 + 0.0 * a))
    p, q = x * scale, y * scale
    root = ptx.square_root(muladd(p, p, q * q)) * back
    return select((a == INF) | (b == INF), INF, root)


cosh, asin, acos = _of_float32("cosh", _cosh), _of_float32("asin", _asin), _of_float32("acos", _acos)
atan2, hypot = _of_two("atan2", _atan2), _of_two("hypot", _hypot)
sinh, asinh, acosh = _of_float32("sinh", _sinh), _of_float32("asinh", _asinh), _of_float32("acosh", _acosh)
atanh, atan = _of_float32("atanh", _atanh), _of_float32("atan", _atan)

# ---- the gamma function and Bessel functions --------------------------------------------------------


@jit.inline
def _of_sine(x):
    """(sin(pi r) / r, pi r) of what x is more than the nearest whole number: r."""
    t = PI * (x - vround(x))
    z = t * t
    return muladd(polynomial(z, SIN) * z, PI, PI), t


def _lgamma(x):
    # Of y >= 1, by Stirling's series from 3 on; log Gamma(x) is that of x + 1 less log x, below 0 the reflection of it.
    below, small = x < 0.0, x < 1.0
    y = select(below, 1.0 - x, select(small, x + 1.0, x))
    near = (y - 1.0) * (y - 2.0) * polynomial(y, LGAMMA)
    inverse = ptx.reciprocal(y)
    tail = muladd(inverse * inverse, -0.002777777777777778, 0.08333333333333333) * inverse
    far = muladd(y - 0.5, muladd(ptx.log2_normal(y), LN2, -1.0), 0.4189385332046727 + tail)
    value = select(y < 3.0, near, far)
    share, _ = _of_sine(x)
    r = vabs(x - vround(x))
    factor = ptx.log2(select(below, r * share * (1.0 / PI), select(small, x, 1.0))) * -LN2
    value = factor + select(below, -value, value)
    return select((vabs(x) == INF) | (below & (r == 0.0)), INF, value + 0.0)  # not -0 for 1


def _digamma(x):
    # Of y + 6 by the asymptotic series, less six reciprocals, two with one denominator each; below 0 the reflection.
    below = x <= 0.0
    y = select(below, 1.0 - x, x)
    q, far = y * (y + 5.0), y + 6.0
    steps = ptx.reciprocal(q) + ptx.reciprocal(q + 4.0) + ptx.reciprocal(q + 6.0)
    inverse = ptx.reciprocal(far)
    tail = inverse * muladd(inverse, muladd(inverse * inverse, -0.008333333333333333, 0.08333333333333333), 0.5)
    value = muladd(ptx.log2_normal(far), LN2, -tail) - select(q < INF, muladd(y, 2.0, 5.0) * steps, 0.0)
    if reduce_or(below):
        share, t = _of_sine(x)
        z = t * t
        cosine = muladd(polynomial(z, COS), z, 1.0)
        r = x - vround(x)
        value = select(below, value - PI * cosine * ptx.reciprocal(r * share), value)
        value = select(below & (r == 0.0), NAN, value)
        value = select(x == 0.0, copysign(INF + 0.0 * x, -x), value)
    return value


@jit.inline
def _bessel(a, near, far, scaled):
    """(I, or I e^-a where that is `scaled`, of a < 4 by the one polynomial, beyond by the other)."""
    close, root = polynomial(a * a, near), ptx.reciprocal(ptx.square_root(a))
    wide = polynomial(root * root, far) * root
    if scaled:
        return close * ptx.exp2_small(a * -LOG2E), wide
    e = ptx.exp2_small(a * (0.5 * LOG2E))
    return close, select(a > 200.0, INF, wide * e * e)


def _i0(x):
    a = vabs(x)
    near, far = _bessel(a, I0, I0_FAR, False)
    return select(a < 4.0, near, far)


def _i0e(x):
    a = vabs(x)
    near, far = _bessel(a, I0, I0_FAR, True)
    return select(a < 4.0, near, far)


def _i1(x):
    a = vabs(x)
    near, far = _bessel(a, I1, I1_FAR, False)
    return select(a < 4.0, near * x, copysign(far, x))


def _i1e(x):
    a = vabs(x)
    near, far = _bessel(a, I1, I1_FAR, True)
    return select(a < 4.0, near * x, copysign(far, x))


lgamma, digamma = _of_float32("lgamma", _lgamma), _of_float32("digamma", _digamma)
i0, i0e, i1, i1e = (_of_float32(name, f) for name, f in (("i0", _i0), ("i0e", _i0e), ("i1", _i1), ("i1e", _i1e)))

# ---- the error function and its inverse ------------------------------------------------------------


def _erfc(x):
    p = ptx.exp2_small(polynomial(vmin(vabs(x), 9.4), ERFC))
    return select(x < 0.0, 2.0 - p, p)


def _erfinv(x):
    return polynomial(-ptx.log2_normal(muladd(-x, x, 1.0)), ERFINV) * x


erfc, erfinv = _of_float32("erfc", _erfc), _of_float32("erfinv", _erfinv)

# ---- remainders ------------------------------------------------------------------------------------


def _fmod(x, y):
    a, b = vabs(x), vabs(y)
    if are_far(a, b):
        return rare_fmod(x, y)
    _, rest = whole_part(a, b)
    return copysign(rest, x)


def _remainder(x, y):
    a, b = vabs(x), vabs(y)
    if are_far(a, b):
        rest = rare_fmod(x, y)
    else:
        _, rest = whole_part(a, b)
        rest = copysign(rest, x)
    return select((rest != 0.0) & ((x < 0.0) ^ (y < 0.0)), rest + y, rest)


def _floor_divide(x, y):
    a, b = vabs(x), vabs(y)
    apart = are_apart(x, y)
    if are_far(a, b):
        rest = rare_fmod(a, b)
        n = select(b == 0.0, ptx.quotient(a, b), vround(ptx.quotient(a - rest, b)))
    else:
        n, rest = whole_part(a, b)
    n = select(apart & (rest != 0.0), n + 1.0, n)
    return select(apart, -n, n)


fmod, remainder = _of_two("fmod", _fmod), _of_two("remainder", _remainder)
floor_divide = _of_two("floor_divide", _floor_divide)
