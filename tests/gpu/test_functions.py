"""Functions of rules on GPUs, of all 16-bit floats: results are those of float64, rounded, or the next numbers."""

import ml_dtypes
import numpy as np
import pytest
from infinicore.kernels.lang import bessel, division, gpu, inverse, narrow, vmath, wide
from infinicore.kernels.lang import special as lang_special

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
    "exp2": np.exp2, "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos,
    "sinh": np.sinh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "atan": np.arctan,
    "erfc": special.erfc, "erfinv": special.erfinv, "lgamma": _lgamma, "digamma": _digamma, "i0": _i(special.i0),
    "i0e": special.i0e, "i1": _i(special.i1), "i1e": special.i1e,
}  # fmt: skip
TWO = {
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "pow": np.power,
    "fmod": np.fmod,
    "remainder": np.remainder,
    "floor_divide": np.floor_divide,
}
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
    with np.errstate(all="ignore"):
        close = np.abs(got - want) < NEAR_ROOTS.get(name, 0.0)
    large = np.abs(want) > 2.6e38  # of bfloat16 infinity is near
    assert np.all((steps_apart(got, want, dtype) <= 1) | close | large)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("kind", ["any", "normal", "whole"])
def test_functions_of_two(name, dtype, kind, rng):
    """Any bits, and numbers that no vector needs its other way for."""
    if kind == "any":
        x, y = numbers(dtype, rng.integers(0, 65536, (2, 20000)))
    else:
        x, y = (rng.standard_normal((2, 20000)) * 4).astype(TYPES[dtype]).astype(np.float32)
        y = np.round(y) if kind == "whole" else y
    with np.errstate(all="ignore"):
        want = TWO[name](x.astype(np.float64), y.astype(np.float64))
    got = in_vectors(evaluated(getattr(narrow, f"_{name}")), x, y)
    assert np.all(steps_apart(got, want, dtype) <= (1 if name in ("pow", "atan2", "hypot") else 0))


# ---- float32 ----------------------------------------------------------------------------------------


def _trigamma(x):
    sine = np.sin(np.pi * (x - np.round(x)))
    sums = special.zeta(2, np.where(x > 0, x, 1 - x))
    found = np.where(x > 0, sums, (np.pi / sine) ** 2 - sums)
    return np.where((x <= 0) & (x == np.floor(x)), np.inf, found)


# Function, the numbers that it is for, and units in the last place.
FLOAT32 = {
    "sin": (gpu.sin, np.sin, 65535, 2), "cos": (gpu.cos, np.cos, 65535, 2), "tan": (gpu.tan, np.tan, 65535, 4),
    "log1p": (vmath._log1p_f32_gpu, np.log1p, 1e38, 2), "asinh": (inverse._asinh_f32_gpu, np.arcsinh, 1e38, 5),
    "acosh": (inverse._acosh_f32_gpu, np.arccosh, 1e38, 5), "atanh": (inverse._atanh_f32_gpu, np.arctanh, 1.0, 5),
    "erfc": (wide._erfc_f32_gpu, special.erfc, 9.0, 5),
    "erfinv": (lang_special._erfinv_f32_gpu, special.erfinv, 1.0, 5),
    "i0": (gpu.i0, _i(special.i0), 90, 5),
    "i0e": (gpu.i0e, special.i0e, 1e30, 5), "i1": (gpu.i1, _i(special.i1), 90, 5),
    "i1e": (gpu.i1e, special.i1e, 1e30, 5), "trigamma": (gpu.trigamma, _trigamma, 100, 5),
}  # fmt: skip
FLOAT32 |= {
    "digamma": (lang_special._digamma_f32_gpu, _digamma, 100, 5),
    "ndtri": (bessel._ndtri_f32_gpu, special.ndtri, 1.0, 5),
    "k0": (bessel._k0_f32, special.k0, 80, 5), "k1": (bessel._k1_f32, special.k1, 80, 5),
    "k0e": (bessel._k0e_f32, special.k0e, 1e30, 5), "k1e": (bessel._k1e_f32, special.k1e, 1e30, 5),
}  # fmt: skip
ENDS = {"log1p": (-1.0, np.inf, -2.0), "asinh": (np.inf, -np.inf, 3e38), "acosh": (1.0, np.inf, -np.inf, 3e38),
        "digamma": (0.0, -1.0, np.inf, -np.inf, 3e38), "ndtri": (0.0, 1.0, 2.0), "k0": (np.inf,), "k1": (np.inf,),
        "atanh": (1.0, -1.0, 2.0, -2.0, np.inf), "erfc": (np.inf, -np.inf), "erfinv": (1.0, -1.0, 2.0, -np.inf),
        "i0": (np.inf, -np.inf, 100.0), "i1": (np.inf, -np.inf, -100.0),
        "i0e": (np.inf, -np.inf), "i1e": (np.inf, -np.inf), "trigamma": (0.0, -3.0, np.inf)}  # fmt: skip


@pytest.mark.parametrize("name", FLOAT32)
def test_functions_of_float32(name, rng):
    """Near 0, everywhere, and of all sizes; the ends of what there is."""
    function, reference, most, room = FLOAT32[name]
    tiny = np.exp(rng.uniform(-60, 0, 2000)) * rng.choice((-1, 1), 2000)
    x = np.concatenate([rng.standard_normal(8000) * 3, rng.uniform(-most, most, 8000), tiny]).astype(np.float32)
    x = np.concatenate([x, np.resize([0.0, -0.0, np.nan, *ENDS.get(name, ())], 8).astype(np.float32)])
    got = in_vectors(evaluated(function), x)
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64))
        rounded = want.astype(np.float32)
    here = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~here], rounded[~here])
    apart = np.abs(got[here].astype(np.float64) - want[here]) / np.spacing(np.abs(rounded[here])).astype(np.float64)
    assert apart.max() <= room
    if name in ("log1p", "asinh", "atanh", "erfinv", "i1", "i1e"):
        assert np.all(np.signbit(got[x == 0]) == np.signbit(x[x == 0]))


@pytest.mark.parametrize("kind", ["any", "normal", "whole", "positive", "large"])
def test_powers_of_float32(kind, rng):
    """Whichever way a vector goes; of positive numbers, results of all sizes."""
    if kind == "any":
        x, y = rng.integers(0, 1 << 32, (2, 80000), dtype=np.uint32).view(np.float32)
    else:
        x, y = rng.standard_normal((2, 80000)) * 4
        y = np.round(y) if kind == "whole" else y
        x = np.exp(rng.uniform(-80, 80, 80000)) if kind == "large" else np.abs(x) if kind == "positive" else x
        y = rng.uniform(-87, 87, 80000) / np.abs(np.log(x)) if kind == "large" else y
        x[:9], y[:9] = (0, -0.0, 1, -1, 1e-40, np.inf, -np.inf, np.nan, 1), (0, 3, np.inf, np.inf, 2, -1, 3, 0, np.nan)
        x[9000:9800], y[9000:9800] = 1 + rng.uniform(-1e-6, 1e-6, 800), rng.uniform(-1e7, 1e7, 800)
        x, y = x.astype(np.float32), y.astype(np.float32)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
        got, rounded = in_vectors(evaluated(gpu.pow), x, y), want.astype(np.float32)
    here = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~here], rounded[~here])
    apart = np.abs(got[here].astype(np.float64) - want[here]) / np.spacing(np.abs(rounded[here])).astype(np.float64)
    assert apart.max() <= 4  # 3.6 of half a million; and 2 that an exponential of the hardware may be wrong


def test_log_gamma_of_positive_float32(rng):
    """Where its polynomials meet, around its zeros, of all sizes; and the ends."""
    pieces = [rng.uniform(0, 12, 40000), np.exp(rng.uniform(-60, 80, 20000)), 1 + rng.standard_normal(8000) / 50]
    x = np.concatenate([*pieces, pieces[-1] + 1, np.resize([0.0, 1.0, 2.0, np.inf, np.nan, 3e38], 8)])
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        logarithm, want = np.log(x.astype(np.float64)).astype(np.float32), _lgamma(x.astype(np.float64))
        rounded = want.astype(np.float32)
    got = in_vectors(evaluated(gpu.lgamma_of_positive), x, logarithm)
    here = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~here], rounded[~here])
    np.testing.assert_array_equal(got[rounded == 0], 0.0)
    assert (np.abs(got[here] - want[here]) / np.spacing(np.abs(rounded[here])).astype(np.float64)).max() <= 4


@pytest.mark.parametrize("name", ["fmod", "floor_divide"])
@pytest.mark.parametrize("kind", ["any", "normal", "whole"])
def test_quotients_of_float32(name, kind, rng):
    """As NumPy or the CPU has them, whichever way a vector goes; the signs of zeros, too."""
    if kind == "any":
        x, y = rng.integers(0, 1 << 32, (2, 20000), dtype=np.uint32).view(np.float32)
    else:
        x, y = (rng.standard_normal((2, 20000)) * 40).astype(np.float32)
        x, y = (np.round(x), np.round(y)) if kind == "whole" else (x, y)
    with np.errstate(all="ignore"):
        want = (np.fmod if name == "fmod" else evaluated(division._floor_divide_floats))(x, y)
    got = in_vectors(evaluated(getattr(division, f"_{name}_f32_gpu")), x, y)
    np.testing.assert_array_equal(got, want)
    zero = want == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


def test_whole_quotients(rng):
    """Of numbers below 2^20: all near the ends, multiples of the divisor and what is beside them."""
    a = np.concatenate([rng.integers(0, 1 << 20, 40000), np.arange((1 << 20) - 4000, 1 << 20)])
    b = np.concatenate([rng.integers(1, 1 << 20, 20000), rng.integers(1, 40, 24000)])
    multiples = a // b * b
    for one in (a, multiples, np.maximum(multiples - 1, 0), np.minimum(multiples + 1, (1 << 20) - 1)):
        n, rest = evaluated(gpu.whole_part)(one.astype(np.float32), b.astype(np.float32))
        np.testing.assert_array_equal(n, one // b)
        np.testing.assert_array_equal(rest, one % b)
    common = evaluated(division._short_euclid)(a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_array_equal(common, np.gcd(a, b))
