"""Sorting, and the k largest elements."""

import numpy as np

from ..problems.reduce import MEDIAN, NANMEDIAN, Select, Sort
from ..table.registry import ALL, op
from ._layout import check, check_dim, rows
from .copy import copy_into, row_major


def _along(call, input, dim, wanted, descending, with_values=True):
    """(values or None, indices) of the first `wanted` elements of the sorted slices along `dim`."""
    shape, ndim = input.shape_, len(input.shape_)
    result = (*shape[:dim], wanted, *shape[dim + 1 :]) if shape else ()
    values = call.out(result, input.dtype) if with_values else None
    indices = call.out(result, "int64", key="indices" if with_values else "out")
    if not indices.numel_:
        return values, indices
    moved = ndim and dim != ndim - 1
    x = input.transpose(dim, ndim - 1) if moved else input
    last = (*x.shape_[:-1], wanted)
    x, count, size, stride = rows(x, ndim - 1) if ndim else (x, 1, 1, 1)
    sorted_values, places = values, indices
    if moved:
        sorted_values, places = call.empty(last, input.dtype) if with_values else None, call.empty(last, "int64")
    problem = Sort(x.dtype.name, count, size, stride, wanted, bool(descending), with_values)
    call.run(problem, x=x, values=sorted_values, indices=places)
    if moved:
        for source, target in ((sorted_values, values), (places, indices)):
            if source is not None:
                copy_into(call, target, source.transpose(dim, ndim - 1))
    return values, indices


def _order(input, dim, descending):
    keys = -input if descending else input  # NaN stays last: the samples have none
    return np.argsort(keys, dim, kind="stable")


def _sort_ref(input, dim=-1, descending=False, stable=True):
    order = _order(input, dim, descending)
    return np.take_along_axis(input, order, dim), order


def _argsort_ref(input, dim=-1, descending=False, stable=True):
    return _order(input, dim, descending)


def _sort_samples(rng):
    for size in (1, 17, 257):
        # values with ties, exact in every float
        yield (np.round(rng.standard_normal((4, size)) * 8),), {}
        yield (np.round(rng.standard_normal((size, 5)) * 8), 0), {"descending": True}
    yield (np.round(rng.standard_normal((3, 40, 2)) * 8),), {"dim": 1}


def _distinct_samples(rng):
    yield (rng.permutation(24).reshape(4, 6) / 8.0,), {}
    yield (rng.permutation(30).reshape(5, 6) / 8.0, 0), {"descending": True}


@op(
    dtypes=ALL,
    ref=_sort_ref,
    samples=_sort_samples,
    grad_samples=_distinct_samples,
    outputs=("out", "indices"),
    fields=("values", "indices"),
)
def sort(call, input, dim=-1, descending: bool = False, stable: bool = True):
    """The elements sorted along `dim`, and where they came from: (values, int64 indices), of the shape of `input`.

    Equal elements keep their order, whatever `stable` says. NaN counts as the largest.
    """
    check(call, input, "input")
    dim = check_dim(dim, len(input.shape_))
    size = input.shape_[dim] if input.shape_ else 1
    values, indices = _along(call, input, dim, size, descending)
    call.save(input_shape=input.shape_, where=indices)
    return values, indices


@sort.grad("input")
def _(f, g, dim, where, input_shape):
    return f.gather_backward(g, dim, where, input_shape)


@op(dtypes=ALL, ref=_argsort_ref, samples=_sort_samples, gradient=None)
def argsort(call, input, dim=-1, descending=False, stable=True):
    """The int64 indices that sort `input` along `dim`, under the rules of `sort`."""
    check(call, input, "input")
    dim = check_dim(dim, len(input.shape_))
    return _along(call, input, dim, input.shape_[dim] if input.shape_ else 1, descending, False)[1]


def _topk_ref(input, k, dim=-1, largest=True, sorted=True):
    order = np.take(_order(input, dim, largest), np.arange(k), dim)
    return np.take_along_axis(input, order, dim), order


def _topk_samples(rng):
    for size, k in ((1, 1), (17, 17), (257, 5), (1000, 128), (400, 200)):
        yield (np.round(rng.standard_normal((4, size)) * 8), k), {}
    yield (np.round(rng.standard_normal((40, 5)) * 8), 3), {"dim": 0, "largest": False}
    yield (np.round(rng.standard_normal((2, 70)) * 8), 0), {}


def _topk_distinct_samples(rng):
    yield (rng.permutation(24).reshape(4, 6) / 8.0, 3), {}
    yield (rng.permutation(30).reshape(5, 6) / 8.0, 2), {"dim": 0, "largest": False}


@op(
    dtypes=ALL,
    ref=_topk_ref,
    samples=_topk_samples,
    grad_samples=_topk_distinct_samples,
    outputs=("out", "indices"),
    fields=("values", "indices"),
)
def topk(call, input, k: int, dim=-1, largest: bool = True, sorted: bool = True):
    """The `k` largest (or smallest) elements along `dim`, and where they are: (values, int64 indices).

    They are sorted, whatever `sorted` says, and of equal elements the first ones are taken. NaN counts as the largest.
    """
    check(call, input, "input")
    dim = check_dim(dim, len(input.shape_))
    size = input.shape_[dim] if input.shape_ else 1
    if not 0 <= k <= size:
        raise ValueError(f"`k` of `topk` must be from 0 to {size}, the size of dim {dim}, got {k}")
    values, indices = _along(call, input, dim, int(k) if input.shape_ else 1, largest)
    call.save(input_shape=input.shape_, where=indices)
    return values, indices


@topk.grad("input")
def _(f, g, dim, where, input_shape):
    return f.gather_backward(g, dim, where, input_shape)


def _ranked_ref(input, ranks):
    order = np.take_along_axis(_order(input, -1, False), ranks, -1)
    return np.take_along_axis(input, order, -1), order


def _ranked_samples(rng):
    for outer, size, count in ((4, 1, 1), (3, 257, 2), (5, 40, 40)):
        yield (np.round(rng.standard_normal((outer, size)) * 8), rng.integers(0, size, (outer, count))), {}


def _ranked_distinct_samples(rng):
    yield (rng.permutation(24).reshape(4, 6) / 8.0, rng.integers(0, 6, (4, 2))), {}


@op(
    dtypes=ALL,
    ref=_ranked_ref,
    samples=_ranked_samples,
    grad_samples=_ranked_distinct_samples,
    outputs=("out", "indices"),
    fields=("values", "indices"),
    step=True,
)
def ranked(call, input, ranks):
    """The elements of [..., N] that have the int64 `ranks` [..., M] along the last dim as `sort` has it, and where.

    (values, int64 indices), of the shape of `ranks`. Raises ValueError for ranks that are not from 0 to N - 1.
    """
    check(call, input, "input")
    check(call, ranks, "ranks")
    if not input.shape_ or ranks.dtype.name != "int64" or ranks.shape_[:-1] != input.shape_[:-1]:
        raise ValueError(
            f"`ranks` of `ranked` must be int64 [..., M] for an input [..., N], got {ranks.dtype.name} {ranks.shape_} "
            f"and {input.shape_}"
        )
    values, indices = call.out(ranks.shape_, input.dtype), call.out(ranks.shape_, "int64", key="indices")
    call.save(input_shape=input.shape_, where=indices)
    if ranks.numel_:
        x, count, size, stride = rows(input, len(input.shape_) - 1)
        errors = {1: f"`ranks` of `ranked` must be from 0 to {size - 1}"}
        problem = Select(x.dtype.name, count, size, stride, ranks.shape_[-1])
        call.run(problem, errors, x=x, ranks=row_major(call, ranks), values=values, indices=indices)
    return values, indices


@ranked.grad("input")
def _(f, g, where, input_shape):
    return f.gather_backward(g, -1, where, input_shape)


def _at_rank_ref(input, rank, dim=-1, keepdim=False):
    rank = {MEDIAN: (input.shape[dim] - 1) // 2, NANMEDIAN: (input.shape[dim] - 1) // 2}.get(rank, rank)
    places = np.take(_order(input, dim, False), [rank], dim)
    found = np.take_along_axis(input, places, dim), places
    return found if keepdim else tuple(np.squeeze(x, dim) for x in found)


def _at_rank_samples(rng):
    yield (rng.permutation(21).reshape(3, 7) / 4.0, 2), {}
    yield (rng.permutation(24).reshape(4, 6) / 4.0, MEDIAN, 0, True), {}
    yield (rng.permutation(24).reshape(4, 6) / 4.0, NANMEDIAN, 1), {}


def one_of_rows(call, input, axis, keepdim, problem):
    """(values, int64 indices) of one element of each row along a dim; `problem(dtype, rows, size, stride)` chooses."""
    shape = input.shape_
    result = tuple(1 if d == axis else n for d, n in enumerate(shape) if keepdim or d != axis)
    values, indices = call.out(result, input.dtype), call.out(result, "int64", key="indices")
    call.save(input_shape=shape, where=indices, axis=axis)
    if values.numel_:
        last = [*(d for d in range(len(shape)) if d != axis), axis]
        x, count, size, stride = rows(input.permute(last) if shape else input.reshape(1), max(len(shape) - 1, 0))
        call.run(problem(x.dtype.name, count, size, stride), x=x, values=values, indices=indices)
    return values, indices


def one_of_rows_backward(f, g, keepdim, where, input_shape, axis):
    """The gradient of that: zeros but for these elements."""
    if not input_shape:
        return g
    g, where = (g, where) if keepdim else (g.unsqueeze(axis), where.unsqueeze(axis))
    return f.gather_backward(g, axis, where, input_shape)


@op(
    dtypes=ALL,
    ref=_at_rank_ref,
    samples=_at_rank_samples,
    outputs=("out", "indices"),
    fields=("values", "indices"),
    step=True,
)
def at_rank(call, input, rank: int, dim=-1, keepdim: bool = False):
    """(values, int64 indices) of the elements with one rank, from 0 on, along `dim` as `sort` has it.

    Rank -1 is that of `median`, -2 that of `nanmedian`. Raises ValueError for ranks that there are not, and IndexError
    for a dim of size 0.
    """
    check(call, input, "input")
    shape, dim = input.shape_, check_dim(dim, len(input.shape_))
    size = shape[dim] if shape else 1
    if not size:
        raise IndexError(f"`dim` {dim} of `{call.op.name}` must have elements, got shape {shape}")
    if not NANMEDIAN <= rank < size:
        raise ValueError(f"`rank` of `{call.op.name}` must be from {NANMEDIAN} to {size - 1}, got {rank}")
    if rank < 0 and not input.dtype.is_floating_point:
        rank = (size - 1) // 2
    return one_of_rows(call, input, dim, keepdim, lambda *found: Select(*found, 1, rank))


@at_rank.grad("input")
def _(f, g, keepdim, where, input_shape, axis):
    return one_of_rows_backward(f, g, keepdim, where, input_shape, axis)
