"""Making tensors: empty, filled, from Python data, from foreign memory."""

import functools
import inspect
import math
import operator

import numpy as np

from .. import dispatch, interop
from ..core import layout
from ..device import usable
from ..dtype import DType, get_default_dtype, int64, number_type, promote_types
from ..dtype import dtype as to_dtype
from ..interop.numpy import from_numpy
from .formats import contiguous_format, order_like, order_of, preserve_format
from .gradients import makes_leaf
from .tensor import Tensor

_MOST = 1 << 56  # elements


def _shape(size):
    shape = layout.checked_shape(size)
    if math.prod(shape) >= _MOST:
        raise MemoryError(f"`size` {shape} has {math.prod(shape)} elements, more than any memory holds: ask for fewer")
    return shape


def _given(out, shape, dtype, device):
    """The tensor `out` that the caller has for a new one of `shape`."""
    if not isinstance(out, Tensor):
        raise TypeError(f"`out` must be a tensor, got {type(out).__name__}")
    if out.shape_ != shape:
        raise ValueError(f"`out` has shape {out.shape_}, but the result has shape {shape}")
    if dtype is not None and to_dtype(dtype) is not out.dtype:
        raise TypeError(f"`out` has dtype {out.dtype}, but `dtype` is {to_dtype(dtype)}: leave `dtype` out")
    if device is not None and usable(device) is not out.device:
        raise ValueError(f"`out` lies on {out.device}, but `device` is {device}: leave `device` out")
    return out


def into_out(function):
    """Give a function that makes a tensor the keyword `out`, which gets the numbers in its own dtype."""

    @functools.wraps(function)
    def made(*args, out=None, dtype=None, device=None, **kwargs):
        if out is None:
            return function(*args, dtype=dtype, device=device, **kwargs)
        t = function(*args, dtype=dtype or getattr(out, "dtype", None), device=device, **kwargs)
        return _given(out, t.shape_, dtype, device).copy_(t)

    signature = inspect.signature(function)
    extra = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
    made.__signature__ = signature.replace(parameters=[*signature.parameters.values(), extra])
    return made


def _sizes(sizes, size):
    """The shape that is given as ints, or as one sequence of them, or by the name `size`."""
    if size is not None and sizes:
        raise TypeError(f"the sizes {sizes} and `size` {size} are the same argument: leave one out")
    return _shape(size if size is not None else sizes[0] if len(sizes) == 1 else sizes)


def _new(shape, out, dtype, device):
    """An uninitialised tensor, row-major; or `out` itself."""
    if out is not None:
        return _given(out, shape, dtype, device)
    return dispatch.empty(shape, get_default_dtype() if dtype is None else to_dtype(dtype), None, usable(device))


@makes_leaf
def empty(*sizes, size=None, out=None, dtype=None, device=None, memory_format=contiguous_format):
    """An uninitialised tensor of a shape: ints, or one sequence of them, also by the name `size`; or `out` itself."""
    shape, order = _sizes(sizes, size), None
    if memory_format is not contiguous_format and out is None:
        order = order_of(memory_format, len(shape))
    return _new(shape, out, dtype, device) if order is None else _permuted(shape, order, dtype, device)


def strided_empty(size, strides, *, dtype=None, device=None, pin_memory=False):
    """An uninitialised tensor with the given strides (in elements)."""
    shape, strides = _shape(size), tuple(strides)
    if len(shape) != len(strides) or any(s < 0 for s in strides):
        raise ValueError(f"`strides` must hold {len(shape)} sizes of 0 or more, got {strides}")
    _, high = layout.extent(shape, strides)
    wanted = get_default_dtype() if dtype is None else to_dtype(dtype)
    whole = dispatch.empty((max(high + 1, 0),), wanted, None, usable(device))
    return dispatch.view(whole, shape, strides)


@makes_leaf
def empty_strided(size, stride, *, dtype=None, device=None):
    """As `strided_empty`, by PyTorch's name."""
    return strided_empty(size, stride, dtype=dtype, device=device)


@makes_leaf
def empty_permuted(size, physical_layout, *, dtype=None, device=None):
    """An uninitialised tensor whose dims lie in memory in the order `physical_layout`, the outermost first."""
    shape, order = _shape(size), tuple(physical_layout)
    if sorted(order) != list(range(len(shape))):
        raise ValueError(f"`physical_layout` must be a permutation of {len(shape)} dims, got {order}")
    return _permuted(shape, order, dtype, device)


def _permuted(shape, order, dtype, device):
    t = _new(tuple([shape[d] for d in order]), None, dtype, device)
    return t.permute(sorted(range(len(order)), key=order.__getitem__))


@makes_leaf
def full(size, fill_value, *, out=None, dtype=None, device=None):
    """A tensor of one number (or 0-dim tensor); the dtype follows it (as `tensor`) unless given."""
    if out is not None:
        return _given(out, _shape(size), dtype, device).fill_(fill_value)
    place = usable(device)
    if isinstance(fill_value, Tensor):
        if fill_value.shape_:
            raise TypeError(f"`fill_value` must be a number or a 0-dim tensor, got shape {fill_value.shape_}")
        fill_value = fill_value.item()
    if dtype is None:
        dtype = number_type(type(fill_value))
    return dispatch.empty(_shape(size), to_dtype(dtype), None, place).fill_(fill_value)


@makes_leaf
def zeros(*sizes, size=None, out=None, dtype=None, device=None):
    """A tensor of zeros, by the arguments of `empty`."""
    return _new(_sizes(sizes, size), out, dtype, device).zero_()


@makes_leaf
def ones(*sizes, size=None, out=None, dtype=None, device=None):
    """A tensor of ones, by the arguments of `empty`."""
    return _new(_sizes(sizes, size), out, dtype, device).fill_(1)


def _like(input, dtype, device, memory_format):
    if device is None and input.device.backend.of_samples:
        return input.new_empty(input.shape_, dtype=dtype)
    wanted = input.dtype if dtype is None else to_dtype(dtype)
    place = input.device if device is None else usable(device)
    if memory_format is contiguous_format:
        return dispatch.empty(input.shape_, wanted, None, place)
    order = order_like(input) if memory_format is preserve_format else order_of(memory_format, input.ndim)
    return _new(input.shape_, None, wanted, place) if order is None else _permuted(input.shape_, order, wanted, place)


@makes_leaf
def empty_like(input, *, dtype=None, device=None, memory_format=contiguous_format):
    """An uninitialised tensor of the shape and dtype of `input`."""
    return _like(input, dtype, device, memory_format)


@makes_leaf
def zeros_like(input, *, dtype=None, device=None, memory_format=contiguous_format):
    """Zeros of the shape and dtype of `input`."""
    return _like(input, dtype, device, memory_format).zero_()


@makes_leaf
def ones_like(input, *, dtype=None, device=None, memory_format=contiguous_format):
    """Ones of the shape and dtype of `input`."""
    return _like(input, dtype, device, memory_format).fill_(1)


@makes_leaf
def full_like(input, fill_value, *, dtype=None, device=None, memory_format=contiguous_format):
    """One value in the shape and dtype of `input`."""
    return _like(input, dtype, device, memory_format).fill_(fill_value)


def _number(value, name):
    """A Python number, of a 0-dim tensor or a scalar of NumPy as well."""
    if not getattr(value, "ndim", 0):
        value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, (int, float)):
        raise TypeError(f"`{name}` must be a number, got {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"`{name}` must be finite, got {value}")
    return value


@makes_leaf
@into_out
def arange(start, end=None, step=1, *, dtype=None, device=None):
    """`start, start + step, ...` before `end`; int64 for integers, else the default dtype.

    With an integer `dtype`, `start` and `step` lose their fractions: int64 before the values are counted, others after
    it, as in PyTorch. Raises ValueError for an `end` on the other side of `start` than `step` goes.
    """
    if end is None:
        start, end = 0, start
    start, end, step = _number(start, "start"), _number(end, "end"), _number(step, "step")
    whole = isinstance(start, int) and isinstance(end, int) and isinstance(step, int)
    wanted = to_dtype(dtype) if dtype is not None else int64 if whole else get_default_dtype()
    if wanted.kind == "c":
        raise TypeError(f"`dtype` of `arange` must be real, got {wanted}: cast the result")
    if (end - start) * step < 0:
        raise ValueError(f"`end` {end} of `arange` cannot be reached from `start` {start} by `step` {step}")
    if wanted is int64:
        start, end, step = int(start), int(end), int(step)
    if step == 0:
        raise ValueError(f"`step` of `arange` must not be 0 as {wanted}: take another one, or a float `dtype`")
    count = -((start - end) // step) if whole or wanted is int64 else math.ceil((end - start) / step)
    if wanted.kind in "iu":
        start, step = int(start), int(step)
    values = np.arange(count)
    if start != 0 or step != 1:
        values = start + step * values
    return from_numpy(values, dtype=wanted, device=usable(device))


@makes_leaf
@into_out
def linspace(start, end, steps, *, dtype=None, device=None):
    """`steps` equally spaced values from `start` to `end`, both included.

    With an integer `dtype`, which must hold them, `start`, `end` and the values between lose their fractions; the
    second half is counted back from `end`, as in PyTorch.
    """
    start, end = _number(start, "start"), _number(end, "end")
    wanted = get_default_dtype() if dtype is None else to_dtype(dtype)
    steps = _count(steps, "steps")
    if wanted.kind not in "iu":
        return from_numpy(np.linspace(start, end, steps), dtype=wanted, device=usable(device))
    # products of the steps are rounded with the sum, as fused ones are
    values = _whole_steps(start, end, steps, wanted, "linspace", np.longdouble).astype(np.int64)
    return from_numpy(values, dtype=wanted, device=usable(device))


def _whole_steps(start, end, steps, wanted, name, exact=np.float64):
    """What lies between two integers: the first half is counted from `start`, the second back from `end`."""
    start, end, i, limits = int(start), int(end), np.arange(steps), np.iinfo(wanted.numpy)
    if min(start, end) < limits.min or max(start, end) > limits.max:
        raise ValueError(f"`start` {start} and `end` {end} of `{name}` must fit into {wanted}: take a wider one")
    step = exact((end - start) / max(1, steps - 1))
    return np.where(i < max(1, steps // 2), start + step * i, end - step * (steps - 1 - i)).astype(np.float64)


@makes_leaf
@into_out
def logspace(start, end, steps, base=10.0, *, dtype=None, device=None):
    """`base` to the power of `steps` equally spaced values from `start` to `end`, both included.

    With an integer `dtype`, which must hold them, `start` (but of one step), `end` and the powers lose their
    fractions, as in PyTorch.
    """
    start, end, steps = _number(start, "start"), _number(end, "end"), _count(steps, "steps")
    wanted = get_default_dtype() if dtype is None else to_dtype(dtype)
    if wanted.kind not in "iu":
        return from_numpy(np.power(float(base), np.linspace(start, end, steps)), dtype=wanted, device=usable(device))
    powers = _whole_steps(start, end, steps, wanted, "logspace") if steps != 1 else np.array([float(start)])
    with np.errstate(all="ignore"):  # what is no number is refused below
        values = np.trunc(np.power(float(base), powers))
    if not ((values >= np.iinfo(wanted.numpy).min) & (values < float(np.iinfo(wanted.numpy).max + 1))).all():
        raise ValueError(
            f"the powers {start} to {end} of `base` {base} in `logspace` must fit into {wanted}: take a float `dtype`"
        )
    return from_numpy(values.astype(np.int64), dtype=wanted, device=usable(device))


def _count(value, name):
    """A number of elements: an integer of 0 or more."""
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` must be an integer, got {value!r}") from None
    if value < 0:
        raise ValueError(f"`{name}` must not be negative, got {value}")
    return value


def _triangle(function, row, col, offset, dtype, device):
    places = np.stack(function(_count(row, "row"), operator.index(offset), _count(col, "col")))
    return from_numpy(places, dtype=int64 if dtype is None else to_dtype(dtype), device=usable(device))


def tril_indices(row, col, offset=0, *, dtype=None, device=None):
    """[2, K]: rows and columns of the elements of a row x col matrix on and below the diagonal `offset`."""
    return _triangle(np.tril_indices, row, col, offset, dtype, device)


def triu_indices(row, col, offset=0, *, dtype=None, device=None):
    """[2, K]: rows and columns of the elements of a row x col matrix on and above the diagonal `offset`."""
    return _triangle(np.triu_indices, row, col, offset, dtype, device)


@makes_leaf
def scalar_tensor(value, *, dtype=None, device=None):
    """A 0-dim tensor of a number, of the default dtype unless given."""
    return full((), _number(value, "value"), dtype=dtype or get_default_dtype(), device=device)


@makes_leaf
@into_out
def eye(n, m=None, *, dtype=None, device=None):
    """The identity matrix."""
    rows = _count(n, "n")
    y = zeros(rows, rows if m is None else _count(m, "m"), dtype=dtype or get_default_dtype(), device=device)
    y.diagonal().fill_(1)
    return y


@makes_leaf
def tensor(data, *, dtype=None, device=None):
    """A new tensor from numbers, nested sequences, a NumPy array or a tensor (always a copy)."""
    if isinstance(data, Tensor):
        return data.to(dtype or data.dtype, device=device, copy=True)
    device = usable(device)
    if isinstance(data, (list, tuple)) and any(issubclass(kind, Tensor) for kind in set(map(type, data))):
        data = [x._values() if isinstance(x, Tensor) else x for x in data]
    try:
        array = np.array(data)
    except ValueError:
        raise ValueError(
            "`data` must be rectangular: every nested sequence of one depth needs the same length"
        ) from None
    if array.dtype == object:
        raise ValueError("`data` must hold numbers in a rectangular arrangement")
    wanted = _own_dtype(data, array) if dtype is None else to_dtype(dtype)
    if wanted.name == "uint64" and array.dtype == np.float64 and not isinstance(data, np.ndarray):
        array = _as_uint64(data, array)
    if not isinstance(data, np.ndarray):
        dispatch.check_fits(array, wanted)
    return from_numpy(array.astype(wanted.numpy, copy=False), device=device)


def _as_uint64(data, array):
    """Integers of which some are beyond int64, and which NumPy therefore takes for floats, exactly; or `array`."""
    whole = np.array(data, dtype=object)
    if all([isinstance(x, int) and 0 <= x < 1 << 64 for x in whole.ravel()]):
        return whole.astype(np.uint64)
    return array


def _own_dtype(data, array):
    """The dtype of data by PyTorch's rules, whose floats have the default dtype; `array` is NumPy's idea of it."""
    if isinstance(data, np.ndarray) or (array.size and array.dtype.name not in ("float64", "uint64", "complex128")):
        return to_dtype(array.dtype)
    if not array.size:
        return get_default_dtype()
    return functools.reduce(promote_types, [_dtype_of(kind, array) for kind in _kinds([data])])


def _dtype_of(kind, array):
    """The dtype of one of `_kinds` by itself; what only NumPy understands (a `range`) has that of the `array`."""
    if isinstance(kind, (np.dtype, DType)) or issubclass(kind, np.generic):
        return to_dtype(kind)
    if issubclass(kind, (int, float, complex)):
        return number_type(kind)
    return get_default_dtype() if array.dtype == np.float64 else to_dtype(array.dtype)


def _kinds(data):
    """What nested sequences hold: the types of numbers, and the dtypes of arrays and tensors."""
    found = set()
    for kind in set(map(type, data)):
        if issubclass(kind, (list, tuple)):
            found.update(*[_kinds(x) for x in data if type(x) is kind])
        elif issubclass(kind, (np.ndarray, Tensor)):
            found.update(x.dtype for x in data if type(x) is kind)
        else:
            found.add(kind)
    return found


def as_tensor(data, dtype=None, device=None):
    """The values of `data` as a tensor: a tensor or an array that has the dtype and the device already, itself.

    Of an array that can be shared (also one on a GPU, by `__cuda_array_interface__`), the result has the memory; all
    else is copied, as by `tensor`.
    """
    if isinstance(data, Tensor):
        return data.to(dtype=dtype, device=device)
    if isinstance(data, np.ndarray):
        return from_numpy(data, dtype=dtype, device=device)
    if hasattr(data, "__cuda_array_interface__"):
        return interop.cuda_array.take(data).to(dtype=dtype, device=device)
    return tensor(data, dtype=dtype, device=device)


def asarray(obj, *, dtype=None, device=None, copy=None):
    """As `as_tensor`; with `copy` True always a copy, False an error where one is needed."""
    found = tensor(obj, dtype=dtype, device=device) if copy else as_tensor(obj, dtype, device)
    shares = isinstance(obj, Tensor) and found is obj
    if copy is False and not (shares or (isinstance(obj, np.ndarray) and np.shares_memory(obj, found._values()))):
        raise ValueError(f"`copy` of `asarray` is False, but {type(obj).__name__} cannot be shared: leave it out")
    return found


@makes_leaf
def frombuffer(buffer, *, dtype, count=-1, offset=0):
    """A vector of the memory of an object with Python's buffer protocol, or of a copy where that is read-only.

    `count` elements (-1: all) from byte `offset` on. ValueError where these do not lie in the buffer, or are none.
    """
    wanted = to_dtype(dtype)
    size = memoryview(buffer).nbytes
    taken = count * wanted.itemsize if count >= 0 else size - offset
    if offset < 0 or not 0 < taken <= size - offset or taken % wanted.itemsize:
        raise ValueError(
            f"`count` {count} of {wanted.itemsize} bytes each, from `offset` {offset} on, must be elements in the "
            f"{size} bytes of `buffer`, and -1 must use all of them"
        )
    return from_numpy(np.frombuffer(buffer, wanted.numpy, count, offset))


def from_list(data, *, dtype=None):
    """A tensor from nested lists of numbers.

    Raises ValueError for ragged or empty data and OverflowError for integers out of the dtype's range.
    """
    if not isinstance(data, (list, tuple)):
        raise TypeError(f"`data` must be a list, got {type(data).__name__}")
    try:
        array = np.array(data)
    except ValueError:
        array = np.array(None, dtype=object)
    if array.dtype == object:
        raise ValueError("`data` must be rectangular and hold numbers only")
    if array.size == 0:
        raise ValueError("`data` must not be empty, use `infinicore.empty`")
    wanted = to_dtype(dtype) if dtype is not None else None
    if wanted is not None and wanted.kind in "iu" and array.dtype.kind in "iu":
        limits = np.iinfo(wanted.numpy)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise OverflowError(f"`data` holds {int(array.min())} to {int(array.max())}, beyond the range of {wanted}")
    return tensor(array if wanted is not None else data, dtype=wanted)


def from_list_by_numpy(data, *, dtype=None, device=None):
    """A tensor from nested lists of numbers on a device; without `dtype`, that which NumPy gives them."""
    return from_numpy(np.array(data), dtype=dtype, device=device)


def from_blob(data_ptr, size, *, dtype=None, device=None):
    """A tensor of the memory at an address, row-major. The caller keeps the memory alive."""
    shape = _shape(size)
    return strided_from_blob(data_ptr, shape, layout.contiguous_strides(shape), dtype=dtype, device=device)


def strided_from_blob(data_ptr, size, strides, *, dtype=None, device=None):
    """As `from_blob`, with strides in elements."""
    shape, strides = _shape(size), tuple(strides)
    if len(strides) != len(shape):
        raise ValueError(f"`size` {shape} and `strides` {strides} must have the same length")
    wanted = get_default_dtype() if dtype is None else to_dtype(dtype)
    if layout.count(shape) == 0:
        return dispatch.empty(shape, wanted)
    if not isinstance(data_ptr, int) or data_ptr <= 0:
        raise ValueError(f"`data_ptr` must be an address, got {data_ptr!r}")
    return dispatch.wrap(data_ptr, shape, strides, wanted, None)


def from_torch(tensor):
    """A tensor of the memory of a torch CPU tensor, with its strides."""
    if type(tensor).__module__.partition(".")[0] != "torch":
        raise TypeError(f"`tensor` must be a torch tensor, got {type(tensor).__name__}")
    if tensor.device.type != "cpu":
        raise NotImplementedError(f"`tensor` is on {tensor.device}; call `.cpu()` on it first")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.numel() == 0:
        return dispatch.empty(tuple(tensor.shape), to_dtype(tensor.dtype))
    return dispatch.wrap(tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), to_dtype(tensor.dtype), tensor)
