"""Rotary frequencies of every scaling rule equal transformers'."""

import numpy as np
import pytest

import infinicore as ic
from infinicore.models import rope
from infinicore.models.rotary import RotaryTables

RULES = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": False, "beta_fast": 8},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.5},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 0.8},
]


@pytest.mark.parametrize("rule", RULES, ids=[str(sorted(rule.items())) for rule in RULES])
@pytest.mark.parametrize("length", [100, 300])
def test_tables(rule, length):
    torch = pytest.importorskip("torch")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=128, num_attention_heads=4, max_position_embeddings=256,
                         rope_parameters={"rope_theta": 5e4, **rule})  # fmt: skip
    theirs = llama.LlamaRotaryEmbedding(config)
    positions = torch.arange(length)[None]
    cosine, sine = (t[0, :, :16].numpy() for t in theirs(torch.zeros(1), positions))
    ours = rope.parse("config.json", {"rope_theta": 5e4, "rope_scaling": rule}, 32, 256)
    mine = rope.rows(ours, np.arange(length), length)
    np.testing.assert_allclose(mine[0], sine, atol=2e-5)
    np.testing.assert_allclose(mine[1], cosine, atol=2e-5)


def test_dynamic_rows_of_decoding():
    """Token by token, position p belongs to a sequence of p + 1."""
    config = rope.RopeConfig(type="dynamic", factor=2.0, head_dim=8, max_position_embeddings=16)
    sine, _ = rope.rows(config, np.arange(32))
    for position in (3, 15, 16, 31):
        np.testing.assert_array_equal(sine[position], rope.rows(config, [position], position + 1)[0][0])


def test_tables_that_another_thread_makes_longer_are_whole(monkeypatch):
    """Asked for in the midst of that, they are as long as they must be."""
    tables, seen = RotaryTables(rope.RopeConfig(head_dim=8), ic.float32), []
    make = tables._tensors

    def ask_meanwhile(*arrays):
        monkeypatch.setattr(tables, "_tensors", make)
        seen.append(tables.ensure(900))
        return make(*arrays)

    tables.ensure(10)
    monkeypatch.setattr(tables, "_tensors", ask_meanwhile)
    seen.append(tables.ensure(1000))
    assert all(len(sine) >= 900 and len(cosine) >= 900 for sine, cosine in seen)
