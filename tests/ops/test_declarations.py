"""Ops of each kind, declared here: what a row is enough for, without a kernel, a paragraph or a second place."""

import inspect

import numpy as np
import pytest
from infinicore.kernels import ALIASES, OPS
from infinicore.kernels.lang import scalar_math as m
from infinicore.kernels.table.composite import composite
from infinicore.kernels.table.loss import loss
from infinicore.kernels.table.registry import ALL, elementwise

import infinicore as ic
from infinicore import autograd

FLOATS = ["float32", "float64", "bfloat16", "float16"]
ROUGH = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 2e-2, "float16": 2e-3}


def test_no_name_stands_for_two_ops():
    assert not set(ALIASES) & set(OPS)


def layouts(array):
    """The same values as tensors of several layouts."""
    wide = ic.zeros(*array.shape[:-1], array.shape[-1] + 3, dtype=array.dtype.name)
    wide[..., : array.shape[-1]] = ic.from_numpy(array)
    return ic.from_numpy(array), ic.from_numpy(np.array(array, order="F")), wide[..., : array.shape[-1]]


def rounded(rng, dtype, *shape, low=0.5, high=3.0):
    return rng.uniform(low, high, shape).astype(ic.dtype(dtype).numpy)


def close(ours, expected, dtype):
    assert ours.dtype is ic.dtype(dtype) and tuple(ours.shape) == np.shape(expected)
    np.testing.assert_allclose(ours.numpy().astype("f8"), expected, rtol=ROUGH[dtype], atol=ROUGH[dtype])


def check_derivative(function, arrays, rng, eps=1e-6):
    """First and second derivative in float64 along a random direction, against finite differences."""

    def value(inputs):
        y = function(*inputs)
        return (y * y).sum()

    def slope(inputs):
        return sum((g * g).sum() for g in autograd.grad(value(inputs), inputs, create_graph=True))

    directions = [rng.standard_normal(a.shape) for a in arrays]
    for quantity in (value, slope):
        inputs = [ic.from_numpy(a.copy()).requires_grad_() for a in arrays]
        found = autograd.grad(quantity(inputs), inputs)
        analytic = sum(float(np.vdot(g.numpy(), v)) for g, v in zip(found, directions))
        sides = []
        for step in (eps, -eps):
            moved = [ic.from_numpy(a + step * v).requires_grad_() for a, v in zip(arrays, directions)]
            sides.append(quantity(moved).item())
        np.testing.assert_allclose(analytic, (sides[0] - sides[1]) / (2 * eps), rtol=1e-5, atol=1e-6)


# ---- an elementwise op with a default ---------------------------------------------------------------


def declare_addcdiv(make):
    @elementwise(ref=lambda x, a, b, value=1.0: x + value * a / b)
    def add_ratio(input, tensor1, tensor2, value=1.0):
        """input + value * tensor1 / tensor2."""
        return input + value * tensor1 / tensor2

    @add_ratio.grad("input")
    def _(g):
        return g

    @add_ratio.grad("tensor1")
    def _(g, tensor2, value):
        return g * value / tensor2

    @add_ratio.grad("tensor2")
    def _(g, tensor1, tensor2, value):
        return -g * value * tensor1 / (tensor2 * tensor2)

    return add_ratio, make(add_ratio)


@pytest.mark.parametrize("dtype", FLOATS)
def test_elementwise_with_a_default(declared, dtype, rng):
    op, add_ratio = declare_addcdiv(declared)
    arrays = [rounded(rng, dtype, 3, 17) for _ in range(3)]
    wide = [a.astype("f8") for a in arrays]
    for tensors in zip(*map(layouts, arrays)):
        close(add_ratio(*tensors), op.ref(*wide), dtype)
        close(add_ratio(*tensors, 0.5), op.ref(*wide, 0.5), dtype)
        close(add_ratio(*tensors, value=-2), op.ref(*wide, -2), dtype)
        close(add_ratio(tensors[0], tensor2=tensors[2], tensor1=tensors[1]), op.ref(*wide), dtype)
        out = ic.empty(3, 17, dtype=dtype)
        assert add_ratio(*tensors, out=out) is out
        close(out, op.ref(*wide), dtype)


def test_elementwise_with_a_default_has_a_derivative_and_a_signature(declared, rng):
    op, add_ratio = declare_addcdiv(declared)
    arrays = [rng.uniform(0.5, 3, (3, 5)) for _ in range(3)]
    check_derivative(add_ratio, arrays, rng)
    check_derivative(lambda *x: add_ratio(*x, value=0.3), arrays, rng)
    assert str(inspect.signature(add_ratio)) == "(input, tensor1, tensor2, value=1.0, *, out=None)"
    assert add_ratio.__doc__ == "input + value * tensor1 / tensor2." and op.defaults == {"value": 1.0}
    x = ic.ones(2)
    for wrong in (lambda: add_ratio(x, x), lambda: add_ratio(x, x, x, 1, 2), lambda: add_ratio(x, x, x, factor=2)):
        with pytest.raises(TypeError):
            wrong()


def test_elementwise_rows_of_the_table_with_defaults(rng):
    x = ic.from_numpy(rng.standard_normal(40).astype("f4"))
    for name, *values in (("leaky_relu", 0.01), ("elu", 1.0), ("softplus", 1.0, 20.0), ("hardtanh", -1.0, 1.0)):
        function = getattr(ic, name)
        np.testing.assert_array_equal(function(x).numpy(), function(x, *values).numpy())
    np.testing.assert_array_equal(x.leaky_relu(negative_slope=0.2).numpy(), ic.leaky_relu(x, 0.2).numpy())


# ---- a loss ----------------------------------------------------------------------------------------


def declare_log_cosh(make):
    @loss(ref=lambda x, t, scale=1.0: np.log(np.cosh(scale * (x - t))))
    def log_cosh(input, target, scale=1.0):
        """log(cosh(scale (input - target)))."""
        d = m.abs(scale * (input - target))
        return d + m.log1p(m.exp(-2.0 * d)) - 0.6931471805599453

    @log_cosh.grad("input", "target")
    def _(g, input, target, scale):
        return g * scale * m.tanh(scale * (input - target))

    return log_cosh, make(log_cosh)


@pytest.mark.parametrize("dtype", FLOATS)
def test_loss(declared, dtype, rng):
    op, log_cosh = declare_log_cosh(declared)
    arrays = [rounded(rng, dtype, 3, 17) for _ in range(2)]
    wide = [a.astype("f8") for a in arrays]
    for input, target in zip(*map(layouts, arrays)):
        close(log_cosh(input, target, reduction="none"), op.ref(*wide), dtype)
        close(log_cosh(input, target), op.ref(*wide).mean(), dtype)
        close(log_cosh(input, target, 0.5, reduction="sum") / 51, op.ref(*wide, 0.5).mean(), dtype)
        close(log_cosh(input, target=target, scale=2.0), op.ref(*wide, 2.0).mean(), dtype)


def test_loss_has_a_derivative_a_policy_and_refuses_other_reductions(declared, rng):
    _, log_cosh = declare_log_cosh(declared)
    x, t = rng.standard_normal((2, 3, 5))
    for reduction in ("mean", "sum", "none"):
        check_derivative(lambda x, t, r=reduction: log_cosh(x, t, 0.7, reduction=r), [x, t], rng)
    inputs = [ic.from_numpy(a).requires_grad_() for a in (x, t)]
    one, two = autograd.grad(log_cosh(*inputs), inputs)
    np.testing.assert_allclose(one.numpy(), np.tanh(x - t) / 15, rtol=1e-12)
    np.testing.assert_allclose(two.numpy(), -np.tanh(x - t) / 15, rtol=1e-12)  # one rule, its inputs exchanged
    with ic.autocast():
        assert log_cosh(*[ic.from_numpy(a).bfloat16() for a in (x, t)]).dtype is ic.float32
    assert str(inspect.signature(log_cosh)) == "(input, target, scale=1.0, *, reduction='mean', out=None)"
    with pytest.raises(ValueError, match="`reduction` of `log_cosh` must be one of none, mean, sum, got 'max'"):
        log_cosh(*inputs, reduction="max")


# ---- a composite -----------------------------------------------------------------------------------


def declare_swapped(make):
    def samples(rng):
        yield (rng.standard_normal((4, 6)),), {}
        yield (rng.standard_normal((2, 3, 4)), 2.0), {"dim": 1}

    @composite(dtypes=ALL, ref=lambda x, factor=1, dim=-1: np.concatenate([x * factor, x], dim), samples=samples)
    def with_double(f, input, factor=1, dim=-1):
        """`input` times `factor` and `input`, one behind the other along `dim`."""
        if not hasattr(input, "strides_"):
            raise TypeError(f"`input` of `{f.op.name}` must be a tensor, got {type(input).__name__}")
        return f.cat([f.mul(input, factor), input], dim)

    return with_double, make(with_double)


@pytest.mark.parametrize("dtype", FLOATS)
def test_composite(declared, dtype, rng):
    op, with_double = declare_swapped(declared)
    for (array, *args), kwargs in op.samples(rng):
        array = array.astype(ic.dtype(dtype).numpy)
        expected = op.ref(array.astype("f8"), *args, **kwargs)
        for x in layouts(array):
            close(with_double(x, *args, **kwargs), expected, dtype)
            out = ic.zeros(expected.size + 1, dtype=dtype)[1:].view(expected.shape)
            assert with_double(x, *args, out=out, **kwargs) is out
            close(out, expected, dtype)
    numbers = ic.arange(4)
    assert with_double(numbers, 3).tolist() == [0, 3, 6, 9, 0, 1, 2, 3]
    assert op.name in OPS and OPS[op.name] is op


def test_composite_has_the_derivative_of_its_parts(declared, rng):
    _, with_double = declare_swapped(declared)
    check_derivative(lambda x: with_double(x * x, 3.0), [rng.standard_normal((3, 5))], rng)
    x = ic.ones(2, 2).requires_grad_()
    with pytest.raises(ValueError, match="`out` of `with_double` records no gradients"):
        with_double(x, out=ic.zeros(2, 4))
    with pytest.raises(ValueError, match="`out` has shape"):
        with_double(x.detach(), out=ic.zeros(2, 3))
    with pytest.raises(TypeError, match="`input` of `with_double` must be a tensor, got int"):
        with_double(5)
    assert str(inspect.signature(with_double)) == "(input, factor=1, dim=-1, *, out=None)"


def test_composite_may_overwrite_its_input(declared, rng):
    @composite(ref=lambda x: x[::-1] + x, samples=None)
    def palindrome(f, input):
        return f.flip(input, 0) + input

    function = declared(palindrome)
    x = ic.from_numpy(np.arange(6.0))
    assert function(x, out=x) is x
    assert x.tolist() == [5.0] * 6
    memory = ic.from_numpy(np.arange(7.0))
    function(memory[:6], out=memory[1:])
    assert memory.tolist() == [0.0] + [5.0] * 6


def test_rows_leave_the_table_with_their_test(declared):
    assert not {"add_ratio", "log_cosh", "with_double", "palindrome"} & set(OPS)
