"""Fourier transforms under the names of `torch.fft`: `infinicore.fft.rfft` is the op `fft_rfft`, and so on."""

import numpy as np

from .device import usable
from .dtype import dtype as to_dtype
from .dtype import get_default_dtype
from .interop.numpy import from_numpy
from .tensor.gradients import makes_leaf
from .tensor.tensor import FUNCTIONS

_PREFIX = "fft_"
_TRANSFORMS = [kind + end for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for end in ("", "2", "n")]
_FROM_TABLE = [*_TRANSFORMS, "fftshift", "ifftshift"]

__all__ = sorted([*_FROM_TABLE, "fftfreq", "rfftfreq"])


def __getattr__(name):
    if name not in _FROM_TABLE:
        raise AttributeError(f"module 'infinicore.fft' has no attribute {name!r}")
    globals()[name] = value = FUNCTIONS[_PREFIX + name]
    return value


def __dir__():
    return __all__


def _frequencies(function, n, d, dtype, device):
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"`n` must be a positive number of samples, got {n!r}")
    wanted = get_default_dtype() if dtype is None else to_dtype(dtype)
    return from_numpy(function(n, d), dtype=wanted, device=usable(device))


@makes_leaf
def fftfreq(n, d=1.0, *, dtype=None, device=None):
    """The frequencies of the results of `fft` of `n` samples at distances `d`, in cycles: 0, 1, ..., -1 over n d."""
    return _frequencies(np.fft.fftfreq, n, d, dtype, device)


@makes_leaf
def rfftfreq(n, d=1.0, *, dtype=None, device=None):
    """The frequencies of the results of `rfft` of `n` samples at distances `d`: 0, 1, ..., n // 2 over n d."""
    return _frequencies(np.fft.rfftfreq, n, d, dtype, device)
