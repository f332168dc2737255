"""Quantised checkpoints: each published layout gives the logits of its dequantised twin; `quantize=`; damaged files."""

import json
import re

import numpy as np
import pytest

import infinicore
from infinicore.io import save_file
from infinicore.models import CausalLM, from_pretrained
from infinicore.models.llama import configs, names

F32 = np.float32
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 48,
    "hidden_size": 128,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
IDS = [[3, 14, 15, 9, 2, 6, 5, 35], [8, 9, 7, 9, 3, 2, 3, 8]]
# Activations of 8 bits err by 1/440 of the largest of 32 on average, 0.6 % of the norm of normal ones in each product;
# the head's own error comes on top of that of the hidden states.
ACTIVATION_ERROR = 0.01


def words_along(q, bits, axis):
    """int32 words of neighbours along an axis, the first in the low bits."""
    q = np.moveaxis(q.astype(np.uint32), axis, -1)
    q = q.reshape(*q.shape[:-1], -1, 32 // bits)
    words = np.bitwise_or.reduce(q << (bits * np.arange(32 // bits, dtype=np.uint32)), axis=-1)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32)


def affine(w, bits, group, symmetric=False, g_idx=None):
    """(q [K, N], zeros and scales [groups, N], the weight [N, K] that they stand for) of a float weight."""
    n, k = w.shape
    group = k if group == -1 else group
    g_idx = np.arange(k) // group if g_idx is None else g_idx
    groups, top = g_idx.max() + 1, (1 << bits) - 1
    scales, zeros = np.empty((groups, n), np.float16), np.empty((groups, n), int)
    for g in range(groups):
        part = w[:, g_idx == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            high = np.abs(part).max(1)
            low = -high
        scales[g] = (high - low) / top
        zeros[g] = (top + 1) // 2 if symmetric else np.clip(np.rint(-low / scales[g].astype(F32)), 1, top)
    scale, zero = scales.astype(F32)[g_idx].T, zeros[g_idx].T
    q = np.clip(np.rint(w / scale) + zero, 0, top).astype(int)
    return q.T, zeros, scales, (q - zero).astype(F32) * scale


def gptq(bits=4, group=32, symmetric=False, act_order=False, version=None):
    def encode(rng, w):
        k = w.shape[1]
        size = k if group == -1 else group
        g_idx = rng.permutation(np.arange(k) // size) if act_order else np.arange(k) // size
        q, zeros, scales, twin = affine(w, bits, group, symmetric, g_idx)
        qzeros = words_along(zeros - (0 if version == "gptq_v2" else 1), bits, 1)
        stored = {"qweight": words_along(q, bits, 0), "qzeros": qzeros, "scales": scales}
        return stored | {"g_idx": g_idx.astype(np.int32)}, twin

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order, "sym": symmetric}
    return config | ({"checkpoint_format": version} if version else {}), encode


def awq(group):
    def encode(rng, w):
        q, zeros, scales, twin = affine(w, 4, group)

        def words(x):  # nibble i of a word holds column order[i]
            return words_along(x.reshape(len(x), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(x.shape), 4, 1)

        return {"qweight": words(q), "qzeros": words(zeros), "scales": scales}, twin

    return {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}, encode


def compressed(form, ignore=("lm_head",), **weights):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    config = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
    return config | {"ignore": list(ignore), "quantization_status": "compressed"}


def int8():
    def encode(rng, w):
        scale = (np.abs(w).max(1, keepdims=True) / 127).astype(F32)
        q = np.rint(w / scale).astype(np.int8)
        return {"weight": q, "weight_scale": scale}, q * scale

    return compressed("int-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"), encode


def packed(bits, group):
    def encode(rng, w):
        q, _, scales, twin = affine(w, bits, group, symmetric=True)
        shape = np.array(w.shape, np.int64)
        stored = {"weight_packed": words_along(q.T, bits, 1), "weight_scale": np.ascontiguousarray(scales.T)}
        return stored | {"weight_shape": shape}, twin

    options = {"strategy": "channel"} if group == -1 else {"strategy": "group", "group_size": group}
    return compressed("pack-quantized", num_bits=bits, type="int", symmetric=True, **options), encode


def float8(kind):
    def encode(rng, w):
        n, k = w.shape
        scale = rng.uniform(0.5, 2, {"block": (-(-n // 128), -(-k // 128)), "channel": (n, 1), "tensor": ()}[kind])
        scale = np.asarray(scale / 400, F32)
        whole = scale.repeat(128, 0).repeat(128, 1)[:n, :k] if kind == "block" else scale
        values = infinicore.from_numpy((w / whole).astype(F32)).to("float8_e4m3")
        name = "weight_scale_inv" if kind == "block" else "weight_scale"
        stored = {"weight": values, name: scale}
        if kind == "tensor":
            stored["input_scale"] = np.ones((), F32)
        return stored, values.to("float32").numpy() * whole

    if kind == "channel":
        return compressed("float-quantized", num_bits=8, type="float", symmetric=True, strategy="channel"), encode
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}
    return config | ({"weight_block_size": [128, 128]} if kind == "block" else {}), encode


def mxfp4(names_of):
    def encode(rng, w):
        n, k = w.shape
        q, exponents = rng.integers(0, 16, (n, k)), rng.integers(118, 122, (n, k // 32))
        values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], F32)[q & 7] * np.where(q & 8, F32(-1), F32(1))
        packed = (q[:, ::2] | q[:, 1::2] << 4).astype(np.uint8)
        blocks, scales = names_of
        stored = {blocks: packed.reshape(n, k // 32, 16) if blocks == "weight_blocks" else packed}
        return stored | {scales: exponents.astype(np.uint8)}, np.ldexp(values, exponents.repeat(32, 1) - 127)

    if names_of[0] == "weight_blocks":
        return {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, encode
    return compressed("mxfp4-pack-quantized", num_bits=4, type="float", symmetric=True, group_size=32), encode


LAYOUTS = {
    "awq": awq(32),
    "awq-64": awq(64),
    "awq-row": awq(-1),
    "gptq": gptq(),
    "gptq-symmetric": gptq(group=128, symmetric=True),
    "gptq-row": gptq(group=-1, version="gptq_v2"),
    "gptq-act-order": gptq(act_order=True),
    "gptq-8": gptq(bits=8, group=64),
    "gptq-8-act-order": gptq(bits=8, act_order=True, symmetric=True, version="gptq"),
    "int8": int8(),
    "packed-4": packed(4, 128),
    "packed-8": packed(8, -1),
    "fp8-blocks": float8("block"),
    "fp8-tensor": float8("tensor"),
    "fp8-channel": float8("channel"),
    "mxfp4": mxfp4(("weight_blocks", "weight_scales")),
    "mxfp4-packed": mxfp4(("weight_packed", "weight_scale")),
}


def write_pair(folder, layout, left=("lm_head",), **changes):
    """Two checkpoints, (quantised, its dequantised twin in float32); layers in `left` stay floats."""
    quantization, encode = LAYOUTS[layout]
    config, rng = {**CONFIG, **changes}, np.random.default_rng(0)
    infinicore.manual_seed(0)
    stored, twins = {}, {}
    for name, value in CausalLM(configs.parse("config.json", config, "llama")).state_dict().items():
        path = name.removesuffix(".weight")
        if value.ndim != 2 or name == names.EMBEDDING or path in left:
            stored[name] = twins[name] = value
            continue
        tensors, twin = encode(rng, value.numpy())
        twins[name] = infinicore.from_numpy(np.ascontiguousarray(twin, F32))
        for suffix, array in tensors.items():
            stored[f"{path}.{suffix}"] = infinicore.from_numpy(array) if isinstance(array, np.ndarray) else array
    for part, tensors, own in (("stored", stored, {"quantization_config": quantization}), ("twin", twins, {})):
        (folder / part).mkdir()
        (folder / part / "config.json").write_text(json.dumps(config | own))
        save_file(tensors, folder / part / "model.safetensors")
    return folder / "stored", folder / "twin"


def quantised(model):
    """Paths and layers that are quantised."""
    return {path: m for path, m in model.named_modules() if getattr(m, "quantized", None) is not None}


def relative(a, b):
    a, b = (model(IDS).to("float32").numpy() for model in (a, b))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_the_dequantised_twin(layout, tmp_path):
    stored, twin = (from_pretrained(folder) for folder in write_pair(tmp_path, layout))
    layers = quantised(stored)
    assert len(layers) == 14 and "lm_head" not in layers
    assert relative(stored, twin) < ACTIVATION_ERROR
    for path, layer in layers.items():
        wanted = twin.get_submodule(path).weight.detach().numpy()
        np.testing.assert_array_equal(infinicore.dequantize_weight(layer.quantized).numpy(), wanted)
        layer.activations = "float"
    assert relative(stored, twin) < 1e-6


def test_orders_are_shared(tmp_path):
    quantization, encode = gptq(act_order=True)
    fixed = np.random.default_rng(5).permutation(np.arange(128) // 32)
    LAYOUTS["same"] = quantization, lambda rng, w: encode(_Fixed(fixed, rng), w)
    try:
        model = from_pretrained(write_pair(tmp_path, "same")[0])
    finally:
        del LAYOUTS["same"]
    attention = model.model.layers[0].self_attn
    assert attention.q_proj.quantized.order is attention.k_proj.quantized.order is attention.v_proj.quantized.order


class _Fixed:
    """A generator whose permutation of 128 is always the same, as for projections of one input."""

    def __init__(self, order, rng):
        self.order, self.rng = order, rng

    def permutation(self, x):
        return self.order if len(x) == 128 else self.rng.permutation(x)


def test_exceptions_stay_floats(tmp_path):
    left = ("lm_head", "model.layers.1.self_attn.v_proj", "model.layers.0.mlp.down_proj")
    for layout, ignored in (
        ("awq", {"modules_to_not_convert": ["v_proj", "layers.0.mlp.down_proj"]}),
        ("fp8-blocks", {"modules_to_not_convert": list(left)}),
        ("int8", {"ignore": ["lm_head", "re:.*1\\.self_attn\\.v_proj", left[2]]}),
        ("gptq", {}),
    ):
        (tmp_path / layout).mkdir()
        stored, twin = write_pair(tmp_path / layout, layout, left=left)
        config = json.loads((stored / "config.json").read_text())
        config["quantization_config"] |= ignored
        (stored / "config.json").write_text(json.dumps(config))
        if layout == "awq":  # the list also names v_proj of layer 0, which is stored quantised
            with pytest.raises(ValueError, match=r"lacks tensor 'model.layers.0.self_attn.v_proj.weight'"):
                from_pretrained(stored)
            config["quantization_config"]["modules_to_not_convert"] = ["layers.1.self_attn.v_proj", left[2]]
            (stored / "config.json").write_text(json.dumps(config))
        model = from_pretrained(stored)
        assert len(quantised(model)) == 12 and not set(left) & quantised(model).keys()
        assert relative(model, from_pretrained(twin)) < ACTIVATION_ERROR


def test_quantised_head_and_biases_of_zeros(tmp_path):
    stored, twin = write_pair(tmp_path, "gptq", left=())
    from infinicore.io import load_file

    tensors = load_file(stored / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.bias"] = infinicore.zeros(160)
    save_file(tensors, stored / "model.safetensors")
    model = from_pretrained(stored)
    assert "lm_head" in quantised(model)
    assert relative(model, from_pretrained(twin)) < ACTIVATION_ERROR
    tensors["model.layers.0.mlp.up_proj.bias"] = infinicore.ones(160)
    save_file(tensors, stored / "model.safetensors")
    with pytest.raises(ValueError, match=r"has tensor 'model.layers.0.mlp.up_proj.bias' that"):
        from_pretrained(stored)


def test_biases_stay_floats(tmp_path):
    stored, twin = (from_pretrained(folder) for folder in write_pair(tmp_path, "awq", attention_bias=True))
    assert stored.model.layers[1].self_attn.k_proj.bias.shape == (64,) and len(quantised(stored)) == 14
    assert relative(stored, twin) < ACTIVATION_ERROR


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(dtype, tmp_path):
    stored, twin = write_pair(tmp_path, "awq")
    assert relative(from_pretrained(stored, dtype=dtype), from_pretrained(twin)) < 0.03


# ---- quantize= -----------------------------------------------------------------------------------


@pytest.mark.parametrize("format, bound", [("int8", 0.02), ("int4", 0.2)])
@pytest.mark.parametrize("tied", [False, True])
def test_quantize(format, bound, tied, tmp_path):
    config = {**CONFIG, "tie_word_embeddings": tied}
    infinicore.manual_seed(0)
    model = CausalLM(configs.parse("config.json", config, "llama"))
    tensors = dict(model.state_dict())
    if tied:
        del tensors["lm_head.weight"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    seen = []
    loaded = from_pretrained(tmp_path, quantize=format, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] and len(quantised(loaded)) == 15
    assert loaded.model.embed_tokens.weight.dtype is infinicore.float32
    assert relative(loaded, from_pretrained(tmp_path)) < bound
    twin = from_pretrained(tmp_path)
    for path, layer in quantised(loaded).items():
        assert layer.quantized.format.name == format
        values = infinicore.dequantize_weight(layer.quantized)
        twin.get_submodule(path).weight = infinicore.nn.Parameter(values)
    assert relative(loaded, twin) < ACTIVATION_ERROR


def test_quantize_the_rest_of_a_quantised_checkpoint(tmp_path):
    stored, _ = write_pair(tmp_path, "awq")
    model = from_pretrained(stored, quantize="int8")
    formats = {path: layer.quantized.format.name for path, layer in quantised(model).items()}
    assert formats.pop("lm_head") == "int8" and set(formats.values()) == {"uint4"}


@pytest.mark.parametrize("layout, quantize", [("gptq-act-order", None), ("awq", "int8")])
def test_repacked_weights_are_kept_where_asked(layout, quantize, tmp_path, monkeypatch):
    monkeypatch.setenv("INFINICORE_CACHE_DIR", str(tmp_path / "cache"))
    stored, _ = write_pair(tmp_path, layout)
    wanted = from_pretrained(stored, quantize=quantize)(IDS).numpy()
    monkeypatch.setenv("INFINICORE_WEIGHT_CACHE", "1")
    seen = []
    for _ in range(2):
        model = from_pretrained(stored, quantize=quantize, progress=lambda done, total: seen.append(total))
        np.testing.assert_array_equal(model(IDS).numpy(), wanted)
    assert seen[-1] < 0.5 * seen[0]  # the second load reads the floats only
    assert len(quantised(model)) == (14 if quantize is None else 15)


def test_quantize_refusals(tmp_path):
    write_pair(tmp_path, "awq")
    with pytest.raises(ValueError, match="'int8' or 'int4', got 'int5'"):
        from_pretrained(tmp_path / "twin", quantize="int5")
    tensors = dict(from_pretrained(tmp_path / "twin").state_dict())
    tensors["lm_head.weight"] = tensors["lm_head.weight"] * float("nan")
    save_file(tensors, tmp_path / "twin" / "model.safetensors")
    with pytest.raises(ValueError, match=r"'lm_head.weight' cannot be quantised: .*NaN"):
        from_pretrained(tmp_path / "twin", quantize="int8")


# ---- what cannot be read ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout, changes, error, words",
    [
        ("awq", {"quant_method": "aqlm"}, NotImplementedError, "'aqlm' are not supported, only by awq, gptq"),
        ("awq", {"quant_method": None}, NotImplementedError, "None are not supported"),
        ("awq", {"bits": 3}, NotImplementedError, "`bits` of quantization_config must be 4, got 3"),
        ("awq", {"version": "gemv"}, NotImplementedError, "must be gemm"),
        ("awq", {"group_size": 48}, NotImplementedError, "`group_size` .* 32 or 64 or 128 or -1, got 48"),
        ("awq", {"group_size": 64}, ValueError, r"has shape \[4, 16\], and config.json asks for \[2, 16\]"),
        ("awq", {"modules_to_not_convert": "lm_head"}, ValueError, "list of names"),
        ("gptq", {"bits": 2}, NotImplementedError, "must be 4 or 8, got 2"),
        ("gptq", {"bits": True}, NotImplementedError, "got True"),
        ("gptq", {"checkpoint_format": "marlin"}, NotImplementedError, "gptq or gptq_v2, got 'marlin'"),
        ("gptq", {"dynamic": {"lm_head": {}}}, NotImplementedError, "`dynamic` .* left out"),
        ("int8", {"ignore": ["re:("]}, ValueError, "regular expressions"),
        ("int8", {"format": "marlin-24"}, NotImplementedError, "int-quantized, pack-quantized"),
        ("int8", {"config_groups": {}}, ValueError, "one group"),
        ("packed-4", {"sparsity_config": {"format": "sparse-24"}}, NotImplementedError, "'dense'"),
        ("fp8-blocks", {"weight_block_size": [64, 64]}, NotImplementedError, r"\[128, 128\]"),
        ("int8", {"quant_method": "fp8"}, ValueError, "dtype int8, and it must be float8_e4m3"),
    ],
)
def test_configs_that_are_refused(layout, changes, error, words, tmp_path):
    stored, _ = write_pair(tmp_path, layout, num_hidden_layers=1)
    config = json.loads((stored / "config.json").read_text())
    config["quantization_config"] |= changes
    (stored / "config.json").write_text(json.dumps(config))
    with pytest.raises(error, match=words) as raised:
        from_pretrained(stored)
    assert "\n" not in str(raised.value) and "stored" in str(raised.value)


def test_groups_that_are_not_even(tmp_path):
    stored, _ = write_pair(tmp_path, "gptq-act-order", num_hidden_layers=1)
    from infinicore.io import load_file

    tensors = load_file(stored / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.g_idx"].fill_(0)
    save_file(tensors, stored / "model.safetensors")
    with pytest.raises(ValueError, match=r"layer 'model.layers.0.mlp.up_proj' cannot be read: `g_idx` must give"):
        from_pretrained(stored)


SMALL = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "vocab_size": 16, "num_key_value_heads": 4}
SMALL |= {"max_position_embeddings": 16}


def mutate(rng, data, kinds=4):
    """A few bytes changed and, of four kinds, removed or doubled."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, len(data)))
        kind = rng.integers(0, kinds)
        if kind == 0:
            data[at] = rng.integers(0, 256)
        elif kind == 1:
            data[at] ^= 1 << rng.integers(0, 8)
        elif kind == 2:
            del data[at : at + int(rng.integers(1, 9))]
        else:
            data[at:at] = data[at : at + int(rng.integers(1, 9))]
    return bytes(data)


def numbers_changed(rng, text):
    """A JSON text with one number, word or flag replaced."""
    spots = list(re.finditer(r"-?\d+|true|false|null|\"[\w-]+\"", text))
    spot = spots[rng.integers(0, len(spots))]
    choices = ["0", "-1", "3", "64", "1e9", "true", "null", '"x"', "[]", "{}", "[1, 2]", str(1 << 40)]
    return text[: spot.start()] + choices[rng.integers(0, len(choices))] + text[spot.end() :]


def test_2000_mutations_end_in_one_sentence_or_load(tmp_path):
    rng, outcomes = np.random.default_rng(0), {"loaded": 0, "refused": 0}
    layouts = ["awq", "gptq-act-order", "gptq-8", "int8", "packed-4", "fp8-blocks", "mxfp4", "fp8-tensor"]
    for layout in layouts:
        (tmp_path / layout).mkdir()
        stored, _ = write_pair(tmp_path / layout, layout, **SMALL)
        weights, config = stored / "model.safetensors", stored / "config.json"
        from_pretrained(stored)([[1, 2, 3]])
        data, text = weights.read_bytes(), config.read_text()
        header = 8 + int.from_bytes(data[:8], "little")
        for i in range(2000 // len(layouts)):
            kind = i % 4
            head, body = data[:header], data[header:]
            if kind == 0:
                head = mutate(rng, head)
            elif kind == 1:
                body = mutate(rng, body, kinds=2)
            elif kind == 2:  # the header stays JSON, and lies
                head = head[:8] + numbers_changed(rng, head[8:].decode()).encode()
                head = (len(head) - 8).to_bytes(8, "little") + head[8:]
            weights.write_bytes(head + body)
            config.write_text(numbers_changed(rng, text) if kind == 3 else text)
            try:
                model = from_pretrained(stored)
                model([[1, 2, 3]])
                outcomes["loaded"] += 1
            except (ValueError, NotImplementedError, OSError, MemoryError) as error:
                assert "\n" not in str(error) and len(str(error)) < 600, error
                outcomes["refused"] += 1
    assert outcomes["loaded"] > 400 and outcomes["refused"] > 800, outcomes
