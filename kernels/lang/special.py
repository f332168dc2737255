"""Special functions on vectors, in float64: of float32 they are computed in float64 and rounded once.

Series, recurrences and asymptotic expansions (NIST Digital Library of Mathematical Functions, dlmf.nist.gov), which
need no tables; loops end where every lane is done. `tests/ops/test_special.py` compares with SciPy.
"""

from ..build import isa, jit
from . import gpu, ptx
from .by_type import by_type
from .libm import libm
from .simd import convert, muladd, reduce_or, select, vabs, vfloor, vround, vsqrt
from .vmath import F32, F64, INF, NAN, copysign, erf, erfc, exp, log, tan
from .wide import (  # noqa: F401
    erfcx_wide,
    i0e_wide,
    i1e_wide,
    j0,
    j1,
    lgamma,
    lgamma_wide,
    log_wide,
    quotient,
    tangent_wide,
    y0,
    y1,
)  # fmt: skip

PI = 3.141592653589793
EPSILON = 1.1102230246251565e-16
TERMS = 20000  # at most, of a series: for incomplete gamma functions of numbers up to some 1e6


def wide(float64, name, count=1, float32=None):
    """`float64` for vectors of both types, unless there is another function for float32."""

    function = jit.inline(float64)

    def one(x):
        if x.dtype == F64:
            return lambda x: function(x)
        return float32 or (lambda x: convert(function(convert(x, F64)), F32))

    def two(x, y):
        if x.dtype == F64:
            return lambda x, y: function(x, y)
        return float32 or (lambda x, y: convert(function(convert(x, F64), convert(y, F64)), F32))

    choose = one if count == 1 else two
    choose.__name__ = choose.__qualname__ = name
    return by_type(choose)


# ---- relatives of the gamma function -----------------------------------------------------------


@jit.inline
def _digamma_series(z):
    """log(y) - 1 / (2 y) - digamma(y) of large y, whose square is 1 / z (DLMF 5.11.2)."""
    p = muladd(z, 0.08333333333333333, -0.021092796092796094)
    p = muladd(p, z, 0.007575757575757576)
    p = muladd(p, z, -0.004166666666666667)
    p = muladd(p, z, 0.003968253968253968)
    p = muladd(p, z, -0.008333333333333333)
    return muladd(p, z, 0.08333333333333333) * z


@jit.inline
def _digamma_with(x, tangent):
    """The digamma function; `tangent` is tan(pi x)."""
    # Upwards by the recurrence until the asymptotic series serves (DLMF 5.5.2, 5.11.2), below 0 by reflection (5.5.4).
    below = x <= 0.0
    y, s = select(below, 1.0 - x, x), select(x == x, 0.0, x)
    while reduce_or(y < 10.0):
        small = y < 10.0
        s = select(small, s - 1.0 / y, s)
        y = select(small, y + 1.0, y)
    z = 1.0 / (y * y)
    s = select(x == -INF, NAN, s + (log(y) - 0.5 / y - _digamma_series(z)))
    s = select(below, s - PI / tangent, s)
    return select(x == 0.0, -1.0 / x, select(below & (x == vfloor(x)), NAN, s))


def _digamma(x):
    return _digamma_with(x, tan(PI * (x - vround(x))))


def _digamma_f32(x):
    wide = convert(x, F64)
    return convert(_digamma_with(wide, tangent_wide(wide)), F32)


def _digamma_f32_gpu(x):
    # The same with six steps of the recurrence for all: a sum of reciprocals over one denominator, and no loop.
    wide = convert(x, F64)
    below = wide <= 0.0
    y = select(below, 1.0 - wide, wide)
    over, under = 1.0 + 0.0 * y, y
    for k in range(1, 6):
        over = muladd(over, y + k, under)
        under = under * (y + k)
    z = y + 6.0
    v = quotient(1.0, z)
    s = (log_wide(z) - 0.5 * v - _digamma_series(v * v)) - quotient(over, under)
    if reduce_or(below):
        s = select(below, s - PI / tangent_wide(wide), s)
        s = select(wide == 0.0, -1.0 / wide, select(below & (wide == vfloor(wide)), NAN, s))
        s = select(wide == -INF, NAN, s)
    return convert(select(wide == INF, INF, s), F32)


digamma = wide(_digamma, "digamma", float32=_digamma_f32_gpu if isa.is_gpu() else _digamma_f32)


@jit.inline
def _zeta_positive(s, q):
    """sum of (q + k)^-s over k >= 0, for s > 1 and q > 0: nine terms, then Euler and Maclaurin's (DLMF 25.11.28)."""
    squares = not reduce_or(s != 2.0)  # of `polygamma(1, x)`: 8 times as fast
    total, a = 0.0 * q, q
    b = total
    for i in range(10):
        if i > 0:
            a = a + 1.0
        b = 1.0 / (a * a) if squares else exp(-s * log_wide(a))
        total = total + b
    total = total + (b * a / (s - 1.0) - 0.5 * b)
    factor, k, shrink = s, s, 1.0 / (a * a)
    b = b / a
    for c in (
        12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10,
        -2.950130727918164224e12, 1.1646782814350067249e14, -4.5979787224074726105e15, 1.8152105401943546773e17,
        -7.1661652561756670113e18,
    ):  # fmt: skip
        total = muladd(factor * b, 1.0 / c, total)
        factor = factor * (k + 1.0) * (k + 2.0)
        k = k + 2.0
        b = b * shrink
    return select(q == INF, 0.0, total)


def _zeta(s, q):
    # Below 0, whole s alone have a value: the terms up to 0 are a sum of positive ones, with the sign of (-1)^s.
    below = q < 0.0
    part = q - vfloor(q)
    total = _zeta_positive(s, select(below, part, q))
    if reduce_or(below):
        sign = select(0.5 * s == vfloor(0.5 * s), 1.0, -1.0 + 0.0 * s)
        rest = _zeta_positive(s, vfloor(q) + 1.0 - q) - _zeta_positive(s, 1.0 - q)
        total = select(below, muladd(sign, rest, total), total)
        total = select(below & (s != vfloor(s)), NAN, total)
    total = select((q <= 0.0) & (q == vfloor(q)), INF, total)
    total = select((s == INF) & (q > 0.0), select(q < 1.0, INF, select(q > 1.0, 0.0, 0.0 * q + 1.0)), total)
    return select(s == 1.0, INF, select((s < 1.0) | (s != s) | (q != q), NAN, total))


_zeta_wide = jit.inline(_zeta)


def _zeta_f32_gpu(x, y):
    return convert(_zeta_wide(convert(x, F64), convert(y, F64)), F32) if reduce_or(x != 2.0) else gpu.trigamma(y)


def _trigamma(x):
    return _zeta_wide(select(x == x, 2.0, x), x)


def _trigamma_f32_gpu(x):
    return gpu.trigamma(x)


zeta = wide(_zeta, "zeta", 2, float32=_zeta_f32_gpu if isa.is_gpu() else None)
# On its own, as the registers of other sums than of squares (238 with 16-bit floats) leave room for few threads.
trigamma = wide(_trigamma, "trigamma", float32=_trigamma_f32_gpu if isa.is_gpu() else None)


@jit.inline
def _gamma_series(a, x, epsilon, divide):
    """P(a, x) Gamma(a + 1) e^x / x^a, a series of positive terms (DLMF 8.11.4); of use for x below a + 1."""
    term = 0.0 * x + 1.0
    total, n, left = term, a, TERMS
    while left > 0 and reduce_or(term > epsilon * total):
        n = n + 1.0
        term = term * divide(x, n)
        total = total + term
        left -= 1
    return total


@jit.inline
def _gamma_fraction(a, x, epsilon, divide):
    """Q(a, x) Gamma(a) e^x / x^a, a continued fraction (DLMF 8.9.2) by Lentz's method; of use for x above a + 1."""
    b = x + 1.0 - a
    c = 0.0 * x + 1e300
    d = divide(1.0, b)
    h, i = d, 1.0
    change = c
    while i < TERMS and reduce_or(vabs(change - 1.0) > 4.0 * epsilon):
        f = i * (a - i)
        b = b + 2.0
        d = muladd(f, d, b)
        c = b + divide(f, c)
        d = divide(1.0, select(d == 0.0, 1e-300, d))
        c = select(c == 0.0, 1e-300, c)
        change = c * d
        h = h * change
        i += 1.0
    return h


@jit.inline
def _exact(p, q):
    return p / q


@jit.inline
def _log1p_of_c(x):
    return libm("log1p", x)


@jit.inline
def _lgamma_of_c(x):
    return libm("lgamma", x)


@jit.inline
def _log1p_wide(d):
    u = 1.0 + d
    return log_wide(u) + quotient(d - (u - 1.0), u)


@jit.inline
def _gamma_scale(a, x, log_, log1p, lgamma_, divide):
    """x^a e^-x / Gamma(a + 1). With a = x - d, by log1p of d / a: numbers that cancel are small ones."""
    # log Gamma(a + 1) = a log a - a + log(2 pi a) / 2 + 1 / (12 a) - ...; for large a
    d = divide(x - a, a)
    z = divide(1.0, a * a)
    r = muladd(
        muladd(muladd(z, -0.0005952380952380953, 0.0007936507936507937), z, -0.002777777777777778), z, 1.0 / 12.0
    )
    large = a * (log1p(d) - d) - 0.5 * log_(2.0 * PI * a) - divide(r, a)
    small = a * log_(x) - x - lgamma_(a + 1.0)
    return exp(select((a > 20.0) & (d > -0.9), large, small))


@jit.inline
def _gamma_parts(a, x, scale, epsilon, divide):
    """(P, Q) for positive finite a and x, to `epsilon`; of one, 1 - the other. `scale` is the factor of both."""
    lower = x < a + 1.0
    p = scale * _gamma_series(a, select(lower, x, 0.0), epsilon, divide)
    q = scale * a * _gamma_fraction(a, select(lower, a + 1.0, x), epsilon, divide)
    return select(lower, p, 1.0 - q), select(lower, 1.0 - p, q)


@jit.inline
def _gamma_ends(a, x, value, at_zero, at_infinity):
    """The value of P or Q with those at the ends of a and x."""
    value = select((x == INF) | (a == 0.0), at_infinity, value)
    value = select((x == 0.0) | (a == INF), at_zero, value)
    nowhere = (x < 0.0) | (a < 0.0) | (x != x) | (a != a) | ((a == 0.0) & (x == 0.0)) | ((a == INF) & (x == INF))
    return select(nowhere, NAN, value)


@jit.inline
def _inside(x):
    """x where it is positive and finite, else 1."""
    return select((x > 0.0) & (x < INF), x, 1.0)


@jit.inline
def _both_gammas(a, x):
    a, x = _inside(a), _inside(x)
    return _gamma_parts(a, x, _gamma_scale(a, x, log, _log1p_of_c, _lgamma_of_c, _exact), EPSILON, _exact)


@jit.inline
def _both_gammas_f32(a, x):
    """As above in float64, right to float32: half as many steps, and nothing by the C library."""
    a, x = _inside(a), _inside(x)
    return _gamma_parts(a, x, _gamma_scale(a, x, log_wide, _log1p_wide, lgamma_wide, quotient), 1e-10, quotient)


def _gammainc(a, x):
    return _gamma_ends(a, x, _both_gammas(a, x)[0], 0.0, 1.0)


def _gammaincc(a, x):
    return _gamma_ends(a, x, _both_gammas(a, x)[1], 1.0, 0.0)


def _gammainc_f32(x, y):
    a, x = convert(x, F64), convert(y, F64)
    return convert(_gamma_ends(a, x, _both_gammas_f32(a, x)[0], 0.0, 1.0), F32)


def _gammaincc_f32(x, y):
    a, x = convert(x, F64), convert(y, F64)
    return convert(_gamma_ends(a, x, _both_gammas_f32(a, x)[1], 1.0, 0.0), F32)


gammainc = wide(_gammainc, "gammainc", 2, float32=_gammainc_f32)
gammaincc = wide(_gammaincc, "gammaincc", 2, float32=_gammaincc_f32)


# ---- modified Bessel functions -----------------------------------------------------------------


@jit.inline
def _bessel_scaled(x, order):
    """I_order(x) e^-x of x >= 0: the power series (DLMF 10.25.2), beyond 30 the asymptotic one (10.40.1)."""
    large = x > 30.0
    near = select(large, 0.0, x)
    z = 0.25 * near * near
    term = select(x == x, 1.0, x)
    total, k = term, 1.0
    while reduce_or(term > EPSILON * total):
        term = term * z / (k * (k + order))
        total = total + term
        k += 1.0
    total = total * exp(-near)
    if order == 1.0:
        total = total * 0.5 * near
    far = select(large, x, 31.0)
    term, k = select(x == x, 1.0, x), 1.0
    rest = term
    while k < 25.0:
        odd = 2.0 * k - 1.0
        term = term * ((odd * odd - 4.0 * order) / (8.0 * k)) / far
        rest = rest + term
        k += 1.0
    return select(large, rest / vsqrt(2.0 * PI * far), total)


def _i0e(x):
    return _bessel_scaled(vabs(x), 0.0)


def _i1e(x):
    return copysign(_bessel_scaled(vabs(x), 1.0), x)


def _i0(x):
    a = vabs(x)
    t = exp(0.5 * a)
    return select(a == INF, INF, _bessel_scaled(a, 0.0) * t * t)


def _i1(x):
    a = vabs(x)
    t = exp(0.5 * a)
    return copysign(select(a == INF, INF, _bessel_scaled(a, 1.0) * t * t), x)


def _i0e_f32(x):
    return convert(i0e_wide(vabs(convert(x, F64))), F32)


def _i1e_f32(x):
    return copysign(convert(i1e_wide(vabs(convert(x, F64))), F32), x)


def _i0_f32(x):
    a = vabs(convert(x, F64))
    t = exp(0.5 * a)
    return convert(select(a == INF, INF, i0e_wide(a) * t * t), F32)


def _i1_f32(x):
    a = vabs(convert(x, F64))
    t = exp(0.5 * a)
    return copysign(convert(select(a == INF, INF, i1e_wide(a) * t * t), F32), x)


if isa.is_gpu():
    _i0_f32, _i0e_f32, _i1_f32, _i1e_f32 = gpu.i0, gpu.i0e, gpu.i1, gpu.i1e
i0, i0e = wide(_i0, "i0", float32=_i0_f32), wide(_i0e, "i0e", float32=_i0e_f32)
i1, i1e = wide(_i1, "i1", float32=_i1_f32), wide(_i1e, "i1e", float32=_i1e_f32)


# ---- error functions ---------------------------------------------------------------------------


# erfinv(x) / x over w - 2.5, w = -log(1 - x^2), and from 5 on over sqrt(w) - 3; the highest power first
# fmt: off
ERFINV_NEAR = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)
ERFINV_FAR = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)
# fmt: on


@jit.inline
def _erfinv_near(x):
    """The inverse of erf to 3e-7 (M. Giles, Approximating the erfinv function, 2012)."""
    w = -log((1.0 - x) * (1.0 + x))
    far = w >= 5.0
    u, v = select(far, 0.0, w) - 2.5, vsqrt(select(far, w, 9.0)) - 3.0
    return select(far, gpu.polynomial(v, ERFINV_FAR), gpu.polynomial(u, ERFINV_NEAR)) * x


def _erfinv_f32(x):
    a = vabs(x)
    return select(a == 1.0, x * INF, select(a < 1.0, _erfinv_near(x), NAN))


def _erfinv_f32_gpu(x):
    # The same by the instructions for logarithm and root, and without the tails where no lane is there.
    w = ptx.log2_normal((1.0 - x) * (1.0 + x)) * -0.6931471805599453
    y = gpu.polynomial(w - 2.5, ERFINV_NEAR)
    if reduce_or(~(w < 5.0)):
        y = select(w < 5.0, y, gpu.polynomial(ptx.square_root(w) - 3.0, ERFINV_FAR))
        y = select(w < INF, y, w)
    return y * x


def _erfinv(x):
    # Newton's steps on erf, and beyond 1/2 on erfc, of which 1 - |x| is exact.
    a = vabs(x)
    inside = select(a < 1.0, a, 0.0)
    y, outer = _erfinv_near(inside), a > 0.5
    for _ in range(2):
        slope = 1.1283791670955126 * exp(-(y * y))
        step = select(outer, (1.0 - inside) - erfc(y), erf(y) - inside)
        y = y - step / slope
    return select(a == 1.0, x * INF, select(a < 1.0, copysign(y, x), NAN))


erfinv = wide(_erfinv, "erfinv", float32=_erfinv_f32_gpu if isa.is_gpu() else _erfinv_f32)


def _erfcx(x):
    # exp(x^2) erfc(x); beyond 25 the continued fraction of erfc (DLMF 7.9.1), whose 30th level is more than enough.
    far = x > 10.0
    near = select(far, 0.0, x)
    t = select(far, x, 11.0)
    d = t
    for k in range(30):
        d = t + 0.5 * (30.0 - k) / d
    # x^2 in two parts, so that its rounding is not multiplied
    high = vround(near * 1024.0) * 0.0009765625
    square = exp(high * high) * exp((near - high) * (near + high))
    return select(far, 0.5641895835477563 / d, select(near < -26.7, INF, square * erfc(near)))


def _erfcx_f32(x):
    return convert(erfcx_wide(convert(x, F64)), F32)


erfcx = wide(_erfcx, "erfcx", float32=_erfcx_f32)
