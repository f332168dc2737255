"""NumPy arrays to tensors and back, sharing memory where that is possible; NumPy's functions of tensors."""

import functools

import numpy as np

from .. import dispatch, kernels
from ..core import launch as core_launch
from ..core.node_cy import GRAD
from ..core.tensor_cy import TensorBase
from ..device import CPU, usable
from ..dispatch.functions import FUNCTIONS
from ..dtype import dtype as to_dtype

_TYPESTR = {"bfloat16": "<u2", "float8_e4m3": "|u1", "float8_e5m2": "|u1"}


class _Memory:
    """The array interface of a tensor; NumPy holds on to it as the base of its array."""

    def __init__(self, tensor, dtype):
        self.storage = tensor.storage
        size = tensor.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "shape": tensor.shape_,
            "strides": tuple(s * size for s in tensor.strides_),
            "typestr": _TYPESTR.get(tensor.dtype.name) or dtype.str,
            "data": (tensor.address, False),
        }


def to_numpy(tensor):
    """An array of the same memory. Raises TypeError for tensors of devices that do not share the host's memory."""
    tensor.storage.backend.hand_out()
    if tensor.device is not CPU:
        raise TypeError(f"a tensor on {tensor.device} has no NumPy array of its memory: call `.cpu()` on it first")
    core_launch.deed()
    dispatch.refuse_reading()
    target = tensor.dtype.numpy
    if tensor.numel_ == 0:
        return np.empty(tensor.shape_, target)
    array = np.asarray(_Memory(tensor, target))
    return array if array.dtype == target else array.view(target)


def from_numpy(array, *, dtype=None, device=None):
    """A tensor of the array's memory, or of a copy where its dtype, byte order or alignment demands one.

    Raises TypeError for anything but a NumPy array, or a dtype that tensors do not have.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"`array` must be a NumPy array, got {type(array).__name__}; use `infinicore.tensor`")
    place = CPU if device is None else usable(device)
    own = to_dtype(array.dtype)
    wanted = own if dtype is None else to_dtype(dtype)
    array = array.astype(own.numpy, copy=False)  # the machine's byte order
    size = own.itemsize
    flags = array.flags
    if not (flags.carray or (flags.aligned and flags.writeable and all([s % size == 0 for s in array.strides]))):
        array = np.array(array, order="C")
    if array.size == 0:
        return dispatch.empty(array.shape, wanted, None, place)
    result = dispatch.from_array(array, place)
    return result if wanted is own else dispatch.cast(result, wanted)


def operand(x, beside):
    """What may stand beside a tensor in an operation: itself, or a tensor of a copy of an array."""
    if not isinstance(x, np.ndarray):
        return x
    return from_numpy(np.array(x), device=beside.device)  # a copy: derivatives may need the values of now


@functools.cache
def _ops():
    """The ops of the table that are NumPy's functions: those whose reference is one."""
    rows = reversed(kernels.OPS.rows().items())
    found = {getattr(np, row.ufunc): name for name, row in rows if row.ufunc and name in kernels.OPS}
    return found | {np.matmul: "matmul"}  # `mm`, `bmm` and others have that reference too


def array_ufunc(ufunc, method, inputs, options):
    """A universal function of NumPy with a tensor among its operands (`numpy.float32(2) * x`, `array + x`).

    Where the op table has it, the result is a tensor with its place in the graph, by the promotion of tensors; else
    it is NumPy's, of the values. Raises TypeError where that would lose gradients.
    """
    name = _ops().get(ufunc)
    if name is not None and method == "__call__" and not options:
        beside = next(x for x in inputs if isinstance(x, TensorBase))
        return FUNCTIONS[name](*[operand(x, beside) for x in inputs])
    if any(isinstance(x, TensorBase) for x in options.get("out", ())):
        return NotImplemented
    if core_launch.mode() & GRAD and core_launch.tracked(inputs):
        raise TypeError(f"`numpy.{ufunc.__name__}` records no gradients here: call `.detach()` on the tensor first")
    return getattr(ufunc, method)(*[to_numpy(x) if isinstance(x, TensorBase) else x for x in inputs], **options)
