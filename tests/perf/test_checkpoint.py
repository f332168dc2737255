"""The random checkpoints of the benchmarks, read by others."""

import sys
from pathlib import Path

import numpy as np
import pytest

from infinicore.perf import checkpoint, suites

SMALL = suites.Model(
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
    assert 1.0e9 < suites.TINYLLAMA.matrices < 1.1e9


def test_is_reused_and_never_mixed_up(folder):
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert checkpoint.write_random(SMALL, folder) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="holds a checkpoint with"):
        checkpoint.write_random(suites.TINYLLAMA, folder)


def test_bfloat16_rounds_to_nearest_even():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(0).standard_normal(10_000, dtype=np.float32)
    x[:2] = 1 + 2**-8, 1 + 3 * 2**-8  # ties
    assert np.array_equal(checkpoint.bfloat16_bits(x), x.astype(ml_dtypes.bfloat16).view(np.uint16))


@pytest.fixture(autouse=True)
def _checkout_off_the_path(monkeypatch, root):
    """transformers looks for a package called `kernels`: with `python -m pytest` it would find our folder."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p or ".").resolve() != root])


def _logits_of_transformers(folder):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0, -1].numpy()


def test_transformers_reads_it(folder):
    logits = _logits_of_transformers(folder)
    assert logits.shape == (SMALL.vocabulary,) and np.isfinite(logits).all() and logits.std() > 0


def test_llama_cpp_reads_the_gguf_twin(folder, tmp_path):
    """The same logits: names, shapes and the order of rotated rows are right."""
    llama_cpp = pytest.importorskip("llama_cpp")
    expected = _logits_of_transformers(folder)
    checkpoint.write_gguf(folder, tmp_path / "small.gguf")
    model = llama_cpp.Llama(str(tmp_path / "small.gguf"), n_ctx=32, n_threads=1, n_threads_batch=1, verbose=False)
    model.eval(TOKENS)
    found = np.ctypeslib.as_array(model._ctx.get_logits(), shape=(SMALL.vocabulary,))
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
