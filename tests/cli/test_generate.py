"""`infinicore generate` and `infinicore chat`, as a user runs them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROMPT = "Once upon a time"


def command(*arguments):
    return [sys.executable, "-m", "infinicore", *map(str, arguments)]


def run(*arguments, stdin=""):
    """(exit status, standard output, standard error)."""
    done = subprocess.run(command(*arguments), input=stdin, capture_output=True, text=True, cwd=ROOT, timeout=600)
    return done.returncode, done.stdout, done.stderr


def fails(*arguments, words, stdin=""):
    """Status 2, nothing on standard output, one sentence on standard error."""
    status, out, err = run(*arguments, stdin=stdin)
    assert status == 2 and out == "", (status, out, err)
    line = [text for text in err.splitlines() if "error:" in text]
    assert len(line) == 1 and words in line[0] and "Traceback" not in err, err


@pytest.fixture
def broken(stories, tmp_path):
    """A copy of the checkpoint to damage."""
    folder = tmp_path / "model"
    shutil.copytree(stories, folder)
    for path in [folder, *folder.iterdir()]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def test_text_streams_to_standard_output(stories):
    status, out, err = run(
        "generate", "--model", stories, "--prompt", PROMPT, "--max-new-tokens", 20, "--temperature", 0
    )
    assert status == 0 and out.startswith(", there was a little girl")
    assert "tokens/s" in err and "peak memory" in err
    assert run("generate", "--model", stories, "--max-new-tokens", 20, "--temperature", 0, "--no-stream", "--no-stats",
               stdin=PROMPT) == (0, out, "")  # fmt: skip


def test_json_is_one_object(stories):
    status, out, _ = run(
        "generate", "--model", stories, "--prompt", PROMPT, "--max-new-tokens", 30, "--temperature", 0, "--json"
    )
    result = json.loads(out)
    assert status == 0 and out.count("\n") == 1
    assert set(result) == {
        "text", "token_ids", "prompt_tokens", "new_tokens", "finish_reason", "prefill_tokens_per_s",
        "decode_tokens_per_s", "peak_memory_bytes",
    }  # fmt: skip
    assert result["finish_reason"] == "length" and result["new_tokens"] == len(result["token_ids"]) == 30
    assert result["prefill_tokens_per_s"] > 0 and result["decode_tokens_per_s"] > 0
    assert 10e6 < result["peak_memory_bytes"] < 2e9


def test_options(stories):
    def text(*more):
        status, out, err = run(
            "generate", "--model", stories, "--prompt", PROMPT, "--max-new-tokens", 40, "--json", *more
        )
        assert status == 0, err
        return json.loads(out)

    greedy = text("--temperature", 0)
    assert greedy == {**greedy, "token_ids": text("--temperature", 0, "--cache", "paged", "--threads", 1)["token_ids"]}
    assert text("--seed", 3)["token_ids"] == text("--seed", 3)["token_ids"]  # generation_config.json says do_sample
    drawn = [
        "--temperature",
        0.8,
        "--top-k",
        20,
        "--top-p",
        0.9,
        "--min-p",
        0.01,
        "--repetition-penalty",
        1.1,
        "--seed",
        1,
    ]
    assert text(*drawn)["token_ids"] == text(*drawn)["token_ids"]
    stopped = text("--temperature", 0, "--stop", "Lily", "--stop", "zzz")
    assert "Lily" not in stopped["text"] and stopped["finish_reason"] == "stop"
    assert greedy["text"].startswith(stopped["text"])
    assert text("--temperature", 0, "--dtype", "bfloat16")["text"][:12] == greedy["text"][:12]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-new-tokens", -1], "max_new_tokens"),
        (["--max-new-tokens", "x"], "max-new-tokens"),
        (["--temperature", -1], "temperature"),
        (["--top-p", 2], "top_p"),
        (["--top-k", -5], "top_k"),
        (["--min-p", 7], "min_p"),
        (["--repetition-penalty", 0], "repetition_penalty"),
        (["--stop", ""], "stop"),
        (["--seed", -1], "seed"),
        (["--threads", 0], "threads"),
        (["--dtype", "int4"], "int4"),
        (["--prompt", ""], "prompt is empty"),
        (["--prompt", "word " * 600], "context of 512"),
        (["--cache", "none"], "none"),
    ],
)
def test_bad_arguments(stories, arguments, words):
    fails("generate", "--model", stories, "--prompt", PROMPT, *arguments, words=words)


def test_bad_folders(broken, tmp_path):
    def rejects(words):
        fails("generate", "--model", broken, "--prompt", "a", words=words)

    fails("generate", "--model", tmp_path / "nowhere", "--prompt", "a", words="nowhere")
    fails("generate", "--model", broken, stdin="", words="prompt is empty")
    weights = (broken / "model.safetensors").read_bytes()
    config = json.loads((broken / "config.json").read_text())
    (broken / "model.safetensors").write_bytes(weights[:-100])
    rejects("truncated")
    (broken / "model.safetensors").write_bytes(b"\xff" * 8 + weights[8:])
    rejects("claims")
    (broken / "model.safetensors").unlink()
    rejects("model.safetensors")
    (broken / "model.safetensors").write_bytes(weights)
    for change, words in [
        ({"architectures": ["BertModel"]}, "BertModel"),
        ({"hidden_size": 72, "head_dim": 8}, "shape"),
        ({"num_hidden_layers": 6}, "lacks"),
        ({"num_hidden_layers": 4}, "no place"),
        ({"vocab_size": 511}, "shape"),
    ]:
        (broken / "config.json").write_text(json.dumps({**config, **change}))
        rejects(words)
    (broken / "config.json").write_text("{")
    rejects("not valid JSON")
    (broken / "config.json").unlink()
    rejects("config.json")
    (broken / "config.json").write_text(json.dumps(config))
    (broken / "tokenizer.json").write_text("{}")
    rejects("tokenizer.json")
    (broken / "tokenizer.json").unlink()
    rejects("has no tokenizer")


def test_closed_pipe_is_quiet(stories):
    process = subprocess.Popen(
        command("generate", "--model", stories, "--prompt", PROMPT, "--max-new-tokens", 400, "--temperature", 0),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    process.stdout.read(5)
    process.stdout.close()
    err = process.stderr.read().decode()
    assert process.wait(60) in (0, 141) and "Traceback" not in err and "Error" not in err


def test_interrupt_ends_cleanly(stories):
    process = subprocess.Popen(command("chat", "--model", stories), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, cwd=ROOT)  # fmt: skip
    process.stdin.write(b"Once upon a time\n")
    process.stdin.flush()
    process.stdout.read(1)  # it answers
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (0, 130) and b"Traceback" not in err


def test_chat(stories, broken):
    status, out, err = run("chat", "--model", stories, "--max-new-tokens", 8, "--temperature", 0,
                           stdin="Once upon a time\nThe dog\n\n/reset\nOnce upon a time\n/exit\nnever\n")  # fmt: skip
    lines = [line for line in out.splitlines() if line]
    assert status == 0 and "no chat template" in err and lines[0] == lines[-1]
    config = json.loads((broken / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ bos_token }}{% for m in messages %}{{ m.content }} {% endfor %}"
    (broken / "tokenizer_config.json").write_text(json.dumps(config))
    status, out, err = run(
        "chat", "--model", broken, "--max-new-tokens", 8, "--temperature", 0, stdin="Once upon a time"
    )
    assert status == 0 and "template" not in err and out.strip()
    config["chat_template"] = "{{ raise_exception('only poems') }}"
    (broken / "tokenizer_config.json").write_text(json.dumps(config))
    status, out, err = run("chat", "--model", broken, "--max-new-tokens", 8, stdin="hello\n")
    assert "only poems" in err and "Traceback" not in err
    fails("chat", "--model", stories, "--context", 1, words="context")
