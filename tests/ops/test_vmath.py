"""The error of each elementary function, in units of the last place, against float64 NumPy."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from infinicore.kernels.build import isa

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
    "sinh": (-88, 88),
    "cosh": (-88, 88),
    "tan": (-1e4, 1e4),
    "exp2": (-120, 127),
    "log2": None,
    "log10": None,
    "arcsin": (-1, 1),
    "arccos": (-1, 1),
    "arctan": (-50, 50),
    "arcsinh": (-1e4, 1e4),
    "arccosh": (1, 1e4),
    "arctanh": (-0.999, 0.999),
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
    x = x if name == "arccosh" else np.concatenate([x, x * 1e-3, x * 1e-9])
    x = x.astype(dtype)
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


@pytest.mark.parametrize("name", ["exp", "sigmoid"])
def test_results_below_the_normal_numbers(name):
    """Rounded once: the two functions are the same there, since 1 + exp(x) is 1."""
    x = np.linspace(-103.9, -87.4, 5001, dtype=np.float32)
    got, expected = getattr(ic, name)(ic.from_numpy(x)).numpy().astype("f8"), np.exp(x.astype("f8"))
    assert np.all(np.abs(got - expected) <= 1.1 * np.spacing(expected.astype("f4")))


@pytest.mark.parametrize(
    "name, high, low, zero", [("exp", np.inf, 0, 1), ("sigmoid", 1, 0, 0.5), ("tanh", 1, -1, 0), ("erf", 1, -1, 0)]
)
def test_infinity_and_nan(name, high, low, zero):
    x = np.float32([np.inf, 3e38, -np.inf, -3e38, 0.0, -0.0, np.nan] * 7)
    got = getattr(ic, name)(ic.from_numpy(x)).numpy()
    np.testing.assert_array_equal(got, np.float32([high, high, low, low, zero, zero, np.nan] * 7))
    if low == -1:  # odd: the sign of zero stays
        assert np.signbit(got[5]) and not np.signbit(got[4])


@pytest.mark.skipif(isa.vector_bytes() != 64 or isa.divides_slowly(), reason="needs AVX-512")
def test_where_divisions_are_slow(tmp_path):
    """What other CPUs with AVX-512 run: the same errors, by reciprocals."""
    command = [sys.executable, "-m", "pytest", "-q", "-k", "not slow", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "INFINICORE_ISA": "avx512", "INFINICORE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
