"""Special functions by the names of SciPy and `torch.special`."""

from .tensor.tensor import FUNCTIONS

_OTHERS = {"expit": "sigmoid", "logsumexp": "logsumexp", "log_softmax": "log_softmax", "softmax": "softmax"}
_NAMES = (
    "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 digamma entr erf erfc erfcx erfinv exp2 expm1 gammainc "
    "gammaincc gammaln hermite_polynomial_h hermite_polynomial_he i0 i0e i1 i1e laguerre_polynomial_l "
    "legendre_polynomial_p log1p log_ndtr logit modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 "
    "modified_bessel_k1 multigammaln ndtr ndtri polygamma psi round scaled_modified_bessel_k0 "
    "scaled_modified_bessel_k1 sinc spherical_bessel_j0 xlog1py xlogy zeta"
).split() + [f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"]

__all__ = sorted([*_NAMES, *_OTHERS])


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module 'infinicore.special' has no attribute {name!r}")
    found = globals()[name] = FUNCTIONS[_OTHERS.get(name, name)]
    return found


def __dir__():
    return __all__
