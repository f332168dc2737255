"""Constants of a format, as kernels see them: `F` is a type parameter that names it."""

from numba import types
from numba.extending import intrinsic

from ...build import jit
from ...lang import formats
from ...lang.lowp import float16
from ...lang.vector import I64
from . import panels

UNIT = formats.UNIT


def format_of(F):
    """The `Format` that a type parameter of a kernel names."""
    return formats.FORMATS[F.instance_type.name]


def _trait(name, value_of):
    @intrinsic
    def function(typingctx, F):
        """A constant of a format."""
        if not isinstance(F, types.NumberClass):
            return None
        return types.int64(F), lambda context, builder, sig, args: I64(int(value_of(format_of(F))))

    function.__name__ = function.__qualname__ = name
    return function


bits_of = _trait("bits_of", lambda form: form.bits)
groups_of = _trait("groups_of", lambda form: form.groups)
zero_of = _trait("zero_of", lambda form: form.zero)
has_min = _trait("has_min", lambda form: form.has_min)
is_flat = _trait("is_flat", lambda form: form.flat)
unit_bytes = _trait("unit_bytes", panels.unit_bytes)
record_bytes = _trait("record_bytes", panels.record_bytes)
words_of = _trait("words_of", panels.words)
has_exponents = _trait("has_exponents", lambda form: form.parameters == "exponent")
has_zeros = _trait("has_zeros", lambda form: form.parameters == "half_zero")
_is_super = _trait("_is_super", lambda form: form.is_super)
_records_of, _panel_size = jit.inline(formats.records_of), jit.inline(panels.panel_size)


@intrinsic
def scale_type(typingctx, F):
    """The type that scales of groups are stored as, the first field of a record."""
    if not isinstance(F, types.NumberClass):
        return None
    kind = {"single": types.float32, "exponent": types.uint8}.get(format_of(F).parameters, float16)
    return types.NumberClass(kind)(F), lambda context, builder, sig, args: context.get_dummy_value()


@jit.inline
def units_of(k):
    """Units of a row of `k` elements."""
    return (k + UNIT - 1) // UNIT


@jit.inline
def records_of(F, k, shift):
    """Records of parameters of a panel for rows of `k` elements."""
    return _records_of(k, shift, _is_super(F))


@jit.inline
def panel_bytes(F, k, shift):
    """Bytes of a panel for rows of `k` elements."""
    return _panel_size(k, records_of(F, k, shift), unit_bytes(F), record_bytes(F))
