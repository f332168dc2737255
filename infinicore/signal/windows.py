"""Windows under the names of `torch.signal.windows`, and (`*_window`) of `torch`.

A window of M numbers is symmetric; with `sym=False` (`periodic=True`) it is one of M + 1 without the last, as spectra
take them.
"""

import functools
import inspect
import math
from numbers import Integral

import numpy as np

from ..device import usable
from ..dtype import dtype as to_dtype
from ..dtype import get_default_dtype
from ..interop.numpy import from_numpy
from ..tensor.gradients import makes_leaf

__all__ = [
    "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming", "hamming",
    "hann", "kaiser", "nuttall",
]  # fmt: skip


def _window(function):
    """Make a window of `function(M, n, ...)`, n from 0 to M - 1: its values in float64."""

    @functools.wraps(function)
    def window(M, *args, sym=True, dtype=None, device=None, **options):
        wanted = get_default_dtype() if dtype is None else to_dtype(dtype)
        if not isinstance(M, Integral) or M < 0:
            raise ValueError(f"`M` of `{function.__name__}` must be a number of elements of 0 or more, got {M!r}")
        if not wanted.is_floating_point:
            raise TypeError(f"`dtype` of `{function.__name__}` must be a floating-point one, got {wanted}")
        if sym and options.get("center") is not None:
            raise ValueError(f"`center` of `{function.__name__}` must be None where `sym` is True: pass sym=False")
        size = M if sym else M + 1
        values = np.ones(M) if M <= 1 else function(size, np.arange(size, dtype=np.float64), *args, **options)[:M]
        return from_numpy(np.ascontiguousarray(values), dtype=wanted, device=usable(device))

    own = [p for p in inspect.signature(function).parameters.values() if p.name != "n"]
    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
        for name, value in (("sym", True), ("dtype", None), ("device", None))
    ]
    window.__signature__ = inspect.Signature([*own, *extra])
    return makes_leaf(window)


@_window
def general_cosine(M, n, *, a):
    """Sums of cosines: a[0] - a[1] cos(2 pi n / (M - 1)) + a[2] cos(4 pi n / (M - 1)) - ..."""
    if not isinstance(a, (list, tuple)) or not a:
        raise ValueError(f"`a` of `general_cosine` must be a list of coefficients, at least one, got {a!r}")
    return sum((-1) ** k * w * np.cos(2 * math.pi * k * n / (M - 1)) for k, w in enumerate(a))


@_window
def general_hamming(M, n, *, alpha=0.54):
    """alpha - (1 - alpha) cos(2 pi n / (M - 1))."""
    return alpha - (1 - alpha) * np.cos(2 * math.pi * n / (M - 1))


@_window
def hamming(M, n):
    """0.54 - 0.46 cos(2 pi n / (M - 1))."""
    return 0.54 - 0.46 * np.cos(2 * math.pi * n / (M - 1))


@_window
def hann(M, n):
    """sin(pi n / (M - 1))^2."""
    return np.sin(math.pi * n / (M - 1)) ** 2


@_window
def blackman(M, n):
    """0.42 - 0.5 cos(2 pi n / (M - 1)) + 0.08 cos(4 pi n / (M - 1))."""
    x = 2 * math.pi * n / (M - 1)
    return 0.42 - 0.5 * np.cos(x) + 0.08 * np.cos(2 * x)


@_window
def nuttall(M, n):
    """Four cosines: 0.3635819, 0.4891775, 0.1365995, 0.0106411 (Nuttall, 1981)."""
    x = 2 * math.pi * n / (M - 1)
    return 0.3635819 - 0.4891775 * np.cos(x) + 0.1365995 * np.cos(2 * x) - 0.0106411 * np.cos(3 * x)


@_window
def bartlett(M, n):
    """A triangle from 0 to 1 and back."""
    return 1 - np.abs(2 * n / (M - 1) - 1)


@_window
def cosine(M, n):
    """sin(pi (n + 0.5) / M)."""
    return np.sin(math.pi * (n + 0.5) / M)


@_window
def exponential(M, n, *, center=None, tau=1.0):
    """exp(-|n - center| / tau); the middle is the center."""
    if tau <= 0:
        raise ValueError(f"`tau` of `exponential` must be positive, got {tau}")
    return np.exp(-np.abs(n - ((M - 1) / 2 if center is None else center)) / tau)


@_window
def gaussian(M, n, *, std=1.0):
    """exp(-(n - (M - 1) / 2)^2 / (2 std^2))."""
    if std <= 0:
        raise ValueError(f"`std` of `gaussian` must be positive, got {std}")
    return np.exp(-(((n - (M - 1) / 2) / std) ** 2) / 2)


@_window
def kaiser(M, n, *, beta=12.0):
    """I0(beta sqrt(1 - (2 n / (M - 1) - 1)^2)) / I0(beta)."""
    if beta < 0:
        raise ValueError(f"`beta` of `kaiser` must not be negative, got {beta}")
    return np.i0(beta * np.sqrt(np.maximum(0.0, 1 - (2 * n / (M - 1) - 1) ** 2))) / np.i0(beta)


# ---- the names of `torch` ------------------------------------------------------------------------


@makes_leaf
def hann_window(window_length, periodic=True, *, dtype=None, device=None):
    """As `hann`."""
    return hann(window_length, sym=not periodic, dtype=dtype, device=device)


@makes_leaf
def hamming_window(window_length, periodic=True, alpha=0.54, beta=0.46, *, dtype=None, device=None):
    """alpha - beta cos(2 pi n / (M - 1)), as `hamming`."""
    return general_cosine(window_length, a=(alpha, beta), sym=not periodic, dtype=dtype, device=device)


@makes_leaf
def blackman_window(window_length, periodic=True, *, dtype=None, device=None):
    """As `blackman`."""
    return blackman(window_length, sym=not periodic, dtype=dtype, device=device)


@makes_leaf
def bartlett_window(window_length, periodic=True, *, dtype=None, device=None):
    """As `bartlett`."""
    return bartlett(window_length, sym=not periodic, dtype=dtype, device=device)


@makes_leaf
def kaiser_window(window_length, periodic=True, beta=12.0, *, dtype=None, device=None):
    """As `kaiser`."""
    return kaiser(window_length, beta=beta, sym=not periodic, dtype=dtype, device=device)
