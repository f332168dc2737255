"""A server in a thread, for the tests of this folder."""

import threading
import time

import httpx

from infinicore.lm.server import serve
from infinicore.lm.server.app import create_app


class Running:
    """A server in a thread of this process, with its engine in a process of its own."""

    def __init__(self, *models, wait=True, grace=10.0, tls=None, **options):
        self.model = models[0]
        sock = serve.listen("127.0.0.1", 0)
        self.port = sock.getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"

        def create(on_start):
            return create_app(models, on_start=on_start, **options)

        self.server = serve.make(models, create, grace=grace, log_level="error", **tls or {})
        self.thread = threading.Thread(target=self.server.run, args=([sock],), daemon=True)
        self.thread.start()
        self.client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self.until(lambda: self.server.started)
        if wait:
            self.until(lambda: all(model.engine.state == "ready" for model in models))

    @staticmethod
    def until(true, seconds=60.0):
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
