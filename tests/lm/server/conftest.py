"""Servers for the tests of this folder: one over the fake engine, started once."""

import importlib.util
import sys
from pathlib import Path

import pytest

if not all(map(importlib.util.find_spec, ("fastapi", "uvicorn", "httpx", "prometheus_client"))):
    collect_ignore_glob = ["*.py"]  # they come with the extras serve and test

sys.path.insert(0, str(Path(__file__).parent))  # the engine's process finds the fake engine by its name

# The last user message decides what the fake engine says; tools and thoughts as Qwen's template has them.
TEMPLATE = """{%- if tools %}<tool_call> {{ tools | length }} tools\n{% endif -%}
{%- for m in messages %}{% if m.content == "raise" %}{{ raise_exception("no such message") }}{% endif %}
{%- if m.content == "loop" %}{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}{% endif %}
{{- "|" }}{{ m.content }}{% endfor %}{% if 0 %}</think>{% endif %}"""


@pytest.fixture(scope="session")
def serving(stories):
    """Makes servers over the fake engine: options of `fake_engine.make`, of `EngineClient` and of the application."""
    import fake_engine
    from running import Running

    from infinicore.lm.server.client import EngineClient
    from infinicore.lm.server.model import ServedModel

    running = []

    def make(engine=None, max_queue=1000, names=("tiny",), path=stories, **options):
        def served(name):
            client = EngineClient(fake_engine.make, {"path": str(path)} | (engine or {}), max_queue=max_queue)
            return ServedModel(name, path, client, template=TEMPLATE)

        running.append(Running(*map(served, names), **options))
        return running[-1]

    yield make
    for server in running:
        if server.thread.is_alive():
            server.stop()


@pytest.fixture(scope="session")
def server(serving):
    return serving()
