"""The loop: what a step is, evaluation, stopping, the log, and what is said when numbers go wrong."""

import csv
import json
import math
import re
import subprocess
import sys
import types

import numpy as np
import pytest

import infinicore
from infinicore import nn, optim
from infinicore.data import DataLoader, Subset, TensorDataset
from infinicore.models import from_config
from infinicore.optim.lr_scheduler import ReduceLROnPlateau
from infinicore.train import Trainer, flops_per_token
from infinicore.train.record import Record

from .small import classes, classifier, language_trainer, state


def trainer(model=None, rate=0.1, loader=None, **options):
    model = classifier() if model is None else model
    loader = DataLoader(classes(), 16) if loader is None else loader
    given = {"progress": False, **({} if "epochs" in options else {"steps": 4}), **options}
    return Trainer(model, optim.SGD(model.parameters(), lr=rate), loader, **given)


def weights(model):
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


def test_training_learns():
    run = trainer(rate=0.5, steps=60, log_every=20)
    first, _, last = run.fit()
    assert last["loss"] < 0.6 * first["loss"]


def test_accumulated_batches_equal_a_larger_one():
    whole = trainer(loader=DataLoader(classes(), 16))
    parts = trainer(loader=DataLoader(classes(), 4), accumulate=4)
    rows = whole.fit(), parts.fit()
    np.testing.assert_allclose(weights(parts.model), weights(whole.model), rtol=0, atol=1e-6)
    assert rows[1][0]["loss"] == pytest.approx(rows[0][0]["loss"], abs=1e-6)


def test_clipping_bounds_the_step():
    run = trainer(rate=1.0, steps=1, clip=0.01)
    before = weights(run.model)
    (row,) = run.fit()
    assert row["grad_norm"] > 0.1  # the norm before
    assert np.linalg.norm(weights(run.model) - before) == pytest.approx(0.01, rel=1e-3)
    free, bounded = trainer(steps=2), trainer(steps=2, clip=1e6)
    free.fit(), bounded.fit()
    np.testing.assert_array_equal(weights(free.model), weights(bounded.model))


def test_evaluation_leaves_everything_as_it_was():
    run = language_trainer()
    run.model.train()
    frozen = run.model.transformer.h[0].eval()
    run.eval_data = DataLoader(run.data.loader.dataset, 8, shuffle=True)
    before = infinicore.get_rng_state()
    first = run.evaluate()
    assert infinicore.get_rng_state() == before
    assert run.evaluate() == first  # no dropout
    assert run.model.training and not frozen.training and not frozen.attn.training
    assert all(p.grad is None for p in run.model.parameters())


def test_evaluation_averages_over_samples_not_batches():
    data = classes(rows=10)
    run = trainer(eval_data=DataLoader(data, 4), eval_every=4)
    assert run.evaluate() == pytest.approx(trainer(eval_data=DataLoader(data, 10)).evaluate(), rel=1e-6)


def test_early_stop(tmp_path):
    run = trainer(rate=0.0, steps=50, eval_data=DataLoader(classes(), 64), eval_every=3, patience=2, folder=tmp_path)
    rows = run.fit()
    assert run.stopped and run.step == 9  # the evaluation at 3 is the best; 6 and 9 are not better
    assert [row["step"] for row in rows if "eval_loss" in row] == [3, 6, 9]
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000009"]
    again = trainer(rate=0.0, steps=50, eval_data=DataLoader(classes(), 64), eval_every=3, patience=3, folder=tmp_path)
    again.fit()
    assert again.step == 12  # with more patience it goes on


def test_a_callback_ends_the_run():
    def stop(run, row):
        run.stopped = row["step"] >= 6

    run = trainer(steps=50, log_every=2, callbacks=[stop])
    run.fit()
    assert run.step == 6


def test_plateau_scheduler_looks_at_evaluations():
    model = classifier()
    optimizer = optim.SGD(model.parameters(), lr=1e-9)  # nothing moves
    scheduler = ReduceLROnPlateau(optimizer, patience=1, factor=0.5, eps=0.0)
    data = DataLoader(classes(), 16)
    run = Trainer(
        model, optimizer, data, steps=8, scheduler=scheduler, eval_data=data, eval_every=2, log_every=2, progress=False
    )
    rates = [row["lr"] for row in run.fit() if "lr" in row]
    assert rates == [1e-9, 1e-9, 1e-9, 5e-10]
    with pytest.raises(ValueError, match="`scheduler` looks at evaluations"):
        Trainer(model, optimizer, data, steps=8, scheduler=scheduler)


def test_epochs_count_steps():
    assert trainer(epochs=3, loader=DataLoader(classes(10), 4)).steps == 9
    run = trainer(epochs=1, loader=DataLoader(classes(10), 4), accumulate=2)
    run.fit()
    assert run.step == 2  # the second step takes a batch of the next epoch


def test_amp_follows_float32():
    plain, lower = language_trainer(lr=1e-3), language_trainer(lr=1e-3, amp="bfloat16")
    a, b = plain.fit(), lower.fit()
    assert [row["loss"] for row in b] == pytest.approx([row["loss"] for row in a], abs=0.02)
    assert [row["loss"] for row in b] != [row["loss"] for row in a]
    assert lower.model.transformer.wte.weight.dtype is infinicore.float32


# ---- the log ----


def test_log_of_a_language_model(tmp_path):
    run = language_trainer(tmp_path, steps=8)
    run.eval_data, run.eval_every = DataLoader(run.data.loader.dataset, 8), 4
    rows = run.fit()
    assert [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()] == rows
    train = [row for row in rows if "loss" in row]
    assert [row["step"] for row in train] == [4, 8] and [r["step"] for r in rows if "eval_loss" in r] == [4, 8]
    for row in train:
        assert row.keys() == {"step", "loss", "lr", "grad_norm", "tokens_per_s", "mfu"}
        expected = row["tokens_per_s"] * flops_per_token(run.model, 8) / run.peak_flops()
        assert row["mfu"] == pytest.approx(expected) and 0 < row["mfu"] < 1
    with (tmp_path / "log.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [line["eval_loss"] != "" for line in table] == [False, True, False, True]
    assert float(table[0]["loss"]) == rows[0]["loss"]


@pytest.mark.parametrize("options", [{}, {"accumulate": 3}, {"amp": "bfloat16"}])
def test_recorded_steps_are_the_same(options):
    plain = language_trainer(recorded=False, **options)
    rows = [plain.fit()]
    replayed = language_trainer(**options)
    rows.append(replayed.fit())
    assert [row["loss"] for row in rows[0]] == [row["loss"] for row in rows[1]]
    for name, value in state(plain).items():
        np.testing.assert_array_equal(state(replayed)[name], value, err_msg=name)


def test_what_callbacks_change_between_recorded_steps():
    """Parameters that are frozen and thawed again, and other dropout, take part at once."""

    def change(run, row):
        run.model.transformer.wte.requires_grad_(row["step"] % 6 != 2)
        run.model.transformer.h[1].requires_grad_(row["step"] % 4 != 2)
        for module in run.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.3 if row["step"] > 6 else 0.1

    runs = []
    for recorded in (False, None):
        run = language_trainer(recorded=recorded, callbacks=[change], log_every=2, steps=16)
        runs.append((run.fit(), state(run)))
    (plain, before), (replayed, after) = runs
    assert [row["loss"] for row in plain] == [row["loss"] for row in replayed]
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


def test_which_steps_are_recorded():
    """Those of our own models, unless somebody looks at what their Python does."""

    def is_recorded(run):
        run.fit()
        return run._replay is not None

    assert is_recorded(language_trainer()) and is_recorded(trainer(recorded=True))
    assert not is_recorded(trainer()) and not is_recorded(language_trainer(amp="float16"))
    hooked = language_trainer()
    seen = []
    hooked.model.transformer.h[0].register_forward_hook(lambda *_: seen.append(1))
    assert not is_recorded(hooked) and len(seen) == 12
    foreign = language_trainer()
    mlp = foreign.model.transformer.h[0].mlp
    mlp.__class__ = type("Own", (type(mlp),), {"__module__": __name__})
    assert not is_recorded(foreign)
    with nn.hooks.register_module_forward_hook(lambda *_: seen.append(1)):
        assert not is_recorded(language_trainer())
    assert is_recorded(language_trainer())


def test_the_loss_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    trainer(folder=tmp_path, log_every=1).fit()
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_measuring_the_machine_leaves_the_random_state():
    run = language_trainer()
    before = infinicore.get_rng_state()
    assert run.peak_flops() > 1e8 and infinicore.get_rng_state() == before


def test_flops_count_products_only():
    config = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "vocab_size": 10}
    layer = 8 * (8 + 4 + 4) + 8 * 8 + 3 * 8 * 12
    for tied in (True, False):
        model = from_config({**config, "tie_word_embeddings": tied})
        assert flops_per_token(model, 16) == 6 * (2 * layer + 8 * 10) + 12 * 2 * 8 * 16


def test_a_log_survives_a_cut_line_and_numbers_that_are_not_finite(tmp_path):
    record = Record(tmp_path)
    record.add({"step": 1, "loss": math.inf, "grad_norm": math.nan})
    record.add({"step": 2, "loss": 0.5})
    record.add({"step": 3, "loss": 0.25})
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    again = Record(tmp_path, resumed_from=2)
    assert again.rows[0]["loss"] == math.inf and math.isnan(again.rows[0]["grad_norm"])
    assert [row["step"] for row in again.rows] == [1, 2]
    again.close()
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2


def test_tensorboard_gets_the_rows(tmp_path, monkeypatch):
    events = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            events.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            events.append((name, value, step))

        def close(self):
            events.append("closed")

    fake = types.ModuleType("tensorboardX")
    fake.SummaryWriter, fake.__spec__ = SummaryWriter, types.SimpleNamespace(name="tensorboardX")
    monkeypatch.setitem(sys.modules, "tensorboardX", fake)
    record = Record(tmp_path, resumed_from=7)
    record.add({"step": 8, "loss": 0.5})
    record.close()
    assert events == [(str(tmp_path / "tensorboard"), 8), ("loss", 0.5, 8), "closed"]


# ---- numbers that go wrong ----


class Overflow(nn.Module):
    def forward(self, x):
        return x / (x - x)


def failing(model, **options):
    with pytest.raises(ValueError) as error:
        trainer(model, **options).fit()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_loss_of_nan_names_the_module():
    text = failing(nn.Sequential(nn.Linear(8, 16), nn.Sequential(nn.Tanh(), Overflow()), nn.Linear(16, 3)))
    assert "the loss is nan at step 1" in text and "is `1.1` (Overflow)" in text


def test_a_loss_of_nan_between_modules_names_both():
    class Divides(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x):
            return self.second(self.first(x) / 0.0)

    text = failing(Divides())
    assert "the input of `second` (Linear), after `first` (Linear), is the first to hold NaN or infinity" in text


def test_a_loss_of_nan_from_the_data():
    x, labels = classes()[:]
    x[3] = float("nan")
    text = failing(classifier(), loader=DataLoader(TensorDataset(x, labels), 16))
    assert "the batch itself holds NaN" in text


def test_a_loss_of_nan_from_parameters():
    model = classifier()
    with infinicore.no_grad():
        model[2].bias[1] = float("inf")
    assert "parameter `2.bias` holds NaN or infinity, from an earlier step" in failing(model)


def test_a_loss_that_is_infinite_by_itself():
    text = failing(classifier(), loss=lambda model, batch: model(batch[0]).sum() / 0.0)
    assert "the results of all modules are finite, so it is the loss itself" in text


def test_bad_gradients_are_named_before_the_step():
    class SquareRoot(nn.Module):  # its derivative at 0 is infinite
        def forward(self, x):
            return (x - x.detach()).abs().sqrt() + x

    model = nn.Sequential(nn.Linear(8, 16), SquareRoot(), nn.Linear(16, 3))
    before = weights(model)
    text = failing(model, clip=1.0)
    assert "the norm of the gradients is nan at step 1" in text and "that of `0.weight` holds NaN" in text
    np.testing.assert_array_equal(weights(model), before)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"steps": None}, "give either `steps` or `epochs`, got None and None"),
        ({"epochs": 1, "steps": 1}, "give either `steps` or `epochs`"),
        ({"steps": 0}, "`steps` must be a positive integer, got 0"),
        ({"accumulate": 1.5}, "`accumulate` must be a positive integer, got 1.5"),
        ({"clip": 0}, "`clip` must be above 0, or None"),
        ({"amp": "float64"}, "`amp` must be 'bfloat16', 'float16' or None, got 'float64'"),
        ({"save_every": 5}, "`save_every` is 5, but there is no `folder`"),
        ({"eval_every": 5}, "`eval_every` is 5, but there is no `eval_data`"),
        ({"patience": 5}, "`patience` looks at evaluations, but nothing is evaluated"),
        ({"recorded": True, "amp": "float16"}, "`recorded` steps cannot change their scale"),
        ({"keep": 0, "folder": "x"}, "`keep` must be a positive integer, got 0"),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        trainer(**options)


def test_one_run_in_a_folder(tmp_path):
    hold = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=1); input()"
    )
    command = [sys.executable, "-c", hold, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="another process is training in"):
            trainer(folder=tmp_path).fit()
        other.communicate("\n")
    assert trainer(folder=tmp_path).fit()[-1]["step"] == 4


def test_empty_data():
    with pytest.raises(ValueError, match="`train_data` is empty"):
        trainer(loader=DataLoader(Subset(classes(), []), 4)).fit()
    with pytest.raises(ValueError, match="`eval_data` is empty"):
        trainer(eval_data=DataLoader(Subset(classes(), []), 4), eval_every=1).fit()
