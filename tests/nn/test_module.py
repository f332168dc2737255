"""Module, Parameter and containers behave as PyTorch's."""

import copy
from collections import OrderedDict

import numpy as np
import pytest

import infinicore
from infinicore import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3, bias=True)
        self.rest = nn.ModuleList([nn.Linear(3, 3), nn.RMSNorm(3)])
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
    assert net.state_dict()["scale"] is net.scale
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
    source.scale.fill_(7.0)
    result = target.load_state_dict(source.state_dict())
    assert result.missing_keys == [] and result.unexpected_keys == []
    assert target.scale.tolist() == [7.0] * 3 and target.scale.data_ptr() == address
    assert (target.first.weight.numpy() == source.first.weight.numpy()).all()


def test_load_state_dict_errors_change_nothing():
    net = Net()
    before = {name: value.numpy().copy() for name, value in net.state_dict().items()}
    good = {name: infinicore.ones(tuple(value.shape)) for name, value in net.state_dict().items()}
    cases = [
        ({**good, "scale": infinicore.ones(4)}, ValueError, r"scale.*\(4,\).*\(3,\)"),
        ({**good, "scale": infinicore.ones(3, dtype=infinicore.float64)}, ValueError, "float64"),
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
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    assert len(list(net.parameters())) == 1
    net.to(infinicore.float16)
    assert net[1].weight is net[0].weight and net[0].weight.dtype is infinicore.float16


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
    assert type(other) is nn.Parameter and other.data_ptr() != data.data_ptr() and (other.numpy() == 1).all()
    with pytest.raises(TypeError, match="Tensor"):
        nn.Parameter([1.0])


def test_module_list():
    layers = nn.ModuleList(nn.Linear(1, n) for n in (1, 2, 3))
    assert len(layers) == 3 and layers[-1].out_features == 3
    assert [m.out_features for m in layers[1:]] == [2, 3] and isinstance(layers[1:], nn.ModuleList)
    layers.append(nn.Linear(1, 4)).insert(0, nn.Linear(1, 9))
    layers += [nn.Linear(1, 5)]
    del layers[1]
    assert [m.out_features for m in layers] == [9, 2, 3, 4, 5]
    assert layers.pop().out_features == 5 and list(layers.state_dict()) == [f"{i}.weight" for i in range(4)]
    layers[0] = nn.Linear(1, 7)
    assert layers[0].out_features == 7
    with pytest.raises(IndexError, match="out of range"):
        layers[4]


def test_sequential():
    double = nn.Sequential(OrderedDict(a=nn.Linear(2, 2), b=nn.Linear(2, 2)))
    for layer in double:
        layer.weight.copy_(infinicore.tensor([[2.0, 0.0], [0.0, 2.0]]))
    assert double(infinicore.ones(1, 2)).tolist() == [[4.0, 4.0]]
    assert list(double.state_dict()) == ["a.weight", "b.weight"]
    assert list(double[1:].state_dict()) == ["b.weight"]
    assert "Linear(in_features=2" in repr(double)


def test_packed_linear(rng):
    """Row ranges of one weight, under names of their own."""
    packed = nn.PackedLinear(6, {"a": 3, "b": 5}, bias=True)
    assert list(packed.state_dict()) == ["a.weight", "a.bias", "b.weight", "b.bias"]
    x = infinicore.from_numpy(rng.standard_normal((4, 6)).astype(np.float32))
    whole = packed(x).numpy()
    np.testing.assert_allclose(whole[:, :3], packed.a(x).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(whole[:, 3:], packed.b(x).numpy(), rtol=1e-5, atol=1e-6)
    packed.b.weight.fill_(0.5)
    packed.b.bias.fill_(0.0)
    np.testing.assert_allclose(
        packed(x).numpy()[:, 3:], np.repeat(x.numpy().sum(1, keepdims=True) / 2, 5, 1), rtol=1e-5
    )
    packed.to(infinicore.float64)
    assert packed(x.double()).dtype is infinicore.float64
    packed.a.weight.fill_(0.0)
    assert (packed(x.double()).numpy()[:, :3] == packed.a.bias.numpy()).all()


def test_initialisation():
    infinicore.manual_seed(3)
    layer = nn.Linear(100, 50, bias=True)
    weight = layer.weight.numpy()
    assert abs(weight).max() <= 0.1 and weight.std() == pytest.approx(0.1 / 3**0.5, rel=0.1)
    assert (nn.RMSNorm(4).weight.numpy() == 1).all() and (nn.LayerNorm(4).bias.numpy() == 0).all()
    table = nn.Embedding(100, 50, padding_idx=3).weight.numpy()
    assert table.std() == pytest.approx(1, rel=0.1) and (table[3] == 0).all()
    w = infinicore.empty(40, 60)
    assert abs(nn.init.xavier_uniform_(w).numpy()).max() <= (6 / 100) ** 0.5
    assert abs(nn.init.kaiming_uniform_(w).numpy()).max() <= (6 / 60) ** 0.5
    with pytest.raises(ValueError, match="2 dims"):
        nn.init.xavier_uniform_(infinicore.empty(3))


def test_packed_linear_notices_new_parameters(rng):
    packed = nn.PackedLinear(6, {"a": 3, "b": 5})
    x = infinicore.from_numpy(rng.standard_normal((4, 6)).astype(np.float32))
    packed.b.weight = nn.Parameter(infinicore.zeros(5, 6))
    assert (packed(x).numpy()[:, 3:] == 0).all() and packed(x).numpy()[:, :3].any()
    packed.b.weight.fill_(1.0)  # part of the pack again
    assert packed(x).numpy()[:, 3:].all()
    other = copy.deepcopy(packed)
    other.a.weight.fill_(0.0)
    assert (other(x).numpy()[:, :3] == 0).all() and packed(x).numpy()[:, :3].any()
