"""Models that several ranks divide write what one process writes: see `programs/inference.py`."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

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
    assert ranks(2, "inference.py", "cpu", json.dumps(cases)).stdout.count("done") == 2


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
    assert ranks(2, "inference.py", "cpu", json.dumps(cases)).stdout.count("done") == 2


def test_gguf(ranks, root, tmp_path):
    pytest.importorskip("gguf")
    written = sibling(root, "test_gguf")
    cases = []
    for kind, tied in (("Q8_0", True), ("Q4_0", False), ("Q4_K", False), ("F32", True)):
        path, _ = written.write_model(tmp_path, kind, tied=tied)
        cases += both(str(path), kind != "F32")
    assert ranks(2, "inference.py", "cpu", json.dumps(cases)).stdout.count("done") == 2


WAYS = [(), ("windows",)]  # of the second device: steps one by one, through the host; recorded


@pytest.mark.parametrize("more", WAYS)
def test_on_another_device(ranks, root, tmp_path, stories, more):
    """16-bit floats are summed over ranks there, which rounds; quantised weights give whole outputs as on CPUs."""
    pytest.importorskip("gguf")
    qwen = {"architectures": ["Qwen3ForCausalLM"], "head_dim": 8, "num_attention_heads": 3}
    cases = [[str(stories), {"dtype": "bfloat16"}, {"tp": 2}, "close"]]
    cases += both(saved(tmp_path / "qwen", LLAMA | qwen), False) + both(saved(tmp_path / "gpt2", GPT2), False)
    written = sibling(root, "test_quantized")
    (tmp_path / "awq").mkdir()
    cases += both(str(written.write_pair(tmp_path / "awq", "awq")[0]), True)
    cases += both(str(sibling(root, "test_gguf").write_model(tmp_path, "Q8_0", tied=True)[0]), True)
    cases += both(str(stories), True, quantize="int8")
    assert ranks(2, "inference.py", "host2", json.dumps(cases), *more).stdout.count("done") == 2


@pytest.mark.parametrize("more", WAYS)
def test_both_axes_on_another_device(ranks, stories, more):
    cases = [[str(stories), {}, {"tp": 2, "pp": 2}, False], [str(stories), {}, {"pp": 4}, True]]
    assert ranks(4, "inference.py", "host2", json.dumps(cases), *more).stdout.count("done") == 4


def test_both_axes_and_messages(ranks, stories):
    cases = [[str(stories), {}, {"tp": 2, "pp": 2}, False], [str(stories), {"dtype": "bfloat16"}, {"tp": 4}, True]]
    assert ranks(4, "inference.py", "cpu", json.dumps(cases)).stdout.count("done") == 4
    done = ranks(2, "inference.py", "cpu", json.dumps(both(str(stories), False)), INFINICORE_COMM_TRANSPORT="messages")
    assert done.stdout.count("done") == 2


def test_a_rank_that_ends(ranks, stories):
    done = ranks(2, "inference_gone.py", stories, check=False)
    assert done.returncode != 0 and "rank 1" in done.stderr and "which has ended" in done.stderr, done.stderr[-3000:]


def test_generate(ranks, command, stories):
    given = ["generate", "--model", stories, "--prompt", "Once upon a time", "--temperature", 0, "--max-new-tokens", 20]
    alone = json.loads(command(*given, "--json").stdout)
    for axis in ("--tp", "--pp"):
        done = command("run", "-n", 2, *given, "--json", axis, 2)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["token_ids"] == alone["token_ids"]  # one object: of the first rank alone
    done = command(*given, "--json", "--tensor-parallel-size", 2)  # starts its ranks itself
    assert json.loads(done.stdout)["token_ids"] == alone["token_ids"], done.stderr
    done = command("run", "-n", 2, *given, "--pp", 2, "--tp", 2)
    assert done.returncode == 2 and done.stderr.count("infinicore: error") == 1
    assert "needs 4 ranks, and this job has 2" in done.stderr
    done = command("run", "-n", 2, *given[:2], stories / "nothing", *given[3:], "--tp", 2)
    assert done.returncode == 2 and done.stderr.count("infinicore: error: there is no folder") == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_serve(ranks, processes, pytestconfig, stories, device):
    """Rank 0 schedules and serves; an engine that is killed ends the job with a sentence."""
    pytest.importorskip("fastapi")
    if device == "cuda" and pytestconfig.getoption("--device") != "cuda":
        pytest.skip("needs a GPU: run with --device cuda")
    line = [sys.executable, "-m", "infinicore", "run", "-n", "2", "serve", "--tp", "2", "--port", "0"]
    job = subprocess.Popen(
        [*line, "--device", device, "--model", f"m={stories}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        address = re.search(r"http://\S+", job.stdout.readline()).group()
        body = {"model": "m", "prompt": "Once upon", "max_tokens": 12, "temperature": 0, "seed": 1}
        asked = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode())
        asked.add_header("Content-Type", "application/json")
        for _ in range(600):
            try:
                with urllib.request.urlopen(asked, timeout=60) as answer:
                    text = json.loads(answer.read())["choices"][0]["text"]
                break
            except OSError:  # it listens before the model is there
                time.sleep(0.1)
        model = infinicore.models.from_pretrained(stories, device=device)
        assert text == model.generate("Once upon", max_new_tokens=12, temperature=0.0).finish()[0].text
        engine = processes(job, "infinicore.lm.server")
        os.kill(engine[0], signal.SIGKILL)
        _, errors = job.communicate(timeout=60)
        assert job.returncode != 0 and "which has ended" in errors, errors
    finally:
        job.kill()
