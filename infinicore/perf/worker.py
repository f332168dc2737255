"""One side of a comparison, in a process of its own (started by `process.Worker`).

Two OpenMP runtimes that spin in one process spoil both measurements, so each library gets a process
that stays alive and takes its turns. Commands come as JSON lines on stdin, one answer line each:

    {"do": "prepare", "slot": ..., "case": {...}}     {"ok": true}
    {"do": "limit", "slot": ..., "kind": ..., ...}    {"ok": true, "amount": per call}
    {"do": "measure", "slot": ..., "repetitions": n}  {"value": seconds (or bytes) of one call}
    {"do": "result", "slot": ..., "path": file}       {"ok": true}: the result is saved as .npy
    {"do": "release"}                                 {"ok": true}: prepared cases are dropped

A case that cannot be run here is answered by {"skip": reason}, an exception by {"error": its text}.
End of input ends the process.
"""

import gc
import itertools
import json
import os
import sys
from pathlib import Path

import numpy as np

from . import limits, peers, suites
from .cases import Skip
from .process import die_with_parent

_RESULT_SIZE = 1 << 16  # values of a result that are compared
_ERROR_LENGTH = 300


def _prepare(side, slots, message):
    (case,) = (
        c
        for c in suites.cases(quick=message["quick"], suites=[message["suite"]], dtypes=[message["dtype"]])
        if c.name == message["name"]
    )
    if case.op in suites.MODEL_OPS:
        from . import generation

        slots[message["slot"]] = generation.prepare(side, case, message["path"])
    elif case.op in suites.SERVE_OPS:
        from .serving import sides

        slots[message["slot"]] = sides.prepare(side, case, message["path"])
    elif case.op in suites.TRAIN_OPS:
        from . import training

        slots[message["slot"]] = training.prepare(side, case)
    else:
        slots[message["slot"]] = peers.prepare(side, case)
    return {"ok": True}


def _limit(side, slots, message):
    limit = slots[message["slot"]] = limits.prepare(message["kind"], message["dtype"], message["nbytes"])
    return {"ok": True, "amount": limit.amount}


def _measure(side, slots, message):
    return {"value": slots[message["slot"]].measure(message["repetitions"])}


def _result(side, slots, message):
    result = slots[message["slot"]].result()
    if result is None:
        return {"skip": "no result"}
    flat = np.ravel(np.asarray(result, np.float64))
    np.save(message["path"], flat[:: max(1, flat.size // _RESULT_SIZE)])
    return {"ok": True}


def _release(side, slots, message):
    slots.clear()
    gc.collect()
    return {"ok": True}


_COMMANDS = {"prepare": _prepare, "limit": _limit, "measure": _measure, "result": _result, "release": _release}


def serve(side, lines, answer):
    """Answer each command of `lines` by `answer(reply)`."""
    slots = {}
    for line in lines:
        message = json.loads(line)
        try:
            reply = _COMMANDS[message["do"]](side, slots, message)
        except Skip as reason:
            reply = {"skip": str(reason)}
        except Exception as error:  # whatever a library raises is that side's answer
            text = " ".join(str(error).split())  # one line, which becomes a note of the row
            reply = {"error": f"{type(error).__name__}: {text}"[:_ERROR_LENGTH]}
        answer(reply)


def bind_threads():
    """This thread and each worker of our pool on a CPU of its own, as `OMP_PROC_BIND` does for OpenMP's threads."""
    from ..kernels.cpu import threads

    tasks, cpus = Path("/proc/self/task"), sorted(os.sched_getaffinity(0))
    count, others = threads.limit(), set(os.listdir(tasks))  # the limit first: it asks for the CPUs of this thread
    threads.set_team(min(count, int(os.environ["INFINICORE_NUM_THREADS"])))
    workers = sorted(set(os.listdir(tasks)) - others, key=int)
    for task, cpu in zip([0, *workers], itertools.cycle(cpus)):
        os.sched_setaffinity(int(task), {cpu})


def main(side):
    """Serve stdin; answers go to the original stdout, prints of libraries to stderr."""
    die_with_parent()
    if side == "ours" and "OMP_PROC_BIND" in os.environ and sys.platform == "linux":
        bind_threads()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(reply):
        out.write(json.dumps(reply) + "\n")
        out.flush()

    serve(side, sys.stdin, answer)
