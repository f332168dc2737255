"""Kernels called from NumPy and from a user's own Numba code."""

import numpy as np
import pytest
from infinicore.kernels import arrays
from numba import njit
from numba.core.errors import TypingError


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_functions_on_arrays(dtype, tolerance, rng):
    x = rng.standard_normal((5, 37)).astype(dtype)
    weight = rng.standard_normal((19, 37)).astype(dtype)
    out = np.empty_like(x)
    arrays.rms_norm(x, weight[0], 1e-6, out)
    expected = x / np.sqrt(np.mean(x.astype("f8") ** 2, 1, keepdims=True) + 1e-6) * weight[0]
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)
    arrays.softmax(x, out)
    np.testing.assert_allclose(out, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=tolerance)
    product = np.empty((5, 19), dtype)
    arrays.linear(x, weight, product)
    np.testing.assert_allclose(product, x.astype("f8") @ weight.T, rtol=10 * tolerance, atol=10 * tolerance)
    arrays.exp(x, x)
    assert np.all(x > 0)


def test_from_user_code(rng):
    @njit
    def step(x, weight, out):
        arrays.rms_norm(x, weight, 1e-6, out)
        arrays.tanh(out, out)
        arrays.softmax(out, out)

    x, weight = rng.standard_normal((3, 20)), np.ones(20)
    out = np.empty_like(x)
    step(x, weight, out)
    np.testing.assert_allclose(out.sum(1), 1, rtol=1e-12)


def test_wrong_arrays(rng):
    x = rng.standard_normal((4, 6))
    with pytest.raises(ValueError, match="shape of `x`"):
        arrays.softmax(x, np.empty((4, 5)))
    with pytest.raises(TypingError, match="C-contiguous"):
        arrays.softmax(x.T, np.empty((6, 4)))
