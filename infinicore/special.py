"""Special functions by the names of SciPy and `torch.special`."""

from .tensor.tensor import FUNCTIONS

_OTHERS = {"expit": "sigmoid", "logsumexp": "logsumexp", "log_softmax": "log_softmax", "softmax": "softmax"}
_NAMES = (
    "bessel_j0 bessel_j1 bessel_y0 bessel_y1 digamma entr erf erfc erfcx erfinv exp2 expm1 gammainc gammaincc gammaln "
    "i0 i0e i1 i1e log1p log_ndtr logit multigammaln ndtr polygamma psi round sinc xlog1py xlogy zeta"
).split()

__all__ = sorted([*_NAMES, *_OTHERS])


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module 'infinicore.special' has no attribute {name!r}")
    found = globals()[name] = FUNCTIONS[_OTHERS.get(name, name)]
    return found


def __dir__():
    return __all__
