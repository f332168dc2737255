"""Small models, and rows for all ranks."""

import numpy as np

import infinicore as ic

ROWS, LENGTH = 2, 16
GPT2 = {
    "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 97,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 97, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 16, "rope_theta": 10000.0, "tie_word_embeddings": True,
}  # fmt: skip


def batches(count, ranks):
    """Ids for all ranks: [count][ranks * ROWS, LENGTH]."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 97, (ranks * ROWS, LENGTH + 1)) for _ in range(count)]


def pair(ids):
    """Inputs and targets."""
    ids = ids.astype(np.int64)
    return ic.from_numpy(ids[:, :-1].copy()), ic.from_numpy(ids[:, 1:].copy())
