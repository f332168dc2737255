"""Orthogonal polynomials, Bessel and Airy functions beside SciPy: ends, seams of methods, large degrees."""

import numpy as np
import pytest

import infinicore as ic

special = pytest.importorskip("scipy.special")


@pytest.mark.parametrize("name, ours", [("k0", "modified_bessel_k0"), ("k1", "modified_bessel_k1"),
                                        ("k0e", "scaled_modified_bessel_k0"),
                                        ("k1e", "scaled_modified_bessel_k1")])  # fmt: skip
def test_bessel_of_the_second_kind(name, ours):
    x = np.concatenate([[0.0, -1.0, np.inf, np.nan, 1e-300], np.linspace(1e-3, 2.5, 99), np.linspace(1.9, 60, 99)])
    got = getattr(ic.special, ours)(ic.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, getattr(special, name)(x), rtol=1e-13, atol=1e-300)


def test_airy_and_quantiles():
    x = np.concatenate([np.linspace(-30, 20, 501), [-3.0, 3.0, 100.0]])
    np.testing.assert_allclose(ic.special.airy_ai(ic.from_numpy(x)).numpy(), special.airy(x)[0], rtol=1e-11, atol=1e-13)
    assert np.isnan(ic.special.airy_ai(ic.tensor([np.inf, -np.inf, np.nan])).numpy()).all()
    p = np.concatenate(
        [[0.0, 1.0, -0.1, 1.1, 0.5, np.nan], np.linspace(1e-9, 1 - 1e-9, 99), 10.0 ** -np.arange(1, 300, 9)]
    )
    np.testing.assert_allclose(ic.special.ndtri(ic.from_numpy(p)).numpy(), special.ndtri(p), rtol=3e-15, atol=1e-15)


def test_degrees():
    x = np.array([0.3, -0.7, 1.0, 1.1, 0.3, 0.3, 0.3])
    n = np.array([200.0, 31.0, 7.0, 12.0, -1.0, 2.9, np.inf])
    got = ic.special.chebyshev_polynomial_t(ic.from_numpy(x), ic.from_numpy(n)).numpy()
    wanted = [*special.eval_chebyt([200, 31, 7, 12], x[:4]), 0.0, special.eval_chebyt(2, 0.3), np.nan]
    np.testing.assert_allclose(got, wanted, rtol=1e-11)
    assert ic.special.legendre_polynomial_p(ic.tensor([1, 2]), 2).tolist() == [1.0, 5.5]
