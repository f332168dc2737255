"""`infinicore.func` beside `torch.func`."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import func

torch = pytest.importorskip("torch")


def pair(rng, *shape):
    x = rng.standard_normal(shape)
    return ic.from_numpy(x), torch.tensor(x)


def same(ours, theirs):
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            same(ours[name], theirs[name])
    elif isinstance(theirs, (tuple, list)):
        assert type(ours) is type(theirs) and len(ours) == len(theirs)
        for own, other in zip(ours, theirs):
            same(own, other)
    else:
        assert ours.requires_grad <= theirs.requires_grad  # PyTorch's constants may belong to a graph
        assert tuple(ours.shape) == tuple(theirs.shape)
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-12, atol=1e-12)


CASES = {
    "grad": lambda m, f: (f.grad(lambda x, y: (x.sin() * y).sum()), 2),
    "grad of several": lambda m, f: (f.grad(lambda x, y: (x.sin() * y * y).sum(), argnums=(1, 0)), 2),
    "grad of the last": lambda m, f: (f.grad(lambda x, y: (x * y * y).sum(), argnums=-1), 2),
    "grad with aux": lambda m, f: (f.grad(lambda x, y: ((x * y).sum(), (x + y, {"a": y})), has_aux=True), 2),
    "grad and value": lambda m, f: (f.grad_and_value(lambda x, y: (x * y).exp().sum()), 2),
    "grad, value and aux": lambda m, f: (f.grad_and_value(lambda x, y: ((x * y).sum(), x + 1), has_aux=True), 2),
    "grad of grad": lambda m, f: (f.grad(lambda x: f.grad(lambda z: (z**3).sum())(x).sum()), 1),
    "grad that does not depend": lambda m, f: (f.grad(lambda x, y: y.sum()), 2),
    "grad of a dict": lambda m, f: (lambda x, y: f.grad(lambda p: (p["a"] * p["b"][0]).sum())({"a": x, "b": [y]}), 2),
    "jacrev": lambda m, f: (f.jacrev(lambda x, y: (x[:, 0] * y[0, :2]).cos(), argnums=(0, 1)), 2),
    "jacrev of a dict": lambda m, f: (f.jacrev(lambda x, y: {"a": x.sum(0), "b": (x * y, y[0, 0])}), 2),
    "jacrev with aux": lambda m, f: (f.jacrev(lambda x: (x.sin(), x * 2), has_aux=True), 1),
    "jacfwd": lambda m, f: (f.jacfwd(lambda x: x.tanh() @ x.T), 1),
    "hessian": lambda m, f: (f.hessian(lambda x: (x**3).sum() * x[0, 0]), 1),
    "jacfwd of grad": lambda m, f: (f.jacfwd(f.grad(lambda x, y: (x * x * y).sum()), argnums=1), 2),
    "jvp": lambda m, f: (lambda x, y: f.jvp(lambda a: (a.sin(), {"s": a.sum()}), (x,), (y,)), 2),
    "jvp with aux": lambda m, f: (lambda x, y: f.jvp(lambda a: (a.sin(), a * 2), (x,), (y,), has_aux=True), 2),
    "vjp": lambda m, f: (lambda x, y: f.vjp(lambda a, b: (a * b).sin(), x, y)[1](y), 2),
    "vjp's value": lambda m, f: (lambda x, y: f.vjp(lambda a, b: {"p": a * b}, x, y)[0], 2),
    "gradients for samples": lambda m, f: (f.vmap(f.grad(lambda x, y: (x * y * y).sum(), argnums=1)), 2),
    "gradients of a dict for samples": lambda m, f: (
        lambda x, y: f.vmap(f.grad(lambda p, z: (p["w"] * z).exp().sum()), in_dims=(None, 0))({"w": x[0]}, y), 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tracked", [False, True])
def test_transformations(name, tracked, rng):
    values = [pair(rng, 2, 2) for _ in range(2)]
    results = []
    for side, (library, module) in enumerate(((ic, func), (torch, torch.func))):
        function, count = CASES[name](library, module)
        arguments = [value[side].clone().requires_grad_(tracked) for value in values[:count]]
        results.append((function(*arguments), arguments))
    same(results[0][0], results[1][0])
    if tracked:  # and what comes out belongs to the caller's graph
        for (found, arguments), library in zip(results, (ic, torch)):
            leaves = [x for x in flat(found) if x.requires_grad]
            if leaves:
                sum((x * x).sum() for x in leaves).backward()
        for own, other in zip(results[0][1], results[1][1]):
            theirs = np.zeros((2, 2)) if other.grad is None else other.grad.numpy(force=True)
            ours = np.zeros((2, 2)) if own.grad is None else own.grad.numpy()
            np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-11)


def flat(value):
    if isinstance(value, dict):
        value = list(value.values())
    return [x for one in value for x in flat(one)] if isinstance(value, (tuple, list)) else [value]


def models():
    ours = ic.nn.Sequential(ic.nn.Linear(3, 4), ic.nn.BatchNorm1d(4), ic.nn.Tanh(), ic.nn.Linear(4, 2)).double()
    theirs = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    ).double()
    theirs.load_state_dict({name: torch.tensor(x.numpy()) for name, x in ours.state_dict().items()})
    return ours, theirs


def test_a_module_with_other_parameters(rng):
    ours, theirs = models()
    x, tx = pair(rng, 5, 3)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    given = {name: rng.standard_normal(tuple(p.shape)) for name, p in ours.named_parameters() if name != "0.bias"}
    own, other = ({n: make(v) for n, v in given.items()} for make in (ic.from_numpy, torch.tensor))
    slopes = func.grad(lambda p, x: func.functional_call(ours.eval(), p, (x,)).square().sum())(own, x)
    wanted = torch.func.grad(lambda p, x: torch.func.functional_call(theirs.eval(), p, (x,)).square().sum())(other, tx)
    same(slopes, wanted)
    for name, value in ours.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name].numpy())
    same(func.functional_call(ours, [own, {"0.bias": x[0, :1].expand(4)}], x, {}).detach(),
         torch.func.functional_call(theirs, [other, {"0.bias": tx[0, :1].expand(4)}], tx, {}).detach())  # fmt: skip


def test_ties_and_names():
    one = ic.nn.Module()
    one.a = ic.nn.Linear(2, 2, bias=False)
    one.b = one.a
    one.forward = lambda x: one.b(one.a(x))
    x, w = ic.ones(1, 2), ic.full((2, 2), 2.0)
    assert func.functional_call(one, {"a.weight": w}, x).tolist() == [[16.0, 16.0]]
    with pytest.raises(ValueError, match=r"'nope'"):
        func.functional_call(one, {"a.weight": w, "b.weight": w, "nope": w}, x, strict=True)
    with pytest.raises(ValueError, match=r"twice"):
        func.functional_call(one, [{"a.weight": w}, {"a.weight": w}], x)


def test_ensembles(rng):
    several = [models()[0] for _ in range(3)]
    parameters, buffers = func.stack_module_state(several)
    x = pair(rng, 4, 3)[0]
    found = func.vmap(lambda p, b, x: func.functional_call(several[0].eval(), (p, b), (x,)), (0, 0, None))(
        parameters, buffers, x
    )
    assert parameters["0.weight"].shape == (3, 4, 3) and parameters["0.weight"].requires_grad
    for i, model in enumerate(several):
        np.testing.assert_allclose(found[i].detach().numpy(), model.eval()(x).detach().numpy(), rtol=1e-12)


def test_errors():
    x = ic.ones(2, 2)
    with pytest.raises(ValueError, match="no dims"):
        func.grad(lambda x: x)(x)
    with pytest.raises(ValueError, match="`argnums`"):
        func.grad(lambda x: x.sum(), argnums=1)(x)
    with pytest.raises(TypeError, match="no tensor"):
        func.grad(lambda a, x: x.sum())(3, x)
    with pytest.raises(ValueError, match="`cotangents`"):
        func.vjp(lambda x: x.sum(), x)[1](x)
    with pytest.raises(ValueError, match="has_aux"):
        func.grad(lambda x: x.sum(), has_aux=True)(x)
    with pytest.raises(ValueError, match="`models`"):
        func.stack_module_state([])
