"""`infinicore quantize` and `--quantize`: what is written loads to the same model, here and elsewhere."""

import json
import subprocess
import sys

import numpy as np
import pytest

import infinicore
from infinicore.io import SafetensorsFile, load_file, save_file
from infinicore.models import CausalLM, export, from_pretrained
from infinicore.models.llama import configs

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 48,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
IDS = [[3, 14, 15, 9, 2, 6, 5, 35]]


def command(*arguments):
    """(exit status, standard output, standard error)."""
    line = [sys.executable, "-m", "infinicore", *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


def write(folder, sharded=False, **changes):
    """A random checkpoint, in one file or in two with an index."""
    config = {**CONFIG, **changes}
    infinicore.manual_seed(0)
    tensors = dict(CausalLM(configs.parse("config.json", config, "llama"), dtype=infinicore.bfloat16).state_dict())
    if config.get("tie_word_embeddings"):
        del tensors["lm_head.weight"]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text('{"x": "\u00e9"}', encoding="utf-8")
    (folder / "pytorch_model.bin").write_bytes(b"not to be copied")
    if not sharded:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder
    where = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in tensors if where[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def logits(model):
    return model(IDS).to("float32").numpy()


@pytest.mark.parametrize("tied, sharded", [(False, False), (True, True)])
@pytest.mark.parametrize("format, group_size", [("int8", 32), ("int4", 32), ("int4", 64)])
def test_what_is_written_is_the_model_that_was_quantised(format, group_size, tied, sharded, tmp_path):
    source = write(tmp_path / "in", sharded, tie_word_embeddings=tied)
    seen = []
    before, after = export.quantize_folder(
        source,
        tmp_path / "deep" / "out",
        format,
        group_size=group_size,
        progress=lambda done, total: seen.append((done, total)),
    )
    out = tmp_path / "deep" / "out"
    assert seen[-1][0] == seen[-1][1] and [p.name for p in out.parent.iterdir()] == ["out"]
    weights = {p.name for p in source.glob("*.safetensors*")}
    assert {p.name for p in out.iterdir()} == weights | {"config.json", "tokenizer_config.json"}
    assert (out / "tokenizer_config.json").read_bytes() == (source / "tokenizer_config.json").read_bytes()
    assert before == sum(p.stat().st_size for p in source.glob("*.safetensors"))
    assert after == sum(p.stat().st_size for p in out.glob("*.safetensors")) < 0.7 * before
    loaded = from_pretrained(out)
    formats = {m.quantized.format.name for m in loaded.modules() if getattr(m, "quantized", None) is not None}
    assert formats == {format} and loaded.lm_head.quantized is not None
    if group_size == 32:
        np.testing.assert_array_equal(logits(loaded), logits(from_pretrained(source, quantize=format)))
    plain = logits(from_pretrained(source))
    assert np.linalg.norm(logits(loaded) - plain) < (0.03 if format == "int8" else 0.2) * np.linalg.norm(plain)


def test_layouts(tmp_path):
    source = write(tmp_path / "in")
    export.quantize_folder(source, tmp_path / "int8", "int8")
    export.quantize_folder(source, tmp_path / "int4", "int4", group_size=64)
    path = "model.layers.1.mlp.down_proj"
    weight = load_file(source / "model.safetensors")[f"{path}.weight"].to("float32").numpy()
    eight, four = (load_file(tmp_path / name / "model.safetensors") for name in ("int8", "int4"))
    scale = np.abs(weight).max(1, keepdims=True) / np.float32(127)
    np.testing.assert_array_equal(eight[f"{path}.weight"].numpy(), np.rint(weight / scale))
    np.testing.assert_array_equal(eight[f"{path}.weight_scale"].numpy(), scale)
    words, scales = four[f"{path}.qweight"].numpy().view(np.uint32), four[f"{path}.scales"].numpy()
    q = (words[:, None] >> 4 * np.arange(8, dtype=np.uint32)[:, None] & 15).reshape(192, 128).astype(int)
    g_idx = four[f"{path}.g_idx"].numpy()
    np.testing.assert_array_equal(g_idx, np.arange(192) // 64)
    assert (four[f"{path}.qzeros"].numpy() == 0x77777777).all() and four[f"{path}.qzeros"].shape == (3, 16)
    restored = ((q - 8) * scales.astype(np.float32)[g_idx]).T
    assert np.linalg.norm(restored - weight) < 0.1 * np.linalg.norm(weight)
    for tensors in (eight, four):  # what is no linear layer, and the head
        for name in ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"):
            assert tensors[name].dtype is infinicore.bfloat16
    with SafetensorsFile(tmp_path / "int4" / "model.safetensors") as file:
        assert file.metadata == {"format": "pt"}


def test_transformers_knows_the_configs(tmp_path):
    transformers = pytest.importorskip("transformers")
    for format, method in (("int8", "compressed-tensors"), ("int4", "gptq")):
        export.quantize_folder(write(tmp_path / f"{format}-in"), tmp_path / format, format)
        config = transformers.AutoConfig.from_pretrained(tmp_path / format)
        assert config.quantization_config["quant_method"] == method
        if format == "int4":
            known = transformers.GPTQConfig.from_dict(dict(config.quantization_config))
            assert (known.bits, known.group_size, known.sym, known.desc_act) == (4, 32, True, False)


def test_refusals(tmp_path):
    source = write(tmp_path / "in", intermediate_size=200)
    with pytest.raises(
        ValueError, match=r"down_proj' of shape \[128, 200\] .* groups of 32 columns: choose `format` int8$"
    ):
        export.quantize_folder(source, tmp_path / "out", "int4")
    other = write(tmp_path / "192", hidden_size=128, intermediate_size=192)
    with pytest.raises(ValueError, match=r"groups of 128 columns: choose `group_size` 64, or `format` int8$"):
        export.quantize_folder(other, tmp_path / "out", "int4", group_size=128)
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError, match="exists already"):
        export.quantize_folder(source, tmp_path / "out")
    with pytest.raises(ValueError, match="'int8' or 'int4', got 'int3'"):
        export.quantize_folder(source, tmp_path / "new", "int3")
    export.quantize_folder(source, tmp_path / "int8", "int8")
    with pytest.raises(ValueError, match=r"quantised already \(by compressed-tensors\)"):
        export.quantize_folder(tmp_path / "int8", tmp_path / "new")
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] *= float("nan")
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(ValueError, match="NaN"):
        export.quantize_folder(source, tmp_path / "new")
    assert {p.name for p in tmp_path.iterdir()} == {"in", "192", "out", "int8"}


def test_command(tmp_path):
    source = write(tmp_path / "in")
    status, out, err = command("quantize", source, tmp_path / "out", "--format", "int4", "--group-size", "64")
    assert status == 0 and out.startswith(f"{tmp_path / 'out'}: ") and "int4 in groups of 64" in out, err
    assert json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["group_size"] == 64
    for arguments, words in (
        (("--format", "int8"), "exists already"),
        (("--format", "int8", "--group-size", "32"), "`--group-size` is for int4"),
    ):
        status, out, err = command("quantize", source, tmp_path / "out", *arguments)
        assert status == 2 and out == "" and words in err and "Traceback" not in err and len(err.splitlines()) == 1


def test_text_of_a_quantised_model(stories, tmp_path):
    common = ("--prompt", "Once upon a time", "--max-new-tokens", 20, "--temperature", 0, "--no-stats")
    at_load = command("generate", "--model", stories, "--quantize", "int8", *common)
    assert at_load[0] == 0 and at_load[1].startswith(", there was a little girl"), at_load
    assert command("quantize", stories, tmp_path / "out", "--format", "int8")[0] == 0
    assert command("generate", "--model", tmp_path / "out", *common)[:2] == at_load[:2]
