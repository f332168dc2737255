"""Padding layers: a class for each kind and number of dims."""

from .. import functional as F
from ..functional.checks import several
from ..module import Module


class _Pad(Module):
    """`padding` is an integer for all sides, or (left, right, top, bottom, ...) from the last dim on."""

    dims, mode = 0, "constant"

    def __init__(self, padding):
        super().__init__()
        self.padding = several(padding, 2 * self.dims, "padding")

    def _check(self, input):
        if input.ndim not in (self.dims + 1, self.dims + 2):
            raise ValueError(f"`input` must have {self.dims + 1} or {self.dims + 2} dims, got shape {input.shape_}")

    def forward(self, input):
        self._check(input)
        return F.pad(input, self.padding, self.mode)

    def extra_repr(self):
        return str(self.padding)


class _Constant(_Pad):
    def __init__(self, padding, value):
        super().__init__(padding)
        self.value = value

    def forward(self, input):
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self):
        return f"padding={self.padding}, value={self.value}"


class _Zero(_Pad):
    def _check(self, input):
        """Any number of dims is right."""


def _kinds(base, name, text, **fields):
    """The classes `<name>1d` to `<name>3d`."""
    return [
        type(f"{name}{dims}d", (base,), {"dims": dims, "__doc__": text, "__module__": __name__, **fields})
        for dims in (1, 2, 3)
    ]


_SIDES = "`padding` is an integer for all sides, or (left, right, top, bottom, front, back) as far as there are dims."
ConstantPad1d, ConstantPad2d, ConstantPad3d = _kinds(_Constant, "ConstantPad", f"Elements of `value` around. {_SIDES}")
ZeroPad1d, ZeroPad2d, ZeroPad3d = _kinds(_Zero, "ZeroPad", f"Zeros around. {_SIDES}")
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = _kinds(
    _Pad, "ReflectionPad", f"The input mirrored at its border. {_SIDES}", mode="reflect"
)
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = _kinds(
    _Pad, "ReplicationPad", f"The border repeated. {_SIDES}", mode="replicate"
)
CircularPad1d, CircularPad2d, CircularPad3d = _kinds(
    _Pad, "CircularPad", f"The other side of the input. {_SIDES}", mode="circular"
)
