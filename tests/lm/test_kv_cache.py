"""int8 caches of keys and values: their size, what a model makes of them, and a wrong name."""

import numpy as np
import pytest

import infinicore
from infinicore.models import CausalLM, PagedCache, StaticCache, from_pretrained
from infinicore.models.llama import configs

CONFIG = {
    "vocab_size": 60,
    "hidden_size": 64,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "sliding_window": 9,
}


@pytest.fixture(scope="module")
def sliding():
    """A random model whose layers see 9 tokens."""
    infinicore.manual_seed(3)
    model = CausalLM(configs.parse("config.json", CONFIG, "mistral")).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.detach().copy_(infinicore.randn(*parameter.shape) * 0.2)
    return model


def test_size(sliding):
    exact = StaticCache(sliding.config, infinicore.bfloat16, sequences=3, max_length=50)
    small = StaticCache(sliding.config, infinicore.int8, sequences=3, max_length=50)
    elements = 2 * 2 * 3 * 2 * 50 * 8  # layers, keys and values, sequences, heads, tokens, head size
    assert exact.nbytes == 2 * elements and exact.scales(0) == {}
    assert small.nbytes == elements + 4 * elements // 8
    assert small.scales(1)["v_scales"].shape == (3, 2, 50)


@pytest.mark.parametrize("kind", [StaticCache, PagedCache])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_of_a_model_with_a_window(kind, dtype, sliding):
    """Prompt in two pieces, then single tokens: off by the cache's 8 bits, and by no more."""
    model = sliding.to(infinicore.dtype(dtype))
    ids = np.random.default_rng(0).integers(0, 60, 40).tolist()
    whole = model([ids]).to(infinicore.float32).numpy()[0]
    cache, parts = kind(model.config, infinicore.int8, max_length=64), []
    for piece in (ids[:20], ids[20:35], *([token] for token in ids[35:])):
        parts.append(model([piece], cache=cache).to(infinicore.float32).numpy()[0])
    error = np.abs(np.concatenate(parts) - whole).max() / np.abs(whole).max()
    assert 1e-5 < error < (0.02 if dtype == "float32" else 0.05)


@pytest.mark.parametrize("cache", ["static", "paged"])
def test_greedy_text(cache, stories):
    """The text of the exact cache for 40 tokens; afterwards two words may be nearly as likely."""
    model = from_pretrained(stories)
    texts = [
        model.generate("Once upon a time", max_new_tokens=40, temperature=0, cache=cache, **options).finish()[0].text
        for options in ({}, {"kv_cache_dtype": "int8"})
    ]
    assert texts[0] == texts[1] and len(texts[0]) > 80


def test_a_wrong_dtype_is_refused(sliding):
    with pytest.raises(ValueError, match=r"`kv_cache_dtype`.*'int8'.*'int4'"):
        sliding.generate([1, 2], max_new_tokens=2, kv_cache_dtype="int4")
