"""Views and in-place operations in the graph; version counters."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import autograd

torch = pytest.importorskip("torch")


def both(function, *shapes):
    """The gradients of `function` here and in torch, on the same numbers."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    ours = [ic.from_numpy(a.copy()).requires_grad_() for a in arrays]
    theirs = [torch.from_numpy(a.copy()).requires_grad_() for a in arrays]
    one, two = function(*ours), function(*theirs)
    np.testing.assert_allclose(one.detach().numpy(), two.detach().numpy(), rtol=1e-12)
    weight = rng.standard_normal(tuple(two.shape))
    one.backward(ic.from_numpy(weight))
    two.backward(torch.from_numpy(weight))
    for x, y in zip(ours, theirs):
        expected = np.zeros(y.shape) if y.grad is None else y.grad.numpy()
        np.testing.assert_allclose(x.grad.numpy() if x.grad is not None else 0 * expected, expected, rtol=1e-12)


VIEWS = {
    "reshape": lambda x: x.reshape(6, 4).T.reshape(-1)[3:19],
    "permute": lambda x: x.permute(2, 0, 1) * x.permute(2, 0, 1),
    "steps": lambda x: x[:, 1:4:2, ::2],
    "select": lambda x: x[1, :, -1] + x[0, :, 0],
    "newaxis": lambda x: x[None, :, None, 1] * 2,
    "expand": lambda x: x[:, :1].expand(2, 5, 4),
    "squeeze": lambda x: x[:1].squeeze(0).unsqueeze(-1).squeeze(),
    "split": lambda x: x.split([1, 2], 1)[1] * x.chunk(3, 1)[0],
    "unbind": lambda x: x.unbind(1)[2] + x.unbind(1)[0],
    "narrow": lambda x: x.narrow(1, 1, 2).narrow(2, 0, 3),
    "flatten": lambda x: x.flatten(1).unflatten(1, (4, 3)),
    "movedim": lambda x: x.movedim(0, -1).mT,
    "overlapping": lambda x: x.as_strided((5, 3), (2, 1)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    both(VIEWS[name], (2, 3, 4))
    x = ic.from_numpy(np.random.default_rng(1).standard_normal((2, 3, 4))).requires_grad_()
    assert autograd.gradcheck(VIEWS[name], (x,))
    assert autograd.gradgradcheck(lambda t: VIEWS[name](t * t), (x,))


def _chain(x):
    y = x * 2
    y += x
    y.mul_(x)
    y /= 3.0
    return y


def _rows(x, v):
    y = x * 1
    y[1] = v * v
    y[0, ::2] = 5.0
    return y * y


def _view_of_result(x):
    y = x * 2
    z = y[1]
    z.mul_(x[0])
    return y * z


def _view_after_write(x):
    y = x * 2
    z = y[1]
    y.mul_(3.0)
    return z * z


def _base_without_graph(x):
    buffer = x.detach().clone()
    buffer[1] = x[0] * 2
    return buffer * 3


def _copied(x, v):
    y = x * 1
    y.copy_(v)
    return y * y


def _zeroed(x):
    y = x * 3
    y[0].zero_()
    return y * x


def _filled(x):
    y = x * 3
    y.fill_(2.0)
    return y * x


def _permuted_base(x, v):
    y = x.T * 2  # lies in memory as x does
    y[1] = v * v
    y[:, 2].mul_(3.0)
    return y * y


IN_PLACE = {
    "permuted base": (_permuted_base, (3, 4), (3,)),
    "chain": (_chain, (3, 4)),
    "rows": (_rows, (3, 4), (4,)),
    "view of a result": (_view_of_result, (3, 4)),
    "view after a write": (_view_after_write, (3, 4)),
    "base without graph": (_base_without_graph, (3, 4)),
    "copied": (_copied, (3, 4), (4,)),
    "zeroed": (_zeroed, (3, 4)),
    "filled": (_filled, (3, 4)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name):
    function, *shapes = IN_PLACE[name]
    both(function, *shapes)
    if function is _base_without_graph:  # it detaches, which finite differences do not see
        return
    rng = np.random.default_rng(2)
    inputs = [ic.from_numpy(rng.standard_normal(shape)).requires_grad_() for shape in shapes]
    assert autograd.gradcheck(function, inputs) and autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.fill_(2.0),
        lambda y: y.zero_(),
        lambda y: y.copy_(ic.ones(3)),
        lambda y: y.copy_(ic.ones(3).requires_grad_() * 2),
        lambda y: y.gt_(1.0),
        lambda y: y.logical_not_(),
        lambda y: y.uniform_(),
    ],
    ids=["fill", "zero", "copy", "copy of a result", "gt", "logical_not", "uniform"],
)
def test_what_is_overwritten_gets_zeros(write):
    x = ic.ones(3).requires_grad_()
    y = x * 2
    y.retain_grad()
    write(y)
    assert y.requires_grad and not y.is_leaf
    y.sum().backward()
    assert x.grad.tolist() == [0, 0, 0] and y.grad.tolist() == [1, 1, 1]


def test_a_leaf_is_not_overwritten():
    x = ic.ones(3).requires_grad_()
    with pytest.raises(ValueError, match="leaf"):
        x.add_(1)
    with pytest.raises(ValueError, match="leaf"):
        x[0] = 1
    with pytest.raises(ValueError, match="leaf"):
        x.zero_()
    with ic.no_grad():
        x.add_(1)
    assert x.tolist() == [2, 2, 2] and x.is_leaf
    x.detach().fill_(0)
    assert x.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda y: y.detach().add_(1),
        lambda y: y.detach().zero_(),
        lambda y: y.detach().__setitem__(0, 1.0),
        lambda y: ic.exp(y.detach(), out=y.detach()),
        lambda y: y.detach().copy_(ic.ones(3)),
        lambda y: ic.sum(ic.ones(3, 2), 1, out=y.detach()),
    ],
)
def test_damage_to_a_saved_tensor_is_noticed(damage):
    x = ic.ones(3).requires_grad_()
    y = x.exp()
    z = (y * y).sum()
    damage(y)
    with pytest.raises(ValueError, match="changed in place"):
        z.backward()


def test_versions():
    x = ic.zeros(4)
    before = x._version
    x.add_(1)
    x[1:].mul_(2)
    x.numpy()
    assert x._version == before + 2 and x[1:]._version == x._version and x.detach()._version == x._version


FORMS = [(name, ()) for name in "exp log sqrt rsqrt sin cos tanh erf sigmoid expm1 log1p tril triu".split()]
FORMS += [("pow", (2.0,)), ("div", (3.0,)), ("clamp", (0.2, 0.5)), ("cumsum", (1,))]


@pytest.mark.parametrize("name, args", FORMS, ids=[name for name, _ in FORMS])
def test_forms_that_write_to_their_tensor(name, args, rng):
    array = rng.uniform(0.1, 0.9, (3, 4))
    leaf, theirs = ic.from_numpy(array.copy()).requires_grad_(), torch.tensor(array, requires_grad=True)
    x, y = leaf * 1, theirs * 1
    assert getattr(x, name + "_")(*args) is x
    getattr(y, name + "_")(*args)
    np.testing.assert_allclose(x.detach().numpy(), y.detach().numpy(), rtol=1e-12)
    x.sum().backward()
    y.sum().backward()
    np.testing.assert_allclose(leaf.grad.numpy(), theirs.grad.numpy(), rtol=1e-11, atol=1e-12)
    with pytest.raises(ValueError, match="leaf"):
        getattr(leaf, name + "_")(*args)


def test_random_numbers_in_place():
    ic.manual_seed(3)
    x = ic.empty((2000,)).normal_(1.0, 0.5)
    assert abs(float(x.mean()) - 1.0) < 0.05 and abs(float(x.std()) - 0.5) < 0.05
    assert x.uniform_(-2.0, 3.0) is x and float(x.min()) >= -2.0 and 2.9 < float(x.max()) < 3.0
    with pytest.raises(TypeError, match=r"needs a tensor of floats, got infinicore\.int64"):
        ic.tensor([1, 2]).uniform_()
