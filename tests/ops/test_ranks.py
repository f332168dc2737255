"""Elements of rows by their ranks, found digit by digit or in sorted rows: those that NumPy's stable sort has there."""

import numpy as np
import pytest

import infinicore as ic
from infinicore.dispatch.functions import FUNCTIONS

FLOATS = ["float32", "float64", "bfloat16", "float16"]
INTEGERS = ["int8", "uint8", "int16", "int32", "int64"]
SIZES = [31, 32, 100, 3000, 70001]  # sorted; found; several digits with few elements left; ranks of more than two


def values(rng, kind, dtype, size):
    """Three rows, as an array of float64 or int64 that the dtype holds exactly."""
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        whole = rng.integers(info.min, info.max, (3, size), dtype, endpoint=True).astype(np.int64)
        return {"wide": whole, "few": whole % 3, "same": np.full((3, size), info.max, np.int64)}[kind]
    wide = rng.standard_normal((3, size)) * 10.0 ** rng.integers(-3, 3, (3, size))
    if kind == "few":
        return np.round(wide) % 3 * rng.choice([-1.0, 1.0], (3, size))  # 0 and -0, which are equal
    if kind == "same":
        return np.full((3, size), -np.inf)
    wide[:, 5] = np.inf
    wide[1, rng.random(size) < 0.4] = np.nan
    wide[2] = np.nan
    return wide


def row_order(x):
    return np.argsort(x, -1, kind="stable")


@pytest.mark.parametrize("kind", ["wide", "few", "same"])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_every_rank(dtype, kind):
    rng = np.random.default_rng(3)
    for size in SIZES:
        x = ic.from_numpy(values(rng, kind, dtype, size)).to(getattr(ic, dtype))
        exact = x.to(ic.float64 if dtype in FLOATS else ic.int64).numpy()
        order = row_order(exact)
        for k in {1, 2, size // 3, size - 1, size}:
            found, where = ic.kthvalue(x, k)
            np.testing.assert_array_equal(where.numpy(), order[:, k - 1])
            wanted = np.take_along_axis(exact, order[:, [k - 1]], -1)[:, 0]
            np.testing.assert_array_equal(found.to(ic.float64 if dtype in FLOATS else ic.int64).numpy(), wanted)


@pytest.mark.parametrize("dtype", FLOATS)
def test_medians_where_some_are_no_numbers(dtype):
    rng = np.random.default_rng(4)
    for size in SIZES:
        x = ic.from_numpy(values(rng, "wide", dtype, size)).to(getattr(ic, dtype))
        exact = x.to(ic.float64).numpy()
        order, numbers = row_order(exact), (~np.isnan(exact)).sum(-1)
        median = np.where(numbers == size, (size - 1) // 2, numbers)  # the first NaN
        for function, ranks in ((ic.median, median), (ic.nanmedian, np.maximum(numbers - 1, 0) // 2)):
            np.testing.assert_array_equal(function(x, -1).indices.numpy(), order[np.arange(3), ranks])
            np.testing.assert_array_equal(function(x.t().contiguous(), 0).indices.numpy(), order[np.arange(3), ranks])


@pytest.mark.parametrize("size", SIZES)
def test_several_ranks_of_a_row(size):
    rng, ranked = np.random.default_rng(5), FUNCTIONS["ranked"]
    x = rng.standard_normal((2, size), dtype=np.float32)
    for count in (1, 2, 3, 12, 13):
        ranks = rng.integers(0, size, (2, count))
        found, where = ranked(ic.from_numpy(x), ic.from_numpy(ranks))
        np.testing.assert_array_equal(where.numpy(), np.take_along_axis(row_order(x), ranks, -1))
        np.testing.assert_array_equal(found.numpy(), np.take_along_axis(np.sort(x, -1), ranks, -1))
        with pytest.raises(ValueError, match=f"`ranks` of `ranked` must be from 0 to {size - 1}"):
            ranked(ic.from_numpy(x), ic.from_numpy(np.where(ranks == ranks[0, 0], size, ranks)))
        with pytest.raises(ValueError, match="`ranks` of `ranked` must be from 0"):
            ranked(ic.from_numpy(x), ic.from_numpy(np.where(ranks == ranks[0, 0], -1, ranks)))
    np.testing.assert_allclose(
        ic.quantile(ic.from_numpy(x), ic.tensor([0.1, 0.5, 0.9]), -1).numpy(), np.quantile(x, [0.1, 0.5, 0.9], -1), 1e-5
    )


def test_a_number_of_threads_finds_the_same():
    x = ic.from_numpy(np.random.default_rng(6).integers(-50, 50, (37, 4099)).astype(np.float32))
    before, found = ic.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            ic.set_num_threads(threads)
            found.append([y.numpy() for y in ic.median(x, -1)])
    finally:
        ic.set_num_threads(before)
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])
