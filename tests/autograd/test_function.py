"""Custom functions, checkpointing, gradcheck."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import autograd


class Cube(autograd.Function):
    @staticmethod
    def forward(ctx, x, power=3):
        ctx.save_for_backward(x)
        ctx.power = power
        return x**power

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.power * x ** (ctx.power - 1), None


class SumAndProduct(autograd.Function):
    @staticmethod
    def forward(a, b):
        return a + b, a * b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx, g_sum, g_product):
        a, b, product = ctx.saved_tensors
        assert product.shape == a.shape
        return g_sum + g_product * b, g_sum + g_product * a


def leaf(*shape, seed=0):
    return ic.from_numpy(np.random.default_rng(seed).uniform(0.5, 1.5, shape)).requires_grad_()


def test_functions_and_their_derivatives():
    x = leaf(3)
    assert autograd.gradcheck(lambda v: Cube.apply(v, 4), (x,)) and autograd.gradgradcheck(Cube.apply, (x,))
    y = leaf(3, seed=1)
    assert autograd.gradcheck(SumAndProduct.apply, (x, y)) and autograd.gradgradcheck(SumAndProduct.apply, (x, y))
    total, _ = SumAndProduct.apply(x, y)  # nothing flows through the product: zeros arrive
    total.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.ones(3))
    with ic.no_grad():
        assert not Cube.apply(x).requires_grad


def test_what_a_function_must_return():
    class Wrong(autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return g

    with pytest.raises(ValueError, match="for each of the 2 inputs"):
        Wrong.apply(leaf(3), leaf(3)).sum().backward()

    class Shapes(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g.sum()

    with pytest.raises(ValueError, match="gave shape"):
        Shapes.apply(leaf(3)).sum().backward()


def test_context():
    class Picky(autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            assert ctx.needs_input_grad == (True, False)
            index = ic.arange(3)
            ctx.mark_non_differentiable(index)
            return x, index

        @staticmethod
        def backward(ctx, g, _):
            return g * 5, None

    x = leaf(3)
    same, index = Picky.apply(x, ic.ones(3))
    assert not index.requires_grad and same is not x
    same.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 5.0))


def test_gradcheck_finds_a_wrong_derivative():
    class Wrong(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 3

    with pytest.raises(ValueError, match="is off by 1"):
        autograd.gradcheck(Wrong.apply, (leaf(2),))
    assert not autograd.gradcheck(Wrong.apply, (leaf(2),), raise_exception=False)
    with pytest.warns(UserWarning, match="should be float64"):  # of float32, differences say little
        assert not autograd.gradcheck(lambda x: x * 2, (ic.ones(2).requires_grad_(),), raise_exception=False)


def _noisy(x, w):
    hidden = ic.nn.functional.dropout((x * w).tanh(), 0.5)
    return (hidden * w).exp()


def test_checkpoint_is_exact_and_keeps_random_state():
    x, w = leaf(4, 5), leaf(5, seed=1)
    results = []
    for wrap in (False, True):
        ic.manual_seed(7)
        y = autograd.checkpoint(_noisy, x, w) if wrap else _noisy(x, w)
        after = ic.rand(1).item()
        (y * y).sum().backward()
        results.append((y.detach().numpy().copy(), x.grad.numpy().copy(), w.grad.numpy().copy(), after))
        x.grad = w.grad = None
    for plain, checkpointed in zip(*results):
        np.testing.assert_array_equal(plain, checkpointed)


def test_checkpoint_saves_nothing_and_nests():
    saved = []
    x = leaf(3)

    def inner(v):
        return v.exp().tanh()

    def outer(v):
        return autograd.checkpoint(inner, v * v) * v

    with autograd.saved_tensors_hooks(lambda t: saved.append(1) or t, lambda t: t):
        y = autograd.checkpoint(outer, x)
    assert not saved
    y.sum().backward()
    assert autograd.gradcheck(lambda v: autograd.checkpoint(outer, v), (x,))
    with pytest.raises(NotImplementedError, match="gradients of gradients"):
        autograd.grad(autograd.checkpoint(inner, x).sum(), [x], create_graph=True)
