"""The Python array API standard, revision 2024.12 (data-apis.org/array-api): what `Tensor.__array_namespace__` returns.

SciPy, scikit-learn and whatever else is written against the standard compute on tensors through this module. It has
the standard's names, arguments and promotion (0-dim tensors promote as others do; sums of unsigned integers are
unsigned) over the functions of the op table, so gradients are recorded as everywhere. docs/interop.md says more.
"""

import builtins
import functools

from .. import dispatch
from ..core import layout
from ..core.tensor_cy import TensorBase
from ..device import current, usable
from ..dispatch.functions import FUNCTIONS
from ..dtype import dtype as _dtype
from ..dtype import finfo, iinfo, promote_types  # noqa: F401 (names of the standard)
from ..tensor import creation as _creation
from ..tensor.kinds import broadcast_shapes, e, inf, nan, newaxis, pi  # noqa: F401 (names of the standard)
from . import array_fft as fft  # noqa: F401 (a name of the standard)
from . import array_linalg as linalg
from .array_reductions import (  # noqa: F401 (names of the standard)
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    cumulative_prod,
    cumulative_sum,
    diff,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from .dlpack import from_dlpack as _from_dlpack

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
__array_api_version__ = VERSIONS[-1]

_KINDS = {
    "bool": "bool",
    "signed integer": "int8 int16 int32 int64",
    "unsigned integer": "uint8 uint16 uint32 uint64",
    "real floating": "float32 float64",
    "complex floating": "complex64 complex128",
}
_KINDS["integral"] = f"{_KINDS['signed integer']} {_KINDS['unsigned integer']}"
_KINDS["numeric"] = f"{_KINDS['integral']} {_KINDS['real floating']} {_KINDS['complex floating']}"
_LETTERS = {"bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f",
            "complex floating": "c", "numeric": "iufc"}  # fmt: skip
_DTYPES = {name: _dtype(name) for name in f"bool {_KINDS['numeric']}".split()}
globals().update(_DTYPES)

# ---- functions of one array and of two, by the names of the table ---------------------------------

_UNARY = {name: name for name in (
    "abs acos acosh asin asinh atan atanh conj cos cosh exp expm1 imag isfinite isinf isnan log log10 log1p log2 "
    "logical_not real reciprocal signbit sin sinh sqrt square tan tanh"
).split()} | {"bitwise_invert": "bitwise_not", "negative": "neg", "positive": "positive"}  # fmt: skip
_BINARY = {name: name for name in (
    "atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign floor_divide hypot "
    "logaddexp logical_and logical_or logical_xor maximum minimum nextafter pow remainder"
).split()} | {
    "add": "add", "divide": "div", "equal": "eq", "greater": "gt", "greater_equal": "ge", "less": "lt",
    "less_equal": "le", "multiply": "mul", "not_equal": "ne", "subtract": "sub",
}  # fmt: skip


def _unary(name, op):
    compute = FUNCTIONS[op]

    def function(x, /):
        return compute(x)

    function.__name__, function.__doc__ = name, f"`{name}` of the array API, elementwise."
    return function


def _rounding(name):
    compute = FUNCTIONS[name]

    def function(x, /):
        return compute(x) if x.dtype.is_floating_point else x.clone()

    function.__name__, function.__doc__ = name, f"`{name}` of the array API, elementwise; integers as they are."
    return function


def _promoted(*values):
    """Tensors in their common dtype; numbers as they are."""
    dtypes = [x.dtype for x in values if isinstance(x, TensorBase)]
    common = functools.reduce(promote_types, dtypes)
    return [x.to(common) if isinstance(x, TensorBase) and x.dtype is not common else x for x in values]


def _binary(name, op):
    compute = FUNCTIONS[op]

    def function(x1, x2, /):
        return compute(*_promoted(x1, x2))

    function.__name__, function.__doc__ = name, f"`{name}` of the array API, elementwise."
    return function


globals().update({name: _unary(name, op) for name, op in _UNARY.items()})
globals().update({name: _rounding(name) for name in ("ceil", "floor", "round", "trunc")})
globals().update({name: _binary(name, op) for name, op in _BINARY.items()})


def sign(x, /):
    """-1, 0 or 1 by the sign, elementwise; NaN of NaN, where the table's op gives 0."""
    if x.dtype.kind == "c":
        return FUNCTIONS["where"](x != x, x, FUNCTIONS["sgn"](x))
    result = FUNCTIONS["sign"](x)
    return FUNCTIONS["where"](x != x, x, result) if x.dtype.is_floating_point else result


def clip(x, /, min=None, max=None):  # noqa: F811 (names of the standard)
    """Elements brought between `min` and `max`, in the dtype of `x`."""
    bounds = [b.to(x.dtype) if isinstance(b, TensorBase) else b for b in (min, max)]
    return x.clone() if min is None and max is None else FUNCTIONS["clamp"](x, *bounds).to(x.dtype)


def where(condition, x1, x2, /):
    """`x1` where `condition` holds, else `x2`; one of them may be a number."""
    if not isinstance(x1, TensorBase) and not isinstance(x2, TensorBase):
        x1 = asarray(x1, device=condition.device)
    return FUNCTIONS["where"](condition, *_promoted(x1, x2))


# ---- order, search and sets -------------------------------------------------------------------------


def sort(x, /, *, axis=-1, descending=False, stable=True):
    """The elements in order along `axis`."""
    return FUNCTIONS["sort"](x, axis, descending, stable)[0]


def argsort(x, /, *, axis=-1, descending=False, stable=True):
    """The indices that put the elements in order."""
    return FUNCTIONS["argsort"](x, axis, descending, stable)


def searchsorted(x1, x2, /, *, side="left", sorter=None):
    """Where each of `x2` belongs in the sorted `x1`."""
    return FUNCTIONS["searchsorted"](*_promoted(x1, x2), side=side, sorter=sorter)


def nonzero(x, /):
    """The indices of what is not 0, one tensor for each dim."""
    if x.ndim == 0:
        raise ValueError("`x` of `nonzero` must have at least one dim, got a 0-dim tensor")
    return FUNCTIONS["nonzero"](x, as_tuple=True)


def isin(x1, x2, /, *, invert=False):
    """Whether each element of `x1` is among those of `x2`."""
    x1, x2 = [asarray(x) for x in (x1, x2)]
    return FUNCTIONS["isin"](*_promoted(x1, x2), invert=invert)


class _Fields(tuple):
    """A tuple whose entries have names."""

    def __new__(cls, **fields):
        self = super().__new__(cls, fields.values())
        self.__dict__.update(fields)
        return self


def unique_all(x, /):
    """Distinct values, the first index of each, where each element went, and how often each occurs."""
    values, inverse, counts = FUNCTIONS["unique"](x, return_inverse=True, return_counts=True)
    order = argsort(inverse.reshape(-1))
    first = counts.cumsum(0) - counts
    return _Fields(values=values, indices=order[first], inverse_indices=inverse, counts=counts)


def unique_counts(x, /):
    """Distinct values, and how often each occurs."""
    values, counts = FUNCTIONS["unique"](x, return_counts=True)
    return _Fields(values=values, counts=counts)


def unique_inverse(x, /):
    """Distinct values, and where each element went."""
    values, inverse = FUNCTIONS["unique"](x, return_inverse=True)
    return _Fields(values=values, inverse_indices=inverse)


def unique_values(x, /):
    """Distinct values."""
    return FUNCTIONS["unique"](x)


# ---- shapes and indices -----------------------------------------------------------------------------


def reshape(x, /, shape, *, copy=None):
    """The elements in another shape; `copy=False` raises ValueError where that needs a copy."""
    if copy is False:
        return x.view(shape)
    return FUNCTIONS["reshape"](x.clone() if copy else x, shape)


def concat(arrays, /, *, axis=0):
    """Arrays after another along `axis`; flattened first if that is None."""
    arrays = _promoted(*arrays)
    return FUNCTIONS["cat"]([x.reshape(-1) for x in arrays] if axis is None else arrays, axis or 0)


def stack(arrays, /, *, axis=0):
    """Arrays beside another along a new `axis`."""
    return FUNCTIONS["stack"](_promoted(*arrays), axis)


def unstack(x, /, *, axis=0):
    """The slices along `axis`."""
    return tuple(FUNCTIONS["unbind"](x, axis))


def squeeze(x, /, axis):
    """Without dims of size 1; ValueError for another size."""
    axes = [layout.checked_dim(dim, x.ndim) for dim in (axis if isinstance(axis, tuple) else (axis,))]
    if wrong := [x.shape_[dim] for dim in axes if x.shape_[dim] != 1]:
        raise ValueError(f"`axis` of `squeeze` must name dims of size 1, got sizes {wrong} in the shape {x.shape_}")
    return FUNCTIONS["squeeze"](x, tuple(axes)) if axes else x


def expand_dims(x, /, *, axis=0):
    """With a new dim of size 1; IndexError outside of the shape."""
    return FUNCTIONS["unsqueeze"](x, axis)


def permute_dims(x, /, axes):
    """With the dims in another order."""
    return FUNCTIONS["permute"](x, axes)


def moveaxis(x, source, destination, /):
    """With dims moved to other places."""
    return FUNCTIONS["movedim"](x, source, destination)


def flip(x, /, *, axis=None):
    """In reverse order along `axis`, or all of them."""
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return FUNCTIONS["flip"](x, axes)


def roll(x, /, shift, *, axis=None):
    """Shifted around along `axis`, or in the flattened order."""
    return FUNCTIONS["roll"](x, shift, axis)


def repeat(x, repeats, /, *, axis=None):
    """Every element several times along `axis`, or flattened."""
    return FUNCTIONS["repeat_interleave"](x, repeats, axis)


def tile(x, repetitions, /):
    """The array several times along each dim."""
    return FUNCTIONS["tile"](x, repetitions)


def broadcast_to(x, /, shape):
    """A view of another shape."""
    return FUNCTIONS["broadcast_to"](x, shape)


def broadcast_arrays(*arrays):
    """Views of their common shape."""
    return list(FUNCTIONS["broadcast_tensors"](*arrays))


def meshgrid(*arrays, indexing="xy"):
    """Coordinates of a grid; the first two dims are exchanged unless `indexing="ij"`."""
    return list(FUNCTIONS["meshgrid"](*arrays, indexing=indexing))


def take(x, indices, /, *, axis=None):
    """The entries of `indices`, 1-D, along `axis`; negative ones count from the end."""
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"`axis` of `take` must be given for a tensor of {x.ndim} dims")
        axis = 0
    index = (slice(None),) * layout.checked_dim(axis, x.ndim)
    return x[(*index, indices)]


def take_along_axis(x, indices, /, *, axis=-1):
    """The entries of `indices` along `axis`, at each place of the other dims; negative ones count from the end."""
    size = x.shape_[layout.checked_dim(axis, x.ndim)]
    return FUNCTIONS["take_along_dim"](x, where(indices < 0, indices + size, indices).to("int64"), axis)


def tril(x, /, *, k=0):
    """The lower triangle of matrices, up to the diagonal `k`."""
    return FUNCTIONS["tril"](x, k)


def triu(x, /, *, k=0):
    """The upper triangle of matrices, from the diagonal `k`."""
    return FUNCTIONS["triu"](x, k)


# ---- products ---------------------------------------------------------------------------------------

matmul, matrix_transpose, tensordot, vecdot = linalg.matmul, linalg.matrix_transpose, linalg.tensordot, linalg.vecdot

# ---- new arrays -------------------------------------------------------------------------------------


def asarray(obj, /, *, dtype=None, device=None, copy=None):
    """A tensor of numbers, nested lists, or memory of another library, which is shared unless `copy`."""
    return _creation.asarray(obj, dtype=dtype, device=device, copy=copy)


def from_dlpack(x, /, *, device=None, copy=None):
    """A tensor of the memory of another library."""
    found = x if isinstance(x, TensorBase) else _from_dlpack(x)
    return found.to(device=device, copy=builtins.bool(copy))


def arange(start, /, stop=None, step=1, *, dtype=None, device=None):
    """Numbers from `start` up to `stop`, without it; none where `step` leads away from it."""
    start, stop = (0, start) if stop is None else (start, stop)
    if step and (stop - start) / step <= 0:
        whole = isinstance(start, int) and isinstance(stop, int) and isinstance(step, int)
        return empty(0, dtype=dtype or ("int64" if whole else None), device=device)
    return _creation.arange(start, stop, step, dtype=dtype, device=device)


def linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True):
    """`num` numbers at equal distances from `start` to `stop`, with or without that."""
    if endpoint:
        return _creation.linspace(start, stop, num, dtype=dtype, device=device)
    return _creation.linspace(start, stop, num + 1, dtype=dtype, device=device)[:num]


def eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None):
    """A matrix with ones on the diagonal `k`."""
    result = zeros((n_rows, n_rows if n_cols is None else n_cols), dtype=dtype, device=device)
    if -n_rows < k < result.shape_[1]:
        FUNCTIONS["diagonal"](result, k).fill_(1)
    return result


def empty(shape, *, dtype=None, device=None):
    """A tensor without values."""
    return _creation.empty(shape, dtype=dtype, device=device)


def zeros(shape, *, dtype=None, device=None):
    """A tensor of zeros."""
    return _creation.zeros(shape, dtype=dtype, device=device)


def ones(shape, *, dtype=None, device=None):
    """A tensor of ones."""
    return _creation.ones(shape, dtype=dtype, device=device)


def full(shape, fill_value, *, dtype=None, device=None):
    """A tensor of one value."""
    return _creation.full((shape,) if isinstance(shape, int) else shape, fill_value, dtype=dtype, device=device)


def empty_like(x, /, *, dtype=None, device=None):
    """A tensor of the shape of `x` without values."""
    return _creation.empty_like(x, dtype=dtype, device=device)


def zeros_like(x, /, *, dtype=None, device=None):
    """Zeros in the shape of `x`."""
    return _creation.zeros_like(x, dtype=dtype, device=device)


def ones_like(x, /, *, dtype=None, device=None):
    """Ones in the shape of `x`."""
    return _creation.ones_like(x, dtype=dtype, device=device)


def full_like(x, /, fill_value, *, dtype=None, device=None):
    """One value in the shape of `x`."""
    return _creation.full_like(x, fill_value, dtype=dtype, device=device)


# ---- dtypes and the namespace itself ----------------------------------------------------------------


def astype(x, dtype, /, *, copy=True, device=None):
    """The values in another dtype; the tensor itself where nothing changes and `copy` is False."""
    return x.to(dtype=_dtype(dtype), device=device, copy=copy)


def isdtype(dtype, kind):
    """Whether a dtype is `kind`: a dtype, the name of a kind such as "real floating", or one of several of these."""
    if isinstance(kind, tuple):
        return builtins.bool([one for one in kind if isdtype(dtype, one)])
    if isinstance(kind, str):
        if kind not in _LETTERS:
            raise ValueError(f"`kind` must be one of {', '.join(map(repr, _LETTERS))}, got {kind!r}")
        return _dtype(dtype).kind in _LETTERS[kind]
    return _dtype(dtype) is _dtype(kind)


def result_type(*arrays_and_dtypes):
    """The common dtype of tensors, dtypes and numbers, of which tensors of 0 dims count as others."""
    found = [getattr(x, "dtype", x) for x in arrays_and_dtypes]
    numbers = [x for x in found if isinstance(x, (int, float, complex))]
    dtypes = [_dtype(x) for x in found if not isinstance(x, (int, float, complex))]
    if not dtypes:
        raise ValueError(f"`arrays_and_dtypes` must have a tensor or a dtype, got {arrays_and_dtypes}")
    common = functools.reduce(promote_types, dtypes)
    return functools.reduce(lambda dtype, x: dispatch.result_type(_creation.empty(1, dtype=dtype), x), numbers, common)


def can_cast(from_, to, /):
    """Whether the dtype of a tensor, or a dtype, promotes to `to` without another one coming out."""
    return promote_types(_dtype(getattr(from_, "dtype", from_)), _dtype(to)) is _dtype(to)


class _Info:
    """What the namespace can do (`__array_namespace_info__`)."""

    def capabilities(self):
        """What the standard leaves open."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self):
        """Where tensors are made unless a device is named."""
        return current()

    def devices(self):
        """The devices there are: the default one, others by name."""
        return [current()]

    def default_dtypes(self, *, device=None):
        """Dtypes of new tensors."""
        usable(device)
        return {"real floating": _dtype("float32"), "complex floating": _dtype("complex64"),
                "integral": _dtype("int64"), "indexing": _dtype("int64")}  # fmt: skip

    def dtypes(self, *, device=None, kind=None):
        """The dtypes of the standard, by name: all, or those of a kind or of one of several."""
        usable(device)
        return {name: dtype for name, dtype in _DTYPES.items() if kind is None or isdtype(dtype, kind)}


def __array_namespace_info__():
    """What the namespace can do: its dtypes, devices and capabilities."""
    return _Info()
