"""Ops that move and index: special values, ties, empty tensors, dtypes, threads, bad input."""

import numpy as np
import pytest

import infinicore as ic

NAN, INF = float("nan"), float("inf")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def tensor(*values, dtype=None):
    return ic.from_numpy(np.array(values, dtype))


def equal(result, expected):
    assert tuple(result.shape) == np.shape(expected)
    np.testing.assert_array_equal(result.numpy(), expected)


# ---- indices of elements -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8", "bool"])
def test_gather_and_scatter_on_threads(dtype, rng, threads):
    values = rng.integers(0, 2 if dtype == "bool" else 100, (64, 50, 40))
    x = ic.from_numpy(values).to(ic.dtype(dtype))
    for dim in range(3):
        places = rng.integers(0, values.shape[dim], [90 if d == dim else n - 3 for d, n in enumerate(values.shape)])
        cut = values[tuple(slice(None) if d == dim else slice(n - 3) for d, n in enumerate(values.shape))]
        equal(ic.gather(x, dim, ic.from_numpy(places)).long(), np.take_along_axis(cut, places, dim))
        full = np.argsort(rng.standard_normal(values.shape), dim)
        expected = np.empty_like(values)
        np.put_along_axis(expected, full, values, dim)
        equal(ic.scatter(ic.zeros_like(x), dim, ic.from_numpy(full), x).long(), expected)


def test_sums_by_index_do_not_depend_on_threads(rng):
    places = rng.integers(0, 10, (3000, 8))
    values = ic.from_numpy(rng.standard_normal((3000, 8)).astype(np.float32))
    results, before = [], ic.get_num_threads()
    for count in (1, 2):
        ic.set_num_threads(count)
        results.append(ic.scatter_add(ic.zeros(10, 8), 0, ic.from_numpy(places), values).numpy())
        results.append(ic.index_add(ic.zeros(10, 8), 0, ic.from_numpy(places[:, 0]), values).numpy())
    ic.set_num_threads(before)
    np.testing.assert_array_equal(results[0], results[2])
    np.testing.assert_array_equal(results[1], results[3])
    expected = np.zeros((10, 8))
    np.add.at(expected, (places, np.arange(8)), values.numpy())
    np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-4)


def test_narrow_sums_are_rounded_once(rng):
    ones = ic.ones(1000, dtype=ic.bfloat16)  # 256 + 1 is 256 in bfloat16
    where = ic.zeros(1000, dtype=ic.int64)
    start = ic.zeros(2, dtype=ic.bfloat16)
    for result in (
        ic.scatter_add(start, 0, where, ones),
        ic.index_add(start, 0, where, ones),
        ic.index_put(start, (where,), ones, True),
    ):
        equal(result.float(), [1000, 0])


@pytest.mark.parametrize("dtype", [ic.float32, ic.bfloat16, ic.int8], ids=str)
def test_sums_along_the_last_dim(rng, dtype):
    """Rows of one element have a loop of their own: sums are those of rows of two."""
    x, y = (ic.from_numpy(rng.integers(-9, 9, (3, n)).astype(np.float32)).to(dtype) for n in (5, 40))
    where = ic.from_numpy(rng.integers(0, 5, 40))
    twice = ic.index_add(ic.stack([x, x], -1), 1, where, ic.stack([y, y], -1), alpha=3)
    equal(ic.index_add(x, 1, where, y, alpha=3).float(), twice[..., 0].float().numpy())


def test_the_last_of_equal_indices_counts():
    x, where = ic.zeros(3), tensor(1, 1, 0, 1)
    equal(ic.scatter(x, 0, where, tensor(1, 2, 3, 4, dtype=np.float32)), [3, 4, 0])
    equal(ic.index_put(x, (where,), tensor(1, 2, 3, 4, dtype=np.float32)), [3, 4, 0])


def test_in_place_and_shared_memory():
    x = tensor(1.0, 2.0, 3.0)
    assert ic.scatter(x, 0, tensor(2, 0), x, out=x) is x
    equal(x, [2, 2, 1])
    assert ic.index_put(x, (tensor(0, -1),), -1.0, out=x) is x
    equal(x, [-1, 2, -1])
    table = ic.zeros(4, 6)
    view = table[:, ::2]
    ic.index_put(view, (tensor(1, 2),), ic.ones(2, 3), out=view)
    equal(table[:, 0], [0, 1, 1, 0])
    equal(table[:, 1], np.zeros(4))
    ic.index_add(table, 0, tensor(3, 3), ic.ones(2, 6), out=table)
    equal(table[3], np.full(6, 2))


@pytest.mark.parametrize("bad", [5, -1, 1 << 40])
def test_indices_out_of_range(bad):
    x, where = ic.zeros(3, 5), tensor([0, 1], [bad, 2])
    calls = {
        "gather": lambda: ic.gather(x, 1, where),
        "scatter": lambda: ic.scatter(x, 1, where, 1.0),
        "scatter_add": lambda: ic.scatter_add(x, 1, where, ic.zeros(2, 2)),
        "index_add": lambda: ic.index_add(x, 1, where[1], ic.zeros(3, 2)),
        "embedding_backward": lambda: ic.embedding_backward(ic.zeros(2, 2, 3), where, 5),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=rf"of `{name}` must be from 0 to 4"):
            call()
    with pytest.raises(ValueError, match=r"`input` of `one_hot` must be from 0 to 4"):
        ic.one_hot(where, 5)
    if bad != -1:
        with pytest.raises(ValueError, match=r"`indices` of `index` must be within the dims \(1,\)"):
            ic.index(x, (None, where))


def test_bad_arguments_are_named():
    x = ic.zeros(3, 5)
    for call, error, words in (
        (lambda: ic.gather(x, 0, tensor(1)), ValueError, "`index` of `gather` must have as many dims"),
        (lambda: ic.gather(x, 0, tensor([1] * 6)), ValueError, "`index` of `gather` must have as many dims"),
        (lambda: ic.gather(x, 0, ic.zeros(1, 1)), TypeError, "`index` of `gather` must be int32 or int64"),
        (lambda: ic.gather(x, 2, tensor([1])), IndexError, "`dim` must be between"),
        (lambda: ic.scatter(x, 0, tensor([1, 2]), ic.zeros(1, 1)), ValueError, "`src` of `scatter` must be at least"),
        (lambda: ic.scatter(x, 0, tensor([1]), tensor([1])), TypeError, "`src` of `scatter` must be float32"),
        (lambda: ic.index_add(x, 0, tensor(1), x), ValueError, "`source` of `index_add` must have the shape"),
        (lambda: ic.masked_fill(x, x, 0.0), TypeError, "`mask` of `masked_fill` must be a bool tensor"),
        (lambda: ic.masked_fill(x, tensor([True, False]), 0), ValueError, "`mask` of `masked_fill` must broadcast"),
        (lambda: ic.masked_fill(x.long(), x > 0, 1j), TypeError, "`value` of `masked_fill` is 1j"),
        (lambda: ic.masked_fill(x.to(ic.uint8), x > 0, 300), ValueError, "the number 300 does not fit into"),
        (lambda: ic.tril(ic.zeros(3)), ValueError, "`input` of `tril` must have at least two dims"),
        (lambda: ic.pad(x, (1,)), ValueError, "`pad` of `pad` must hold a pair"),
        (lambda: ic.pad(x, (-3, -3)), ValueError, "leaves -1 elements of dim 1"),
        (lambda: ic.pad(x, (1, 1), "reflect"), NotImplementedError, "`mode` of `pad`"),
        (lambda: ic.roll(x, (1, 2), (0,)), ValueError, "`shifts` and `dims` of `roll` must be as many"),
        (lambda: ic.flip(x, (0, 0)), ValueError, "`dims` names a dim twice"),
        (lambda: ic.repeat_interleave(x, tensor(1, -1, 2), 0), ValueError, "must not be negative"),
        (lambda: ic.repeat_interleave(x, tensor(1, 2), 0), ValueError, "must be one number or 3"),
        (lambda: ic.index(x, (x,)), TypeError, "must be integer or bool tensors"),
        (lambda: ic.index(x, (tensor(True, False),)), IndexError, "does not fit dims 0 to 0"),
        (lambda: ic.index(x, (tensor(1, 2), tensor(1, 2, 3))), IndexError, "must broadcast"),
        (lambda: ic.index_put(x, (tensor(1),), ic.zeros(4)), ValueError, "`values` of `index_put` must broadcast"),
    ):
        with pytest.raises(error, match=words):
            call()


# ---- indexing ----------------------------------------------------------------------------------

MASK = np.random.default_rng(3).uniform(size=(4, 5)) < 0.5
INDICES = {
    "list": [2, 0, -1],
    "empty_list": [],
    "array": np.array([[3, 1], [0, 0]], np.int16),
    "with_slice": (np.array([1, 3]), slice(1, 4)),
    "slice_before": (slice(None, None, 2), np.array([1, 3])),
    "apart": (np.array([1, 3]), slice(None), np.array([0, 5])),
    "number_beside": (slice(None), 1, np.array([0, 5])),
    "broadcast": (np.array([[1], [3]]), np.array([0, 2, 4])),
    "all_dims": (np.array([1, 3]), np.array([-5, 4]), np.array([0, -1])),
    "ellipsis": (..., np.array([1, 2])),
    "ellipsis_between": (np.array([1, 2]), ..., np.array([1, 2])),
    "new_dim": (None, np.array([1, 2]), None),
    "mask": (MASK,),
    "mask_and_index": (MASK, np.array([2])),
    "mask_of_a_dim": (slice(None), MASK[0], slice(1, 3)),
    "full_mask": (np.random.default_rng(4).uniform(size=(4, 5, 6)) < 0.3,),
    "nothing": (np.zeros((4, 5), bool),),
    "true": (True, np.array([1])),
    "zero_dim": (np.array(2),),
}


@pytest.mark.parametrize("name", INDICES)
def test_indexing_follows_numpy(name, rng):
    where, values = INDICES[name], rng.standard_normal((4, 5, 6)).astype(np.float32)
    plain = where if isinstance(where, tuple) else (where,)
    ours = tuple(ic.from_numpy(i) if isinstance(i, np.ndarray) else i for i in plain)
    for x in (ic.from_numpy(values), ic.from_numpy(np.asfortranarray(values)), ic.from_numpy(values[::-1])):
        expected = x.numpy()[plain]
        equal(x[ours], expected)
        for value in (np.asarray(expected * 2), np.float32(7)):
            changed, filled = x.clone(), x.numpy().copy()
            filled[plain] = value
            changed[ours] = ic.from_numpy(np.asarray(value))
            equal(changed, filled)


def test_nonzero_in_chunks(rng, threads):
    values = np.where(rng.uniform(size=(300, 7, 100)) < 0.01, 1.0, 0.0).astype(np.float32)
    values[5, 3, 7], values[6, 0, 0] = NAN, -0.0
    for x in (values, (values != 0).astype(np.int8), values.T):
        equal(ic.nonzero(ic.from_numpy(x)), np.argwhere(x))
    assert ic.nonzero(ic.zeros(0, 3)).shape == (0, 2) and ic.nonzero(ic.ones(())).shape == (1, 0)


# ---- what moves and repeats --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8", "bool"])
def test_moving_every_dtype(dtype, rng):
    values = rng.integers(0, 2, (6, 7, 70))
    x = ic.from_numpy(values).to(ic.dtype(dtype))
    for view, array in ((x, values), (x.permute(2, 0, 1), values.transpose(2, 0, 1)), (x[:, ::2], values[:, ::2])):
        equal(ic.tril(view, -1).long(), np.tril(array, -1))
        equal(ic.triu(view, 1).long(), np.triu(array, 1))
        equal(ic.flip(view, (0, 2)).long(), np.flip(array, (0, 2)))
        equal(ic.roll(view, (2, -3), (0, -1)).long(), np.roll(array, (2, -3), (0, -1)))
        equal(ic.roll(view, 11).long(), np.roll(array, 11))
        equal(ic.repeat_interleave(view, 3, 1).long(), np.repeat(array, 3, 1))
        equal(ic.masked_fill(view, view != 0, True).long(), array)
        equal(
            ic.pad(view, (1, -2, 0, 3), value=1).long(),
            np.pad(array[..., :-2], ((0, 0), (0, 3), (1, 0)), constant_values=1),
        )


def test_empty_tensors():
    empty = ic.zeros(0, 3)
    assert ic.tril(empty).shape == (0, 3) and ic.flip(empty, 0).shape == (0, 3)
    assert ic.roll(empty, 1, 0).shape == (0, 3) and ic.pad(empty, (1, 1)).shape == (0, 5)
    assert ic.repeat_interleave(empty, 2, 1).shape == (0, 6) and ic.repeat_interleave(ic.ones(3), 0).shape == (0,)
    assert ic.gather(empty, 0, ic.zeros((0, 3), dtype=ic.int64)).shape == (0, 3)
    assert ic.scatter(ic.ones(2, 3), 0, ic.zeros((0, 3), dtype=ic.int64), 1.0).shape == (2, 3)
    assert ic.index(ic.ones(2, 3), (ic.zeros(0, dtype=ic.int64),)).shape == (0, 3)
    equal(ic.pad(ic.zeros(0), (2, 1), value=1.5), [1.5] * 3)
    equal(ic.embedding_backward(ic.zeros(0, 4), ic.zeros(0, dtype=ic.int64), 3), np.zeros((3, 4)))
    equal(ic.repeat_interleave(ic.tensor(2.0), 3), [2, 2, 2])
    assert ic.one_hot(ic.zeros(0, dtype=ic.int64), 3).shape == (0, 3)
    equal(ic.masked_fill(tensor(1.0, 2.0), tensor(True, False), ic.tensor(9.0)), [9, 2])


def test_a_large_matrix_of_blocks_is_zero_beside_them(rng):
    """Only what lies beside blocks is written there; a block without rows or columns has margins alone."""
    blocks = [rng.standard_normal(shape).astype(np.float32) for shape in ((150, 200), (3, 0), (70,), (100, 130))]
    ic.full((600, 600), 7.0)  # memory that comes back with something in it
    given = [ic.from_numpy(block).requires_grad_() for block in blocks]
    y = ic.block_diag(*given)
    wanted = np.zeros((254, 400), np.float32)
    wanted[:150, :200], wanted[153, 200:270], wanted[154:, 270:] = blocks[0], blocks[2], blocks[3]
    np.testing.assert_array_equal(y.detach().numpy(), wanted)
    g = rng.standard_normal(wanted.shape).astype(np.float32)
    found = ic.autograd.grad(y, given, ic.from_numpy(g))
    for one, part in zip(found, (g[:150, :200], g[150:153, :0], g[153, 200:270], g[154:, 270:])):
        np.testing.assert_array_equal(one.numpy(), part)
