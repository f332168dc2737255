"""Tensors as text."""

import contextlib

import numpy as np

from ..dtype import bool_, complex64, float32, int64

_DEFAULTS = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80, "sci_mode": None}
_PROFILES = {
    "default": _DEFAULTS,
    "short": {**_DEFAULTS, "precision": 2, "edgeitems": 2},
    "full": {**_DEFAULTS, "threshold": float("inf")},
}
_options = dict(_DEFAULTS)


def set_printoptions(precision=None, threshold=None, edgeitems=None, linewidth=None, profile=None, sci_mode=None):
    """Set digits, the size above which tensors are shortened, items kept at edges, columns, notation."""
    if profile is not None:
        if profile not in _PROFILES:
            raise ValueError(f"`profile` must be one of {', '.join(_PROFILES)}, got {profile!r}")
        _options.update(_PROFILES[profile])
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    _options.update({k: v for k, v in given.items() if v is not None})
    _options["sci_mode"] = sci_mode


@contextlib.contextmanager
def printoptions(**options):
    """`set_printoptions` for a `with` block."""
    before = dict(_options)
    try:
        set_printoptions(**options)
        yield
    finally:
        _options.update(before)


def format_tensor(x):
    """The text of `repr(x)`."""
    array = x._values()
    formatter = None
    if x.dtype.kind in "fs":
        array = array.astype(np.float64)
        formatter = {"float_kind": _float_formatter(array)}
    elif x.dtype.kind == "c":
        formatter = {"complex_kind": _complex_formatter(array)}
    body = np.array2string(
        array,
        separator=", ",
        prefix="tensor(",
        threshold=_options["threshold"],
        edgeitems=_options["edgeitems"],
        max_line_width=_options["linewidth"],
        formatter=formatter,
    )
    notes = "" if x.numel_ else f", size={tuple(x.shape_)}"
    if x.dtype not in (float32, int64, bool_, *[complex64] * bool(x.numel_)):
        notes += f", dtype={x.dtype!r}"
    return f"tensor({body}{notes})"


def _complex_formatter(array):
    """Real and imaginary parts by themselves, each in a width of its own."""
    array = array.astype(np.complex128)
    real, imag = _float_formatter(array.real), _float_formatter(array.imag)

    def text(v):
        end = imag(v.imag).lstrip()
        return f"{real(v.real)}{'' if end[0] in '+-' else '+'}{end}j"

    return text


def _float_formatter(array):
    digits = _options["precision"]
    finite = array[np.isfinite(array)]
    scientific = _options["sci_mode"]
    magnitudes = np.abs(finite[finite != 0])
    if scientific is None:
        wide = magnitudes.size and (magnitudes.max() >= 1e8 or magnitudes.max() / magnitudes.min() > 1e3 * 10**digits)
        scientific = bool(wide) or bool(magnitudes.size and magnitudes.max() < 1e-4)
    if not scientific and magnitudes.size == finite.size - np.sum(finite == 0) and np.all(finite == np.rint(finite)):
        texts = [f"{v:.0f}." for v in _shown(finite)]
        width = max(map(len, texts), default=0)
        return lambda v: (f"{v:.0f}." if np.isfinite(v) else str(v)).rjust(width)
    kind = "e" if scientific else "f"
    width = max((len(f"{v:.{digits}{kind}}") for v in _shown(finite)), default=0)
    return lambda v: f"{v:.{digits}{kind}}".rjust(width)


def _shown(finite):
    """The extremes: they have the longest texts."""
    return [finite.min(), finite.max()] if finite.size else []
