"""From the start of a program to the first piece of its answer: `infinicore generate`, and llama.cpp's server.

Both read the same file and the same text. The server is asked until it answers, and warms nothing up before.
"""

import http.client
import json
import os
import signal
import subprocess
import time

from ..process import die_with_parent, python
from .sides import free_port, llama_command

_TEXT = "The quick brown fox jumps over the lazy dog and runs on, "
_PATIENCE_S = 120.0


class Start:
    """A prompt of `options["prompt"]` characters in a new process of a side."""

    def __init__(self, side, path, options):
        length = options["prompt"]
        self._prompt = (_TEXT * (length // len(_TEXT) + 1))[:length]
        self._path, self._options = path, options
        self._run = self._generate if side == "ours" else self._serve
        self.measure(1)  # kernels are compiled, and the file is in memory

    def measure(self, repetitions):
        """Seconds."""
        return self._run()

    def result(self):
        """None: random weights have nothing to say."""
        return None

    def _generate(self):
        given = ["generate", "--model", self._path, "--prompt", self._prompt, "--max-new-tokens", "1"]
        given += ["--temperature", "0", "--threads", os.environ["OMP_NUM_THREADS"], "--no-stats"]
        code = f"import sys; from infinicore.cli import main; sys.exit(main({given!r}))"
        began = time.perf_counter()
        with subprocess.Popen(
            python(code, find_ours=True), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=die_with_parent,
        ) as process:  # fmt: skip
            first = process.stdout.read(1)
            seconds = time.perf_counter() - began
            errors = process.communicate()[1]
        if not first or process.returncode:
            raise RuntimeError(f"it ended with status {process.returncode}: {errors.decode(errors='replace')[-200:]}")
        return seconds

    def _serve(self):
        port = free_port()
        body = json.dumps({"prompt": self._prompt, "n_predict": 1, "temperature": 0})
        began = time.perf_counter()
        process = subprocess.Popen(
            [*llama_command(self._path, port, self._options), "--no-warmup"], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent,
        )  # fmt: skip
        try:
            while not self._answered(port, body):
                if process.poll() is not None or time.perf_counter() - began > _PATIENCE_S:
                    raise RuntimeError(f"it did not answer (status {process.returncode})")
                time.sleep(0.001)
            return time.perf_counter() - began
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    @staticmethod
    def _answered(port, body):
        """Whether the server has answered; it refuses connections at first, then says that it loads the model."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
        try:
            connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status == 200 and bool(answer.read())
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
