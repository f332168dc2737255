"""Special functions: relatives of the gamma function, error functions, Bessel functions, and x log y."""

import functools

import numpy as np

from ..lang import scalar_math as m
from ..table.composite import composite
from ..table.registry import alias, elementwise
from ._layout import check


def scipy_ref(name):
    """SciPy's function of this name: a reference for tests, who import it."""

    def ref(*args):
        from scipy import special as functions

        return getattr(functions, name)(*args)

    return ref


special = functools.partial(elementwise, result="float", amp="float32")


# ---- relatives of the gamma function -----------------------------------------------------------


@special(ref=scipy_ref("gammaln"), domain=(0.2, 8))
def lgamma(input):
    """Logarithm of the absolute value of the gamma function."""
    return m.lgamma(input)


@lgamma.grad("input")
def _(g, input):
    return g * m.digamma(input)


alias(lgamma, "gammaln")


@special(ref=scipy_ref("digamma"), domain=(0.2, 8))
def digamma(input):
    """Derivative of `lgamma`; NaN at negative integers, infinite at 0."""
    return m.digamma(input)


@digamma.grad("input")
def _(g, input):
    return g * m.trigamma(input)


alias(digamma, "psi")


def _trigamma_ref(x):
    return scipy_ref("polygamma")(1, x)


@special(ref=_trigamma_ref, domain=(0.2, 8), step=True)
def trigamma(input):
    """Derivative of `digamma`: `polygamma(1, input)`; infinite at 0 and at negative integers."""
    return m.trigamma(input)


@trigamma.grad("input")
def _(g, input):
    return -2.0 * g * m.zeta(0.0 * input + 3.0, input)


@special(ref=scipy_ref("zeta"), domain=(1.5, 6))
def zeta(input, other):
    """Hurwitz's zeta function: the sum of (k + other)^-input over k = 0, 1, ...; NaN for `input` below 1."""
    return m.zeta(input, other)


@zeta.grad("other")
def _(g, input, other):
    return -g * input * m.zeta(input + 1.0, other)


@special(ref=scipy_ref("gammainc"), domain=(0.3, 6))
def igamma(input, other):
    """The regularised lower incomplete gamma function P(input, other); its derivative by `input` is missing."""
    return m.gammainc(input, other)


@igamma.grad("other")
def _(g, input, other):
    return g * m.exp((input - 1.0) * m.log(other) - other - m.lgamma(input))


@special(ref=scipy_ref("gammaincc"), domain=(0.3, 6))
def igammac(input, other):
    """The regularised upper incomplete gamma function Q = 1 - P; its derivative by `input` is missing."""
    return m.gammaincc(input, other)


@igammac.grad("other")
def _(g, input, other):
    return -g * m.exp((input - 1.0) * m.log(other) - other - m.lgamma(input))


alias(igamma, "gammainc")
alias(igammac, "gammaincc")


def _polygamma_samples(rng):
    for n in (0, 1, 2, 4):
        yield (n, rng.uniform(0.3, 6, (3, 17))), {}


@composite(ref=scipy_ref("polygamma"), samples=_polygamma_samples, tolerance={"float32": (2e-5, 1e-5)}, amp="float32")
def polygamma(f, n: int, input):
    """The n-th derivative of `digamma`, for an integer `n` of 0 or more."""
    check(f, input, "input", integers=True)
    if type(n) is not int:
        raise TypeError(f"`n` of `polygamma` must be an integer, got {n!r}")
    if n < 0:
        raise ValueError(f"`n` of `polygamma` must not be negative, got {n}")
    if n == 0:
        return f.digamma(input)
    if n == 1:
        return f.trigamma(input)
    wide = wider(input)
    factor = (1.0 if n % 2 else -1.0) * float(np.exp(m.lgamma(n + 1.0)))
    return narrowed_to(f.mul(f.zeta(n + 1.0, wide), factor), input)


def wider(x):
    """16-bit floats in float32, so that what is composed is rounded once; others as they are."""
    return x.to(dtype="float32") if x.dtype.itemsize == 2 and x.dtype.is_floating_point else x


def narrowed_to(y, x):
    """A result of `wider(x)` in the dtype of a floating-point x."""
    return y.to(dtype=x.dtype) if x.dtype.is_floating_point else y


def _mvlgamma_samples(rng):
    for p in (1, 2, 4):
        yield (rng.uniform(2, 6, (3, 17)), p), {}


@composite(ref=scipy_ref("multigammaln"), samples=_mvlgamma_samples, amp="float32")
def mvlgamma(f, input, p: int):
    """The multivariate log-gamma function of `p` dims: the sum of `lgamma(input - j / 2)` for j < p, and a constant."""
    check(f, input, "input", integers=True)
    if type(p) is not int or p < 1:
        raise ValueError(f"`p` of `mvlgamma` must be an integer of 1 or more, got {p!r}")
    x = wider(input)
    y = f.lgamma(x)
    for j in range(1, p):
        y = y + f.lgamma(x - 0.5 * j)
    return narrowed_to(y + p * (p - 1) / 4 * 1.1447298858494002, input)


alias(mvlgamma, "multigammaln")

# ---- error functions ---------------------------------------------------------------------------


@special(ref=scipy_ref("erfc"), domain=(-3, 6), tolerance={"float32": (1e-5, 0), "float64": (1e-12, 0)})
def erfc(input):
    """1 - erf(x), exact for large x."""
    return m.erfc(input)


@erfc.grad("input")
def _(g, input):
    return g * (-1.1283791670955126 * m.exp(-(input * input)))


@special(ref=scipy_ref("erfcx"), domain=(-2, 20))
def erfcx(input):
    """exp(x^2) erfc(x)."""
    return m.erfcx(input)


@erfcx.grad("input")
def _(g, input, out):
    return g * (2.0 * input * out - 1.1283791670955126)


@special(ref=scipy_ref("erfinv"), domain=(-0.95, 0.95))
def erfinv(input):
    """The number whose error function it is; NaN beyond 1."""
    return m.erfinv(input)


@erfinv.grad("input")
def _(g, out):
    return g * (0.886226925452758 * m.exp(out * out))


@special(ref=scipy_ref("ndtr"))
def ndtr(input):
    """The normal distribution function."""
    return 0.5 * m.erfc(-0.7071067811865476 * input)


@ndtr.grad("input")
def _(g, input):
    return g * (0.3989422804014327 * m.exp(-0.5 * input * input))


@special(ref=scipy_ref("log_ndtr"), domain=(-12, 4))
def log_ndtr(input):
    """Logarithm of the normal distribution function, exact far below 0."""
    t = 0.7071067811865476 * input
    far = m.log(0.5 * m.erfcx(m.where(input < -1.0, -t, 1.0))) - t * t
    return m.where(input < -1.0, far, m.log1p(-0.5 * m.erfc(m.where(input < -1.0, 1.0, t))))


@log_ndtr.grad("input")
def _(g, input):
    return g * 0.7978845608028654 / m.erfcx(-0.7071067811865476 * input)


# ---- modified Bessel functions --------------------------------------------------------------------------


@special(ref=scipy_ref("i0"))
def i0(input):
    """The modified Bessel function of the first kind of order 0."""
    return m.i0(input)


@i0.grad("input")
def _(g, input):
    return g * m.i1(input)


@special(ref=scipy_ref("i0e"), domain=(-40, 40))
def i0e(input):
    """i0(x) exp(-|x|)."""
    return m.i0e(input)


@i0e.grad("input")
def _(g, input, out):
    return m.where(input == 0.0, 0.0, g * (m.i1e(input) - m.copysign(out, input)))  # exp(-|x|) has a corner there


@special(ref=scipy_ref("i1"))
def i1(input):
    """The modified Bessel function of the first kind of order 1."""
    return m.i1(input)


@i1.grad("input")
def _(g, input, out):
    return g * (m.i0(input) - m.where(input == 0.0, 0.5, out / m.where(input == 0.0, 1.0, input)))


@special(ref=scipy_ref("i1e"), domain=(-40, 40))
def i1e(input):
    """i1(x) exp(-|x|)."""
    return m.i1e(input)


@i1e.grad("input")
def _(g, input, out):
    shared = m.where(input == 0.0, 0.5, out / m.where(input == 0.0, 1.0, input))
    return g * (m.i0e(input) - m.abs(out) - shared)


# ---- logarithms --------------------------------------------------------------------------------


@special(ref=scipy_ref("xlogy"), domain=(0.1, 4))
def xlogy(input, other):
    """input * log(other), and 0 where `input` is 0, unless `other` is NaN."""
    return m.where((input == 0.0) & (other == other), 0.0, input * m.log(other))


@xlogy.grad("input")
def _(g, input, other):
    return m.where((input == 0.0) & (other <= 0.0), 0.0, g * m.log(other))


@xlogy.grad("other")
def _(g, input, other):
    return g * input / other


@special(ref=scipy_ref("xlog1py"), domain=(0.1, 4))
def xlog1py(input, other):
    """input * log(1 + other), and 0 where `input` is 0, unless `other` is NaN."""
    return m.where((input == 0.0) & (other == other), 0.0, input * m.log1p(other))


@xlog1py.grad("input")
def _(g, input, other):
    return m.where((input == 0.0) & (other <= -1.0), 0.0, g * m.log1p(other))


@xlog1py.grad("other")
def _(g, input, other):
    return g * input / (other + 1.0)


@special(ref=scipy_ref("entr"), domain=(0.1, 4))
def entr(input):
    """-x log(x), 0 at 0, and -inf below."""
    logarithm = m.log(m.where(input < 0.0, 0.0, input))
    return m.where(input < 0.0, logarithm, m.where(input == 0.0, 0.0, -input * logarithm))


@entr.grad("input")
def _(g, input):
    return -g * (m.log(input) + 1.0)


def _logit_ref(x, eps=None):
    x = x if eps is None else np.where(x < eps, eps, np.where(x > 1 - eps, 1 - eps, x))
    return np.log(x) - np.log1p(-x)


@special(ref=_logit_ref, domain=(0.05, 0.4))
def logit(input, eps=None):
    """log(x / (1 - x)), the inverse of `sigmoid`; with `eps`, of x limited to [eps, 1 - eps]."""
    x = m.where((eps >= 0.0) & (input < eps), eps, m.where((eps >= 0.0) & (input > 1.0 - eps), 1.0 - eps, input))
    return m.log(x / (1.0 - x))


@logit.form("eps")
def _(f, input, eps, out=None):
    return f.logit(input, -1.0, out=out)


@logit.grad("input")
def _(g, input, eps):
    none = m.where(eps >= 0.0, 0.0, m.sqrt(eps))  # the result is a limit, or (without `eps`, here -1) NaN
    low, high = m.where(eps >= 0.0, eps, 0.0), m.where(eps >= 0.0, 1.0 - eps, 1.0)
    return m.where((input < low) | (input > high), none, g / (input * (1.0 - input)))
