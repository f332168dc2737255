"""`infinicore train`: from texts to a folder that generates, errors in one sentence, runs that are broken off."""

import json
import subprocess
import sys

import numpy as np
import pytest

from infinicore.cli import main
from infinicore.data import TokenFile, write_tokens
from infinicore.io import load_file
from infinicore.models import from_pretrained
from infinicore.train import checkpoints
from infinicore.train.config import ROWS, TrainConfig, read_toml
from infinicore.train.run import architecture, build_optimizer, configure

TEXT = "".join(f"{i} bottles of beer on the wall, take {i % 7} down and pass {i % 3} around.\n" for i in range(120))
TINY = "--layers 2 --heads 2 --width 32 --sequence-length 16 --batch-size 4 --steps 6 --log-every 2 --lr 0.01".split()


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def train(*arguments):
    """The exit status of `infinicore train` in this process."""
    return main(["train", "--no-progress", *map(str, arguments)])


def fails(capsys, *arguments):
    """What is said about input that cannot be used."""
    assert train(*arguments) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("infinicore: error: ") and err.count("\n") == 1
    return err


def test_characters_to_a_model_that_generates(tmp_path, text, capsys):
    out = tmp_path / "out"
    assert train(*TINY, "--arch", "gpt2", "--data", text, "--out", out, "--eval-every", 3, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["steps"] == 6 and figures["loss"] < 4 and figures["model"] == str(out / "model")
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "eval_loss" in row] == [3, 6]
    assert figures["eval_loss"] == rows[-1]["eval_loss"] and figures["tokens_per_s"] > 0 and 0 < figures["mfu"] < 1
    model = from_pretrained(out / "model")
    generation = model.generate("9 bottles", max_new_tokens=5, seed=0)
    generation.finish()
    written = generation.completion.text
    assert len(written) == 5 and set(written) <= set(TEXT)
    assert figures["parameters"] == sum(p.numel() for p in model.parameters())


def test_bpe_llama_then_fine_tuning(tmp_path, text, capsys):
    (tmp_path / "texts").mkdir()
    text.rename(tmp_path / "texts" / "a.txt")
    (tmp_path / "held.txt").write_text(TEXT[:2000])
    settings = tmp_path / "run.toml"
    settings.write_text(
        f"""arch = "llama"
        kv-heads = 1
        vocab-size = 300
        data = ["{tmp_path / "texts"}"]
        validation_data = "{tmp_path / "held.txt"}"
        steps = 1000
        """
    )
    out = tmp_path / "out"
    assert train("--config", settings, *TINY, "--out", out, "--steps", 4, "--amp", "bfloat16", "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["steps"] == 4  # the flag, not the file
    config = json.loads((out / "model" / "config.json").read_text())
    assert config["vocab_size"] == 300 and config["num_key_value_heads"] == 1 and config["intermediate_size"] == 96
    assert config["eos_token_id"] == 0 and len(TokenFile(out / "data" / "validation.tokens")) < 2000
    tuned = tmp_path / "tuned"
    sizes = "--sequence-length 16 --batch-size 4 --steps 2 --schedule linear".split()
    assert train("--model", out / "model", "--data", tmp_path / "held.txt", "--out", tuned, *sizes) == 0
    assert "million parameters after 2 steps" in capsys.readouterr().out
    before, after = load_file(out / "model" / "model.safetensors"), load_file(tuned / "model" / "model.safetensors")
    assert before.keys() == after.keys()
    change = max(float(np.abs(before[name].numpy() - after[name].numpy()).max()) for name in before)
    assert 0 < change < 2e-3  # two steps of 5e-5
    assert (tuned / "model" / "tokenizer.json").read_text() == (out / "model" / "tokenizer.json").read_text()
    adapted = tmp_path / "adapted"
    assert (
        train("--model", out / "model", "--data", tmp_path / "held.txt", "--out", adapted, *sizes, "--lora-rank", 2)
        == 0
    )
    merged = load_file(adapted / "model" / "model.safetensors")
    moved = {name.rpartition(".layers.0.")[2] for name in before if (merged[name] != before[name]).any()}
    assert "self_attn.q_proj.weight" in moved and "input_layernorm.weight" not in moved  # norms are frozen
    assert (adapted / "adapter" / "adapter_model.safetensors").is_file()


def test_a_file_of_tokens(tmp_path, capsys):
    ids = np.arange(500) % 50
    write_tokens(tmp_path / "ids.bin", ids, format="llm.c")
    arguments = [*TINY, "--data", tmp_path / "ids.bin", "--optimizer", "lion", "--validation", 0]
    assert train(*arguments, "--out", tmp_path / "a", "--vocab-size", 50, "--steps", 2) == 0
    assert json.loads((tmp_path / "a" / "model" / "config.json").read_text())["vocab_size"] == 50
    assert not (tmp_path / "a" / "model" / "tokenizer.json").exists()
    capsys.readouterr()
    write_tokens(tmp_path / "ids.tokens", ids)
    arguments[arguments.index(tmp_path / "ids.bin")] = tmp_path / "ids.tokens"
    assert "does not say how many tokens there are: give `vocab_size`" in fails(
        capsys, *arguments, "--out", tmp_path / "b"
    )


# ---- runs that are broken off ----

# Sends itself signals when rows are logged: exactly there, however fast the machine is.
BROKEN = """
import os, signal, sys
from infinicore.cli import main
from infinicore.train.trainer import Trainer
log = Trainer._log
def broken(self, row, *rest):
    log(self, row, *rest)
    if row["step"] == int(sys.argv[1]) and "loss" in row:
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
Trainer._log = broken
sys.exit(main(sys.argv[3:]))
"""


def test_a_run_that_is_killed_goes_on_bit_for_bit(tmp_path, text):
    given = [*TINY, "--arch", "gpt2", "--dropout", 0.1, "--steps", 16, "--save-every", 5, "--data", text, "--warmup", 3]

    def run(step, name, status, *, out="broken", saved):
        command = ["train", "--no-progress", *given, "--out", tmp_path / out]
        line = [sys.executable, "-c", BROKEN, step, name, *command]
        done = subprocess.run(list(map(str, line)), capture_output=True, text=True, timeout=600)
        assert done.returncode == status, done.stderr
        assert checkpoints(tmp_path / out)[-1][0] == saved
        return done.stderr

    run(99, "SIGINT", 0, out="whole", saved=16)
    assert "stopped: the same command goes on" in run(4, "SIGINT", 130, saved=4)
    run(6, "SIGTERM", 143, saved=6)
    run(12, "SIGKILL", -9, saved=10)
    run(99, "SIGINT", 0, saved=16)
    for name in ("model/model.safetensors", "step-00000016/optimizer.safetensors"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    rows = [
        [json.loads(line) for line in (tmp_path / out / "log.jsonl").read_text().splitlines()]
        for out in ("whole", "broken")
    ]
    for a, b in zip(*rows, strict=True):
        assert {k: v for k, v in a.items() if k not in ("tokens_per_s", "mfu")} == {
            k: v for k, v in b.items() if k not in ("tokens_per_s", "mfu")
        }


def test_other_settings_do_not_continue_a_run(tmp_path, text, capsys):
    given = [*TINY, "--data", text, "--out", tmp_path / "out", "--steps", 2]
    assert train(*given) == 0
    capsys.readouterr()
    assert "`lr` is 0.02, and the run in" in fails(capsys, *given, "--lr", 0.02)
    assert f"`min_lr` is 0.001, and the run in {tmp_path / 'out'} was begun without it" in fails(
        capsys, *given, "--min-lr", 0.001
    )
    shorter = [word for word in given if word not in ("--lr", "0.01")]
    assert "`lr` is not given, and the run in" in fails(capsys, *shorter)
    assert train(*given, "--keep", 1, "--eval-every", 1) == 0  # what does not change the result may change
    assert train(*given, "--lr", 0.02, "--no-resume") == 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["lr"] == 0.02


# ---- what cannot be ----


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--steps", 0], "`steps` must be at least 1, got 0"),
        (["--lr", "nan"], "`lr` must be above 0.0, got nan"),
        (["--warmup", 6], "`warmup` (6) must be below `steps` (6)"),
        (["--min-lr", 1], "`min_lr` (1) must be at most `lr` (0.01)"),
        (["--heads", 3], "must be a multiple of `num_attention_heads` (3)"),
        (["--arch", "gpt3"], "`arch` must be gpt2, llama or the path of a config.json, got 'gpt3'"),
        (["--arch", "gpt2", "--kv-heads", 1], "`kv_heads` is for llama"),
        (["--context", 8], "`sequence_length` 16 must be at most the model's context 8"),
        (["--sequence-length", 5000], "is too short"),
        (["--tokenizer", "bpe"], "`tokenizer` bpe needs `vocab_size`"),
        (["--tokenizer", "characters", "--vocab-size", 9], "`vocab_size` is of a new tokenizer"),
        (["--tokenizer", "nowhere"], "there is no tokenizer nowhere/tokenizer.json"),
        (["--vocab-size", 20], "`vocab_size` 20 must be 257 or more"),
        (["--preset", "gpt5"], "`preset` must be one of shakespeare-char, stdlib, got 'gpt5'"),
        (["--model", "nowhere"], "`layers` is for a new model, and `model` is nowhere"),
        (["--data", "nowhere"], "there is no file or folder nowhere"),
        (["--validation-data", "ids.tokens"], "there is no file or folder ids.tokens"),
        (["--config", "nowhere.toml"], "there is no config nowhere.toml"),
        (["--out", "data.txt"], "`out` must be a folder, or a name that is free, and data.txt is a file"),
    ],
)
def test_wrong_settings(tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.txt").write_text(TEXT)
    assert words in fails(capsys, *TINY, "--data", "data.txt", "--out", "out", *arguments)


def test_missing_settings(tmp_path, text, capsys):
    assert "`out` is missing" in fails(capsys, "--data", text)
    assert "`data` is missing" in fails(capsys, "--out", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    assert "holds no text" in fails(capsys, "--data", tmp_path / "empty", "--out", tmp_path / "out")
    text.write_bytes(b"caf\xe9")
    assert "is not UTF-8 text (byte 3)" in fails(capsys, "--data", text, "--out", tmp_path / "out")
    out = tmp_path / "other"
    (out / "step-00000001").mkdir(parents=True)
    (out / "step-00000001" / "state.json").write_text("{}")
    assert "holds checkpoints that another program wrote" in fails(capsys, "--data", text, "--out", out)


@pytest.mark.parametrize(
    "toml, words",
    [
        ("stepz = 3", "`stepz` is no setting; did you mean `steps`?"),
        ("steps = 3.5", "`steps` must be an integer, got 3.5"),
        ("steps = true", "`steps` must be an integer, got True"),
        ("betas = [0.9]", "`betas` must be two numbers, got [0.9]"),
        ("betas = [0.9, 1.0]", "`betas` must be at most 0.999999, got 1.0"),
        ('schedule = "cosin"', "`schedule` must be one of cosine, linear, constant, got 'cosin'"),
        ("data = 3", "`data` must be a path or a list of paths, got 3"),
        ("resume = 1", "`resume` must be true or false, got 1"),
        ("steps = ", "is no TOML"),
    ],
)
def test_wrong_config_files(tmp_path, capsys, toml, words):
    (tmp_path / "run.toml").write_text(toml)
    assert words in fails(capsys, "--config", tmp_path / "run.toml")


# ---- settings ----


def test_presets_lie_below_files_and_files_below_flags(tmp_path):
    (tmp_path / "run.toml").write_text('preset = "shakespeare-char"\nbatch_size = 3\nlr = 0.5')
    config = configure(read_toml(tmp_path / "run.toml"), {"lr": 0.25})
    assert (config.layers, config.warmup, config.batch_size, config.lr) == (4, 100, 3, 0.25)
    assert (config.betas, config.min_lr, config.steps, config.sequence_length) == ((0.9, 0.99), 1e-4, 2000, 64)
    stored = json.loads(json.dumps(config.as_dict()))
    assert TrainConfig(**stored) == config and stored.keys() == ROWS.keys()


def test_the_embedded_model_is_the_preset_stdlib():
    from infinicore.train import stdlib

    config = configure({"preset": "stdlib"})
    table = architecture(config, stdlib.VOCABULARY)
    assert table == {**stdlib.MODEL, "bos_token_id": None, "eos_token_id": None}
    assert {name: getattr(config, name) for name in stdlib.SETTINGS} == stdlib.SETTINGS
    assert architecture(configure({"preset": "stdlib", "width": 96}), 2048)["hidden_size"] == 96


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_schedules_rise_and_fall_between_their_bounds(schedule):
    from .small import classifier

    config = configure({"schedule": schedule, "steps": 20, "warmup": 4, "lr": 1.0, "min_lr": 0.2, "optimizer": "sgd"})
    optimizer, scheduler = build_optimizer(config, classifier())
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    rates = []
    for _ in range(21):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    np.testing.assert_allclose(rates[:5], [0.2, 0.4, 0.6, 0.8, 1.0])
    if schedule == "constant":
        assert set(rates[4:]) == {1.0}
    else:
        assert (np.diff(rates[4:]) < 0).all() and rates[20] == pytest.approx(0.2)
        assert rates[12] == pytest.approx(0.6)  # the middle of both


@pytest.mark.slow
def test_tinyshakespeare_reaches_the_known_loss(tmp_path, test_data, capsys):
    """nanoGPT reports 1.88 for this configuration."""
    data = test_data / "data" / "tinyshakespeare.txt"
    assert train("--preset", "shakespeare-char", "--data", data, "--out", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["eval_loss"] <= 1.9
