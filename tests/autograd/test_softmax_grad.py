"""Gradients of softmax, its logarithm, its causal form, of gated activations and of limits."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import autograd

INF, NAN = float("inf"), float("nan")
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}


def leaf(array, dtype="float64"):
    return ic.from_numpy(np.array(array)).to(ic.dtype(dtype)).requires_grad_()


def wide(x):
    return x.detach().to(ic.float64).numpy()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_against_pytorch(name, dtype, rng):
    torch = pytest.importorskip("torch")
    for shape, dims in (((3, 70), (0, 1)), ((2, 5, 37, 3), (0, 1, 2, -1)), ((2, 5000), (-1,)), ((), (0,))):
        for dim in dims:
            x, g = leaf(3 * rng.standard_normal(shape), dtype), rng.standard_normal(shape)
            g = ic.from_numpy(np.asarray(g)).to(ic.dtype(dtype))
            t = torch.from_numpy(wide(x)).requires_grad_()
            getattr(ic, name)(x, dim).backward(g)
            getattr(torch, name)(t, dim).backward(torch.from_numpy(wide(g)))
            scale = max(1.0, float(t.grad.abs().max()))  # log_softmax: sums of g as large as the dim
            tolerance = TOLERANCE[dtype]
            np.testing.assert_allclose(wide(x.grad), t.grad.numpy(), rtol=tolerance, atol=tolerance * scale)


def test_hidden_places_get_no_gradient(rng):
    x = leaf(rng.standard_normal((2, 4, 6)))
    ic.causal_softmax(x).backward(ic.from_numpy(rng.standard_normal((2, 4, 6))))
    hidden = np.triu(np.ones((4, 6), bool), 3)
    assert (wide(x.grad)[:, hidden] == 0).all() and np.abs(wide(x.grad)[:, ~hidden]).min() > 0
    x = leaf([[0.0, -INF, 1.0, -INF]], "float32")
    ic.softmax(x, -1).backward(ic.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert np.isfinite(wide(x.grad)).all() and wide(x.grad)[0, 1] == 0
    x = leaf([[0.0, NAN, 1.0], [0.0, 1.0, 2.0]], "float32")
    ic.log_softmax(x, -1).backward(ic.ones(2, 3))
    assert np.isnan(wide(x.grad)[0]).all() and np.isfinite(wide(x.grad)[1]).all()


def test_gradients_of_any_layout_and_in_place(rng):
    y = ic.softmax(ic.from_numpy(rng.standard_normal((6, 50))), -1)
    g = ic.from_numpy(rng.standard_normal((50, 6))).transpose(0, 1)
    for name in ("softmax_backward", "log_softmax_backward"):
        function = getattr(ic, name)
        expected = wide(function(g.contiguous(), y))
        np.testing.assert_array_equal(wide(function(g, y)), expected)
        for target in (0, 1):
            given = [g.contiguous(), y.clone()]
            assert function(*given, out=given[target]) is given[target]
            np.testing.assert_array_equal(wide(given[target]), expected)
    with pytest.raises(ValueError, match=r"`g`.*\(6, 50\).*\(6, 49\)"):
        ic.softmax_backward(g[:, :49], y)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_silu_and_mul(dtype, rng):
    torch = pytest.importorskip("torch")
    x, g = leaf(4 * rng.standard_normal((5, 2 * 67)), dtype), rng.standard_normal((5, 67))
    g = ic.from_numpy(g).to(ic.dtype(dtype))
    t = torch.from_numpy(wide(x)).requires_grad_()
    ic.silu_and_mul(x).backward(g)
    gate, value = t.chunk(2, -1)
    (torch.nn.functional.silu(gate) * value).backward(torch.from_numpy(wide(g)))
    np.testing.assert_allclose(wide(x.grad), t.grad.numpy(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    far = leaf([[100.0, -100.0, -1e4, 1.0, 1.0, 1.0]], "float32")
    ic.silu_and_mul(far).sum().backward()
    np.testing.assert_allclose(wide(far.grad), [[1, 0, 0, 100, 0, 0]], atol=1e-30)
    with pytest.raises(ValueError, match=r"`g`.*2 d.*\(5, 66\).*\(5, 134\)"):
        ic.silu_and_mul_backward(g[:, :66], x)


def test_first_and_second_derivatives(rng):
    x, square = leaf(rng.standard_normal((3, 4))), leaf(rng.standard_normal((2, 3, 3)))
    for function, given in (
        (lambda x: ic.softmax(x, 0), x),
        (lambda x: ic.log_softmax(x, -1), x),
        (ic.causal_softmax, square),
        (ic.silu_and_mul, x),
    ):
        assert autograd.gradcheck(function, given)
        assert autograd.gradgradcheck(function, given)


def test_clamp_stops_gradients_outside_of_its_limits():
    x = leaf([-2.0, -1.0, 0.0, 1.0, 2.0, NAN])
    for options, expected in (
        ({"min": -1.0, "max": 1.0}, [0, 1, 1, 1, 0, 0]),
        ({"min": 0.0}, [0, 0, 1, 1, 1, 0]),
        ({"max": 0.0}, [1, 1, 1, 0, 0, 0]),
    ):
        x.grad = None
        ic.clamp(x, **options).sum().backward()
        np.testing.assert_array_equal(wide(x.grad), expected)
