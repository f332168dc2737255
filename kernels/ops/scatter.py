"""Elements read and written by an index for each: gather, scatter."""

import numpy as np

from ..problems.array import Elements, keeps_order
from ..table.registry import ANY, INEXACT, NUMERIC, op
from ._layout import UNSIGNED, check, check_dim, check_index
from .copy import copy_into, fill

_ROUNDED = ("scatter_add", "scatter_multiply")  # kernels whose results of floats depend on the order


def _launch(call, kernel, t, dim, index, v, v_strides, wrap=False):
    """Run a kernel of `array/scatter.py` over the elements of `index`; `v_strides` are those of v along its dims.

    With `wrap`, which `gather` takes, negative indices count from the end.
    """
    if not index.numel_:
        return
    bits, shape = UNSIGNED[t.dtype.itemsize], t.shape_
    types = (t.dtype.name, v.dtype.name) if kernel.startswith("scatter_") else (bits, bits)
    layouts = (shape, t.strides_, index.shape_, index.strides_, v_strides)
    last = (shape[dim] if shape else 1) - 1
    said = f"`index` of `{call.op.name}` must be from {-last - 1 if wrap else 0} to {last}"
    errors = {1: f"{said} for dim {dim} of a tensor {shape}"}
    ordered = keeps_order() and kernel in _ROUNDED and t.dtype.is_floating_point
    call.run(Elements(kernel, *types, index.dtype.name, dim, *layouts, ordered, wrap), errors, t=t, index=index, v=v)


def _check(call, t, dim, index, src=None):
    """`dim` counted from the front, after checks of what all ops here share."""
    check_index(call, index, "index")
    shape, own = t.shape_, index.shape_
    dim = check_dim(dim, len(shape))
    if len(own) != len(shape) or any(n > m for d, (n, m) in enumerate(zip(own, shape)) if d != dim):
        raise ValueError(
            f"`index` of `{call.op.name}` must have as many dims as `input` {shape}, and be no larger but in dim "
            f"{dim}, got {own}"
        )
    if src is not None and (len(src.shape_) != len(own) or any(n > m for n, m in zip(own, src.shape_))):
        raise ValueError(f"`src` of `{call.op.name}` must be at least as large as `index` {own}, got {src.shape_}")
    return dim


def _part(array, shape):
    return array[tuple(slice(n) for n in shape)]


def _gather_ref(input, dim, index):
    if not input.ndim:
        return input[()]
    d = dim % input.ndim
    return np.take_along_axis(_part(input, [n if i != d else None for i, n in enumerate(index.shape)]), index, d)


def _gather_samples(rng):
    yield (rng.standard_normal((5, 3)), 0, rng.integers(0, 5, (7, 3))), {}
    yield (rng.standard_normal((5, 7)), 1, rng.integers(0, 7, (4, 3)).astype(np.int32)), {}
    yield (rng.standard_normal((3, 5, 17)), -2, rng.integers(0, 5, (3, 2, 17))), {}
    yield (rng.standard_normal((3, 5, 17)), 2, rng.integers(0, 17, (2, 5, 1))), {}
    yield (rng.standard_normal(9), 0, rng.integers(0, 9, 33)), {}


@op(dtypes=ANY, ref=_gather_ref, samples=_gather_samples)
def gather(call, input, dim, index):
    """out[i, j, ...] = input[index[i, j, ...], j, ...] for `dim` 0, and so on for others: the shape of `index`.

    `index` (int32 or int64) has the dims of `input`, none but `dim` larger. Raises ValueError for an index outside of
    the dim, and for an `out` that shares memory with an input.
    """
    check(call, input, "input")
    dim = _check(call, input, dim, index)
    call.save(input_shape=input.shape_)
    y = call.out(index.shape_, input.dtype, overlap="refused")
    _launch(call, "gather", input, dim, index, y, y.strides_)
    return y


@gather.grad("input")
def _(f, g, dim, index, input_shape):
    return f.gather_backward(g, dim, index, input_shape)


def _add(call, y, dim, index, src, strides=None, kernel="scatter_add"):
    """Add to y (or multiply it); 16-bit results are kept in float32 and rounded once.

    Of bools, a sum says whether any is true, and a product, whether all are.
    """
    strides = src.strides_ if strides is None else strides
    if y.dtype.kind == "b":
        wide = y.to(dtype="int64")
        _launch(call, kernel, wide, dim, index, src, strides)
        call.elementwise("ne", wide, 0, out=y)
    elif y.dtype.is_floating_point and y.dtype.itemsize == 2:
        wide = y.to(dtype="float32")
        _launch(call, kernel, wide, dim, index, src, strides)
        call.elementwise("cast", wide, out=y)
    else:
        _launch(call, kernel, y, dim, index, src, strides)
    return y


def _gather_backward_ref(grad, dim, index, shape):
    return _scatter_add_ref(np.zeros(shape), dim, index, grad)


def _gather_backward_samples(rng):
    yield (rng.standard_normal((7, 3)), 0, rng.integers(0, 5, (7, 3)), (5, 3)), {}
    yield (rng.standard_normal((4, 3)), 1, rng.integers(0, 7, (4, 3)), (5, 7)), {}


@op(ref=_gather_backward_ref, samples=_gather_backward_samples, dtypes=INEXACT)
def gather_backward(call, grad, dim, index, shape):
    """The gradient of `gather` from a tensor of `shape`: elements of `grad` added up by index."""
    check(call, grad, "grad")
    y = call.out(shape, grad.dtype)
    fill(call, y, 0)
    return _add(call, y, _check(call, y, dim, index), index, grad)


@gather_backward.grad("grad")
def _(f, g, dim, index):
    return f.gather(g, dim, index)


def _start(call, input, src, dtype):
    """The output with the values of `input`, and a `src` that does not share its memory."""
    y = call.out(input.shape_, dtype, overlap="same")
    if hasattr(src, "strides_") and src.storage is y.storage:
        src = src.clone()
    if y.address != input.address or y.strides_ != input.strides_:
        copy_into(call, y, input)
    return y, src


def _places(dim, index):
    places = list(np.indices(index.shape))
    places[dim] = index
    return tuple(places)


def _scatter_ref(input, dim, index, src, reduce=None):
    y = input.copy()
    if reduce is not None:
        add = np.add if reduce == "add" else np.multiply
        add.at(y, _places(dim, index), _part(src, index.shape) if isinstance(src, np.ndarray) else src)
        return y
    y[_places(dim, index)] = _part(src, index.shape) if isinstance(src, np.ndarray) and src.ndim else src
    return y


def _scatter_samples(rng):
    def distinct(shape, size, dim):
        return np.argsort(rng.standard_normal([size if d == dim else n for d, n in enumerate(shape)]), dim)[
            tuple(slice(n) for n in shape)
        ]

    yield (rng.standard_normal((5, 3)), 0, distinct((4, 3), 5, 0), rng.standard_normal((4, 3))), {}
    yield (rng.standard_normal((5, 7)), 1, distinct((4, 3), 7, 1), rng.standard_normal((5, 3))), {}
    yield (rng.standard_normal((3, 5, 17)), -2, distinct((3, 2, 17), 5, 1).astype(np.int32), -1.5), {}
    yield (rng.standard_normal((5, 3)), 0, rng.integers(0, 5, (7, 3)), rng.standard_normal((7, 3))), {"reduce": "add"}


_KERNELS = {None: "scatter", "add": "scatter_add", "multiply": "scatter_multiply"}


@op(dtypes=ANY, ref=_scatter_ref, samples=_scatter_samples, amp="promote")
def scatter(call, input, dim, index, src=None, *, value=None, reduce=None):
    """`input` with out[index[i, j, ...], j, ...] = src[i, j, ...] for `dim` 0, and so on for others.

    `src` is a tensor of the dtype of `input`, at least as large as `index`, or a number (also by the name `value`). Of
    equal indices the last one counts; `reduce` "add" or "multiply" takes all in their order, and `input` too, 16-bit
    floats in float32. Raises ValueError for an index outside of the dim; `out` may be `input`.
    """
    check(call, input, "input")
    if (src is None) == (value is None):
        raise TypeError("`scatter` takes one of `src` and `value`, got " + ("none" if src is None else "both"))
    if reduce not in _KERNELS:
        raise ValueError(f"`reduce` of `scatter` must be 'add', 'multiply' or None, got {reduce!r}")
    if reduce is not None and input.dtype.kind == "c":
        raise NotImplementedError(
            f"`reduce` {reduce!r} of `scatter` takes real numbers, got {input.dtype.name}: use `scatter_add`"
        )
    if reduce == "multiply" and call.training:
        raise NotImplementedError("`reduce` 'multiply' of `scatter` has no derivative: call it under `no_grad`")
    src = value if src is None else src
    tensor = hasattr(src, "strides_")
    if tensor and src.dtype is not input.dtype:
        raise TypeError(f"`src` of `scatter` must be {input.dtype.name} as `input`, got {src.dtype.name}")
    dim = _check(call, input, dim, index, src if tensor else None)
    call.save(src_shape=src.shape_ if tensor else None)
    y, src = _start(call, input, src, input.dtype)
    if tensor:
        strides = src.strides_
    else:
        number, strides = src, (0,) * len(index.shape_)
        src = call.empty((), input.dtype)
        fill(call, src, number)
    if reduce is not None:
        return _add(call, y, dim, index, src, strides, _KERNELS[reduce])
    _launch(call, "scatter", y, dim, index, src, strides)
    return y


@scatter.grad("input")
def _(f, g, dim, index, reduce):
    return f.scatter(g, dim, index, 0) if reduce is None else g


def _from_places(f, g, dim, index, shape):
    """The gradient of what was scattered, zero where `index` does not reach."""
    y = f.gather(g, dim, index)
    if y.shape_ != shape:
        y = f.pad(y, [n for a, b in zip(reversed(shape), reversed(y.shape_)) for n in (0, a - b)])
    return y


@scatter.grad("src")
def _(f, g, dim, index, src_shape):
    return _from_places(f, g, dim, index, src_shape)


def _scatter_add_ref(input, dim, index, src):
    y = input.copy()
    np.add.at(y, _places(dim, index), _part(src, index.shape))
    return y


def _scatter_add_samples(rng):
    yield (rng.standard_normal((5, 3)), 0, rng.integers(0, 5, (7, 3)), rng.standard_normal((7, 3))), {}
    yield (rng.standard_normal((5, 7)), 1, rng.integers(0, 7, (4, 3)), rng.standard_normal((5, 4))), {}
    yield (rng.standard_normal((3, 5, 17)), -2, rng.integers(0, 5, (3, 2, 17)), rng.standard_normal((3, 2, 17))), {}
    yield (rng.standard_normal(9), 0, rng.integers(0, 9, 40).astype(np.int32), rng.standard_normal(40)), {}


@op(dtypes=NUMERIC, ref=_scatter_add_ref, samples=_scatter_add_samples, amp="promote")
def scatter_add(call, input, dim, index, src):
    """As `scatter` of a tensor, but added to `input`; equal indices in their order, 16-bit floats in float32."""
    check(call, input, "input")
    check(call, src, "src")
    if src.dtype is not input.dtype:
        raise TypeError(f"`src` of `scatter_add` must be {input.dtype.name} as `input`, got {src.dtype.name}")
    dim = _check(call, input, dim, index, src)
    call.save(src_shape=src.shape_)
    y, src = _start(call, input, src, input.dtype)
    return _add(call, y, dim, index, src)


@scatter_add.grad("input")
def _(g):
    return g


@scatter_add.grad("src")
def _(f, g, dim, index, src_shape):
    return _from_places(f, g, dim, index, src_shape)
