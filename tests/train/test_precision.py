"""The precision checker: its statistics, its rows, NaN, and the comparison of two runs."""

import hashlib
import json
import math

import ml_dtypes
import numpy as np
import pytest

import infinicore as ic
from infinicore import models, nn, train
from infinicore.train import precision

TINY = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": 61,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 32,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


def net(seed=0):
    ic.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def rows_of(check, kind):
    return [row for row in check.rows if row["kind"] == kind]


def test_statistics():
    values = np.array([[1.5, -2.0, math.nan], [math.inf, 0.25, -math.inf]], np.float32)
    row = precision.statistics(ic.from_numpy(values))
    assert (row["dtype"], row["shape"], row["nan"], row["inf"]) == ("float32", [2, 3], 1, 2)
    assert (row["min"], row["max"], row["mean"]) == (-2.0, 1.5, pytest.approx(-0.25 / 3))
    assert row["first"] == [1.5, -2.0, "nan", "inf", 0.25, "-inf"]
    assert row["md5"] == hashlib.md5(values.tobytes()).hexdigest()
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    nothing = precision.statistics(ic.full((2,), math.nan))
    assert (nothing["min"], nothing["mean"], nothing["nan"]) == (None, None, 2)


def test_statistics_of_other_dtypes_and_layouts():
    values = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    row = precision.statistics(ic.from_numpy(values.astype(np.float32)).to(ic.bfloat16))
    assert row["dtype"] == "bfloat16" and row["mean"] == 2.5
    assert row["md5"] == hashlib.md5(values.tobytes()).hexdigest()
    whole = np.arange(6).reshape(2, 3)
    row = precision.statistics(ic.from_numpy(whole).T)
    assert row["shape"] == [3, 2] and row["first"] == [0, 3, 1, 4, 2, 5]
    assert row["md5"] == hashlib.md5(np.ascontiguousarray(whole.T).tobytes()).hexdigest()
    assert precision.statistics(ic.from_numpy(np.array([True, False])))["mean"] == 0.5


def test_rows_of_a_step(tmp_path):
    model, x = net(), ic.randn((3, 4))
    with train.check_precision(model, tmp_path / "logs" / "run.jsonl") as check:
        y = model(x)
        y.sum().backward()
    assert [row["module"] for row in rows_of(check, "output")] == ["0", "1", "2", ""]
    assert [row["type"] for row in rows_of(check, "output")] == ["Linear", "Tanh", "Linear", "Sequential"]
    assert {row["module"] for row in rows_of(check, "gradient")} == {"0", "1", "2", ""}
    assert [row["module"] for row in rows_of(check, "gradient")][-1] == "0"
    assert {row["module"] for row in rows_of(check, "parameter")} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    last = rows_of(check, "output")[-1]
    assert last["shape"] == [3, 2] and last["first"] == [float(v) for v in y.detach().numpy().reshape(-1)]
    weight = next(row for row in check.rows if row["module"] == "0.weight")
    assert weight["md5"] == precision.statistics(model[0].weight.grad)["md5"]
    lines = (tmp_path / "logs" / "run.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == check.rows
    seen = len(check.rows)
    model(x).sum().backward()
    assert len(check.rows) == seen, "nothing is added after the end"
    assert "the output of `0` (Linear)" in check.table() and len(check.table(limit=2).splitlines()) == 3


def test_watching_changes_no_bit():
    model, x = net(), ic.randn((3, 4))

    def gradients():
        model.zero_grad()
        model(x).sum().backward()
        return [p.grad.numpy().copy() for p in model.parameters()]

    plain = gradients()
    with train.check_precision(model, ops=True):
        watched = gradients()
    for one, two in zip(plain, watched):
        np.testing.assert_array_equal(one, two)


def test_calls_steps_and_ops():
    layer = nn.Linear(4, 4)
    with train.check_precision(layer, gradients=False, ops=True) as check:
        layer(layer(ic.randn((2, 4))))
        check.step()
        ic.exp(layer(ic.randn((2, 4))))
    found = [(row["step"], row["kind"], row["op"], row["call"]) for row in check.rows if row["op"] != "normal"]
    assert (0, "output", "", 1) in found and (1, "output", "", 0) in found and (1, "output", "", 1) not in found
    assert (0, "op", "linear", 1) in found and (1, "op", "exp", 0) in found


@pytest.mark.parametrize("checkpointing", [False, True])
def test_language_models_layer_by_layer(checkpointing):
    model = models.from_config(TINY)
    model.gradient_checkpointing = checkpointing
    ids = ic.from_numpy(np.random.default_rng(0).integers(0, 61, (2, 8)))
    with train.check_precision(model) as check:
        model.loss(ids, ids).backward()
    outputs = [row["module"] for row in rows_of(check, "output")]
    for path in ("transformer.h.0", "transformer.h.1.attn", "transformer.h.1.attn.c_attn", "transformer.ln_f"):
        assert outputs.count(path) == 1, path
    assert outputs.index("transformer.h.0") < outputs.index("transformer.h.1")
    assert {row["module"] for row in rows_of(check, "gradient")} >= {"transformer.h.0", "transformer.h.1.attn"}
    names = {name for name, _ in model.named_parameters()}
    assert {row["module"] for row in rows_of(check, "parameter")} == names


def test_the_first_nan_ends_the_run_and_names_the_module():
    model, x = net(), ic.randn((3, 4))
    with ic.no_grad():
        model[2].bias.fill_(math.nan)
    sentence = r"^the output of `2` \(Linear\) at step 0 holds NaN \(6 of 6 elements\): see the rows before it$"
    with pytest.raises(ValueError, match=sentence), train.check_precision(model, raise_on_nan=True):
        model(x)
    model(x)  # hooks are gone


def test_a_nan_in_backward_names_the_module():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ic.randn((3, 4))
    with train.check_precision(model, raise_on_nan=True):
        y = model(x)
        with pytest.raises(ValueError, match=r"^the gradient of the output of `1` \(ReLU\)"):
            y.backward(ic.full((3, 4), math.nan))
    assert not ic.amp.is_autocast_enabled()


def run(path, model, steps=2, **options):
    x = ic.from_numpy(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    with train.check_precision(model, path, **options) as check:
        for _ in range(steps):
            model.zero_grad()
            model(x).sum().backward()
            check.step()
    return check


def test_equal_runs(tmp_path):
    a, b = run(tmp_path / "a.jsonl", net()), run(tmp_path / "b.jsonl", net())
    found = precision.compare(tmp_path / "a.jsonl", b)
    assert found and found.first is None
    assert found.compared == found.identical == len(a.rows) == len(b.rows)
    assert "equal to the last bit, 0 differ" in str(found)


def test_the_first_module_that_differs_is_named(tmp_path):
    other = net()
    with ic.no_grad():
        other[2].weight[0, 0] += 0.5
    found = precision.compare(run(None, net()), run(None, other))
    assert not found and found.first == "2"
    assert "the first is the output of `2` (Linear) at step 0: " in str(found)
    assert {(a or b)["module"] for a, b, _ in found.differences} >= {"2", "", "1"}  # 1: its gradient
    assert found.table(limit=1).count("\n") == 1


def test_tolerances_and_tensors(tmp_path):
    other = net()
    with ic.no_grad():
        other[0].weight.mul_(1 + 1e-4)
    a = run(tmp_path / "a.jsonl", net(), steps=1, tensors=tmp_path / "a")
    b = run(tmp_path / "b.jsonl", other, steps=1, tensors=tmp_path / "b")
    assert precision.compare(a, b, rtol=1e-2, atol=1e-3)
    assert precision.compare(a, b).identical < len(a.rows)
    strict = precision.compare(a, b, rtol=0.0, atol=0.0)
    assert strict.first == "0" and "of 24 elements, first" in str(strict)
    # one element in the middle, which no statistic shows to this tolerance: tensors do
    rows = [dict(row) for row in a.rows]
    values = np.load(rows[0]["file"])
    values[1, 4] = (values[1, 3] + values[1, 5]) / 2
    np.save(tmp_path / "changed.npy", values)
    rows[0].update(md5="0" * 32, file=str(tmp_path / "changed.npy"))
    assert precision.compare(a, rows).first == "0"
    assert "(1, 4)" in str(precision.compare(a, rows))


def test_rows_that_one_run_lacks_and_files_that_are_none(tmp_path):
    a, b = run(None, net(), steps=2), run(None, net(), steps=1)
    found = precision.compare(a, b)
    assert not found and "only the first run has it" in str(found)
    assert "only the second run has it" in str(precision.compare(b, a))
    (tmp_path / "x.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(ValueError, match=r"x\.jsonl.*line 1"):
        precision.compare(a, tmp_path / "x.jsonl")


def test_a_run_under_autocast_is_held_to_one_in_float32():
    model, x = net(), ic.randn((3, 4))
    with train.check_precision(model, gradients=False) as exact:
        model(x)
    with train.check_precision(model, gradients=False) as lower, ic.autocast():
        model(x)
    assert {row["dtype"] for row in exact.rows} == {"float32"} and "bfloat16" in {row["dtype"] for row in lower.rows}
    assert precision.compare(lower, exact, rtol=5e-2, atol=5e-2)
    assert precision.compare(lower, exact, rtol=0.0, atol=0.0).first == "0"
