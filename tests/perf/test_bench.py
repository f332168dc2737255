"""`infinicore bench serve` against a small server whose times are known."""

import asyncio
import contextlib
import json
import re
import sys
import threading

import numpy as np
import pytest

from infinicore import cli
from infinicore.perf.serving import client, datasets, report
from infinicore.perf.serving.http import HTTPError, Server

FIRST, GAP = 0.06, 0.02  # seconds before the first piece of an answer, and between pieces


class FakeServer:
    """OpenAI's completions and chat: `max_tokens` pieces, `FIRST` and `GAP` apart; it notes what it is asked."""

    def __init__(self):
        self.bodies, self.headers, self.running, self.most = [], [], 0, 0
        self.fail = lambda index: None  # status and body of the failure of a request, or "close"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        start = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(re.search(r"Content-Length: (\d+)", head)[1])
                body = json.loads(await reader.readexactly(length) or "null")
                if head.startswith("GET"):
                    data = json.dumps({"data": [{"id": "org/fake"}]}).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
                elif await self._answer(head, body, writer):
                    break
        writer.close()

    async def _answer(self, head, body, writer):
        self.bodies.append(body)
        self.headers.append(head)
        failure = self.fail(len(self.bodies) - 1)
        if failure == "close":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata")
            return True
        if failure:
            data = json.dumps(failure[1]).encode()
            writer.write(b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%s" % (failure[0], len(data), data))
            return False
        self.running += 1
        self.most = max(self.most, self.running)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        chat, count = "chat" in head.split()[1], body.get("max_tokens") or body["max_completion_tokens"]
        events = [{"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}] if chat else []
        for i in range(count):
            piece = {"delta": {"content": f" {i}"}} if chat else {"text": f" {i}"}
            events.append({"choices": [piece]})
        events.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": count}})
        for i, event in enumerate(events):
            if not event.get("usage") and not (chat and i == 0):
                await asyncio.sleep(FIRST if i == int(chat) else GAP)
            data = b"data: %s\n\n" % json.dumps(event).encode()
            half = len(data) // 2  # chunks need not end where events do
            for part in (data[:half], data[half:]):
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
        data = b"data: [DONE]\n\n"
        self.running -= 1  # the client may send its next request from now on
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
        return False

    def close(self):
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@pytest.fixture
def server():
    fake = FakeServer()
    yield fake
    fake.close()


def bench(server, *more):
    common = ["--base-url", server.url, "--vocab-size", "500", "--disable-tqdm", "--input-len", "9"]
    return cli.main(["bench", "serve", *common, *map(str, more)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


def test_times_and_counts(server, folder, capsys):
    pytest.importorskip("matplotlib")
    status = bench(
        server, "--num-prompts", 6, "--output-len", 5, "--max-concurrency", 2, "--ignore-eos", "--save-detailed",
        "--result-dir", folder, "--result-filename", "a.json", "--percentile-metrics", "ttft,tpot,itl,e2el",
        "--metric-percentiles", "50,99.9", "--goodput", "ttft:2000", "e2el:5000", "--metadata", "tp=1",
        "--plots", folder / "plots", "--seed", 3, "--extra-body", '{"user": "me"}', "--header", "X-A=b",
    )  # fmt: skip
    assert status == 0
    result = json.loads((folder / "a.json").read_text())
    assert (result["completed"], result["failed"], result["model_id"], result["tp"]) == (6, 0, "org/fake", "1")
    assert result["total_output_tokens"] == 30 and result["total_input_tokens"] == 42  # as the server counts
    assert server.most == result["max_concurrent_requests"] == 2
    assert all(ttft >= FIRST for ttft in result["ttfts"]) and result["median_ttft_ms"] >= 1000 * FIRST
    assert [len(gaps) for gaps in result["itls"]] == [4] * 6
    assert result["mean_itl_ms"] == pytest.approx(1000 * np.mean(result["itls"]))
    per_token = (np.array(result["latencies"]) - result["ttfts"]) / 4
    assert result["median_tpot_ms"] == pytest.approx(1000 * np.median(per_token))
    assert min(result["latencies"]) >= FIRST + 4 * GAP
    assert result["duration"] >= 3 * (FIRST + 4 * GAP)
    assert result["output_throughput"] == pytest.approx(30 / result["duration"])
    assert result["request_goodput"] == pytest.approx(6 / result["duration"])
    assert result["p99.9_e2el_ms"] >= result["p50_e2el_ms"] == result["median_e2el_ms"]
    assert result["generated_texts"] == [" 0 1 2 3 4"] * 6
    body = server.bodies[-1]
    assert len(body["prompt"]) == 9 and body["max_tokens"] == 5 and body["ignore_eos"] and body["user"] == "me"
    assert body["temperature"] == 0 and body["stream"] and "X-A: b" in server.headers[-1]
    assert len(server.bodies) == 7  # the first one asks whether the server is ready
    shown = capsys.readouterr().out
    assert re.search(r"^=+ Serving Benchmark Result =+$", shown, re.MULTILINE)
    assert "Successful requests:                     6" in shown and "P99.9 E2EL (ms):" in shown
    for name in ("latencies.png", "timeline.png"):
        assert (folder / "plots" / name).read_bytes().startswith(b"\x89PNG")


def test_chat_and_rates(server, folder, stories, capsys):
    options = ["--num-prompts", 5, "--output-len", 2, "--request-rate", 50, "--burstiness", 2, "--save-result"]
    status = cli.main([
        "bench", "serve", "--backend", "openai-chat", "--base-url", server.url, "--tokenizer", str(stories),
        "--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", "2", "--input-len", "6",
        "--prefix-repetition-prefix-len", "20", "--disable-tqdm", "--result-dir", str(folder), *map(str, options),
    ])  # fmt: skip
    assert status == 0
    [path] = folder.glob("openai-chat-50.0qps-fake-*.json")
    result = json.loads(path.read_text())
    assert result["completed"] == 5 and "ttfts" not in result and result["request_rate"] == 50
    assert result["median_ttft_ms"] >= 1000 * FIRST  # the event that says who speaks is no token
    texts = [body["messages"][0]["content"] for body in server.bodies[1:]]
    assert all(isinstance(text, str) for text in texts) and len({text[:8] for text in texts}) == 2
    assert "Request rate configured (RPS):           50.00" in capsys.readouterr().out


def test_adapters_penalties_and_a_rate_that_grows(server, folder):
    growth = ["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "20", "--ramp-up-end-rps", "200"]
    more = ["--backend", "vllm", "--served-model-name", "mine", "--logprobs", "2", "--frequency-penalty", "0.5"]
    result = ["--append-result", "--result-dir", folder, "--result-filename", "lines.json"]
    assert bench(server, "--num-prompts", 3, "--output-len", 2, *growth, *more, *result) == 0
    assert bench(server, "--num-prompts", 20, "--output-len", 1, "--lora-modules", "a", "b", *result) == 0
    first, second = server.bodies[1], server.bodies[-1]
    assert (first["model"], first["logprobs"], first["frequency_penalty"]) == ("mine", 2, 0.5)
    assert first["ignore_eos"]  # random prompts say nothing of where an answer ends
    assert second["model"] in "ab" and {body["model"] for body in server.bodies[-20:]} == {"a", "b"}
    rows = [json.loads(line) for line in (folder / "lines.json").read_text().splitlines()]
    assert [row["completed"] for row in rows] == [3, 20] and rows[0]["model_id"] == "mine"


@pytest.mark.parametrize("strategy", ("linear", "exponential"))
def test_a_rate_that_grows(strategy):
    rates = client.growing(strategy, 10.0, 1000.0, 3)
    assert rates == pytest.approx([10, {"linear": 505, "exponential": 100}[strategy], 1000])
    found = client.intervals(client.Load(growth=(strategy, 10.0, 1000.0), burstiness=1e6), 3)
    assert found == pytest.approx(1 / rates, rel=0.02)


def test_requests_that_fail(server, capsys):
    """Others go on; the status says so; the figures are of those that succeeded."""
    failures = {1: (429, {"error": {"message": "busy"}}), 3: "close", 4: (500, "x")}
    server.fail = lambda index: failures.get(index)
    assert bench(server, "--num-prompts", 5, "--output-len", 2, "--max-concurrency", 1) == 1
    done = capsys.readouterr()
    assert (
        "Successful requests:                     2" in done.out
        and "Failed requests:                         3" in done.out
    )
    assert "status 429" in done.err and "busy" in done.err and "broke off" in done.err
    assert bench(server, "--num-prompts", 1, "--output-len", 2) == 0


def test_a_server_that_says_no_is_not_asked_again(server, capsys):
    server.fail = lambda index: (404, {"error": {"message": "no such model"}})
    assert bench(server, "--num-prompts", "1", "--ready-check-timeout-sec", "60") == 2
    assert "status 404" in capsys.readouterr().err and len(server.bodies) == 1


def test_no_server_is_one_sentence(capsys):
    with FakePort() as url:
        for more in ([], ["--model", "x"]):
            options = ["--base-url", url, "--vocab-size", "9", "--num-prompts", "1", "--ready-check-timeout-sec=0.01"]
            assert cli.main(["bench", "serve", *options, *more]) == 2
            assert re.search(r"infinicore: error: the server .*", capsys.readouterr().err)


class FakePort:
    """An address where nobody listens."""

    def __enter__(self):
        import socket

        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *_):
        self._socket.close()


@pytest.mark.parametrize("wrong,message", [
    (["--goodput", "itl:5"], "`--goodput` must be"), (["--percentile-metrics", "x"], "`--percentile-metrics`"),
    (["--metric-percentiles", "50,101"], "`--metric-percentiles`"), (["--request-rate", "0"], "`--request-rate`"),
    (["--extra-body", "[1]"], "`--extra-body`"), (["--num-prompts", "0"], "`--num-prompts`"),
    (["--base-url", "ftp://x"], "`--base-url`"), (["--backend", "openai-chat"], "needs texts"),
    (["--dataset-name", "sharegpt"], "`--tokenizer`"), (["--random-range-ratio", "1"], "`--random-range-ratio`"),
    (["--metadata", "x"], "`--metadata`"), (["--plots", "/no/such/folder"], "make it first"),
    (["--max-concurrency", "0"], "`--max-concurrency`"), (["--ramp-up-start-rps", "2"], "need `--ramp-up-strategy`"),
    (["--ramp-up-strategy", "linear"], "needs rates above 0"),
    (["--ramp-up-strategy", "linear", "--request-rate", "2"], "give one of them"),
])  # fmt: skip
def test_wrong_options_are_one_sentence(capsys, wrong, message):
    assert cli.main(["bench", "serve", "--vocab-size", "500", "--num-prompts", "2", *wrong]) == 2
    assert message in capsys.readouterr().err


def test_intervals_have_the_rate_and_the_spread():
    assert not client.intervals(client.Load(), 5).any()
    for burstiness in (0.25, 1.0, 4.0):
        found = client.intervals(client.Load(rate=20.0, burstiness=burstiness), 4000)
        assert found.sum() == pytest.approx(200)
        assert found.std() / found.mean() == pytest.approx(burstiness**-0.5, rel=0.1)  # of a Gamma distribution


def test_datasets(stories, folder):
    from infinicore.lm import Tokenizer

    tokenizer = Tokenizer(stories / "tokenizer.json")
    vocabulary = datasets.Vocabulary(tokenizer)
    prompts = datasets.random_prompts(vocabulary, 40, input_len=50, output_len=20, range_ratio=0.5, prefix_len=10)
    assert prompts == datasets.random_prompts(
        vocabulary, 40, input_len=50, output_len=20, range_ratio=0.5, prefix_len=10
    )
    assert all(prompt.tokens == len(tokenizer.encode(prompt.prompt)) for prompt in prompts)
    assert {prompt.output for prompt in prompts} <= set(range(10, 31)) and len({p.output for p in prompts}) > 5
    assert 30 <= np.mean([prompt.tokens for prompt in prompts]) <= 90
    ids = datasets.prefix_repetition(
        datasets.Vocabulary(size=300), 9, prefix_len=5, suffix_len=3, num_prefixes=3, output_len=2
    )
    shared = [tuple(prompt.prompt[:5]) for prompt in ids]
    assert sorted(map(shared.count, set(shared))) == [3, 3, 3] and all(len(prompt.prompt) == 8 for prompt in ids)
    turns = [
        {"conversations": [{"value": f"Once upon a time {i}"}, {"value": "there was a cat who slept"}]}
        for i in range(3)
    ]
    path = folder / "share.json"
    path.write_text(json.dumps([*turns, {"conversations": []}, 5, {"conversations": [{"value": "x"}, {"value": "y"}]}]))
    found = datasets.sharegpt(tokenizer, 5, path=path)
    assert len(found) == 5 and len({prompt.prompt for prompt in found}) == 3
    assert all(prompt.output == len(tokenizer.encode("there was a cat who slept", False)) for prompt in found)
    assert datasets.sharegpt(tokenizer, 1, path=path, output_len=9)[0].output == 9
    for wrong, message in (("{", "not valid JSON"), ("{}", "JSON list"), ("[]", "no conversation")):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=message):
            datasets.sharegpt(tokenizer, 1, path=path)


def test_figures_of_no_answer():
    """Without a success there is nothing to divide by."""
    result = report.summarize([client.Answer(3, error="x")], 1.0)
    assert result["failed"] == 1 and result["output_throughput"] == 0 and result["p99_ttft_ms"] == 0
    assert "Failed requests:                         1" in report.block(result)


@pytest.mark.parametrize("said,message", [
    (b"SSH-2.0-x\r\n", "no HTTP server"), (b"", "broke off"), (b"HTTP/1.1 200 OK\r\nContent-", "broke off"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "7 bytes are missing"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "broke off"),
    (b"HTTP/1.1 404 No\r\n\r\nnothing", "status 404: nothing"),
])  # fmt: skip
def test_answers_that_are_no_http(said, message):
    async def ask():
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
            writer.close()

        listening = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        with pytest.raises(HTTPError, match=message):
            await Server(url).json("GET", "/v1/models")
        listening.close()

    asyncio.run(ask())


def test_a_vocabulary_in_a_gguf_file(stories, folder):
    """What servers need beside weights: the folder's own pieces, or made-up ones that spell every byte."""
    from infinicore.lm import Tokenizer
    from infinicore.perf import checkpoint, vocabulary

    checkpoint.write_gguf(stories, folder / "own.gguf", with_vocabulary=True)
    theirs, ours = Tokenizer(stories / "tokenizer.json"), Tokenizer(folder / "own.gguf")
    for text in ("Once upon a time", " Zoë  saw\n12 cats"):
        assert ours.encode(text, False) == theirs.encode(text, False) and ours.decode(ours.encode(text)) == text
    assert (ours.bos_token_id, ours.eos_token_id) == (1, 2)
    tokens, scores = vocabulary.made_up(1024)
    assert len(set(tokens)) == len(scores) == 1024 and tokens[3 + 65] == "<0x41>"
    with pytest.raises(ValueError, match="at least 300"):
        vocabulary.made_up(299)


def test_the_suite_needs_a_server_to_be_set_against(monkeypatch, folder):
    from infinicore.perf import compare, suites
    from infinicore.perf.cases import Skip
    from infinicore.perf.serving import sides

    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("INFINICORE_LLAMA_SERVER", raising=False)
    assert compare.installed(("llama-server",)) == ([], ["llama-server"])
    monkeypatch.setenv("INFINICORE_LLAMA_SERVER", "/opt/llama-server")
    assert compare.installed(("llama-server",)) == (["llama-server"], [])
    case = suites.cases(quick=True, suites=["serving"])[0]
    files, _ = sides.files(case, ["llama-server"], folder)
    assert set(files) == {"ours", "llama-server"} and len(set(files.values())) == 1
    with pytest.raises(Skip, match="llama-quantize"):
        sides._quantize("a", "b", "Q8_0")


@pytest.mark.slow
def test_a_run_of_the_suite(monkeypatch, tmp_path):
    """Our server beside none."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("INFINICORE_LLAMA_SERVER", raising=False)
    path = tmp_path / "rows.json"
    command = ["perf", "compare", "--suite", "serving", "--quick", "--threads", "1", "--model-dir", str(tmp_path)]
    assert cli.main([*command, "--json", str(path)]) == 0
    rows = json.loads(path.read_text())
    assert [row["unit"] for row in rows] == ["tokens/s", "ms", "ms", "s"]
    assert all(row["notes"] == ["llama-server is not installed"] for row in rows)
    throughput, first, between, start = (row["ours"] for row in rows)
    assert throughput > 0 and first > 0 and start > 0
    assert between >= 0  # of 8 tokens that a busy machine reads at once, nothing lies between


SERVER = """#!{python}
import http.server, sys, time

began = time.monotonic()

class Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        assert b"quick brown fox" in self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200 if time.monotonic() - began > 0.4 else 503)  # it loads at first
        self.end_headers()
        self.wfile.write(b"{{}}")

assert "--no-warmup" in sys.argv
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Answers).serve_forever()
"""


def test_a_start_lasts_until_the_first_answer(monkeypatch, tmp_path):
    from infinicore.perf.serving.starts import Start

    program = tmp_path / "llama-server"
    program.write_text(SERVER.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("INFINICORE_LLAMA_SERVER", str(program))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    options = {"users": 1, "room": 48, "prompt": 32}
    assert 0.4 < Start("llama-server", "model.gguf", options).measure(1) < 30
    from infinicore.models.auto import EMBEDDED

    assert 0.05 < Start("ours", str(EMBEDDED), options).measure(1) < 120
    with pytest.raises(RuntimeError, match=r"status 2: .*no folder"):
        Start("ours", str(tmp_path / "nothing"), options)


def test_figures_of_one_load_come_from_the_same_runs(server):
    """Three cases of two rounds ask for two runs, and one before them that does not count."""
    from infinicore.perf import suites
    from infinicore.perf.serving import sides

    cases = [case for case in suites.cases(quick=True, suites=["serving"]) if case.op == "serve"]
    runs, measured = [], {}
    for case in cases:
        side = sides.Serve(server, runs, case.options)
        measured[case.options["figure"]] = [case.value(side.measure(1)) for _ in range(2)]
    assert len(runs) == 2 and len(server.bodies) == 3 * cases[0].options["users"]
    assert measured["median_ttft_ms"] == [run["median_ttft_ms"] for run in runs]
    rates = [run["output_throughput"] for run in runs]
    assert measured["output_throughput"] == pytest.approx(rates)
    first, again = (body["prompt"] for body in server.bodies[4:12:4])
    assert first != again and all(body["ignore_eos"] for body in server.bodies)
    server.fail = lambda index: (500, {"error": "x"})
    with pytest.raises(RuntimeError, match="status 500"):
        side.measure(1)


@pytest.mark.parametrize("action,more", [
    ("throughput", ["--num-prompts", "5", "--tokenizer", "MODEL", "--max-num-seqs", "3", "--random-range-ratio=0.3"]),
    ("latency", ["--batch-size", "2", "--num-iters", "3", "--num-iters-warmup", "1"]),
])  # fmt: skip
def test_without_a_server(stories, folder, capsys, action, more):
    path = folder / f"{action}.json"
    more = [str(stories) if word == "MODEL" else word for word in more]
    lengths = ["--input-len", "20", "--output-len", "6", "--output-json", str(path)]
    speculate = ["--speculative-config", '{"method": "ngram"}']
    assert cli.main(["bench", action, "--model", str(stories), *lengths, *more, *speculate]) == 0
    result, shown = json.loads(path.read_text()), capsys.readouterr().out
    if action == "latency":
        assert len(result["latencies"]) == 3 and result["avg_latency"] == pytest.approx(np.mean(result["latencies"]))
        assert set(result["percentiles"]) == {"10", "25", "50", "75", "90", "99"}
        assert f"Avg latency: {result['avg_latency']} seconds" in shown and "99% percentile latency: " in shown
        return
    assert result["num_requests"] == 5 and 20 <= result["total_output_tokens"] <= 40
    assert result["total_num_tokens"] == result["total_prompt_tokens"] + result["total_output_tokens"]
    assert result["requests_per_second"] == pytest.approx(5 / result["elapsed_time"])
    assert re.search(r"Throughput: [\d.]+ requests/s, [\d.]+ total tokens/s, [\d.]+ output tokens/s", shown)
