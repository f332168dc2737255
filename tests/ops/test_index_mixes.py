"""Indices as PyTorch reads them: integers beside tensors, masks of any number of dims, in any mix."""

import numpy as np
import pytest

import infinicore as ic

SHAPE = (2, 3, 4, 5)
VALUES = np.arange(120.0).reshape(SHAPE)
PAIR, COLUMN = np.array([2, 0]), np.array([[1], [0], [1]])
MASK = np.arange(12).reshape(3, 4) % 3 == 0  # 4 of 12
# An index, the dims of its integers that are applied first, and what is left: NumPy's result is PyTorch's then.
MIXES = [
    ((0, slice(None), PAIR), (0,), (slice(None), PAIR)),
    ((0, slice(None), slice(None), PAIR), (0,), (slice(None), slice(None), PAIR)),
    ((slice(None), 1, PAIR), (slice(None), 1), (slice(None), PAIR)),
    ((slice(None), PAIR, 3, PAIR), (slice(None), slice(None), 3), (slice(None), PAIR, PAIR)),
    ((PAIR - 1, slice(None), 2), (slice(None), slice(None), 2), (PAIR - 1,)),
    ((-1, ..., COLUMN), (-1,), (..., COLUMN)),
    ((None, 0, slice(None, None, 2), PAIR), (0,), (None, slice(None, None, 2), PAIR)),
    ((0, MASK), (0,), (MASK,)),
    ((1, MASK, -2), (1, slice(None), slice(None), -2), (MASK,)),
    ((slice(1), MASK, 0), (slice(1), slice(None), slice(None), 0), (slice(None), MASK)),
    ((..., MASK[:, 0], 1, 1), (..., 1, 1), (slice(None), MASK[:, 0])),
]


def ours(index, mask="bool"):
    """The same with tensors in place of arrays, masks as `mask`."""
    return tuple(
        ic.from_numpy(i.astype(mask) if i.dtype == bool else i) if isinstance(i, np.ndarray) else i for i in index
    )


@pytest.mark.parametrize("index, first, rest", MIXES)
def test_an_integer_is_applied_before_tensors(index, first, rest):
    """It is no tensor index: the dims of those beside it stay where they are."""
    expected = VALUES[first][rest]
    for mask in ("bool", "uint8"):
        x = ic.from_numpy(VALUES.copy()).requires_grad_()
        got = x[ours(index, mask)]
        np.testing.assert_array_equal(got.detach().numpy(), expected)
        weights = np.arange(1.0, expected.size + 1).reshape(expected.shape)
        (got * ic.from_numpy(weights)).sum().backward()
        gradient = np.zeros(SHAPE)
        np.add.at(gradient[first], rest, weights)
        np.testing.assert_array_equal(x.grad.numpy(), gradient)
        for tracked in (False, True):
            value = ic.from_numpy(-weights).requires_grad_(tracked)
            y = ic.from_numpy(VALUES.copy())
            y[ours(index, mask)] = value
            filled = VALUES.copy()
            filled[first][rest] = -weights
            np.testing.assert_array_equal(y.detach().numpy(), filled)


def test_the_shapes_of_an_integer_beside_a_tensor():
    x, index = ic.zeros(2, 3, 4), ic.tensor([0, 1])
    assert x[0, :, index].shape == [3, 2] and x[:, 0, index].shape == [2, 2] and x[index, :, 0].shape == [2, 3]
    x[0, :, ic.tensor([0, 1, 2])] = ic.arange(9).reshape(3, 3).float()  # a square that could be turned over
    assert x[0, :, :3].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8"])
def test_a_tensor_of_one_integer_is_an_integer(dtype):
    """It selects, so what it gives is a view."""
    number = ic.tensor(1, dtype=ic.dtype(dtype))
    x = ic.from_numpy(VALUES.copy()).requires_grad_()
    assert x[number].shape == [3, 4, 5] and x[number, :, ic.tensor([0, 1])].shape == [3, 2, 5]
    x[number, 0].sum().backward()
    assert x.grad.sum().item() == 20 and x.grad[1, 0].sum().item() == 20
    y = ic.zeros(2, 3)
    y[number].fill_(2.0)
    y[number, number] = 5
    y[np.array(0), 2] = ic.tensor([7.0])
    assert y.tolist() == [[0, 0, 7], [2, 5, 2]]
    number.fill_(0)
    assert x.grad[0].sum().item() == 0
    with pytest.raises(IndexError, match="out of range"):
        y[ic.tensor(2)]


@pytest.mark.parametrize("truth", [True, False, np.True_, "bool", "uint8"])
def test_a_truth_is_a_mask_of_a_new_dim(truth):
    one = ic.tensor(1, dtype=ic.dtype(truth)) if isinstance(truth, str) else truth
    x = ic.from_numpy(VALUES)
    count = int(bool(one))
    assert x[one].shape == [count, *SHAPE] and x[:, one].shape == [2, count, 3, 4, 5]
    assert x[0, one, 0].shape == [count, 4, 5]


def test_a_value_may_have_more_dims_of_one():
    for index, rows in ((slice(None), 2), (0, 1), (ic.tensor([0, 1]), 2), ((0, ic.tensor([0, 1, 2])), 1)):
        x = ic.zeros(2, 3)
        value = ic.tensor([[[1.0, 2.0, 3.0]]]).requires_grad_()
        x[index] = value
        assert x.tolist() == [[1, 2, 3], [1, 2, 3] if rows == 2 else [0, 0, 0]]
        x.sum().backward()
        assert value.grad.tolist() == [[[rows] * 3]]
    with pytest.raises(ValueError, match=r"\(2, 1, 3\)"):
        x[0] = ic.zeros(2, 1, 3)


def test_a_number_that_does_not_fit_is_refused():
    x = ic.zeros(2, 3, dtype=ic.uint8)
    for index in (0, ic.tensor([0]), x == 0, (0, ic.tensor([1, 2]))):
        with pytest.raises(ValueError, match="300"):
            x[index] = 300
        x[index] = 7.0
    assert x.tolist() == [[7, 7, 7], [7, 7, 7]]


def test_masks_of_bytes_mask():
    x = ic.arange(4)
    byte = ic.tensor([1, 0, 0, 2], dtype=ic.uint8)
    assert x[byte].tolist() == [0, 3] and ic.index(x, (byte,)).tolist() == [0, 3]
    x[byte] = ic.tensor([8, 9])
    assert x.tolist() == [8, 1, 2, 9]
    with pytest.raises(IndexError, match=r"mask of shape \(3,\) does not fit"):
        x[byte[:3]]


# ---- any mix, beside PyTorch ---------------------------------------------------------------------


KINDS = ("int", "slice", "all", "none", "tensor", "zero", "mask", "truth", "dots")
WEIGHTS = (0.15, 0.1, 0.1, 0.05, 0.35, 0.05, 0.1, 0.05, 0.05)


def random_index(rng, shape):
    """An index of arrays, slices and so on that fits `shape`, more or less."""
    broadcast = [(2,), (3, 2), (1, 2), (3, 1), (1,)][rng.integers(5) :]
    items, d = [], 0
    while d < len(shape) and rng.uniform() < 0.9:
        kind, size = rng.choice(KINDS, p=WEIGHTS), shape[d]
        if kind == "none" and rng.uniform() < 0.5:
            items.append(None)
        elif kind == "truth" and rng.uniform() < 0.3:
            items.append(bool(rng.integers(4)))
        elif kind == "dots" and not any(i is Ellipsis for i in items):
            items.append(...)
            d = rng.integers(d, len(shape) + 1)
        elif kind == "int" and size:
            items.append(int(rng.integers(-size, size)))
            d += 1
        elif kind == "zero" and size:
            items.append(np.array(rng.integers(-size, size)))
            d += 1
        elif kind == "tensor" and size:
            items.append(rng.integers(-size, size, broadcast[rng.integers(len(broadcast))]))
            d += 1
        elif kind == "mask":
            dims = int(rng.integers(1, min(3, len(shape) - d) + 1))
            items.append(rng.uniform(size=shape[d : d + dims]) < rng.choice([0.0, 0.3, 0.6]))
            d += dims
        elif kind in ("slice", "all"):
            bounds = [None if rng.uniform() < 0.4 else int(rng.integers(-5, 6)) for _ in range(2)]
            items.append(slice(*bounds, int(rng.integers(1, 4))) if kind == "slice" else slice(None))
            d += 1
    return tuple(items)


def outcome(function):
    """What a function gives, or that it raises."""
    try:
        return function()
    except (IndexError, ValueError, RuntimeError, TypeError):
        return "raises"


def written(module, make, index, array, value, gradient):
    """An array with a value at an index, and the gradients of both."""
    x, v = make(array).requires_grad_(), make(value).requires_grad_()
    y = x * 1.0
    y[index] = v * 1.0
    y.backward(make(gradient))
    return y.detach().numpy(), x.grad.numpy(), v.grad.numpy()


@pytest.mark.parametrize("seed", range(40))
def test_mixes_are_those_of_torch(seed):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    kinds = ("int64", "int32") if seed % 2 else ("int64",)
    for _ in range(25):
        shape = tuple(rng.integers(1, 5, rng.integers(1, 5)))
        if rng.uniform() < 0.1:
            shape = (*shape[:-1], 0)
        index = random_index(rng, shape)
        index = tuple(
            i.astype(kinds[rng.integers(len(kinds))]) if isinstance(i, np.ndarray) and i.dtype == int else i
            for i in index
        )
        order = rng.permutation(len(shape))
        array = rng.integers(-9, 9, shape).astype(np.float64).transpose(order).copy().transpose(np.argsort(order))
        mine = tuple(ic.from_numpy(i) if isinstance(i, np.ndarray) else i for i in index)
        theirs = tuple(torch.from_numpy(i) if isinstance(i, np.ndarray) else i for i in index)
        expected = outcome(lambda: torch.from_numpy(array)[theirs])
        got = outcome(lambda: ic.from_numpy(array)[mine])
        if isinstance(expected, str):
            assert isinstance(got, str), (shape, index)
            continue
        assert not isinstance(got, str), (shape, index)
        np.testing.assert_array_equal(got.numpy(), expected.numpy(), err_msg=f"{shape} {index}")
        g = rng.integers(1, 9, expected.shape).astype(np.float64)
        x, t = ic.from_numpy(array).requires_grad_(), torch.from_numpy(array.copy()).requires_grad_()
        x[mine].backward(ic.from_numpy(g))
        t[theirs].backward(torch.from_numpy(g))
        np.testing.assert_array_equal(x.grad.numpy(), t.grad.numpy(), err_msg=f"{shape} {index}")

        places = torch.arange(array.size).reshape(shape)[theirs]
        if len(places.unique()) < places.numel():  # which one of several values stays is not said
            g = np.array(3.0)
        elif rng.uniform() < 0.5 and g.ndim:
            g = g[:1]
        whole = rng.integers(1, 9, shape).astype(np.float64)
        results = [
            written(ic, ic.from_numpy, mine, array.copy(), g, whole),
            written(torch, torch.from_numpy, theirs, array.copy(), g, whole),
        ]
        for one, two in zip(*results):
            np.testing.assert_array_equal(one, two, err_msg=f"{shape} {index}")
