"""The servers of a comparison: ours and llama.cpp's own, each in a process, with as many slots and threads.

`INFINICORE_LLAMA_SERVER` names llama.cpp's program `llama-server`; without it, the one on the path is taken.
"""

import asyncio
import atexit
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from ... import config
from .. import checkpoint, generation
from ..cases import Skip
from ..model_cases import MODELS
from ..process import die_with_parent, python
from . import client, datasets, report
from .http import HTTPError, Server

_START_S = 600.0
_WARM_STEPS = 16  # tokens of each answer of the run before those that count


def llama_server():
    """The path of llama.cpp's server, or None."""
    return config.get("INFINICORE_LLAMA_SERVER") or shutil.which("llama-server")


def files(case, have, folder):
    """({side: path of the GGUF file}, notes): one file with a vocabulary, of the checkpoint's dtype or quantised.

    Made in `folder` before anything is measured. Raises Skip where it cannot be made here.
    """
    name, kind = case.options["model"], case.options["gguf"]
    plain, path = Path(folder, f"{name}-serving.gguf"), Path(folder, f"{name}-serving-{kind}.gguf")
    if not plain.exists():
        checkpoint.write_gguf(generation.find_checkpoint(name, folder), plain, with_vocabulary=True)
    if kind is None:
        path = plain
    elif not path.exists():
        _quantize(plain, path, kind)
    return dict.fromkeys(("ours", *have), str(path)), []


def _quantize(source, target, kind):
    """Write a GGUF file with every matrix of the type `kind`, by the program that comes with llama.cpp's server."""
    program = Path(llama_server() or "").with_name("llama-quantize")
    if not program.exists():
        raise Skip(f"there is no llama-quantize beside llama-server, which would make the {kind} file")
    partial = f"{target}.partial"
    done = subprocess.run([program, "--pure", source, partial, kind], capture_output=True, text=True)
    if done.returncode:
        raise Skip(f"llama-quantize ended with status {done.returncode}: {done.stderr.strip()[-200:]}")
    os.replace(partial, target)


def free_port():
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def llama_command(path, port, options):
    """How llama.cpp's server is started: one slot for each user, room for each whole text."""
    users, room, threads = options["users"], options["room"], os.environ["OMP_NUM_THREADS"]
    flags = ["-m", path, "--port", port, "-t", threads, "-tb", threads, "-np", users, "-c", users * room]
    return [llama_server(), *map(str, flags), "--host", "127.0.0.1"]


def _command(side, path, port, options):
    """How a side is started."""
    users, room, threads = options["users"], options["room"], os.environ["OMP_NUM_THREADS"]
    if side == "ours":
        given = ["serve", "--model", path, "--port", port, "--threads", threads, "--max-num-seqs", users]
        arguments = [str(one) for one in (*given, "--max-model-len", room)]
        return python(f"import sys; from infinicore.cli import main; sys.exit(main({arguments!r}))", find_ours=True)
    return llama_command(path, port, options)


class _Process:
    """A running server."""

    def __init__(self, side, path, options):
        port = free_port()
        self.url, self._log = f"http://127.0.0.1:{port}", tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        self._process = subprocess.Popen(
            _command(side, path, port, options), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            preexec_fn=die_with_parent,
        )  # fmt: skip
        atexit.register(self.close)
        self._wait()

    def _wait(self):
        """Until the server has its model."""
        end = time.perf_counter() + _START_S
        while time.perf_counter() < end:
            if self._process.poll() is not None:
                self._log.seek(0)
                last = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
                raise RuntimeError(": ".join([f"it ended with status {self._process.returncode}", *last]))
            try:
                asyncio.run(self._healthy())
                return
            except (HTTPError, OSError, ValueError):
                time.sleep(0.1)
        self.close()
        raise RuntimeError(f"it was not ready after {_START_S:.0f} s")

    async def _healthy(self):
        await Server(self.url).json("GET", "/health")

    def close(self):
        """End the server."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
        atexit.unregister(self.close)


class Serve:
    """One load on a server. A measurement is the next run of the load, with other prompts each time; the cases of one
    load are figures of the same runs, which `runs` keeps.
    """

    def __init__(self, server, runs, options):
        self._server, self._runs, self._options, self._next = server, runs, options, 0
        if not runs:  # a run that does not count: kernels are loaded, graphs recorded
            self._run(seed=1000, steps=min(_WARM_STEPS, options["steps"]))

    def _run(self, seed, steps):
        options, url = self._options, self._server.url
        prompts = datasets.random_prompts(
            datasets.Vocabulary(size=MODELS[options["model"]].vocabulary),
            options["users"],
            input_len=options["prompt"],
            output_len=steps,
            prefix_len=options["prefix"],
            seed=seed,
        )

        async def measure():
            server = Server(url)
            load = client.Load(model=await client.first_model(server), ignore_eos=True, body={"seed": seed})
            try:
                return await client.run(server, load, prompts)
            finally:
                server.close()

        answers, duration = asyncio.run(measure())
        wrong = next((a.error for a in answers if a.error), None)
        if wrong is None and any(a.output_tokens != steps for a in answers):
            wrong = f"an answer has other than {steps} tokens"
        if wrong is not None:
            raise RuntimeError(wrong)
        return report.summarize(answers, duration)

    def measure(self, repetitions):
        """Seconds: of the whole run for the throughput, else of the figure."""
        if self._next == len(self._runs):
            self._runs.append(self._run(seed=self._next, steps=self._options["steps"]))
        run, figure = self._runs[self._next], self._options["figure"]
        self._next += 1
        return run["duration"] if figure == "output_throughput" else run[figure] / 1000

    def result(self):
        """None: answers of random weights are not compared."""
        return None


_running: dict = {}  # (path, load) -> (server, its runs): the one that this process has started


def prepare(side, case, path):
    """The case, ready to be measured on `side` with the GGUF file at `path`."""
    if case.op == "start":
        from .starts import Start

        return Start(side, path, case.options)
    key = (path, case.options["load"])
    if key not in _running:
        for server, _ in _running.values():
            server.close()
        _running.clear()
        _running[key] = _Process(side, path, case.options), []
    return Serve(*_running[key], case.options)
