"""Hyperbolic and inverse functions on vectors: by exp and log, and by polynomials of Cephes (S. Moshier) for float32.

float64 calls libm, lane by lane. Errors are measured by `tests/ops/test_vmath.py` (float32: at most 5 ulp).
"""

from ..build import isa, jit
from . import gpu, ptx
from .by_type import by_type
from .libm import atan2 as libm_atan2
from .libm import hypot as libm_hypot
from .simd import convert, muladd, select, vabs, vsqrt
from .vmath import F32, F64, INF, LN2, NAN, _quotient, copysign, exp, expm1, function_of, log1p, negative

# ---- hyperbolic functions ----------------------------------------------------------------------


def _sinh_f32(x):
    # 2 sinh(x / 2) cosh(x / 2) from e = exp(|x| / 2) - 1, which does not overflow before the result does
    e = expm1(0.5 * vabs(x))
    t = e + 1.0
    r = 1.0 / t
    return copysign(0.5 * select(t == INF, t, muladd(e, r, e)) * (t + r), x)


def _cosh_f32(x):
    # 2 cosh(x / 2)^2 - 1
    t = exp(0.5 * vabs(x))
    c = 0.5 * (t + 1.0 / t)
    return muladd(c + c, c, -1.0)


sinh = function_of("sinh", _sinh_f32)
cosh = function_of("cosh", _cosh_f32)


@by_type
def _root(x):
    """The square root of numbers that are 0 or not small, on a GPU within 1 ulp: one instruction, not twelve."""
    if isa.is_gpu() and x.dtype == F32:
        return lambda x: ptx.square_root(x)
    return lambda x: vsqrt(x)


def _asinh_f32(x):
    # log(a + sqrt(a^2 + 1)) by log1p; beyond 1e9, log(2 a)
    a = vabs(x)
    huge = a > 1e9
    b = select(huge, 1.0, a)
    b2 = b * b
    y = log1p(select(huge, a, b + _quotient(b2, 1.0 + _root(b2 + 1.0))))
    return copysign(select(huge, y + LN2, y), x)


def _acosh_f32(x):
    huge = x > 1e9
    t = select(huge, 1.0, x - 1.0)
    y = log1p(select(huge, x, t + _root(t * (t + 2.0))))
    return select(x < 1.0, NAN, select(huge, y + LN2, y))


def _atanh_f32(x):
    a = vabs(x)
    y = 0.5 * log1p(_quotient(2.0 * a, 1.0 - a))
    return copysign(select(a > 1.0, NAN, y), x)


# On a GPU by a logarithm that has no ends of its own: the comparisons here serve for NaN and infinity, too.


def _asinh_f32_gpu(x):
    a = vabs(x)
    huge, z = a > 1e9, a * a
    y = gpu.log1p(select(huge, a, muladd(z, ptx.reciprocal(1.0 + ptx.square_root(z + 1.0)), a)))
    return copysign(select(a < INF, select(huge, y + LN2, y), a), x)


def _acosh_f32_gpu(x):
    huge, t = x > 1e9, x - 1.0
    y = gpu.log1p(select(huge, x, t + ptx.square_root(t * (t + 2.0))))
    return select((x >= 1.0) & (x < INF), select(huge, y + LN2, y), ptx.log2_normal(t))


def _atanh_f32_gpu(x):
    a = vabs(x)
    t = 2.0 * a * ptx.reciprocal(1.0 - a)  # infinite at 1, negative beyond
    return copysign(select(a < 1.0, 0.5 * gpu.log1p(t), ptx.log2_normal(t)), x)


asinh = function_of("asinh", _asinh_f32_gpu if isa.is_gpu() else _asinh_f32)
acosh = function_of("acosh", _acosh_f32_gpu if isa.is_gpu() else _acosh_f32)
atanh = function_of("atanh", _atanh_f32_gpu if isa.is_gpu() else _atanh_f32)


# ---- angles ------------------------------------------------------------------------------------


@jit.inline
def _atan_poly(x):
    """atan(x) for |x| <= tan(pi / 8)."""
    z = x * x
    p = muladd(z, 0.0805374449538, -0.138776856032)
    p = muladd(p, z, 0.199777106478)
    p = muladd(p, z, -0.333329491539)
    return muladd(p * z, x, x)


def _atan_f32(x):
    a = vabs(x)
    high, mid = a > 2.414213562373095, a > 0.4142135623730950
    r = select(high, -1.0, select(mid, a - 1.0, a)) / select(high, a, select(mid, a + 1.0, 1.0))
    start = select(high, 1.5707963267948966, select(mid, 0.7853981633974483, 0.0 * r))
    return copysign(start + _atan_poly(r), x)


atan = function_of("atan", _atan_f32)


def _atan2_f32(y, x):
    # of the smaller of |x| and |y| by the larger one: at most 1, and one range is left
    a, b = vabs(x), vabs(y)
    steep = b > a
    low, high = select(steep, a, b), select(steep, b, a)
    low, high = select(high == INF, select(low == INF, 1.0, 0.0 * low), low), select(high == INF, 1.0, high)
    high = select(high == 0.0, 1.0, high)
    mid = low > high * 0.4142135623730950
    r = select(mid, low - high, low) / select(mid, low + high, high)
    t = _atan_poly(r) + select(mid, 0.7853981633974483, 0.0 * r)
    t = select(steep, 1.5707963267948966 - t, t)
    t = select(negative(x), 3.141592653589793 - t, t)
    return select((x != x) | (y != y), NAN, copysign(t, y))


@by_type
def atan2(y, x):
    """The angle of the point (x, y)."""
    return _atan2_f32 if x.dtype == F32 else (lambda y, x: libm_atan2(y, x))


@by_type
def hypot(x, y):
    """sqrt(x^2 + y^2) that does not overflow on the way; infinite where x or y is."""

    def float32(x, y):
        a, b = convert(x, F64), convert(y, F64)
        d = convert(vsqrt(a * a + b * b), F32)
        return select((vabs(x) == INF) | (vabs(y) == INF), INF, d)

    return float32 if x.dtype == F32 else (lambda x, y: libm_hypot(x, y))


@jit.inline
def _asin_poly(z, w):
    """asin(w) for z = w^2 <= 1/4."""
    p = muladd(z, 0.042163199048, 0.024181311049)
    p = muladd(p, z, 0.045470025998)
    p = muladd(p, z, 0.074953002686)
    p = muladd(p, z, 0.16666752422)
    return muladd(p * z, w, w)


def _asin_f32(x):
    a = vabs(x)
    outer = a > 0.5
    z = select(outer, 0.5 * (1.0 - a), a * a)
    p = _asin_poly(z, select(outer, vsqrt(z), a))
    return copysign(select(outer, 1.5707963267948966 - (p + p), p), x)


def _acos_f32(x):
    a = vabs(x)
    outer = a > 0.5
    z = select(outer, 0.5 * (1.0 - a), a * a)
    p = _asin_poly(z, select(outer, vsqrt(z), x))
    t = p + p
    return select(outer, select(x < 0.0, 3.141592653589793 - t, t), 1.5707963267948966 - p)


asin = function_of("asin", _asin_f32)
acos = function_of("acos", _acos_f32)
