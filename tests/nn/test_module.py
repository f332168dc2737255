"""Module, Parameter and containers behave as PyTorch's."""

import copy
import pickle
from collections import OrderedDict

import numpy as np
import pytest

import infinicore
from infinicore import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3, bias=True)
        self.rest = nn.ModuleList([nn.Linear(3, 3, bias=False), nn.RMSNorm(3)])
        self.scale = nn.Parameter(infinicore.ones(3))
        self.register_buffer("count", infinicore.zeros(1))
        self.register_buffer("hidden", infinicore.zeros(1), persistent=False)

    def forward(self, x):
        return self.first(x)


NAMES = ["scale", "count", "first.weight", "first.bias", "rest.0.weight", "rest.1.weight"]


def test_state_dict_names_and_references():
    net = Net()
    assert list(net.state_dict()) == NAMES
    assert [name for name, _ in net.named_parameters()] == [n for n in NAMES if n != "count"]
    shown = net.state_dict()["scale"]
    assert shown.data_ptr() == net.scale.data_ptr() and not shown.requires_grad
    assert net.state_dict(keep_vars=True)["scale"] is net.scale
    assert [name for name, _ in net.named_buffers()] == ["count", "hidden"]
    assert [name for name, _ in net.named_modules()] == ["", "first", "rest", "rest.0", "rest.1"]
    assert len(list(net.parameters())) == 5 and list(net.children()) == [net.first, net.rest]
    assert net.get_submodule("rest.1") is net.rest[1] and net.get_parameter("first.bias") is net.first.bias


def test_names_equal_torch():
    torch = pytest.importorskip("torch")
    ours = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3, bias=True), nn.LayerNorm(3), nn.RMSNorm(3))
    theirs = torch.nn.Sequential(
        torch.nn.Embedding(5, 4), torch.nn.Linear(4, 3), torch.nn.LayerNorm(3), torch.nn.RMSNorm(3)
    )
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [tuple(v.shape) for v in ours.state_dict().values()] == [
        tuple(v.shape) for v in theirs.state_dict().values()
    ]


def test_load_state_dict():
    source, target = Net(), Net()
    address = target.scale.data_ptr()
    nn.init.constant_(source.scale, 7.0)
    result = target.load_state_dict(source.state_dict())
    assert result.missing_keys == [] and result.unexpected_keys == []
    assert target.scale.tolist() == [7.0] * 3 and target.scale.data_ptr() == address
    assert target.first.weight.tolist() == source.first.weight.tolist()


def test_load_state_dict_errors_change_nothing():
    net = Net()
    before = {name: value.numpy().copy() for name, value in net.state_dict().items()}
    good = {name: infinicore.ones(tuple(value.shape)) for name, value in net.state_dict().items()}
    cases = [
        ({**good, "scale": infinicore.ones(4)}, ValueError, r"scale.*\(4,\).*\(3,\)"),
        ({**good, "scale": infinicore.ones(3, dtype=infinicore.complex64)}, ValueError, "complex64"),
        ({**good, "scale": np.ones(3)}, TypeError, "ndarray"),
        ({**good, "other": infinicore.ones(1)}, ValueError, "unexpected.*other"),
        ({k: v for k, v in good.items() if k != "scale"}, ValueError, "lacks.*scale"),
    ]
    for state, error, words in cases:
        with pytest.raises(error, match=words):
            net.load_state_dict(state)
    for name, value in net.state_dict().items():
        assert (value.numpy() == before[name]).all()
    loose = net.load_state_dict({"scale": infinicore.ones(3), "other": infinicore.ones(1)}, strict=False)
    assert loose.unexpected_keys == ["other"] and loose.missing_keys == [n for n in NAMES if n != "scale"]


def test_modes_return_self():
    net = Net()
    assert net.training and net.eval() is net and not net.rest[1].training
    assert net.train() is net and net.rest[1].training
    assert net.apply(lambda module: None) is net
    with pytest.raises(ValueError, match="mode"):
        net.train("yes")


def test_to():
    net = Net()
    assert net.to(infinicore.bfloat16) is net
    assert net.first.weight.dtype is infinicore.bfloat16 is net.count.dtype
    assert net.float().first.weight.dtype is infinicore.float32
    assert net.to("cpu") is net and net.to("cpu", infinicore.float64).scale.dtype is infinicore.float64
    with pytest.raises(TypeError, match="dtype"):
        net.to(infinicore.int32)
    with pytest.raises(NotImplementedError):
        net.to("cuda")


def test_to_keeps_shared_parameters_shared():
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    net[1].weight = net[0].weight
    assert len(list(net.parameters())) == 1
    net.to(infinicore.float16)
    assert net[1].weight is net[0].weight and net[0].weight.dtype is infinicore.float16
    assert list(net.state_dict()) == ["0.weight", "1.weight"]


def test_to_keeps_parameters_the_same_objects():
    """An optimizer that holds them goes on working."""
    net = Net()
    held, packed = list(net.parameters()), nn.PackedLinear(6, {"a": 3, "b": 5})
    part = packed.b.weight
    net.scale.grad = infinicore.ones(3)
    net.double()
    assert all(a is b for a, b in zip(held, net.parameters())) and held[0].dtype is infinicore.float64
    assert net.scale.grad.dtype is infinicore.float64
    packed.to(infinicore.bfloat16)
    assert packed.b.weight is part and part.dtype is infinicore.bfloat16 and part.requires_grad


def test_assignment():
    net = Net()
    with pytest.raises(TypeError, match="Parameter"):
        net.scale = infinicore.ones(3)
    net.scale = nn.Parameter(infinicore.zeros(2))
    assert net.scale.shape == (2,)
    net.scale = None
    assert net.scale is None and "scale" not in net.state_dict()
    del net.first
    with pytest.raises(AttributeError, match="first"):
        net.first
    with pytest.raises(NotImplementedError, match="forward"):
        nn.Module()(1)
    with pytest.raises(TypeError, match="module"):
        net.rest = 3
    with pytest.raises(TypeError, match="buffer"):
        net.count = 3
    net.plain = None
    net.plain = nn.Buffer(infinicore.ones(1))
    assert "plain" in net.state_dict()

    class Early(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match="super"):
        Early()


def test_parameter():
    data = infinicore.ones(2, 3)
    parameter = nn.Parameter(data)
    assert isinstance(parameter, infinicore.Tensor) and parameter.data_ptr() == data.data_ptr()
    other = copy.deepcopy(parameter)
    assert type(other) is nn.Parameter and other.data_ptr() != data.data_ptr() and (other == 1).all()
    with pytest.raises(TypeError, match="Tensor"):
        nn.Parameter([1.0])


def test_module_list():
    layers = nn.ModuleList(nn.Linear(1, n, bias=False) for n in (1, 2, 3))
    assert len(layers) == 3 and layers[-1].out_features == 3
    assert [m.out_features for m in layers[1:]] == [2, 3] and isinstance(layers[1:], nn.ModuleList)
    layers.append(nn.Linear(1, 4, bias=False)).insert(0, nn.Linear(1, 9, bias=False))
    layers += [nn.Linear(1, 5)]
    del layers[1]
    assert [m.out_features for m in layers] == [9, 2, 3, 4, 5]
    assert layers.pop().out_features == 5 and list(layers.state_dict()) == [f"{i}.weight" for i in range(4)]
    layers[0] = nn.Linear(1, 7)
    assert layers[0].out_features == 7
    with pytest.raises(IndexError, match="out of range"):
        layers[4]


def test_sequential():
    double = nn.Sequential(OrderedDict(a=nn.Linear(2, 2, bias=False), b=nn.Linear(2, 2, bias=False)))
    for layer in double:
        layer.load_state_dict({"weight": infinicore.tensor([[2.0, 0.0], [0.0, 2.0]])})
    assert double(infinicore.ones(1, 2)).tolist() == [[4.0, 4.0]]
    assert list(double.state_dict()) == ["a.weight", "b.weight"]
    assert list(double[1:].state_dict()) == ["b.weight"]
    assert "Linear(in_features=2" in repr(double)


def test_packed_linear(rng):
    """Row ranges of one weight, under names of their own."""
    packed = nn.PackedLinear(6, {"a": 3, "b": 5}, bias=True)
    assert list(packed.state_dict()) == ["a.weight", "a.bias", "b.weight", "b.bias"]
    x = infinicore.from_numpy(rng.standard_normal((4, 6)).astype(np.float32))
    whole = packed(x).detach().numpy()
    np.testing.assert_allclose(whole[:, :3], packed.a(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(whole[:, 3:], packed.b(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    nn.init.constant_(packed.b.weight, 0.5)
    nn.init.zeros_(packed.b.bias)
    np.testing.assert_allclose(
        packed(x).detach().numpy()[:, 3:], np.repeat(x.numpy().sum(1, keepdims=True) / 2, 5, 1), rtol=1e-5
    )
    packed.to(infinicore.float64)
    assert packed(x.double()).dtype is infinicore.float64
    nn.init.zeros_(packed.a.weight)
    assert (packed(x.double())[:, :3] == packed.a.bias).all()


def test_packed_linear_notices_new_parameters(rng):
    packed = nn.PackedLinear(6, {"a": 3, "b": 5})
    x = infinicore.from_numpy(rng.standard_normal((4, 6)).astype(np.float32))
    packed.b.weight = nn.Parameter(infinicore.zeros(5, 6))
    assert (packed(x)[:, 3:] == 0).all() and packed(x)[:, :3].any()
    nn.init.ones_(packed.b.weight)  # part of the pack again
    assert packed(x)[:, 3:].all()
    other = copy.deepcopy(packed)
    nn.init.zeros_(other.a.weight)
    assert (other(x)[:, :3] == 0).all() and packed(x)[:, :3].any()


def test_packed_linear_gradients(rng):
    """The gradients of the parts are those of separate layers, and an optimizer's step is seen by the pack."""
    packed = nn.PackedLinear(6, {"a": 3, "b": 5}, bias=True)
    apart = copy.deepcopy(packed)
    x, y = (infinicore.from_numpy(rng.standard_normal((4, 6)).astype(np.float32)) for _ in range(2))
    for _ in range(2):  # gradients accumulate
        packed(x).square().sum().backward()
        infinicore.cat([apart.a(x), apart.b(x)], -1).square().sum().backward()
    for left, right in zip(packed.parameters(), apart.parameters()):
        np.testing.assert_allclose(left.grad.numpy(), right.grad.numpy(), rtol=1e-5, atol=1e-5)
    packed.a.requires_grad_(False)
    packed.zero_grad()
    packed(x).sum().backward()
    assert packed.a.weight.grad is None and packed.b.weight.grad is not None
    with infinicore.no_grad():
        packed.b.weight -= packed.b.weight.grad * 0.1
    np.testing.assert_allclose(packed(y).detach().numpy()[:, 3:], packed.b(y).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_parameters_and_gradients():
    parameter = nn.Parameter(infinicore.ones(2))
    assert parameter.requires_grad and parameter.is_leaf and not nn.Parameter(parameter, False).requires_grad
    with pytest.raises(ValueError, match=r"requires_grad.*int64"):
        nn.Parameter(infinicore.tensor([1, 2]))
    assert nn.Parameter(infinicore.tensor([1, 2]), requires_grad=False).dtype is infinicore.int64
    net = Net()
    assert not any(p.requires_grad for p in net.requires_grad_(False).parameters())
    assert all(p.requires_grad for p in net.requires_grad_().parameters())
    net(infinicore.ones(2, 4)).sum().backward()
    assert net.first.weight.grad is not None
    net.zero_grad(set_to_none=False)
    assert not net.first.weight.grad.numpy().any()
    net.zero_grad()
    assert net.first.weight.grad is None


def test_pickle_and_deepcopy():
    net = Net()
    net.rest.append(net.first)  # shared
    nn.init.constant_(net.scale, 3.0)
    net.scale.requires_grad_(False)
    for other in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        assert list(other.state_dict()) == list(net.state_dict())
        assert other.rest[2] is other.first and other.first.weight is not net.first.weight
        assert type(other.scale) is nn.Parameter and not other.scale.requires_grad and other.first.weight.requires_grad
        assert other.scale.tolist() == [3.0] * 3
        nn.init.zeros_(other.scale)
        assert net.scale.tolist() == [3.0] * 3
        assert (other(infinicore.ones(1, 4)) == net(infinicore.ones(1, 4))).all()


def test_buffers():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = nn.Buffer(infinicore.zeros(2))
            self.scratch = nn.Buffer(infinicore.zeros(2), persistent=False)

    counter = Counter()
    assert [name for name, _ in counter.named_buffers()] == ["kept", "scratch"]
    assert list(counter.state_dict()) == ["kept"] and not list(counter.parameters())
    counter.kept = infinicore.ones(2)
    assert counter.get_buffer("kept").tolist() == [1.0, 1.0]
    with pytest.raises(AttributeError, match="no buffer"):
        counter.get_buffer("other")
    with pytest.raises(KeyError, match="already"):
        counter.register_buffer("forward", infinicore.ones(1))


def test_shared_modules_come_twice_in_the_state():
    layer = nn.Linear(2, 2)
    net = nn.Sequential(layer, layer)
    assert list(net.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert len(list(net.modules())) == 2 and len(list(net.parameters())) == 2
    net.load_state_dict(net.state_dict())


def test_load_state_dict_assign():
    net = Net()
    state = {name: infinicore.ones(tuple(v.shape), dtype=infinicore.float64) for name, v in net.state_dict().items()}
    held = net.scale
    assert repr(net.load_state_dict(state, assign=True)) == "<All keys matched successfully>"
    assert net.scale is not held and net.scale.data_ptr() == state["scale"].data_ptr() and net.scale.requires_grad
    assert net.count.dtype is infinicore.float64
    with pytest.raises(ValueError, match="scale"):
        net.load_state_dict({**state, "scale": infinicore.ones(4)}, assign=True)


def test_extra_state():
    class Counter(nn.Module):
        count = 0

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    net, other = nn.Sequential(Counter()), nn.Sequential(Counter())
    net[0].count = 5
    assert net.state_dict() == {"0._extra_state": {"count": 5}}
    other.load_state_dict(net.state_dict())
    assert other[0].count == 5
    with pytest.raises(ValueError, match=r"lacks '0._extra_state'"):
        other.load_state_dict({})


def test_set_submodule_and_type():
    net = Net()
    net.set_submodule("rest.1", nn.Linear(3, 2))
    assert net.rest[1].out_features == 2
    with pytest.raises(AttributeError, match=r"rest\.7"):
        net.set_submodule("rest.7", nn.Linear(3, 2), strict=True)
    assert net.type(infinicore.float64).scale.dtype is infinicore.float64


def test_train_calls_overrides():
    class Frozen(nn.Module):
        def train(self, mode=True):
            return super().train(False)

    net = nn.Sequential(Frozen(), nn.Dropout())
    assert not net.train()[0].training and net[1].training


def test_containers_by_name():
    net = nn.ModuleDict({"a": nn.Linear(1, 2), "b": nn.ReLU()})
    net["c"] = nn.Identity()
    net.update([("d", nn.Tanh())])
    assert list(net) == ["a", "b", "c", "d"] and "b" in net and len(net) == 4
    assert isinstance(net.pop("b"), nn.ReLU) and [name for name, _ in net.items()] == ["a", "c", "d"]
    assert list(net.state_dict()) == ["a.weight", "a.bias"]
    values = nn.ParameterDict({"w": infinicore.ones(2)})
    values["v"] = nn.Parameter(infinicore.zeros(3))
    assert list(values.state_dict()) == ["w", "v"] and values["w"].requires_grad and list(values.keys()) == ["w", "v"]
    numbers = nn.ParameterList([infinicore.ones(2), infinicore.zeros(1)])
    numbers.append(infinicore.ones(4))
    numbers[0] = nn.Parameter(infinicore.zeros(2))
    assert list(numbers.state_dict()) == ["0", "1", "2"] and [p.numel() for p in numbers[1:]] == [1, 4]
    assert numbers[-1].numel() == 4 and numbers[0].tolist() == [0.0, 0.0]


def test_repr_equals_torch():
    torch = pytest.importorskip("torch")

    def build(nn):
        block = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        return nn.Sequential(
            OrderedDict(
                blocks=nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), block, nn.Dropout(0.1)]),
                named=nn.ModuleDict({"x": nn.Tanh(), "e": nn.Embedding(3, 2, padding_idx=0)}),
                empty=nn.ModuleList(),
                loss=nn.CrossEntropyLoss(),
            )
        )

    assert repr(build(nn)) == repr(build(torch.nn))


def test_an_error_names_the_module():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(3, 4)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    net = nn.Sequential(OrderedDict(encoder=Block()))
    with pytest.raises(ValueError, match=r", in module `encoder.layers.1` \(Linear\)$") as caught:
        net(infinicore.ones(2, 4))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError) as caught:
        nn.Linear(3, 4)(infinicore.ones(2, 4))
    assert "in module" not in str(caught.value)
