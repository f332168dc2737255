"""The processes of a comparison: how they start, and the pipe to a worker."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "INFINICORE_NUM_THREADS",
)


BOUND = "bound"  # the group of cases whose threads are bound to CPUs
_ROOT = str(Path(__file__).resolve().parents[2])
_CHECKOUT = Path(_ROOT, "setup.py").exists()  # one that may not be installed
_FIND = f"import sys; sys.path.insert(0, {_ROOT!r}); " if _CHECKOUT else ""
_FORGET = (
    f"import os, sys; sys.path[:] = [p for p in sys.path if os.path.realpath(p) != {_ROOT!r}]; " if _CHECKOUT else ""
)


def python(code, find_ours=False):
    """The command that runs `code` in a new interpreter, without the current folder on its path.

    `find_ours`: this very `infinicore` can be imported, installed or not; otherwise its checkout is not on the path
    (transformers looks for a package called `kernels`, and would find our folder of that name).
    """
    return [sys.executable, "-P", "-c", (_FIND if find_ours else _FORGET) + code]


def python_with_ours(code):
    """The same with `infinicore` imported, and its checkout not on the path."""
    return python(f"import infinicore; {_FORGET}{code}", find_ours=True)


def die_with_parent():
    """On Linux: end when the parent does, even while stopped by `Worker.pause`."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Worker:
    """The process of one side, and the pipe to it."""

    def __init__(self, side, threads, bound=False):
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
        if bound:  # else the system may wake both threads of a short call on one CPU: 115 us of adding 1M, not 70
            environment["OMP_PROC_BIND"] = "true"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        self._process = subprocess.Popen(
            python_with_ours(f"from infinicore.perf import worker; worker.main({side!r})"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )

    def ask(self, do, **message):
        """The answer to a command; a process that died answers {"error": why}."""
        self._signal("SIGCONT")
        try:
            self._process.stdin.write(json.dumps({"do": do, **message}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        status = self._process.wait()
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
        return {"error": ": ".join([f"its process ended with status {status}", *last])}

    @property
    def alive(self):
        return self._process.poll() is None

    def pause(self):
        """Stop the process until the next command.

        OpenBLAS's threads spin for 100 ms after a call (measured), OpenMP's for some: a side that is not
        in turn must not use the CPUs of the one that is.
        """
        self._signal("SIGSTOP")

    def _signal(self, name):
        if hasattr(signal, name) and self.alive:
            self._process.send_signal(getattr(signal, name))

    def close(self):
        """End the process."""
        self._signal("SIGCONT")
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()


class Workers:
    """The processes of a run: one per side, group of cases and number of threads, started when first asked for."""

    def __init__(self):
        self._group, self._workers = None, {}

    def get(self, side, group, threads):
        """The worker of `side`; a new group, or number of threads, ends the processes of the one before."""
        if (group, threads) != self._group:
            self.close()
            self._group = group, threads
        worker = self._workers.get(side)
        if worker is None or not worker.alive:
            worker = self._workers[side] = Worker(side, threads, group == BOUND)
        return worker

    def close(self):
        """End all processes."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
