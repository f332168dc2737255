"""Elements read and written by index, by mask or by their place, written with `index`, `index_put` and `scatter`."""

import math

import numpy as np

from ..blocks.array import MASKED
from ..table.composite import composite
from ..table.registry import ANY, FLOATS, INTEGERS, op
from ._counted import CHUNK, count_mask, selected
from ._layout import UNSIGNED, broadcast, check, check_dim, check_index
from .copy import row_major
from .scatter import _check, _launch, _part, _places, _start

NUMBERS = (*FLOATS, *INTEGERS)


def _take_samples(rng):
    yield (rng.standard_normal((3, 5)), rng.integers(-15, 15, (2, 4))), {}


@composite(dtypes=ANY, ref=np.take, samples=_take_samples)
def take(f, input, index):
    """The elements at the places `index` of the flattened tensor, in the shape of `index`."""
    check(f, input, "input")
    check_index(f, index, "index")
    return f.index(input.reshape(-1), (index.reshape(-1),)).reshape(index.shape_)


def _put_ref(x, index, source, accumulate=False):
    y = x.copy().reshape(-1)
    (np.add.at if accumulate else np.put)(y, index, source)
    return y.reshape(x.shape)


def _put_samples(rng):
    yield (rng.standard_normal((3, 5)), np.array([1, -2, 7]), rng.standard_normal(3)), {}
    yield (rng.standard_normal((3, 5)), np.array([1, 1, 7]), rng.standard_normal(3)), {"accumulate": True}


@composite(dtypes=ANY, ref=_put_ref, samples=_put_samples, amp="promote")
def put(f, input, index, source, accumulate=False):
    """`input` with the elements of `source` written to (or added at) the places `index` of the flattened tensor."""
    check(f, input, "input")
    check_index(f, index, "index")
    if source.numel_ != index.numel_:
        raise ValueError(f"`source` of `put` must have {index.numel_} elements, as `index`, got {source.numel_}")
    y = f.index_put(input.reshape(-1), (index.reshape(-1),), source.reshape(-1), accumulate)
    return y.reshape(input.shape_)


def _along_samples(rng):
    yield (rng.standard_normal((3, 5)), rng.integers(0, 5, (3, 2)), 1), {}
    yield (rng.standard_normal((3, 5)), rng.integers(0, 3, (2, 1)), 0), {}
    yield (rng.standard_normal((3, 5)), rng.integers(0, 15, 4)), {}


def _along(input, indices, dim):
    """(input, indices, dim) as `gather` takes them."""
    if dim is None:
        return input.reshape(-1), indices.reshape(-1), 0
    d = check_dim(dim, len(input.shape_))
    if not input.shape_ or len(indices.shape_) != len(input.shape_):
        raise ValueError(
            f"`indices` of `take_along_dim` must have the dims of `input` {input.shape_}, got {indices.shape_}"
        )
    common = broadcast(*[s[:d] + (1,) + s[d + 1 :] for s in (input.shape_, indices.shape_)])
    return *[x.expand(common[:d] + (x.shape_[d],) + common[d + 1 :]) for x in (input, indices)], d


@op(dtypes=ANY, ref=lambda x, i, dim=None: np.take_along_axis(x, i, dim), samples=_along_samples)
def take_along_dim(call, input, indices, dim=None):
    """The elements along `dim` at `indices`, which broadcasts with the other dims; without `dim`, as `take`.

    Negative indices count from the end.
    """
    check(call, input, "input")
    check_index(call, indices, "indices")
    x, index, d = _along(input, indices, dim)
    call.save(wide=x.shape_, input_shape=input.shape_)
    y = call.out(index.shape_, input.dtype, overlap="refused")
    _launch(call, "gather", x, d, index, y, y.strides_, wrap=True)
    return y


@take_along_dim.grad("input")
def _(f, g, indices, dim, wide, input_shape):
    d = 0 if dim is None else check_dim(dim, len(input_shape))
    indices = f.where(f.lt(indices, 0), f.add(indices, wide[d]), indices)
    index = indices.reshape(-1) if dim is None else indices.expand(g.shape_)
    y = f.gather_backward(g, d, index, wide)
    return y.reshape(input_shape) if dim is None else f.sum_to_size(y, input_shape)


# ---- masks ---------------------------------------------------------------------------------------


def _need_mask(f, mask):
    if not hasattr(mask, "strides_") or mask.dtype.name != "bool":
        raise TypeError(
            f"`mask` of `{f.op.name}` must be a bool tensor, got {getattr(mask, 'dtype', type(mask).__name__)}"
        )


def _masked_samples(rng):
    yield (rng.standard_normal((3, 5)), rng.uniform(size=(3, 5)) < 0.5), {}
    yield (rng.standard_normal((3, 5)), rng.uniform(size=5) < 0.7), {}


@op(dtypes=ANY, ref=lambda x, m: x[np.broadcast_to(m, x.shape)], samples=_masked_samples)
def masked_select(call, input, mask):
    """The elements where `mask` is true, in row-major order: a vector. Mask and tensor broadcast."""
    check(call, input, "input")
    _need_mask(call, mask)
    shape = broadcast(input.shape_, mask.shape_)
    x, mask = (row_major(call, x.expand(shape)) for x in (input, mask))
    call.save(input_shape=input.shape_, shape=shape)
    return selected(call, x, mask)


@masked_select.grad("input")
def _(f, g, mask, input_shape, shape):
    y = f.masked_scatter(g.new_zeros(shape), mask, g)
    return y if shape == input_shape else f.sum_to_size(y, input_shape)


def _masked_scatter_ref(x, mask, source):
    y = x.copy()
    mask = np.broadcast_to(mask, x.shape)
    y[mask] = source.reshape(-1)[: mask.sum()]
    return y


def _masked_scatter_samples(rng):
    yield (rng.standard_normal((3, 5)), rng.uniform(size=(3, 5)) < 0.5, rng.standard_normal(20)), {}


@op(dtypes=ANY, ref=_masked_scatter_ref, samples=_masked_scatter_samples, amp="promote")
def masked_scatter(call, input, mask, source):
    """`input` with the first elements of `source` in the places where `mask`, which broadcasts, is true."""
    check(call, input, "input")
    _need_mask(call, mask)
    if source.dtype is not input.dtype:
        raise TypeError(f"`source` of `masked_scatter` must be {input.dtype.name} as `input`, got {source.dtype.name}")
    shape = broadcast(input.shape_, mask.shape_)
    x, mask = (row_major(call, t.expand(shape)) for t in (input, mask))
    call.save(input_shape=input.shape_, source_shape=source.shape_)
    y = call.out(shape, input.dtype, overlap="same")
    if not y.numel_:
        return y
    count, size, chunks = source.numel_, y.numel_, -(-y.numel_ // CHUNK)
    counts = call.empty((chunks,), "int64")
    count_mask(call, mask, counts, chunks)
    said = f"`source` of `masked_scatter` must have an element for each true one of `mask`, got {count}"
    source = row_major(call, source.clone() if source.storage is y.storage else source) if count else x
    block = MASKED(x=x, mask=mask, counts=counts, source=source, y=y, numel=size, step=CHUNK, count=count)
    call.launch("array.chosen.scattered", {"E": UNSIGNED[x.dtype.itemsize]}, block, chunks, CHUNK, {1: said})
    return y


@masked_scatter.grad("input")
def _(f, g, mask, input_shape):
    y = f.masked_fill(g, mask, 0.0)
    return y if input_shape == g.shape_ else f.sum_to_size(y, input_shape)


@masked_scatter.grad("source")
def _(f, g, mask, source_shape):
    mask, size = mask.expand(g.shape_), math.prod(source_shape)
    place = f.maximum(f.sub(f.cumsum(mask.reshape(-1), 0), 1), 0)
    taken = f.masked_fill(g, f.logical_not(mask), 0.0).reshape(-1)
    return f.index_select_backward(taken, 0, place, size).reshape(source_shape)


# ---- slices by index -----------------------------------------------------------------------------


def _slices(f, input, dim, index):
    """The index of slices along `dim`, for `index_put`."""
    check(f, input, "input")
    check_index(f, index, "index")
    if len(index.shape_) > 1:
        raise ValueError(f"`index` of `{f.op.name}` must be a vector, got shape {index.shape_}")
    dim = check_dim(dim, len(input.shape_))
    return (None,) * dim + (index.reshape(-1),), dim


def _index_copy_ref(x, dim, index, source):
    y = np.moveaxis(x.copy(), dim, 0)
    y[index] = np.moveaxis(source, dim, 0)
    return np.moveaxis(y, 0, dim)


def _index_copy_samples(rng):
    yield (rng.standard_normal((5, 3)), 0, np.array([4, 0]), rng.standard_normal((2, 3))), {}
    yield (rng.standard_normal((2, 4, 3)), 1, np.array([1, 3, 2]), rng.standard_normal((2, 3, 3))), {}


@composite(dtypes=ANY, ref=_index_copy_ref, samples=_index_copy_samples, amp="promote")
def index_copy(f, input, dim, index, source):
    """`input` with the slices of `source` along `dim` written where `index` says."""
    where, dim = _slices(f, input, dim, index)
    own = input.shape_
    if source.shape_ != (own[:dim] + (index.numel_,) + own[dim + 1 :] if own else source.shape_) or (
        not own and index.numel_ != source.numel_
    ):
        raise ValueError(
            f"`source` of `index_copy` must be as `input` {own}, with {index.numel_} slices, got {source.shape_}"
        )
    x, source = (input, source) if own else (input.reshape(1), source.reshape(1))
    return f.index_put(x, where, source).reshape(own)


def _index_fill_ref(x, dim, index, value):
    y = np.moveaxis(x.copy(), dim, 0)
    y[index] = value
    return np.moveaxis(y, 0, dim)


def _index_fill_samples(rng):
    yield (rng.standard_normal((5, 3)), 0, np.array([4, 0]), -2.0), {}
    yield (rng.standard_normal((2, 4)), 1, np.array([1, 3]), np.array(0.5)), {}


@composite(dtypes=ANY, ref=_index_fill_ref, samples=_index_fill_samples)
def index_fill(f, input, dim, index, value):
    """`input` with a number (or 0-dim tensor) in the slices along `dim` that `index` names."""
    where, dim = _slices(f, input, dim, index)
    if hasattr(value, "strides_"):
        if value.shape_:
            raise ValueError(f"`value` of `index_fill` must be a number or a 0-dim tensor, got shape {value.shape_}")
        value = value.to(dtype=input.dtype)
    x = input if input.shape_ else input.reshape(1)
    if not hasattr(value, "strides_"):
        return f.index_put(x, where, value).reshape(input.shape_)
    # by a mask: what an index names twice is filled once, which the gradient of the value counts
    mask = f.index_put(x.new_zeros(x.shape_, dtype="bool"), where, True)
    return f.where(mask, value, x).reshape(input.shape_)


# ---- reductions by index -------------------------------------------------------------------------

_REDUCED = {"sum": ("scatter_add", 0), "mean": ("scatter_add", 0), "prod": ("scatter_multiply", 1)}
_REDUCED |= {"amax": ("scatter_larger", -math.inf), "amin": ("scatter_smaller", math.inf)}
_FUNCTIONS = {"sum": np.add, "mean": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}


def _scatter_reduce_ref(x, dim, index, src, reduce, include_self=True):
    y, at, src = x.copy(), _places(dim % x.ndim, index), _part(src, index.shape)
    if not include_self:
        y[at] = _REDUCED[reduce][1]
    _FUNCTIONS[reduce].at(y, at, src)
    if reduce == "mean":
        count = np.full(x.shape, float(include_self))
        np.add.at(count, at, 1.0)
        y = y / np.maximum(count, 1)
    return y


def _scatter_reduce_samples(rng):
    for reduce in ("sum", "mean", "prod", "amax", "amin"):
        x, src = rng.permutation(15).reshape(5, 3) / 8.0 - 1.3, rng.permutation(21).reshape(7, 3) / 8.0 - 1.05
        yield (x, 0, rng.integers(0, 4, (7, 3)), src, reduce), {}
        yield (x.T.copy(), -1, rng.integers(0, 4, (3, 7)), src.T.copy(), reduce), {"include_self": False}


def _identity(reduce, dtype):
    """What leaves the others as they are under a reduction in a dtype."""
    value = _REDUCED[reduce][1]
    if dtype.is_floating_point or not math.isinf(value):
        return value
    info = np.iinfo(dtype.numpy)
    return info.max if value > 0 else info.min


@op(dtypes=NUMBERS, ref=_scatter_reduce_ref, samples=_scatter_reduce_samples, amp="promote")
def scatter_reduce(call, input, dim, index, src, reduce, *, include_self=True):
    """`input` reduced with the elements of `src` where `index` says, as `scatter`: sum, prod, mean, amax or amin.

    Without `include_self`, what is written to starts anew. 16-bit sums and products are kept in float32 and rounded
    once; means of integers are rounded down.
    """
    check(call, input, "input")
    check(call, src, "src")
    if reduce not in _REDUCED:
        raise ValueError(f"`reduce` of `{call.op.name}` must be one of {', '.join(_REDUCED)}, got {reduce!r}")
    if src.dtype is not input.dtype:
        raise TypeError(f"`src` of `{call.op.name}` must be {input.dtype.name} as `input`, got {src.dtype.name}")
    dim = _check(call, input, dim, index, src)
    y, src = _start(call, input, src, input.dtype)
    narrow = y.dtype.is_floating_point and y.dtype.itemsize == 2 and reduce not in ("amax", "amin")
    t = y.to(dtype="float32") if narrow else y
    none = (0,) * len(index.shape_)
    if not include_self:
        _launch(call, "scatter", t, dim, index, t.new_full((), _identity(reduce, t.dtype)), none)
    _launch(call, _REDUCED[reduce][0], t, dim, index, src, src.strides_)
    count = None
    if reduce == "mean":
        count = t.new_full(t.shape_, 1 if include_self else 0)
        _launch(call, "scatter_add", count, dim, index, t.new_ones(()), none)
        count = call.elementwise("maximum", count, 1)
        call.elementwise("div" if t.dtype.is_floating_point else "floor_divide", t, count, out=t)
    if t is not y:
        call.elementwise("cast", t, out=y)
    call.save(src_shape=src.shape_, count=count, there=src)
    return y


def _index_of(f, value, dim, index, shape):
    """The elements of `value` at `index`, in the `shape` of what was scattered, zero where the index does not reach."""
    y = f.gather(value, dim, index)
    if y.shape_ != shape:
        y = f.pad(y, [n for a, b in zip(reversed(shape), reversed(y.shape_)) for n in (0, a - b)])
    return y


@scatter_reduce.grad("input", "src")
def _(f, g, input, dim, index, src, src_shape, reduce, include_self, out, count):
    """Shares of the gradient: equal ones of extremes that are equal, the others' product for products."""
    once = _index_of(f, f.mul(g, 0.0).add(1.0), dim, index, src_shape) if src_shape != index.shape_ else None
    if reduce == "mean":
        g = f.div(g, count.to(dtype=g.dtype))
    if reduce in ("amax", "amin"):
        mine, theirs = f.eq(input, out), f.eq(src, _index_of(f, out, dim, index, src_shape))
        theirs = theirs if once is None else f.logical_and(theirs, f.gt(once, 0.0))
        part = theirs.to(dtype=g.dtype)
        start = mine.to(dtype=g.dtype) if include_self else f.scatter(mine.to(dtype=g.dtype), dim, index, 0.0)
        total = f.scatter_add(start, dim, index, part)
        g = f.div(g, f.maximum(total, 1.0))
        g_input, g_src = f.where(mine, g, 0.0), f.where(theirs, _index_of(f, g, dim, index, src_shape), 0.0)
    elif reduce == "prod":
        # A factor's slope is the product of the others: of those that are not 0, and 0 where another one is.
        (x, no_x), (y, no_y) = ((f.where(f.eq(t, 0.0), 1.0, t), f.eq(t, 0.0).to(dtype=g.dtype)) for t in (input, src))
        others = f.mul(g, f.scatter_reduce(x, dim, index, y, "prod", include_self=include_self))
        zeros = f.scatter_add(no_x if include_self else f.mul(no_x, 0.0), dim, index, no_y)
        g_input = f.where(f.eq(zeros, no_x), f.div(others, x), 0.0) if include_self else g
        zeros, others = (_index_of(f, t, dim, index, src_shape) for t in (zeros, others))
        g_src = f.where(f.eq(zeros, no_y), f.div(others, y), 0.0)
    else:
        g_input, g_src = g, _index_of(f, g, dim, index, src_shape)
    if not include_self:
        g_input = f.scatter(g_input, dim, index, 0.0)
    return g_input, g_src


def _index_reduce_ref(x, dim, index, source, reduce, include_self=True):
    wide = np.broadcast_to(index.reshape([-1 if d == dim else 1 for d in range(x.ndim)]), source.shape)
    return _scatter_reduce_ref(x, dim, wide, source, reduce, include_self)


def _index_reduce_samples(rng):
    for reduce in ("prod", "mean", "amax", "amin"):
        x, source = rng.permutation(15).reshape(5, 3) / 8.0 - 1.3, rng.permutation(12).reshape(4, 3) / 8.0 - 1.05
        yield (x, 0, np.array([1, 3, 1, 0]), source, reduce), {}


@composite(dtypes=NUMBERS, ref=_index_reduce_ref, samples=_index_reduce_samples, amp="promote")
def index_reduce(f, input, dim, index, source, reduce, *, include_self=True):
    """`input` reduced with the slices of `source` along `dim` where `index` says: prod, mean, amax or amin."""
    _, dim = _slices(f, input, dim, index)
    if reduce not in _REDUCED or reduce == "sum":
        raise ValueError(f"`reduce` of `index_reduce` must be prod, mean, amax or amin, got {reduce!r}")
    wide = index.reshape([-1 if d == dim else 1 for d in range(len(input.shape_))]).expand(source.shape_)
    return f.scatter_reduce(input, dim, wide, source, reduce, include_self=include_self)
