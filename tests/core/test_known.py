"""Calls of known layouts, which go straight to their launch: they must be what the whole call is."""

import numpy as np
import pytest
from infinicore.kernels import OPS

import infinicore as ic
from infinicore import autograd, core, dispatch

compiled = pytest.mark.skipif(not core.compiled(), reason="the core in Python knows no calls")


def array(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@compiled
def test_a_third_call_leaves_python_out(rng, monkeypatch):
    a, b = ic.from_numpy(array(rng, 6, 21)), ic.from_numpy(array(rng, 21, 17))
    first = [ic.matmul(a, b) for _ in range(2)][1]
    monkeypatch.setattr("infinicore.dispatch.Call.__init__", None)  # any other call fails
    assert (ic.matmul(a, b).numpy() == first.numpy()).all()
    assert ((a @ b).numpy() == first.numpy()).all()


@compiled
def test_layers_are_known_calls_outside_of_a_graph(rng, monkeypatch):
    layer, x = ic.nn.Linear(24, 10), ic.from_numpy(array(rng, 3, 24))
    with ic.no_grad():
        first = [layer(x) for _ in range(2)][1]
        monkeypatch.setattr("infinicore.dispatch.Call.__init__", None)
        for y in (layer(x), ic.nn.functional.linear(x, layer.weight, layer.bias)):
            assert type(y) is ic.Tensor and (y.numpy() == first.numpy()).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32"])
def test_layouts_and_values_may_change_between_calls(dtype, rng):
    for _ in range(3):  # the second and third time, all of them are known
        for m, k, n in ((1, 40, 40), (3, 5, 70), (40, 40, 40), (65, 33, 30), (2, 9000, 3), (150, 64, 150)):
            a, b = (ic.from_numpy(array(rng, *shape) * 4).to(getattr(ic, dtype)) for shape in ((m, k), (k, n)))
            turned = b.t().contiguous().t()
            exact = a.to(ic.float64).numpy() @ b.to(ic.float64).numpy()
            bound = {"float16": 2e-2, "bfloat16": 0.1}.get(dtype, 1e-4) * np.sqrt(k) * 16
            for other in (b, turned):
                assert np.abs(ic.matmul(a, other).to(ic.float64).numpy() - exact).max() <= bound
            if dtype != "int32":
                bias = ic.from_numpy(array(rng, n)).to(getattr(ic, dtype))
                for given in ((), (None,), (bias,)):
                    y = ic.linear(a, turned.t(), *given).to(ic.float64).numpy()
                    added = bias.to(ic.float64).numpy() if given == (bias,) else 0
                    assert np.abs(y - exact - added).max() <= bound


def test_other_arguments_are_no_known_call(rng):
    a, b = ic.from_numpy(array(rng, 4, 8)), ic.from_numpy(array(rng, 8, 5))
    doubled = ic.matmul(a, b, alpha=2.0)
    plain = ic.matmul(a, b)
    np.testing.assert_allclose(doubled.numpy(), 2 * plain.numpy(), rtol=1e-6)
    out = ic.empty((4, 5))
    assert ic.matmul(a, b, out=out) is out
    assert (out.numpy() == plain.numpy()).all()
    weight = b.t().contiguous()
    straight = ic.linear(a, weight)
    np.testing.assert_allclose(ic.linear(a, weight, activation="relu").numpy(), np.maximum(straight.numpy(), 0))
    with pytest.raises(TypeError):
        ic.matmul(a, 3.0)
    with pytest.raises(ValueError, match="matching inner sizes"):
        ic.matmul(a, a)


def test_gradients_autocast_and_graphs_see_known_calls(rng):
    a, b = ic.from_numpy(array(rng, 4, 8)), ic.from_numpy(array(rng, 8, 5))
    before = [ic.matmul(a, b) for _ in range(2)][1].numpy()
    a.requires_grad = True
    y = ic.matmul(a, b)
    y.sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), np.tile(b.numpy().sum(1), (4, 1)), rtol=1e-5)
    with ic.no_grad():
        assert not ic.matmul(a, b).requires_grad
    a.requires_grad = False
    with ic.amp.autocast(dtype=ic.bfloat16):
        assert ic.matmul(a, b).dtype is ic.bfloat16
    ic.start_graph_recording()
    y = ic.matmul(a, b)
    graph = ic.stop_graph_recording()
    assert (y.numpy() == before).all()
    a.mul_(2.0)
    graph.run()
    np.testing.assert_allclose(y.numpy(), 2 * before, rtol=1e-6)


@compiled
def test_what_known_calls_keep_for_backward_is_their_own(rng):
    """A call under gradients that saves new tensors (sums of rows, statistics) is known the second time."""
    F = ic.nn.functional
    calls = {
        "cross_entropy": lambda x, w, y: F.cross_entropy(x, y, label_smoothing=0.1),
        "layer_norm": lambda x, w, y: F.layer_norm(x, (7,), w, bias=w).square().sum(),
        "rms_norm": lambda x, w, y: F.rms_norm(x, (7,), w).square().sum(),
    }
    for name, call in calls.items():
        row = OPS[name]
        w = ic.from_numpy(array(rng, 7)).requires_grad_()
        given = [(ic.from_numpy(array(rng, 5, 7)).requires_grad_(), ic.tensor(rng.integers(0, 7, 5))) for _ in range(3)]
        wanted = []
        for x, y in given:
            row.training.clear()
            wanted.append(autograd.grad(call(x, w, y), (x, w), allow_unused=True))
        row.training.clear()
        results = [call(x, w, y) for x, y in given]  # all before the first gradient: each must have memory of its own
        assert len(row.training) == 1
        for (x, _), result, expected in zip(given, results, wanted):
            found = autograd.grad(result, (x, w), allow_unused=True)
            assert all(g is h is None or g.equal(h) for g, h in zip(found, expected)), name
    with pytest.raises(ValueError, match="a class from 0 to 6"):
        calls["cross_entropy"](given[0][0], w, ic.tensor([0, 1, 2, 3, 7]))


def test_the_number_of_threads_is_part_of_a_layout(rng):
    a, b = ic.from_numpy(array(rng, 300, 200)), ic.from_numpy(array(rng, 200, 300))
    count, exact = ic.get_num_threads(), a.numpy() @ b.numpy()
    try:
        for threads in (1, 2, 1, 3, 2):
            ic.set_num_threads(threads)
            np.testing.assert_allclose(ic.matmul(a, b).numpy(), exact, atol=1e-3)
    finally:
        ic.set_num_threads(count)


@compiled
def test_a_full_table_starts_afresh(rng, monkeypatch):
    table = OPS["matmul"].known
    table.clear()
    table.update({("filler", i): None for i in range(4096)})
    a, b = ic.from_numpy(array(rng, 3, 4)), ic.from_numpy(array(rng, 4, 3))
    ic.matmul(a, b)
    if len(table) > 4000:  # the product itself remembered these layouts from another test
        ic.matmul(a, ic.from_numpy(array(rng, 4, 1237)))
    assert len(table) < 10


@compiled
def test_draws_are_known_for_any_numbers(monkeypatch):
    draw = dispatch.functions.FUNCTIONS["seeded_normal"]
    cases = [(0.5, 2.0, 7), (-1e9, 0.0, 2**62 + 1), (0.0, 1.0, -3), (float("inf"), 1.0, 0)]
    mixed = [(0, 1, 7), (0.0, 1, 7), (0.5, 2.0, 2**63 + 5)]  # other types, and a seed of 64 bits, go the long way
    expected = [draw(ic.empty(130, dtype=ic.float32), *numbers).numpy() for numbers in cases + mixed]
    for numbers, values in zip(mixed, expected[len(cases) :]):
        for _ in range(3):
            np.testing.assert_array_equal(draw(ic.empty(130, dtype=ic.float32), *numbers).numpy(), values)
    x = ic.empty(130, dtype=ic.float32)
    monkeypatch.setattr("infinicore.dispatch.Call.__init__", None)
    for numbers, values in zip(cases, expected):
        version = x.storage.version
        assert draw(x, *numbers) is x and x.storage.version == version + 1
        np.testing.assert_array_equal(x.numpy(), values)
    ic.manual_seed(3)
    first = ic.randn(130).tolist()
    ic.manual_seed(3)
    assert x.normal_().tolist() == first


@compiled
@pytest.mark.parametrize("target", ["float64", "bfloat16", "int32", "bool"])
def test_casts_into_a_tensor_are_known(target, rng, monkeypatch):
    rows, x = ic.empty(3, 40, dtype=getattr(ic, target)), ic.from_numpy(array(rng, 40) * 3)
    for _ in range(2):
        rows.copy_(x)
    x.mul_(-1.5)
    monkeypatch.setattr("infinicore.dispatch.launcher.Launcher.__init__", None)
    version = rows.storage.version
    rows.copy_(x)
    assert rows.storage.version > version
    expected = x.numpy().astype(rows.dtype.numpy)
    assert (rows.numpy() == expected).all()
    halves = ic.empty(40, dtype=ic.float64)[:20], x[20:]  # another layout, and parts of tensors
    monkeypatch.undo()
    for _ in range(3):
        halves[0].copy_(halves[1])
    assert (halves[0].numpy() == x.numpy()[20:]).all()


def test_backward_sees_a_known_draw():
    x, w = ic.ones(8, dtype=ic.float32), ic.ones(8).requires_grad_()
    for _ in range(3):
        y = (w * x).sum()
        x.normal_()
        with pytest.raises(ValueError, match="in place"):
            y.backward()
