"""Triangular systems on GPUs, against the CPU's, where there is no GPU (`threads.py`)."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

import infinicore as ic
from infinicore.dispatch.functions import FUNCTIONS

from .compared import both, equal, used

TOLERANCE = {"float32": 1e-5, "float64": 1e-13}
NAME = "linalg.factor.solve_triangular"


def systems(rng, size, columns, count=2):
    a = rng.standard_normal((count, size, size)) / max(size, 1) + 2 * np.eye(size)
    return a, rng.standard_normal((count, size, columns))


def solve(dtype="float32", **options):
    return lambda a, b: ic.linalg.solve_triangular(a.to(dtype=dtype), b.to(dtype=dtype), **options)


@pytest.mark.parametrize("upper, unit", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    "size, columns, dtype",
    [(1, 1, "float32"), (7, 3, "float64"), (33, 5, "float32"), (128, 2, "float64"), (133, 3, "float32")],
)
def test_systems(device, rng, size, columns, dtype, upper, unit):
    """For eight, four, two systems of a block, and one."""
    run = solve(dtype, upper=upper, unitriangular=unit)
    equal(device, run, *systems(rng, size, columns), tolerance=TOLERANCE[dtype])
    assert used(device, NAME)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_systems_of_more_rows_than_a_block_has_threads(device, rng, dtype, upper):
    equal(device, solve(dtype, upper=upper), *systems(rng, 561, 1, 1), tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize(
    "count, size, columns, dtype",
    [
        (3, 40, 701, "float32"),
        pytest.param(3, 40, 701, "float64", marks=pytest.mark.slow),
        pytest.param(1, 300, 513, "float32", marks=pytest.mark.slow),
    ],
)
def test_systems_of_many_columns(device, rng, count, size, columns, dtype):
    """Four for a warp."""
    run = solve(dtype, upper=size < 100)
    equal(device, run, *systems(rng, size, columns, count), tolerance=TOLERANCE[dtype])


def test_systems_the_other_way_around(device, rng):
    a, b = systems(rng, 45, 3)
    equal(device, solve(upper=True, left=False), a, b.swapaxes(-1, -2).copy(), tolerance=1e-5)
    equal(device, lambda a, b: solve(upper=True)(a.mT, b), a, b, tolerance=1e-5)
    equal(device, solve(upper=True), a[:, :0, :0], b[:, :0])
    equal(device, solve(upper=True), a[:0], b[:0])


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan, 1e-39, 3e38])
def test_diagonals_without_a_reciprocal(device, rng, value):
    """What PyTorch gives is what divisions give: infinities of 0, and numbers of what is almost 0. Other columns, and
    elements that are known before, know nothing of what is no number."""
    a, b = np.eye(40, k=-3) + 2 * np.eye(40), rng.standard_normal((40, 3))
    a[11, 11] = value
    b[:, 1] *= 1e-39 if value == 1e-39 else 1
    b[8, 2] = np.nan
    equal(device, solve(upper=False), a, b, tolerance=1e-5)


def test_the_other_triangle_is_not_read(device, rng):
    a, b = systems(rng, 70, 2, 1)
    hidden = np.where(np.tri(70, k=-1) > 0, np.nan, a)
    (want, got), (plain, _) = (
        next(both(device, solve(upper=True), hidden, b)),
        next(both(device, solve(upper=True), a, b)),
    )
    np.testing.assert_array_equal(want, plain)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    np.fill_diagonal(hidden[0], np.nan)
    equal(device, solve(upper=True, unitriangular=True), hidden, b, tolerance=1e-4)


@pytest.mark.parametrize("size", [40, 200])
def test_systems_of_bad_condition(device, rng, size):
    """What is left of b is what substitution leaves."""
    a, b = systems(rng, size, 2, 1)
    a, b = np.logspace(0, -9, size)[:, None] * np.tril(a[0]), b[0]
    a, b = (x.astype(np.float32).astype(np.float64) for x in (a, b))
    for x in next(both(device, solve(upper=False), a, b)):
        left, room = np.abs(a @ x - b), np.abs(a) @ np.abs(x) + np.abs(b)
        assert (left <= size * 2.0**-23 * room).all()


@pytest.mark.parametrize(
    "size, columns, dtype",
    [(1, 1, "float32"), (20, 40, "float64"), (32, 3, "float32"), (261, 70, "float32"), (1500, 33, "float32"),
     (3500, 2, "float64")],
)  # fmt: skip
def test_exchanged_rows(device, rng, size, columns, dtype):
    """A warp's, all columns of a block at once, some of them, and too many rows for a block's memory."""
    x, few = rng.standard_normal((2, size, columns)), max(1, size - 3)
    last = np.stack([np.arange(few) + rng.integers(0, size - np.arange(few)) for _ in range(2)])
    any_, again = rng.integers(0, size, (2, size)), np.broadcast_to(np.arange(size) // 2, (2, size))

    def run(x, *pivots):
        x, pivots = x.to(dtype=dtype), [(p + 1).to(dtype=ic.int32) for p in pivots]
        return [FUNCTIONS["exchange_rows"](x, p, back) for p in pivots for back in (False, True)]

    equal(device, run, x, last, any_, again)
    assert used(device, "linalg.factor.exchanged")


def test_exchanged_rows_of_factors(device, rng):
    lu, pivots = ic.linalg.lu_factor(ic.as_tensor(rng.standard_normal((2, 50, 50))))
    lu, pivots, b = (np.asarray(x.numpy(), "f8") for x in (lu, pivots, ic.as_tensor(rng.standard_normal((2, 50, 6)))))
    run = lambda lu, p, b: [ic.linalg.lu_solve(lu, p.to(dtype=ic.int32), b, adjoint=way) for way in (False, True)]
    equal(device, run, lu, pivots, b, tolerance=1e-9)


@pytest.mark.parametrize("size", [5, 40])
def test_pivots_that_do_not_exist(device, size):
    pivots = ic.ones(size, dtype=ic.int32)
    pivots[size - 1] = size + 1
    with pytest.raises(ValueError, match="`pivots` of `exchange_rows` must be from 1 to"):
        FUNCTIONS["exchange_rows"](ic.zeros(size, 3).to(device), pivots.to(device))
