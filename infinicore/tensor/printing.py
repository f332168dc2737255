"""Tensors as text."""

import contextlib

import numpy as np

from ..device import CPU
from ..dtype import bool_, complex64, float32, int64

_BEGIN = "tensor("

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
    """The text of `repr(x)`, as PyTorch lays it out."""
    array, cut = _edges(x._values())
    text = "[]" if not x.numel_ else _nested(array, cut, *_element(array, x.dtype.kind), len(_BEGIN))
    return _joined(text, _notes(x))


def _notes(x):
    """What stands behind the elements."""
    notes = [f"device={str(x.device)!r}"] if x.device is not CPU else []
    if not x.numel_ and len(x.shape_) != 1:
        notes.append(f"size={tuple(x.shape_)}")
    if x.dtype not in (float32, *[int64, bool_, complex64] * bool(x.numel_)):  # these can be seen from elements
        notes.append(f"dtype={x.dtype!r}")
    if x.grad_fn is not None:
        notes.append(f"grad_fn={x.grad_fn!r}")
    elif x.requires_grad:
        notes.append("requires_grad=True")
    return notes


def _joined(text, notes):
    """`text` of the elements and the notes behind it, on a new line where the last one is full."""
    used = len(text) - text.rfind("\n") + 1
    for note in notes:
        fits = used + len(note) + 2 <= _options["linewidth"]
        text += f", {note}" if fits else f",\n{' ' * len(_BEGIN)}{note}"
        used = used + len(note) + 2 if fits else len(_BEGIN) + len(note)
    return f"{_BEGIN}{text})"


def _edges(array):
    """(The elements that are shown, whether some are left out by dim.)"""
    edge, shape = _options["edgeitems"], array.shape
    if array.size <= _options["threshold"]:
        return array, (False,) * len(shape)
    for dim, size in enumerate(shape):
        if size > 2 * edge:
            array = np.take(array, [*range(edge), *range(size - edge, size)], dim)
    return array, tuple(size > 2 * edge for size in shape)


def _nested(array, cut, element, width, indent):
    """Text of the elements, each by `element(value)`, up to `width` wide; `cut` by dim: "..." stands in the middle."""
    if not array.ndim:
        return element(array.item())
    edge = _options["edgeitems"]
    if array.ndim > 1:
        parts, dots = [_nested(one, cut[1:], element, width, indent + 1) for one in array], "..."
    else:
        parts, dots = [element(value) for value in array.tolist()], " ..." if edge else "..."
    if cut[0]:
        parts.insert(edge, dots)
    if array.ndim > 1:
        return f"[{(',' + chr(10) * (array.ndim - 1) + ' ' * (indent + 1)).join(parts)}]"
    many = max(1, (_options["linewidth"] - indent) // (width + 2))
    lines = [", ".join(parts[i : i + many]) for i in range(0, len(parts), many)]
    return f"[{(',' + chr(10) + ' ' * (indent + 1)).join(lines)}]"


def _element(array, kind):
    """(A function from an element of `array` to its text, the width of such texts.)"""
    if kind in "fs":
        return _real(array.astype(np.float64))
    if kind == "c":
        (real, width), (imag, more) = _real(array.real.astype(np.float64)), _real(array.imag.astype(np.float64))

        def parts(value):
            end = imag(value.imag).lstrip()
            return f"{real(value.real)}{'' if end[0] in '+-' else '+'}{end}j"

        return parts, width + more + 1
    width = max(map(len, map(str, array.reshape(-1).tolist())), default=0)
    return lambda value: str(value).rjust(width), width


def _real(array):
    """The same of real numbers: whole ones without decimals, those far apart (1000) or small ones by powers of 10."""
    digits, scientific = _options["precision"], False
    some = array[np.isfinite(array) & (array != 0)]
    whole = bool((some == np.ceil(some)).all())
    if some.size:
        most, least = np.abs(some).max(), np.abs(some).min()
        scientific = bool(most > 1000 * least or most > 1e8 or (least < 1e-4 and not whole))

    def text(value):
        if scientific:
            return f"{value:.{digits}e}"
        return f"{value:.{digits}f}" if not whole else f"{value:.0f}." if np.isfinite(value) else str(value)

    if some.size and _options["sci_mode"] is not None:
        scientific = _options["sci_mode"]
    width = max(map(len, map(text, some.tolist())), default=1)
    return lambda value: text(value).rjust(width), width
