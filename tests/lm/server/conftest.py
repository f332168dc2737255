"""Servers for the tests of this folder: one over the fake engine, started once."""

import asyncio
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

sys.path.insert(0, str(Path(__file__).parent))  # the engine's process finds the fake engine by its name

import fake_engine

from infinicore.lm.server import serve
from infinicore.lm.server.app import create_app
from infinicore.lm.server.client import EngineClient
from infinicore.lm.server.model import ServedModel

# The last user message decides what the fake engine says; tools and thoughts as Qwen's template has them.
TEMPLATE = """{%- if tools %}<tool_call> {{ tools | length }} tools\n{% endif -%}
{%- for m in messages %}{% if m.content == "raise" %}{{ raise_exception("no such message") }}{% endif %}
{%- if m.content == "loop" %}{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}{% endif %}
{{- "|" }}{{ m.content }}{% endfor %}{% if 0 %}</think>{% endif %}"""


class Running:
    """A server in a thread of this process, with its engine in a process of its own."""

    def __init__(self, model, wait=True, grace=10.0, **options):
        self.model = model
        sock = serve.listen("127.0.0.1", 0)
        self.port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

        def create(on_start):
            return create_app([model], on_start=on_start, **options)

        self.server = serve.make([model], create, grace=grace, log_level="error")
        self.thread = threading.Thread(target=self.server.run, args=([sock],), daemon=True)
        self.thread.start()
        self.client = httpx.Client(base_url=self.url, timeout=20, trust_env=False)
        self.until(lambda: self.server.started)
        if wait:
            self.until(lambda: model.engine.state == "ready")

    @staticmethod
    def until(true, seconds=20.0):
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end
            time.sleep(0.01)

    def post(self, path, body, **options):
        return self.client.post(path, json=body, **options)

    def chat(self, text, **options):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]} | options)

    def stop(self):
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.client.close()


@pytest.fixture(scope="session")
def serving(stories):
    """Makes servers over the fake engine: options of `fake_engine.make`, of `EngineClient` and of the application."""
    running = []

    def make(engine=None, max_queue=1000, model=None, **options):
        engine = EngineClient(fake_engine.make, {"path": str(stories)} | (engine or {}), max_queue=max_queue)
        served = ServedModel("tiny", stories, engine, **{"template": TEMPLATE} | (model or {}))
        running.append(Running(served, **options))
        return running[-1]

    yield make
    for server in running:
        if server.thread.is_alive():
            server.stop()


@pytest.fixture(scope="session")
def server(serving):
    return serving()


@pytest.fixture
def run():
    """Runs a coroutine."""
    return asyncio.run
