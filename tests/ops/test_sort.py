"""Sorting and the largest elements: special values, ties, layouts, threads, bad input."""

import numpy as np
import pytest

import infinicore as ic

NAN, INF = float("nan"), float("inf")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def equal(result, expected):
    assert tuple(result.shape) == np.shape(expected)
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("size", [5, 100])
def test_special_floats_sort_as_in_torch(size):
    torch = pytest.importorskip("torch")
    values = np.tile(np.array([NAN, 1.0, -0.0, 0.0, -INF, INF, -1.0, 1e-45, -1e-45, -NAN], np.float32), 10)[:size]
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        ours = ic.from_numpy(values).to(ic.dtype(dtype))
        theirs = torch.from_numpy(values).to(getattr(torch, dtype))
        for descending in (False, True):
            found, where = ic.sort(ours, descending=descending)
            expected, places = torch.sort(theirs, descending=descending, stable=True)
            equal(where, places.numpy())
            equal(found.float(), expected.float().numpy())
            signs = [np.signbit(y.float().numpy()) & ~np.isnan(y.float().numpy()) for y in (found, expected)]
            np.testing.assert_array_equal(*signs)
            equal(ic.argsort(ours, descending=descending), places.numpy())
            top, places = ic.topk(ours, size // 5, largest=descending)
            equal(top.float(), expected[: size // 5].float().numpy())
            equal(places, where.numpy()[: size // 5])


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_integers_sort(dtype, rng):
    info = None if dtype == "bool" else np.iinfo(dtype)
    values = rng.integers(*((info.min, info.max) if info else (0, 2)), (3, 300), dtype=dtype if info else int)
    values = values.astype(dtype)
    values[:, 7] = info.min if info else False
    values[:, 9] = info.max if info else True
    order = np.argsort(values, 1, kind="stable")
    found, where = ic.sort(ic.from_numpy(values))
    equal(where, order)
    equal(found, np.take_along_axis(values, order, 1))
    top, _ = ic.topk(ic.from_numpy(values), 12, largest=False)
    equal(top, np.sort(values, 1)[:, :12])


def test_sorting_any_dim_any_layout(rng, threads):
    values = rng.integers(0, 50, (40, 30, 20)).astype(np.float32)
    for x in (ic.from_numpy(values), ic.from_numpy(values).permute(2, 0, 1), ic.from_numpy(values)[::2, :, 3:]):
        for dim in (0, 1, -1):
            found, where = ic.sort(x, dim)
            equal(where, np.argsort(x.numpy(), dim, kind="stable"))
            equal(found, np.sort(x.numpy(), dim))
            top, places = ic.topk(x, 4, dim)
            equal(places, np.argsort(-x.numpy(), dim, kind="stable").take(range(4), dim))
            equal(top, -np.sort(-x.numpy(), dim).take(range(4), dim))


def test_sorting_nothing_and_numbers():
    for function in (ic.sort, lambda x: ic.topk(x, 1)):
        found, where = function(ic.tensor(3.5))
        assert found.item() == 3.5 and where.item() == 0 and found.shape == ()
    found, where = ic.sort(ic.zeros(0, 3), 0)
    assert found.shape == (0, 3) and where.dtype is ic.int64
    assert ic.topk(ic.zeros(3, 5), 0)[0].shape == (3, 0)
    with pytest.raises(ValueError, match=r"`k` of `topk` must be from 0 to 5"):
        ic.topk(ic.zeros(3, 5), 6)
