"""The model that comes with the package."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

import infinicore as ic
from infinicore import models
from infinicore.lm.tokenizer import tokenizer_of
from infinicore.models.auto import EMBEDDED


@pytest.fixture(scope="module")
def model():
    return models.from_pretrained()


def test_it_is_small_and_has_a_card():
    files = {path.name: path.stat().st_size for path in EMBEDDED.iterdir()}
    assert sum(files.values()) <= 6_000_000
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", "loss.png"} <= files.keys()
    assert "validation loss" in (EMBEDDED / "README.md").read_text()


def test_it_knows_python(model):
    """Source of the standard library costs it a third of what a model that knows nothing pays (log 2048 = 7.6)."""
    tokenizer = tokenizer_of(model)
    text = Path(argparse.__file__).read_text()[:20_000]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    rows = ic.tensor([ids[i * 512 : i * 512 + 512] for i in range(len(ids) // 512)])
    with ic.no_grad():
        assert model(rows, labels=rows).item() < 3.0


def test_it_writes_the_same_again(model):
    one, two = (model.generate("import os", max_new_tokens=60, temperature=0).finish()[0] for _ in range(2))
    assert one.token_ids == two.token_ids and one.text.strip()


def test_it_can_be_trained_further(model):
    again = models.from_pretrained(dtype=ic.float32).train()
    ids = ic.tensor([tokenizer_of(model).encode("def main():\n    return 0\n")])
    optimizer = ic.optim.AdamW(again.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        loss = again(ids, labels=ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("command", [["generate", "--prompt", "import os"], ["chat"]])
def test_commands_use_it_without_a_model(command):
    call = [sys.executable, "-m", "infinicore", *command, "--max-new-tokens", "20", "--temperature", "0"]
    done = subprocess.run(call, input="read a file\n", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) > 10
