"""Functions of rules on GPUs, of all 16-bit floats: results are those of float64, rounded, or the next numbers."""

import ml_dtypes
import numpy as np
import pytest
from infinicore.kernels.lang import narrow

from .functions import evaluated

special = pytest.importorskip("scipy.special")
TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def _lgamma(x):
    return np.where(x == -np.inf, np.inf, special.gammaln(x))


def _digamma(x):
    ends = np.where(x == 0, np.copysign(np.inf, -x), special.digamma(x))
    return np.where(x == -np.inf, np.nan, ends)


def _i(function):
    return lambda x: np.where(np.isinf(x), np.inf * np.sign(function(np.sign(x))), function(x))


ONE = {
    "log1p": np.log1p, "log1p_exp": lambda x: np.log1p(np.exp(x)), "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "sinh": np.sinh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "atan": np.arctan,
    "erfc": special.erfc, "erfinv": special.erfinv, "lgamma": _lgamma, "digamma": _digamma, "i0": _i(special.i0),
    "i0e": special.i0e, "i1": _i(special.i1), "i1e": special.i1e,
}  # fmt: skip
TWO = {"pow": np.power, "fmod": np.fmod, "remainder": np.remainder, "floor_divide": np.floor_divide}
NEAR_ROOTS = {"lgamma": 1e-6, "digamma": 6e-6}  # what is added up there is larger than the sum, up to 6


def numbers(dtype, bits):
    return bits.astype(np.uint16).view(TYPES[dtype]).astype(np.float32)


def in_vectors(function, *arrays):
    """Of 8 neighbours each, which take a branch together."""
    pieces = zip(*(np.split(x, len(x) // 8) for x in arrays))
    with np.errstate(all="ignore"):
        return np.concatenate([np.asarray(function(*piece), np.float32) for piece in pieces])


def steps_apart(got, want, dtype):
    """How many numbers of the type lie between; NaN is far from all others. What is less than normal may be 0."""
    with np.errstate(all="ignore"):
        rounded = [np.asarray(x).astype(TYPES[dtype]) for x in (got, want)]
    codes = [x.view(np.int16).astype(int) for x in rounded]
    places = [np.where(code < 0, -(code & 0x7FFF), code) for code in codes]
    missing = [np.isnan(x.astype(np.float32)) for x in rounded]
    apart = np.where(missing[0] | missing[1], 65536 * (missing[0] != missing[1]), np.abs(places[0] - places[1]))
    return np.where(np.abs(want) < 2.0**-126, 0, apart)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ONE)
def test_functions_of_all_numbers(name, dtype):
    x = numbers(dtype, np.arange(65536))
    if name == "log1p_exp":
        x = -np.abs(x)
    with np.errstate(all="ignore"):
        want = ONE[name](x.astype(np.float64))
    got = in_vectors(evaluated(getattr(narrow, f"_{name}")), x)
    close = np.abs(got - want) < NEAR_ROOTS.get(name, 0.0)
    large = np.abs(want) > 2.6e38  # of bfloat16 infinity is near
    assert np.all((steps_apart(got, want, dtype) <= 1) | close | large)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("kind", ["any", "normal", "whole"])
def test_functions_of_two(name, dtype, kind, rng):
    """Any bits, and numbers that no vector needs its other way for."""
    if kind == "any":
        x, y = numbers(dtype, rng.integers(0, 65536, (2, 80000)))
    else:
        x, y = (rng.standard_normal((2, 80000)) * 4).astype(TYPES[dtype]).astype(np.float32)
        y = np.round(y) if kind == "whole" else y
    with np.errstate(all="ignore"):
        want = TWO[name](x.astype(np.float64), y.astype(np.float64))
    got = in_vectors(evaluated(getattr(narrow, f"_{name}")), x, y)
    assert np.all(steps_apart(got, want, dtype) <= (1 if name == "pow" else 0))
