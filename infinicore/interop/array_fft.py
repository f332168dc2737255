"""The `fft` of the array API standard over the framework's."""

import numpy as np

from ..device import usable
from ..dispatch.functions import FUNCTIONS
from ..dtype import dtype as _dtype
from ..dtype import float32
from .numpy import from_numpy


def _one(name):
    compute = FUNCTIONS[f"fft_{name}"]

    def function(x, /, *, n=None, axis=-1, norm="backward"):
        return compute(x, n, axis, norm)

    function.__name__, function.__doc__ = name, f"`{name}` along `axis`."
    return function


def _several(name):
    compute = FUNCTIONS[f"fft_{name}"]

    def function(x, /, *, s=None, axes=None, norm="backward"):
        return compute(x, s, axes, norm)

    function.__name__, function.__doc__ = name, f"`{name}` over `axes`."
    return function


def _frequencies(name):
    def function(n, /, *, d=1.0, dtype=None, device=None):
        wanted = float32 if dtype is None else _dtype(dtype)
        return from_numpy(getattr(np.fft, name)(n, d), dtype=wanted, device=usable(device))

    function.__name__, function.__doc__ = name, f"`{name}` of `n` samples at distances `d`."
    return function


def _shift(name):
    compute = FUNCTIONS[f"fft_{name}"]

    def function(x, /, *, axes=None):
        return compute(x, axes)

    function.__name__, function.__doc__ = name, f"`{name}` over `axes`, all by default."
    return function


fft, ifft, rfft, irfft, hfft, ihfft = map(_one, ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"))
fftn, ifftn, rfftn, irfftn = map(_several, ("fftn", "ifftn", "rfftn", "irfftn"))
fftfreq, rfftfreq = map(_frequencies, ("fftfreq", "rfftfreq"))
fftshift, ifftshift = map(_shift, ("fftshift", "ifftshift"))
