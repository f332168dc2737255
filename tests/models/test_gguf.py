"""GGUF files: reading them, models of every type of weights, and one sentence for everything that is wrong."""

import json
import struct
import subprocess
import sys

import numpy as np
import pytest

import infinicore as ic
from infinicore.io import GGUFFile
from infinicore.models import from_pretrained, load_config
from infinicore.models.checkpoint import Checkpoint

gguf = pytest.importorskip("gguf")

QUANTISED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
SIZES = {"vocab": 96, "hidden": 256, "inner": 512, "layers": 2, "heads": 4, "shared": 2, "context": 128}
SIMPLE = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4")  # that the package quantises to
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,)}
RANGE = {"Q2_K": 20, "Q3_K": 60, "Q4_K": 250, "Q5_K": 500, "Q6_K": 1800, "IQ4_NL": 60}  # largest numbers, about


def type_of(kind):
    return gguf.GGMLQuantizationType[kind]


def encode(rng, values, kind):
    """(raw array for the writer, the float32 values that it stands for) of a float32 matrix or vector."""
    if kind == "F32" or values.ndim == 1:
        return values, values
    if kind in SIMPLE or kind in FLOATS:
        raw = gguf.quants.quantize(values, type_of(kind))
    else:  # valid blocks of random bits, with scales of the size of `values`
        block, size = gguf.GGML_QUANT_SIZES[type_of(kind)]
        raw = rng.integers(0, 256, (values.size // block, size), dtype=np.uint8)
        for place in HALVES[kind]:
            scale = rng.uniform(0.5, 1, (len(raw), 1)) * values.std() / RANGE[kind] * 2
            raw[:, place : place + 2] = scale.astype(np.float16).view(np.uint8)
        raw = raw.reshape(values.shape[0], -1)
    return raw, gguf.quants.dequantize(raw, type_of(kind)).reshape(values.shape)


def shapes(sizes, architecture, tied):
    """Names and shapes of the tensors of a file."""
    hidden, inner, dim = sizes["hidden"], sizes["inner"], sizes.get("head_dim", sizes["hidden"] // sizes["heads"])
    queries, keys = sizes["heads"] * dim, sizes["shared"] * dim
    found = {"token_embd.weight": (sizes["vocab"], hidden), "output_norm.weight": (hidden,)}
    if not tied:
        found["output.weight"] = (sizes["vocab"], hidden)
    for i in range(sizes["layers"]):
        layer = {"attn_norm": (hidden,), "attn_q": (queries, hidden), "attn_k": (keys, hidden), "ffn_norm": (hidden,)}
        layer |= {"attn_v": (keys, hidden), "attn_output": (hidden, queries), "ffn_down": (hidden, inner)}
        layer |= {"ffn_gate": (inner, hidden), "ffn_up": (inner, hidden)}
        found |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
        if architecture == "qwen2":
            biases = {"attn_q": (queries,), "attn_k": (keys,), "attn_v": (keys,)}
            found |= {f"blk.{i}.{name}.bias": shape for name, shape in biases.items()}
        if architecture == "qwen3":
            found |= {f"blk.{i}.attn_{part}_norm.weight": (dim,) for part in "qk"}
    return found


def writer_for(path, architecture, sizes):
    """A writer with the metadata of a model."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(sizes["context"])
    writer.add_embedding_length(sizes["hidden"])
    writer.add_block_count(sizes["layers"])
    writer.add_feed_forward_length(sizes["inner"])
    writer.add_head_count(sizes["heads"])
    writer.add_head_count_kv(sizes["shared"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if "head_dim" in sizes:
        writer.add_key_length(sizes["head_dim"])
        writer.add_value_length(sizes["head_dim"])
    return writer


def finish(writer):
    for step in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(writer, f"write_{step}")()
    writer.close()


def write_model(folder, kind, architecture="llama", tied=False, sizes=SIZES, kinds=(), seed=0, extra=None):
    """(file of weights of a type, its twin with the same values in float32). `kinds` maps parts of names to types."""
    rng = np.random.default_rng(seed)
    paths = folder / f"{kind}.gguf", folder / f"{kind}-float32.gguf"
    writers = [writer_for(path, architecture, sizes) for path in paths]
    for name, shape in shapes(sizes, architecture, tied).items():
        scale = 0.02 if "embd" in name else 1.5 / shape[-1] ** 0.5
        values = (rng.standard_normal(shape) * scale + (len(shape) == 1 and "bias" not in name)).astype(np.float32)
        own = next((value for part, value in dict(kinds).items() if part in name), kind)
        raw, twin = encode(rng, values, own)
        writers[0].add_tensor(name, raw, raw_dtype=None if len(shape) == 1 else type_of(own))
        writers[1].add_tensor(name, twin)
    for writer in writers:
        if extra is not None:
            extra(writer)
        finish(writer)
    return paths


def logits(model, length=24, seed=1):
    ids = np.random.default_rng(seed).integers(0, SIZES["vocab"], (1, length))
    return model(ids).to(ic.float32).numpy()[0]


def relative(got, wanted):
    return float(np.sqrt(((got - wanted) ** 2).mean() / (wanted**2).mean()))


# ---- models -----------------------------------------------------------------------------------

# Of 32 normal numbers the largest is 2.35 on average, so 8 bits round them by steps of 2.35 / 127: an error of
# 2.35 / 127 / sqrt(12) = 0.53 %. The way to a logit has 4 products in each of 2 layers, and the head.
ACTIVATION_ERROR = 9 * 2.35 / 127 / 12**0.5


@pytest.mark.parametrize("kind", QUANTISED)
def test_logits_are_those_of_the_same_weights_in_float32(kind, tmp_path):
    path, twin = write_model(tmp_path, kind)
    model, reference = from_pretrained(path, dtype="float32"), from_pretrained(twin)
    assert reference.dtype is ic.float32
    wanted = logits(reference)
    assert wanted.std() > 0.1
    assert relative(logits(model), wanted) < ACTIVATION_ERROR
    few = logits(reference, length=2)  # few rows go through other kernels
    assert relative(logits(model, length=2), few) < ACTIVATION_ERROR
    for module in model.modules():
        if isinstance(module, ic.nn.Linear):
            module.activations = "float"
    assert relative(logits(model), wanted) < 1e-5
    assert relative(logits(model, length=2), few) < 1e-5


@pytest.mark.parametrize("architecture, tied", [("qwen2", True), ("qwen3", False), ("llama", True)])
def test_architectures_and_mixed_types(architecture, tied, tmp_path):
    sizes = SIZES | ({"head_dim": 128} if architecture == "qwen3" else {})
    kinds = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q4_K"}
    path, twin = write_model(tmp_path, "Q4_K", architecture, tied, sizes, kinds)
    seen = []
    model = from_pretrained(path, dtype="float32", progress=lambda done, total: seen.append((done, total)))
    assert model.config.model_type == architecture and model.config.tie_word_embeddings is tied
    assert relative(logits(model), logits(from_pretrained(twin))) < ACTIVATION_ERROR
    with GGUFFile(path) as file:
        assert seen[-1] == (sum(entry.nbytes for entry in file.entries.values()),) * 2
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_packed_panels_are_kept_where_asked(tmp_path, monkeypatch):
    path, _ = write_model(tmp_path, "Q4_0", tied=True, kinds={"attn_v": "Q8_0"})
    wanted = logits(from_pretrained(path))
    monkeypatch.setenv("INFINICORE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("INFINICORE_WEIGHT_CACHE", "1")
    assert (logits(from_pretrained(path)) == wanted).all()
    monkeypatch.setattr(ic, "gguf_pack", None)  # the second load packs nothing
    assert (logits(from_pretrained(path)) == wanted).all()


@pytest.mark.parametrize("kind", FLOATS)
def test_float_weights(kind, tmp_path):
    path, twin = write_model(tmp_path, kind)
    model = from_pretrained(path)
    assert model.dtype.name == FLOATS[kind]
    assert relative(logits(model), logits(from_pretrained(twin))) < (1e-6 if kind == "F32" else 0.03)
    wide = from_pretrained(path, dtype="float32")
    assert relative(logits(wide), logits(from_pretrained(twin))) < 1e-6


def test_default_dtype_and_conversion(tmp_path):
    from infinicore.kernels.build import rates

    path, twin = write_model(tmp_path, "Q8_0")
    model = from_pretrained(path)
    assert model.dtype.name == ("bfloat16" if rates.choices().pairs else "float32")
    assert model.model.norm.weight.dtype is ic.float32  # norms as exact as in the file
    wanted = logits(from_pretrained(twin))
    assert relative(logits(model), wanted) < ACTIVATION_ERROR + 9 * 2**-9
    assert relative(logits(model.to("float32")), wanted) < ACTIVATION_ERROR
    assert "Q8_0" in repr(model.model.embed_tokens)


def test_values_without_a_model(tmp_path):
    path, twin = write_model(tmp_path, "Q5_K", kinds={"ffn_up": "F16", "ffn_gate": "BF16"})
    with GGUFFile(path) as file, GGUFFile(twin) as same:
        assert list(file.entries) == list(same.entries)
        for name in file.entries:
            np.testing.assert_array_equal(file.tensor(name).numpy(), same.tensor(name).numpy())
        with pytest.raises(KeyError, match="no tensor 'x'"):
            file.tensor("x")


def test_metadata_of_rotary_embeddings(tmp_path):
    def scaling(**pairs):
        def extra(writer):
            for name, value in pairs.items():
                getattr(writer, f"add_{name}")(value)

        return load_config(write_model(tmp_path, "F32", extra=extra)[0])

    linear = scaling(rope_scaling_type=gguf.RopeScalingType.LINEAR, rope_scaling_factor=4.0)
    assert (linear.rope.type, linear.rope.factor, linear.context) == ("linear", 4.0, 4 * SIZES["context"])
    yarn = scaling(rope_scaling_type=gguf.RopeScalingType.YARN, rope_scaling_factor=2.0, rope_scaling_orig_ctx_len=64)
    assert (yarn.rope.type, yarn.rope.original) == ("yarn", 64)
    np.testing.assert_allclose(yarn.rope.attention_factor, 1 + 0.1 * np.log(2))
    window = scaling(sliding_window=16)
    assert window.windows == (16, 16) and window.rms_norm_eps == 1e-5
    factors = np.linspace(1, 8, 32).astype(np.float32)
    plain = from_pretrained(write_model(tmp_path, "F32")[0])
    model = from_pretrained(write_model(tmp_path, "F32", extra=lambda w: w.add_tensor("rope_freqs.weight", factors))[0])
    from infinicore.models import rope

    ratio = rope.inverse_frequencies(plain.config.rope) / rope.inverse_frequencies(model.config.rope)
    np.testing.assert_allclose(ratio, factors, rtol=1e-6)
    assert relative(logits(model), logits(plain)) > 0.01


# ---- a trained model --------------------------------------------------------------------------


def convert(folder, path, kind):
    """A Hugging Face Llama as a GGUF file with its tokenizer; rows that no block fits stay float32."""
    from infinicore.io import load_file

    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    sizes = {"vocab": config["vocab_size"], "hidden": config["hidden_size"], "inner": config["intermediate_size"],
             "layers": config["num_hidden_layers"], "heads": config["num_attention_heads"],
             "shared": config["num_key_value_heads"], "context": config["max_position_embeddings"]}  # fmt: skip
    writer = writer_for(path, "llama", sizes)
    tokens = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    scores = np.full(len(tokens), -1e6, np.float32)
    for rank, pair in reversed(list(enumerate(tokenizer["merges"]))):
        scores[tokenizer["vocab"]["".join(pair if isinstance(pair, list) else pair.split(" "))]] = -rank
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores.tolist())
    writer.add_token_types([2, 3, 3] + [6 if token.startswith("<0x") else 1 for token in tokens[3:]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }} {% endfor %}")
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"} | {"self_attn.o_proj": "attn_output"}
    names |= {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.numpy().astype(np.float32)
        if name not in top:
            _, _, layer, rest = name.split(".", 3)
            name = f"blk.{layer}.{names[rest.removesuffix('.weight')]}.weight"
        if "attn_q" in name or "attn_k" in name:  # llama.cpp turns neighbours, so halves of a head are interleaved
            heads = sizes["heads"] if "attn_q" in name else sizes["shared"]
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape).copy()
        own = kind if values.ndim == 2 and values.shape[1] % 32 == 0 else "F32"
        writer.add_tensor(top.get(name, name), gguf.quants.quantize(values, type_of(own)), raw_dtype=type_of(own))
    finish(writer)
    return path


PROMPT = "Once upon a time, there was a little"


def test_the_float_file_is_the_checkpoint(stories, tmp_path):
    ours, theirs = from_pretrained(convert(stories, tmp_path / "s.gguf", "F32")), from_pretrained(stories)
    np.testing.assert_array_equal(logits(ours), logits(theirs))
    assert ours.config.eos_token_ids == theirs.config.eos_token_ids == (2,)
    one, two = (m.generate(PROMPT, max_new_tokens=40, temperature=0).finish()[0] for m in (ours, theirs))
    assert one.prompt_ids == two.prompt_ids and one.text == two.text


def test_greedy_text_of_q8_0_is_that_of_float32(stories, tmp_path):
    quantised, exact = (
        from_pretrained(convert(stories, tmp_path / "q.gguf", "Q8_0"), dtype="float32"),
        from_pretrained(stories),
    )
    one, two = (m.generate(PROMPT, max_new_tokens=60, temperature=0).finish()[0] for m in (quantised, exact))
    assert len(one.token_ids) == 60
    assert one.token_ids[:50] == two.token_ids[:50]


def test_commands_run_a_file(stories, tmp_path):
    path = convert(stories, tmp_path / "q.gguf", "Q8_0")
    command = [sys.executable, "-m", "infinicore"]
    done = subprocess.run(
        [*command, "generate", "--model", str(path), "--prompt", PROMPT, "--max-new-tokens", "8", "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert len(result["token_ids"]) == 8 and result["text"].strip()
    done = subprocess.run(
        [*command, "chat", "--model", str(path), "--max-new-tokens", "5", "--context", "64"],
        input="Hello\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() and "no chat template" not in done.stderr


# ---- what is wrong ----------------------------------------------------------------------------


def small_file(folder):
    """The bytes of a valid file with every kind of metadata and a few tensors."""
    path = folder / "small.gguf"
    sizes = {"vocab": 8, "hidden": 32, "inner": 32, "layers": 1, "heads": 2, "shared": 1, "context": 16}

    def extra(writer):
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "<s>", "</s>", "a", "b", "ab", "▁", "▁a"])
        writer.add_token_scores([0.0] * 8)
        writer.add_token_types([2, 3, 3, 1, 1, 1, 1, 1])
        writer.add_bool("general.flag", True)
        writer.add_float64("general.double", 0.5)
        writer.add_array("general.numbers", [1, 2, 3])

    path, _ = write_model(folder, "Q4_0", sizes=sizes, extra=extra)
    return path.read_bytes()


def mutate(rng, data, header):
    """Bytes of a damaged file: cut, with random bytes, or with a lying length or count."""
    data, how = bytearray(data), rng.integers(0, 4)
    if how == 0:
        return bytes(data[: rng.integers(0, len(data))])
    if how == 1:
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(0, header)] = rng.integers(0, 256)
        return bytes(data)
    at = int(rng.integers(4, header - 8))
    value = [0, 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1, len(data), int(rng.integers(0, 2**40))][
        rng.integers(0, 9)
    ]
    if how == 2:
        struct.pack_into("<Q", data, at, value)
    else:
        struct.pack_into("<I", data, at, value & 0xFFFFFFFF)
    return bytes(data)


def test_2000_damaged_files_are_one_sentence_each(tmp_path):
    """Nothing but a sentence: no crash, no hang, no allocation beyond the file. Headers, config, tokenizer, weights."""
    from infinicore.lm import Tokenizer

    rng, data, path = np.random.default_rng(0), small_file(tmp_path), tmp_path / "damaged.gguf"
    with GGUFFile(tmp_path / "Q4_0.gguf") as file:
        header = min(entry.start for entry in file.entries.values())
    refused = loaded = 0
    for _ in range(2000):
        path.write_bytes(mutate(rng, data, header))
        try:
            load_config(path)
            Tokenizer(path)
            from_pretrained(path, dtype="float32")
            loaded += 1
        except (ValueError, NotImplementedError) as error:
            refused += 1
            assert str(path) in str(error) and "\n" not in str(error) and len(str(error)) < 600, error
    assert refused > 1500 and loaded > 10


def header(values=0, tensors=0, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values)


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def tensor(name="x", dims=(4,), kind=0, offset=0):
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


PAD = bytes(64)


@pytest.mark.parametrize(
    "data, error, words",
    [
        (b"", ValueError, "fewer than 4 bytes"),
        (b"PK\3\4", ValueError, "no GGUF file: it begins with"),
        (header(version=1), NotImplementedError, "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), NotImplementedError, "big-endian"),
        (header(values=2**60), ValueError, "damaged"),
        (header(tensors=2**60), ValueError, "damaged"),
        (header(1) + text("a") + struct.pack("<I", 99) + PAD, ValueError, "value type 99"),
        (header(1) + text("a") + struct.pack("<IIQ", 9, 0, 2**60) + PAD, ValueError, "array of 1152921504606846976"),
        (header(1) + text("a") + struct.pack("<IQ", 8, 2**63) + PAD, ValueError, "takes 9223372036854775808 bytes"),
        (header(2) + (text("a") + struct.pack("<IB", 0, 1)) * 2 + PAD, ValueError, "'a' occurs twice"),
        (header(1) + text("a") + struct.pack("<IB", 7, 2) + PAD, ValueError, "bool with the value 2"),
        (header(1) + struct.pack("<Q", 1) + b"\xff" + struct.pack("<IB", 0, 1) + PAD, ValueError, "not UTF-8"),
        (header(1) + text("general.alignment") + struct.pack("<II", 4, 3) + PAD, ValueError, "power of two"),
        (header(0, 1) + tensor(kind=16) + PAD, NotImplementedError, "IQ2_XXS, which is not supported"),
        (header(0, 1) + tensor(kind=77) + PAD, ValueError, "type 77"),
        (header(0, 1) + tensor(dims=(1,) * 5) + PAD, ValueError, "5 dims"),
        (header(0, 1) + tensor(dims=(0,)) + PAD, ValueError, "without elements"),
        (header(0, 1) + tensor(dims=(2**62, 2**62)) + PAD, ValueError, "truncated"),
        (header(0, 1) + tensor(dims=(33,), kind=2) + PAD, ValueError, "multiple of the 32"),
        (header(0, 1) + tensor(offset=8) + PAD, ValueError, "alignment 32"),
        (header(0, 1) + tensor(offset=2**63) + PAD, ValueError, "truncated"),
        (header(0, 2) + tensor("x") + tensor("x") + PAD, ValueError, "'x' occurs twice"),
        (header(0, 2) + tensor("x") + tensor("y") + PAD, ValueError, "'y' overlaps tensor 'x'"),
    ],
)
def test_damaged_headers(data, error, words, tmp_path):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    with pytest.raises(error, match=words) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value)


def test_files_that_do_not_fit_the_model(tmp_path):
    def write(change):
        path = tmp_path / "wrong.gguf"
        writer = gguf.GGUFWriter(path, change.get("architecture", "llama"))
        numbers = {"context_length": 16, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32}
        numbers |= {"head_count": 2, "head_count_kv": 1, "layer_norm_rms_eps": 1e-5} | change.get("numbers", {})
        for name, value in numbers.items():
            if value is not None:
                getattr(writer, f"add_{name}")(value)
        sizes = {"vocab": 8, "hidden": 32, "inner": 32, "layers": 1, "heads": 2, "shared": 1}
        for name, shape in (shapes(sizes, "llama", True) | change.get("tensors", {})).items():
            if shape is not None:
                writer.add_tensor(name, np.ones(shape, np.float32))
        finish(writer)
        return path

    from_pretrained(write({}))
    for change, error, words in [
        ({"architecture": "gemma"}, NotImplementedError, "architecture 'gemma' is not supported, only llama"),
        ({"numbers": {"head_count": None}}, ValueError, "lacks the metadata `llama.attention.head_count`"),
        ({"numbers": {"head_count": 3}}, ValueError, "3"),
        ({"numbers": {"rope_dimension_count": 8}}, NotImplementedError, "rope.dimension_count"),
        ({"numbers": {"expert_count": 4}}, NotImplementedError, "mixture of experts"),
        ({"tensors": {"blk.0.attn_q.weight": None}}, ValueError, "lacks the tensor 'blk.0.attn_q.weight'"),
        ({"tensors": {"blk.0.attn_q.weight": (32, 64)}}, ValueError, r"shape \[32, 64\], and the metadata asks"),
        ({"tensors": {"blk.0.new.weight": (4,)}}, ValueError, "has the tensor 'blk.0.new.weight'"),
        ({"tensors": {"token_embd.weight": None}}, ValueError, "lacks the tensor 'token_embd.weight'"),
        ({"tensors": {"rope_freqs.weight": (3,)}}, ValueError, "must be 8 floats"),
    ]:
        path = write(change)
        with pytest.raises(error, match=words) as caught:
            from_pretrained(path)
        assert str(path) in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"pass .*wrong\.gguf itself"):
        Checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match="no GGUF file"):
        from_pretrained(tmp_path / "nowhere.gguf")
    with pytest.raises(ValueError, match="no tokenizer"):
        from_pretrained(write({})).generate("a")
    renamed = write({}).rename(tmp_path / "model.bin")  # known by its first bytes
    assert from_pretrained(renamed).config.model_type == "llama"
