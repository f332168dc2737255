"""A second device under the same house: `host2`, which lies in the same RAM, and which the host must ask for values."""

import copy
import math
import pickle

import numpy as np
import pytest
from infinicore.kernels import OPS

import infinicore as ic
from infinicore import dispatch, nn, optim
from infinicore.core import launch
from infinicore.device import Device
from infinicore.dispatch.functions import FUNCTIONS

FLOATS = ("float16", "bfloat16", "float32", "float64")
NUMBERS = (*FLOATS, *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


@pytest.fixture(scope="module")
def other(host2):
    return host2.device()


@pytest.fixture
def placed(host2):
    return host2.placed


def test_a_device_is_one_object(other):
    assert Device("host2") is other and ic.device("host2:0") is other and other == ic.device("host2", 0)
    assert pickle.loads(pickle.dumps(other)) is other and copy.deepcopy(other) is other
    if not ic.cuda.device_count():
        with pytest.raises(NotImplementedError, match="`device` 'cuda' needs an NVIDIA GPU"):
            ic.zeros(2, device="cuda")
    with pytest.raises(NotImplementedError, match="cpu:1"):
        ic.zeros(2, device="cpu:1")


def test_tensors_are_made_there_and_copied_by_to(other, rng):
    array = rng.standard_normal((3, 5)).astype(np.float32)
    x = ic.from_numpy(array).to("host2")
    assert x.device is other and x.storage.backend is other.backend
    np.testing.assert_array_equal(x.cpu().numpy(), array)
    np.testing.assert_array_equal(x.T.to("cpu").numpy(), array.T)
    assert x.to("host2") is x and x.to(ic.float64).device is other
    for y in (ic.zeros(2, 3, device=other), ic.full((2, 3), 7, device=other), ic.arange(6, device=other)):
        assert y.device is other
    assert ic.empty_like(x).device is other and ic.zeros_like(x, device="cpu").device is ic.device("cpu")
    assert ic.tensor([1.0, 2.0], device=other).tolist() == [1.0, 2.0]
    for draw in (ic.rand, ic.randn):
        a = draw(4, generator=ic.Generator(3), device=other)
        assert a.device is other and a.tolist() == draw(4, generator=ic.Generator(3)).tolist()
    y = ic.zeros(3, 5)
    y.copy_(x)
    np.testing.assert_array_equal(y.numpy(), array)
    y = ic.zeros(3, 5, device=other)
    y.copy_(ic.from_numpy(array).T.contiguous().T)
    assert y.tolist() == x.tolist()


def test_what_reads_values_asks_the_backend(other, rng):
    x = ic.tensor([[1.5, 2.0], [3.0, 4.0]], device=other)
    before = other.backend.asked["read"]
    assert x[1, 0].item() == 3.0 and float(x[0, 0]) == 1.5 and bool(x[0, 0] > 1)
    assert repr(x) == f"{repr(x.cpu())[:-1]}, device='host2:0')"
    assert pickle.loads(pickle.dumps(x)).tolist() == x.tolist() and pickle.loads(pickle.dumps(x)).device is other
    assert copy.deepcopy(x).device is other
    assert other.backend.asked["read"] > before
    with pytest.raises(TypeError, match=r"host2:0.*`\.cpu\(\)`"):
        x.numpy()
    with pytest.raises(BufferError, match="host2:0"):
        x.__dlpack__()


@pytest.mark.parametrize("name", ["bool", *NUMBERS])
def test_one_number_is_read_by_itself(other, name):
    """As the CPU reads it: also the smallest and the largest, infinities, and one behind others."""
    most = (
        [ic.finfo(name).max, ic.finfo(name).tiny] if name in FLOATS else [1] if name == "bool" else [ic.iinfo(name).max]
    )
    values = [0, 1, *most, *([-2.5, math.inf, -math.inf, -0.0] if name in FLOATS else [])]
    x = ic.tensor(values, dtype=ic.dtype(name))
    there, before = x.to(other), other.backend.asked["allocate"]
    for i in range(len(values)):
        got, wanted = there[i].item(), x[i].item()
        assert type(got) is type(wanted) and (got, math.copysign(1, got)) == (wanted, math.copysign(1, wanted))
    assert other.backend.asked["allocate"] == before
    ic.start_graph_recording(other)
    try:
        with pytest.raises(NotImplementedError, match="reading the values of a tensor cannot be recorded"):
            there[0].item()
    finally:
        ic.stop_graph_recording()


def test_operands_of_two_devices_are_refused(other):
    here, there = ic.ones(2, 3), ic.ones(2, 3, device=other)
    for function in (ic.add, ic.maximum, ic.mul):
        with pytest.raises(ValueError, match=r"one device.*cpu:0.*host2:0.*`\.to\(\)`"):
            function(here, there)
        with pytest.raises(ValueError, match="one device"):
            function(there, there, out=here)
    with pytest.raises(ValueError, match=r"`input` on cpu:0.*`other` on host2:0"):
        ic.matmul(here, there.T)
    with pytest.raises(ValueError, match="one device"):
        ic.cat([here, there])
    with pytest.raises(ValueError, match="host2:0"):
        ic.softmax(there, -1, out=here)
    leaf = ic.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="host2"):
        leaf.grad = ic.ones(2, device=other)


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.samples], ids=lambda op: op.name)
def test_every_row_refuses_operands_of_two_devices(op, other, placed, rng):
    """Each tensor in turn of the first sample with several goes to the other device."""

    def tensors(value, dtype):
        if isinstance(value, (list, tuple)) and any(isinstance(v, np.ndarray) for v in value):
            return [tensors(v, dtype) for v in value]
        if isinstance(value, np.ndarray):
            return ic.from_numpy(value.astype(ic.dtype(dtype).numpy) if value.dtype.kind == "f" else value.copy())
        return value

    dtype = "float32" if "float32" in op.dtypes else op.dtypes[0]
    for args, kwargs in op.samples(rng):
        args = [tensors(a, dtype) for a in args]
        kwargs = {name: tensors(a, dtype) for name, a in kwargs.items()}
        moved = [i for i, a in enumerate(args) if isinstance(a, ic.Tensor)]
        if len(moved) + sum(isinstance(a, ic.Tensor) for a in kwargs.values()) < 2:
            continue
        for i in moved:
            mixed = [placed(a, other) if k == i else a for k, a in enumerate(args)]
            with pytest.raises(ValueError, match="one device"):
                FUNCTIONS[op.name](*mixed, **kwargs)
        return


def test_gradients_follow_a_copy_back(other):
    x = ic.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x.to(other)
    (y * y * y).sum().backward()
    assert x.grad.device is ic.device("cpu") and x.grad.tolist() == [3.0, 12.0, 27.0]


def train(device, steps=3):
    rng = np.random.default_rng(5)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    for p in model.parameters():
        p.data = ic.from_numpy(rng.standard_normal(tuple(p.shape)).astype(np.float32) * 0.3).to(device)
    step = optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        x = ic.from_numpy(rng.standard_normal((8, 6)).astype(np.float32)).to(device)
        target = ic.from_numpy(rng.integers(0, 4, 8)).to(device)
        loss = nn.functional.cross_entropy(model(x), target)
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu().numpy() for p in model.parameters()]


def test_training_there_is_training_here(other):
    losses, values = train(other)
    expected_losses, expected = train(ic.device("cpu"))
    assert losses == expected_losses
    for a, b in zip(values, expected):
        np.testing.assert_array_equal(a, b)


def test_graphs_and_known_calls_use_its_memory(other, placed, rng):
    x, w = placed(ic.from_numpy(rng.standard_normal((4, 8)).astype(np.float32)), other), ic.ones(8, device=other)
    first = ic.rms_norm(x, w)
    for _ in range(3):  # from the second call on known, where the core is compiled
        y = ic.rms_norm(x, w)
        assert y.device is other and y.storage.backend is other.backend and y.tolist() == first.tolist()
    ic.start_graph_recording(other)
    y = ic.softmax(ic.matmul(x, x.T) * 0.1, -1)
    graph = ic.stop_graph_recording()
    x.fill_(0)
    graph.run()
    np.testing.assert_allclose(y.cpu().numpy(), np.full((4, 4), 0.25), rtol=1e-6)
    assert launch.recording() is None


@pytest.mark.parametrize("where", ["cpu", "host2"])
def test_a_mirror_has_values_of_the_moment(where, other):
    one = dispatch.mirror((3,), ic.int64, other if where == "host2" else ic.device("cpu"))
    for number in range(3):  # more than there are places beside it
        one.host[:] = [number, 2, 3]
        one.flush()
        one.note()
        one.tensor.add_(1)
        assert one.noted().tolist() == [number, 2, 3]
        assert one.host.tolist() == ([number, 2, 3] if where == "host2" else [number + 1, 3, 4])
        one.fetch()
        assert one.host.tolist() == one.tensor.cpu().tolist() == [number + 1, 3, 4]
