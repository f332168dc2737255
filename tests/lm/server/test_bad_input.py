"""What is wrong with a request is told in an error object, and the engine goes on."""

import json
import socket
import threading
import time

import pytest

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "say x"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def error_of(reply, status):
    assert reply.status_code == status, reply.text
    told = reply.json()["error"]
    assert told.keys() == {"message", "type", "param", "code"} and told["message"]
    return told


RAW = {
    "no JSON": b"{",
    "no object": b"[1]",
    "empty": b"",
    "bad UTF-8": b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "half a surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "not a number": b'{"messages": [], "temperature": NaN}',
    "deep": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep schema": b'{"messages": [{"role": "user", "content": "x"}], "guided_json": '
    + b'{"a":' * 50_000
    + b"1"
    + b"}" * 50_001,
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("name", RAW)
def test_raw_bodies(server, name):
    error_of(server.client.post(CHAT, content=RAW[name], headers={"content-type": "application/json"}), 400)


WRONG = [
    (CHAT, {}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "hello"}, "messages"),
    (CHAT, {"messages": [{"role": "king", "content": "x"}]}, "messages"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages"),
    (CHAT, {"messages": USER, "temperature": "hot"}, "temperature"),
    (CHAT, {"messages": USER, "temperature": -1}, "temperature"),
    (CHAT, {"messages": USER, "temperature": True}, "temperature"),
    (CHAT, {"messages": USER, "top_p": 0}, "top_p"),
    (CHAT, {"messages": USER, "max_tokens": -5}, "max_tokens"),
    (CHAT, {"messages": USER, "max_tokens": 0}, "max_tokens"),
    (CHAT, {"messages": USER, "max_tokens": 10**30}, "max_tokens"),
    (CHAT, {"messages": USER, "max_tokens": 5000}, "messages"),
    (CHAT, {"messages": USER, "n": 0}, "n"),
    (CHAT, {"messages": USER, "n": 10**6}, "n"),
    (CHAT, {"messages": USER, "seed": 1 << 64}, "seed"),
    (CHAT, {"messages": USER, "stop": [""]}, "stop"),
    (CHAT, {"messages": USER, "stop": ["x"] * 1000}, "stop"),
    (CHAT, {"messages": USER, "logit_bias": {"x": 1}}, "logit_bias"),
    (CHAT, {"messages": USER, "logit_bias": {"1": 1000}}, "logit_bias"),
    (CHAT, {"messages": USER, "top_logprobs": 3}, "top_logprobs"),
    (CHAT, {"messages": USER, "stream_options": {}}, "stream_options"),
    (CHAT, {"messages": USER, "nonsense": 1}, "nonsense"),
    (CHAT, {"messages": USER, "functions": []}, "functions"),
    (CHAT, {"messages": USER, "tool_choice": "required"}, "tool_choice"),
    (
        CHAT,
        {"messages": USER, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice",
    ),
    (CHAT, {"messages": USER, "tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
    (CHAT, {"messages": USER, "response_format": {"type": "json_schema"}}, "response_format"),
    (CHAT, {"messages": USER, "guided_regex": "a", "guided_choice": ["b"]}, "guided_regex"),
    (CHAT, {"messages": USER, "guided_regex": "("}, "regex"),
    (CHAT, {"messages": USER, "guided_json": {"type": "nothing"}}, "json_schema"),
    (CHAT, {"messages": USER, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    (CHAT, {"messages": [{"role": "user", "content": "raise"}]}, None),
    (CHAT, {"messages": [{"role": "user", "content": "loop"}]}, None),
    (CHAT, {"messages": [{"role": "user", "content": "say " + "x " * 3000}]}, "messages"),
    ("/v1/completions", {"prompt": []}, "prompt"),
    ("/v1/completions", {"prompt": [[]]}, "prompt"),
    ("/v1/completions", {"prompt": [-1]}, "prompt"),
    ("/v1/completions", {"prompt": [1, "a"]}, "prompt"),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
    ("/v1/completions", {"prompt": "a", "best_of": 1, "n": 2}, "best_of"),
    ("/v1/completions", {"prompt": ["a"] * 3000}, "prompt"),
    ("/v1/completions", {"prompt": ["a"] * 1100}, "prompt"),  # more than may ever wait
    ("/v1/embeddings", {"input": ""}, None),
    ("/v1/embeddings", {"input": "a", "dimensions": 2}, "dimensions"),
    ("/v1/responses", {"input": "a", "previous_response_id": "x"}, "previous_response_id"),
    ("/detokenize", {"tokens": [10**6]}, "tokens"),
    ("/tokenize", {}, "prompt"),
    ("/completion", {"prompt": "a", "logit_bias": [[1.5, 1]]}, "logit_bias"),
]


@pytest.mark.parametrize("path, body, param", WRONG)
def test_wrong_values(server, path, body, param):
    if path == "/v1/embeddings" and body["input"] == "":
        assert server.post(path, body).status_code == 200  # the tokenizer adds a first token
        return
    assert error_of(server.post(path, body), 400)["param"] == param


def test_other_refusals(server):
    error_of(server.client.post(CHAT, content=b"{}"), 415)
    error_of(server.client.get("/nowhere"), 404)
    error_of(server.client.get(CHAT), 405)
    error_of(server.chat("say x", model="other"), 404)
    error_of(server.client.get("/v1/models/other"), 404)
    large = b'{"messages": [{"role": "user", "content": "' + b"x" * (17 << 20) + b'"}]}'
    assert error_of(server.client.post(CHAT, content=large, headers={"content-type": "application/json"}), 413)

    def pieces():  # without a Content-Length
        for _ in range(18):
            yield b" " * (1 << 20)

    error_of(server.client.post(CHAT, content=pieces(), headers={"content-type": "application/json"}), 413)
    assert server.chat("say fine").json()["choices"][0]["message"]["content"].strip() == "fine"


def connect(server, body=b"", headers=b"", path=CHAT):
    """A raw connection that has sent a request."""
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    sock.sendall(head.encode() + headers + b"\r\n" + body)
    return sock


def ask(text, **options):
    return json.dumps({"messages": [{"role": "user", "content": text}]} | options).encode()


def test_disconnects_end_their_requests_and_nobody_elses(server):
    """Clients that go at every stage, while another stream runs; nothing is left in the engine."""
    texts = []

    def listen():
        with server.client.stream("POST", CHAT, content=ask("slow 10 " + "one two three " * 8, stream=True),
                                  headers={"content-type": "application/json"}) as reply:  # fmt: skip
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    texts.append(json.loads(line[6:])["choices"][0]["delta"].get("content", ""))

    listener = threading.Thread(target=listen)
    listener.start()
    for stage in range(4):
        for stream in (False, True):
            sock = connect(server, ask("slow 10 " + "x " * 500, stream=stream))
            if stage == 1:
                time.sleep(0.05)
            if stage == 2 and stream:
                assert b"data:" in sock.recv(10000) + sock.recv(10000)
            if stage == 3:
                sock.shutdown(socket.SHUT_WR)
                time.sleep(0.02)
            sock.close()
    half = socket.create_connection(("127.0.0.1", server.port))
    half.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Le")
    half.close()
    server.until(lambda: server.model.engine.open_answers <= 1, seconds=2)  # each would take 5 s
    listener.join(20)
    assert "".join(texts).split() == "one two three ".split() * 8
    server.until(lambda: server.model.engine.open_answers == 0)
    assert server.chat("say fine").status_code == 200
    server.until(lambda: server.model.engine.stats.num_requests_running == 0)


def test_a_client_that_reads_slowly(server):
    with connect(server, ask("say " + "one two three " * 60, stream=True)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        assert server.chat("say fine").status_code == 200
        time.sleep(0.1)
        data = b""
        while b"[DONE]" not in data:
            data += sock.recv(500)
    lines = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
    assert (
        "".join(line["choices"][0]["delta"].get("content", "") for line in lines).split()
        == "one two three".split() * 60
    )


def test_a_body_that_does_not_come(serving):
    server = serving(body_seconds=0.2)
    sock = connect(server, headers=b"X-Pad: 1\r\n")  # declares none
    sock.close()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(
            b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        assert b" 408 " in sock.recv(1000)
    server.stop()


def test_a_thousand_connections(server):
    """All are open at once; each gets its answer."""
    socks = [connect(server) for _ in range(500)] + [
        socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(500)
    ]
    try:
        assert server.client.get("/health").status_code == 200
        assert server.chat("say fine").status_code == 200
        for sock in socks[:500]:
            assert sock.recv(100).startswith(b"HTTP/1.1 400")
    finally:
        for sock in socks:
            sock.close()
