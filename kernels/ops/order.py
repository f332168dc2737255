"""What follows from sorted elements: medians, quantiles, modes, unique elements, places in sequences, histograms."""

import functools
import math
import operator

import numpy as np

from ..blocks import float_bits
from ..blocks.array import RUNS, SEARCH
from ..problems.array import BinCounts, FirstOfRuns
from ..problems.reduce import MEDIAN, NANMEDIAN, Modes
from ..table.composite import composite
from ..table.registry import ALL, FLOATS, INTEGERS, op
from ._counted import CHUNK, FEW, counted
from ._layout import UNSIGNED, check, check_dim, product
from .copy import row_major
from .sort import one_of_rows, one_of_rows_backward
from .special import wider

NUMBERS = (*FLOATS, *INTEGERS)
PAIR = ("values", "indices")


def numbers(f, count, like):
    """int64 0 to `count` - 1, on the device of a tensor."""
    return f.from_array(np.arange(count), like.device)


def check_axis(f, input, dim):
    """`dim` counted from the front, which must have elements."""
    check(f, input, "input")
    dim = check_dim(dim, len(input.shape_))
    if input.shape_ and not input.shape_[dim]:
        raise IndexError(f"`dim` {dim} of `{f.op.name}` must have elements, got shape {input.shape_}")
    return dim


def _median(f, input, dim, keepdim, rank):
    """The lower median; where there are NaN, that of the others, or (unless these are ignored) the first NaN."""
    check(f, input, "input")
    if dim is None:
        if not input.numel_:
            return input.new_full((), math.nan if input.dtype.is_floating_point else np.iinfo(input.dtype.numpy).min)
        if input.tracked:
            return _shared(f, input, f.at_rank(input.detach().reshape(-1), rank)[0])
        return f.at_rank(input.reshape(-1), rank)[0]
    values, indices = f.at_rank(input, rank, check_axis(f, input, dim), keepdim)
    return values, indices


def _shared(f, input, value):
    """`value`, whose gradient all elements share that are equal to it."""
    same = f.logical_or(f.eq(input, value), f.logical_and(f.isnan(input), f.isnan(value)))
    return f.max(f.where(same, input, -math.inf))


def _odd_samples(rng):
    yield (rng.permutation(21).reshape(3, 7) / 4.0,), {"dim": -1}
    yield (rng.permutation(24).reshape(4, 6) / 4.0, 0, True), {}
    yield (rng.permutation(15) / 4.0,), {}


def _median_ref(x, dim=None, keepdim=False):
    if dim is None:
        return np.sort(x, None)[(x.size - 1) // 2]
    order = np.take(np.argsort(x, dim, kind="stable"), [(x.shape[dim] - 1) // 2], dim)
    found = np.take_along_axis(x, order, dim), order
    return found if keepdim else tuple(np.squeeze(a, dim) for a in found)


@composite(dtypes=NUMBERS, ref=_median_ref, samples=_odd_samples, fields=PAIR)
def median(f, input, dim=None, keepdim=False):
    """The median of all elements, the lower one of two, or along `dim` (values, int64 indices); NaN if one is."""
    return _median(f, input, dim, keepdim, MEDIAN)


@composite(dtypes=NUMBERS, ref=_median_ref, samples=_odd_samples, fields=PAIR)
def nanmedian(f, input, dim=None, keepdim=False):
    """As `median`, of the elements that are not NaN; NaN where there are none."""
    return _median(f, input, dim, keepdim, NANMEDIAN)


def _kth_samples(rng):
    yield (rng.permutation(21).reshape(3, 7) / 4.0, 3), {}
    yield (rng.permutation(24).reshape(4, 6) / 4.0, 4, 0, True), {}


def _kth_ref(x, k, dim=-1, keepdim=False):
    order = np.take(np.argsort(x, dim, kind="stable"), [k - 1], dim)
    found = np.take_along_axis(x, order, dim), order
    return found if keepdim else tuple(np.squeeze(a, dim) for a in found)


@composite(dtypes=NUMBERS, ref=_kth_ref, samples=_kth_samples, fields=PAIR)
def kthvalue(f, input, k: int, dim=-1, keepdim: bool = False):
    """The `k`-th smallest element along `dim` (from 1 on) and its index; NaN counts as the largest."""
    dim = check_axis(f, input, dim)
    k, size = operator.index(k), input.shape_[dim] if input.shape_ else 1
    if not 1 <= k <= size:
        raise ValueError(f"`k` of `kthvalue` must be from 1 to {size}, the size of dim {dim}, got {k}")
    values, indices = f.at_rank(input, k - 1, dim, keepdim)
    return values, indices


def _mode_samples(rng):
    yield (rng.integers(0, 4, (5, 17)) / 4.0,), {}
    yield (rng.integers(0, 3, (17, 5)) / 4.0, 0, True), {}


def _mode_ref(x, dim=-1, keepdim=False):
    def one(row):
        values, counts = np.unique(row, return_counts=True)
        best = values[counts.argmax()]
        return best, np.flatnonzero(row == best)[-1]

    values, indices = (np.apply_along_axis(lambda row, i=i: one(row)[i], dim, x) for i in (0, 1))
    found = values, indices.astype(np.int64)
    return tuple(np.expand_dims(a, dim) for a in found) if keepdim else found


def _mode_grad_samples(rng):
    yield (rng.permutation(21).reshape(3, 7) / 4.0,), {}


@op(
    dtypes=ALL, ref=_mode_ref, samples=_mode_samples, grad_samples=_mode_grad_samples, outputs=("out", "indices"),
    fields=PAIR,
)  # fmt: skip
def mode(call, input, dim=-1, keepdim=False):
    """The most frequent element along `dim`, the smallest of several, and the last index where it stands."""
    return one_of_rows(call, input, check_axis(call, input, dim), keepdim, Modes)


@mode.grad("input")
def _(f, g, keepdim, where, input_shape, axis):
    return one_of_rows_backward(f, g, keepdim, where, input_shape, axis)


# ---- quantiles ---------------------------------------------------------------------------------


def _quantile_samples(rng):
    yield (rng.permutation(24).reshape(4, 6) / 4.0, 0.3), {}
    yield (rng.permutation(24).reshape(4, 6) / 4.0, np.array([0.1, 0.5, 1.0])), {"dim": 1, "keepdim": True}
    for name in ("lower", "higher", "nearest", "midpoint"):
        yield (rng.permutation(20).reshape(4, 5) / 4.0, 0.4), {"dim": 0, "interpolation": name}


def _quantile_grad_samples(rng):
    yield (rng.permutation(24).reshape(4, 6) / 4.0, np.array([0.13, 0.5, 0.77])), {"dim": 1, "keepdim": True}
    yield (rng.permutation(20).reshape(4, 5) / 4.0, 0.4), {"dim": 0, "interpolation": "nearest"}


def _quantile_ref(function):
    def ref(x, q, dim=None, keepdim=False, interpolation="linear"):
        return function(x, q, axis=dim, keepdims=keepdim, method=interpolation)

    return ref


def _quantile(f, input, q, dim, keepdim, interpolation, ignores):
    check(f, input, "input")
    if interpolation not in ("linear", "lower", "higher", "nearest", "midpoint"):
        raise ValueError(
            f"`interpolation` of `{f.op.name}` must be linear, lower, higher, midpoint, nearest, got {interpolation!r}"
        )
    given = hasattr(q, "strides_")
    inside = given or not isinstance(q, (int, float)) or 0 <= q <= 1  # a number is looked at where it is
    if not given:
        if not isinstance(q, (int, float)):
            raise TypeError(f"`q` of `{f.op.name}` must be a number or a tensor, got {type(q).__name__}")
        q = input.new_tensor(float(q))
    if q.dtype is not input.dtype or len(q.shape_) > 1:
        raise TypeError(
            f"`q` of `{f.op.name}` must be a number or {input.dtype.name} of at most one dim, got {q.dtype}"
        )
    if not inside or (given and q.numel_ and not bool(f.all(f.logical_and(f.ge(q, 0), f.le(q, 1))))):
        raise ValueError(f"`q` of `{f.op.name}` must be from 0 to 1")
    if not input.numel_:
        raise ValueError(f"`input` of `{f.op.name}` must have elements, got shape {input.shape_}")
    ndim = len(input.shape_)
    axis = 0 if dim is None else check_dim(dim, ndim)
    x = input.reshape(-1) if dim is None or not ndim else input.transpose(axis, -1)
    count = f.sum(f.eq(x, x).detach(), -1, True)
    size = x.shape_[-1]
    last = f.sub(count, 1) if ignores else f.where(f.eq(count, size), size - 1, size)
    rank = f.mul(q.reshape(-1), f.maximum(last, 0).to(dtype=q.dtype))
    rank = f.where(f.eq(last, size), float(size - 1), rank)
    if interpolation in ("lower", "higher", "nearest"):
        rank = {"lower": f.floor, "higher": f.ceil, "nearest": f.round}[interpolation](rank)
    low = f.floor(rank)
    part = f.sub(rank, low) if interpolation != "midpoint" else f.where(f.gt(rank, low), 0.5, 0.0).to(dtype=q.dtype)
    if interpolation in ("linear", "midpoint"):
        y = f.ranked(x, f.cat([low, f.ceil(rank)], -1).to(dtype="int64"))[0]
        y = f.lerp(y.narrow(-1, 0, q.numel_), y.narrow(-1, q.numel_, q.numel_), part)
    else:
        y = f.ranked(x, low.to(dtype="int64"))[0]
    if dim is None:
        y = y.reshape([q.numel_] + [1] * (ndim if keepdim else 0))
    elif ndim:
        y = y.transpose(axis, -1) if keepdim else y.transpose(axis, -1).movedim(axis, -1)
        y = y.movedim(axis, 0).unsqueeze(axis + 1) if keepdim else y.movedim(-1, 0)
    return f.rearrange(y.reshape(*q.shape_, *y.shape_[1:]))


quantiles = functools.partial(
    composite, dtypes=("float32", "float64"), samples=_quantile_samples, grad_samples=_quantile_grad_samples
)


@quantiles(ref=_quantile_ref(np.quantile))
def quantile(f, input, q, dim=None, keepdim=False, *, interpolation="linear"):
    """The quantiles `q` (a number, or a vector: its dim comes first) along `dim` or of all elements; NaN if one is."""
    return _quantile(f, input, q, dim, keepdim, interpolation, False)


@quantiles(ref=_quantile_ref(np.nanquantile))
def nanquantile(f, input, q, dim=None, keepdim=False, *, interpolation="linear"):
    """As `quantile`, of the elements that are not NaN."""
    return _quantile(f, input, q, dim, keepdim, interpolation, True)


def _msort_samples(rng):
    yield (rng.permutation(24).reshape(6, 4) / 4.0,), {}


@composite(dtypes=ALL, ref=lambda x: np.sort(x, 0), samples=_msort_samples)
def msort(f, input):
    """The elements sorted along the first dim."""
    return f.sort(input, 0)[0]


# ---- places in sequences -----------------------------------------------------------------------


def _search_ref(sequence, values, out_int32=False, right=False, side=None, sorter=None):
    side = "right" if right or side == "right" else "left"
    if sequence.ndim == 1:
        return np.searchsorted(sequence, values, side)
    pairs = zip(sequence.reshape(-1, sequence.shape[-1]), values.reshape(-1, values.shape[-1]))
    return np.stack([np.searchsorted(s, v, side) for s, v in pairs]).reshape(values.shape)


def _search_samples(rng):
    sequence = np.sort(rng.integers(0, 30, 17)) / 2.0
    yield (sequence, rng.integers(-2, 34, (3, 7)) / 2.0), {}
    yield (sequence, rng.integers(-2, 34, 40) / 2.0), {"right": True}
    yield (np.sort(rng.integers(0, 9, (3, 5))) / 2.0, rng.integers(0, 9, (3, 4)) / 2.0), {"side": "right"}


@op(dtypes=ALL, ref=_search_ref, samples=_search_samples, gradient=None)
def searchsorted(call, sorted_sequence, input, *, out_int32=False, right=False, side=None, sorter=None):
    """The place of each element in a sorted sequence: before equal ones, or (`right`, `side` "right") behind them.

    `sorted_sequence` [S], or [..., S] with a sequence for each row of `input`; `sorter` are the indices, of its shape,
    that sort it. Of two dtypes, both are searched as their common one. A number is a 0-dim tensor. NaN is behind all.
    """
    check(call, sorted_sequence, "sorted_sequence")
    if not hasattr(input, "strides_"):
        input = sorted_sequence.new_full((), input, dtype=call.result_type(sorted_sequence, input))
    if side not in (None, "left", "right") or (side == "left" and right):
        raise ValueError(f"`side` of `{call.op.name}` must be 'left' or 'right', as `right` says, got {side!r}")
    if input.dtype is not sorted_sequence.dtype:
        common = call.result_type(sorted_sequence, input)
        input, sorted_sequence = (
            call.elementwise("cast", x, out=call.empty(x.shape_, common)) for x in (input, sorted_sequence)
        )
    shape = sorted_sequence.shape_
    if not shape or (len(shape) > 1 and shape[:-1] != input.shape_[:-1]):
        raise ValueError(
            f"`sorted_sequence` {shape} of `{call.op.name}` must be a vector, or have the rows of {input.shape_}"
        )
    if sorter is not None:
        if sorter.shape_ != shape:
            raise ValueError(
                f"`sorter` of `{call.op.name}` must have the sequence's shape {shape}, got {sorter.shape_}"
            )
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    y = call.empty(input.shape_, "int64") if out_int32 else call.out(input.shape_, "int64")
    x, dtype = input.contiguous(), "uint8" if input.dtype.name == "bool" else input.dtype.name
    count = x.shape_[-1] if len(shape) > 1 else x.numel_
    block = SEARCH(
        sequence=sorted_sequence.contiguous(),
        x=x,
        y=y,
        size=shape[-1],
        count=count,
        right=bool(right or side == "right"),
    )
    call.launch("array.search.places", {"T": dtype}, block, x.numel_, 16)
    return call.elementwise("cast", y, out=call.out(input.shape_, "int32")) if out_int32 else y


def _bucketize_samples(rng):
    yield (rng.integers(-2, 34, (3, 7)) / 2.0, np.sort(rng.integers(0, 30, 17)) / 2.0), {"right": True}


def _bucketize_ref(x, boundaries, out_int32=False, right=False):
    return np.searchsorted(boundaries, x, "right" if right else "left")


@composite(dtypes=ALL, ref=_bucketize_ref, samples=_bucketize_samples, gradient=None)
def bucketize(f, input, boundaries, *, out_int32=False, right=False):
    """The bucket of each element between sorted `boundaries` [S]: 0 to S; `right`: with its left end."""
    check(f, boundaries, "boundaries")
    if len(boundaries.shape_) != 1:
        raise ValueError(f"`boundaries` of `bucketize` must be a vector, got shape {boundaries.shape_}")
    return f.searchsorted(boundaries, input, out_int32=out_int32, right=right)


def _isin_samples(rng):
    yield (rng.integers(0, 9, (3, 7)) / 2.0, rng.integers(0, 9, 5) / 2.0), {}
    yield (rng.integers(0, 9, 7) / 2.0, np.zeros((0,))), {"invert": True}


def _isin_ref(x, tests, assume_unique=False, invert=False):
    return np.isin(x, tests, invert=invert)


@composite(dtypes=ALL, ref=_isin_ref, samples=_isin_samples, gradient=None)
def isin(f, elements, test_elements, *, assume_unique=False, invert=False):
    """Where `elements` equal one of `test_elements`, or (`invert`) none; either may be a number."""
    if not hasattr(elements, "strides_"):
        check(f, test_elements, "test_elements")
        elements = test_elements.new_tensor(elements)
    if not hasattr(test_elements, "strides_"):
        return (f.ne if invert else f.eq)(elements, test_elements)
    if not test_elements.numel_:
        found = f.ne(elements, elements) if elements.dtype.is_floating_point else f.lt(elements, elements)
        found = f.logical_and(found, f.logical_not(found))
    else:
        common = (elements.reshape(-1)[:0] + test_elements.reshape(-1)[:0]).dtype
        tests = f.sort(test_elements.reshape(-1).to(dtype=common))[0]
        x = elements.to(dtype=common)
        places = f.minimum(f.searchsorted(tests, x), tests.numel_ - 1)
        found = f.eq(f.index(tests, (places,)), x)
    return f.logical_not(found) if invert else found


# ---- unique elements ---------------------------------------------------------------------------


def _runs_ref(x, inverse=False, lengths=False):
    return _consecutive_ref(x, inverse, lengths)


def _runs_samples(rng):
    for size in (300, 9000):
        yield (rng.integers(0, 2, size) / 2.0,), {}
    for size in (17, 5000):
        yield (rng.integers(0, 2, size) / 2.0,), {"inverse": True, "lengths": True}


@op(dtypes=ALL, ref=_runs_ref, samples=_runs_samples, gradient=None)
def runs(call, input, inverse: bool = False, lengths: bool = False):
    """The first elements of the runs of equal elements of a vector.

    With `inverse` also the number of the run of each element, with `lengths` how many elements each has, int64.
    """
    check(call, input, "input")
    if len(input.shape_) != 1:
        raise ValueError(f"`input` of `runs` must be a vector, got shape {input.shape_}")
    x, dtype = row_major(call, input), input.dtype
    if x.numel_ > FEW and not (inverse or lengths or call.given or call.backend.shares_memory):
        return _first_of_runs(call, x)
    bits = UNSIGNED[dtype.itemsize]
    types, size = {"T": dtype.name if dtype.is_floating_point else bits, "E": bits}, x.numel_
    group = call.out((size,), "int64", key="inverse") if inverse else None

    def launch(name, chunks, **tensors):
        block = RUNS(x=x, inverse=group, numel=size, step=CHUNK, **tensors)
        call.launch(f"array.chosen.{name}", types, block, chunks, CHUNK)

    def count(counts, chunks):
        launch("count_runs", chunks, y=x, counts=counts, lasts=lasts)

    def make(most):
        return (call.out((most,), dtype), *([call.out((most,), "int64", key="lengths")] if lengths else ()))

    def write(made, counts, chunks):
        launch("runs", chunks, y=made[0], counts=counts, lasts=lasts, lengths=made[1] if lengths else None)

    lasts = call.empty((-(-size // CHUNK),), "int64")
    values, *others = counted(call, size, count, make, write)
    found = (values, *((group,) if inverse else ()), *others)
    return found if len(found) > 1 else values


def _first_of_runs(call, x):
    """The same, without anything of the runs, where the host waits for a number longer than a row takes to be read.

    The result has room for all.
    """
    y, count = call.out(x.shape_, x.dtype), call.empty((1,), "int64")
    call.run(FirstOfRuns(x.dtype.name, x.numel_), x=x, y=y, count=count)
    return call.rows(y, call.read(count))


def _runs(f, begins, order, shape, inverse, counts):
    """Places of the first of each run, and what `unique` gives besides; `order` is where sorted elements come from."""
    n = begins.numel_
    first = f.nonzero(begins).reshape(-1)
    found = [first]
    if inverse:
        group = f.sub(f.cumsum(begins, 0), 1)
        if order is not None:
            group = f.scatter(group.new_empty(n), 0, order, group)
        found.append(group.reshape(shape))
    if counts:
        found.append(f.sub(f.cat([first[1:], first.new_full((1,), n)], 0), first) if first.numel_ else first)
    return found


def _begins(f, x):
    """Where slices along the first dim differ from the one before."""
    n = x.shape_[0]
    if n < 2:
        return x.new_full((n,), 1, dtype="bool")
    differ = f.ne(x.narrow(0, 1, n - 1), x.narrow(0, 0, n - 1))
    differ = f.any(differ.reshape(n - 1, -1), 1) if len(x.shape_) > 1 else differ
    return f.cat([differ.new_full((1,), True), differ], 0)


def _sorted_rows(f, rows):
    """The order of rows [N, M] that sorts them by their first elements, then the second ones, ..."""
    order = numbers(f, rows.shape_[0], rows)
    for column in range(rows.shape_[1] - 1, -1, -1):
        order = f.index_select(order, 0, f.argsort(f.index_select(rows.select(1, column), 0, order)))
    return order


def _unique(f, input, dim, inverse, counts, sorts):
    check(f, input, "input")
    if dim is None:
        x, shape = input.reshape(-1), input.shape_
        x, order = f.sort(x) if sorts else (x, None)
    else:
        dim = check_dim(dim, len(input.shape_))
        if not input.shape_:
            raise ValueError(f"`dim` of `{f.op.name}` is {dim}, but `input` has no dims: leave it out")
        if 0 in input.shape_[:dim] + input.shape_[dim + 1 :]:
            raise ValueError(f"`input` of `{f.op.name}` must have slices of some size, got shape {input.shape_}")
        x, shape, order = input.movedim(dim, 0), (input.shape_[dim],), None
        if sorts:
            order = _sorted_rows(f, x.reshape(x.shape_[0], product(x.shape_[1:])))
            x = f.index_select(x, 0, order)
    if dim is None:
        found = f.runs(x, inverse, counts)
        if inverse:
            values, group, *others = found
            group = group if order is None else f.scatter(group.new_empty(group.shape_), 0, order, group)
            return (values, group.reshape(shape), *others)
        return found
    first, *others = _runs(f, _begins(f, x), order, shape, inverse, counts)
    values = f.rearrange(f.index_select(x, 0, first).movedim(0, dim))
    return (values, *others) if others else values


def _unique_ref(x, sorted=True, return_inverse=False, return_counts=False, dim=None):
    return np.unique(x, return_inverse=return_inverse, return_counts=return_counts, axis=dim)


def _unique_samples(rng):
    yield (rng.integers(0, 5, (3, 7)) / 2.0,), {}
    yield (rng.integers(0, 5, 40) / 2.0,), {"return_inverse": True, "return_counts": True}
    yield (rng.integers(0, 2, (9, 2, 2)) / 2.0,), {"return_inverse": True, "return_counts": True, "dim": 0}


@composite(dtypes=ALL, ref=_unique_ref, samples=_unique_samples, gradient=None)
def unique(f, input, sorted=True, return_inverse=False, return_counts=False, dim=None):
    """The different elements (or slices along `dim`), sorted whatever `sorted` says.

    With `return_inverse` also where each element of `input` is among them, with `return_counts` how often each stands.
    """
    return _unique(f, input, dim, return_inverse, return_counts, True)


def _consecutive_ref(x, return_inverse=False, return_counts=False, dim=None):
    flat = x.reshape(-1)
    first = np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1]]))
    group = np.cumsum(np.isin(np.arange(flat.size), first)) - 1
    found = [flat[first]] + [group.reshape(x.shape)] * return_inverse
    found += [np.diff(np.append(first, flat.size))] * return_counts
    return tuple(found) if len(found) > 1 else found[0]


def _consecutive_samples(rng):
    yield (rng.integers(0, 2, (3, 7)) / 2.0,), {"return_inverse": True, "return_counts": True}
    yield (rng.integers(0, 2, 40) / 2.0,), {}


@composite(dtypes=ALL, ref=_consecutive_ref, samples=_consecutive_samples, gradient=None)
def unique_consecutive(f, input, return_inverse=False, return_counts=False, dim=None):
    """The first of each run of equal elements (or slices along `dim`), in their order; options as of `unique`."""
    return _unique(f, input, dim, return_inverse, return_counts, False)


# ---- counts ------------------------------------------------------------------------------------


def _bincount_ref(x, weights=None, minlength=0):
    return np.bincount(x, weights, minlength)


def _bincount_samples(rng):
    yield (rng.integers(0, 7, 40),), {"minlength": 9}
    yield (rng.integers(0, 7, 40),), {"weights": rng.uniform(0.5, 2, 40)}


@composite(dtypes=INTEGERS, ref=_bincount_ref, samples=_bincount_samples, gradient=None)
def bincount(f, input, weights=None, minlength: int = 0):
    """How often each of the numbers 0, 1, ... stands in a vector, at least `minlength` of them; or sums of weights."""
    check(f, input, "input")
    if len(input.shape_) != 1:
        raise ValueError(f"`input` of `bincount` must be a vector, got shape {input.shape_}")
    if minlength < 0:
        raise ValueError(f"`minlength` of `bincount` must not be negative, got {minlength}")
    if weights is not None and weights.shape_ != input.shape_:
        raise ValueError(f"`weights` of `bincount` must have the shape of `input` {input.shape_}, got {weights.shape_}")
    index, bins = input.to(dtype="int64"), minlength
    if input.numel_:
        low, high = f.aminmax(index)
        if low.item() < 0:
            raise ValueError("`input` of `bincount` must not hold negative numbers")
        bins = max(bins, high.item() + 1)
    if weights is None:
        return f.scatter_add(index.new_zeros(bins), 0, index, index.new_ones(()).expand(index.shape_))
    wide = weights if weights.dtype.name == "float32" else weights.to(dtype="float64")
    return f.scatter_add(wide.new_zeros(bins), 0, index, wide)


def _span(f, x, low, high, apart):
    """The ends of a histogram: those of the elements where none are given, and never the same."""
    low, high = float(low), float(high)
    if low == high == 0 and not x.numel_:
        high = 1.0
    elif low == high == 0:
        low, high = float(f.amin(x).item()), float(f.amax(x).item())
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise ValueError(f"the range of `{f.op.name}` must be finite and rising, got {low} to {high}")
    return (low, high) if low < high else (low - apart, high + apart)


def _bin_counts_ref(x, bins, low, high):
    return np.histogram(x, bins, (low, high))[0]


def _bin_counts_samples(rng):
    yield (rng.integers(0, 64, 200) / 16 + 0.03, 8, 0.0, 3.0), {}
    yield (rng.integers(0, 64, (20, 10)) / 16 + 0.03, 5, 1.0, 3.0), {}


@op(dtypes=("float32", "float64"), ref=_bin_counts_ref, samples=_bin_counts_samples, gradient=None, step=True)
def bin_counts(call, input, bins, low, high):
    """int64 [bins]: how many elements lie in each of `bins` equal intervals from `low` to `high`, which is the last's.

    Elements outside are in none, nor is NaN.
    """
    check(call, input, "input")
    if bins < 1 or not low < high:
        raise ValueError(f"`bin_counts` needs `bins` of 1 or more and `low` below `high`, got {bins}, {low}, {high}")
    y = call.out((bins,), "int64")
    ends = {"low": float_bits(low, "low"), "high": float_bits(high, "high")}
    call.run(BinCounts(input.dtype.name, input.numel_, bins), numbers=ends, x=row_major(call, input), y=y)
    return y


def _counted(f, x, bins, low, high, weight=None):
    """Sums of `weight` (or counts) of the elements of a flat x in equal bins from `low` to `high`."""
    if weight is None:
        return f.bin_counts(x, bins, low, high).to(dtype=x.dtype)
    inside = f.logical_and(f.ge(x, low), f.le(x, high))
    place = f.mul(f.div(f.sub(f.where(inside, x, low), low), high - low), bins)
    place = f.minimum(place.to(dtype="int64"), bins - 1)
    return f.scatter_add(x.new_zeros(bins), 0, place, f.where(inside, weight.reshape(-1), 0.0))


def _histc_ref(x, bins=100, min=0, max=0):
    return np.histogram(x, bins, (min, max) if min or max else None)[0].astype(x.dtype)


def _histc_samples(rng):
    yield (rng.integers(0, 64, 200) / 16 + 0.03,), {"bins": 8, "min": 0, "max": 3}
    yield (rng.integers(0, 64, (20, 10)) / 16 + 0.03, 5, 1, 3), {}


@composite(ref=_histc_ref, samples=_histc_samples, gradient=None)
def histc(f, input, bins: int = 100, min: float = 0, max: float = 0):
    """How many elements lie in each of `bins` equal intervals from `min` to `max` (by default, of the elements)."""
    check(f, input, "input")
    if bins < 1:
        raise ValueError(f"`bins` of `histc` must be positive, got {bins}")
    x = wider(input.reshape(-1))
    return _counted(f, x, bins, *_span(f, x, min, max, 1)).to(dtype=input.dtype)


def _histogram_samples(rng):
    yield (rng.integers(0, 64, 200) / 16 + 0.03, 8), {"range": (0.0, 3.0)}
    yield (rng.integers(0, 64, 200) / 16 + 0.03, np.array([0.0, 0.5, 2.0, 4.0])), {"density": True}


def _histogram_ref(x, bins, range=None, weight=None, density=False):
    hist, edges = np.histogram(x, bins, range, density, weight)
    return hist.astype(np.float64), edges.astype(np.float64)


@composite(
    dtypes=("float32", "float64"), ref=_histogram_ref, samples=_histogram_samples, gradient=None,
    fields=("hist", "bin_edges"),
)  # fmt: skip
def histogram(f, input, bins, *, range=None, weight=None, density=False):
    """(hist, bin_edges): sums of `weight`, or counts, of the elements in `bins`, a number of equal ones or their edges.

    `range` (low, high) are the ends of equal bins, by default those of the elements; with `density` the area is 1.
    """
    check(f, input, "input")
    x = input.reshape(-1)
    if hasattr(bins, "strides_"):
        edges, count = bins, bins.shape_[0] - 1
        place = f.sub(f.searchsorted(edges, x, right=True), 1)
        place = f.where(f.eq(x, edges[-1]), count - 1, place)
        inside = f.logical_and(f.ge(place, 0), f.lt(place, count))
        share = inside.to(dtype=x.dtype) if weight is None else f.where(inside, weight.reshape(-1), 0.0)
        hist = f.scatter_add(x.new_zeros(count), 0, f.where(inside, place, 0), share)
    else:
        low, high = _span(f, x, *(range or (0, 0)), 0.5)
        edges = f.from_array(np.linspace(low, high, bins + 1), x.device).to(dtype=x.dtype)
        hist = _counted(f, x, bins, low, high, weight)
    if density:
        hist = f.div(f.div(hist, f.sum(hist)), f.sub(edges[1:], edges[:-1]))
    return hist, f.rearrange(edges)
