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
    "cond",
    "e",
    "inf",
    "is_complex",
    "is_distributed",
    "is_floating_point",
    "is_inference",
    "is_nonzero",
    "is_same_size",
    "is_signed",
    "is_storage",
    "is_tensor",
    "nan",
    "newaxis",
    "pi",
    "result_type",
    "typename",
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


def is_storage(obj):
    """Whether a value is a storage, which has no class of its own here: no."""
    return False


def is_distributed(input):
    """Whether the elements of a tensor lie in several processes: no, each has tensors of its own."""
    return False


def is_inference(input):
    """Whether a tensor was made in `inference_mode`, which here is `no_grad`: no, all can be used later."""
    return False


def typename(obj):
    """The name of a type, or of the type of a value: of a tensor `Tensor.type`, such as "infinicore.FloatTensor"."""
    if isinstance(obj, TensorBase):
        return obj.type()
    kind = obj if isinstance(obj, type) else type(obj)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def cond(pred, true_fn, false_fn, operands=()):
    """`true_fn(*operands)` where `pred`, a bool or a tensor of one element, is true, else `false_fn(*operands)`."""
    return (true_fn if bool(pred) else false_fn)(*operands)
