"""Rows by index."""

import numpy as np

from ..registry import ALL, op
from ._layout import check, check_dim, check_index, product, rows

_UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
_GRAIN = 131072  # bytes: some 10 us


def _gather(call, x, indices, y, outer, length, strides, valid, zeros=0, errors=None):
    """Rows of x to y: `strides` are (row, outer) in x, `valid` the range of indices."""
    indices = indices if len(indices.shape_) == 1 else indices.contiguous()
    step = indices.strides_[0] if len(indices.shape_) == 1 else 1
    count = indices.numel_
    args = [y.address, x.address, indices.address, step, count, length, *strides, *valid, zeros]
    types = {"E": _UNSIGNED[x.dtype.itemsize], "I": indices.dtype.name}
    grain = max(1, _GRAIN // (length * x.dtype.itemsize or 1))
    call.launch("index.gather_rows", types, args, outer * count, grain, (y, x, indices), errors)
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


@op(dtypes=ALL, ref=lambda indices, weight: weight[indices], samples=_embedding_samples)
def embedding(call, indices, weight):
    """Rows of `weight` [V, D] by `indices` (any shape, int32 or int64): indices.shape + [D].

    Raises ValueError for an index outside of 0 to V - 1.
    """
    check_index(call, indices, "indices")
    table, count, length, stride = _table(call, weight)
    y = call.out((*indices.shape_, length), weight.dtype)
    errors = {1: f"`indices` of `embedding` must be from 0 to {count - 1}, the rows of `weight`: check the token ids"}
    return _gather(call, table, indices, y, 1, length, (stride, 0), (0, count), errors=errors)


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
    return _gather(call, table, indices, y, 1, length, (stride, 0), (vocab_start, vocab_end), zeros=1)


def _select_samples(rng):
    yield (rng.standard_normal((5, 3)), 0, rng.integers(0, 5, 7)), {}
    yield (rng.standard_normal((2, 5, 17)), 1, rng.integers(0, 5, 3).astype(np.int32)), {}
    yield (rng.standard_normal((3, 6)), -1, rng.integers(0, 6, 9)), {}


@op(dtypes=ALL, ref=lambda input, dim, index: np.take(input, index, dim), samples=_select_samples)
def index_select(call, input, dim, index):
    """The slices of `input` along `dim` that `index` [K] (int32 or int64) names, in its order.

    Raises ValueError for an index outside of the dim; negative ones are.
    """
    check(call, input, "input")
    check_index(call, index, "index")
    shape = input.shape_
    if not shape or len(index.shape_) > 1:
        raise ValueError(f"`index_select` needs at least one dim and `index` of one, got {shape} and {index.shape_}")
    dim = check_dim(dim, len(shape))
    x, outer, _, stride = rows(input, dim)
    length = product(shape[dim + 1 :])
    y = call.out((*shape[:dim], index.numel_, *shape[dim + 1 :]), input.dtype)
    errors = {1: f"`index` of `index_select` must be from 0 to {shape[dim] - 1} for `input` {shape}, `dim` {dim}"}
    return _gather(call, x, index, y, outer, length, (length, stride), (0, shape[dim]), errors=errors)
