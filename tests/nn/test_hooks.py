"""Hooks of modules: order, arguments, what they replace, removal; against PyTorch's where both can run."""

import copy

import numpy as np
import pytest

import infinicore as ic
from infinicore import nn


@pytest.fixture
def net():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def test_forward_hooks(net):
    layer, seen = net[0], []
    first = layer.register_forward_pre_hook(lambda module, args: seen.append(("pre", module, len(args))))
    layer.register_forward_pre_hook(lambda module, args: args[0] * 2.0)
    layer.register_forward_hook(lambda module, args, output: seen.append(("post", float(args[0].amax()))))
    layer.register_forward_hook(lambda module, args, output: output + 1.0)
    layer.register_forward_hook(lambda module, args, output: seen.append(("first",)), prepend=True)
    x = ic.ones(1, 3)
    y = layer(x)
    assert seen == [("pre", layer, 1), ("first",), ("post", 2.0)]
    expected = layer.forward(x * 2.0) + 1.0
    np.testing.assert_allclose(y.detach().numpy(), expected.detach().numpy(), rtol=1e-6)
    first.remove()
    first.remove()  # twice is no error
    seen.clear()
    layer(x)
    assert seen[0] == ("first",)
    with pytest.raises(TypeError, match="hook"):
        layer.register_forward_hook(3)


def test_hooks_with_kwargs():
    class Scale(nn.Module):
        def forward(self, x, factor=1.0):
            return x * factor

    module, seen = Scale(), []
    module.register_forward_pre_hook(lambda m, args, kwargs: (args, {"factor": 3.0}), with_kwargs=True)
    module.register_forward_hook(lambda m, args, kwargs, output: seen.append(kwargs), with_kwargs=True)
    assert module(ic.ones(1), factor=2.0).tolist() == [3.0] and seen == [{"factor": 3.0}]
    handle = module.register_forward_pre_hook(lambda m, args, kwargs: 5, with_kwargs=True)
    with pytest.raises(ValueError, match="kwargs"):
        module(ic.ones(1))
    handle.remove()
    with module.register_forward_hook(lambda m, args, output: output * 10.0):
        assert module(ic.ones(1)).tolist() == [30.0]
    assert module(ic.ones(1)).tolist() == [3.0]


def test_always_called_hooks(net):
    seen = []
    net[0].register_forward_hook(lambda m, args, output: seen.append(output), always_call=True)
    with pytest.raises(ValueError):
        net(ic.ones(1, 5))
    assert seen == [None]


def test_global_hooks(net):
    seen = []
    handles = [
        nn.register_module_forward_pre_hook(lambda m, args: seen.append("pre " + type(m).__name__)),
        nn.register_module_forward_hook(lambda m, args, output: seen.append(type(m).__name__)),
    ]
    net(ic.ones(1, 3))
    names = ["Linear", "Tanh", "Linear"]
    assert seen == ["pre Sequential", *(s for n in names for s in ("pre " + n, n)), "Sequential"]
    for handle in handles:
        handle.remove()
    net(ic.ones(1, 3))
    assert len(seen) == 8


def record(module, calls, label):
    module.register_full_backward_pre_hook(lambda m, go: calls.append(("pre", label, shapes(go))))
    module.register_full_backward_hook(lambda m, gi, go: calls.append(("post", label, shapes(gi), shapes(go))))


def shapes(gradients):
    return [None if g is None else (tuple(g.shape), round(float(g.sum()), 4)) for g in gradients]


@pytest.mark.filterwarnings("ignore:Full backward hook")  # PyTorch's own words about the same case
@pytest.mark.parametrize("wanted", [True, False])
def test_backward_hooks_against_torch(net, wanted, rng):
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in net.state_dict().items()})
    x, ours_calls, their_calls = rng.standard_normal((5, 3)).astype("float32"), [], []
    for model, calls in ((net, ours_calls), (theirs, their_calls)):
        for i, module in enumerate([model, *model]):
            record(module, calls, i)
    net(ic.tensor(x).requires_grad_(wanted)).square().sum().backward()
    theirs(torch.tensor(x).requires_grad_(wanted)).square().sum().backward()
    assert ours_calls == their_calls and ours_calls


def test_backward_hooks_replace_gradients(net):
    plain, x = copy.deepcopy(net), ic.ones(2, 3).requires_grad_()
    net[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2.0,))
    net[0].register_full_backward_pre_hook(lambda m, go: (go[0] * 3.0,))
    net(x).sum().backward()
    y = ic.ones(2, 3).requires_grad_()
    plain(y).sum().backward()
    np.testing.assert_allclose(net[2].weight.grad.numpy(), plain[2].weight.grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(net[0].weight.grad.numpy(), 6 * plain[0].weight.grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(x.grad.numpy(), 6 * y.grad.numpy(), rtol=1e-5)


def test_global_backward_hooks(net):
    seen = []
    with nn.register_module_full_backward_hook(lambda m, gi, go: seen.append(type(m).__name__)):
        net(ic.ones(2, 3).requires_grad_()).sum().backward()
    assert seen == ["Linear", "Tanh", "Linear", "Sequential"]


def test_state_hooks(net):
    calls = []
    net.register_state_dict_pre_hook(lambda m, prefix, keep_vars: calls.append(("pre", prefix, keep_vars)))

    def rename(module, state, prefix, metadata):
        state[prefix + "renamed"] = state.pop(prefix + "0.weight")

    net.register_state_dict_post_hook(rename)

    def restore(module, state, prefix, metadata, strict, missing, unexpected, errors):
        calls.append(("load", prefix, strict))
        state[prefix + "0.weight"] = state.pop(prefix + "renamed")

    net.register_load_state_dict_pre_hook(restore)
    net.register_load_state_dict_post_hook(lambda m, keys: calls.append(("loaded", list(keys.missing_keys))))
    state = net.state_dict()
    assert "renamed" in state and "0.weight" not in state
    net.load_state_dict(state)
    assert "renamed" in state  # the caller's own is left alone
    assert calls == [("pre", "", False), ("load", "", True), ("loaded", [])]
    net.register_load_state_dict_pre_hook(lambda m, state, prefix, *rest: rest[-1].append("too old"))
    with pytest.raises(ValueError, match="too old"):
        net.load_state_dict(state)


def test_hooks_are_copied_with_the_module(net):
    seen = []
    handle = net.register_forward_hook(lambda m, args, output: seen.append(1))
    other = copy.deepcopy(net)
    handle.remove()
    other(ic.ones(1, 3))
    net(ic.ones(1, 3))
    assert seen == [1]
