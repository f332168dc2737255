"""The profiler: what it counts forward and backward, memory, modules, threads, and the trace."""

import json
import threading

import numpy as np
import pytest

import infinicore as ic
from infinicore import models, nn, train
from infinicore.autograd import checkpoint

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


def counts(p, **options):
    return {(row["name"], row["phase"]): row["calls"] for row in p.rows(**options)}


def test_calls_forward_and_backward_are_counted():
    x, w = ic.randn((8, 8)).requires_grad_(), ic.randn((8, 8)).requires_grad_()
    with train.profile() as p:
        y = ic.matmul(ic.exp(x), w)
        ic.matmul(y, w).sum().backward()
        ic.exp(x)
    found = counts(p)
    assert found["matmul", "forward"] == 2 and found["exp", "forward"] == 2 and found["sum", "forward"] == 1
    assert found["matmul in matmul", "backward"] == 4
    assert found["matmul derivative", "backward"] == 2 and found["exp derivative", "backward"] == 1
    before = len(p.events)
    ic.exp(x)
    assert len(p.events) == before, "a profile that ended sees nothing"


def test_results_are_the_same_and_gradients_too():
    layer, x = nn.Linear(8, 8), ic.randn((4, 8))

    def run():
        layer.zero_grad()
        y = ic.tanh(layer(x))
        y.sum().backward()
        return y.detach().numpy().copy(), layer.weight.grad.numpy().copy()

    plain = run()
    with train.profile(layer):
        profiled = run()
    for one, two in zip(plain, profiled):
        np.testing.assert_array_equal(one, two)


def test_times_add_up():
    model, x = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)), ic.randn((16, 32))
    with train.profile(model) as p:
        for _ in range(3):
            model(x).sum().backward()
            p.step()
    assert 0 < sum(row["self"] for row in p.rows()) <= p.seconds
    assert sum(row["self"] for row in p.rows()) == pytest.approx(sum(row["self"] for row in p.rows("module")))
    for row in p.rows():
        assert row["self"] <= row["total"] + 1e-12 and row["mean"] == pytest.approx(row["total"] / row["calls"])
    assert counts(p, step=1)["linear", "forward"] == 2 and counts(p)["linear", "forward"] == 6
    nodes = [e for e in p.events if e.kind == "node"]
    inside = [e for e in p.events if e.kind == "op" and e.node == "linear"]
    linear = sum(e.duration for e in nodes if e.name == "linear")
    assert sum(e.duration for e in inside) + sum(e.own for e in nodes if e.name == "linear") == linear


def test_memory():
    x = ic.zeros((1 << 18,))
    with train.profile() as p:
        y = ic.exp(x)
        for _ in range(4):
            ic.exp(x)
    rows = {row["name"]: row for row in p.rows()}
    megabyte = 1 << 20
    assert megabyte <= rows["exp"]["peak"] < 1.3 * megabyte
    assert p.peak_bytes >= 3 * megabyte
    assert [event.allocated for event in p.events] == [event.own_allocated for event in p.events]
    assert all(megabyte <= event.allocated < 1.3 * megabyte for event in p.events)
    del y


@pytest.mark.parametrize("checkpointing", [False, True])
def test_modules_forward_and_backward(checkpointing):
    model = models.from_config(TINY)
    model.gradient_checkpointing = checkpointing
    ids = ic.from_numpy(np.random.default_rng(0).integers(0, 61, (2, 8)))
    with train.profile(model) as p:
        model.loss(ids, ids).backward()
    rows = {(row["name"], row["phase"]): row for row in p.rows("module")}
    for path in ("model.layers.0.self_attn", "model.layers.1.mlp.down_proj", "model.embed_tokens", "model"):
        assert rows[path, "forward"]["calls"] == 1, path
        assert rows[path, "backward"]["self"] > 0, path
    whole, part = rows["model.layers.0", "forward"], rows["model.layers.0.mlp", "forward"]
    assert whole["total"] > part["total"] > part["self"] > 0
    assert rows["model", "backward"]["total"] > rows["model.layers.1", "backward"]["total"]
    assert not model.model._hooks.forward, "hooks are removed"


def test_what_runs_again_under_checkpoint_is_backward():
    layer, x = nn.Linear(4, 4), ic.randn((2, 4)).requires_grad_()
    with train.profile() as p:
        y = checkpoint(lambda x: ic.exp(layer(x)), x)
        p.step()
        y.sum().backward()
    assert counts(p)["linear", "forward"] == 1
    again = {name for (name, phase), _ in counts(p, step=1).items() if phase == "backward"}
    assert any(name.startswith("linear in ") for name in again)
    # and a profile that ended before backward sees none of it
    with train.profile() as p:
        y = checkpoint(lambda x: ic.exp(layer(x)), x)
    seen = len(p.events)
    y.sum().backward()
    assert len(p.events) == seen


def test_casts_of_autocast_are_seen_whichever_began_first():
    layer, x = nn.Linear(4, 4), ic.randn((2, 4))
    with train.profile() as inner, ic.autocast():
        layer(x)
    with ic.autocast(), train.profile() as outer:
        layer(x)
    assert counts(inner)["cast", "forward"] == counts(outer)["cast", "forward"] == 3
    assert [e.name for e in inner.events] == [e.name for e in outer.events] == ["cast", "cast", "cast", "linear"]


def test_an_error_inside_leaves_everything_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    x = ic.randn((2, 4))
    with train.profile(model) as p:
        for _ in range(2):
            with pytest.raises(ValueError, match="linear"):
                model(x)
            ic.exp(x)
    last = [e for e in p.events if e.name == "exp"]
    assert [e.path for e in last] == ["", ""]
    assert counts(p, by="module")["1", "forward"] == 2
    with pytest.raises(KeyError), train.profile():
        raise KeyError
    with train.profile() as p:
        ic.exp(x)
    assert len(p.events) == 1


def test_regions_and_threads():
    x = ic.randn((4, 4))
    parameter = nn.Parameter(ic.ones((64,)))
    optimizer = ic.optim.SGD([parameter], lr=0.1)
    parameter.grad = ic.ones((64,))
    found = []

    def other():
        ic.exp(x)  # unseen
        with p.thread():
            ic.tanh(x)

    with train.profile() as p:
        with p.region("optimizer"):
            optimizer.step()
        thread = threading.Thread(target=other, name="helper")
        thread.start()
        thread.join()
        ic.sin(x)
    found = {event.name: event for event in p.events}
    assert set(found) >= {"optimizer", "tanh", "sin"} and "exp" not in found
    assert found["tanh"].thread != found["sin"].thread == threading.get_ident()
    assert found["optimizer"].duration > 0
    with pytest.raises(ValueError, match="running"), p.thread():
        pass
    with pytest.raises(ValueError, match="inside of the profile"), p.region("late"):
        pass


def test_the_trace_is_what_viewers_read(tmp_path):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), ic.randn((2, 4))
    with train.profile(model) as p:
        model(x).sum().backward()
        p.step()
    path = p.export_chrome_trace(tmp_path / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(p.events)
    assert {"process_name", "thread_name"} == {e["name"] for e in events if e["ph"] == "M"}
    for event in complete:
        assert event["ts"] >= 0 and event["dur"] >= 0 and {"pid", "tid", "name", "cat"} <= event.keys()
    assert {e["cat"] for e in complete} == {"op", "module", "backward", "step"}
    backward = next(e for e in complete if e["name"] == "linear backward")
    assert backward["args"]["module"] == "0" and backward["args"]["node"] == "linear"
    # of each thread, events nest: that is how viewers stack them
    ends = []
    for event in sorted(complete, key=lambda e: (e["ts"], -e["dur"])):
        while ends and ends[-1] <= event["ts"]:
            ends.pop()
        assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-3
        ends.append(event["ts"] + event["dur"])


def test_tables():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), ic.randn((2, 4))
    with train.profile(model) as p:
        for _ in range(3):
            model(x)
            p.step()
    lines = p.table(sort_by="calls").splitlines()
    assert lines[0].split()[0] == "op" and {line.split()[0] for line in lines[2:4]} == {"linear", "tanh"}
    assert "3 steps, median" in lines[-1] and "measuring added about" in lines[-1]
    assert p.overhead_us > 0
    assert [line.split()[0] for line in p.table("name", by="module").splitlines()[2:5]] == ["0", "1", "Sequential"]
    assert "... and 1 more rows" in p.table(limit=1)
    with pytest.raises(ValueError, match="`sort_by`"):
        p.table(sort_by="size")
    with pytest.raises(ValueError, match="`by`"):
        p.rows(by="line")
    with train.profile() as p:
        pass
    assert p.table().splitlines()[-1].startswith("0.000 ms in ops")
    with pytest.raises(ValueError, match=r"train\.profile\(model\)"):
        p.rows("module")
