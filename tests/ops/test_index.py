"""Embeddings and rows by index: dtypes, strides, shapes of the index, ids out of range."""

import numpy as np
import pytest

import infinicore as ic


def test_embedding_of_every_dtype_and_shape(rng):
    for dtype in ("float32", "bfloat16", "float64", "int64", "uint8", "bool"):
        weight = ic.from_numpy(rng.integers(0, 9, (11, 37))).to(ic.dtype(dtype))
        for shape in ((), (1,), (5,), (2, 3), (0,), (2, 0, 3)):
            for kind in (np.int32, np.int64):
                ids = rng.integers(0, 11, shape).astype(kind)
                got = ic.embedding(ic.from_numpy(np.asarray(ids)), weight)
                assert got.dtype is weight.dtype
                np.testing.assert_array_equal(got.to(ic.float64).numpy(), weight.to(ic.float64).numpy()[ids])


def test_strided_tables_and_indices(rng):
    table = ic.from_numpy(rng.standard_normal((20, 50)))
    ids = ic.from_numpy(rng.integers(0, 10, (6, 4)))
    for weight in (table[:, 5:40], table[::2], table.t()):
        for index in (ids.t(), ids[::2, 1:], ids[:, 0], ids[:1].expand(3, 4)):
            np.testing.assert_array_equal(ic.embedding(index, weight).numpy(), weight.numpy()[index.numpy()])


def test_many_rows_on_threads(rng):
    weight, ids = rng.standard_normal((1000, 64)).astype(np.float32), rng.integers(0, 1000, 20000)
    np.testing.assert_array_equal(ic.embedding(ic.from_numpy(ids), ic.from_numpy(weight)).numpy(), weight[ids])


@pytest.mark.parametrize("bad", [11, -1, 1 << 40])
def test_ids_out_of_range(bad):
    weight = ic.zeros(11, 4)
    with pytest.raises(ValueError, match=r"`indices` of `embedding` must be from 0 to 10"):
        ic.embedding(ic.tensor([0, bad, 1]), weight)
    with pytest.raises(ValueError, match=r"`index` of `index_select` must be from 0 to 3"):
        ic.index_select(weight, 1, ic.tensor([bad]))


def test_a_part_of_the_vocabulary(rng):
    weight = rng.standard_normal((12, 5)).astype(np.float32)
    ids = rng.integers(-2, 15, (3, 40))
    parts = [
        ic.vocab_parallel_embedding(ic.from_numpy(ids), ic.from_numpy(weight[a:b].copy()), a, b).numpy()
        for a, b in ((0, 5), (5, 5), (5, 12))
    ]
    inside = (ids >= 0) & (ids < 12)
    np.testing.assert_array_equal(sum(parts), np.where(inside[..., None], weight[np.clip(ids, 0, 11)], 0))


def test_index_select_along_every_dim(rng):
    x = ic.from_numpy(rng.standard_normal((4, 7, 9)))
    for view in (x, x.permute(2, 0, 1), x[:, ::2, 1:8]):
        for dim in (0, 1, 2, -1):
            index = rng.integers(0, view.shape[dim], 5)
            got = ic.index_select(view, dim, ic.from_numpy(index))
            np.testing.assert_array_equal(got.numpy(), np.take(view.numpy(), index, dim))


def test_bad_input():
    weight = ic.zeros(11, 4)
    with pytest.raises(TypeError, match=r"`indices`.*int32 or int64.*float32"):
        ic.embedding(ic.zeros(3), weight)
    with pytest.raises(TypeError, match=r"`indices`.*list"):
        ic.embedding([1, 2], weight)
    with pytest.raises(ValueError, match=r"`weight`.*\[V, D\]"):
        ic.embedding(ic.tensor([1]), ic.zeros(4))
    with pytest.raises(ValueError, match=r"`weight`"):
        ic.vocab_parallel_embedding(ic.tensor([1]), weight, 0, 5)
    with pytest.raises(IndexError, match=r"`dim`"):
        ic.index_select(weight, 2, ic.tensor([1]))
