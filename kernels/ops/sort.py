"""Sorting, and the k largest elements."""

import numpy as np

from ..table.registry import ALL, op
from ._layout import check, check_dim, rows
from .copy import copy_into

_UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
_INFINITY = {"float64": 0x7FF0000000000000, "float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}
_LIST = 128  # LIST of cpu/sort.py
_BYTES = 32  # BYTES of cpu/sort.py
_SPLIT = 8192  # elements from which rows go to several threads: 50 us
_SCAN = 65536  # elements of a slice of `topk`: 15 us


def _run(call, kernel, x, stride, count, size, wanted, values, indices, descending):
    """Launch a kernel of `cpu/sort.py` on `count` rows of `size` elements."""
    bits = 8 * x.dtype.itemsize
    floating = x.dtype.is_floating_point
    kind = 2 if floating else 0 if x.dtype.name == "bool" or x.dtype.name.startswith("u") else 1
    slots = max(1, min(call.threads, count)) if count * size >= _SPLIT else 1
    room = _BYTES * size if kernel == "sort" else 0
    scratch = call.scratch(room * slots)
    args = [x.address, stride, count, size, wanted, 0 if values is None else values.address, indices.address, slots]
    args += [room, scratch.address, _INFINITY.get(x.dtype.name, 0), -1 if descending else 0, bits // 8]
    n, grain = (slots, 1) if kernel == "sort" else (count, max(1, _SCAN // size))
    types = {"E": _UNSIGNED[bits // 8], "KIND": kind}
    call.launch_at(f"reduce.sort.{kernel}", types, args, n, grain, (x, values, indices, scratch))


def _along(call, input, dim, wanted, descending, kernel, with_values):
    """(values or None, indices) of the first `wanted` elements of the sorted slices along `dim`."""
    shape, ndim = input.shape_, len(input.shape_)
    result = (*shape[:dim], wanted, *shape[dim + 1 :]) if shape else ()
    values = call.out(result, input.dtype) if with_values else None
    indices = call.out(result, "int64", key="indices" if with_values else "out")
    if not indices.numel_:
        return values, indices
    moved = ndim and dim != ndim - 1
    x = input.transpose(dim, ndim - 1) if moved else input
    x, count, size, stride = rows(x, ndim - 1) if ndim else (x, 1, 1, 1)
    if not moved:
        _run(call, kernel, x, stride, count, size, wanted, values, indices, descending)
        return values, indices
    last = (*x.shape_[:-1], wanted)
    own = [call.empty(last, input.dtype) if with_values else None, call.empty(last, "int64")]
    _run(call, kernel, x, stride, count, size, wanted, *own, descending)
    for source, target in zip(own, (values, indices)):
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
def sort(call, input, dim=-1, descending=False, stable=True):
    """The elements sorted along `dim`, and where they came from: (values, int64 indices), of the shape of `input`.

    Equal elements keep their order, whatever `stable` says. NaN counts as the largest.
    """
    check(call, input, "input")
    dim = check_dim(dim, len(input.shape_))
    size = input.shape_[dim] if input.shape_ else 1
    values, indices = _along(call, input, dim, size, descending, "sort", True)
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
    return _along(call, input, dim, input.shape_[dim] if input.shape_ else 1, descending, "sort", False)[1]


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
def topk(call, input, k, dim=-1, largest=True, sorted=True):
    """The `k` largest (or smallest) elements along `dim`, and where they are: (values, int64 indices).

    They are sorted, whatever `sorted` says, and of equal elements the first ones are taken. NaN counts as the largest.
    """
    check(call, input, "input")
    dim = check_dim(dim, len(input.shape_))
    size = input.shape_[dim] if input.shape_ else 1
    if not 0 <= k <= size:
        raise ValueError(f"`k` of `topk` must be from 0 to {size}, the size of dim {dim}, got {k}")
    kernel = "topk" if k <= _LIST and k * 4 <= size else "sort"
    values, indices = _along(call, input, dim, k, largest, kernel, True)
    call.save(input_shape=input.shape_, where=indices)
    return values, indices


@topk.grad("input")
def _(f, g, dim, where, input_shape):
    return f.gather_backward(g, dim, where, input_shape)
