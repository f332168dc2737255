"""The Tensor: storage, dtype and layout, with the methods of PyTorch and the exports of NumPy.

Methods that compute are attached from the op table at the end of the file; the ones written here
only change layouts, move data, or convert.
"""

import operator

import numpy as np

from . import dispatch, kernels
from .core import launch, layout
from .core.tensor_cy import TensorBase
from .device import Device, usable
from .dtype import DType, dtype
from .indexing import basic_index, numpy_index
from .interop.dlpack import to_dlpack
from .interop.numpy import from_numpy, to_numpy
from .printing import format_tensor


class Size(tuple):
    """A shape: a tuple that also equals a list."""

    __slots__ = ()

    def __eq__(self, other):
        return tuple.__eq__(self, tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other):
        return not self == other

    __hash__ = tuple.__hash__

    def numel(self):
        """Number of elements."""
        return layout.count(self)

    def __repr__(self):
        return f"Size({list(self)})"


def _sizes(args):
    """The sizes of `f(2, 3)` or `f((2, 3))`."""
    if len(args) == 1 and not isinstance(args[0], int) and hasattr(args[0], "__iter__"):
        return tuple(operator.index(v) for v in args[0])
    return tuple(operator.index(v) for v in args)


class Tensor(TensorBase):
    """An n-dimensional array on a device. Make one with `infinicore.tensor`, `zeros`, `from_numpy`, ..."""

    __slots__ = ()
    __hash__ = object.__hash__

    # ---- what it is ----

    @property
    def shape(self):
        """Sizes of the dims."""
        return Size(self.shape_)

    @property
    def strides(self):
        """Steps between neighbours along each dim, in elements."""
        return self.strides_

    @property
    def ndim(self):
        """Number of dims."""
        return len(self.shape_)

    def dim(self):
        """Number of dims."""
        return len(self.shape_)

    def size(self, dim=None):
        """The shape, or the size of one dim."""
        return self.shape if dim is None else self.shape_[layout.checked_dim(dim, self.ndim)]

    def stride(self, dim=None):
        """Strides in elements, as a list, or the stride of one dim."""
        return list(self.strides_) if dim is None else self.strides_[layout.checked_dim(dim, self.ndim)]

    def numel(self):
        """Number of elements."""
        return self.numel_

    def element_size(self):
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self):
        """Bytes of all elements."""
        return self.numel_ * self.dtype.itemsize

    def data_ptr(self):
        """Address of the first element."""
        return self.address

    def is_contiguous(self):
        """Whether elements lie in row-major order without gaps."""
        return self.contiguous_

    def is_floating_point(self):
        """Whether the dtype is a floating-point one."""
        return self.dtype.is_floating_point

    def is_pinned(self):
        """Whether the memory is page-locked for a GPU (never, on the CPU)."""
        return False

    def __len__(self):
        if not self.shape_:
            raise TypeError("a 0-dim tensor has no `len()`")
        return self.shape_[0]

    def __iter__(self):
        if not self.shape_:
            raise TypeError("a 0-dim tensor cannot be iterated over, use `.item()`")
        return (self[i] for i in range(self.shape_[0]))

    # ---- views ----

    def as_strided(self, size, stride, offset=0):
        """The same memory with any layout (in elements); it must stay inside of the storage."""
        shape, strides = layout.checked_shape(size), _sizes((stride,))
        if len(shape) != len(strides):
            raise ValueError(f"`size` {shape} and `stride` {strides} must have the same length")
        low, high = layout.extent(shape, strides)
        first = self.address + (offset + low) * self.dtype.itemsize
        last = self.address + (offset + high + 1) * self.dtype.itemsize
        begin = self.storage.address
        if high >= low and not (begin <= first and last <= begin + self.storage.nbytes):
            raise ValueError(
                f"`size` {shape} with `stride` {strides} and `offset` {offset} reaches outside of the storage "
                f"of {self.storage.nbytes} bytes"
            )
        return dispatch.view(self, shape, strides, offset)

    def view(self, *shape):
        """The same memory with another shape; one size may be -1. With a dtype: the bits as that dtype."""
        if len(shape) == 1 and isinstance(shape[0], DType):
            return self._view_dtype(shape[0])
        target = layout.inferred_shape(_sizes(shape), self.numel_)
        strides = layout.view_strides(self.shape_, self.strides_, target)
        if strides is None:
            raise ValueError(
                f"`view` of shape {self.shape_} with strides {self.strides_} as {target} needs a copy, use `.reshape()`"
            )
        return dispatch.view(self, target, strides)

    def _view_dtype(self, target):
        if target.itemsize != self.dtype.itemsize:
            raise ValueError(f"`view` as {target} needs elements of {self.dtype.itemsize} bytes, got {target.itemsize}")
        t = dispatch.view(self, self.shape_, self.strides_)
        t.dtype = target
        return t

    def reshape(self, *shape):
        """As `view`, with a copy where it needs one."""
        target = layout.inferred_shape(_sizes(shape), self.numel_)
        strides = layout.view_strides(self.shape_, self.strides_, target)
        if strides is None:
            return dispatch.contiguous_copy(self).view(target)
        return dispatch.view(self, target, strides)

    def flatten(self, start_dim=0, end_dim=-1):
        """Dims `start_dim` to `end_dim` merged into one."""
        if not self.shape_:
            return self.reshape(1)
        a, b = layout.checked_dim(start_dim, self.ndim), layout.checked_dim(end_dim, self.ndim)
        if a > b:
            raise ValueError(f"`start_dim` {start_dim} must not lie behind `end_dim` {end_dim}")
        return self.reshape(*self.shape_[:a], layout.count(self.shape_[a : b + 1]), *self.shape_[b + 1 :])

    def permute(self, *dims):
        """Dims in another order."""
        order = [layout.checked_dim(d, self.ndim, "dims") for d in _sizes(dims)]
        if sorted(order) != list(range(self.ndim)):
            raise ValueError(f"`dims` must name each of the {self.ndim} dims once, got {_sizes(dims)}")
        shape = tuple(self.shape_[d] for d in order)
        return dispatch.view(self, shape, tuple(self.strides_[d] for d in order))

    def transpose(self, dim0, dim1):
        """Two dims swapped."""
        order = list(range(self.ndim))
        a, b = layout.checked_dim(dim0, self.ndim), layout.checked_dim(dim1, self.ndim)
        if order:
            order[a], order[b] = order[b], order[a]
        return self.permute(order)

    def t(self):
        """A matrix transposed."""
        if self.ndim > 2:
            raise ValueError(f"`t` takes a tensor of at most 2 dims, got {self.ndim}; use `.transpose()`")
        return self.transpose(0, 1) if self.ndim == 2 else self

    @property
    def T(self):
        """All dims reversed."""
        return self.permute(range(self.ndim - 1, -1, -1))

    @property
    def mT(self):
        """The last two dims swapped."""
        return self.transpose(-1, -2)

    def squeeze(self, dim=None):
        """Without the dims of size 1 (or without the one named, if its size is 1)."""
        if dim is None:
            drop = {d for d in range(self.ndim) if self.shape_[d] == 1}
        else:
            dims = (dim,) if isinstance(dim, int) else dim
            named = {layout.checked_dim(d, self.ndim) for d in dims}
            drop = {d for d in named if self.shape_ and self.shape_[d] == 1}
        keep = [d for d in range(self.ndim) if d not in drop]
        shape = tuple(self.shape_[d] for d in keep)
        return dispatch.view(self, shape, tuple(self.strides_[d] for d in keep))

    def unsqueeze(self, dim):
        """With a dim of size 1 inserted before `dim`."""
        d = layout.checked_dim(dim, self.ndim + 1)
        step = self.shape_[d] * self.strides_[d] if d < self.ndim else 1
        shape = (*self.shape_[:d], 1, *self.shape_[d:])
        return dispatch.view(self, shape, (*self.strides_[:d], step, *self.strides_[d:]))

    def narrow(self, dim, start, length):
        """The `length` elements from `start` on along one dim."""
        d = layout.checked_dim(dim, self.ndim)
        size = self.shape_[d] if self.shape_ else 0
        begin = start + size if start < 0 else start
        if length < 0 or begin < 0 or begin + length > size:
            raise ValueError(f"`start` {start} and `length` {length} do not fit dim {dim} of size {size}")
        shape = (*self.shape_[:d], length, *self.shape_[d + 1 :])
        return dispatch.view(self, shape, self.strides_, begin * self.strides_[d])

    def select(self, dim, index):
        """The slice at `index` of one dim, without that dim."""
        d = layout.checked_dim(dim, self.ndim)
        size = self.shape_[d] if self.shape_ else 0
        if not -size <= index < size:
            raise IndexError(f"`index` {index} is out of range for dim {dim} of size {size}")
        begin = index + size if index < 0 else index
        shape = self.shape_[:d] + self.shape_[d + 1 :]
        return dispatch.view(self, shape, self.strides_[:d] + self.strides_[d + 1 :], begin * self.strides_[d])

    def expand(self, *sizes):
        """Sizes of 1 shown as larger ones, without a copy; -1 keeps a size."""
        wanted = _sizes(sizes)
        pad = len(wanted) - self.ndim
        target = tuple(self.shape_[i - pad] if size == -1 and i >= pad else size for i, size in enumerate(wanted))
        target = layout.checked_shape(target, "sizes")
        return dispatch.view(self, target, layout.expand_strides(self.shape_, self.strides_, target))

    def expand_as(self, other):
        """Expanded to the shape of another tensor."""
        return self.expand(other.shape_)

    def split(self, sizes, dim=0):
        """Pieces of `sizes` along `dim` (an int: pieces of that size, the last may be smaller)."""
        total = self.size(dim)
        if isinstance(sizes, int):
            if sizes <= 0:
                raise ValueError(f"`sizes` must be positive, got {sizes}")
            sizes = [min(sizes, total - i) for i in range(0, total, sizes)] or [0]
        if sum(sizes) != total:
            raise ValueError(f"`sizes` {list(sizes)} must add up to {total}, the size of dim {dim}")
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return tuple(self.narrow(dim, start, size) for start, size in zip(starts, sizes))

    def chunk(self, chunks, dim=0):
        """At most `chunks` pieces of equal size along `dim`."""
        if chunks <= 0:
            raise ValueError(f"`chunks` must be positive, got {chunks}")
        return self.split(max(1, -(-self.size(dim) // chunks)), dim)

    def unbind(self, dim=0):
        """All slices along `dim`."""
        return tuple(self.select(dim, i) for i in range(self.size(dim)))

    # ---- indexing ----

    def __getitem__(self, index):
        basic = basic_index(self.shape_, self.strides_, index)
        if basic is not None:
            return dispatch.view(self, *basic)
        _refuse_recording("indexing with tensors or lists")
        return from_numpy(np.ascontiguousarray(self.numpy()[numpy_index(index)]))

    def __setitem__(self, index, value):
        basic = basic_index(self.shape_, self.strides_, index)
        if basic is not None:
            target = dispatch.view(self, *basic)
            if not isinstance(value, TensorBase):
                value = (
                    dispatch.scalar(value, self.dtype)
                    if np.isscalar(value)
                    else from_numpy(np.asarray(value).astype(self.dtype.numpy))
                )
            dispatch.copy_into(target, value)
            return
        _refuse_recording("assignment to an index of tensors or lists")
        dispatch.writable(self, "self")
        self.numpy()[numpy_index(index)] = value.numpy() if isinstance(value, Tensor) else value

    # ---- copies and conversions ----

    def contiguous(self):
        """This tensor if it is contiguous, else a row-major copy."""
        return self if self.contiguous_ else dispatch.contiguous_copy(self)

    def clone(self):
        """A row-major copy."""
        return dispatch.contiguous_copy(self)

    def copy_(self, source):
        """Write the elements of `source` (broadcast and cast as needed) into this tensor; returns it."""
        if not isinstance(source, TensorBase):
            raise TypeError(f"`source` must be a tensor, got {type(source).__name__}")
        dispatch.copy_into(self, source)
        return self

    def fill_(self, value):
        """Set every element; returns the tensor."""
        dispatch.copy_into(self, dispatch.scalar(value, self.dtype))
        return self

    def zero_(self):
        """Set every element to 0; returns the tensor."""
        return self.fill_(0)

    def to(self, *args, dtype=None, device=None, copy=False):
        """On another device, or as another dtype (in either order, or by name)."""
        for arg in args:
            if isinstance(arg, Device) or (
                isinstance(arg, str) and arg.partition(":")[0] in ("cpu", "cuda", "mlu", "npu", "musa")
            ):
                device = arg
            elif isinstance(arg, Tensor):
                dtype, device = arg.dtype, arg.device
            else:
                dtype = arg
        if device is not None:
            usable(device)
        target = self.dtype if dtype is None else _dtype(dtype)
        if target is self.dtype:
            return self.clone() if copy else self
        return dispatch.cast(self, target)

    def type_as(self, other):
        """As the dtype of another tensor."""
        return self.to(other.dtype)

    def cpu(self):
        """On the CPU."""
        return self

    def numpy(self):
        """A NumPy array of the same memory (bfloat16 and float8 in `ml_dtypes`)."""
        return to_numpy(self)

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        if dtype is not None:
            array = array.astype(dtype, copy=bool(copy))
        return array.copy() if copy else array

    def tolist(self):
        """Nested Python lists of the elements (a number, for a 0-dim tensor)."""
        return self.numpy().tolist()

    def item(self):
        """The one element as a Python number."""
        if self.numel_ != 1:
            raise ValueError(f"`item` needs a tensor of one element, got shape {self.shape_}")
        return self.numpy().reshape(()).item()

    def __bool__(self):
        if self.numel_ != 1:
            raise ValueError(f"the truth of a tensor of shape {self.shape_} is ambiguous, use `.all()` or `.any()`")
        return self.item() != 0

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __index__(self):
        if self.dtype.kind not in "iub":
            raise TypeError(f"only integer tensors can be an index, got {self.dtype}")
        return int(self.item())

    def __repr__(self):
        return format_tensor(self)

    def __dlpack__(self, **options):
        return to_dlpack(self, **options)

    def __dlpack_device__(self):
        return (1, 0)

    def __reduce__(self):
        return _rebuild, (self.contiguous().view(-1).numpy().view(np.uint8).tobytes(), self.dtype, self.shape_)

    def __deepcopy__(self, memo):
        return self.clone()

    def debug(self, filename=None):
        """Print the tensor, or write its raw bytes in row-major order to a file."""
        if filename is None:
            print(self)  # noqa: T201
            return
        with open(filename, "wb") as file:
            file.write(self.contiguous().view(-1).numpy().tobytes())


def _rebuild(data, dtype, shape):
    t = dispatch.empty(shape, dtype)
    t.view(-1).numpy().view(np.uint8)[:] = np.frombuffer(data, np.uint8)
    return t


def _dtype(value):
    return value if type(value) is DType else dtype(value)


def _refuse_recording(what):
    if launch.recording() is not None:
        raise NotImplementedError(f"{what} cannot be recorded in a graph, use slices or `infinicore.embedding`")


dispatch.set_tensor_class(Tensor)

# ---- methods from the op table ------------------------------------------------------------------

FUNCTIONS = {name: dispatch.make_function(op) for name, op in kernels.OPS.items()}

# Ops whose first input is a tensor become methods of that name, unless they belong to models.
_NOT_METHODS = {"cat", "stack", "cast", "where", "embedding", "linear", "rope"}


def _method(function):
    def method(self, *args, **kwargs):
        return function(self, *args, **kwargs)

    method.__name__, method.__doc__ = function.__name__, function.__doc__
    return method


def _in_place(function):
    def method(self, *args):
        return function(self, *args, out=self)

    method.__name__ = function.__name__ + "_"
    method.__doc__ = f"As `{function.__name__}`, into this tensor; returns it."
    return method


def _attach():
    for name, op in kernels.OPS.items():
        function = FUNCTIONS[name]
        if name in _NOT_METHODS:
            continue
        if not hasattr(Tensor, name):
            setattr(Tensor, name, _method(function))
        if op.family == "elementwise" and op.result == "same" and not hasattr(Tensor, name + "_"):
            setattr(Tensor, name + "_", _in_place(function))


def _operator(function):
    def forward(self, other):
        if not isinstance(other, (Tensor, int, float, np.number)):
            return NotImplemented
        return function(self, other)

    return forward


def _reflected(function):
    def backward(self, other):
        if not isinstance(other, (Tensor, int, float, np.number)):
            return NotImplemented
        return function(other, self)

    return backward


def _operators():
    """Special methods by name, from the functions that they call."""
    found = {}
    arithmetic = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "matmul": "matmul"}
    for symbol, name in arithmetic.items():
        function = FUNCTIONS[name]
        found[f"__{symbol}__"] = _operator(function)
        if symbol != "matmul":
            found[f"__r{symbol}__"] = _reflected(function)
            found[f"__i{symbol}__"] = lambda self, other, f=function: f(self, other, out=self)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        found[f"__{name}__"] = _operator(FUNCTIONS[name])
    for symbol, name in (("and", "logical_and"), ("or", "logical_or")):
        found[f"__{symbol}__"] = _operator(FUNCTIONS[name])
    for symbol, name in (("neg", "neg"), ("abs", "abs"), ("invert", "logical_not")):
        found[f"__{symbol}__"] = lambda self, f=FUNCTIONS[name]: f(self)
    return found


def _conversion(name, target):
    def method(self):
        return self.to(target)

    method.__name__ = name
    method.__doc__ = f"As {target!r}."
    return method


for _name in ("float", "double", "half", "bfloat16", "long", "int", "bool"):
    setattr(Tensor, _name, _conversion(_name, dtype(_name)))
_attach()
_OPERATORS = _operators()
for _name, _value in _OPERATORS.items():
    setattr(Tensor, _name, _value)
Tensor.__hash__ = object.__hash__  # identity; `__eq__` compares elements
