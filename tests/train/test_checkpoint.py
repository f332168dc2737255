"""Checkpoints: a run that was broken off goes on, to the last bit, as if it had not been; nothing bad replaces them."""

import errno
import json
import math
import os
import signal

import numpy as np
import pytest

import infinicore
from infinicore import nn, optim
from infinicore.data import DataLoader
from infinicore.io import safetensors
from infinicore.train import Trainer, checkpoint_values, checkpoints, latest, load_checkpoint, save_checkpoint

from .small import assert_same, classes, classifier, language_trainer, state

VARIANTS = {
    "plain": {},
    "float16 with a scaler": {"amp": "float16", "accumulate": 2},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_a_resumed_run_equals_an_unbroken_one(tmp_path, options):
    whole = language_trainer(**options)
    rows = whole.fit()
    broken = language_trainer(tmp_path, **options)
    interrupt_at(broken, 4 * broken.accumulate + 1)  # in step 5: inside of an epoch, and of a row of the log
    usual = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        broken.fit()
    assert signal.getsignal(signal.SIGINT) is usual
    assert [step for step, _ in checkpoints(tmp_path)] == [5]
    resumed = language_trainer(tmp_path, seed=1, **options)
    again = resumed.fit()
    assert resumed.step == 12
    assert_same(state(resumed), state(whole))
    for row, other in zip(rows, again, strict=True):
        assert [row[k] for k in ("step", "loss", "lr", "grad_norm")] == [
            other[k] for k in ("step", "loss", "lr", "grad_norm")
        ]
    if options:
        assert resumed.scaler.state_dict() == whole.scaler.state_dict()
    assert infinicore.get_rng_state() == checkpoint_state(tmp_path)["random"]


def interrupt_at(trainer, call):
    """An interrupt while the loss is computed for the `call`th time: the step ends first."""
    calls, loss = [], trainer.loss

    def counted(model, batch):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGINT)
        return loss(model, batch)

    trainer.loss = counted


def checkpoint_state(folder):
    return json.loads((latest(folder) / "state.json").read_text())


def small(folder, step, keep=None):
    model = classifier(seed=step)
    optimizer = optim.Adam(model.parameters())
    return model, optimizer, save_checkpoint(folder, step, model, optimizer, keep=keep)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_stay(tmp_path):
    for step in (5, 10, 15, 20):
        small(tmp_path, step, keep=2)
    assert names(tmp_path) == ["step-00000015", "step-00000020"]
    assert [step for step, _ in checkpoints(tmp_path)] == [15, 20]
    with pytest.raises(ValueError, match="`keep` must be at least 1"):
        small(tmp_path, 25, keep=0)


def test_going_back_ends_what_lay_ahead(tmp_path):
    for step in (5, 10, 15):
        small(tmp_path, step)
    small(tmp_path, 7, keep=3)
    assert names(tmp_path) == ["step-00000005", "step-00000007"]


def test_the_same_step_is_replaced(tmp_path):
    small(tmp_path, 5)
    model = classifier(seed=9)
    save_checkpoint(tmp_path, 5, model)
    assert names(tmp_path) == ["step-00000005"]
    other = classifier()
    assert load_checkpoint(tmp_path, other) == 5
    np.testing.assert_array_equal(other[0].weight.detach().numpy(), model[0].weight.detach().numpy())


def test_fit_without_resume_begins_anew(tmp_path):
    first = language_trainer(tmp_path, steps=6, save_every=2)
    first.fit()
    second = language_trainer(tmp_path, steps=3, save_every=2)
    rows = second.fit(resume=False)
    assert second.step == 3 and [row["step"] for row in rows] == [3]
    steps = [
        name for name in names(tmp_path) if name.startswith("step")
    ]  # beside the logs of TensorBoard, if installed
    assert steps[-2:] == ["step-00000002", "step-00000003"]


def test_states_of_all_kinds_come_back(tmp_path):
    value = {
        "numbers": [1, 2.5, math.inf, True, None, 0.1 + 0.2],
        "pair": (1, ("a", [])),
        3: {"tensor": infinicore.arange(3), "of numpy": np.float32(0.1)},
    }
    save_checkpoint(tmp_path, 1, classifier(), None, thing=value)
    found = checkpoint_values(tmp_path)["thing"]
    assert found["numbers"] == value["numbers"] and found["pair"] == value["pair"]
    assert isinstance(found["pair"], tuple) and isinstance(found["pair"][1][1], list)
    assert found[3]["tensor"].tolist() == [0, 1, 2] and found[3]["of numpy"] == float(np.float32(0.1))
    with pytest.raises(TypeError, match=r"a state of type set at 'state\.thing' cannot be saved"):
        save_checkpoint(tmp_path, 2, classifier(), None, thing={1, 2})
    with pytest.raises(TypeError, match=r"has the key \(1, 2\) and cannot be saved"):
        save_checkpoint(tmp_path, 2, classifier(), None, thing={(1, 2): 3})
    assert names(tmp_path) == ["step-00000001"]


# ---- damage ----


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", [cut, flip, lambda path: path.write_bytes(b""), lambda path: path.write_text("{}")])
def test_damage_is_one_sentence_that_names_the_older_checkpoint(tmp_path, name, damage):
    small(tmp_path, 5)
    _, _, newest = small(tmp_path, 10)
    damage(newest / name)
    model = classifier(seed=1)
    before = model[0].weight.detach().numpy().copy()
    with pytest.raises(ValueError) as error:
        load_checkpoint(tmp_path, model, optim.Adam(model.parameters()))
    text = str(error.value)
    assert f"{newest / name} is damaged" in text and "\n" not in text
    assert f"delete step-00000010 and {tmp_path / 'step-00000005'} is the newest" in text
    np.testing.assert_array_equal(model[0].weight.detach().numpy(), before)
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    assert load_checkpoint(tmp_path, model, optim.Adam(model.parameters())) == 5


def test_damage_without_an_older_one(tmp_path):
    _, _, path = small(tmp_path, 5)
    (path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged .*: there is no older checkpoint"):
        load_checkpoint(tmp_path, classifier())
    with pytest.raises(FileNotFoundError, match="there is no checkpoint in"):
        load_checkpoint(tmp_path / "nothing", classifier())


def test_another_model_or_optimizer_is_refused(tmp_path):
    small(tmp_path, 5)
    wider = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
    with pytest.raises(ValueError, match=r"'0.weight' is .*\(16, 8\).*\(32, 8\): it belongs to another model"):
        load_checkpoint(tmp_path, wider)
    deeper = nn.Sequential(*classifier(), nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"lacks '3.bias': it belongs to another model"):
        load_checkpoint(tmp_path, deeper)
    with pytest.raises(ValueError, match=r"has '2.bias', which the model has not: it belongs to another model"):
        load_checkpoint(tmp_path, nn.Sequential(*list(classifier())[:2]))
    model = classifier()
    before = model[0].weight.detach().numpy().copy()
    with pytest.raises(ValueError, match=r"must have groups of \[2, 2\] parameters"):
        load_checkpoint(tmp_path, model, optim.Adam([{"params": layer.parameters()} for layer in (model[0], model[2])]))
    np.testing.assert_array_equal(model[0].weight.detach().numpy(), before)
    with pytest.raises(ValueError, match="holds no state of `scheduler`"):
        load_checkpoint(tmp_path, model, scheduler=object())


# ---- saving that fails ----


@pytest.mark.parametrize("writes", [0, 3, 9])
def test_a_full_disk_leaves_the_older_checkpoint(tmp_path, monkeypatch, writes):
    run = language_trainer(tmp_path, steps=6, save_every=2)
    run.fit()
    before = state(run)
    left = [writes]

    def write_bytes(self, name, first, data, real=safetensors.SafetensorsWriter.write_bytes):
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        real(self, name, first, data)

    monkeypatch.setattr(safetensors.SafetensorsWriter, "write_bytes", write_bytes)
    longer = language_trainer(tmp_path, steps=8, save_every=2)
    with pytest.raises(OSError, match=r"the checkpoint of step 8 could not be written to .*No space left on device"):
        longer.fit()
    assert [step for step, _ in checkpoints(tmp_path)] == [2, 4, 6]
    assert not [name for name in names(tmp_path) if name.startswith(".step")]
    monkeypatch.undo()
    again = language_trainer(tmp_path, steps=6)
    again.fit()
    assert_same(state(again), before)


def test_what_a_killed_run_left_half_written_goes(tmp_path):
    (tmp_path / ".step-00000005.x7").mkdir()
    (tmp_path / ".step-00000005.x7" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "step-00000007").mkdir()  # no state.json: not ours to count
    assert latest(tmp_path) is None
    small(tmp_path, 5)
    assert latest(tmp_path).name == "step-00000005" and ".step-00000005.x7" not in names(tmp_path)


def test_no_checkpoint_of_numbers_that_are_not_finite(tmp_path):
    def spoil(run, row):
        if row["step"] == 4:
            with infinicore.no_grad():
                run.model[0].weight[2, 1] = float("nan")

    model = classifier()
    run = Trainer(
        model,
        optim.SGD(model.parameters(), lr=0.1),
        DataLoader(classes(), 16),
        steps=6,
        folder=tmp_path,
        save_every=2,
        log_every=2,
        progress=False,
        callbacks=[spoil],
    )
    with pytest.raises(ValueError, match=r"parameter `0.weight` holds NaN or infinity after step 4, so no checkpoint"):
        run.fit()
    assert [step for step, _ in checkpoints(tmp_path)] == [2]
