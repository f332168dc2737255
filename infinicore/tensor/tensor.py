"""The Tensor: storage, dtype and layout, with the methods of PyTorch and the exports of NumPy.

Methods that compute are attached from the op table at the end of the file; the ones written here
only change layouts, move data, or convert.
"""

import functools
from numbers import Number

import numpy as np

from .. import dispatch, interop, kernels
from ..core import launch as core_launch
from ..core import layout
from ..core.node_cy import WATCH
from ..core.tensor_cy import TensorBase
from ..device import CPU, Device, gpu, named, usable
from ..dispatch import derive
from ..dispatch.functions import FUNCTIONS
from ..dtype import DType, can_cast, dtype
from ..interop.numpy import array_ufunc, from_numpy, operand, to_numpy
from .draws import Draws
from .facts import Facts
from .formats import contiguous_format, in_order, order_like, order_of, preserve_format
from .gradients import Gradients, in_graph
from .indexing import advanced_index, basic_index, without_leading_ones
from .makes import Makes
from .parts import Parts
from .printing import format_tensor
from .views import Views


class Size(tuple):
    """A shape: a tuple that also equals a list."""

    __slots__ = ()

    def __eq__(self, other):
        return tuple.__eq__(self, tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other):
        return not self == other

    __hash__ = tuple.__hash__

    def __add__(self, other):
        return Size(tuple.__add__(self, tuple(other) if isinstance(other, list) else other))

    def __radd__(self, other):
        return Size((*other, *self)) if isinstance(other, (tuple, list)) else NotImplemented

    def __getitem__(self, index):
        found = tuple.__getitem__(self, index)
        return Size(found) if isinstance(index, slice) else found

    def numel(self):
        """Number of elements."""
        return layout.count(self)

    def __repr__(self):
        return f"Size({list(self)})"


# What PyTorch calls tensors of a dtype.
_TYPES = {
    "float16": "Half", "bfloat16": "BFloat16", "float32": "Float", "float64": "Double", "bool": "Bool",
    "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long",
    "complex64": "ComplexFloat", "complex128": "ComplexDouble",
    "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64",
}  # fmt: skip


class Tensor(Parts, Views, Makes, Draws, Facts, Gradients, TensorBase):
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

    @property
    def _underlying(self):
        """What InfiniCore's entry points (`infinicore.lib._infinicore`) take: the tensor itself."""
        return self

    def is_contiguous(self, memory_format=contiguous_format):
        """Whether elements lie without gaps in row-major order, or in that of a `memory_format`."""
        if memory_format is contiguous_format:
            return self.contiguous_
        order = order_of(memory_format, self.ndim)
        return self.contiguous_ if order is None else self.detach().permute(order).contiguous_

    def is_floating_point(self):
        """Whether the dtype is a floating-point one."""
        return self.dtype.is_floating_point

    @property
    def is_cuda(self):
        """Whether the tensor lies on a GPU of NVIDIA's."""
        return self.device.type == "cuda"

    def pin_memory(self, device=None):
        """A copy in page-locked memory, from which `to("cuda", non_blocking=True)` copies while the host goes on.

        Itself where it lies there already, or where there is no GPU.
        """
        if self.device is not CPU:
            raise ValueError(f"`pin_memory` is for tensors on the CPU, and this one is on {self.device}")
        from ..kernels.cuda.driver import device_count

        if self.is_pinned() or not device_count():
            return self
        return dispatch.pinned(self.detach() if self.contiguous_ else dispatch.contiguous_copy(self))

    def is_pinned(self, device=None):
        """Whether `pin_memory` has made it, or a view of it."""
        return hasattr(self.storage.owner, "marks")

    def __len__(self):
        if not self.shape_:
            raise TypeError("a 0-dim tensor has no `len()`")
        return self.shape_[0]

    def __iter__(self):
        if not self.shape_:
            raise TypeError("a 0-dim tensor cannot be iterated over, use `.item()`")
        return (self[i] for i in range(self.shape_[0]))

    def __contains__(self, element):
        """Whether any element equals a number, or one of a tensor that broadcasts."""
        if not isinstance(element, (Number, TensorBase)):
            raise TypeError(f"`in` looks for a number or a tensor in a tensor, got {element!r}")
        return bool((self == element).any().item())

    # ---- indexing ----

    def __getitem__(self, index):
        basic = basic_index(self.shape_, self.strides_, index)
        if basic is not None:
            back = functools.partial(_placed, self.shape_, index) if self.tracked else None
            return derive.view(self, *basic, back)
        dispatch.refuse_recording("indexing with tensors or lists", "use slices or `infinicore.embedding`")
        view, indices = advanced_index(self, index)
        return FUNCTIONS["index"](view, indices) if indices else view

    def __setitem__(self, index, value):
        basic = basic_index(self.shape_, self.strides_, index)
        if not isinstance(value, TensorBase):
            value = self._of_numbers(value)
        if basic is not None:
            if len(value.shape_) > len(basic[0]):
                value = without_leading_ones(value)
            if in_graph(self, value) or core_launch.mode() & WATCH:
                self[index].copy_(value)
            else:
                dispatch.copy_into(dispatch.view(self, *basic), value)
            return
        dispatch.refuse_recording("assignment to an index of tensors or lists", "use slices")
        dispatch.writable(self, "self")
        value = without_leading_ones(value.to(self.dtype))
        view, indices = advanced_index(self, index)
        if not indices:
            view[...] = value
        elif in_graph(self, value) or core_launch.mode() & WATCH:
            view.copy_(FUNCTIONS["index_put"](view, indices, value))
        else:
            FUNCTIONS["index_put"](view, indices, value, out=view)

    def _of_numbers(self, value):
        """A number, an array or lists as a tensor of this dtype."""
        if np.isscalar(value):
            return dispatch.scalar(value, self.dtype, self.device, exact=True)
        array = np.asarray(value)
        if array.dtype.kind == "c":
            dispatch.check_fits(array, self.dtype)
        return from_numpy(array.astype(self.dtype.numpy), device=self.device)

    # ---- copies and conversions ----

    def contiguous(self, memory_format=contiguous_format):
        """This tensor if it is contiguous in `memory_format`, else a copy that is."""
        if memory_format is contiguous_format:
            return self if self.contiguous_ else FUNCTIONS["rearrange"](self)
        return self if self.is_contiguous(memory_format) else self.clone(memory_format=memory_format)

    def clone(self, *, memory_format=contiguous_format):
        """A row-major copy, or one in another `memory_format`."""
        if memory_format is contiguous_format:
            return FUNCTIONS["rearrange"](self)
        order = order_like(self) if memory_format is preserve_format else order_of(memory_format, self.ndim)
        return in_order(self, order, FUNCTIONS["rearrange"])

    def copy_(self, source, non_blocking=False):
        """Write the elements of `source` (broadcast and cast as needed) into this tensor; returns it."""
        if not isinstance(source, TensorBase):
            raise TypeError(f"`source` must be a tensor, got {type(source).__name__}")
        if core_launch.mode() & WATCH and dispatch.batching.write(self, source):
            return self
        if in_graph(self, source):
            derive.write(self, source.to(self.device, self.dtype).expand(self.shape_), "copy_")
        else:
            dispatch.copy_into(self, source)
        return self

    def positive(self):
        """The tensor itself: unary `+`, which bools do not have."""
        if self.dtype.kind == "b":
            raise TypeError("`positive`, i.e. unary `+`, takes numbers, got a bool tensor: cast it first")
        return self

    def fill_(self, value):
        """Set every element; returns the tensor."""
        if isinstance(value, TensorBase):
            if value.shape_:
                raise ValueError(f"`value` of `fill_` must be a number or a 0-dim tensor, got shape {value.shape_}")
            return self.copy_(value)
        return self.copy_(dispatch.scalar(value, self.dtype, self.device, exact=True))

    def zero_(self):
        """Set every element to 0; returns the tensor."""
        return self.fill_(0)

    def fill_diagonal_(self, fill_value, wrap=False):
        """Set the elements whose indices are all equal; returns the tensor. `wrap` begins anew below a tall matrix.

        ValueError for fewer than two dims, and for more whose sizes differ.
        """
        shape, strides = self.shape_, self.strides_
        if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
            raise ValueError(f"`fill_diagonal_` needs a matrix, or dims of one size, got shape {shape}")
        size, start = min(shape), self.storage_offset()
        self.as_strided((size,), (sum(strides),), start).fill_(fill_value)
        rows, columns = shape[:2]
        if wrap and len(shape) == 2 and rows > columns + 1 and columns:
            left = -(-rows * columns // (columns + 1)) - size  # every (columns + 1)-th element in row-major order
            self.as_strided((left,), (sum(strides),), start + (columns + 1) * strides[0]).fill_(fill_value)
        return self

    def where(self, condition, other):
        """This tensor's elements where `condition` is true, else those of `other`."""
        return FUNCTIONS["where"](condition, self, other)

    def polygamma(self, n):
        """The n-th derivative of `digamma`."""
        return FUNCTIONS["polygamma"](n, self)

    def to(self, *args, dtype=None, device=None, non_blocking=False, copy=False, memory_format=contiguous_format):
        """On another device, or as another dtype (in either order, or by name); bools are `non_blocking` and `copy`.

        With `non_blocking`, a copy from pinned memory (`pin_memory`) to a GPU may still be under way when this returns.
        """
        plain = dtype is None and device is None and not copy and memory_format is contiguous_format
        if plain and len(args) == 1 and type(args[0]) is DType:  # by far the most calls: 1.4 us, not 2.4
            return self if args[0] is self.dtype else FUNCTIONS["cast"](self, args[0])
        if memory_format not in (contiguous_format, preserve_format):
            own = self.to(*args, dtype=dtype, device=device, non_blocking=non_blocking, copy=copy)
            return own.contiguous(memory_format)
        switches = [arg for arg in args if isinstance(arg, bool)]  # PyTorch's `non_blocking` and `copy`, in this order
        non_blocking, copy = non_blocking or switches[:1] == [True], copy or switches[1:2] == [True]
        for arg in args:
            if isinstance(arg, bool):
                continue
            if isinstance(arg, Device) or named(arg):
                device = arg
            elif isinstance(arg, Tensor):
                dtype, device = arg.dtype, arg.device
            elif isinstance(arg, int):  # the number of a GPU
                device = f"cuda:{arg}"
            else:
                dtype = arg
        place = self.device if device is None else usable(device)
        target = self.dtype if dtype is None else _dtype(dtype)
        x = self if target is self.dtype else FUNCTIONS["cast"](self, target)
        if place is not x.device:
            return derive.moved(x, place, not non_blocking)
        return x.clone() if copy and x is self else x

    def to_device(self, device, /, *, stream=None):
        """On another device, as the array API standard calls it."""
        if stream is not None:
            raise ValueError(f"`stream` of `to_device` must be None, got {stream!r}")
        return self.to(device=device)

    def type_as(self, other):
        """As the dtype of another tensor."""
        if not isinstance(other, TensorBase):
            raise TypeError(f"`other` of `type_as` must be a tensor, got {type(other).__name__}: use `.to()`")
        return self.to(other.dtype)

    def type(self, dtype=None):
        """As a dtype, or as the one that a name like "infinicore.FloatTensor" says; without either, that name."""
        if dtype is None:
            name = self.dtype.name
            return f"infinicore.{_TYPES.get(name, name.capitalize())}Tensor"
        if isinstance(dtype, str):
            word = dtype.rpartition(".")[2].removesuffix("Tensor")
            dtype = next((name for name, known in _TYPES.items() if known == word), dtype)
        return self.to(dtype=dtype)

    def cpu(self, memory_format=contiguous_format):
        """On the CPU."""
        return self.to(device=CPU, memory_format=memory_format)

    def cuda(self, device=None, non_blocking=False):
        """On a GPU: of a number or name, or the current one."""
        place = gpu() if device is None else f"cuda:{device}" if isinstance(device, int) else device
        return self.to(device=place, non_blocking=non_blocking)

    def numpy(self, *, force=False):
        """A NumPy array of the same memory (bfloat16 and float8 in `ml_dtypes`).

        With `force`, also of a tensor that requires gradients, and of one on a GPU a copy.
        """
        if force:
            return self.detach()._values()
        if self.tracked:
            raise ValueError(
                f"a tensor of shape {self.shape_} that requires grad has no NumPy array, as no gradient would flow "
                "through it: call `.detach()` on it first"
            )
        return to_numpy(self)

    def _values(self):
        """The elements as a NumPy array, from whatever device."""
        return to_numpy(self if self.device is CPU else dispatch.to_device(self.detach().contiguous(), CPU))

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        if dtype is not None:
            array = array.astype(dtype, copy=bool(copy))
        return array.copy() if copy else array

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        return array_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function, types, args, kwargs):
        from ..interop.array_function import array_function

        return array_function(function, args, kwargs)

    def __array_namespace__(self, *, api_version=None):
        from ..interop import array_api

        if api_version not in (None, *array_api.VERSIONS):
            raise ValueError(f"`api_version` must be one of {', '.join(array_api.VERSIONS)}, got {api_version!r}")
        return array_api

    def tolist(self):
        """Nested Python lists of the elements (a number, for a 0-dim tensor)."""
        found = core_launch.numbers_of(self) if len(self.shape_) == 1 else None
        return self._values().tolist() if found is None else found

    def item(self):
        """The one element as a Python number."""
        if self.numel_ != 1:
            raise ValueError(f"`item` needs a tensor of one element, got shape {self.shape_}")
        found = core_launch.numbers_of(self)
        if found is not None:
            return found[0]
        number = None if self.device is CPU else dispatch.number_of(self)
        return self._values().reshape(()).item() if number is None else number

    def __bool__(self):
        if self.numel_ != 1:
            raise ValueError(f"the truth of a tensor of shape {self.shape_} is ambiguous, use `.all()` or `.any()`")
        return self.item() != 0

    def __float__(self):
        return float(_real_number(self.item()))

    def __int__(self):
        return int(_real_number(self.item()))

    def __format__(self, spec):
        if self.shape_ and spec:
            raise TypeError(f"a tensor of shape {self.shape_} takes no format {spec!r}: only one of 0 dims is a number")
        return str(self) if self.shape_ else format(self.item(), spec)

    def __index__(self):
        if self.dtype.kind not in "iub":
            raise TypeError(f"only integer tensors can be an index, got {self.dtype}")
        return int(self.item())

    def __repr__(self):
        return format_tensor(self)

    def __dlpack__(self, **options):
        return interop.dlpack.to_dlpack(self, **options)

    def __dlpack_device__(self):
        return interop.dlpack.dlpack_device(self)

    @property
    def __cuda_array_interface__(self):
        return interop.cuda_array.describe(self)

    def __reduce__(self):
        data = self.detach().contiguous().view(-1)._values().view(np.uint8).tobytes()
        return _rebuild, (data, self.dtype, self.shape_, self.tracked, str(self.device))

    def __copy__(self):
        return self.detach().requires_grad_(self.tracked)  # the same memory, as PyTorch's

    def __deepcopy__(self, memo):
        if self.node is not None:
            raise ValueError(f"a result of `{self.node.called}` cannot be copied deeply: call `.detach()` on it first")
        return self.detach().clone().requires_grad_(self.tracked)

    def debug(self, filename=None):
        """Print the tensor, or write its raw bytes in row-major order to a file."""
        if filename is None:
            print(self)  # noqa: T201
            return
        with open(filename, "wb") as file:
            file.write(self.contiguous().view(-1)._values().tobytes())


def _real_number(value):
    """A number without an imaginary part; ValueError for another one."""
    if type(value) is complex:
        if value.imag:
            raise ValueError(f"the complex number {value} is no real one: take its `real` part")
        return value.real
    return value


def _rebuild(data, dtype, shape, requires_grad=False, device=None):
    t = dispatch.empty(shape, dtype)
    t.view(-1).numpy().view(np.uint8)[:] = np.frombuffer(data, np.uint8)
    return t.to(device=device).requires_grad_(requires_grad)


def _placed(shape, index, g):
    """The gradient of a tensor of `shape` from that of `tensor[index]`: zeros elsewhere."""
    full = derive.blank(shape, g)
    full[index] = g
    return full


def _dtype(value):
    return value if type(value) is DType else dtype(value)


dispatch.set_tensor_class(Tensor)

# ---- methods from the op table ------------------------------------------------------------------

# Methods that are functions of the package as well.
METHODS = ("as_strided", "clone", "numel", "positive")


def _of_method(name):
    method = getattr(Tensor, name)

    @functools.wraps(method)
    def function(input, *args, **kwargs):
        if not isinstance(input, Tensor):
            raise TypeError(f"`input` of `{name}` must be a tensor, got {type(input).__name__}")
        return method(input, *args, **kwargs)

    return function


FUNCTIONS |= {name: _of_method(name) for name in METHODS}


def in_place_function(name):
    """A method that ends in `_` as a function of a tensor, as `torch.relu_` is one; None where there is no such."""
    return _of_method(name) if name.endswith("_") and hasattr(Tensor, name) else None


# Ops whose first input is a tensor become methods of that name, unless they belong to models.
_NOT_METHODS = {
    "cast",
    "where",
    "embedding",
    "linear",
    "rope",
    "polygamma",
    "trapezoid",
    "cumulative_trapezoid",
    "vander",
}
# Nor do those whose first parameter is no tensor, or one of several that are alike.
_NOT_FIRST = {"tensors", "matrices", "equation", "sorted_sequence", "elements", "indices", "a"}


class _Unmade:
    """A method that is made when it is first asked for, and stands in this one's place from then on."""

    def __init__(self, name, make, op):
        self._name, self._make, self._op = name, make, op

    def __get__(self, instance, owner=None):
        method = self._make(FUNCTIONS[self._op])
        setattr(Tensor, self._name, method)
        return method.__get__(instance, owner)


def _method(function):
    def method(self, *args, **kwargs):
        return function(self, *args, **kwargs)

    method.__name__, method.__doc__ = function.__name__, function.__doc__
    return method


def _itself(function):
    """A function of Python, which needs no wrapper to take the tensor as `self`."""
    return function


# Others than elementwise ones that have a form `name_`, which works in place.
_IN_PLACE = ("clamp", "cumsum", "index_add", "index_put", "masked_fill", "scatter", "scatter_add", "tril", "triu")
_IN_PLACE += ("clip", "eq", "ge", "gt", "le", "lt", "ne", "logical_and", "logical_not", "logical_or", "logical_xor")
_IN_PLACE += ("addbmm", "addmm", "addmv", "addr", "baddbmm", "cumprod", "deg2rad", "float_power", "index_copy")
_IN_PLACE += ("index_fill", "index_reduce", "ldexp", "masked_scatter", "mvlgamma", "nan_to_num", "put", "rad2deg")
_IN_PLACE += ("renorm", "scatter_reduce", "sinc", "clamp_max", "clamp_min", "sgn", "prelu")
_IN_PLACE += ("greater", "greater_equal", "less", "less_equal", "not_equal")


def _into(self, function, args, kwargs):
    """Run a function with its result in `self`, which takes the place of the result in the graph."""
    if not in_graph(self, *args, *kwargs.values()):
        return function(self, *args, **kwargs, out=self)
    result = function(self, *args, **kwargs)
    if result.shape_ != self.shape_:
        raise ValueError(f"`self` has shape {self.shape_}, but the result of `{function.__name__}_` is {result.shape_}")
    if not can_cast(result.dtype, self.dtype):
        name = function.__name__
        raise TypeError(f"`self` has dtype {self.dtype}, which cannot hold the result of `{name}_` in {result.dtype}")
    derive.keep_old(self, result)
    derive.write(self, result.to(self.dtype), function.__name__ + "_")
    return self


def _in_place(function):
    def method(self, *args, **kwargs):
        return _into(self, function, args, kwargs)

    method.__name__ = function.__name__ + "_"
    method.__doc__ = f"As `{function.__name__}`, into this tensor; returns it."
    return method


def _attach():
    methods = set(dir(Tensor))
    for name, row in kernels.OPS.rows().items():
        if kernels.ALIASES.get(name, name) in _NOT_METHODS or row.first in _NOT_FIRST:
            continue
        if name not in methods:
            setattr(Tensor, name, _Unmade(name, _itself if row.family == "view" else _method, name))
        in_place = (row.family == "elementwise" and row.result in ("same", "float", "input")) or name in _IN_PLACE
        if in_place and name + "_" not in methods:
            setattr(Tensor, name + "_", _Unmade(name + "_", _in_place, name))


def _operator(function):
    def forward(self, other):
        if not isinstance(other, (Tensor, int, float, complex, np.number)):
            return NotImplemented
        return function(self, other)

    return forward


def _reflected(function):
    def backward(self, other):
        if not isinstance(other, (Tensor, int, float, complex, np.number)):
            return NotImplemented
        return function(other, self)

    return backward


_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "matmul": "matmul"}
_BINARY |= {"floordiv": "floor_divide", "mod": "remainder"}
_BINARY |= {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
_BINARY |= {"lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift"}


def _power(function):
    def forward(self, other):
        if type(other) is int and 0 <= other < 128 and self.dtype.kind in "iu":
            other = dispatch.scalar(
                other, self.dtype, self.device
            )  # a call with a tensor can be known: 2 instead of 10 us
        return general(self, other)

    general = _operator(function)
    return forward


def _augmented(function):
    return lambda self, other: _into(self, function, (operand(other, self),), {})


def _alone(function):
    return lambda self: function(self)


def _operators():
    """(special method, how it is made, the function that it calls) of each."""
    for symbol, name in _BINARY.items():
        yield f"__{symbol}__", _power if symbol == "pow" else _operator, name
        yield f"__r{symbol}__", _reflected, name
        if symbol != "matmul":
            yield f"__i{symbol}__", _augmented, name
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        yield f"__{name}__", _operator, name
    for symbol, name in (("neg", "neg"), ("pos", "positive"), ("abs", "abs"), ("invert", "bitwise_not")):
        yield f"__{symbol}__", _alone, name


def _conversion(name, target):
    def method(self, memory_format=contiguous_format):
        return self.to(target, memory_format=memory_format)

    method.__name__ = name
    method.__doc__ = f"As {target!r}."
    return method


_CONVERSIONS = {name: name for name in "float double half bfloat16 long int short bool cfloat cdouble".split()}
for _name, _value in (_CONVERSIONS | {"byte": "uint8", "char": "int8"}).items():
    setattr(Tensor, _name, _conversion(_name, dtype(_value)))
_attach()
_OPERATORS = {name: _Unmade(name, *made) for name, *made in _operators()}
for _name, _value in _OPERATORS.items():
    setattr(Tensor, _name, _value)
Tensor.__hash__ = object.__hash__  # identity; `__eq__` compares elements
