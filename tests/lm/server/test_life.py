"""Loading, dying, restarting, full queues, shutting down, and who may ask."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest


def test_health_while_loading_and_after(serving):
    server = serving(engine={"delay": 0.5}, wait=False)
    reply = server.client.get("/health")
    assert reply.status_code == 503 and reply.json()["status"] == "loading" and "Retry-After" in reply.headers
    assert server.chat("say x").status_code == 503
    assert server.client.get("/").status_code == 200
    server.until(lambda: server.client.get("/health").status_code == 200)
    assert server.chat("say x").status_code == 200
    server.stop()


def test_health_answers_during_a_long_step(server):
    waiting = threading.Thread(target=server.chat, args=("step 700",))
    waiting.start()
    time.sleep(0.1)
    began = time.monotonic()
    assert server.client.get("/health").status_code == 200 and server.client.get("/metrics").status_code == 200
    assert time.monotonic() - began < 0.5
    waiting.join()


def test_a_killed_engine(serving, tmp_path):
    """Clients are told, /health says so, another engine comes, and later requests are answered."""
    marker = tmp_path / "weights"
    marker.touch()
    server = serving(engine={"marker": str(marker)})
    first, lines, replies = server.model.engine.pid, [], []

    def stream():
        with server.client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as reply:
            lines.extend(reply.iter_lines())

    body = {"messages": [{"role": "user", "content": "slow 20 " + "one " * 200}]}
    threads = [
        threading.Thread(target=stream),
        threading.Thread(target=lambda: replies.append(server.chat("slow 20 " + "x " * 99))),
    ]
    for thread in threads:
        thread.start()
    server.until(lambda: server.model.engine.open_answers == 2)
    marker.unlink()  # what is started next cannot load
    time.sleep(0.1)
    os.kill(first, signal.SIGKILL)
    for thread in threads:
        thread.join(20)
    told = json.loads([line for line in lines if line][-1][6:])["error"]
    assert "signal 9" in told["message"] and told["code"] == "engine_unavailable" and "data: [DONE]" not in lines
    assert replies[0].status_code == 503 and "signal 9" in replies[0].json()["error"]["message"]
    health = server.client.get("/health")
    assert health.status_code == 503 and health.json()["status"] == "down"
    marker.touch()
    server.until(lambda: server.client.get("/health").status_code == 200)
    assert server.model.engine.pid != first
    assert server.chat("say again").json()["choices"][0]["message"]["content"].strip() == "again"
    assert "infinicore:engine_restarts_total{" in server.client.get("/metrics").text
    server.stop()
    assert server.model.engine.pid is None


def test_a_full_queue(serving):
    server = serving(engine={"max_num_seqs": 1}, max_queue=1)
    threads = [threading.Thread(target=server.chat, args=("slow 20 " + "x " * 9,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    server.until(lambda: server.model.engine.open_answers == 2)
    reply = server.chat("say x")
    assert (
        reply.status_code == 429
        and reply.headers["Retry-After"]
        and reply.json()["error"]["type"] == "rate_limit_error"
    )
    for thread in threads:
        thread.join(20)
    assert server.chat("say x").status_code == 200
    server.stop()


def test_shutdown_finishes_or_fails_each_request(serving):
    server = serving(grace=1.0)
    replies = {}

    def ask(name, text):
        replies[name] = server.chat(text)

    threads = [
        threading.Thread(target=ask, args=("short", "slow 20 one two three four five")),
        threading.Thread(target=ask, args=("long", "slow 20 " + "x " * 500)),
    ]
    for thread in threads:
        thread.start()
    server.until(lambda: server.model.engine.open_answers == 2)
    began = time.monotonic()
    server.server.should_exit = True
    server.until(lambda: server.model.engine.state == "closing")
    for thread in threads:
        thread.join(20)
    server.stop()
    assert replies["short"].json()["choices"][0]["message"]["content"].split() == "one two three four five".split()
    assert replies["long"].status_code == 503 and "shutting down" in replies["long"].json()["error"]["message"]
    assert time.monotonic() - began < 4


def test_each_answer_names_its_request(serving):
    """Also errors, streams and what has no key; names that could not stand in a header are replaced."""
    server = serving(api_keys=["right"])
    key, names = {"Authorization": "Bearer right"}, set()
    for path, status, given in (
        ("/health", 200, "abc-1"),
        ("/v1/models", 401, "abc-2"),
        ("/nowhere", 404, "!" * 128),
        ("/health", 200, None),
        ("/health", 200, "two words"),
        ("/health", 200, "x" * 129),
    ):
        headers = (key if status == 404 else {}) | ({"X-Request-Id": given} if given else {})
        reply = server.client.get(path, headers=headers)
        name = reply.headers["x-request-id"]
        assert reply.status_code == status and (name == given or len(name) == 32), (path, name)
        assert (name == given) == (given is not None and " " not in given and len(given) < 129)
        names.add(name)
    assert len(names) == 6
    server.stop()


def test_keys_and_origins(serving):
    server = serving(api_keys=["right", "other"], allowed_origins=["https://a.example"])
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "right"},
        {"Authorization": "Bearer righ"},
    ):
        reply = server.client.get("/v1/models", headers=headers)
        assert reply.status_code == 401 and reply.json()["error"]["type"] == "authentication_error"
        assert reply.headers["www-authenticate"] == "Bearer"
    assert server.chat("say x").status_code == 401 and server.client.get("/metrics").status_code == 401
    for key in ("right", "other"):
        assert server.client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    assert server.client.get("/health").status_code == 200
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    allowed = server.client.options("/v1/chat/completions", headers=asked)
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    refused = server.client.options("/v1/chat/completions", headers=asked | {"Origin": "https://b.example"})
    assert "access-control-allow-origin" not in refused.headers
    server.stop()


def test_two_models(serving):
    """Each has an engine of its own; one that dies leaves the other alone."""
    server = serving(names=("a", "b"))
    assert [row["id"] for row in server.client.get("/v1/models").json()["data"]] == ["a", "b"]
    assert server.chat("die", model="b").status_code == 503
    for options in ({}, {"model": "a"}):
        assert server.chat("say x", **options).json()["model"] == "a"
    rows = server.client.get("/health").json()["models"]
    assert rows["a"] == {"state": "ready", "restarts": 0} and rows["b"]["restarts"] == 1
    server.until(lambda: server.client.get("/health").status_code == 200)
    assert server.chat("say x", model="b").json()["model"] == "b"
    server.stop()


def test_no_origins_unless_asked(server):
    reply = server.client.get("/v1/models", headers={"Origin": "https://a.example"})
    assert "access-control-allow-origin" not in reply.headers


def test_other_routes(server):
    assert server.client.get("/version").json()["version"]
    tokens = server.post("/tokenize", {"prompt": "Once upon"}).json()
    assert tokens["count"] == len(tokens["tokens"]) and tokens["max_model_len"] == 2000 and tokens["tokens"][0] == 1
    assert server.post("/tokenize", {"content": "Once upon"}).json()["tokens"] == tokens["tokens"][1:]
    assert server.post("/detokenize", {"tokens": tokens["tokens"][1:]}).json()["prompt"].strip() == "Once upon"
    body = {"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]}
    assert server.post("/apply-template", body).json() == {"prompt": "|a|b"}
    done = server.post("/completion", {"prompt": "say one two", "n_predict": 50}).json()
    assert done["content"].strip() == "one two" and done["stop_type"] == "eos" and done["timings"]["predicted_n"] > 1
    with server.client.stream("POST", "/completion", json={"prompt": "say one two", "stream": True}) as reply:
        rows = [json.loads(line[6:]) for line in reply.iter_lines() if line]
    assert "".join(row["content"] for row in rows).strip() == "one two"
    assert rows[-1]["stop"] and not any(row["stop"] for row in rows[:-1])
    told = {"prompt": "say one", "n_probs": 2, "seed": -1, "mirostat": 0, "id_slot": -1, "grammar": None}
    (*_, last) = server.post("/completion", told).json()["completion_probabilities"]
    assert last["logprob"] == -0.5 and [row["logprob"] for row in last["top_logprobs"]] == [-0.5, -1.5]
    assert last["id"] == last["top_logprobs"][0]["id"] and last["token"] == last["top_logprobs"][0]["token"]
    assert server.post("/completion", told | {"mirostat": 2}).status_code == 400
    for path in ("/health", "/v1/health", "/ping"):
        assert server.client.head(path).status_code == 200 and not server.client.head(path).content
    assert server.post("/completions", {"prompt": "say one two"}).json()["choices"][0]["text"].strip() == "one two"
    assert len(server.post("/embeddings", {"input": ["a", "b"]}).json()["data"]) == 2
    assert server.client.get("/props").json()["default_generation_settings"]["n_ctx"] == 2000
    text = server.client.get("/metrics").text
    for name in (
        "num_requests_running",
        "generation_tokens_total",
        "request_success_total",
        "time_to_first_token_seconds_bucket",
    ):
        assert f"vllm:{name}{{" in text


def test_the_command(stories, root, tmp_path, capsys):
    """`infinicore serve` with a model that cannot be loaded ends with a sentence; bad flags do."""
    from infinicore.cli import main

    (tmp_path / "adapter_config.json").touch()

    def serve(*words):
        command = [sys.executable, "-m", "infinicore", "serve", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=root)
        return done.returncode, done.stderr

    status, text = serve("--model", "/nowhere")
    assert status == 2 and "no such checkpoint" in text and "Traceback" not in text
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, text = serve("--model", str(stories), "--port", str(taken.getsockname()[1]))
        assert status == 2 and "in use" in text.lower()
    for words, sentence in (
        (["--lora", "a=/nowhere"], "there is no adapter"),
        (["--lora", "a"], "must be NAME=FOLDER"),
        (["--enable-lora"], "needs adapters"),
        (["--lora", "stories260K=" + str(tmp_path)], "as a model is called"),
        (["--draft-model", "/nowhere"], "no such checkpoint"),
        (["--num-draft-tokens", "3"], "needs --draft-model"),
        (["--kv-cache-memory", "lots"], "a size must be"),
        (["--port", "99999"], "`--port` must be at most 65535"),
        (["--host", "nowhere.invalid"], "nowhere.invalid:8000"),
        (["--threads", "0"], "`--threads` must be at least 1"),
        (["--limit-concurrency", "0"], "`--limit-concurrency` must be at least 1"),
        (["--max-body-size", "0"], "`--max-body-size` must be at least 1"),
        (["--request-timeout", "nan"], "`--request-timeout` must be at least 0"),
    ):
        assert main(["serve", "--model", str(stories), *words]) == 2 and sentence in capsys.readouterr().err


def test_lines_of_sizes():
    from infinicore.cli.serve import size

    assert [size(text) for text in ("4G", "512M", "1.5KiB", "7", "2 GB")] == [4 << 30, 512 << 20, 1536, 7, 2 << 30]
    with pytest.raises(ValueError, match="a size must be"):
        size("4X")
