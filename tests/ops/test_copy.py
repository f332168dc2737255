"""Copies: every pair of layouts and element size, overlapping memory, joined tensors, bad input."""

import itertools

import numpy as np
import pytest
from infinicore.kernels import OPS
from infinicore.kernels.ops.copy import copy_into

import infinicore as ic
from infinicore.dispatch import Call

DTYPES = ["uint8", "bfloat16", "float32", "float64"]


def values(rng, dtype, *shape):
    return ic.from_numpy(rng.integers(0, 200, shape)).to(ic.dtype(dtype))


def wide(x):
    return x.to(ic.float64).numpy()


@pytest.mark.parametrize("dtype", DTYPES)
def test_between_all_orders_of_dims(dtype, rng):
    for shape in ((3, 20, 33), (40, 1, 17), (16, 16, 8), (2, 3, 2)):
        base = values(rng, dtype, *shape)
        for order, other in itertools.product(itertools.permutations(range(3)), repeat=2):
            source = base.permute(*np.argsort(order)).contiguous().permute(*order)  # logical shape, other memory order
            target = ic.zeros(shape, dtype=source.dtype).permute(*np.argsort(other)).contiguous().permute(*other)
            assert source.shape == shape and target.shape == shape
            copy_into(Call(OPS["rearrange"], {}, ()), target, source)
            np.testing.assert_array_equal(wide(target), wide(base))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gaps_steps_and_repeats(dtype, rng):
    x = values(rng, dtype, 6, 50, 70)
    views = (x[:, 1:40:3], x[..., ::2], x[1:5, :, 3:66], x[:1].expand(6, 50, 70), x[:, :, :1].expand(6, 50, 70))
    for view in (*views, x[:, ::2].transpose(0, 2), x[0, 0, 0], x[:, :0]):
        copy = ic.rearrange(view)
        assert copy.is_contiguous() and copy.address != view.address
        np.testing.assert_array_equal(wide(copy), wide(view))
        target = ic.zeros(*[2 * n for n in view.shape], dtype=view.dtype)[tuple(slice(n) for n in view.shape)]
        copy_into(Call(OPS["rearrange"], {}, ()), target, view)
        np.testing.assert_array_equal(wide(target), wide(view))


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_copies_on_threads(dtype, rng):
    x = values(rng, dtype, 700, 901)
    for view in (x, x.t(), x[:, 1:], x[:, ::3], x.view(700, 17, 53).transpose(0, 1)):
        np.testing.assert_array_equal(wide(ic.rearrange(view)), wide(view))


def test_dims_that_do_not_merge(rng):
    x = values(rng, "float32", *[3] * 7)
    view = x.permute(6, 2, 4, 0, 3, 5, 1)
    np.testing.assert_array_equal(wide(ic.rearrange(view)), wide(view))


def test_cat_and_stack(rng):
    parts = [values(rng, "float32", 3, n, 5) for n in (2, 0, 7)]
    views = [p.permute(2, 1, 0) for p in parts]
    for tensors in (parts, views, parts[:1]):
        for dim in (1, -2):
            np.testing.assert_array_equal(wide(ic.cat(tensors, dim)), np.concatenate([wide(p) for p in tensors], 1))
    same = [values(rng, "bfloat16", 3, 5) for _ in range(4)]
    for dim in range(-3, 3):
        np.testing.assert_array_equal(wide(ic.stack(same, dim)), np.stack([wide(p) for p in same], dim))
    empty = ic.empty(0)
    np.testing.assert_array_equal(wide(ic.cat([empty, parts[0], empty], 1)), wide(parts[0]))
    assert ic.cat([empty, empty]).shape == (0,)
    assert ic.cat((ic.tensor([1, 2]), ic.tensor([3]))).tolist() == [1, 2, 3]
    assert ic.stack([ic.tensor(True), ic.tensor(False)]).tolist() == [True, False]


@pytest.mark.parametrize("dtype", ("uint8", "bfloat16", "int32", "float64", "complex128"))
def test_rows_of_few_elements(dtype, rng, threads):
    """Not a byte beside them is written."""
    x = ic.from_numpy(rng.integers(0, 100, (7, 30, 9)).astype(np.float64)).to(ic.dtype(dtype))
    for size in range(1, 9):
        for first in (0, 9 - size):
            part = x[:, :, first : first + size]
            for view in (part, part.permute(1, 0, 2), part[::2, 1:]):
                y = ic.full((*view.shape[:-1], size + 2), 7, dtype=x.dtype)
                y[..., 1:-1] = view
                expected = np.full(tuple(y.shape), 7.0)
                expected[..., 1:-1] = view.to(ic.complex128).numpy().real
                np.testing.assert_array_equal(y.to(ic.complex128).numpy().real, expected)
                np.testing.assert_array_equal(view.contiguous().to(ic.complex128).numpy().real, expected[..., 1:-1])


def test_cat_into_its_own_input(rng):
    """An error as in PyTorch; another part of the same memory is not its own."""
    x = values(rng, "float32", 8, 6)
    before, version = wide(x), x._version
    for parts, out in (([x[2:4], x[:2]], x[:4]), ([x], x), ([x[:2], x[:2].clone()], x[1:5])):
        with pytest.raises(ValueError, match="`out` of `cat` must not share memory with an input"):
            ic.cat(parts, out=out)
    np.testing.assert_array_equal(wide(x), before)
    assert x._version == version
    for _ in range(3):  # also as a known call
        ic.cat([x[2:4], x[:2], x[5:5]], out=x[4:])
        np.testing.assert_array_equal(wide(x[4:]), before[[2, 3, 0, 1]])
    with pytest.raises(ValueError, match="must not share memory"):
        ic.cat([x[2:4], x[:2], x[5:5]], out=x[:4])


def test_bad_input():
    a, b = ic.zeros(2, 3), ic.zeros(3, 3)
    with pytest.raises(ValueError, match=r"agree in all dims but 1, got \(2, 3\) and \(3, 3\)"):
        ic.cat([a, b], 1)
    with pytest.raises(ValueError, match=r"one shape"):
        ic.stack([a, b])
    with pytest.raises(ValueError, match=r"at least one tensor"):
        ic.cat([])
    with pytest.raises(ValueError, match=r"use `stack`"):
        ic.cat([ic.tensor(1.0)])
    assert ic.cat([a, b.to(ic.float64)]).dtype is ic.float64
    with pytest.raises(TypeError, match=r"list of tensors"):
        ic.cat(a)
    with pytest.raises(TypeError, match=r"`tensors`.*int"):
        ic.stack([1, 2])
    with pytest.raises(IndexError, match=r"`dim`"):
        ic.cat([a], 2)
