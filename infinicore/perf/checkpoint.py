"""Checkpoints for the generation cases: random weights of a known shape, and their GGUF twin.

Written tensor by tensor, so that 2.2 GB of weights need little memory. The GGUF file (version 3,
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) lets llama.cpp run the same weights: its
LLaMA keeps the rows of the query and key projections in rotated pairs (its Qwen2 does not); there is no
tokenizer, unless a server needs one.
"""

import json
import os
import struct
from pathlib import Path

import numpy as np

from .vocabulary import made_up, of_tokenizer
from .vocabulary import metadata as vocabulary_metadata

_SAFETENSORS = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
_GGUF_TYPE = {"F32": 0, "F16": 1, "BF16": 30}
_GGUF_UINT32, _GGUF_FLOAT32, _GGUF_STRING = 4, 6, 8
_ALIGNMENT = 32
# Weights are pieces of so many random numbers, from anywhere: making 8 billion numbers anew takes two minutes.
_POOL = (1 << 24) + 1
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_FAMILY_KEYS = {"llama": {"attention_bias": False, "mlp_bias": False}, "qwen2": {"use_sliding_window": False}}


def bfloat16_bits(x):
    """float32 values (finite) as the bits of bfloat16, rounded to nearest even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def config_of(model):
    """The `config.json` of a `model_cases.Model`."""
    return {
        "architectures": [_ARCHITECTURES[model.family]],
        "model_type": model.family,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.hidden // model.heads,
        "vocab_size": model.vocabulary,
        "max_position_embeddings": model.context,
        "rms_norm_eps": model.eps,
        "rope_theta": model.rope_theta,
        "hidden_act": "silu",
        "tie_word_embeddings": model.tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": model.dtype,
        **_FAMILY_KEYS[model.family],
    }


def _shapes(model):
    """Tensor names and shapes, in the order of the file."""
    kv = model.hidden * model.kv_heads // model.heads
    yield "model.embed_tokens.weight", (model.vocabulary, model.hidden)
    for i in range(model.layers):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (model.hidden,)
        for part, width in (("q", model.hidden), ("k", kv), ("v", kv)):
            yield f"{at}self_attn.{part}_proj.weight", (width, model.hidden)
            if model.bias:
                yield f"{at}self_attn.{part}_proj.bias", (width,)
        yield at + "self_attn.o_proj.weight", (model.hidden, model.hidden)
        yield at + "post_attention_layernorm.weight", (model.hidden,)
        yield at + "mlp.gate_proj.weight", (model.intermediate, model.hidden)
        yield at + "mlp.up_proj.weight", (model.intermediate, model.hidden)
        yield at + "mlp.down_proj.weight", (model.hidden, model.intermediate)
    yield "model.norm.weight", (model.hidden,)
    if not model.tied:
        yield "lm_head.weight", (model.vocabulary, model.hidden)


def write_random(model, folder):
    """Write a checkpoint of `model` (a `model_cases.Model`) with normal weights of scale 0.02 into `folder`.

    Does nothing if `folder` holds a checkpoint of this shape; ValueError if it holds another one.
    """
    folder = Path(folder)
    config = config_of(model)
    if (folder / "config.json").exists():
        found = json.loads((folder / "config.json").read_text())
        wrong = next((k for k in config if found.get(k) != config[k]), None)
        if wrong is not None:
            raise ValueError(
                f"`model_dir` {folder} holds a checkpoint with {wrong}={found.get(wrong)!r}, but {model.name} "
                f"needs {config[wrong]!r}; name another folder"
            )
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    code, itemsize = ("BF16", 2) if model.dtype == "bfloat16" else ("F32", 4)
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in _shapes(model):
        start, end = end, end + int(np.prod(shape)) * itemsize
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    pool = rng.standard_normal(_POOL, dtype=np.float32) * np.float32(0.02)
    encode = bfloat16_bits if code == "BF16" else np.asarray
    encoded = encode(pool)
    partial = folder / "model.safetensors.partial"
    with partial.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in _shapes(model):
            if "norm" in name:  # its weight is near 1
                encode(1 + pool[: shape[0]]).tofile(file)
                continue
            left = int(np.prod(shape))
            while left:
                start = rng.integers(_POOL)
                part = encoded[start : start + left]
                part.tofile(file)
                left -= part.size
    os.replace(partial, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def _read_safetensors(path):
    """(name, dtype code, array of its bits) for each tensor, mapped and not read."""
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
    data = np.memmap(path, np.uint8, "r", offset=8 + length)
    for name, row in header.items():
        if name != "__metadata__":
            start, stop = row["data_offsets"]
            yield name, row["dtype"], data[start:stop].view(_SAFETENSORS[row["dtype"]]).reshape(row["shape"])


_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GGUF_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def _gguf_name(name):
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"


def _rotated_pairs(weight, heads):
    """Rows of a projection from halves (i, i + D/2), as Hugging Face rotates, to pairs (2i, 2i + 1)."""
    rows, width = weight.shape
    return np.ascontiguousarray(weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2)).reshape(rows, width)


def _string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _metadata(config, vocabulary=None):
    """(number of keys, their bytes) of the key-value section; `vocabulary` is (pieces, scores), or None for none."""
    family = config["model_type"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    integers = {
        f"{family}.context_length": config["max_position_embeddings"],
        f"{family}.embedding_length": config["hidden_size"],
        f"{family}.block_count": config["num_hidden_layers"],
        f"{family}.feed_forward_length": config["intermediate_size"],
        f"{family}.rope.dimension_count": head_dim,
        f"{family}.attention.head_count": config["num_attention_heads"],
        f"{family}.attention.head_count_kv": config["num_key_value_heads"],
        f"{family}.vocab_size": config["vocab_size"],
        "general.alignment": _ALIGNMENT,
    }
    floats = {
        f"{family}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{family}.rope.freq_base": config.get("rope_theta", 10000.0),
    }
    strings = {"general.architecture": family, **({} if vocabulary else {"tokenizer.ggml.model": "none"})}
    out = [_string(k) + struct.pack("<I", _GGUF_STRING) + _string(v) for k, v in strings.items()]
    out += [_string(k) + struct.pack("<II", _GGUF_UINT32, v) for k, v in integers.items()]
    out += [_string(k) + struct.pack("<If", _GGUF_FLOAT32, v) for k, v in floats.items()]
    count, more = vocabulary_metadata(*vocabulary) if vocabulary else (0, b"")
    return len(out) + count, b"".join(out) + more


def write_gguf(folder, path, with_vocabulary=False):
    """Write the Llama or Qwen2 checkpoint in `folder` (config.json, model.safetensors) as a GGUF file at `path`.

    `with_vocabulary`: that of the folder's tokenizer.json, or one that is made up.
    """
    config = json.loads((Path(folder) / "config.json").read_text())
    heads = {}
    if config["model_type"] == "llama":
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = list(_read_safetensors(Path(folder) / "model.safetensors"))
    vocabulary, tokenizer = None, Path(folder, "tokenizer.json")
    if with_vocabulary:
        vocabulary = of_tokenizer(tokenizer) if tokenizer.exists() else made_up(config["vocab_size"])
    count, metadata = _metadata(config, vocabulary)
    infos, offset = [], 0
    for name, code, array in tensors:
        if array.ndim == 1:
            code = "F32"  # llama.cpp keeps vectors in float32
        nbytes = array.size * (4 if code == "F32" else 2)
        shape = struct.pack(f"<I{array.ndim}Q", array.ndim, *array.shape[::-1])
        infos.append(_string(_gguf_name(name)) + shape + struct.pack("<IQ", _GGUF_TYPE[code], offset))
        offset += nbytes + -nbytes % _ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count) + metadata + b"".join(infos)
    partial = f"{path}.partial"
    with open(partial, "wb") as file:
        file.write(head + bytes(-len(head) % _ALIGNMENT))
        for name, code, array in tensors:
            if array.ndim == 1 and code == "BF16":
                array = (array.astype(np.uint32) << 16).view(np.float32)
            elif array.ndim == 1:
                array = array.astype(np.float32)
            part = _gguf_name(name).split(".")[-2]
            if part in heads:
                array = _rotated_pairs(array, heads[part])
            np.ascontiguousarray(array).tofile(file)
            file.write(bytes(-array.nbytes % _ALIGNMENT))
    os.replace(partial, path)
