"""The error of each elementary function, in units of the last place, against float64 NumPy."""

import math

import numpy as np
import pytest

import infinicore as ic

RANGES = {
    "exp": (-100, 88.7),
    "log": None,
    "expm1": (-20, 88.7),
    "log1p": None,
    "sin": (-1e4, 1e4),
    "cos": (-1e4, 1e4),
    "tanh": (-12, 12),
    "erf": (-5, 5),
    "sigmoid": (-80, 30),
}
REFERENCE = {
    "erf": np.vectorize(math.erf),
    "sigmoid": lambda x: np.where(x > 0, 1, np.exp(-np.abs(x))) / (1 + np.exp(-np.abs(x))),
}


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("dtype, ulps", [("float32", 4), ("float64", 4)])
def test_error(name, dtype, ulps, rng):
    span = RANGES[name]
    x = np.exp(rng.uniform(-80, 80, 50000)) if span is None else rng.uniform(*span, 50000)
    x = np.concatenate([x, x * 1e-3]).astype(dtype)
    expected = REFERENCE.get(name, getattr(np, name, None))(x.astype(np.longdouble if name != "erf" else np.float64))
    ours = getattr(ic, name)(ic.from_numpy(x)).numpy()
    spacing = np.spacing(np.abs(expected).astype(dtype))
    normal = np.abs(expected) > np.finfo(dtype).tiny
    assert np.max(np.abs(ours - expected)[normal] / spacing[normal]) <= ulps


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_huge_arguments(name):
    x = np.float32([1e9, -3e20, 1e30, 5.0])
    np.testing.assert_allclose(getattr(ic, name)(ic.from_numpy(x)).numpy(), getattr(np, name)(x), rtol=1e-5, atol=1e-6)


def test_exp_at_the_ends_of_its_range():
    x = np.float32([88.72, 88.73, -87.4, -103.9, -104.1, 1000, -1000])
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(ic.exp(ic.from_numpy(x)).numpy(), np.exp(x), rtol=1e-5, atol=1e-45)
    x = np.float64([709.7, 709.9, -745.1, -745.3])
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(ic.exp(ic.from_numpy(x)).numpy(), np.exp(x), rtol=1e-14, atol=1e-323)
