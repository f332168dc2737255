"""The suite `train`: its table, equal weights on both sides, and a small run of each kind of case.

No test asserts a time.
"""

import dataclasses

import numpy as np
import pytest

import infinicore
from infinicore import models, nn
from infinicore.perf import compare, limits, suites, torch_models, train_cases, training
from infinicore.perf.cases import Case


def _cases(match, dtypes=None):
    return suites.cases(quick=True, suites=["train"], match=match, dtypes=dtypes)


def _count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", ["tiny GPT-2", "tiny Llama", "nanoGPT small"])
def test_a_decoder_has_the_values_that_its_figures_count(name):
    network = train_cases.NETWORKS[name]
    assert _count(models.from_config(network.config())) == network.parameters


def test_published_sizes():
    assert train_cases.GPT2.parameters == 124_439_808  # Radford et al. have 117M, a slip that the authors corrected
    assert train_cases.GPT2.matrices == 123_532_032
    # 6 N for each token and, at 512 tokens, 3 % more for attention
    flops = train_cases.GPT2.step_flops(2, 512)
    assert 1.0 < flops / (6 * train_cases.GPT2.matrices * 1024) < 1.05


def test_classifiers_fit_their_inputs():
    """The flops of a step, from the shapes that really flow."""
    for network in train_cases.NETWORKS.values():
        if not isinstance(network, train_cases.Classifier):
            continue
        (inputs, targets), other = training.batches_of(network, 3, None)
        assert inputs.shape == (3, *network.shape) and targets.shape == (3,)
        assert not np.array_equal(inputs, other[0])
        x, flops = infinicore.from_numpy(inputs), 0
        for i, layer in enumerate(network.build(nn)):
            x = layer(x)
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                places = x.numel() // 3 // layer.weight.shape[0]
                flops += (2 if i == 0 else 3) * 2 * places * layer.weight.numel()
        assert x.shape == (3, 10) and flops == network.flops


def test_values_are_the_same_everywhere():
    again = training.values_of("h.0.weight", (20, 30), 0.02)
    assert np.array_equal(training.values_of("h.0.weight", (20, 30), 0.02), again)
    assert not np.array_equal(training.values_of("h.1.weight", (20, 30), 0.02), again)
    assert again.std() == pytest.approx(0.02, rel=0.1)
    assert training.values_of("c.weight", (50, 4, 5, 5)).std() == pytest.approx(0.1, rel=0.1)
    assert abs(training.values_of("norm.weight", (99,)).mean() - 1) < 0.02
    assert abs(training.values_of("norm.bias", (99,)).mean()) < 0.02
    packed = training.values_of("a.qkv_proj.weight", (12, 8), 0.02)
    parts = [training.values_of(f"a.{name}.weight", (4, 8), 0.02) for name in torch_models.PACKED["qkv_proj"]]
    assert np.array_equal(packed, np.concatenate(parts))


def test_batches_are_tokens_and_what_follows_them():
    for inputs, targets in training.batches_of(train_cases.TINY_GPT2, 3, 8):
        assert inputs.shape == targets.shape == (3, 8) and inputs.dtype == targets.dtype == np.int64
        assert np.array_equal(inputs[:, 1:], targets[:, :-1]) and inputs.min() >= 0 and inputs.max() < 97
        assert inputs.flags.c_contiguous and targets.flags.c_contiguous


def test_update_bandwidth():
    update = limits.prepare("update", "float32", 1 << 16)
    assert update.amount == 7 * (1 << 14)
    gradient, first, second, value = (array.copy() for array in update.arrays)
    assert update.measure(1) > 0
    first += (gradient - first) / 8
    second += (gradient - second) / 8
    value += (first - value) / 8
    for found, wanted in zip(update.arrays, (gradient, first, second, value)):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_part_is_a_share_of_a_step():
    class Fixed:
        def step(self):
            return 1.0, 3.0, 6.0, 10.0

    for part, seconds in ((None, 9.0), ("forward", 2.0), ("backward", 3.0), ("optimizer", 4.0)):
        assert training.Step(Fixed(), part).measure(2) == seconds


def test_an_absolute_tolerance_is_of_the_difference():
    class Side:
        def __init__(self, name, value):
            self.name, self.value = name, value

        def save(self, path):
            return np.array([self.value])

    case = Case(suite="train", name="x", op="train_step", dtype="float32", unit="ms", tolerance=1e-5)
    sides = Side("ours", 10.0), Side("torch", 10.00005)
    assert compare._error(case, sides)[1] is None
    error, note = compare._error(dataclasses.replace(case, absolute=True), sides)
    assert error == pytest.approx(5e-5, rel=1e-3) and note.startswith("RESULTS DIFFER")


@pytest.mark.parametrize("match", ["tiny GPT-2 step 2x8", "tiny Llama step", "AdamW", "MLP 784-30", "convolutional"])
def test_the_sides_agree(match):
    """In this process: losses of the first steps, or parameters after three of the optimizer."""
    pytest.importorskip("torch")
    for case in _cases(match):
        ours, theirs = (training.prepare(side, case) for side in ("ours", "torch"))
        found, wanted = ours.result(), theirs.result()
        assert found.shape == wanted.shape and np.isfinite(wanted).all()
        assert np.abs(found - wanted).max() <= case.allowed_error
        if case.op == "train_step":
            assert len(found) == case.options["first"]
            assert wanted[2] < wanted[0] - 10 * case.allowed_error  # it has learnt: the third batch is the first
        before = ours.measure(1), theirs.measure(1)
        assert min(before) > 0


def test_quick_run():
    """A training and its memory in processes of their own, end to end; without PyTorch, ours alone."""
    options = compare.Options(threads=1, quick=True)
    rows = compare.compare(_cases(["tiny GPT-2 forward", "784-30", "memory"]), options)
    assert [row["unit"] for row in rows] == ["ms", "MB", "ms", "ms"]
    for row in rows:
        assert row["ours"] > 0 and not compare.failed(row), row["notes"]
    (memory,) = (row for row in rows if row["unit"] == "MB")
    assert 30 < memory["ours"] < 1000
