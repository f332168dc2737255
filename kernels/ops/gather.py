"""Rows by index, and their derivatives: rows added up by index."""

import numpy as np

from ..problems.array import AddRows, GatherRows
from ..table.registry import ALL, ANY, INEXACT, NUMERIC, op
from ._layout import UNSIGNED, check, check_dim, check_index, product, rows
from .copy import copy_into, fill


def _flat(indices):
    """The indices with even steps, and the step."""
    if len(indices.shape_) == 1:
        return indices, indices.strides_[0]
    return indices.contiguous(), 1


def gather_rows(call, x, indices, y, outer, length, strides, valid, zeros=0, errors=None, wrap=0):
    """Rows of x to y: `strides` are (row, outer) in x, `valid` the range of indices, `wrap` what negative ones lack."""
    indices, step = _flat(indices)
    types = UNSIGNED[x.dtype.itemsize], indices.dtype.name
    problem = GatherRows(*types, step, indices.numel_, outer, length, *strides, *valid, zeros, wrap)
    call.run(problem, errors, y=y, x=x, index=indices)
    return y


def add_rows(call, y, x, indices, outer, count, length, scale=1, errors=None):
    """y[o, indices[n]] += scale * x[o, n] for contiguous y [outer, count, length] and x; returns y."""
    indices, step = _flat(indices)
    scale = float(scale) if y.dtype.is_floating_point else int(scale)
    problem = AddRows(y.dtype.name, indices.dtype.name, step, indices.numel_, outer, count, length, scale)
    call.run(problem, errors, t=y, v=x, index=indices)
    return y


def _table(call, weight):
    check(call, weight, "weight")
    if len(weight.shape_) != 2:
        raise ValueError(f"`weight` of `{call.op.name}` must be [V, D], got shape {weight.shape_}")
    return rows(weight, 1)


def _embedding_samples(rng):
    for size in (1, 3, 17, 257):
        yield (rng.integers(0, 11, (2, 5)), rng.standard_normal((11, size))), {}
    yield (rng.integers(0, 11, 7).astype(np.int32), rng.standard_normal((11, 64))), {}
    yield (np.array(3), rng.standard_normal((4, 8))), {}


@op(dtypes=ANY, ref=lambda indices, weight: weight[indices], samples=_embedding_samples)
def embedding(call, indices, weight):
    """Rows of `weight` [V, D] by `indices` (any shape, int32 or int64): indices.shape + [D].

    Raises ValueError for an index outside of 0 to V - 1.
    """
    check_index(call, indices, "indices")
    table, count, length, stride = _table(call, weight)
    y = call.out((*indices.shape_, length), weight.dtype)
    call.save(rows=count)
    errors = {1: f"`indices` of `embedding` must be from 0 to {count - 1}, the rows of `weight`: check the token ids"}
    return gather_rows(call, table, indices, y, 1, length, (stride, 0), (0, count), errors=errors)


@embedding.grad("weight")
def _(f, g, indices, rows, into):
    buffer = into("weight")
    if buffer is None:
        return f.embedding_backward(g, indices, rows)
    return f.embedding_backward(g, indices, rows, accumulate=buffer[1], out=buffer[0])


def _embedding_backward_ref(grad, indices, rows, accumulate=False):
    y = np.zeros((rows, grad.shape[-1]))
    np.add.at(y, indices, grad)
    return y


def _embedding_backward_samples(rng):
    for size in (1, 17, 257):
        yield (rng.standard_normal((2, 5, size)), rng.integers(0, 7, (2, 5)), 7), {}
    yield (rng.standard_normal((40, 64)), rng.integers(0, 3, 40).astype(np.int32), 11), {}


@op(
    ref=_embedding_backward_ref,
    samples=_embedding_backward_samples,
    tolerance={"float32": (1e-5, 1e-5)},
    dtypes=INEXACT,
)
def embedding_backward(call, grad, indices, rows, accumulate=False):
    """The gradient of the table of an `embedding` with `rows` rows: [rows, D], the rows of `grad` added up by index.

    With `accumulate` they are added to `out`. Equal indices are added in their order, in float32 at least, and
    rounded once, so the result does not depend on the number of threads.
    """
    check(call, grad, "grad")
    check_index(call, indices, "indices")
    if grad.shape_[:-1] != indices.shape_ or not grad.shape_:
        raise ValueError(
            f"`grad` of `embedding_backward` must be [*indices.shape, D], got {grad.shape_} for {indices.shape_}"
        )
    length = grad.shape_[-1]
    y = call.out((rows, length), grad.dtype)
    if not accumulate:
        fill(call, y, 0)
    elif call.given.get("out") is None:
        raise ValueError("`accumulate` of `embedding_backward` needs the tensor to add to: pass it as `out`")
    elif call.given["out"] is not y:
        copy_into(call, y, call.given["out"])
    errors = {1: f"`indices` of `embedding_backward` must be from 0 to {rows - 1}: check the token ids"}
    return add_rows(call, y, grad.contiguous(), indices, 1, rows, length, errors=errors)


@embedding_backward.grad("grad")
def _(f, g, indices):
    return f.embedding(indices, g)


def _vocab_ref(indices, weight, vocab_start, vocab_end):
    valid = (indices >= vocab_start) & (indices < vocab_end)
    return weight[np.where(valid, indices - vocab_start, 0)] * valid[..., None]


def _vocab_samples(rng):
    yield (rng.integers(0, 11, (2, 5)), rng.standard_normal((4, 17)), 3, 7), {}


@op(dtypes=ALL, ref=_vocab_ref, samples=_vocab_samples)
def vocab_parallel_embedding(call, indices, weight, vocab_start, vocab_end):
    """`embedding` of a table that holds rows `vocab_start` to `vocab_end` - 1 only; other indices give zeros.

    `weight` [vocab_end - vocab_start, D]. The sum over all parts of the table is the embedding.
    """
    check_index(call, indices, "indices")
    table, count, length, stride = _table(call, weight)
    if not 0 <= vocab_start <= vocab_end or vocab_end - vocab_start != count:
        raise ValueError(
            f"`weight` of `vocab_parallel_embedding` must have vocab_end - vocab_start rows, got {count} rows for "
            f"{vocab_start} to {vocab_end}"
        )
    y = call.out((*indices.shape_, length), weight.dtype)
    return gather_rows(call, table, indices, y, 1, length, (stride, 0), (vocab_start, vocab_end), zeros=1)


@vocab_parallel_embedding.grad("weight")
def _(f, g, indices, vocab_start, vocab_end):
    valid = f.logical_and(f.ge(indices, vocab_start), f.lt(indices, vocab_end))
    rows_, own = f.where(valid, f.sub(indices, vocab_start), 0), valid.unsqueeze(-1)
    return f.embedding_backward(f.masked_fill(g, f.logical_not(own), 0.0), rows_, vocab_end - vocab_start)


def _select_samples(rng):
    yield (rng.standard_normal((5, 3)), 0, rng.integers(0, 5, 7)), {}
    yield (rng.standard_normal((2, 5, 17)), 1, rng.integers(0, 5, 3).astype(np.int32)), {}
    yield (rng.standard_normal((3, 6)), -1, rng.integers(0, 6, 9)), {}


@op(dtypes=ANY, ref=lambda input, dim, index: np.take(input, index, dim), samples=_select_samples)
def index_select(call, input, dim, index):
    """The slices of `input` along `dim` that `index` [K] (int32 or int64) names, in its order.

    Raises ValueError for an index outside of the dim (negative ones are), and for an `out` that shares memory with an
    input.
    """
    check(call, input, "input")
    check_index(call, index, "index")
    shape = input.shape_ or (1,)
    if len(index.shape_) > 1 or (not input.shape_ and index.numel_ != 1):
        raise ValueError(
            f"`index` of `index_select` must have one dim, and for an `input` of none one element, got {index.shape_} "
            f"for {input.shape_}"
        )
    dim = check_dim(dim, len(shape))
    x, outer, _, stride = rows(input, dim)
    length = product(shape[dim + 1 :])
    found = (*shape[:dim], index.numel_, *shape[dim + 1 :]) if input.shape_ else ()
    errors = {1: f"`index` of `index_select` must be from 0 to {shape[dim] - 1} for `input` {shape}, `dim` {dim}"}
    if index.numel_ and not shape[dim]:  # also where nothing is read, for other dims are empty
        raise ValueError(errors[1])
    y = call.out(found, input.dtype, overlap="refused")
    call.save(size=shape[dim])
    return gather_rows(call, x, index, y, outer, length, (length, stride), (0, shape[dim]), errors=errors)


@index_select.grad("input")
def _(f, g, dim, index, size):
    return f.index_select_backward(g, dim, index, size)


def _index_select_backward_ref(grad, dim, index, size):
    y = np.zeros((*grad.shape[:dim], size, *grad.shape[dim + 1 :])) if dim >= 0 else np.zeros((*grad.shape[:-1], size))
    np.add.at(np.moveaxis(y, dim, 0), index, np.moveaxis(grad, dim, 0))
    return y


def _index_select_backward_samples(rng):
    yield (rng.standard_normal((7, 3)), 0, rng.integers(0, 5, 7), 5), {}
    yield (rng.standard_normal((2, 3, 17)), 1, rng.integers(0, 5, 3).astype(np.int32), 5), {}
    yield (rng.standard_normal((3, 9)), -1, rng.integers(0, 6, 9), 6), {}


@op(ref=_index_select_backward_ref, samples=_index_select_backward_samples, dtypes=INEXACT)
def index_select_backward(call, grad, dim, index, size):
    """The gradient of `index_select` from a dim of `size`: the slices of `grad` along `dim` added up by `index`."""
    check(call, grad, "grad")
    check_index(call, index, "index")
    shape = grad.shape_
    dim = check_dim(dim, len(shape))
    y = call.out((*shape[:dim], size, *shape[dim + 1 :]) if shape else (), grad.dtype)
    fill(call, y, 0)
    errors = {1: f"`index` of `index_select_backward` must be from 0 to {size - 1}"}
    return add_rows(
        call, y, grad.contiguous(), index, product(shape[:dim]), size, product(shape[dim + 1 :]), errors=errors
    )


@index_select_backward.grad("grad")
def _(f, g, dim, index):
    return f.index_select(g, dim, index)


def _index_add_ref(input, dim, index, source, alpha=1):
    y = input.copy()
    np.add.at(np.moveaxis(y, dim, 0), index, alpha * np.moveaxis(source, dim, 0))
    return y


def _index_add_samples(rng):
    yield (rng.standard_normal((5, 3)), 0, rng.integers(0, 5, 7), rng.standard_normal((7, 3))), {}
    yield (rng.standard_normal((2, 5, 17)), 1, rng.integers(0, 5, 3), rng.standard_normal((2, 3, 17))), {"alpha": -0.5}
    yield (rng.standard_normal((3, 6)), -1, rng.integers(0, 6, 9), rng.standard_normal((3, 9))), {"alpha": 2}


@op(dtypes=NUMERIC, ref=_index_add_ref, samples=_index_add_samples, amp="promote")
def index_add(call, input, dim, index, source, alpha=1):
    """`input` with `alpha` times the slices of `source` along `dim` added where `index` [K] (int32 or int64) says.

    `source` has the shape and dtype of `input`, with K slices. Raises ValueError for an index outside of the dim. Equal
    indices are added in their order and rounded once; `out` may be `input`.
    """
    check(call, input, "input")
    check(call, source, "source")
    check_index(call, index, "index")
    shape = input.shape_
    dim = check_dim(dim, len(shape))
    if source.dtype is not input.dtype:
        raise TypeError(f"`source` of `index_add` must be {input.dtype.name} as `input`, got {source.dtype.name}")
    wanted = (*shape[:dim], index.numel_, *shape[dim + 1 :]) if shape else ()
    if len(index.shape_) > 1 or source.shape_ != wanted or (not shape and index.numel_ != 1):
        raise ValueError(
            f"`source` of `index_add` must have the shape of `input` {shape}, with {index.numel_} slices along dim "
            f"{dim}, got {source.shape_} and `index` {index.shape_}"
        )
    x = source.contiguous()
    y = call.out(shape, input.dtype, overlap="same")
    if y.address == source.address:
        x = source.clone()
    if y.address != input.address or y.strides_ != input.strides_:
        copy_into(call, y, input)
    size = shape[dim] if shape else 1
    errors = {1: f"`index` of `index_add` must be from 0 to {size - 1} for `input` {shape}, `dim` {dim}"}
    return add_rows(call, y, x, index, product(shape[:dim]), size, product(shape[dim + 1 :]), alpha, errors)


@index_add.grad("input")
def _(g):
    return g


@index_add.grad("source")
def _(f, g, dim, index, alpha):
    y = f.index_select(g, dim, index)
    return y if alpha == 1 else f.mul(y, alpha)
