"""config.json: what it means, and one clear sentence for what cannot be."""

import json

import pytest

from infinicore.models import load_config
from infinicore.models.llama import configs, names

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def parse(family="llama", **changes):
    return configs.parse("config.json", {**TINY, **changes}, family)


def test_defaults():
    config = parse()
    assert (config.num_key_value_heads, config.head_dim) == (4, 8)
    assert config.windows == (None, None, None) and not config.qkv_bias
    assert config.rope.theta == 10000.0 and config.context == 64 and config.dtype == "float32"
    assert parse(num_key_value_heads=2, head_dim=16).query_size == 64
    qwen3 = parse("qwen3", num_key_value_heads=4)
    assert qwen3.head_dim == 128 and qwen3.qk_norm and not qwen3.qkv_bias
    assert parse("qwen2", num_key_value_heads=4).qkv_bias and not parse("qwen2", num_key_value_heads=4).output_bias
    assert parse(torch_dtype="bfloat16").dtype == "bfloat16" == parse(dtype="bfloat16").dtype
    assert parse(eos_token_id=[2, 3]).eos_token_ids == (2, 3) and parse(eos_token_id=2).eos_token_ids == (2,)


def test_windows():
    qwen = {"num_key_value_heads": 4, "sliding_window": 8}
    assert parse("mistral", num_key_value_heads=4, sliding_window=8).windows == (8, 8, 8)
    assert parse("mistral", num_key_value_heads=4, sliding_window=None).windows == (None,) * 3
    assert parse("mistral", num_key_value_heads=4).windows == (4096,) * 3
    assert parse("llama", sliding_window=8).windows == (None,) * 3
    assert parse("qwen2", **qwen).windows == (None,) * 3
    assert parse("qwen2", **qwen, use_sliding_window=True, max_window_layers=1).windows == (None, 8, 8)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert parse("qwen2", **qwen, use_sliding_window=True, layer_types=kinds).windows == (8, None, 8)


def test_rope_spellings():
    old = parse(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    new = parse(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5})
    assert old.rope == new.rope and old.rope.theta == 5e5 and old.context == 128
    assert parse(rope_scaling=None, rope_theta=1e6).rope.theta == 1e6
    both = {"rope_type": "llama3", "type": "linear", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert parse(rope_scaling={**both, "original_max_position_embeddings": 32}).rope.type == "llama3"
    yarn = parse(rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32})
    assert yarn.context == 128 and yarn.rope.attention_factor == pytest.approx(1.1386, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"hidden_size": 0}, ValueError, "hidden_size"),
        ({"hidden_size": "32"}, ValueError, "hidden_size"),
        ({"hidden_size": 33}, ValueError, "multiple"),
        ({"num_key_value_heads": 3}, ValueError, "num_key_value_heads"),
        ({"head_dim": 7}, ValueError, "even"),
        ({"num_hidden_layers": 10**9}, ValueError, "num_hidden_layers"),
        ({"vocab_size": -1}, ValueError, "vocab_size"),
        ({"rms_norm_eps": "small"}, ValueError, "rms_norm_eps"),
        ({"tie_word_embeddings": 1}, ValueError, "tie_word_embeddings"),
        ({"torch_dtype": "int8"}, ValueError, "dtype"),
        ({"eos_token_id": "</s>"}, ValueError, "eos_token_id"),
        ({"hidden_act": "gelu"}, NotImplementedError, "hidden_act"),
        ({"quantization_config": {"quant_method": "aqlm"}}, NotImplementedError, "aqlm"),
        ({"rope_scaling": {"type": "longrope", "factor": 2}}, NotImplementedError, "longrope"),
        ({"rope_scaling": {"type": "linear"}}, ValueError, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": float("nan")}}, ValueError, "factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, ValueError, "low_freq_factor"),
        ({"rope_scaling": [1]}, ValueError, "rope_parameters"),
        ({"rope_theta": 0}, ValueError, "rope_theta"),
        ({"partial_rotary_factor": 0.5}, NotImplementedError, "partial"),
    ],
)
def test_errors(changes, error, words):
    with pytest.raises(error, match=words) as raised:
        parse(**changes)
    assert str(raised.value).startswith("config.json") and "\n" not in str(raised.value)


def test_layer_types_errors():
    for kinds in (["full_attention"], ["full_attention"] * 2 + ["linear"], ["sliding_attention"] * 3, 3):
        with pytest.raises(ValueError, match="layer_types"):
            parse("qwen2", num_key_value_heads=4, layer_types=kinds)


def test_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_config(tmp_path)
    for text, words in (("{", "not valid JSON"), ("[]", "object"), ("{}", "architecture"), ("[" * 10**5, "JSON")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=words):
            load_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "architectures": ["BloomForCausalLM"]}))
    with pytest.raises(ValueError, match="BloomForCausalLM"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in TINY.items() if k != "architectures"}))
    assert load_config(tmp_path).model_type == "llama"


def test_names():
    found = names.shapes(parse(attention_bias=True, mlp_bias=True), tied=True)
    assert len(found) == 2 + 3 * 16 and "lm_head.weight" not in found
    assert found["model.layers.2.self_attn.q_proj.bias"] == (32,)
    assert names.canonical("layers.0.mlp.up_proj.weight") == "model.layers.0.mlp.up_proj.weight"
    assert names.canonical("lm_head.weight") == "lm_head.weight"
