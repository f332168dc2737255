"""What values are: tensors or not, the dtypes that they lead to; numbers with names."""

from math import e, inf, nan, pi

from .. import dispatch
from ..core import layout
from ..core.tensor_cy import TensorBase
from ..dtype import can_cast as _can_cast
from ..dtype import dtype as to_dtype

__all__ = [
    "broadcast_shapes",
    "can_cast",
    "e",
    "inf",
    "is_complex",
    "is_floating_point",
    "is_nonzero",
    "is_same_size",
    "is_signed",
    "is_tensor",
    "nan",
    "newaxis",
    "pi",
    "result_type",
]

newaxis = None


def is_tensor(obj):
    """Whether a value is a tensor."""
    return isinstance(obj, TensorBase)


def result_type(tensor1, tensor2):
    """The dtype of an operation on two tensors or numbers, by PyTorch's rules."""
    return dispatch.result_type(tensor1, tensor2)


def broadcast_shapes(*shapes):
    """The shape that shapes broadcast to."""
    found = ()
    for shape in shapes:
        found = layout.broadcast_shapes(found, layout.checked_shape(shape, "shapes"))
    return found


def can_cast(from_, to):
    """Whether values of one dtype may become another one in `out=`: no float an integer, no number a bool."""
    return _can_cast(to_dtype(from_), to_dtype(to))


def is_floating_point(input):
    """Whether the dtype of a tensor is a floating-point one."""
    return input.is_floating_point()


def is_complex(input):
    """Whether the dtype of a tensor is a complex one."""
    return input.dtype.kind == "c"


def is_nonzero(input):
    """Whether the one element of a tensor is not 0."""
    return bool(input)


def is_signed(input):
    """Whether the dtype of a tensor has negative numbers."""
    return input.is_signed()


def is_same_size(input, other):
    """Whether two tensors have the same shape."""
    return input.is_same_size(other)
