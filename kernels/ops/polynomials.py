"""Orthogonal polynomials of a degree that each element has; elementwise."""

import functools

import numpy as np

from ..lang import scalar_math as m
from ..table.registry import alias
from .special import scipy_ref, special

_two = functools.partial(special, dtypes=("float32", "float64"))  # those of PyTorch


def _degrees(function):
    """A polynomial of NumPy as a reference: the degree first, without its fraction, 0 where it is negative."""

    def ref(input, n):
        n = np.trunc(n).astype(np.int64)
        return np.where(n < 0, 0.0, function(np.maximum(n, 0), np.asarray(input, np.float64)))

    return ref


def _u(n, x):
    return np.where(n < 0, 0.0, scipy_ref("eval_chebyu")(np.maximum(n, 0), x))


_REFERENCES = {
    "t": scipy_ref("eval_chebyt"),
    "u": scipy_ref("eval_chebyu"),
    "v": lambda n, x: _u(n, x) - _u(n - 1, x),
    "w": lambda n, x: _u(n, x) + _u(n - 1, x),
}


def polynomial(function, shifted=False):
    """The decorator of a polynomial, whose reference is `function(n, x)`, or of 2 x - 1."""
    ref = _degrees((lambda n, x: function(n, 2.0 * x - 1.0)) if shifted else function)
    return _two(ref=ref, gradient="missing")


# ---- Chebyshev's ---------------------------------------------------------------------------------


@polynomial(_REFERENCES["t"])
def chebyshev_polynomial_t(input, n):
    """Chebyshev's polynomial of the first kind T_n(input): T_n(cos a) = cos(n a); 0 for n below 0."""
    return m.chebyshev_t(input, n)


@polynomial(_REFERENCES["u"])
def chebyshev_polynomial_u(input, n):
    """Chebyshev's polynomial of the second kind U_n(input): U_n(cos a) = sin((n + 1) a) / sin(a); 0 for n below 0."""
    return m.chebyshev_u(input, n)


@polynomial(_REFERENCES["v"])
def chebyshev_polynomial_v(input, n):
    """Chebyshev's polynomial of the third kind V_n(input): V_n(cos a) = cos((n + 1/2) a) / cos(a / 2)."""
    return m.chebyshev_v(input, n)


@polynomial(_REFERENCES["w"])
def chebyshev_polynomial_w(input, n):
    """Chebyshev's polynomial of the fourth kind W_n(input): W_n(cos a) = sin((n + 1/2) a) / sin(a / 2)."""
    return m.chebyshev_w(input, n)


@polynomial(_REFERENCES["t"], shifted=True)
def shifted_chebyshev_polynomial_t(input, n):
    """T_n(2 input - 1), the polynomial of the first kind on [0, 1]."""
    return m.shifted_t(input, n)


@polynomial(_REFERENCES["u"], shifted=True)
def shifted_chebyshev_polynomial_u(input, n):
    """U_n(2 input - 1), the polynomial of the second kind on [0, 1]."""
    return m.shifted_u(input, n)


@polynomial(_REFERENCES["v"], shifted=True)
def shifted_chebyshev_polynomial_v(input, n):
    """V_n(2 input - 1), the polynomial of the third kind on [0, 1]."""
    return m.shifted_v(input, n)


@polynomial(_REFERENCES["w"], shifted=True)
def shifted_chebyshev_polynomial_w(input, n):
    """W_n(2 input - 1), the polynomial of the fourth kind on [0, 1]."""
    return m.shifted_w(input, n)


# ---- Hermite's, Laguerre's, Legendre's -----------------------------------------------------------


@_two(ref=_degrees(scipy_ref("eval_hermite")))
def hermite_polynomial_h(input, n):
    """Hermite's polynomial H_n(input), orthogonal under exp(-x^2); 0 for n below 0."""
    return m.hermite_h(input, n)


@hermite_polynomial_h.grad("input")
def _(g, input, n):
    return 2.0 * g * m.trunc(n) * m.hermite_h(input, n - 1.0)


@_two(ref=_degrees(scipy_ref("eval_hermitenorm")))
def hermite_polynomial_he(input, n):
    """Hermite's polynomial He_n(input), orthogonal under exp(-x^2 / 2); 0 for n below 0."""
    return m.hermite_he(input, n)


@hermite_polynomial_he.grad("input")
def _(g, input, n):
    return g * m.trunc(n) * m.hermite_he(input, n - 1.0)


alias(hermite_polynomial_h, "hermite_h")  # what the rules call them, for derivatives of derivatives
alias(hermite_polynomial_he, "hermite_he")


@polynomial(scipy_ref("eval_laguerre"))
def laguerre_polynomial_l(input, n):
    """Laguerre's polynomial L_n(input), orthogonal under exp(-x) above 0; 0 for n below 0."""
    return m.laguerre_l(input, n)


@polynomial(scipy_ref("eval_legendre"))
def legendre_polynomial_p(input, n):
    """Legendre's polynomial P_n(input), orthogonal on [-1, 1]; 0 for n below 0."""
    return m.legendre_p(input, n)
