"""Models that several ranks divide write what one process writes: see `programs/inference.py`."""

import importlib.util
import json
import sys

import pytest

import infinicore
from infinicore.models import from_config, save_pretrained

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 97, "hidden_size": 48, "intermediate_size": 50,
    "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3, "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_head": 3, "n_embd": 24, "n_positions": 64, "vocab_size": 50257}


def saved(folder, config):
    """A new checkpoint."""
    infinicore.manual_seed(0)
    model = from_config(config)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.detach().mul_(5.0)  # else logits hardly differ
    save_pretrained(model, folder)
    return str(folder)


def sibling(root, name):
    """A test module of another folder, for the files that it writes."""
    spec = importlib.util.spec_from_file_location(f"models_{name}", root / "tests" / "models" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def both(path, exact, **options):
    """The cases of a checkpoint on two ranks."""
    return [[path, options, {"tp": 2}, exact], [path, options, {"pp": 2}, True]]


def test_sizes_that_nothing_divides(ranks, tmp_path):
    odd = saved(tmp_path / "odd", LLAMA)
    one = saved(tmp_path / "one", LLAMA | {"num_key_value_heads": 1, "tie_word_embeddings": True})
    qwen = {"architectures": ["Qwen3ForCausalLM"], "head_dim": 8, "num_attention_heads": 3}
    qwen = saved(tmp_path / "qwen", LLAMA | qwen)
    cases = [*both(odd, False), *both(odd, True, dtype="bfloat16"), *both(one, False), *both(qwen, False)]
    cases += both(saved(tmp_path / "gpt2", GPT2), False)
    assert ranks(2, "inference.py", json.dumps(cases)).stdout.count("done") == 2


def test_quantised(ranks, root, tmp_path):
    written = sibling(root, "test_quantized")
    cases = []
    for layout in ("awq", "gptq-act-order", "int8", "packed-4", "fp8-channel", "mxfp4"):
        (tmp_path / layout).mkdir()
        cases += both(str(written.write_pair(tmp_path / layout, layout)[0]), True)
    (tmp_path / "blocks").mkdir()
    sizes = {"hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 2}
    cases += both(str(written.write_pair(tmp_path / "blocks", "fp8-blocks", **sizes)[0]), True)
    odd = saved(tmp_path / "odd", LLAMA | {"tie_word_embeddings": True})
    cases += [*both(odd, True, quantize="int8"), *both(odd, True, quantize="int4")]
    assert ranks(2, "inference.py", json.dumps(cases)).stdout.count("done") == 2


def test_gguf(ranks, root, tmp_path):
    pytest.importorskip("gguf")
    written = sibling(root, "test_gguf")
    cases = []
    for kind, tied in (("Q8_0", True), ("Q4_0", False), ("Q4_K", False), ("F32", True)):
        path, _ = written.write_model(tmp_path, kind, tied=tied)
        cases += both(str(path), kind != "F32")
    assert ranks(2, "inference.py", json.dumps(cases)).stdout.count("done") == 2


def test_both_axes_and_messages(ranks, stories):
    cases = [[str(stories), {}, {"tp": 2, "pp": 2}, False], [str(stories), {"dtype": "bfloat16"}, {"tp": 4}, True]]
    assert ranks(4, "inference.py", json.dumps(cases)).stdout.count("done") == 4
    done = ranks(2, "inference.py", json.dumps(both(str(stories), False)), INFINICORE_COMM_TRANSPORT="messages")
    assert done.stdout.count("done") == 2
