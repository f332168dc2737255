"""Softmax: special values, every dim, strides, in place, long rows, the causal mask, bad input."""

import numpy as np
import pytest
from infinicore.kernels import OPS

import infinicore as ic

INF, NAN = float("inf"), float("nan")
FUNCTIONS = ["softmax", "log_softmax"]


@pytest.fixture
def normal(rng):
    """Normal tensors of any shape."""
    return lambda *shape, dtype="float32": ic.from_numpy(4 * rng.standard_normal(shape)).to(ic.dtype(dtype))


def wide(x):
    return x.to(ic.float64).numpy()


def close(result, expected, tolerance=1e-5):
    np.testing.assert_allclose(wide(result), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_special_values(name, dtype):
    rows = np.array([[0, 1, NAN, 2], [-INF] * 4, [INF, 0, 1, 2], [-INF, 0, -INF, 0], [-1e4, 0, 88, 3]])
    for x, dim in ((rows, 1), (np.tile(rows, (1, 20)), -1), (rows.T.copy(), 0)):
        with np.errstate(all="ignore"):
            given = ic.from_numpy(x).to(ic.dtype(dtype))
            expected = OPS[name].ref(wide(given), dim)
        bad = np.isnan(expected).any(dim, keepdims=True)  # a slice is NaN as a whole
        got = wide(getattr(ic, name)(given, dim))
        np.testing.assert_allclose(got, np.where(bad, NAN, expected), 1e-2 if dtype == "bfloat16" else 1e-5, 1e-37)
        if name == "softmax":
            assert (got[~np.isnan(got) & np.isneginf(x)] == 0).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_dim_of_any_layout(name, normal):
    x = normal(3, 5, 37, 6)
    for view in (x, x.permute(2, 0, 3, 1), x[:, 1:3, ::3], x[:1].expand(4, 5, 37, 6)):
        for dim in range(-4, 4):
            close(getattr(ic, name)(view, dim), OPS[name].ref(wide(view), dim))


@pytest.mark.parametrize("name", [*FUNCTIONS, "causal_softmax"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_place(name, dtype, normal):
    for shape, dims in (((7, 300), (0, 1)), ((2, 3, 9000), (1, 2))):
        for dim in dims if name in FUNCTIONS else (None,):
            options = {} if dim is None else {"dim": dim}
            x = normal(*shape, dtype=dtype)
            expected = wide(getattr(ic, name)(x, **options))
            assert getattr(ic, name)(x, **options, out=x) is x
            np.testing.assert_array_equal(wide(x), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_long_rows(name, dtype, normal):
    x = normal(3, 20011, dtype=dtype)
    close(
        getattr(ic, name)(x, -1),
        OPS[name].ref(wide(x), -1),
        {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}[dtype],
    )


def test_sums_are_one(normal):
    np.testing.assert_allclose(wide(ic.softmax(normal(50, 1000), -1)).sum(-1), 1, rtol=1e-6)


def test_causal_mask_keeps_the_lower_part(normal):
    x = normal(2, 5, 9)
    got = wide(ic.causal_softmax(x))
    for row in range(5):
        visible = 9 - 5 + row + 1
        assert (got[:, row, visible:] == 0).all() and (got[:, row, :visible] > 0).all()
    x[:, :, 8] = NAN  # hidden from all rows but the last
    got = wide(ic.causal_softmax(x))
    assert not np.isnan(got[:, :4]).any() and np.isnan(got[:, 4]).all()
    view = normal(5, 2, 4, 30).transpose(0, 1)[..., :7]
    close(ic.causal_softmax(view), OPS["causal_softmax"].ref(wide(view)))


def test_scalars_and_nothing():
    assert ic.softmax(ic.tensor(3.0), 0).item() == 1
    assert ic.log_softmax(ic.tensor(3.0), 0).item() == 0
    assert ic.softmax(ic.empty(3, 0), 1).shape == (3, 0)
    assert ic.softmax(ic.empty(0, 3), 0).shape == (0, 3)
    assert ic.softmax(ic.empty(3, 0), 0).shape == (3, 0)


def test_bad_input(normal):
    x = normal(3, 4)
    with pytest.raises(IndexError, match=r"`dim`"):
        ic.softmax(x, 2)
    with pytest.raises(TypeError, match=r"`dim`"):
        ic.softmax(x, 0.5)
    with pytest.raises(TypeError, match=r"`input`.*int64"):
        ic.softmax(ic.arange(4), 0)
    with pytest.raises(TypeError, match=r"`input`.*list"):
        ic.softmax([1.0, 2.0], 0)
    for name in FUNCTIONS:
        for call in (lambda: getattr(ic, name)(x), lambda: getattr(x, name)()):
            with pytest.raises(TypeError, match="dim"):
                call()
    with pytest.raises(ValueError, match=r"S = 4 and T = 3"):
        ic.causal_softmax(normal(4, 3))
    with pytest.raises(ValueError, match=r"two dims"):
        ic.causal_softmax(normal(4))
