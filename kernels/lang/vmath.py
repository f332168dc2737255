"""Elementary functions on vectors: polynomials for float32, and for float64 where it pays.

Rules of elementwise ops call these as `m.exp`, `m.tanh`, ...; `kernels/scalar_math.py` has the same
names for plain Python. Ranges are reduced after Cody and Waite; the polynomials are weighted
least-squares fits at Chebyshev nodes to mpmath values. `tests/ops/test_vmath.py` measures each error
(float32: at most 4 ulp). float64 functions other than `exp` call libm, lane by lane.
"""

from numba import types

from ..build import isa, jit, rates
from . import gpu, ptx
from .avx512 import fills_registers, rcp14, scalef
from .by_type import by_type
from .division import floor_divide, fmod, left_shift, remainder, right_shift, trunc_divide  # noqa: F401
from .libm import libm, rare_libm
from .libm import pow as libm_pow
from .simd import (
    Vector,
    bitcast,
    convert,
    muladd,
    reduce_or,
    select,
    vabs,
    vceil,
    vfloor,
    vmax,
    vmin,
    vround,
    vsqrt,
    vtrunc,
)

F32, F64, I32, I64 = types.float32, types.float64, types.int32, types.int64
INF, NAN = float("inf"), float("nan")
LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
# ln 2 in two parts: the first has few bits, so that k * part is exact
LOG2E_HI_F32, LOG2E_LO_F32 = 1.4426950216293335, 1.925963033500e-08
LN2_HI_F32, LN2_LO_F32 = 0.693359375, -2.12194440e-4
# pi/2 as the sum of three float32
HALF_PI_HI_F32, HALF_PI_MID_F32, HALF_PI_LO_F32 = 1.570796251296997, 7.549790126404332e-08, -1.7151245100058819e-15
LN2_HI_F64, LN2_LO_F64 = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# 1.5 * 2^23 and 1.5 * 2^52: adding one rounds to an integer that the low bits of the sum hold
MAGIC_F32, MAGIC_F32_BITS = 12582912.0, 0x4B400000
MAGIC_F64, MAGIC_F64_BITS = 6755399441055744.0, 0x4338000000000000


def _integer_pow(x, y):
    # By squaring. Of negative powers, those of 1 and -1 are not 0.
    left, result, square = select(y < 0, 0, y), select(x == x, 1, x), x
    while reduce_or(left) != 0:
        result = select((left & 1) != 0, result * square, result)
        square = square * square
        left = left >> 1
    sign = select((y & 1) != 0, x, x * x)
    return select(y < 0, select((x == 1) | (x + 1 == 0), sign, 0), result)


@by_type
def pow(x, y):
    """x ** y on every lane; integers modulo 2^bits."""
    if isinstance(x, Vector) and x == y:
        return (lambda x, y: libm_pow(x, y)) if x.dtype in (F32, F64) else _integer_pow


def function_of(name, float32=None, float64=None):
    """Make `name(x)`: one implementation per type, the C library where there is none."""

    def choose(x):
        vector = isinstance(x, Vector)
        if vector and x.dtype == F32 and float32 is not None:
            return float32
        if vector and x.dtype == F64 and float64 is not None:
            return float64
        if (x.dtype if vector else x) in (F32, F64):
            return lambda x: libm(name, x)

    choose.__name__ = choose.__qualname__ = name
    return by_type(choose)


@by_type
def copysign(x, y):
    """|x| with the sign of y, which zeros have as well."""

    def float32(x, y):
        return bitcast((bitcast(x, I32) & 0x7FFFFFFF) | (bitcast(y, I32) & -0x80000000), F32)

    def float64(x, y):
        return bitcast((bitcast(x, I64) & 0x7FFFFFFFFFFFFFFF) | (bitcast(y, I64) & -0x8000000000000000), F64)

    return float32 if y.dtype == F32 else float64


@by_type
def negative(x):
    """Whether the sign bit is set; of integers, whether they are below 0."""
    if x.dtype == types.boolean:
        return lambda x: x != x
    if x.dtype not in (F32, F64):
        return lambda x: x < 0
    if x.dtype == F32:
        return lambda x: bitcast(x, I32) < 0
    return lambda x: bitcast(x, I64) < 0


# ---- exp and its relatives ---------------------------------------------------------------------


@by_type
def _scaled(p, k, shifted):
    """p * 2^k; the low bits of `shifted` hold k."""
    if fills_registers(p):
        return lambda p, k, shifted: scalef(p, k)  # one instruction instead of nine

    # In two factors: k reaches 128 and -150 (1024 and -1075), beyond what one exponent field holds.
    def float32(p, k, shifted):
        n = bitcast(shifted, I32) - MAGIC_F32_BITS
        half = n >> 1
        p = p * bitcast((half + 127) << 23, F32)
        return p * bitcast((n - half + 127) << 23, F32)

    def float64(p, k, shifted):
        n = bitcast(shifted, I64) - MAGIC_F64_BITS
        half = n >> 1
        p = p * bitcast((half + 1023) << 52, F64)
        return p * bitcast((n - half + 1023) << 52, F64)

    return float32 if p.dtype == F32 else float64


@by_type
def _quotient(p, q):
    """p / q for q between 2^-100 and 2^100, within 2 ulp."""
    if isa.is_gpu() and p.dtype == F32:
        return lambda p, q: p * ptx.reciprocal(q)
    if not (fills_registers(p) and p.dtype == F32 and rates.choices().reciprocals):
        return lambda p, q: p / q

    def by_reciprocal(p, q):
        r = rcp14(q)
        return p * muladd(r, muladd(-q, r, 1.0), r)

    return by_reciprocal


@by_type
def divide(p, q):
    """p / q, of float32 on a GPU within 2 ulp for q between 2^-126 and 2^126, beyond which the quotient is 0.

    Two instructions; `div.full`, which scales large q first, has six.
    """
    vectors = [t for t in (p, q) if isinstance(t, Vector)]
    if not isa.is_gpu() or not vectors or vectors[0].dtype != F32:
        return lambda p, q: p / q
    if isinstance(q, Vector):
        return lambda p, q: p * ptx.reciprocal(q)
    return lambda p, q: p / q


@jit.inline
def _expm1_poly(r):
    """exp(r) - 1 for |r| <= ln(2) / 2."""
    p = muladd(r, 0.001389383228, 0.008363130306)
    p = muladd(p, r, 0.04166694278)
    p = muladd(p, r, 0.1666657742)
    p = muladd(p, r, 0.4999999942)
    return muladd(p, r * r, r)


@jit.inline
def _near_zero(x):
    """(exp(r) - 1, k, k + MAGIC) for x = k ln 2 + r: r is small, so that a polynomial serves."""
    shifted = muladd(x, LOG2E, MAGIC_F32)
    k = shifted - MAGIC_F32
    r = muladd(k, -LN2_LO_F32, muladd(k, -LN2_HI_F32, x))
    return _expm1_poly(r), k, shifted


def _exp_f32_gpu(x):
    # 2^t for x log2(e) rounded, times 2^rest, rest being what the rounding left: two terms of its series serve.
    x = vmin(vmax(x, -104.0), 89.0)
    t = x * LOG2E_HI_F32
    return ptx.exp2(t) * muladd(_exp2_rest(x, t), LN2, 1.0)


@jit.inline
def _exp2_rest(x, t):
    """x log2(e) - t."""
    return muladd(x, LOG2E_LO_F32, muladd(x, LOG2E_HI_F32, -t))


def _exp_f32(x):
    # Outside of this range the result is 0 or infinity; NaN compares false and passes through.
    p, k, shifted = _near_zero(select(x > 89.0, 89.0, select(x < -104.0, -104.0, x)))
    return _scaled(p + 1.0, k, shifted)


def _exp_f64(x):
    return exp_of_sum(select(x > 710.0, 710.0, select(x < -746.0, -746.0, x)), 0.0)


@jit.inline
def exp_of_sum(x, low):
    """exp(x + low) of float64 numbers between -800 and 800, `low` being below their last digits."""
    shifted = muladd(x, LOG2E, MAGIC_F64)
    k = shifted - MAGIC_F64
    near = muladd(k, -LN2_HI_F64, x)
    low = muladd(k, -LN2_LO_F64, low)
    r = near + low
    p = muladd(r, 2.090785774547553e-09, 2.5095653013083496e-08)  # (exp(r) - 1 - r) / r^2, to 1.4e-18 of exp(r)
    p = muladd(p, r, 2.7557291129486964e-07)
    p = muladd(p, r, 2.755727988963693e-06)
    p = muladd(p, r, 2.4801587310986308e-05)
    p = muladd(p, r, 0.00019841269854427486)
    p = muladd(p, r, 0.001388888888888804)
    p = muladd(p, r, 0.008333333333332145)
    p = muladd(p, r, 0.041666666666666664)
    p = muladd(p, r, 0.16666666666666666)
    p = muladd(p, r, 0.5)
    p = (near + muladd(p, r * r, low)) + 1.0
    return _scaled(p, k, shifted)


exp = function_of("exp", _exp_f32_gpu if isa.is_gpu() else _exp_f32, _exp_f64)


def _exp2_f32(x):
    x = select(x > 129.0, 129.0, select(x < -151.0, -151.0, x))
    shifted = x + MAGIC_F32
    k = shifted - MAGIC_F32
    return _scaled(_expm1_poly((x - k) * LN2) + 1.0, k, shifted)


exp2 = function_of("exp2", _exp2_f32)


def _expm1_f32(x):
    # 2^k p + (2^k - 1), p = exp(r) - 1: k = 0 is p itself. By halves, as 2^128 is infinite; from -20 on it is -1.
    p, _, shifted = _near_zero(select(x > 89.0, 89.0, select(x < -20.0, -20.0, x)))
    half = bitcast((bitcast(shifted, I32) << 23) + 0x3F000000, F32)  # 2^(k - 1): the low bits of `shifted` hold k
    return 2.0 * muladd(p, half, half - 0.5)


expm1 = function_of("expm1", _expm1_f32)


@by_type
def expm1_below(x, by):
    """exp(x) - 1 where `by` is below 0, x where it is 0 or NaN, of which x makes the same; elsewhere either of them.
    Vectors with nothing below 0 cost little.
    """
    if not isinstance(x, Vector):
        return lambda x, by: expm1(x)

    def vector(x, by):
        if reduce_or(by < 0.0):
            return expm1(x)
        return x

    return vector


@by_type
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    if not isinstance(x, Vector):
        return lambda x: 1.0 / (1.0 + exp(-x))

    def vector(x):
        t = exp(-vabs(x))  # at most 1: the result is right where exp(-x) would be infinite
        return _quotient(select(x < 0.0, t, 1.0), 1.0 + t)

    def gpu(x):  # subnormal results are 0
        a = vmin(vabs(x), 104.0)
        t = a * -LOG2E_HI_F32
        t = ptx.exp2_small(t) * muladd(_exp2_rest(-a, t), LN2, 1.0)
        return select(x < 0.0, t, 1.0) * ptx.reciprocal(1.0 + t)

    return gpu if isa.is_gpu() and x.dtype == F32 else vector


def _tanh_f32(x):
    # e / (e + 2) for e = exp(-2|x|) - 1, which is as right for small x as for large ones; beyond 10 it is 1.
    a = vabs(x)
    p, _, shifted = _near_zero(select(a > 10.0, -20.0, -2.0 * a))
    power = bitcast((bitcast(shifted, I32) << 23) + 0x3F800000, F32)  # 2^k: the low bits of `shifted` hold k
    e = muladd(p, power, power - 1.0)
    return copysign(_quotient(e, e + 2.0), x)


# (tanh(x) - x) / x^3 on |x| < 0.6, of x^2: relative error of tanh 7e-8
TANH_0, TANH_1, TANH_2, TANH_3 = -0.33332592248916626, 0.1331261545419693, -0.0521811880171299, 0.015563981607556343


def _tanh_f32_gpu(x):
    # 1 - 2 / (exp(2a) + 1) is right where the result is not small; x + x^3 p(x^2) below.
    a, z = vabs(x), x * x
    far = muladd(ptx.reciprocal(ptx.exp2_small(a * (2.0 * LOG2E)) + 1.0), -2.0, 1.0)
    p = muladd(z, TANH_3, TANH_2)
    p = muladd(muladd(p, z, TANH_1), z, TANH_0)
    return copysign(select(a < 0.6, muladd(p * z, a, a), far), x)  # of -0, too


tanh = function_of("tanh", _tanh_f32_gpu if isa.is_gpu() else _tanh_f32)


# ---- log ---------------------------------------------------------------------------------------


@jit.inline
def _log_parts(x):
    """(k, log m - (m - 1), m - 1) for normal x = m 2^k with m in [sqrt(1/2), sqrt(2))."""
    shifted = bitcast(x, I32) - 0x3F3504F3  # the bits of sqrt(1/2)
    k = convert(shifted >> 23, F32)
    m = bitcast((shifted & 0x007FFFFF) + 0x3F3504F3, F32)
    s = _quotient(m - 1.0, m + 1.0)
    z = s * s
    p = muladd(z, 0.1166821646, 0.142753019)
    p = muladd(p, z, 0.2000006186)
    p = muladd(p, z, 0.3333333328)
    # log m = 2 atanh s = f - s (f - 2 z p) with f = m - 1: keeps the leading term exact
    f = m - 1.0
    return k, -(s * (f - 2.0 * z * p)), f


@jit.inline
def _log_sum(k, rest, f):
    return muladd(k, LN2_HI_F32, muladd(k, LN2_LO_F32, rest) + f)


@jit.inline
def _log2_sum(k, rest, f):
    return muladd(rest + f, LOG2E, k)


@jit.inline
def _log10_sum(k, rest, f):
    return muladd(k, 0.301025390625, muladd(k, 4.605038981195214e-06, (rest + f) * 0.4342944819032518))


def _logarithm(name, total):
    """`name(x)` of float32 by its parts. Vectors with a number that is not normal, or not positive, go another way:
    what those take is a third of all instructions.
    """

    def float32(x):
        if not reduce_or(bitcast(x, types.uint32) - 0x00800000 >= 0x7F000000):
            k, rest, f = _log_parts(x)
            return total(k, rest, f)
        tiny = x < 1.17549435e-38
        k, rest, f = _log_parts(select(tiny, x * 33554432.0, x))
        y = total(k - select(tiny, 25.0 + 0.0 * k, 0.0 * k), rest, f)
        y = select(x == INF, INF, y)
        y = select(x == 0.0, -INF, y)
        return select((x < 0.0) | (x != x), NAN, y)

    return function_of(name, float32)


log, log2, log10 = _logarithm("log", _log_sum), _logarithm("log2", _log2_sum), _logarithm("log10", _log10_sum)


def _log1p_f32(x):
    # log(u) of the rounded u = 1 + x, times the share of x that the rounding kept (Kahan)
    u = 1.0 + x
    d = u - 1.0
    y = log(u) * (x / select(d == 0.0, 1.0, d))
    return select(d == 0.0, x, select(u == INF, INF, y))


def _log1p_f32_gpu(x):
    # The instruction knows the logarithms of 0, infinity and what is below 0.
    u = 1.0 + x
    return select((u > 0.0) & (u < INF), copysign(gpu.log1p(x), x), ptx.log2_normal(u))


log1p = function_of("log1p", _log1p_f32_gpu if isa.is_gpu() else _log1p_f32)


@by_type
def log1p_exp(x):
    """log(1 + exp(x)) for x <= 0; of float32 on a GPU right to 2e-7, in five instructions."""
    if isa.is_gpu() and isinstance(x, Vector) and x.dtype == F32:
        return lambda x: ptx.log2(1.0 + ptx.exp2(x * LOG2E)) * LN2
    return lambda x: log1p(exp(x))


# ---- sine and cosine ---------------------------------------------------------------------------


@jit.inline
def _reduce_pi(x):
    """x = k pi/2 + r with |r| <= pi/4, for |x| < 2^27; k is right but for multiples of 2^22.

    pi/2 in three float32 parts is enough below 2^16, as the first product is exact where x is near to it; beyond, two
    float64 parts. (In float64 everywhere, an H200 took 963 us for the sines of 256 Mi elements; memory allows 510.)
    """
    if reduce_or(vabs(x) >= 65536.0):
        wide = convert(x, F64)
        turns = vround(wide * 0.6366197723675814)
        k = convert(turns, I32)
        r = convert(muladd(turns, -6.123233995736766e-17, muladd(turns, -1.5707963267948966, wide)), F32)
    else:
        shifted = muladd(x, 0.6366197723675814, MAGIC_F32)
        near = shifted - MAGIC_F32
        k = bitcast(shifted, I32)
        r = muladd(near, -HALF_PI_MID_F32, muladd(near, -HALF_PI_HI_F32, x))
        r = muladd(near, -HALF_PI_LO_F32, r)
    return k, r


@jit.inline
def _sin_poly(r):
    z = r * r
    p = muladd(z, -0.0001958600976, 0.008332738605)
    return muladd(muladd(p, z, -0.166666646) * z, r, r)


@jit.inline
def _cos_poly(r):
    z = r * r
    p = muladd(z, 2.454626658e-05, -0.001388829465)
    return muladd(muladd(p, z, 0.04166666461), z * z, muladd(z, -0.5, 1.0))


def _sin_f32(x):
    if reduce_or(vabs(x) >= 134217728.0):
        return rare_libm("sin", x)
    k, r = _reduce_pi(x)
    y = select((k & 1) == 1, _cos_poly(r), _sin_poly(r))
    return select((k & 2) == 2, -y, y)


def _cos_f32(x):
    if reduce_or(vabs(x) >= 134217728.0):
        return rare_libm("cos", x)
    k, r = _reduce_pi(x)
    y = select((k & 1) == 1, _sin_poly(r), _cos_poly(r))
    return select(((k + 1) & 2) == 2, -y, y)


_sin_of_any = jit.inline(_sin_f32)


def _sin_f32_gpu(x):
    return _sin_of_any(x) if gpu.are_large(x) else gpu.sin(x)


_cos_of_any = jit.inline(_cos_f32)


def _cos_f32_gpu(x):
    return _cos_of_any(x) if gpu.are_large(x) else gpu.cos(x)


sin = function_of("sin", _sin_f32_gpu if isa.is_gpu() else _sin_f32)
cos = function_of("cos", _cos_f32_gpu if isa.is_gpu() else _cos_f32)


def _tan_f32(x):
    if reduce_or(vabs(x) >= 134217728.0):
        return rare_libm("tan", x)
    k, r = _reduce_pi(x)
    s, c = _sin_poly(r), _cos_poly(r)
    odd = (k & 1) == 1
    return select(odd, -c, s) / select(odd, s, c)


_tan_of_any = jit.inline(_tan_f32)


def _tan_f32_gpu(x):
    return _tan_of_any(x) if gpu.are_large(x) else gpu.tan(x)


tan = function_of("tan", _tan_f32_gpu if isa.is_gpu() else _tan_f32)


# ---- error function ----------------------------------------------------------------------------


def _erf_f32(x):
    a = vabs(x)
    z = x * x
    p = muladd(z, 7.847259136e-05, -0.0008008189326)
    p = muladd(p, z, 0.00518809889)
    p = muladd(p, z, -0.0268536911)
    p = muladd(p, z, 0.1128358225)
    p = muladd(p, z, -0.3761262557)
    small = muladd(p, z, 1.128379166) * x
    # erfc(a) = exp(-q(a)) on [1, 4); beyond, erf is 1 in float32
    t = select(a > 4.0, 4.0, a)
    q = muladd(t, -1.614061611e-06, 4.559062259e-05)
    q = muladd(q, t, -0.0005927695391)
    q = muladd(q, t, 0.004740222348)
    q = muladd(q, t, -0.02636471738)
    q = muladd(q, t, 0.1099782452)
    q = muladd(q, t, 0.6319370936)
    q = muladd(q, t, 1.130166676)
    q = muladd(q, t, -0.000303212987)
    large = 1.0 - exp(-q)
    return select(a < 1.0, small, select(x < 0.0, -large, large))


erf = function_of("erf", _erf_f32)
erfc = function_of("erfc")


def _normal_cdf_f32(x):
    # x R(x^2) with a rational R fitted to (Phi(x) - 1/2) / x on |x| < 5.54, where Phi is 0 or 1 in float32
    t = vmin(vmax(x, -5.54), 5.54)
    z = t * t
    p = muladd(z, 2.26507351e-08, 6.29500517e-06)
    p = muladd(p, z, 0.000166412207)
    p = muladd(p, z, 0.00466233525)
    p = muladd(p, z, 0.03365886)
    p = muladd(p, z, 0.398942273)
    q = muladd(z, 1.19036812e-06, 7.26563367e-05)
    q = muladd(q, z, 0.00187111774)
    q = muladd(q, z, 0.0285269474)
    q = muladd(q, z, 0.251036621)
    q = muladd(q, z, 1.0)
    y = muladd(t, _quotient(p, q), 0.5)
    return select(x > 5.54, 1.0, select(x < -5.54, 0.0, y))


def _normal_cdf_f32_gpu(x):
    # 2^p for Phi(-|x|), p of |x| fitted on |x| < 7, beyond which it goes to -inf: right to 3e-8, and to 4e-6 of itself.
    # The quotient above takes 37 registers, so that a fourth of a multiprocessor's threads have no room.
    a = vabs(x)
    p = muladd(a, -1.8004761570544758e-10, 8.506626514304116e-09)
    p = muladd(p, a, -1.8072857699280576e-07)
    p = muladd(p, a, 2.2755127702112077e-06)
    p = muladd(p, a, -1.87133664439898e-05)
    p = muladd(p, a, 0.00010233268403680995)
    p = muladd(p, a, -0.00033232991700060666)
    p = muladd(p, a, 6.237762863747776e-05)
    p = muladd(p, a, 0.006908929441124201)
    p = muladd(p, a, -0.05243385210633278)
    p = muladd(p, a, -0.459218829870224)
    p = muladd(p, a, -1.1511048078536987)
    p = ptx.exp2_small(muladd(p, a, -1.0))
    return select(x > 0.0, 1.0 - p, p)


def _normal_cdf_f64(x):
    return 0.5 + 0.5 * erf(x * 0.7071067811865476)


normal_cdf = function_of("normal_cdf", _normal_cdf_f32_gpu if isa.is_gpu() else _normal_cdf_f32, _normal_cdf_f64)


# ---- names that rules use for the plain operations -----------------------------------------------


abs, sqrt, floor, ceil, trunc, round = vabs, vsqrt, vfloor, vceil, vtrunc, vround
maximum, minimum, where = vmax, vmin, select
