"""Initialisation: statistics of the rules, and those of every layer against PyTorch's."""

import math

import numpy as np
import pytest
from infinicore.distributed import deferred_init, materialize_module

import infinicore as ic
from infinicore import nn
from infinicore.nn import init


@pytest.fixture(autouse=True)
def seed():
    ic.manual_seed(3)


def filled(function, *args, shape=(200, 300), **kwargs):
    tensor = ic.empty(*shape)
    assert function(tensor, *args, **kwargs) is tensor
    return tensor.numpy()


def uniform_within(values, bound):
    assert abs(values).max() <= bound and abs(values).max() > 0.99 * bound
    assert values.std() == pytest.approx(bound / 3**0.5, rel=0.02) and abs(values.mean()) < 0.02 * bound


def normal_of(values, std):
    assert values.std() == pytest.approx(std, rel=0.02) and abs(values.mean()) < 0.02 * std
    assert (abs(values) < std).mean() == pytest.approx(0.6827, abs=0.01)


def test_plain_rules():
    values = filled(init.uniform_, -1.0, 3.0)
    assert values.min() >= -1 and values.max() < 3 and values.mean() == pytest.approx(1, abs=0.02)
    normal_of(filled(init.normal_, 0.0, 2.0), 2.0)
    assert (filled(init.constant_, 2.5) == 2.5).all()
    assert (filled(init.ones_) == 1).all() and (filled(init.zeros_) == 0).all()
    assert (filled(init.eye_, shape=(3, 5)) == np.eye(3, 5)).all()


def test_fan_rules():
    uniform_within(filled(init.xavier_uniform_), math.sqrt(6 / 500))
    uniform_within(filled(init.xavier_uniform_, gain=2.0), 2 * math.sqrt(6 / 500))
    normal_of(filled(init.xavier_normal_), math.sqrt(2 / 500))
    uniform_within(filled(init.kaiming_uniform_), math.sqrt(6 / 300))
    uniform_within(filled(init.kaiming_uniform_, a=math.sqrt(5)), 1 / math.sqrt(300))
    uniform_within(filled(init.kaiming_uniform_, mode="fan_out", nonlinearity="linear"), math.sqrt(3 / 200))
    normal_of(filled(init.kaiming_normal_, nonlinearity="relu"), math.sqrt(2 / 300))
    normal_of(filled(init.kaiming_normal_, mode="fan_out", shape=(40, 30, 5, 5)), math.sqrt(2 / (40 * 25)))


@pytest.mark.parametrize("limits", [(-2.0, 2.0), (0.5, 1.0), (-30.0, 0.0)])
def test_trunc_normal(limits):
    a, b = limits
    values = filled(init.trunc_normal_, 0.2, 0.7, a, b).astype("float64")
    assert values.min() >= a and values.max() <= b
    low, high = (a - 0.2) / 0.7, (b - 0.2) / 0.7
    phi = [math.exp(-z * z / 2) / math.sqrt(2 * math.pi) for z in (low, high)]
    mass = [(1 + math.erf(z / math.sqrt(2))) / 2 for z in (low, high)]
    total = mass[1] - mass[0]
    mean = (phi[0] - phi[1]) / total
    variance = 1 + (low * phi[0] - high * phi[1]) / total - mean**2
    assert values.mean() == pytest.approx(0.2 + 0.7 * mean, abs=0.01)
    assert values.std() == pytest.approx(0.7 * math.sqrt(variance), rel=0.02)


@pytest.mark.parametrize("shape", [(30, 30), (40, 10), (10, 4, 5), (1, 7)])
def test_orthogonal(shape):
    values = filled(init.orthogonal_, gain=1.5, shape=shape).reshape(shape[0], -1).astype("float64")
    product = values @ values.T if values.shape[0] <= values.shape[1] else values.T @ values
    np.testing.assert_allclose(product, 2.25 * np.eye(len(product)), atol=2e-6)


def test_sparse_and_dirac(rng):
    values = filled(init.sparse_, 0.3, shape=(50, 40))
    assert ((values == 0).sum(0) == 15).all()
    assert values[values != 0].std() == pytest.approx(0.01, rel=0.1)
    layer = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
    init.dirac_(layer.weight, groups=2)
    x = ic.tensor(rng.standard_normal((2, 4, 5, 5)).astype("float32"))
    np.testing.assert_array_equal(layer(x).detach().numpy(), x.numpy())
    torch = pytest.importorskip("torch")
    theirs = torch.nn.init.dirac_(torch.empty(6, 2, 3), groups=3)
    np.testing.assert_array_equal(filled(init.dirac_, groups=3, shape=(6, 2, 3)), theirs.numpy())


@pytest.mark.parametrize("name", ["linear", "conv2d", "sigmoid", "tanh", "relu", "selu", "leaky_relu"])
def test_gains(name):
    torch = pytest.importorskip("torch")
    assert init.calculate_gain(name) == pytest.approx(torch.nn.init.calculate_gain(name))
    if name == "leaky_relu":
        assert init.calculate_gain(name, 0.3) == pytest.approx(torch.nn.init.calculate_gain(name, 0.3))


LAYERS = [
    ("Linear", (200, 150), {}),
    ("Bilinear", (30, 20, 25), {}),
    ("Conv1d", (40, 30, 5), {}),
    ("Conv2d", (20, 30, 3), {"groups": 2}),
    ("Embedding", (100, 50), {"padding_idx": 3}),
    ("MultiheadAttention", (64, 4), {}),
    ("MultiheadAttention", (64, 4), {"kdim": 32, "vdim": 80, "add_bias_kv": True}),
    ("Transformer", (32, 2, 1, 1, 64), {}),
    ("LayerNorm", (5,), {}),
    ("RMSNorm", (5,), {}),
    ("BatchNorm1d", (5,), {}),
    ("GroupNorm", (2, 6), {}),
    ("PReLU", (5,), {}),
]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("name, args, options", LAYERS, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(LAYERS)])
def test_layers_start_as_torch(name, args, options):
    """Mean, standard deviation and extremes of every parameter; a second `reset_parameters` draws anew."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    ours, theirs = getattr(nn, name)(*args, **options), getattr(torch.nn, name)(*args, **options)
    for (key, a), b in zip(ours.state_dict().items(), theirs.state_dict().values()):
        a, b = a.numpy().astype("float64"), b.numpy().astype("float64")
        assert a.shape == b.shape, key
        noise = 5 / math.sqrt(a.size)  # of the estimates of mean and deviation, in deviations
        assert a.std() == pytest.approx(b.std(), rel=noise), key
        assert abs(a.mean() - b.mean()) <= noise * b.std() + 1e-12, key
        if a.size >= 1000 and name != "Embedding":
            assert abs(a).max() == pytest.approx(abs(b).max(), rel=0.1), key
    before = {key: v.numpy().copy() for key, v in ours.state_dict().items()}
    if hasattr(ours, "reset_parameters"):
        ours.reset_parameters()
        assert all(p.requires_grad for p in ours.parameters())
        drawn = [k for k, v in before.items() if v.std() > 0]
        assert all((ours.state_dict()[k].numpy() != before[k]).any() for k in drawn)


def test_seeds_and_skipping():
    ic.manual_seed(5)
    first = nn.Linear(4, 4).weight.tolist()
    ic.manual_seed(5)
    assert nn.Linear(4, 4).weight.tolist() == first
    generator = ic.Generator(7)
    values = init.normal_(ic.empty(3), generator=generator).tolist()
    assert init.normal_(ic.empty(3), generator=ic.Generator(7)).tolist() == values
    state = ic.get_rng_state()
    with init.skipped():
        nn.Linear(4, 4), nn.Transformer(8, 2, 1, 1, 8)
    assert ic.get_rng_state() == state


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: init.xavier_uniform_(ic.empty(3)), ValueError, "2 dims"),
        (lambda: init.orthogonal_(ic.empty(3)), ValueError, "dims"),
        (lambda: init.eye_(ic.empty(3, 3, 3)), ValueError, "dims"),
        (lambda: init.dirac_(ic.empty(3, 2, 3), groups=2), ValueError, "groups"),
        (lambda: init.uniform_(ic.tensor([1, 2])), TypeError, "int64"),
        (lambda: init.kaiming_uniform_(ic.empty(3, 3), mode="out"), ValueError, "mode"),
        (lambda: init.kaiming_uniform_(ic.empty(3, 3), nonlinearity="step"), ValueError, "nonlinearity"),
        (lambda: init.trunc_normal_(ic.empty(3), a=1.0, b=0.0), ValueError, "below"),
    ],
)
def test_wrong_arguments(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_deferred_numbers_are_those_of_at_once():
    """Parameters, rows of one, a head that is tied afterwards; what is a tensor already is left alone."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 4, padding_idx=2)
            self.norm = nn.BatchNorm1d(4)
            self.head = nn.Linear(4, 5)
            self.head.weight = self.embedding.weight
            self.last = nn.Linear(3, 2)
            self.own = nn.Parameter(ic.ones(3))

    def made():
        ic.manual_seed(3)
        return Model()

    expected = made().state_dict()
    model = deferred_init(made)
    with pytest.raises(RuntimeError, match="deferred_init"):
        model(1)
    with init.deferred(), pytest.raises(NotImplementedError, match="right after the whole"):
        layers = nn.Linear(4, 3), nn.Linear(2, 2)
        init.zeros_(layers[0].weight.detach()[1])
    found = materialize_module(model).state_dict()
    assert all((found[name] == x).all() for name, x in expected.items())
