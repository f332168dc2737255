"""Functions of float32 vectors in float32, for GPUs: the CPU has half as many lanes of float64, most GPUs a 64th of the
units for it, and those of an H100 half of them.

Errors are some 2 units in the last place (`tests/gpu/test_functions.py`). Coefficients are weighted minimax fits of
ours, the highest power first.
"""

from numba import types

from ..build import jit
from . import ptx
from .libm import rare_pow
from .simd import bitcast, convert, muladd, reduce_or, select, vabs, vfloor, vround

F32, I32, U32 = types.float32, types.int32, types.uint32
INF, NAN, LOG2E = float("inf"), float("nan"), 1.4426950408889634
LOG2E_HI, LOG2E_LO = 1.4426950216293335, 1.925963033500e-08
MAGIC, LARGE = 12582912.0, 65536.0  # 1.5 * 2^23; from LARGE on angles are not reduced by three parts of pi
PI, ONE_OVER_PI = 3.1415927410125732, 0.3183098861837907
# of pi / 2, of which the last two are rounded down and what is left
HALF_HI, HALF_MID, HALF_LO = 1.570796251296997, 7.549789415861596e-08, 5.390302953474238e-15

# fmt: off
SIN = (  # (sin(r) / r - 1) / r^2 up to pi / 2: 6e-9
    2.605750296424958e-06, -0.0001980959059437737, 0.00833306647837162, -0.16666659712791443,
)
SIN_NEAR = (-0.00019514630548655987, 0.008332155644893646, -0.16666655242443085)  # the same up to pi / 4: 4e-9
COS_NEAR = (2.4437725915938012e-05, -0.001388736185617745, 0.04166664555668831)  # (cos(r) - 1 + r^2 / 2) / r^4: 1e-10
LOG1P = (  # (log(1 + m) - m) / m^2, -1/4 <= m <= 1/2: 5e-9 of the logarithm
    -0.04520805552601814, 0.1048310175538063, -0.13170167803764343, 0.14478257298469543, -0.16646341979503632,
    0.19990722835063934, -0.2500011920928955, 0.3333345353603363, -0.5,
)
# I_0(x) and I_1(x) / x over x^2 up to 8: 9e-9 and 2e-9; times sqrt(x) e^-x over 1 / x beyond: 9e-9 and 1e-8
I0 = (
    5.716075451348048e-17, 5.815640124421512e-15, 2.6341867055690305e-12, 4.623521010493903e-10,
    6.800496521464083e-08, 6.779313935112441e-06, 0.0004340438172221184, 0.01562494970858097, 0.2500000596046448,
    1.0,
)
I1 = (
    2.7504437791393526e-18, 3.504554879430529e-16, 1.617822629335075e-13, 3.318283148256995e-11,
    5.662105895254399e-09, 6.780215926482924e-07, 5.425457493402064e-05, 0.002604162786155939, 0.0625000074505806,
    0.5,
)
I0_FAR = (
    0.38801243901252747, -0.01386644970625639, 0.033787116408348083, 0.027898691594600677, 0.0498695895075798,
    0.3989422917366028,
)
I1_FAR = (
    -0.45242294669151306, 0.009714668616652489, -0.04615836963057518, -0.046575650572776794, -0.14960545301437378,
    0.3989422917366028,
)
# log Gamma(1 + t) / t, -0.3 <= t <= 0.7: 4e-9; log Gamma(2 + t) / t, -0.5 <= t <= 1: 5e-9; log Gamma(x) / (x - 2) over
# x - 5.5, 3 <= x <= 8: 1.4e-8
LGAMMA_1 = (
    0.016255130991339684, -0.05888412892818451, 0.10007894784212112, -0.11839719861745834, 0.12768086791038513,
    -0.14374786615371704, 0.16935209929943085, -0.20738093554973602, 0.2705870568752289, -0.4006859362125397,
    0.8224669694900513, -0.5772156715393066,
)
LGAMMA_2 = (
    4.9597827455727383e-05, -0.00022089351841714233, 0.0005413139006122947, -0.0012045176699757576,
    0.002884252229705453, -0.0073827579617500305, 0.02058131992816925, -0.06735248863697052, 0.32246702909469604,
    0.42278432846069336,
)
LGAMMA_5 = (
    -3.636536183293515e-09, 1.86340045615907e-08, -5.413435744117123e-08, 4.101125057331956e-07,
    -3.108786359007354e-06, 2.092945942422375e-05, -0.0001500730577390641, 0.001179354265332222,
    -0.010729889385402203, 0.13722552359104156, 1.1308039426803589,
)
# log2(e) (2 artanh(u / 2) / u - 1) / u^2 over u^2 up to 0.118: 3e-10 of the logarithm
POW = (0.0006645191460847855, 0.0032164508011192083, 0.018033839762210846, 0.12022458761930466)
# fmt: on


@jit.inline
def polynomial(t, coefficients):
    """Of at least three coefficients, the highest power first."""
    p = muladd(t, coefficients[0], coefficients[1])
    for c in coefficients[2:]:
        p = muladd(p, t, c)
    return p


@jit.inline
def signed(y, x):
    """y, which is not negative, with the sign of x."""
    return bitcast(bitcast(y, I32) | (bitcast(x, I32) & -0x80000000), F32)


@jit.inline
def quotient(p, q):
    """p / q within 1 ulp, for q and the quotient between 2^-100 and 2^100."""
    r = ptx.reciprocal(q)
    y = p * r
    return muladd(muladd(-y, q, p), r, y)


@jit.inline
def are_apart(a, b):
    """Whether the signs differ."""
    return (bitcast(a, I32) ^ bitcast(b, I32)) < 0


@jit.inline
def are_far(a, b):
    """Whether magnitudes have quotients that `whole_part` does not find: of 2^20 and more, by 0, by what is huge."""
    q = a * ptx.reciprocal(b)
    return reduce_or(~((q < 1048576.0) & (b < 1e30)))


@jit.inline
def whole_part(a, b):
    """(n, a - n b) of magnitudes that are not `are_far`, of whole numbers from 0 to 2^20, too: n is the whole part of
    a / b. The remainder has no bits that float32 has not.
    """
    n = vfloor(a * ptx.reciprocal(b) * 1.0000003)  # not less than it is, and 1 more at most
    rest = muladd(-n, b, a)
    over = rest < 0.0
    return select(over, n - 1.0, n), select(over, rest + b, rest)


@jit.inline
def log1p(x):
    """log(1 + x) of numbers above -1 that are not infinite, by no quotient; of others something, of -0 maybe 0.

    For 1 + x = 2^k (1 + m): what rounding 1 + x would lose is not lost, as 2^-k x and 2^-k - 1 are exact.
    """
    scale = (bitcast(1.0 + x, I32) - 0x3F400000) & -0x00800000  # k in the place of the exponent, m from -1/4 to 1/2
    m = muladd(bitcast(0x40800000 - scale, F32), 0.25, -1.0) + bitcast(bitcast(x, I32) - scale, F32)
    y = muladd(polynomial(m, LOG1P) * m, m, m)
    return muladd(convert(scale, F32), 0.6931471805599453 * 2.0**-23, y)


@jit.inline
def pow(x, y):
    """x ** y within 6 ulp: exp2(y log2(x)), whose logarithm has two parts.

    That of NVIDIA's library has 106 instructions, and took 267 us where memory takes 190 (64 Mi; H200); this has 58, of
    negative numbers 67. What is 0, less than normal, infinite or NaN, or has results from 2^126 on or as small, is left
    to the library.
    """
    a = vabs(x)
    bits = bitcast(a, I32)
    scale = (bits - 0x3F3504F3) & -0x00800000
    m, k = bitcast(bits - scale, F32), convert(scale, F32) * 2.0**-23  # a = 2^k m, m from 0.7 to 1.4
    f, r = m - 1.0, ptx.reciprocal(m + 1.0)
    u = (f + f) * r
    v, high, left = u * u, u * LOG2E_HI, r * muladd(-u, f, 2.0 * (f - u))  # log(m) = 2 artanh((u + left) / 2)
    low = muladd(u, LOG2E_LO, muladd(u, LOG2E_HI, -high))
    low = muladd(u * v, polynomial(v, POW), muladd(left, LOG2E_HI, low))
    whole = k + high
    low = low + (high - (whole - k))
    log = whole + low
    low = low - (log - whole)
    power = y * log
    if reduce_or((bitcast(bits - 0x00800000, U32) >= 0x7F000000) | ~(vabs(power) < 126.0)):
        return rare_pow(x, y)
    z = ptx.exp2_small(power)
    z = muladd(z * 0.6931471805599453, muladd(y, low, muladd(y, log, -power)), z)
    negative, half = bitcast(x, I32) < 0, 0.5 * y
    if reduce_or(negative):
        z = select(negative & (half != vfloor(half)), -z, z)
        z = select(negative & (y != vfloor(y)), NAN, z)
    return z


# ---- angles ----------------------------------------------------------------------------------------


@jit.inline
def are_large(x):
    """Whether there is an angle that needs another reduction."""
    return reduce_or(vabs(x) >= LARGE)


@jit.inline
def turned(r, shifted):
    """sin(r) for |r| <= pi / 2, negative where the lowest bit of `shifted` is set."""
    z = r * r
    y = muladd(polynomial(z, SIN) * z, r, r)
    return bitcast(bitcast(y, I32) ^ (bitcast(shifted, I32) << 31), F32)


@jit.inline
def sin(x):
    """Of |x| < LARGE: by multiples of pi, so that one polynomial serves."""
    shifted = muladd(x, ONE_OVER_PI, MAGIC)
    near = shifted - MAGIC
    r = muladd(near, -2.0 * HALF_MID, muladd(near, -2.0 * HALF_HI, x))
    return select(x == 0.0, x, turned(muladd(near, -2.0 * HALF_LO, r), shifted))  # the sum of -0 and 0 would be 0


@jit.inline
def cos(x):
    """The same: cos(near pi + r) = -sin(r), or sin(r), where `near` is half more than a whole number."""
    shifted = muladd(x, ONE_OVER_PI, -0.5) + MAGIC
    near = (shifted - MAGIC) + 0.5
    r = muladd(near, 2.0 * HALF_MID, muladd(near, 2.0 * HALF_HI, -x))
    return turned(muladd(near, 2.0 * HALF_LO, r), shifted)


@jit.inline
def tan(x):
    """The same, by multiples of pi / 2."""
    shifted = muladd(x, 2.0 * ONE_OVER_PI, MAGIC)
    near = shifted - MAGIC
    r = muladd(near, -HALF_LO, muladd(near, -HALF_MID, muladd(near, -HALF_HI, x)))
    z = r * r
    s = muladd(polynomial(z, SIN_NEAR) * z, r, r)
    c = muladd(polynomial(z, COS_NEAR) * z, z, muladd(z, -0.5, 1.0))
    odd = (bitcast(shifted, I32) & 1) == 1
    return select(x == 0.0, x, quotient(select(odd, -c, s), select(odd, s, c)))


# ---- special functions -----------------------------------------------------------------------------


@jit.inline
def _exp(x, less):
    """e^x / 2^less: 2^t for x log2(e) rounded, times 2^rest."""
    t = x * LOG2E_HI
    rest = muladd(x, LOG2E_LO, muladd(x, LOG2E_HI, -t))
    whole = ptx.exp2_small(t - less)
    return muladd(whole, rest * 0.6931471805599453, whole)  # rounded once less than a product with 1 + rest ln(2)


@jit.inline
def exp_of_sum(x, low):
    """e^(x + low), `low` being below the last digits of x; subnormal numbers included."""
    t = x * LOG2E_HI
    rest = muladd(x, LOG2E_LO, muladd(x, LOG2E_HI, -t))
    return ptx.exp2(t) * (muladd(rest, 0.6931471805599453, low) + 1.0)


@jit.inline
def _bessel(a, near, far, first, scaled):
    """I_0 or I_1 (`first`: 1.0) of a = |x|, or with `scaled` 1.0 these times e^-a."""
    small = a < 8.0
    y = polynomial(a * a, near)
    if first != 0.0:
        y = y * a
    if scaled != 0.0:
        y = y * _exp(-select(small, a, 0.0), 0.0)
    if reduce_or(~small):
        root = ptx.reciprocal(ptx.square_root(a))
        beyond = polynomial(root * root, far) * root
        if scaled == 0.0:  # without what the root lacks, this would be 5.1 units in the last place beside the result
            beyond = muladd(beyond, 0.5 * muladd(-(a * root), root, 1.0), beyond)
            beyond = 256.0 * beyond * _exp(select(a < 93.0, a, 93.0), 8.0)
            beyond = select(a < 93.0, beyond, a * INF)
        y = select(small, y, beyond)
    return y


def i0(x):
    return _bessel(vabs(x), I0, I0_FAR, 0.0, 0.0)


def i0e(x):
    return _bessel(vabs(x), I0, I0_FAR, 0.0, 1.0)


def i1(x):
    return signed(_bessel(vabs(x), I1, I1_FAR, 1.0, 0.0), x)


def i1e(x):
    return signed(_bessel(vabs(x), I1, I1_FAR, 1.0, 1.0), x)


@jit.inline
def lgamma_of_positive(x, logarithm):
    """log Gamma(x) of x >= 0, whose logarithm this is: polynomials up to 8, then Stirling's series (DLMF 5.11.1)."""
    tiny = x < 0.7  # Gamma(x) = Gamma(1 + x) / x
    t = select(tiny, x, x - 1.0)
    below = muladd(t, polynomial(t, LGAMMA_1), select(tiny, -logarithm, 0.0))
    t = x - 2.0
    y = t * select(x < 3.0, polynomial(t, LGAMMA_2), polynomial(x - 5.5, LGAMMA_5))
    v = ptx.reciprocal(x)
    w = v * v
    p = muladd(muladd(w, 0.0007936507936507937, -0.002777777777777778), w, 0.08333333333333333)
    beyond = muladd(x - 0.5, logarithm - 1.0, muladd(p, v, 0.4189385332046727))
    return select(x < 1.5, below, select(x < 8.0, y, beyond))


@jit.inline
def trigamma(x):
    """The sum of (x + k)^-2 over k >= 0: six of them and an asymptotic series (DLMF 5.15.8); the reflection below 0.

    Two of the six are one quotient, as a reciprocal takes eight times as long as a product; beside numbers from 1e9 on
    they are nothing.
    """
    below = x <= 0.0
    y = select(below, 1.0 - x, x)
    v = ptx.reciprocal(y + 6.0)
    z = v * v
    p = muladd(z, 0.023809523809523808, -0.03333333333333333)
    far = muladd(muladd(muladd(p, z, 0.16666666666666666), v, 0.5), z, v)
    near = select(y < 1e9, y, 1e9)
    total = 0.0 * near
    for k in range(4, -1, -2):
        a, b = near + (k + 1.0), near + k
        r = ptx.reciprocal(a * b)
        total = muladd(muladd(a, a, b * b) * r, r, total)
    total = far + select(y < 1e9, total, 0.0)
    if reduce_or(below):
        r = x - vround(x)
        t = PI * r
        z = t * t
        sine = ptx.reciprocal(muladd(polynomial(z, SIN) * z, r, r))  # pi over it
        total = select(below, muladd(sine, sine, -total), total)
        total = select(below & (x == vfloor(x)), INF, total)
    return total
