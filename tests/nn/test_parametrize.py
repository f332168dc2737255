"""Parametrizations, weight and spectral norm, and lazy modules beside PyTorch's."""

import copy

import numpy as np
import pytest

import infinicore as ic
from infinicore import nn

torch = pytest.importorskip("torch")

from .test_against_torch import IMAGE, compare, copy_state, pairs, same, twins

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's forms by hooks are deprecated
NORMS = [
    ("Linear", (4, 5), (6, 4), "weight_norm", {}),
    ("Linear", (4, 5), (6, 4), "weight_norm", {"dim": None}),
    ("Conv2d", (4, 3, 2), IMAGE, "weight_norm", {"dim": 1}),
    ("Linear", (4, 5), (6, 4), "spectral_norm", {"n_power_iterations": 2}),
    ("ConvTranspose2d", (4, 3, 2), IMAGE, "spectral_norm", {}),
]


@pytest.mark.parametrize("name, args, shape, norm, options", NORMS)
@pytest.mark.parametrize("form", ["utils", "parametrizations"])
def test_norms(name, args, shape, norm, options, form, rng):
    ours, theirs = twins(name, args, {}, "float64")
    ours.train(), theirs.train()
    for module, home in ((ours, nn.utils), (theirs, torch.nn.utils)):
        home = home if form == "utils" else home.parametrizations
        assert getattr(home, norm)(module, **options) is module
    if norm == "weight_norm":  # the other one begins at random
        assert sorted(ours.state_dict()) == sorted(theirs.state_dict())
    copy_sorted(ours, theirs)
    for _ in range(2):
        compare_by_name(ours, theirs, shape, rng)
    ours.eval(), theirs.eval()
    compare_by_name(ours, theirs, shape, rng)
    before = ours.weight.detach().clone()
    if form == "utils":
        getattr(nn.utils, f"remove_{norm}")(ours)
    else:
        again = copy.deepcopy(ours)
        np.testing.assert_array_equal(again.weight.detach(), before)
        nn.utils.parametrize.remove_parametrizations(ours, "weight")
        assert type(ours) is getattr(nn, name)
    np.testing.assert_allclose(ours.weight.detach(), before, rtol=1e-12)
    assert sorted(ours.state_dict()) == ["bias", "weight"]


def copy_sorted(ours, theirs):
    state = {k: ic.from_numpy(v.detach().numpy().copy()) for k, v in theirs.state_dict().items()}
    ours.load_state_dict(state)


def compare_by_name(ours, theirs, shape, rng):
    (x,), (y,) = pairs(rng, [shape], "float64")
    ours.zero_grad(), theirs.zero_grad()
    a, b = ours(x), theirs(y)
    same(a, b, "float64", "output")
    a.square().sum().backward()
    b.square().sum().backward()
    same(x.grad, y.grad, "float64", "input")
    others = dict(theirs.named_parameters())
    for key, p in ours.named_parameters():
        same(p.grad, others[key].grad, "float64", key)
    others = dict(theirs.named_buffers())
    for key, p in ours.named_buffers():
        same(p, others[key], "float64", key)


def make(package):
    class Symmetric(package.nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).transpose(-1, -2)

        def right_inverse(self, x):
            return x.triu()

    class Doubled(package.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = package.nn.Parameter(package.ones(1, dtype=package.float64) * 2)

        def forward(self, x):
            return x * self.scale

    return Symmetric(), Doubled()


def test_a_parametrization_of_ones_own(rng):
    ours, theirs = twins("Linear", (4, 4), {}, "float64")
    for module, package in ((ours, ic), (theirs, torch)):
        tools = package.nn.utils.parametrize
        for parametrization in make(package):
            tools.register_parametrization(module, "weight", parametrization)
        assert tools.is_parametrized(module, "weight") and not tools.is_parametrized(module, "bias")
        with tools.cached():
            assert module.weight is module.weight
    copy_state(ours, theirs)
    assert repr(ours) == repr(theirs)
    compare_by_name(ours, theirs, (3, 4), rng)
    with pytest.raises(NotImplementedError, match="right_inverse"):
        ours.weight = ours.weight
    ours = nn.utils.parametrize.register_parametrization(nn.Linear(3, 3), "weight", make(ic)[0])
    ours.weight = ic.ones(3, 3)
    np.testing.assert_array_equal(ours.parametrizations.weight.original.detach(), np.triu(np.ones((3, 3))))
    with pytest.raises(ValueError, match="`parametrization` must keep"):
        nn.utils.parametrize.register_parametrization(nn.Linear(3, 3), "weight", nn.Flatten(0))
    with pytest.raises(ValueError, match="`tensor_name`"):
        nn.utils.parametrize.register_parametrization(nn.Linear(3, 3), "height", nn.Identity())


LAZY = [
    ("LazyLinear", (5,), {}, (6, 4)),
    ("LazyConv2d", (6, 3), {"padding": 1, "groups": 2}, IMAGE),
    ("LazyConvTranspose2d", (6, 3), {"bias": False}, IMAGE),
    ("LazyBatchNorm2d", (), {}, IMAGE),
    ("LazyInstanceNorm2d", (), {}, IMAGE),
]


@pytest.mark.parametrize("name, args, options, shape", LAZY)
def test_lazy_modules(name, args, options, shape, rng):
    ours, theirs = getattr(nn, name)(*args, **options), getattr(torch.nn, name)(*args, **options)
    assert repr(ours) == repr(theirs) and ours.has_uninitialized_params()
    loaded = copy.deepcopy(ours)
    x = rng.standard_normal(shape).astype("float32")
    ours(ic.from_numpy(x)), theirs(torch.from_numpy(x))
    assert repr(ours) == repr(theirs) and type(ours) is getattr(nn, name.removeprefix("Lazy"))
    copy_state(ours, theirs)
    compare(ours, theirs, pairs(rng, [shape], "float32"), rng, "float32")
    loaded.load_state_dict(ours.state_dict())
    np.testing.assert_array_equal(loaded.eval()(ic.from_numpy(x)).detach(), ours.eval()(ic.from_numpy(x)).detach())
