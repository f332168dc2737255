"""Functions of float32 vectors that are computed in float64, by polynomials: a few ulps of float64 are plenty there.

Coefficients are Chebyshev fits of ours, the highest power first: errors of 1e-12 (of the functions as written in the
comments), where a float32 has 6e-8. A million elements take 0.5 to 2 ms on two cores, one lane after the other in the C
library 11 to 20.
"""

import math

from ..build import isa, jit
from . import gpu, ptx
from .by_type import by_type
from .libm import libm, rare_libm
from .libm import nextafter as libm_nextafter
from .libm import pow as libm_pow
from .simd import bitcast, convert, muladd, reduce_or, select, vabs, vfloor, vmin, vsqrt
from .vector import Vector
from .vmath import F32, F64, I32, I64, INF, NAN, exp, exp_of_sum, function_of, log
from .vmath import pow as pow_of_integers

PI = 3.141592653589793
TWO_OVER_PI = 0.6366197723675814
LN2_HI, LN2_LO = 6.93147180369123816490e-01, 1.90821492927058770002e-10
PI_2_HI, PI_2_LO = 1.5707963267341256, 6.077100506506192e-11  # pi / 2, the first of 33 bits
MAGIC = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to an integer that the low bits of the sum hold

# fmt: off
_ERFCX = (
    -1.1395555752983465e-07, -6.26400265658036e-07, 1.5245787149302035e-08, 4.4138625786788255e-06,
    5.461472776468866e-06, -1.2253731364739754e-05, -3.7707510543559974e-05, -2.485295694102959e-06,
    0.000151641324484287, 0.00020681870906898235, -0.0004545193431522834, -0.0014569384184026156,
    0.0012713709755430966, 0.008722673370677204, -0.008034018251807763, -0.05422000253316802,
    0.16405128017783535, -0.1660303975682073, -0.09276382658768884, 1.2769783815522922,
)
_J0 = (
    -7.961732600895393e-09, 1.607411153250134e-07, -2.7176798714513154e-06, 3.8471574236674194e-05,
    -0.0004435459752622802, 0.004058080096393952, -0.02847271858930183, 0.1459888481800535, -0.507468045851635,
    1.038379461208298, -0.8080888076692634, -0.6484692830912169, 0.9303012472958448, 0.045829664859854874,
)
_J1 = (
    6.471767225249541e-09, -1.2062992850141555e-07, 1.8683971388387796e-06, -2.404454866277105e-05,
    0.0002494946189522439, -0.0020290402149205824, 0.012456814379176374, -0.05474581800267032,
    0.15858376432939347, -0.2595948653122135, 0.1515166514379295, 0.08105866038683758, -0.0581438279559896,
)
_Y0 = (
    1.649218506563219e-08, -3.2435337185273964e-07, 5.321166234958668e-06, -7.279197425514372e-05,
    0.0008061587230568993, -0.007025743407258172, 0.04636704763323166, -0.21895747013883946, 0.6721770783533231,
    -1.077547733958806, 0.144126323692084, 1.6470964788831264, -0.8284358903604343, -0.38225065445951245,
)
_Y1 = (
    -1.3240062035018837e-08, 2.400599835495567e-07, -3.600881318201959e-06, 4.4671814651096716e-05,
    -0.000443817423808281, 0.0034224922497627093, -0.01962875680519864, 0.07854786878197545,
    -0.19639839860391822, 0.23507209212175817, 0.02336757172128001, -0.24337743079389773, 0.0707598588211771,
)
_P0 = (
    -2.7547740446108297e-11, 1.653847209535168e-10, -1.2100455577177577e-09, 1.2797095045051652e-08,
    -2.0527506801195e-07, 6.137417431877487e-06, -0.0005363673191685231, 0.9994572757882099,
)
_Q0 = (
    -3.433103778613361e-11, 1.539996352845795e-10, -7.523059666110444e-10, 5.132277002383106e-09,
    -4.535173386677723e-08, 5.685011664371553e-07, -1.1817110400143404e-05, 0.0005466519276437935,
    -0.12444091103611352,
)
_P1 = (
    3.0077304232069265e-11, -1.8255469949477592e-10, 1.358069040405806e-09, -1.4701293586871714e-08,
    2.453682958000425e-07, -7.959696162298614e-06, 0.000898804941622452, 1.0009070262781288,
)
_Q1 = (
    -3.814694232877998e-08, 1.904883287602788e-08, 1.1446345997438685e-07, -5.239320188607741e-08,
    -1.311895831003518e-07, 5.3627809448792067e-08, 7.141921222232896e-08, -2.418524286040181e-08,
    -2.451062854813743e-08, 5.657403954102297e-08, -6.612689262267315e-07, 1.4569223779727857e-05,
    -0.0007697167709942644, 0.3742149922242428,
)
_I0 = (
    -2.0365958345458315e-06, 6.196917346031577e-06, -6.396606718790552e-06, 1.664598660926389e-05,
    -7.026150679050191e-05, 0.00017593047563881724, -0.00037793033878044994, 0.0008430077712772168,
    -0.0018153298412605574, 0.0036256937523899, -0.006790793481538477, 0.011956418500539351,
    -0.019683156769321208, 0.030178937398600697, -0.04298584716258887, 0.056776850313188555,
    -0.06954120848148665, 0.07927524487322622, -0.08496338001103285, 0.0873434151541497, -0.0890434413902899,
    0.09451562856146775, -0.11300432688591927, 0.20700192122391206,
)
_I1 = (
    6.760591348975799e-07, -2.080359734072151e-06, 2.4347972473623254e-06, -6.546041145221281e-06,
    2.5586747091065802e-05, -6.52843847372381e-05, 0.00014709296504027356, -0.00033762656202636473,
    0.0007453662453306809, -0.0015409832530402343, 0.003005398041590388, -0.005533750901141824,
    0.00958406418632138, -0.015571511842020368, 0.02368599888207606, -0.03367132489233311, 0.044674574507958725,
    -0.055280041795669976, 0.06376740361173415, -0.06848260610650639, 0.06805759991165947,
    -0.061124338030800016, 0.04468770987560136,
)
_I0_FAR = (
    1.5782249549343856e-09, 1.4705513575294761e-09, -6.966436588210825e-09, -1.117813451363811e-08,
    3.400075787950981e-09, 2.3401127220910434e-08, 4.0864119845606255e-08, 8.826065443942745e-08,
    2.970570700982149e-07, 1.4839074708273327e-06, 1.1143060591386836e-05, 0.00013621607130161984,
    0.003360551982973335, 0.4021765094450354,
)
_I1_FAR = (
    -1.6726032407247361e-09, -1.474251096812769e-09, 7.520449543494907e-09, 1.1655170011273205e-08,
    -4.20062912179499e-09, -2.5485433850171507e-08, -4.4700041819238176e-08, -9.947373208146889e-08,
    -3.48075657088926e-07, -1.8349817239809663e-06, -1.5038574675153468e-05, -0.0002192357600633804,
    -0.009749577192522932, 0.3893984590258387,
)
# fmt: on


@jit.inline
def polynomial(t, coefficients):
    p = muladd(t, coefficients[0], coefficients[1])
    for c in coefficients[2:]:
        p = muladd(p, t, c)
    return p


def _of_float32(function, name, library=None):
    """`name(x)`: of float32 vectors by `function` in float64, of all others by the C library's."""
    computed = jit.inline(function)
    library = library or name

    def choose(x):
        vector = isinstance(x, Vector)
        if vector and x.dtype == F32:
            return lambda x: convert(computed(convert(x, F64)), F32)
        if (x.dtype if vector else x) in (F32, F64):
            return lambda x: libm(library, x)

    choose.__name__ = choose.__qualname__ = name
    return by_type(choose)


@jit.inline
def _plain_quotient(p, q):
    return p / q


@jit.inline
def _quotient_gpu(p, q):
    """p / q to 1e-15 for q that is not 0, infinite or subnormal: six instructions and no branch, where the exact one
    has fourteen and a call."""
    r = ptx.reciprocal_wide(q)
    r = muladd(muladd(-r, q, 1.0), r, r)
    y = p * r
    return muladd(muladd(-y, q, p), r, y)


@jit.inline
def _plain_inverse_root(x):
    return 1.0 / math.sqrt(x)


@jit.inline
def _inverse_root_gpu(x):
    """1 / sqrt(x) to 1e-15 for x that is not subnormal: eight instructions, where a root and a quotient have 60 that
    wait for one another."""
    r = ptx.inverse_root_wide(x)
    e = muladd(-(x * r), r, 1.0)
    y = muladd(muladd(e, 0.375, 0.5), r * e, r)
    return y if 0.0 < r < INF else r


quotient, inverse_root = (_quotient_gpu, _inverse_root_gpu) if isa.is_gpu() else (_plain_quotient, _plain_inverse_root)

# ---- logarithm, powers, sine and cosine --------------------------------------------------------


@jit.inline
def _odd_terms(p, z):
    """Seven terms of 2 atanh(s) / s = 2 (1 + z / 3 + z^2 / 5 + ...), z = s^2: from 1/17 to 1/5, before them `p`."""
    p = muladd(p, z, 0.058823529411764705)
    p = muladd(p, z, 0.06666666666666667)
    p = muladd(p, z, 0.07692307692307693)
    p = muladd(p, z, 0.09090909090909091)
    p = muladd(p, z, 0.1111111111111111)
    p = muladd(p, z, 0.14285714285714285)
    return muladd(p, z, 0.2)


@jit.inline
def log_wide(x):
    """log(x) of normal float64 numbers to 1 ulp, -infinity at 0; below 0, NaN."""
    bits = bitcast(x, I64)
    shifted = bits - 0x3FE6A09E667F3BCD  # so that the mantissa lies between sqrt(1/2) and sqrt(2)
    exponent = shifted >> 52
    f = bitcast(bits - (exponent << 52), F64) - 1.0
    k = convert(exponent, F64)
    s = quotient(f, f + 2.0)
    z = s * s
    p = muladd(z, 0.047619047619047616, 0.05263157894736842)
    p = _odd_terms(p, z)
    p = muladd(p, z, 0.3333333333333333)
    y = muladd(k, LN2_HI, muladd(k, LN2_LO, -(s * (f - 2.0 * z * p))) + f)
    y = select(x == INF, INF, select(x == 0.0, -INF, y))
    return select((x < 0.0) | (x != x), NAN, y)


@jit.inline
def _log_in_two(a):
    """(high, low): log(a) of positive float64 numbers, to some 2^-66 of it; needs fused multiply-adds.

    2 atanh(s) for s = (m - 1) / (m + 1): s, s^2 and the first two terms of the series are sums of two numbers each.
    """
    tiny = a < 2.2250738585072014e-308
    bits = bitcast(select(tiny, a * 18014398509481984.0, a), I64)  # 2^54
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52  # so that m lies between sqrt(1/2) and sqrt(2)
    m = bitcast(bits - (exponent << 52), F64)
    k = convert(exponent, F64) - select(tiny, 54.0 + 0.0 * a, 0.0 * a)
    f, t = m - 1.0, m + 1.0
    s = f / t
    s_low = (muladd(-s, t, f) - s * (m - (t - 1.0))) / t
    z = s * s
    z_low = muladd(s, s, -z) + 2.0 * s * s_low
    p = muladd(z, 0.04, 0.043478260869565216)
    p = muladd(p, z, 0.047619047619047616)
    p = muladd(p, z, 0.05263157894736842)
    p = _odd_terms(p, z) * z
    q = p + 0.3333333333333333
    q_low = (p - (q - 0.3333333333333333)) + 1.850371707708594e-17  # 1/3 less its float64
    w = z * q
    w_low = muladd(z, q, -w) + muladd(z, q_low, z_low * q)
    v = s * w
    v_low = muladd(s, w, -v) + muladd(s, w_low, s_low * w)
    high = s + v
    low = (v - (high - s)) + (s_low + v_low)
    whole = k * LN2_HI
    total = muladd(2.0, high, whole)
    rest = muladd(2.0, high, -(total - whole)) + muladd(k, LN2_LO, 2.0 * low)
    return total, rest


@jit.inline
def _pow_in_two(a, y):
    """a ** y of magnitudes in float64, within 1 ulp: the product with the logarithm is a sum of two numbers.

    A million take 2.1 ms on two cores, and 7.2 one lane after the other in the C library.
    """
    high, low = _log_in_two(a)
    special = (a == 0.0) | ((a - a) != 0.0)
    high = select(special, select(a == 0.0, -INF, a), high)
    x = y * high
    x_low = select(special | (vabs(x) > 800.0), 0.0, muladd(y, high, -x) + y * low)
    x = select(x > 800.0, 800.0, select(x < -800.0, -800.0, x))
    return exp_of_sum(x, x_low)


@jit.inline
def _signed_power(p, x, y):
    """x ** y of float64 vectors, where p is |x| ** y."""
    a = vabs(x)
    whole = y == vfloor(y)
    odd = whole & (vabs(y) < 9007199254740992.0) & (0.5 * y != vfloor(0.5 * y))
    negative = bitcast(x, I64) < 0
    p = select(negative & odd, -p, p)
    p = select((x < 0.0) & (x != -INF) & (y == y) & (vabs(y) != INF) & (y != vfloor(y)), NAN, p)
    p = select((a == 1.0) & (vabs(y) == INF), 1.0, p)
    return select((x == 1.0) | (y == 0.0), 1.0, p)


@jit.inline
def _pow_of_float32(x, y):
    return _signed_power(exp(y * log_wide(vabs(x))), x, y)


@by_type
def pow(x, y):
    """x ** y on every lane; integers modulo 2^bits."""
    if isinstance(x, Vector) and x == y:
        if x.dtype == F32:
            if isa.is_gpu():
                return lambda x, y: gpu.pow(x, y)
            return lambda x, y: convert(_pow_of_float32(convert(x, F64), convert(y, F64)), F32)
        if x.dtype == F64 and isa.has_fma() and not isa.is_gpu():
            return lambda x, y: _signed_power(_pow_in_two(vabs(x), y), x, y)
        if x.dtype == F64:
            return lambda x, y: libm_pow(x, y)
        return lambda x, y: pow_of_integers(x, y)


@jit.inline
def _sine_cosine(x):
    """(sin x, cos x) of numbers up to 1e6, to some 1e-11."""
    shifted = muladd(x, TWO_OVER_PI, MAGIC)
    k = shifted - MAGIC
    quarter = bitcast(shifted, I64)
    r = muladd(k, -PI_2_LO, muladd(k, -PI_2_HI, x))
    z = r * r
    s = muladd(z, 1.605904383682161e-10, -2.505210838544172e-08)
    s = muladd(s, z, 2.7557319223985893e-06)
    s = muladd(s, z, -0.0001984126984126984)
    s = muladd(s, z, 0.008333333333333333)
    s = muladd(s, z, -0.16666666666666666)
    s = muladd(s * z, r, r)
    c = muladd(z, -1.1470745597729725e-11, 2.08767569878681e-09)
    c = muladd(c, z, -2.755731922398589e-07)
    c = muladd(c, z, 2.48015873015873e-05)
    c = muladd(c, z, -0.001388888888888889)
    c = muladd(c, z, 0.041666666666666664)
    c = muladd(c, z, -0.5)
    c = muladd(c, z, 1.0)
    swapped = (quarter & 1) != 0
    sine, cosine = select(swapped, c, s), select(swapped, s, c)
    sine = select((quarter & 2) != 0, -sine, sine)
    return sine, select(((quarter + 1) & 2) != 0, -cosine, cosine)


@jit.inline
def _beside_integer(x):
    """x less the nearest integer."""
    return select(vabs(x) < 1e15, x - ((x + MAGIC) - MAGIC), 0.0)


@jit.inline
def tangent_wide(x):
    """tan(pi x), to some 1e-11."""
    sine, cosine = _sine_cosine(PI * _beside_integer(x))
    return sine / cosine


@by_type
def nextafter(x, y):
    """The next number from x towards y on every lane."""
    if not (isinstance(x, Vector) and x == y and x.dtype in (F32, F64)):
        return lambda x, y: libm_nextafter(x, y)
    integer = I32 if x.dtype == F32 else I64
    lowest = -0x80000000 if x.dtype == F32 else -0x8000000000000000
    floating = x.dtype

    def function(x, y):
        bits = bitcast(x, integer)
        step = select(y > x, 1 + 0 * bits, -1 + 0 * bits)  # of positive numbers; the others count downwards
        bits = select(x == 0.0, (bitcast(y, integer) & lowest) | 1, bits + select(bits < 0, -step, step))
        found = select(x == y, y, bitcast(bits, floating))
        return select((x != x) | (y != y), NAN, found)

    return function


# ---- gamma and error functions -----------------------------------------------------------------


def _lgamma(x):
    # Stirling's series (DLMF 5.11.1) from 8 on, the recurrence below, the reflection below 0.
    below = x <= 0.0
    y = select(below, 1.0 - x, x)
    small = y < 8.0
    t = select(small, y, 1.0)
    product = t * (t + 1.0) * (t + 2.0) * (t + 3.0) * (t + 4.0) * (t + 5.0) * (t + 6.0) * (t + 7.0)
    z = select(small, y + 8.0, y)
    v = quotient(1.0, z)
    w = v * v
    p = muladd(w, -0.0019175269175269176, 0.0008417508417508417)
    p = muladd(p, w, -0.0005952380952380953)
    p = muladd(p, w, 0.0007936507936507937)
    p = muladd(p, w, -0.002777777777777778)
    p = muladd(p, w, 0.08333333333333333)
    value = (z - 0.5) * log_wide(z) - z + 0.9189385332046727 + p * v
    value = value - select(small, log_wide(product), 0.0)
    if reduce_or(below):
        sine, _ = _sine_cosine(PI * _beside_integer(x))
        value = select(below, 1.1447298858494002 - log_wide(vabs(sine)) - value, value)
    return select(vabs(x) == INF, INF, value)


@jit.inline
def _erfcx_positive(a):
    # (1 + 2 a) erfcx(a) over (a - 2) / (a + 2)
    p = polynomial(quotient(a - 2.0, a + 2.0), _ERFCX)
    return select(a == INF, 0.0, quotient(p, muladd(a, 2.0, 1.0)))


# (1 + 2 a) erfcx(a) over (a - 2) / (a + 2) for a up to 10.2, beyond which erfc is 0 in float32: relative error 3e-8
# fmt: off
_ERFCX_F32 = (
    -0.000422515471, -0.00126063436, 0.00132876772, 0.00866199835, -0.00806206843, -0.0542138765, 0.164055199,
    -0.166030434, -0.0927639632, 1.27697838,
)
# fmt: on


@jit.inline
def _square_in_two(a):
    """(a^2 rounded, what that lost)."""
    square = a * a
    high = bitcast(bitcast(a, I32) & -0x1000, F32)  # whose square is exact
    return square, (high * high - square) + (a - high) * (a + high)


def _erfc_f32(x):
    a = vmin(vabs(x), 10.2)
    square, rest = _square_in_two(a)
    above, below = a + 2.0, muladd(a, 2.0, 1.0)
    v = 1.0 / (above * below)
    y = exp(-square) * polynomial((a - 2.0) * below * v, _ERFCX_F32) * (above * v)
    y = muladd(y, -rest, y)
    return select(x < 0.0, 2.0 - y, y)


def _erfc_f32_gpu(x):
    # The same by the instructions for quotients and powers of 2.
    a = vmin(vabs(x), 10.2)
    square = a * a
    y = polynomial((a - 2.0) * ptx.reciprocal(a + 2.0), _ERFCX_F32) * ptx.reciprocal(muladd(a, 2.0, 1.0))
    y = y * gpu.exp_of_sum(-square, -muladd(a, a, -square))
    return select(x < 0.0, 2.0 - y, select(x == x, y, x))


@jit.inline
def erfcx_wide(x):
    """exp(x^2) erfc(x) of a float32 number in float64."""
    a = vabs(x)
    y = _erfcx_positive(a)
    if not reduce_or(x < 0.0):
        return y
    return select(x < 0.0, 2.0 * exp(a * a) - y, y)


# ---- Bessel functions --------------------------------------------------------------------------


@jit.inline
def i0e_wide(a):
    """I0(a) exp(-a) for a >= 0: over a / 4 - 1 up to 8, then times sqrt(a) over 16 / a - 1."""
    near = select(a < 8.0, a, 0.0)
    y = polynomial(muladd(near, 0.25, -1.0), _I0)
    if reduce_or(~(a < 8.0)):
        far = select(a < 8.0, 8.0, a)
        y = select(a < 8.0, y, polynomial(16.0 / far - 1.0, _I0_FAR) / vsqrt(far))
    return y


@jit.inline
def i1e_wide(a):
    """I1(a) exp(-a) for a >= 0, likewise; up to 8 divided by a."""
    near = select(a < 8.0, a, 0.0)
    y = near * polynomial(muladd(near, 0.25, -1.0), _I1)
    if reduce_or(~(a < 8.0)):
        far = select(a < 8.0, 8.0, a)
        y = select(a < 8.0, y, polynomial(16.0 / far - 1.0, _I1_FAR) / vsqrt(far))
    return y


@jit.inline
def _far(a, p, q, first, second):
    """sqrt(2 / (pi a)) (P first + Q second), with P and a Q over 128 / a^2 - 1 (DLMF 10.17.3)."""
    v = quotient(8.0, a)
    w = muladd(v * v, 2.0, -1.0)
    total = polynomial(w, p) * first + quotient(polynomial(w, q), a) * second
    return vsqrt(quotient(TWO_OVER_PI, a)) * total * 0.7071067811865476


def _j0(x):
    a = vabs(x)
    near = select(a < 8.0, a, 0.0)
    y = polynomial(muladd(near * near, 0.03125, -1.0), _J0)
    if reduce_or(~(a < 8.0)):  # what is beyond takes twice as long as all else: j0 of a GPU's 64 Mi elements 855 us
        far = select(a < 8.0, 8.0, a)
        s, c = _sine_cosine(far)
        y = select(a < 8.0, y, _far(far, _P0, _Q0, c + s, c - s))
    return y


def _j1(x):
    a = vabs(x)
    near = select(a < 8.0, a, 0.0)
    y = near * polynomial(muladd(near * near, 0.03125, -1.0), _J1)
    if reduce_or(~(a < 8.0)):
        far = select(a < 8.0, 8.0, a)
        s, c = _sine_cosine(far)
        y = select(a < 8.0, y, _far(far, _P1, _Q1, s - c, s + c))
    return select(x < 0.0, -y, y)


def _y0(x):
    near = select(x < 8.0, x, 0.0)
    w = muladd(near * near, 0.03125, -1.0)
    y = muladd(TWO_OVER_PI * log_wide(near), polynomial(w, _J0), polynomial(w, _Y0))
    if reduce_or(~(x < 8.0)):
        far = select(x < 8.0, 8.0, x)
        s, c = _sine_cosine(far)
        y = select(x < 8.0, y, _far(far, _P0, _Q0, s - c, c + s))
    return y


def _y1(x):
    near = select(x < 8.0, x, 0.0)
    w = muladd(near * near, 0.03125, -1.0)
    y = near * (TWO_OVER_PI * log_wide(near) * polynomial(w, _J1) + polynomial(w, _Y1)) - TWO_OVER_PI / near
    y = select(x == 0.0, -INF, y)
    if reduce_or(~(x < 8.0)):
        far = select(x < 8.0, 8.0, x)
        s, c = _sine_cosine(far)
        y = select(x < 8.0, y, _far(far, _P1, _Q1, -(s + c), s - c))
    return y


def _up_to_a_million(function, name):
    """`function` where no lane is beyond 1e6, of which the argument of sine and cosine would be too coarse."""
    computed = jit.inline(function)

    def choose(x):
        vector = isinstance(x, Vector)
        if vector and x.dtype == F32:

            def one(x):
                if reduce_or(vabs(x) > 1e6):
                    return rare_libm(name, x)
                return convert(computed(convert(x, F64)), F32)

            return one
        if (x.dtype if vector else x) in (F32, F64):
            return lambda x: libm(name, x)

    choose.__name__ = choose.__qualname__ = name
    return by_type(choose)


lgamma_wide = jit.inline(_lgamma)  # to some 1e-13


def _lgamma_f32_gpu(x):
    y = gpu.lgamma_of_positive(x, log(x))
    if reduce_or(x < 0.0):
        y = select(x < 0.0, convert(lgamma_wide(convert(x, F64)), F32), y)
    return y


lgamma = function_of("lgamma", _lgamma_f32_gpu) if isa.is_gpu() else _of_float32(_lgamma, "lgamma")
erfc = function_of("erfc", _erfc_f32_gpu if isa.is_gpu() else _erfc_f32)
j0, j1 = _up_to_a_million(_j0, "j0"), _up_to_a_million(_j1, "j1")
y0, y1 = _up_to_a_million(_y0, "y0"), _up_to_a_million(_y1, "y1")
