"""Bessel functions, Airy's function, and the quantiles of the normal distribution; elementwise."""

import functools

import numpy as np

from ..lang import scalar_math as m
from ..table.registry import alias
from .special import i0, i1, scipy_ref, special

_two = functools.partial(special, dtypes=("float32", "float64"))  # those of PyTorch

alias(i0, "modified_bessel_i0")
alias(i1, "modified_bessel_i1")


@special(ref=scipy_ref("j0"))
def bessel_j0(input):
    """The Bessel function of the first kind of order 0."""
    return m.j0(input)


@bessel_j0.grad("input")
def _(g, input):
    return -g * m.j1(input)


@special(ref=scipy_ref("j1"))
def bessel_j1(input):
    """The Bessel function of the first kind of order 1."""
    return m.j1(input)


@bessel_j1.grad("input")
def _(g, input, out):
    return g * (m.j0(input) - m.where(input == 0.0, 0.5, out / m.where(input == 0.0, 1.0, input)))


@special(ref=scipy_ref("y0"), domain=(0.3, 8))
def bessel_y0(input):
    """The Bessel function of the second kind of order 0."""
    return m.y0(input)


@bessel_y0.grad("input")
def _(g, input):
    return -g * m.y1(input)


@special(ref=scipy_ref("y1"), domain=(0.3, 8))
def bessel_y1(input):
    """The Bessel function of the second kind of order 1."""
    return m.y1(input)


@bessel_y1.grad("input")
def _(g, input, out):
    return g * (m.y0(input) - out / input)


@_two(ref=scipy_ref("k0"), domain=(0.1, 9))
def modified_bessel_k0(input):
    """The modified Bessel function of the second kind of order 0: inf at 0, NaN below."""
    return m.k0(input)


@modified_bessel_k0.grad("input")
def _(g, input):
    return -g * m.k1(input)


@_two(ref=scipy_ref("k1"), domain=(0.1, 9))
def modified_bessel_k1(input):
    """The modified Bessel function of the second kind of order 1: inf at 0, NaN below."""
    return m.k1(input)


@modified_bessel_k1.grad("input")
def _(g, input, out):
    return -g * (m.k0(input) + out / input)


@_two(ref=scipy_ref("k0e"), domain=(0.1, 40))
def scaled_modified_bessel_k0(input):
    """modified_bessel_k0(x) exp(x)."""
    return m.k0e(input)


@scaled_modified_bessel_k0.grad("input")
def _(g, input, out):
    return g * (out - m.k1e(input))


@_two(ref=scipy_ref("k1e"), domain=(0.1, 40))
def scaled_modified_bessel_k1(input):
    """modified_bessel_k1(x) exp(x)."""
    return m.k1e(input)


@scaled_modified_bessel_k1.grad("input")
def _(g, input, out):
    return g * (out - m.k0e(input) - out / input)


def _spherical_ref(x):
    return np.where(np.isinf(x), 0.0, np.sinc(np.where(np.isinf(x), 0.0, x) / np.pi))


@_two(ref=_spherical_ref)
def spherical_bessel_j0(input):
    """The spherical Bessel function of the first kind of order 0: sin(x) / x, 1 at 0, and 0 at the infinities."""
    far = m.abs(input) == 1e999  # infinite
    near = m.abs(input) < 1e-18  # what is near 0 has no quotient of some devices
    return m.where(far, 0.0, m.where(near, 1.0, m.sin(input) / m.where(near, 1.0, input)))


@spherical_bessel_j0.grad("input")
def _(g, input, out):
    small = m.abs(input) < 1e-3
    return g * m.where(small, -0.3333333333333333 * input, (m.cos(input) - out) / m.where(small, 1.0, input))


@_two(ref=lambda x: scipy_ref("airy")(x)[0], domain=(-12, 12), gradient="missing")
def airy_ai(input):
    """Airy's function Ai; NaN at the infinities."""
    return m.airy_ai(input)


@_two(ref=scipy_ref("ndtri"), domain=(0.02, 0.98))
def ndtri(input):
    """The number below which a standard normal one lies with probability `input`; NaN outside of [0, 1]."""
    return m.ndtri(input)


@ndtri.grad("input")
def _(g, out):
    return g * (2.5066282746310002 * m.exp(0.5 * out * out))


# By SciPy's names, which are also those that rules, and so derivatives of derivatives, know them by.
for _row, _name in ((bessel_j0, "j0"), (bessel_j1, "j1"), (bessel_y0, "y0"), (bessel_y1, "y1")):
    alias(_row, _name)
for _row, _name in ((modified_bessel_k0, "k0"), (modified_bessel_k1, "k1")):
    alias(_row, _name)
alias(scaled_modified_bessel_k0, "k0e")
alias(scaled_modified_bessel_k1, "k1e")
