"""Logits equal transformers' on small random models of every architecture and feature, in every way of running."""

import numpy as np
import pytest

import infinicore
from infinicore.models import PagedCache, StaticCache, from_pretrained

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e4}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
QWEN = {"use_sliding_window": True, "sliding_window": 7}

# name: (architecture, changes to SMALL)
MODELS = {
    "llama": ("Llama", {}),
    "llama-multi-head": ("Llama", {"num_key_value_heads": 4}),
    "llama-multi-query": ("Llama", {"num_key_value_heads": 1}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-head-dim": ("Llama", {"head_dim": 20}),
    "llama-theta": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    "llama-dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4},
                                "max_position_embeddings": 16}),
    "llama-llama3": ("Llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16}}),
    "llama-yarn": ("Llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4,
                                                 "original_max_position_embeddings": 16}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 5, "head_dim": 12}),
    "qwen2": ("Qwen2", {}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", {**QWEN, "max_window_layers": 1}),
    "qwen2-layer-types": ("Qwen2", {**QWEN, "layer_types": MIXED}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-bias": ("Qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    "qwen3-window": ("Qwen3", {"head_dim": 8, **QWEN, "max_window_layers": 2}),
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def pair(request, tmp_path_factory):
    """(transformers' model, ours) with the same random weights, read from a folder that transformers wrote."""
    architecture, changes = MODELS[request.param]
    config = getattr(transformers, architecture + "Config")(**SMALL | changes)
    torch.manual_seed(0)
    theirs = getattr(transformers, architecture + "ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            # Norms away from one and biases away from zero: a switch that is not read shows.
            parameter.detach().copy_(
                1 + 0.3 * torch.randn_like(parameter) if "norm" in name else 0.3 * torch.randn_like(parameter)
            )
    folder = tmp_path_factory.mktemp("model")
    theirs.save_pretrained(folder)
    return theirs, from_pretrained(folder)


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.numpy()


def tokens(rng, *shape):
    return rng.integers(0, SMALL["vocab_size"], shape)


def close(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours), theirs, atol=1e-4, rtol=0)


def test_whole(pair, rng):
    theirs, ours = pair
    ids = tokens(rng, 2, 23)
    logits = ours(infinicore.from_numpy(ids))
    assert logits.shape == (2, 23, SMALL["vocab_size"]) and logits.dtype is infinicore.float32
    close(logits, logits_of(theirs, ids))


@pytest.mark.parametrize("cache", [StaticCache, PagedCache])
def test_token_by_token(pair, rng, cache):
    """A prompt in two pieces, then single tokens."""
    theirs, ours = pair
    ids = tokens(rng, 1, 14)
    options = {"block_size": 4} if cache is PagedCache else {}
    cache = cache(ours.config, ours.dtype, max_length=32, **options)
    past = transformers.DynamicCache(config=theirs.config)
    for first, stop in [(0, 5), (5, 9), *((i, i + 1) for i in range(9, 14))]:
        with torch.no_grad():
            expected = theirs(torch.tensor(ids[:, first:stop]), past_key_values=past, use_cache=True).logits.numpy()
        close(ours(ids[:, first:stop], cache=cache), expected)
    assert cache.lengths == [14]


@pytest.mark.parametrize("cache", [None, StaticCache, PagedCache])
def test_unequal_lengths(pair, rng, cache):
    theirs, ours = pair
    rows = [tokens(rng, n).tolist() for n in (3, 17, 1, 9)]
    if cache is not None:
        options = {"block_size": 4} if cache is PagedCache else {}
        cache = cache(ours.config, ours.dtype, sequences=4, max_length=20, **options)
    logits = ours(rows, cache=cache).numpy()
    for row, own in zip(rows, logits):
        close(own[: len(row)], logits_of(theirs, [row])[0])
        assert (own[len(row) :] == 0).all()
    if cache is not None:
        more = [tokens(rng, n).tolist() for n in (1, 2, 3, 1)]
        logits = ours(more, cache=cache).numpy()
        for row, new, own in zip(rows, more, logits):
            if ours.config.rope.type != "dynamic":  # whose earlier keys keep the angles of the shorter sequence
                close(own[: len(new)], logits_of(theirs, [row + new])[0, len(row) :])


@pytest.mark.parametrize("side", ["left", "right"])
def test_attention_mask(pair, rng, side):
    theirs, ours = pair
    ids, mask = tokens(rng, 2, 8), np.ones((2, 8), np.int64)
    mask[1, slice(0, 3) if side == "left" else slice(5, 8)] = 0
    logits = ours(ids, attention_mask=mask).numpy()
    close(logits[0], logits_of(theirs, ids[:1])[0])
    kept = mask[1] == 1
    close(logits[1, kept], logits_of(theirs, ids[1:, kept])[0])


def test_greedy(pair, rng):
    """The decode loop (chunked prompt, recorded steps) against transformers' generate."""
    theirs, ours = pair
    prompt = tokens(rng, 1, 7)
    new = 24 if ours.config.context >= 40 else 8
    with torch.no_grad():
        expected = theirs.generate(torch.tensor(prompt), max_new_tokens=new, do_sample=False, eos_token_id=None,
                                   pad_token_id=0)[0, 7:].tolist()  # fmt: skip
    for cache in ("static", "paged"):
        generation = ours.generate(prompt[0], max_new_tokens=new, ignore_eos=True, temperature=0, cache=cache, chunk=3)
        assert generation.finish()[0].token_ids == expected
        assert generation.completion.finish_reason == "length"


def test_dynamic_beyond_the_models_length(tmp_path, rng):
    """The frequencies of a prompt are those of its whole length, and of a new token those of its own."""
    config = transformers.LlamaConfig(**SMALL | MODELS["llama-dynamic"][1])
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = from_pretrained(tmp_path)
    ids = tokens(rng, 1, 40)
    close(ours(ids), logits_of(theirs, ids))
    with torch.no_grad():
        expected = theirs.generate(
            torch.tensor(ids), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    generation = ours.generate(ids[0], max_new_tokens=20, ignore_eos=True, temperature=0, chunk=16)
    assert generation.finish()[0].token_ids == expected[0, 40:].tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes(tmp_path, rng, dtype):
    config = transformers.Qwen3Config(**SMALL, head_dim=16)
    theirs = transformers.Qwen3ForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path)
    ids = tokens(rng, 2, 12)
    ours = from_pretrained(tmp_path, dtype=dtype)
    logits = ours(ids)
    assert logits.dtype.name == dtype
    expected = logits_of(theirs.double(), ids)
    atol = {"bfloat16": 5e-2, "float16": 5e-3, "float64": 1e-5}[dtype] * np.abs(expected).max()
    np.testing.assert_allclose(logits.numpy().astype(np.float64), expected, atol=atol)


def test_shards_and_bfloat16_files(tmp_path, rng):
    config = transformers.LlamaConfig(**SMALL)
    theirs = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert from_pretrained(tmp_path).dtype is infinicore.bfloat16
    ids = tokens(rng, 1, 6)
    close(from_pretrained(tmp_path, dtype="float32")(ids), logits_of(theirs.float(), ids))
