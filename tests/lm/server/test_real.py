"""The server over a real engine and a real model."""

import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from running import Running

httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")
pytest.importorskip("llguidance")

import infinicore as ic
from infinicore.lm import LLM, AsyncEngine, BeamSearchParams
from infinicore.lm.server.model import ServedModel
from infinicore.models import from_pretrained
from infinicore.train import lora

TEMPLATE = "{{ bos_token }}{{ (tools or '') | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
SCHEMA = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "blue"]}, "n": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["color", "n"],
    "additionalProperties": False,
}
START = "Once upon a time, there was a little girl"


@pytest.fixture(scope="module")
def real(stories):
    engine = AsyncEngine(stories, max_num_seqs=8, kv_cache_memory=8 << 20)
    server = Running(ServedModel("stories", stories, engine, template=TEMPLATE))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(real):
    return openai.OpenAI(base_url=real.url + "/v1", api_key="none", max_retries=0, timeout=120)


def complete(client, **options):
    given = {"model": "stories", "prompt": START, "max_tokens": 30, "temperature": 0}
    return client.completions.create(**given | options)


def test_greedy_text_is_the_library_s(client, stories):
    wanted = from_pretrained(stories).generate(START, temperature=0, max_new_tokens=30).finish()[0].text
    assert complete(client).choices[0].text == wanted
    assert "".join(chunk.choices[0].text for chunk in complete(client, stream=True)) == wanted


def test_seeded_text_does_not_depend_on_neighbours(client):
    options = dict(temperature=1.0, seed=7)
    alone = complete(client, **options).choices[0].text
    texts = {}

    def other(i):
        texts[i] = complete(client, temperature=1.0, seed=i).choices[0].text

    others = [threading.Thread(target=other, args=(i,)) for i in range(6)]
    for thread in others:
        thread.start()
    assert complete(client, **options).choices[0].text == alone
    for thread in others:
        thread.join()
    assert len(set(texts.values())) > 3


def test_log_probabilities_spell_the_text(client):
    whole = complete(client, logprobs=1, echo=True, max_tokens=6).choices[0]
    tokens, first = whole.logprobs.tokens, whole.logprobs.text_offset
    assert "".join(tokens[1:]).strip() == whole.text and tokens[0] == "<s>"
    assert [b - a for a, b in pairwise(first)] == [len(token) for token in tokens[:-1]]
    chunks = list(complete(client, logprobs=1, echo=True, max_tokens=6, stream=True))
    parts = [chunk.choices[0] for chunk in chunks]
    assert "".join(part.text for part in parts) == whole.text
    told = [value for part in parts if part.logprobs for value in part.logprobs.token_logprobs]
    assert told[0] is None and told[1:] == pytest.approx(whole.logprobs.token_logprobs[1:], abs=1e-4)
    assert [offset for part in parts if part.logprobs for offset in part.logprobs.text_offset] == first


def test_only_allowed_tokens(client, real):
    ids = real.post("/tokenize", {"content": " a the"}).json()["tokens"]
    extra = {"allowed_token_ids": ids, "return_token_ids": True}
    choice = complete(client, max_tokens=8, temperature=1.0, seed=1, extra_body=extra).choices[0]
    assert len(choice.token_ids) == 8 and set(choice.token_ids) <= set(ids)
    for wrong, words in (([], "at least 1 item"), ([512], "vocabulary has 512"), ([-1], "integers of at least 0")):
        with pytest.raises(openai.BadRequestError, match=words):
            complete(client, extra_body={"allowed_token_ids": wrong})
    with pytest.raises(
        openai.InternalServerError, match="no token may follow"
    ):  # allowed, and forbidden before the end
        complete(client, extra_body={"allowed_token_ids": [2], "min_tokens": 2})


def test_llama_cpp_s_response_format(real):
    schema = {"type": "json_object", "schema": {"enum": [7, 8]}}
    reply = real.chat("a number", response_format=schema)
    assert json.loads(reply.json()["choices"][0]["message"]["content"]) in (7, 8)
    both = {"type": "json_schema", "schema": {}, "json_schema": {"name": "a", "schema": {}}}
    assert real.chat("a number", response_format=both).json()["error"]["param"] == "response_format"


def test_structured_output_and_tools(client, real):
    messages = [{"role": "user", "content": START}]
    blanks = {str(i): -100 for i in range(512) if not real.model.token_text(i).strip()}  # it would write many
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    options = dict(model="stories", messages=messages, max_tokens=250, seed=1, logit_bias=blanks)
    reply = client.chat.completions.create(**options, response_format=form)
    value = json.loads(reply.choices[0].message.content)
    assert value["color"] in ("red", "blue") and 1 <= value["n"] <= 9
    reply = client.chat.completions.create(**options, extra_body={"guided_choice": ["yes", "no"]})
    assert reply.choices[0].message.content in ("yes", "no")
    tool = {"type": "function", "function": {"name": "pick", "parameters": SCHEMA}}
    reply = client.chat.completions.create(**options, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.name == "pick" and json.loads(call.function.arguments).keys() == {"color", "n"}
    with pytest.raises(openai.BadRequestError, match="json_schema"):
        client.chat.completions.create(**options, extra_body={"guided_json": {"type": "nothing"}})


def test_logprobs_and_echo(client):
    rows = complete(client, logprobs=3, max_tokens=5).choices[0].logprobs
    assert len(rows.tokens) == 5 and all(len(best) >= 3 for best in rows.top_logprobs)
    assert all(max(best.values()) == value for best, value in zip(rows.top_logprobs, rows.token_logprobs))  # greedy
    rows = complete(client, logprobs=0, echo=True, max_tokens=0).choices[0].logprobs
    assert rows.token_logprobs[0] is None and all(value < 0 for value in rows.token_logprobs[1:])


def test_embeddings_and_overflow(client):
    first, second = (row.embedding for row in client.embeddings.create(model="stories", input=[START, "Tom"]).data)
    assert len(first) == 64 and abs(sum(x * x for x in first) - 1) < 1e-3 and first != second
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, max_tokens=600)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        complete(client, prompt=[511, 512])


def test_adapters_are_models_of_their_own(stories, tmp_path):
    """Requests for a model and two adapters at once: each gets the text of the model with its adapter merged."""
    folders, wanted = {}, {"stories": from_pretrained(stories)}
    for name in ("red", "blue"):
        model = lora.inject(from_pretrained(stories), 2, 4, ["q_proj", "v_proj", "down_proj"])
        with ic.no_grad():
            for layer in lora.layers(model).values():
                layer.lora_B.weight.copy_(ic.randn(*layer.lora_B.weight.shape) * 0.1)
        folders[name] = str(lora.save(model, tmp_path / name))
        wanted[name] = lora.merge_and_unload(model)
    engine = AsyncEngine(stories, max_num_seqs=8, kv_cache_memory=8 << 20, adapters=folders)
    served, found = ServedModel("stories", stories, engine, template=TEMPLATE), {}
    server = Running(served, adapters=[served.with_adapter(*item) for item in folders.items()])
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)
    rows = {row.id: row for row in client.models.list()}
    assert (
        list(rows) == ["stories", "red", "blue"] and rows["red"].parent == "stories" and rows["stories"].parent is None
    )
    assert client.models.retrieve("blue").root == folders["blue"]

    def ask(name):
        found[name] = complete(client, model=name)

    threads = [threading.Thread(target=ask, args=(name,)) for name in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, model in wanted.items():
        assert found[name].model == name
        assert found[name].choices[0].text == model.generate(START, temperature=0, max_new_tokens=30).finish()[0].text
    assert len({reply.choices[0].text for reply in found.values()}) == 3
    embeddings = [client.embeddings.create(model=name, input=START).data[0].embedding for name in wanted]
    assert embeddings[0] != embeddings[1] != embeddings[2]
    server.stop()


def test_disconnects_leave_nothing(real):
    body = {"prompt": START, "max_tokens": 480, "n": 8, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        real.post("/v1/completions", body, timeout=0.03)
    with real.client.stream("POST", "/v1/completions", json=body | {"stream": True}) as reply:
        next(reply.iter_lines())
    real.until(lambda: real.model.engine.open_answers == 0)
    assert real.post("/v1/completions", {"prompt": START, "max_tokens": 2}).status_code == 200
    real.until(lambda: real.model.engine.stats.num_blocks_used == 0)


def test_clients_that_go_at_any_moment_leave_nothing(real):
    """Hundreds of raw connections, closed after some milliseconds or some bytes, or not at all."""
    rng = random.Random(4)

    def visit(seed):
        draw = random.Random(seed)
        body = {"prompt": START * draw.choice([1, 1, 12]), "max_tokens": draw.choice([1, 20, 100])}
        body = json.dumps(body | {"stream": draw.random() < 0.7, "ignore_eos": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        data = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        with socket.create_connection(("127.0.0.1", real.port), timeout=60) as sock:
            whole, stage = draw.random() < 0.85, draw.random()
            sock.sendall(data if whole else data[: len(data) // 2])
            if stage < 0.4 or not whole:
                time.sleep(draw.random() * 0.02)
            elif stage < 0.8:
                sock.recv(draw.choice([10, 1000]))
            else:
                sock.shutdown(socket.SHUT_WR)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(visit, rng.sample(range(10**6), 300)))
    real.until(lambda: real.model.engine.open_answers == 0)
    assert real.post("/v1/completions", {"prompt": START, "max_tokens": 2}).status_code == 200
    real.until(lambda: real.model.engine.stats.num_blocks_used == 0)
    stats = real.model.engine.stats
    assert stats.num_requests_running == stats.num_requests_waiting == 0 and stats.requests_finished["abort"] > 20
    assert real.model.engine.restarts == 0 and not real.model.engine._requests


def test_memory_is_weights_cache_and_little_more(root):
    """Both processes of a server that is being asked, by what they hold; the cache is filled."""
    cache, weights = 96 << 20, (root / "infinicore/models/embedded/model.safetensors").stat().st_size
    words = ["serve", "--port", "0", "--max-num-seqs", "16", "--kv-cache-memory", str(cache)]
    process = subprocess.Popen(
        [sys.executable, "-m", "infinicore", *words], stdout=subprocess.PIPE, cwd=root, text=True
    )
    try:
        url = process.stdout.readline().split()[-1]
        with httpx.Client(base_url=url, trust_env=False, timeout=120) as client:
            Running.until(lambda: client.get("/health").status_code == 200)
            prompts = [[17 * i + j for j in range(400)] for i in range(64)]
            body = {"prompt": prompts, "max_tokens": 8, "ignore_eos": True}
            assert client.post("/v1/completions", json=body).status_code == 200
        (engine,) = (p for p in os.listdir("/proc") if p.isdigit() and parent_of(p) == process.pid)
        held = resident(process.pid) + resident(engine)
        assert held <= weights + cache + (400 << 20), held >> 20
    finally:
        process.terminate()
        process.wait(30)


def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


def resident(pid):
    """Bytes of memory that a process holds; pages that it shares count for it, too."""
    with open(f"/proc/{pid}/status") as file:
        (line,) = (line for line in file if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


def test_a_killed_engine_comes_back(real):
    real.until(lambda: real.model.engine.state == "ready")
    os.kill(real.model.engine.pid, signal.SIGKILL)
    real.until(lambda: real.model.engine.restarts == 1)
    real.until(lambda: real.client.get("/health").status_code == 200)
    assert real.post("/v1/completions", {"prompt": START, "max_tokens": 2}).status_code == 200


def test_readme_s_lines(root):
    """`infinicore serve` and the request as README has them, from the first line to SIGTERM."""
    (block,) = re.findall(r"```sh\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    serve, curl = (shlex.split(line.partition(" #")[0]) for line in block.strip().splitlines())
    assert serve[:2] == ["infinicore", "serve"] and curl[0] == "curl" and (curl[2], curl[4]) == ("-H", "-d")
    words = [sys.executable, "-m", *serve, "--port", "0", "--max-num-seqs", "4", "--kv-cache-memory", "4M"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=root, text=True)
    try:
        place = re.fullmatch(r"Serving embedded on (http://127.0.0.1:\d+)\n", process.stdout.readline())[1]
        with httpx.Client(trust_env=False, timeout=120) as client:
            for _ in range(200):
                try:
                    if client.get(f"{place}/health").status_code == 200:
                        break
                except httpx.ConnectError:
                    pass
                time.sleep(0.1)
            path = curl[1].removeprefix("http://127.0.0.1:8000")
            reply = client.post(place + path, content=curl[5], headers=[curl[3].split(": ")])
        assert reply.json()["usage"]["completion_tokens"] == 40, reply.text
        process.terminate()
        assert process.wait(20) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()


def test_beams_are_the_library_s(client, real, stories):
    wanted = LLM(stories).beam_search(["Once upon", "The dog"], BeamSearchParams(3, 8, length_penalty=0.5))
    beams = {"use_beam_search": True, "length_penalty": 0.5}
    reply = complete(client, prompt=["Once upon", "The dog"], n=3, max_tokens=8, logprobs=2, extra_body=beams)
    texts = [one.text for output in wanted for one in output.sequences]
    assert [choice.index for choice in reply.choices] == list(range(6)) and reply.usage.completion_tokens == 6 * 8
    assert all(text.endswith(choice.text) and choice.text for text, choice in zip(texts, reply.choices))
    totals = [one.cum_logprob for output in wanted for one in output.sequences]
    assert [sum(choice.logprobs.token_logprobs) for choice in reply.choices] == pytest.approx(totals, abs=1e-4)
    messages = [{"role": "user", "content": "Once upon"}]
    chat = client.chat.completions.create(model="stories", messages=messages, n=3, max_tokens=8, extra_body=beams)
    ids = real.post("/tokenize", {"messages": messages}).json()["tokens"]
    same = complete(client, prompt=ids, n=3, max_tokens=8, extra_body=beams)
    assert [choice.message.content for choice in chat.choices] == [choice.text for choice in same.choices]
    for other, param in (
        ({"stream": True}, "stream"),
        ({"top_p": 0.5}, "top_p"),
        ({"best_of": 3}, "best_of"),
        ({"guided_regex": "a"}, "use_beam_search"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"n": 3, "max_tokens": 2000}, "prompt"),
        ({"use_beam_search": False}, "length_penalty"),
    ):
        refused = real.post("/v1/completions", {"prompt": "a", **beams, **other})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
    with pytest.raises(httpx.ReadTimeout):  # who leaves ends the search
        real.post("/v1/completions", {"prompt": "Once", "n": 8, "max_tokens": 400, **beams}, timeout=0.3)
    real.until(lambda: real.model.engine.open_answers == 0)
