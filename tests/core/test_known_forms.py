"""Known calls of every form: lists, numbers, several results, results in place, copies. Each runs three times."""

import math

import numpy as np
import pytest
from infinicore.kernels import OPS

import infinicore as ic
from infinicore import core

compiled = pytest.mark.skipif(not core.compiled(), reason="the core in Python knows no calls")


@pytest.fixture
def f(rng):
    """A new float32 tensor of a shape."""
    return lambda *shape: ic.from_numpy(rng.standard_normal(shape).astype(np.float32))


@pytest.fixture
def python_ends(monkeypatch):
    """From its call on, an op whose paragraph runs in Python fails."""

    def end():
        monkeypatch.setattr("infinicore.dispatch.Call.__init__", None)
        monkeypatch.setattr("infinicore.dispatch.functions.dispatch.elementwise", None)

    return end


FORMS = {
    "broadcast": (lambda a, b: a + b[0], lambda a, b: a + b[0]),
    "strided": (lambda a, b: a.t() * b.t(), lambda a, b: (a * b).T),
    "number": (lambda a, b: 2.5 - a, lambda a, b: np.float32(2.5) - a),
    "int number": (lambda a, b: a * 3, lambda a, b: a * 3),
    "compare": (lambda a, b: a > 0.25, lambda a, b: a > 0.25),
    "where": (lambda a, b: ic.where(a > b, a, -1.0), lambda a, b: np.where(a > b, a, np.float32(-1))),
    "defaults": (lambda a, b: ic.leaky_relu(a), lambda a, b: np.where(a > 0, a, a * np.float32(0.01))),
    "clamp": (lambda a, b: a.clamp(-0.5, 0.5), lambda a, b: np.clip(a, -0.5, 0.5)),
    "cast": (lambda a, b: a.to(ic.int32), lambda a, b: a.astype(np.int32)),
    "cat": (lambda a, b: ic.cat([a, b]), lambda a, b: np.concatenate([a, b])),
    "cat in rows": (lambda a, b: ic.cat((a, b), dim=1), lambda a, b: np.concatenate([a, b], 1)),
    "stack": (lambda a, b: ic.stack([a, b], 1), lambda a, b: np.stack([a, b], 1)),
    "dims": (lambda a, b: a.sum((0, 1)), lambda a, b: a.astype(np.float64).sum()),
    "max": (lambda a, b: a.max(1).values, lambda a, b: a.max(1)),
    "topk": (lambda a, b: ic.topk(a, 3)[1], lambda a, b: np.argsort(-a, 1)[:, :3]),
    "pad": (lambda a, b: ic.nn.functional.pad(a, (1, 2)), lambda a, b: np.pad(a, ((0, 0), (1, 2)))),
    "roll": (lambda a, b: ic.roll(a, 2, 1), lambda a, b: np.roll(a, 2, 1)),
    "std": (lambda a, b: a.std(), lambda a, b: a.std(ddof=1)),
    "contiguous": (lambda a, b: a.t().contiguous(), lambda a, b: a.T),
    "named": (lambda a, b: ic.softmax(a, dim=1), lambda a, b: np.exp(a) / np.exp(a).sum(1, keepdims=True)),
    "norm of many": (lambda a, b: ic.multi_norm([a] + [b + i for i in range(40)], 2.0), lambda a, b: math.sqrt(
        float((a.astype(np.float64) ** 2).sum() + sum(((b.astype(np.float64) + i) ** 2).sum() for i in range(40))))),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_every_form_stays_right(name, f):
    ours, exact = FORMS[name]
    for _ in range(4):
        a, b = f(6, 10), f(6, 10)
        y = ours(a, b)
        assert y.is_contiguous() or name == "strided"
        np.testing.assert_allclose(y.numpy(), exact(a.numpy(), b.numpy()), rtol=1e-5, atol=1e-6)


@compiled
@pytest.mark.parametrize("name", [name for name in FORMS if name != "norm of many"])
def test_every_form_becomes_known(name, f, python_ends):
    ours, _ = FORMS[name]
    first = [ours(f(6, 10), f(6, 10)) for _ in range(2)][1]
    python_ends()
    assert ours(f(6, 10), f(6, 10)).shape == first.shape


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int64", "int32", "uint8", "bool"])
def test_numbers_are_no_part_of_what_is_known(dtype):
    x = ic.tensor([0.0, 1.0, 2.0, 3.0]).to(getattr(ic, dtype))
    numbers = [2.0, -0.0, 0.0, math.nan, math.inf, 1e300, 1e-300, 0.1, 3, 0, -7, 2**29, 2**31, True, np.float32(0.5)]
    for number in numbers:
        if dtype in ("int32", "uint8") and type(number) is int and not 0 <= number < 200:
            continue
        own = ic.full((), number, dtype=ic.float64) if isinstance(number, float) else None
        for op in ("mul", "gt"):
            y = getattr(ic, op)(x, number)
            OPS[op].known.clear()
            again = getattr(ic, op)(x, number)
            assert y.dtype is again.dtype
            np.testing.assert_array_equal(y.to(ic.float64).numpy(), again.to(ic.float64).numpy())
            if own is not None and dtype == "float64":
                np.testing.assert_array_equal(y.numpy(), getattr(ic, op)(x, own.expand(4)).numpy())
    for sign in (0.0, -0.0, 0.0):
        assert math.copysign(1, (ic.zeros(2) * sign).numpy()[0]) == math.copysign(1, sign)


def test_results_in_place_count_as_writes(f):
    for _ in range(4):
        a, b = f(6, 10), f(6, 10)
        for write in (lambda: a.zero_(), lambda: a.copy_(b), lambda: a.mul_(2.0), lambda: ic.add(a, b, out=a)):
            before = a.storage.version
            assert write() is a and a.storage.version > before
        np.testing.assert_array_equal(a.numpy(), b.numpy() * 3)
        w = f(10).requires_grad_()
        y = (w * w.detach()).sum()
        with ic.no_grad():
            w.detach().mul_(2.0)
        with pytest.raises(ValueError, match="changed in place"):
            y.backward()


def test_operands_that_share_memory_are_seen_each_time(f):
    for _ in range(3):  # known after the first
        ic.add(f(8), f(8), out=f(8))
        f(8).copy_(f(8))
    x = f(12)
    old = x.numpy().copy()
    ic.add(x[:8], x[2:10], out=x[1:9])
    np.testing.assert_array_equal(x.numpy()[1:9], old[:8] + old[2:10])
    x = f(12)
    old = x.numpy().copy()
    x[2:10].copy_(x[:8])
    np.testing.assert_array_equal(x.numpy()[2:10], old[:8])
    same = f(8)
    old = same.numpy().copy()
    for _ in range(2):
        np.testing.assert_array_equal(ic.cat([same, same]).numpy(), np.tile(old, 2))
        np.testing.assert_array_equal(ic.cat([same, f(8)]).numpy()[:8], old)


def test_errors_of_kernels_come_through_known_calls(f):
    table = f(5, 3)
    for index in ([0, 4], [1, 1], [2, 5], [0, 0], [-6, 0]):
        index = ic.tensor(index)
        if index.min().item() >= -5 and index.max().item() < 5:
            np.testing.assert_array_equal(table[index].numpy(), table.numpy()[index.numpy()])
        else:
            with pytest.raises(ValueError, match="must be within"):
                table[index]


def test_gradients_of_numbers_and_lists(f):
    for _ in range(3):
        a, b = f(4, 3).requires_grad_(), f(4, 3)
        y = ic.cat([a * 2.0, b]).sum() + (a + 1.0).clamp(-1.0, 1.0).sum()
        y.backward()
        inside = np.abs(a.detach().numpy() + 1.0) <= 1.0
        np.testing.assert_allclose(a.grad.numpy(), 2.0 + inside)


def test_graphs_record_what_is_known(f):
    a, b = f(4, 3), f(4, 3)
    for _ in range(2):
        ic.cat([a * 2.0, b])
    ic.start_graph_recording()
    y = ic.cat([a * 2.0, b])
    graph = ic.stop_graph_recording()
    a.copy_(b)
    graph.run()
    np.testing.assert_allclose(y.numpy(), np.concatenate([b.numpy() * 2, b.numpy()]))


def test_a_list_that_holds_itself_is_refused(f):
    endless = [f(3)]
    endless.append(endless)
    with pytest.raises((RecursionError, TypeError)):
        ic.cat(endless)
    with pytest.raises((RecursionError, TypeError)):
        ic.cat([f(3).requires_grad_(), endless])
