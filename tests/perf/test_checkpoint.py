"""The random checkpoints of the benchmarks, read by others."""

import sys
from pathlib import Path

import numpy as np
import pytest

from infinicore import models
from infinicore.perf import checkpoint, generation, model_cases

SMALL = model_cases.Model(
    name="small", hidden=64, intermediate=96, layers=2, heads=4, kv_heads=2, vocabulary=128, dtype="bfloat16"
)
TOKENS = [5, 9, 77, 12, 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoint.write_random(SMALL, tmp_path_factory.mktemp("checkpoint") / "small")


def test_sizes(folder):
    counted = SMALL.matrices + SMALL.vocabulary * SMALL.hidden + SMALL.hidden * (2 * SMALL.layers + 1)
    assert sum(int(np.prod(shape)) for _, shape in checkpoint._shapes(SMALL)) == counted
    data = (folder / "model.safetensors").stat().st_size - 2 * counted
    assert 0 < data < 10_000  # the header
    assert 1.0e9 < model_cases.TINYLLAMA.matrices < 1.1e9


def test_is_reused_and_never_mixed_up(folder):
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert checkpoint.write_random(SMALL, folder) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="holds a checkpoint with"):
        checkpoint.write_random(model_cases.TINYLLAMA, folder)


def test_bfloat16_rounds_to_nearest_even():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(0).standard_normal(10_000, dtype=np.float32)
    x[:2] = 1 + 2**-8, 1 + 3 * 2**-8  # ties
    assert np.array_equal(checkpoint.bfloat16_bits(x), x.astype(ml_dtypes.bfloat16).view(np.uint16))


@pytest.fixture(autouse=True)
def _checkout_off_the_path(monkeypatch, root):
    """transformers looks for a package called `kernels`: with `python -m pytest` it would find our folder."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p or ".").resolve() != root])


QWEN = model_cases.Model(
    name="small-qwen", hidden=64, intermediate=96, layers=2, heads=4, kv_heads=2, vocabulary=128, dtype="bfloat16",
    family="qwen2", context=256, rope_theta=1e6, eps=1e-6, tied=True, bias=True,
)  # fmt: skip


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def family(request, folder, tmp_path_factory):
    """(model, folder) of either family."""
    if request.param == "llama":
        return SMALL, folder
    return QWEN, checkpoint.write_random(QWEN, tmp_path_factory.mktemp("checkpoint") / "qwen")


def _logits_of_transformers(folder):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0, -1].numpy()


def _logits_of_llama_cpp(path):
    llama_cpp = pytest.importorskip("llama_cpp")
    model = llama_cpp.Llama(str(path), n_ctx=32, n_threads=1, n_threads_batch=1, verbose=False)
    model.eval(TOKENS)
    return np.ctypeslib.as_array(model._ctx.get_logits(), shape=(model.n_vocab(),)).copy()


def test_transformers_and_ours_read_it(family):
    """The same logits, of a model whose tied head and biases count."""
    model, folder = family
    logits = _logits_of_transformers(folder)
    assert logits.shape == (model.vocabulary,) and np.isfinite(logits).all() and logits.std() > 0
    ours = models.from_pretrained(folder, dtype="float32")([TOKENS])[0, -1].numpy()
    assert np.abs(ours - logits).max() < 1e-4 * np.abs(logits).max()


def test_llama_cpp_reads_the_gguf_twin(family, tmp_path):
    """The same logits: names, shapes and the order of rotated rows are right."""
    _, folder = family
    pytest.importorskip("llama_cpp")
    expected = _logits_of_transformers(folder)
    checkpoint.write_gguf(folder, tmp_path / "small.gguf")
    found = _logits_of_llama_cpp(tmp_path / "small.gguf")
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_quantised_files(tmp_path):
    """llama.cpp writes and reads them: as large as their format says, and near the original's logits."""
    pytest.importorskip("llama_cpp")
    path = generation.find_checkpoint("tiny", tmp_path)
    expected = _logits_of_llama_cpp(generation.make_gguf("tiny", path, tmp_path))
    values = model_cases.TINY.matrices + model_cases.TINY.vocabulary * model_cases.TINY.hidden
    for kind, error in (("Q8_0", 0.03), ("Q4_0", 0.5)):  # 8 and 4 bits: steps of 1/127 and 1/8 of a block's largest
        file = Path(generation.make_gguf("tiny", path, tmp_path, kind))
        assert 0 < file.stat().st_size - values * model_cases._BLOCK_BYTES[kind] // 32 < 20_000
        found = _logits_of_llama_cpp(file)
        assert 0 < np.abs(found - expected).max() < error * np.abs(expected).max()
        before = file.stat().st_mtime_ns
        generation.make_gguf("tiny", path, tmp_path, kind)
        assert file.stat().st_mtime_ns == before


def test_what_cannot_be_written_is_said(tmp_path):
    (tmp_path / "wrong.gguf").write_bytes(b"nothing")
    with pytest.raises(RuntimeError, match="the new process ended with status"):
        generation._quantize(str(tmp_path / "wrong.gguf"), str(tmp_path / "out.gguf"), "Q8_0")
    assert not (tmp_path / "out.gguf").exists()
