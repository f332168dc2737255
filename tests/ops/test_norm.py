"""Norms: mixed dtypes, strides, in place, cancellation, bad input. Values in each dtype are in `test_table.py`."""

import numpy as np
import pytest
from infinicore.kernels import OPS

import infinicore as ic


@pytest.fixture
def normal(rng):
    """Standard normal tensors of any shape."""
    return lambda *shape, dtype="float32": ic.from_numpy(rng.standard_normal(shape)).to(ic.dtype(dtype))


def wide(x):
    return x.to(ic.float64).numpy()


def close(result, expected, tolerance=1e-5):
    np.testing.assert_allclose(wide(result), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16", "float16"])
def test_weights_of_another_float(dtype, weight_dtype, normal):
    x, w, b = normal(5, 100, dtype=dtype), normal(100, dtype=weight_dtype), normal(100)
    close(ic.rms_norm(x, w), OPS["rms_norm"].ref(wide(x), wide(w)), 1e-2)
    close(ic.layer_norm(x, 100, w, b), OPS["layer_norm"].ref(wide(x), (100,), wide(w), wide(b)), 1e-2)
    assert ic.rms_norm(x, w).dtype is x.dtype


def test_rows_of_any_stride(normal):
    x, w = normal(7, 2, 300), normal(257)
    for view in (x[..., 20:277], x[::2, :, 1:258], x[:, 1, :257].unsqueeze(0).expand(3, 7, 257)):
        assert not view.is_contiguous()
        close(ic.rms_norm(view, w), OPS["rms_norm"].ref(wide(view), wide(w)))
        close(ic.layer_norm(view, (257,), w), OPS["layer_norm"].ref(wide(view), (257,), wide(w)))
        close(ic.add_rms_norm(view, view, w)[1], 2 * wide(view))
    one = w[:1].expand(257)  # a weight of stride 0
    close(ic.rms_norm(x[..., :257], one), OPS["rms_norm"].ref(wide(x)[..., :257], wide(one)))


def test_in_place(normal):
    w = normal(100)
    for function in (lambda x, **o: ic.rms_norm(x, w, **o), lambda x, **o: ic.layer_norm(x, (100,), w, w, **o)):
        x = normal(6, 100)
        expected = wide(function(x))
        assert function(x, out=x) is x
        np.testing.assert_array_equal(wide(x), expected)
        x = normal(6, 110)
        view = x[:, 5:105]
        expected = wide(function(view))
        function(view, out=view)
        np.testing.assert_array_equal(wide(view), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_residual_is_the_rounded_sum(dtype, normal):
    a, b, w = normal(9, 100, dtype=dtype), normal(9, 100, dtype=dtype), normal(100, dtype=dtype)
    y, total = ic.add_rms_norm(a, b, w)
    np.testing.assert_array_equal(wide(total), wide(a + b))
    np.testing.assert_array_equal(wide(y), wide(ic.rms_norm(a + b, w)))
    first, second = ic.add_rms_norm(a, b, w, out=b, residual=a)
    assert first is b and second is a
    np.testing.assert_array_equal(wide(a), wide(total))
    np.testing.assert_array_equal(wide(b), wide(y))
    with pytest.raises(ValueError, match=r"same memory"):
        ic.add_rms_norm(a, b, w, out=a, residual=a)


def test_large_means_do_not_cancel(rng):
    x = (rng.standard_normal((3, 1000)) + 1e4).astype(np.float32)
    expected = OPS["layer_norm"].ref(x.astype(np.float64), (1000,))
    close(ic.layer_norm(ic.from_numpy(x), 1000), expected, 2e-3)


@pytest.mark.parametrize("size", [5, 768, 4097])
def test_equal_elements_have_no_variance(size):
    x = ic.full((2, size), 1000.1)
    assert not ic.nn.functional.layer_norm(x, (size,)).numpy().any() and not ic.var(x, -1).numpy().any()
    assert not ic.nn.functional.group_norm(x.unsqueeze(-1), 1).numpy().any() and not ic.std(x, 0).numpy().any()
    assert (ic.var_mean(x, -1)[1].numpy() == np.float32(1000.1)).all()


def test_the_mean_of_an_infinite_element_is_infinite():
    for first in (np.inf, 1.0):
        x = np.array([first, -np.inf if first == 1.0 else 2.0, 3.0], np.float32)
        assert ic.var_mean(ic.from_numpy(x), correction=0)[1].item() == x.sum()


def test_large_values_in_half_precision_do_not_overflow():
    x = ic.full((2, 64), 60000.0, dtype=ic.float16)
    close(ic.rms_norm(x, ic.ones(64, dtype=ic.float16)), np.ones((2, 64)), 1e-3)


def test_nan_and_nothing(normal):
    x = normal(4, 50)
    x[1, 3] = float("nan")
    got = wide(ic.rms_norm(x, ic.ones(50)))
    assert np.isnan(got[1]).all() and not np.isnan(got[[0, 2, 3]]).any()
    assert ic.rms_norm(ic.empty(0, 8), ic.ones(8)).shape == (0, 8)
    assert ic.layer_norm(ic.empty(3, 0), (0,)).shape == (3, 0)


def test_threads_give_the_same_bits(normal):
    x, w = normal(600, 512), normal(512)
    before = ic.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            ic.set_num_threads(count)
            results.append([wide(ic.rms_norm(x, w)), wide(ic.add_rms_norm(x, x, w)[0]), wide(ic.layer_norm(x, 512, w))])
        for one, two in zip(*results):
            np.testing.assert_array_equal(one, two)
    finally:
        ic.set_num_threads(before)


def test_bad_input(normal):
    x, w = normal(4, 8), normal(8)
    with pytest.raises(ValueError, match=r"`weight`.*\(8,\).*\(4,\)"):
        ic.rms_norm(x, normal(4))
    with pytest.raises(TypeError, match=r"`weight`.*float64"):
        ic.rms_norm(x, normal(8, dtype="float64"))
    with pytest.raises(TypeError, match=r"`input`.*int64"):
        ic.rms_norm(ic.arange(8), w)
    with pytest.raises(TypeError, match=r"`weight`.*NoneType"):
        ic.rms_norm(x, None)
    with pytest.raises(ValueError, match=r"at least one dim"):
        ic.rms_norm(ic.tensor(1.0), w)
    with pytest.raises(ValueError, match=r"one shape and dtype"):
        ic.add_rms_norm(x, normal(3, 8), w)
    for shape in ((), 7, (8, 4), (2, 4, 8)):
        with pytest.raises(ValueError, match=r"`normalized_shape`"):
            ic.layer_norm(x, shape)
    with pytest.raises(ValueError, match=r"`out`"):
        ic.rms_norm(x, w, out=ic.empty(4, 9))
    with pytest.raises(TypeError, match=r"`out`"):
        ic.rms_norm(x, w, out=ic.empty(4, 8, dtype=ic.float64))
