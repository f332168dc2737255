"""What paragraphs share: checks of inputs, and tensors seen as rows of memory."""

import operator

import numpy as np

# by item size: elements that are moved, not computed
UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64", 16: "uint128"}


def check(call, x, name, integers=False):
    """Refuse what is no tensor, or has a dtype that the op does not take; `integers` makes floats of those."""
    if not hasattr(x, "strides_"):
        raise TypeError(f"`{name}` of `{call.op.name}` must be a tensor, got {type(x).__name__}")
    if x.dtype.name not in call.op.dtypes and not (integers and x.dtype.kind in "iub"):
        raise TypeError(f"`{name}` of `{call.op.name}` must be one of {', '.join(call.op.dtypes)}, got {x.dtype.name}")


def check_index(call, x, name):
    """Refuse what is no tensor of integers."""
    if not hasattr(x, "strides_"):
        raise TypeError(f"`{name}` of `{call.op.name}` must be a tensor, got {type(x).__name__}")
    if x.dtype.name not in ("int32", "int64"):
        raise TypeError(f"`{name}` of `{call.op.name}` must be int32 or int64, got {x.dtype.name}: cast it first")


def check_alike(op, input, **others):
    """Refuse tensors of another dtype than `input` in an op that PyTorch does not let promote them."""
    for name, x in others.items():
        if hasattr(x, "strides_") and hasattr(input, "strides_") and x.dtype is not input.dtype:
            raise TypeError(f"`{op}` needs one dtype, got {input.dtype} and, for `{name}`, {x.dtype}: cast one")


def check_holds(op, dtype, **numbers):
    """Refuse numbers that an integer dtype cannot hold; a negative one is its two's complement in an unsigned dtype."""
    if dtype.kind in "iu":
        most = (1 << (8 * dtype.itemsize - (dtype.kind == "i"))) - 1
        for name, x in numbers.items():
            if not hasattr(x, "strides_") and not -most - (dtype.kind == "i") <= x <= most:
                raise ValueError(f"`{name}` of `{op}` must be a number that {dtype} holds, got {x}: widen the tensor")


def check_factor(call, factor, name, x, shape):
    """Refuse a weight, bias or table that does not have `shape`, or does not go with the dtype of x.

    A factor of another dtype is right where both are computed as float32.
    """
    if not hasattr(factor, "strides_"):
        raise TypeError(f"`{name}` of `{call.op.name}` must be a tensor, got {type(factor).__name__}")
    if factor.dtype is not x.dtype:
        narrow = ("float32", "bfloat16", "float16")
        if factor.dtype.name not in narrow or x.dtype.name not in narrow:
            raise TypeError(
                f"`{name}` of `{call.op.name}` has dtype {factor.dtype.name}, which does not go with "
                f"{x.dtype.name}: cast it to {x.dtype.name}"
            )
    if factor.shape_ != shape:
        raise ValueError(f"`{name}` of `{call.op.name}` must have shape {shape}, got {factor.shape_}")


def check_dim(dim, ndim, name="dim"):
    """`dim` counted from the front."""
    limit = ndim or 1
    try:
        dim = operator.index(dim)
    except TypeError:
        raise TypeError(f"`{name}` must be an integer, got {dim!r}") from None
    if not -limit <= dim < limit:
        raise IndexError(f"`{name}` must be between {-limit} and {limit - 1} for a tensor of {ndim} dims, got {dim}")
    return dim + limit if dim < 0 else dim


def broadcast(*shapes):
    """The common shape of shapes, by the rules of NumPy."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        said = " and ".join(str(tuple(s)) for s in shapes)
        raise ValueError(f"shapes {said} do not broadcast: sizes must be equal or 1") from None


def product(sizes):
    """Number of elements of a shape."""
    n = 1
    for size in sizes:
        n *= size
    return n


def as_it_lies(call, x):
    """`x` with its dims in the order of memory, for where their order is none of the result's: the sum of a million
    transposed elements takes 45 us so, and 290 in the order of dims.
    """
    order = sorted(range(len(x.shape_)), key=lambda d: -x.strides_[d])
    return call.view(x, tuple([x.shape_[d] for d in order]), tuple([x.strides_[d] for d in order]))


def rows(x, first):
    """`x` as rows of memory: (x or a contiguous copy, number of rows, row length, row stride).

    A row holds the dims from `first` on and is contiguous; the dims before it step evenly.
    """
    shape = x.shape_
    if x.contiguous_:
        length = product(shape[first:])
        return x, product(shape[:first]), length, length
    strides = x.strides_
    length = 1
    for d in range(len(shape) - 1, first - 1, -1):
        if shape[d] != 1 and strides[d] != length:
            return rows(x.contiguous(), first)
        length *= shape[d]
    count, stride = 1, 0
    for d in range(first - 1, -1, -1):
        if shape[d] != 1:
            if count == 1:
                stride = strides[d]
            elif strides[d] != stride * count:
                return rows(x.contiguous(), first)
            count *= shape[d]
    return x, count, length, stride
