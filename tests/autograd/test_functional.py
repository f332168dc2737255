"""`autograd.functional` beside PyTorch's."""

import numpy as np
import pytest

import infinicore
from infinicore.autograd import functional

RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((2, 3)), RNG.standard_normal((3,))


def _both(name, func, *args, **options):
    """The results of a function of ours and of PyTorch's, as flat lists of arrays with their shapes."""
    torch = pytest.importorskip("torch")

    def tensors(module, value):
        return tuple(tensors(module, v) for v in value) if isinstance(value, tuple) else module.tensor(value)

    def flat(value):
        return [x for v in value for x in flat(v)] if isinstance(value, tuple) else [value.detach().numpy()]

    ours = getattr(functional, name)(
        lambda *x: func(infinicore, *x), *(tensors(infinicore, a) for a in args), **options
    )
    theirs = getattr(torch.autograd.functional, name)(
        lambda *x: func(torch, *x), *(tensors(torch, a) for a in args), **options
    )
    assert isinstance(ours, tuple) == isinstance(theirs, tuple)
    return flat(ours), flat(theirs)


def _one(module, a, b):
    return (a * b).sin().sum(-1) * b.exp().sum()


def _two(module, a, b):
    return a @ b, (a**3).sum()


def _energy(module, a, b):
    return ((a @ b) ** 2).sum() * b.sum()


@pytest.mark.parametrize(
    "name, func, args",
    [
        ("jacobian", _one, ((A, B),)),
        ("jacobian", _two, ((A, B),)),
        ("jacobian", lambda module, a: a.exp(), (A,)),
        ("hessian", _energy, ((A, B),)),
        ("hessian", lambda module, a: (a**3).sum(), (A,)),
        ("vjp", _two, ((A, B), (B[:2], np.float64(2.0)))),
        ("vjp", lambda module, a: (a**2).sum(), (A,)),
        ("jvp", _two, ((A, B), (2 * A, B + 1))),
        ("jvp", lambda module, a: module.ones(2, dtype=a.dtype), (A, A)),  # depends on nothing
        ("vhp", _energy, ((A, B), (A + 1, B))),
        ("hvp", _energy, ((A, B), (A + 1, B))),
    ],
)
def test_beside_torch(name, func, args):
    ours, theirs = _both(name, func, *args)
    assert len(ours) == len(theirs)
    for x, y in zip(ours, theirs):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["jacobian", "hessian"])
def test_results_are_in_the_graph_if_asked(name):
    x = infinicore.tensor(B, requires_grad=True)
    compute = getattr(functional, name)
    assert not compute(lambda x: (x**4).sum(), x).requires_grad
    compute(lambda x: (x**4).sum(), x, create_graph=True).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 12 * B**2 if name == "jacobian" else 24 * B, rtol=1e-12)


def test_wrong_calls_say_what_is_wrong():
    x = infinicore.tensor(B)
    with pytest.raises(ValueError, match="one tensor of one element"):
        functional.hessian(lambda x: x * 2, x)
    with pytest.raises(ValueError, match="`v` must have the shapes"):
        functional.vjp(lambda x: x * 2, x, infinicore.ones(2))
    with pytest.raises(ValueError, match="`strict`"):
        functional.jacobian(lambda x: infinicore.ones(2), x, strict=True)
    with pytest.raises(TypeError, match="`inputs` must be a tensor"):
        functional.jacobian(lambda x: x, 3.0)
