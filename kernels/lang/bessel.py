"""Bessel functions of the third kind, Airy's function and quantiles of the normal distribution, in float64.

Power series near 0, fits of what asymptotic series stand for, and for Bessel functions far from 0 the trapezoidal rule
for integrals over all numbers whose integrands fall like exp(-s^2): its error is below rounding with these few nodes
(Trefethen and Weideman, SIAM Review 56, 2014).
"""

import math

from ..build import isa, jit
from .simd import convert, muladd, reduce_or, select, vabs, vsqrt
from .special import wide
from .vmath import F32, F64, INF, NAN, cos, exp, log, sin
from .wide import log_wide, polynomial, quotient

EULER = 0.5772156649015329
STEP = 0.25
NODES = tuple((k * STEP, (0.5 if k == 0 else 1.0) * STEP * math.exp(-((k * STEP) ** 2))) for k in range(26))

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


# For float32, whose rounding is 6e-8: ten terms of the series, (of I, of the other sum), the highest power first.
NEAR = []
for _order in (0, 1):
    _terms, _sums, _digamma = [1.0], [_order - 2.0 * EULER], _order - 2.0 * EULER
    for _n in range(1, 10):
        _digamma += 1.0 / _n + 1.0 / (_n + _order)
        _terms.insert(0, _terms[0] / (_n * (_n + _order)))
        _sums.insert(0, _digamma * _terms[0])
    NEAR.append((tuple(_terms), tuple(_sums)))
(I_0, S_0), (I_1, S_1) = NEAR
# K e^x sqrt(x) over 4 / x - 1, from x = 2 on: Chebyshev fits of ours to 1e-10.
# fmt: off
FAR_0 = (
    1.7366028133867328e-07, -4.334130973447387e-07, 6.631796872860206e-07, -2.0075149928728493e-06,
    7.039022159859821e-06, -2.481975730054753e-05, 9.95537989802365e-05, -0.0004797535685136158,
    0.0030328921512779777, -0.031071462606995684, 1.2185953385133905,
)
FAR_1 = (
    -2.0364072834507022e-07, 5.145369895732611e-07, -8.149907604760179e-07, 2.5165641838607544e-06,
    -9.003549987910513e-06, 3.294206322075126e-05, -0.00013958245269877717, 0.000735706174561173,
    -0.005566730272481506, 0.10334973866167059, 1.363151890371342,
)
# fmt: on


@jit.inline
def _k_of_float32(x, first, i, s, fit, scaled):
    """As `_k`, with `first` 1 instead of 0 of order 1: a million take 1.5 ms, by the series and the integral 31."""
    x = convert(x, F64)
    far = x > 2.0
    near = select((x > 0.0) & (x <= 2.0), x, 1.0)
    large = select(far & (x < INF), x, 3.0)
    half = 0.5 * near
    z = half * half
    value = 0.5 * polynomial(z, s) - log_wide(half) * polynomial(z, i)
    if first != 0.0:
        value = quotient(1.0, near) - half * value
    beyond = quotient(polynomial(quotient(4.0, large) - 1.0, fit), vsqrt(large))
    if scaled != 0.0:  # one exponential is enough
        value = value * exp(near)
    else:
        beyond = beyond * exp(-large)
    value = select(x == INF, 0.0, select(far, beyond, value))
    return convert(select(x == 0.0, INF, select(x >= 0.0, value, NAN)), F32)


def _k0_f32(x):
    return _k_of_float32(x, 0.0, I_0, S_0, FAR_0, 0.0)


def _k1_f32(x):
    return _k_of_float32(x, 1.0, I_1, S_1, FAR_1, 0.0)


def _k0e_f32(x):
    return _k_of_float32(x, 0.0, I_0, S_0, FAR_0, 1.0)


def _k1e_f32(x):
    return _k_of_float32(x, 1.0, I_1, S_1, FAR_1, 1.0)


def _k0(x):
    return _k(x, 0.0, 0.0)


def _k1(x):
    return _k(x, 1.0, 0.0)


def _k0e(x):
    return _k(x, 0.0, 1.0)


def _k1e(x):
    return _k(x, 1.0, 1.0)


k0, k1 = wide(_k0, "k0", float32=_k0_f32), wide(_k1, "k1", float32=_k1_f32)
k0e, k1e = wide(_k0e, "k0e", float32=_k0e_f32), wide(_k1e, "k1e", float32=_k1e_f32)

# ---- Airy's function ---------------------------------------------------------------------------

# The power series DLMF 9.4.1 as polynomials of x^3, the highest power first.
_near = [(1.0, 1.0)]
for _n in range(0, 66, 3):
    _near.insert(0, (_near[0][0] / ((_n + 2) * (_n + 3)), _near[0][1] / ((_n + 3) * (_n + 4))))
NEAR_ONE, NEAR_TWO = (tuple(one) for one in zip(*_near))
# Chebyshev fits of ours, over 1 / zeta from 0 to LEAST, of what DLMF 9.7.5 and 9.7.9 expand in powers of 1 / zeta with
# zeta = 2/3 |x|^(3/2): their errors are below 3e-17. Powers of 2 / (LEAST zeta) - 1, the highest first.
LEAST = 1.5 / 3.0**1.5
# fmt: off
DECAY = (
    -2.655819482467004e-12, 6.12238635637892e-12, -3.3019486504471433e-12, 1.1554905698278336e-11,
    -5.769942106069752e-11, 1.6249701266095548e-10, -4.644240281091561e-10, 1.4842802599299915e-09,
    -5.0248975401960824e-09, 1.8109532046691504e-08, -7.059864132257924e-08, 3.0262740926981904e-07,
    -1.4593784834842726e-06, 8.193043582518627e-06, -5.6602741564722787e-05, 0.0005332340537004204,
    -0.008744573713376872, 0.990655538516276,
)
COSINE = (
    -1.172897161701207e-11, -2.2179338624796103e-12, 1.0233903403990118e-10, -1.1577617370118447e-10,
    -1.220381581023448e-10, 4.4339493720748906e-10, -9.395581872373942e-10, 1.7351101835609774e-09,
    -1.0037796650395058e-09, -7.51972731312789e-09, 3.575193614020319e-08, -8.369803677903679e-08,
    2.7414574385963987e-08, 7.622208059475408e-07, -3.8070500171885633e-06, 5.3980427922512105e-06,
    6.626309185678087e-05, -0.0006524424404750513, -0.0014596831554307761, 0.9992492054122833,
)
SINE = (
    -1.537369896270057e-11, 3.508273414004046e-11, 2.6902827998484472e-11, -1.5303224805319523e-10,
    2.137693069568611e-10, -2.3121562928148008e-10, 2.3153146974286438e-11, 1.38549963614751e-09,
    -5.425370651892812e-09, 1.1589816862786082e-08, -7.435850764685803e-09, -5.953884755042436e-08,
    3.1052581650872685e-07, -7.061588261021537e-07, -8.483491188529538e-07, 1.6255236867444132e-05,
    -6.610081980487777e-05, -0.0002866566117871849, 0.00971105755695665, 0.009915560747521632,
)
# fmt: on


def _airy(x):
    # Outside of [-3, 3] by the fits: a decay above, a wave below.
    size = vabs(x)
    far = (size > 3.0) & (size < INF)
    a = select(far, size, 4.0)
    root = vsqrt(a)
    quarter = vsqrt(root)
    zeta = 0.6666666666666666 * a * root
    t = (2.0 / LEAST) / zeta - 1.0
    upper = 0.5 * exp(-zeta) * polynomial(t, DECAY)
    if reduce_or(x < -3.0):
        phase = zeta - 0.7853981633974483
        lower = cos(phase) * polynomial(t, COSINE) + sin(phase) * polynomial(t, SINE)
    else:
        lower = upper
    value = select(x < 0.0, lower, upper) / (1.772453850905516 * quarter)
    if reduce_or(size <= 3.0):
        y = select(size <= 3.0, x, 0.0)
        cube = y * y * y
        near = 0.3550280538878172 * polynomial(cube, NEAR_ONE) - 0.2588194037928068 * y * polynomial(cube, NEAR_TWO)
    else:
        near = value
    return select(far, value, select(size <= 3.0, near, NAN))


airy_ai = wide(_airy, "airy_ai")

# ---- quantiles ---------------------------------------------------------------------------------

# Wichura, Algorithm AS 241, Applied Statistics 37 (1988), PPND16: numerators and denominators, the highest power first.
# fmt: off
MIDDLE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457, 13731.693765509461125,
     1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867, 5394.1960214247511077,
     687.1870074920579083, 42.313330701600911252, 1.0),
)
TAIL = (
    (7.7454501427834140764e-4, 2.27238449892691845833e-2, 2.4178072517745061177e-1, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 1.51986665636164571966e-2, 1.4810397642748007459e-1,
     6.8976733498510000455e-1, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)
FAR_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.2426609473880784386e-3, 2.65321895265761230930e-2,
     2.9656057182850489123e-1, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     1.48753612908506148525e-2, 1.3692988092273580531e-1, 5.9983220655588793769e-1, 1.0),
)
# The same for float32: least relative errors 3e-10 and 3e-11, by weighted least squares of values of 40 digits.
SHORT_MIDDLE = (
    (151.83251358362114, 697.7854576631084, 423.51725470206156, 71.18673853239154, 3.3871328718123803),
    (209.562722592963, 410.84650632167893, 175.17174512474634, 24.022069806351727, 1.0),
)
SHORT_TAIL = (
    (0.04859645265918875, 0.5957765792181521, 2.2905504030874138, 3.2837099367141693, 1.4234371108288841),
    (6.977065181280164e-07, 0.03433250779965466, 0.3673357954845194, 1.107152006145062, 1.0),
)
# fmt: on


@jit.inline
def _ratio(t, pair):
    return polynomial(t, pair[0]) / polynomial(t, pair[1])


@jit.inline
def _ratio_gpu(t, pair):
    return quotient(polynomial(t, pair[0]), polynomial(t, pair[1]))


@jit.inline
def _log(x):
    return log(x)


@jit.inline
def _ndtri_by(p, _ratio, log, middle, tails):
    q = p - 0.5
    r = 0.180625 - q * q
    value = q * _ratio(select(r > 0.0, r, 0.0), middle)
    tail = vabs(q) > 0.425
    if reduce_or(tail):
        small = select(p > 0.5, 1.0 - p, p)
        t = vsqrt(-log(select(tail & (small > 0.0), small, 0.05)))
        y = _ratio(select(t > 5.0, 3.4, t - 1.6), tails)
        if reduce_or(t > 5.0):
            y = select(t > 5.0, _ratio(t - 5.0, FAR_TAIL), y)
        y = select(small == 0.0, INF, select(small < 0.0, NAN, y))
        value = select(tail, select(p > 0.5, y, -y), value)
    return value


def _ndtri(p):
    return _ndtri_by(p, _ratio, _log, MIDDLE, TAIL)


def _ndtri_f32_gpu(x):
    return convert(_ndtri_by(convert(x, F64), _ratio_gpu, log_wide, SHORT_MIDDLE, SHORT_TAIL), F32)


ndtri = wide(_ndtri, "ndtri", float32=_ndtri_f32_gpu if isa.is_gpu() else None)
