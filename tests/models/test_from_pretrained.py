"""Reading a folder: what fits loads, and each thing that does not is one clear sentence."""

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

import infinicore
from infinicore.io import load_file, save_file
from infinicore.models import CausalLM, from_pretrained
from infinicore.models.llama import configs

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


def write_folder(folder, tensors=None, **changes):
    """A checkpoint folder of a random model; returns (its tensors, the folder)."""
    config = {**TINY, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is None:
        infinicore.manual_seed(0)
        tensors = dict(CausalLM(configs.parse("config.json", config, "llama")).state_dict())
        if config.get("tie_word_embeddings"):
            del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    return tensors, folder


def test_loads(tmp_path):
    tensors, folder = write_folder(tmp_path)
    seen = []
    model = from_pretrained(folder, progress=lambda done, total: seen.append((done, total)))
    assert not model.training and model.path == folder
    for name, value in model.state_dict().items():
        assert (value.numpy() == tensors[name].numpy()).all(), name
    assert seen[-1][0] == seen[-1][1] == sum(t.nbytes for t in tensors.values())
    half = from_pretrained(str(folder), dtype="float16")
    assert half.dtype is infinicore.float16
    np.testing.assert_array_equal(
        half.model.norm.weight.detach().numpy(), tensors["model.norm.weight"].numpy().astype(np.float16)
    )


def test_tied_head(tmp_path):
    tensors, folder = write_folder(tmp_path, tie_word_embeddings=True)
    model = from_pretrained(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    embedding = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embedding}, folder / "model.safetensors")
    model = from_pretrained(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    save_file({**tensors, "lm_head.weight": embedding * 2.0}, folder / "model.safetensors")
    model = from_pretrained(folder)  # what the checkpoint holds counts
    assert (model.lm_head.weight.detach().numpy() == 2 * embedding.numpy()).all()
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, folder / "model.safetensors")
    model = from_pretrained(folder)
    assert (model.model.embed_tokens.weight.detach().numpy() == embedding.numpy()).all()


def test_other_spellings(tmp_path):
    tensors, folder = write_folder(tmp_path, tie_word_embeddings=True)
    bare = {name.removeprefix("model."): value for name, value in tensors.items()}
    bare["layers.0.self_attn.rotary_emb.inv_freq"] = infinicore.ones(2)
    save_file(bare, folder / "model.safetensors")
    model = from_pretrained(folder)
    assert (model.model.norm.weight.detach().numpy() == tensors["model.norm.weight"].numpy()).all()


def shard(folder, tensors, parts=3):
    """Split a checkpoint; returns the index."""
    names = sorted(tensors)
    weight_map = {name: f"model-{i % parts}.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({n: tensors[n] for n in names if weight_map[n] == file}, folder / file)
    (folder / "model.safetensors").unlink(missing_ok=True)
    return {"metadata": {}, "weight_map": weight_map}


def test_shards(tmp_path):
    tensors, folder = write_folder(tmp_path)
    index = shard(folder, tensors)
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    model = from_pretrained(folder)
    assert all((v.numpy() == tensors[n].numpy()).all() for n, v in model.state_dict().items())
    for change, error, words in [
        ({"model.norm.weight": "../elsewhere.safetensors"}, ValueError, "same folder"),
        ({"model.norm.weight": "model-9.safetensors"}, FileNotFoundError, "model-9"),
        ({"model.norm.bias": "model-0.safetensors"}, ValueError, "model.norm.bias"),
    ]:
        path.write_text(json.dumps({"weight_map": {**index["weight_map"], **change}}))
        with pytest.raises(error, match=words):
            from_pretrained(folder)
    path.write_text(json.dumps({"weight_map": 3}))
    with pytest.raises(ValueError, match="weight_map"):
        from_pretrained(folder)
    save_file({**load_file(folder / "model-0.safetensors"), **load_file(folder / "model-1.safetensors")},
              folder / "model-0.safetensors")  # fmt: skip
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match="both"):
        from_pretrained(folder)


def test_missing_things(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        from_pretrained(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        from_pretrained(tmp_path)
    write_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        from_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin.*convert"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "lacks.*layers.1.mlp.up_proj"),
        (lambda t: [t.pop(n) for n in list(t) if ".mlp." in n], "lacks 6 tensors"),
        (lambda t: t.update(extra=infinicore.ones(1)), "extra.*no place"),
        (lambda t: t.update({"model.norm.weight": infinicore.ones(17)}), r"\[17\].*\[16\]"),
        (lambda t: t.update({"model.norm.weight": infinicore.ones(16, dtype=infinicore.int64)}), "int64"),
        (lambda t: t.update({"model.layers.2.mlp.up_proj.weight": infinicore.ones(24, 16)}), "no place"),
    ],
)
def test_wrong_tensors(tmp_path, change, words):
    tensors, folder = write_folder(tmp_path)
    change(tensors)
    write_folder(folder, tensors)
    with pytest.raises(ValueError, match=words) as raised:
        from_pretrained(folder)
    assert "\n" not in str(raised.value)


def test_damaged_files(tmp_path):
    _, folder = write_folder(tmp_path)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    for damaged in (data[:-1], data[:100], data[:4], b"", struct.pack("<Q", 1 << 62) + data[8:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            from_pretrained(folder)
    path.write_bytes(data)
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"generation_config\.json"):
        from_pretrained(folder)


def test_bad_arguments(tmp_path):
    _, folder = write_folder(tmp_path)
    with pytest.raises(TypeError, match="dtype"):
        from_pretrained(folder, dtype="int8")
    with pytest.raises(TypeError, match="dtype"):
        from_pretrained(folder, dtype="float12")
    with pytest.raises(NotImplementedError, match="cuda"):
        from_pretrained(folder, device="cuda")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return from_pretrained(write_folder(tmp_path_factory.mktemp("model"))[1])


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        ([[1, 50]], ValueError, "token id 50.*50 tokens"),
        ([[1, -1]], ValueError, "token id -1"),
        ([[]], ValueError, "at least one token"),
        ([], ValueError, "at least one"),
        ([[1.5, 2.0]], TypeError, "integers"),
        ([[1] * 33], ValueError, "33 tokens; the context is 32"),
        (np.zeros((1, 1, 2), int), ValueError, "3 dims"),
    ],
)
def test_bad_ids(model, ids, error, words):
    with pytest.raises(error, match=words):
        model(ids)


def test_bad_masks_and_caches(model):
    ids = [[1, 2, 3], [4, 5, 6]]
    for mask in ([[1, 1, 1]], [[1, 0, 1], [1, 1, 1]], [[0, 0, 0], [1, 1, 1]]):
        with pytest.raises(ValueError, match="attention_mask"):
            model(ids, attention_mask=mask)
    cache = infinicore.models.StaticCache(model.config, model.dtype, sequences=1, max_length=4)
    with pytest.raises(ValueError, match="1 sequences"):
        model(ids, cache=cache)
    with pytest.raises(ValueError, match="4 tokens"):
        model([[1] * 5], cache=cache)
    paged = infinicore.models.PagedCache(model.config, model.dtype, max_length=16, blocks=1, block_size=4)
    with pytest.raises(ValueError, match="free blocks"):
        model([[1] * 5], cache=paged)
    assert paged.lengths == [0]
    for wrong in ({"sequences": 0}, {"max_length": 0}, {"max_length": -4}):
        with pytest.raises(ValueError):
            infinicore.models.StaticCache(model.config, model.dtype, **{"max_length": 4, **wrong})
    with pytest.raises(ValueError):
        infinicore.models.PagedCache(model.config, model.dtype, max_length=4, block_size=0)


def test_ids_in_any_form(model):
    whole = model([[1, 2, 3]]).numpy()
    for ids in ([1, 2, 3], ((1, 2, 3),), np.array([[1, 2, 3]], np.int32), infinicore.tensor([[1, 2, 3]])):
        assert (model(ids).numpy() == whole).all()


@pytest.mark.slow
def test_peak_memory(tmp_path):
    """Loading holds the model and little else: weights are copied in pieces whose pages are given back."""
    write_folder(tmp_path, tie_word_embeddings=True, vocab_size=64_000, hidden_size=1024)
    script = (
        "import sys, infinicore\n"
        "from infinicore.cli.generate import peak_memory_bytes\n"
        "infinicore.models.from_pretrained\n"
        "infinicore.ones(1 << 20) + 1.0\n"  # loads Numba, for its threads, which is no part of the model
        "before = peak_memory_bytes()\n"
        "infinicore.models.from_pretrained(sys.argv[1], dtype='bfloat16')\n"
        "print(peak_memory_bytes() - before)\n"
    )
    line = [sys.executable, "-c", script, str(tmp_path)]
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    subprocess.run(line, capture_output=True, check=True, cwd=root)  # compiles what no test before has compiled
    out = subprocess.run(line, capture_output=True, text=True, check=True, cwd=root)
    weights = (tmp_path / "model.safetensors").stat().st_size / 2
    assert int(out.stdout) < 1.1 * weights + 100e6
