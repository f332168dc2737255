"""Batch norm and group norm beside torch: values, running statistics, gradients, second derivatives; bad input."""

import numpy as np
import pytest

import infinicore as ic
from infinicore.autograd import gradcheck, gradgradcheck

torch = pytest.importorskip("torch")
functional = torch.nn.functional

TOLERANCE = {"float32": 5e-6, "float64": 1e-13, "bfloat16": 1.6e-2, "float16": 2e-3}


def run(module, function, make, x, factors, g):
    """(result, gradients of x and of the factors) as float64 arrays."""
    given = [make(a).requires_grad_() for a in (x, *factors)]
    y = function(*given)
    gradients = module.autograd.grad(y, given, make(g))
    return [a.detach().numpy().astype(np.float64) for a in (y, *gradients)]


def wide(a):
    return torch.from_numpy(a.astype(np.float64))


def assert_close(found, wanted, dtype):
    for one, two in zip(found, wanted):
        np.testing.assert_allclose(one, two, rtol=0, atol=TOLERANCE[dtype] * max(1.0, np.abs(two).max()))


SHAPES = [(9, 5), (4, 3, 17), (3, 17, 9, 11), (2, 3, 1, 130)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(dtype, training, rng):
    for shape in SHAPES:
        c, kind = shape[1], ic.dtype(dtype).numpy
        narrow = dtype in ("bfloat16", "float16")
        x, g = ((rng.standard_normal(shape) * 2 + 1).astype(kind) for _ in range(2))
        factors = [rng.standard_normal(c).astype(np.float32 if narrow else kind) for _ in range(2)]
        mean, var = rng.standard_normal(c), rng.uniform(0.5, 2, c)
        running = [ic.from_numpy(a.astype(factors[0].dtype)) for a in (mean, var)]
        torch_running = [wide(a.numpy()) for a in running]
        options = {"training": training, "momentum": 0.3, "eps": 1e-4}
        ours = lambda x, w, b: ic.batch_norm(x, *running, w, b, **options)
        theirs = lambda x, w, b: functional.batch_norm(x, *torch_running, w, b, **options)
        assert_close(run(ic, ours, ic.from_numpy, x, factors, g), run(torch, theirs, wide, x, factors, g), dtype)
        assert_close([a.numpy() for a in running], [a.numpy() for a in torch_running], "float32")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_group_norm(dtype, rng):
    for shape, groups in (((3, 6), 2), ((2, 6, 130), 3), ((2, 34, 5, 9), 2), ((2, 5, 4, 4), 5)):
        kind = ic.dtype(dtype).numpy
        x, g = ((rng.standard_normal(shape) * 2 + 1).astype(kind) for _ in range(2))
        factors = [rng.standard_normal(shape[1]).astype(kind) for _ in range(2)]
        ours = lambda x, w, b: ic.group_norm(x, groups, w, b, 1e-4)
        theirs = lambda x, w, b: functional.group_norm(x, groups, w, b, 1e-4)
        assert_close(run(ic, ours, ic.from_numpy, x, factors, g), run(torch, theirs, wide, x, factors, g), dtype)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(5, 2), (2, 2, 3, 2)])
def test_derivatives_of_batch_norm(shape, training, rng):
    given = [ic.from_numpy(rng.standard_normal(s)).requires_grad_() for s in (shape, shape[1:2], shape[1:2])]
    mean, var = ic.from_numpy(rng.standard_normal(2)), ic.from_numpy(rng.uniform(0.5, 2, 2))
    function = lambda x, w, b: ic.batch_norm(x, mean.clone(), var.clone(), w, b, training=training)
    assert gradcheck(function, given)
    assert gradgradcheck(function, given)


def test_derivatives_of_group_norm(rng):
    given = [ic.from_numpy(rng.standard_normal(s)).requires_grad_() for s in ((2, 4, 3), (4,), (4,))]
    function = lambda x, w, b: ic.group_norm(x, 2, w, b)
    assert gradcheck(function, given)
    assert gradgradcheck(function, given)


def test_without_weight_and_running_statistics(rng):
    x = ic.from_numpy(rng.standard_normal((4, 3, 5)).astype(np.float32)).requires_grad_()
    y = ic.batch_norm(x, None, None, training=True)
    np.testing.assert_allclose(y.detach().numpy().var((0, 2)), 1, rtol=1e-4)
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 0, atol=1e-6)


def test_a_large_mean_costs_no_accuracy(rng):
    """The variance is a pass of its own: E[x^2] - mean^2 would leave no digit of it."""
    x = (rng.standard_normal((4, 2, 300)) + 1e4).astype(np.float32)
    exact = x.astype(np.float64)
    wanted = (exact - exact.mean((0, 2), keepdims=True)) / np.sqrt(exact.var((0, 2), keepdims=True) + 1e-5)
    y = ic.batch_norm(ic.from_numpy(x), None, None, training=True).numpy()
    np.testing.assert_allclose(y, wanted, atol=2e-3)
    y = ic.group_norm(ic.from_numpy(x), 2).numpy()
    wanted = (exact - exact.mean(2, keepdims=True)) / np.sqrt(exact.var(2, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, wanted, atol=2e-3)


@pytest.mark.parametrize(
    "function, words",
    [
        (lambda x: ic.batch_norm(x[:1, :, 0], None, None, training=True), "more than one value"),
        (lambda x: ic.batch_norm(x, None, None), "unless `training`"),
        (lambda x: ic.batch_norm(x, ic.zeros(4), None, training=True), "both `running_mean`"),
        (lambda x: ic.batch_norm(x, ic.zeros(3), ic.zeros(3)), "must have shape"),
        (lambda x: ic.batch_norm(x[0, 0], None, None, training=True), r"\[N, C, \*\]"),
        (lambda x: ic.group_norm(x, 3), "3 groups"),
        (lambda x: ic.group_norm(x, 2, ic.zeros(3)), "must have shape"),
    ],
)
def test_bad_input(function, words):
    with pytest.raises(ValueError, match=words):
        function(ic.zeros((2, 4, 5)))
