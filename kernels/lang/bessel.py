"""Bessel functions of the third kind, Airy's function and quantiles of the normal distribution, in float64.

Power series near 0, and elsewhere the trapezoidal rule for integrals over all numbers whose integrands fall like
exp(-s^2): its error is below rounding with these few nodes (Trefethen and Weideman, SIAM Review 56, 2014).
"""

import math

from ..build import jit
from .simd import muladd, reduce_or, select, vabs, vsqrt
from .special import erfcx, erfinv, wide
from .vmath import INF, NAN, cos, exp, log, sin

EULER = 0.5772156649015329
STEP = 0.25
NODES = tuple((k * STEP, (0.5 if k == 0 else 1.0) * STEP * math.exp(-((k * STEP) ** 2))) for k in range(26))
TURN = math.sqrt(0.75)  # cos(pi / 6): Airy's integral of negative numbers runs along a ray at that angle
TURNED = tuple(
    (w * math.exp(s * s - TURN * s * s) * math.cos(0.5 * s * s),
     w * math.exp(s * s - TURN * s * s) * math.sin(0.5 * s * s), s * s * s / 3.0)
    for s, w in (*NODES, *((k * STEP, STEP * math.exp(-((k * STEP) ** 2))) for k in (26, 27, 28)))
)  # fmt: skip
CUBES = tuple((w, s**3 / 3.0) for s, w in NODES)

# ---- modified Bessel functions of the second kind ----------------------------------------------


@jit.inline
def _k_near(x, order):
    """K_0 or K_1 of 0 < x <= 2 by the power series DLMF 10.31.1 and 10.31.2."""
    z, half = 0.25 * x * x, 0.5 * x
    term, k = 1.0 + 0.0 * x, 1.0
    digamma = -2.0 * EULER + order  # psi(k) + psi(k + order), of the term before
    i, s = term, digamma * term
    while reduce_or(term > 1e-18):
        term = term * z / (k * (k + order))
        digamma = digamma + (1.0 / k + 1.0 / (k + order))
        i, s = i + term, muladd(digamma, term, s)
        k += 1.0
    logarithm = log(half)
    if order == 0.0:
        return 0.5 * s - logarithm * i
    return 1.0 / x + half * (logarithm * i - 0.5 * s)


@jit.inline
def _k_far(x, order):
    """K e^x of x >= 2: the integral DLMF 10.32.9 with s = sqrt(2 x) sinh(t / 2)."""
    total, inverse = 0.0 * x, 0.5 / x
    for s, w in NODES:
        q = 1.0 + s * s * inverse
        part = w / vsqrt(q)
        total = total + (part * (2.0 * q - 1.0) if order == 1.0 else part)
    return total * vsqrt(2.0 / x)


@jit.inline
def _k(x, order, scaled):
    """K, or with `scaled` 1 instead of 0 K e^x."""
    far = x > 2.0
    near = select((x > 0.0) & (x <= 2.0), x, 1.0)
    large = select(far & (x < INF), x, 3.0)
    value = select(far, _k_far(large, order) * exp((scaled - 1.0) * large), _k_near(near, order) * exp(scaled * near))
    value = select(x == INF, 0.0, value)
    return select(x == 0.0, INF, select(x >= 0.0, value, NAN))


def _k0(x):
    return _k(x, 0.0, 0.0)


def _k1(x):
    return _k(x, 1.0, 0.0)


def _k0e(x):
    return _k(x, 0.0, 1.0)


def _k1e(x):
    return _k(x, 1.0, 1.0)


k0, k1, k0e, k1e = wide(_k0, "k0"), wide(_k1, "k1"), wide(_k0e, "k0e"), wide(_k1e, "k1e")

# ---- Airy's function ---------------------------------------------------------------------------


@jit.inline
def _airy_near(x):
    """Ai of |x| <= 3 by the power series DLMF 9.4.1."""
    cube = x * x * x
    f, g, k = 1.0 + 0.0 * x, x, 0.0
    one, two = f, g
    while k < 66.0:
        f, g = f * cube / ((k + 2.0) * (k + 3.0)), g * cube / ((k + 3.0) * (k + 4.0))
        one, two = one + f, two + g
        k += 3.0
    return 0.3550280538878172 * one - 0.2588194037928068 * two


def _airy(x):
    # Above 3 the integral DLMF 9.5.6, with t = s / x^(1/4); below -3 that of x e^(i pi / 3) by DLMF 9.2.14.
    size = vabs(x)
    far = (size > 3.0) & (size < INF)
    a = select(far, size, 4.0)
    root = vsqrt(a)
    quarter = vsqrt(root)
    scale, zeta = 1.0 / (quarter * root), 0.6666666666666666 * a * root
    total = 0.0 * a
    for w, cube in CUBES:
        total = total + w * cos(cube * scale)
    upper = exp(-zeta) * total
    if reduce_or(x < -3.0):
        even, odd = 0.0 * a, 0.0 * a
        for w, v, cube in TURNED:
            c = cos(cube * scale)
            even, odd = even + w * c, odd + v * c
        phase = 1.0471975511965976 - zeta
        lower = 2.0 * (cos(phase) * even + sin(phase) * odd)
    else:
        lower = upper
    value = select(x < 0.0, lower, upper) / (3.141592653589793 * quarter)
    return select(far, value, select(size <= 3.0, _airy_near(select(size <= 3.0, x, 0.0)), NAN))


airy_ai = wide(_airy, "airy_ai")

# ---- quantiles ---------------------------------------------------------------------------------


def _ndtri(p):
    # The inverse of erf in the middle; in the tails Newton's steps on the logarithm of the distribution function.
    tail = select(p > 0.5, 1.0 - p, p)
    outside = (tail > 0.0) & (tail < 0.125)
    q = select(outside, tail, 0.0625)
    wanted = log(q)
    w = vsqrt(-2.0 * wanted)
    y = (log(2.5066282746310002 * w)) / w - w
    for _ in range(5):
        t = -0.7071067811865476 * y
        r = erfcx(t)  # Phi(y) = r exp(-y^2 / 2) / 2
        y = y - (log(0.5 * r) - 0.5 * y * y - wanted) * r * 1.2533141373155003
    middle = 1.4142135623730951 * erfinv(2.0 * select(outside, 0.5, p) - 1.0)
    return select(outside, select(p > 0.5, -y, y), middle)


ndtri = wide(_ndtri, "ndtri")
