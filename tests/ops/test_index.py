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


KINDS = ("float32", "bfloat16", "int16", "int64", "float64")
REDUCE = {"sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}


def layouts(rng, shape, size, dim):
    """Indices along a dim: of each element, also in Fortran's order and int32; and one for each row."""
    index = rng.integers(0, size, shape)
    rows = rng.integers(0, size, [n if d == dim else 1 for d, n in enumerate(shape)])
    yield from (index, np.asfortranarray(index), index.astype(np.int32), np.broadcast_to(rows, shape))


@pytest.mark.parametrize("kind", KINDS)
def test_elements_by_index_in_every_layout(kind, rng, threads):
    """Eight at a time with unit steps, whole rows where one index serves for a row, and what is left of both."""
    for shape, dim, size in (((5, 27), 1, 31), ((9, 33), 0, 4), ((3, 6, 70), 1, 5), ((2, 600), 0, 3), ((40,), 0, 7)):
        own = tuple(size if d == dim else n for d, n in enumerate(shape))
        array = ic.from_numpy(rng.integers(-3, 4, own).astype(np.float64)).to(ic.dtype(kind))
        source = ic.from_numpy(rng.integers(-3, 4, shape).astype(np.float64)).to(ic.dtype(kind))
        wide = lambda x: x.to(ic.float64).numpy().copy()
        for index in layouts(rng, shape, size, dim):
            i = ic.from_numpy(index) if index.strides[dim] or index.ndim == 1 else None
            i = ic.from_numpy(np.ascontiguousarray(index)) if i is None else i
            if 0 in index.strides:
                rows = index[tuple(slice(None) if d == dim else slice(1) for d in range(index.ndim))]
                i = ic.from_numpy(np.ascontiguousarray(rows)).expand(*shape)
            np.testing.assert_array_equal(wide(ic.gather(array, dim, i)), np.take_along_axis(wide(array), index, dim))
            at = list(np.indices(shape))
            at[dim] = index
            for reduce, function in REDUCE.items():
                if reduce == "prod" and kind in ("bfloat16", "int16"):
                    continue  # 16 bits hold no product of 600 numbers
                expected = wide(array)
                function.at(expected, tuple(at), wide(source))
                got = ic.scatter_reduce(array, dim, i, source, reduce)
                np.testing.assert_array_equal(wide(got), expected)
            found = wide(ic.scatter(array, dim, i, source))
            expected = wide(array)
            for place in np.ndindex(*shape):  # of equal indices the last one counts
                expected[tuple(index[place] if d == dim else n for d, n in enumerate(place))] = wide(source)[place]
            np.testing.assert_array_equal(found, expected)


def test_extremes_of_rows_keep_nan_and_the_first_zero():
    x, index = ic.tensor([[0.0] * 20, [np.nan] * 20]), ic.tensor([0, 1, 0])
    source = ic.tensor([[-0.0] * 20, [1.0] * 20, [-1.0] * 20])
    y = ic.index_reduce(x, 0, index, source, "amax").numpy()
    assert (y[0] == 0).all() and not np.signbit(y[0]).any() and np.isnan(y[1]).all()
    source[0, 7] = np.nan
    assert np.isnan(ic.index_reduce(x, 0, index, source, "amin").numpy()[0]).tolist() == [i == 7 for i in range(20)]


@pytest.mark.parametrize("bad", [-1, 30, 1 << 40])
@pytest.mark.parametrize("at", [0, 5, 8, 15, 17])
def test_one_bad_index_among_many(bad, at):
    index = ic.zeros(2, 18, dtype=ic.int64)
    index[1, at] = bad
    rows = ic.zeros(18, dtype=ic.int64)
    rows[at] = bad
    for call in (
        lambda: ic.gather(ic.zeros(2, 30), 1, index),
        lambda: ic.scatter(ic.zeros(2, 30), 1, index, ic.ones(2, 18)),
        lambda: ic.scatter_add(ic.zeros(2, 30), 1, index, ic.ones(2, 18)),
        lambda: ic.index_reduce(ic.zeros(30, 40), 0, rows, ic.ones(18, 40), "amax"),
    ):
        with pytest.raises(ValueError, match="must be from 0 to 29"):
            call()


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
