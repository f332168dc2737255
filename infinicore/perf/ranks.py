"""The cases of the suite `distributed`, and what starts their ranks: one job of MPI for a case, with all sides in it.

Collectives need all sides on all ranks, so the sides take turns within one job (`rank_worker.py`), while the other ones
do nothing.
"""

import itertools
import json
import os
import subprocess
import tempfile
from pathlib import Path

from .cases import Case, Skip
from .model_cases import LLAMA_8B, TINY, TINYLLAMA

RANK_OPS = ("all_reduce", "barrier", "ddp_step", "pipeline_step", "divided_decode", "checkpoint")
_SIZES = ((4, "4 KB"), (64, "64 KB"), (1024, "1 MB"), (65536, "64 MB"))
_SIDES = ("mpi4py", "gloo")
_TIMEOUT_S = 600


def _collectives(quick):
    """All-reduce of float32 on two ranks of one node, one thread each."""
    sizes = _SIZES[:2] if quick else _SIZES
    kinds = [("", "tensor"), (" in the window", "window"), (" recorded", "recorded")]
    for kib, size in sizes:
        for words, kind in kinds:
            yield Case(
                suite="distributed", name=f"all_reduce {size}{words}", op="all_reduce", dtype="float32", unit="us",
                options={"ranks": 2, "elements": 256 * kib, "kind": kind}, peers=_SIDES, compared=False, threads=1,
            )  # fmt: skip
    yield Case(
        suite="distributed", name="barrier", op="barrier", dtype="float32", unit="us", threads=1,
        options={"ranks": 2, "elements": 0, "kind": "tensor"}, peers=_SIDES, compared=False,
    )  # fmt: skip


def _steps(quick):
    """A step of data-parallel training of 2 sequences a rank, beside PyTorch's over gloo."""
    name = "tiny GPT-2" if quick else "GPT-2 124M"
    for ranks in (1, 2):
        yield Case(
            suite="distributed", name=f"data-parallel step, {name}, {ranks} x 1 thread", op="ddp_step", dtype="float32",
            unit="tokens/s", work=2.0 * (32 if quick else 128) * ranks, peers=("gloo",), compared=False, threads=1,
            options={"ranks": ranks, "tokens": 32 if quick else 128, "quick": quick}, repeat=False, rounds=3,
            base=None if ranks == 1 else (f"data-parallel step, {name}, 1 x 1 thread", "float32"),
        )  # fmt: skip


def _many_ranks(quick):
    """16 ranks of one thread, on machines that have twice as many CPUs."""
    ranks, name, tokens = (4, "tiny GPT-2", 32) if quick else (16, "GPT-2 124M", 128)
    common = dict(suite="distributed", dtype="float32", compared=False, threads=1)
    for kib, size in (_SIZES[1], _SIZES[3]):
        yield Case(
            name=f"all_reduce {size}, {ranks} ranks", op="all_reduce", unit="us", peers=("mpi4py",), **common,
            options={"ranks": ranks, "elements": 256 * kib, "kind": "tensor", "cpus": 2 * ranks},
        )  # fmt: skip
    yield Case(
        name=f"data-parallel step, {name}, {ranks} x 1 thread", op="ddp_step", unit="tokens/s", repeat=False, rounds=3,
        work=2.0 * tokens * ranks, peers=("gloo",), base=(f"data-parallel step, {name}, 1 x 1 thread", "float32"),
        options={"ranks": ranks, "tokens": tokens, "quick": quick, "cpus": 2 * ranks}, **common,
    )  # fmt: skip


def _decoding(quick):
    """Tokens of one text, from a model that two ranks divide, beside one process with as many threads."""
    model = TINY if quick else TINYLLAMA
    name = f"decode, {model.name}"
    options = {"model": model.name, "prompt": 32}
    for axis, ranks in (("", 1), ("tp", 2), ("pp", 2)):
        what = f"{name}, {axis} 2, 2 x 1 thread" if axis else f"{name}, 1 x 2 threads"
        yield Case(
            suite="distributed", name=what, op="divided_decode", dtype=model.dtype, unit="tokens/s", work=1.0,
            options=options | {"ranks": ranks, "axes": {axis: 2} if axis else {}}, compared=False, repeat=False,
            rounds=3, threads=2 // ranks, base=(f"{name}, 1 x 2 threads", model.dtype) if axis else None,
        )  # fmt: skip


def _pipelines(quick):
    """A step of 8 micro-batches through two stages, beside the same through one: at best 2 * 8 / 9 times as fast."""
    name = "a GPT-2 of 10M" if not quick else "tiny GPT-2"
    for ranks in (1, 2):
        yield Case(
            suite="distributed", name=f"pipeline of {ranks}, 8 micro-batches, {name}", op="pipeline_step",
            dtype="float32", unit="tokens/s", work=8.0 * (32 if quick else 128), compared=False, threads=1,
            options={"ranks": ranks, "tokens": 32 if quick else 128, "quick": quick}, peers=(), repeat=False, rounds=5,
            base=None if ranks == 1 else (f"pipeline of 1, 8 micro-batches, {name}", "float32"),
        )  # fmt: skip


def _checkpoints(quick):
    """Saving a GPT-2 with AdamW's states from two ranks, beside a loop that writes as many bytes, and `fsync`."""
    name, count = ("tiny GPT-2", 1e6) if quick else ("GPT-2 124M", 124e6)
    yield Case(
        suite="distributed", name=f"checkpoint, {name} with AdamW, 2 ranks", op="checkpoint", dtype="float32",
        unit="GB/s", work=12 * count, peers=("write",), compared=False, threads=1, repeat=False, rounds=3,
        options={"ranks": 2, "quick": quick},
    )  # fmt: skip


def _sums_on_gpus(quick):
    """All-reduces of bfloat16 on two GPUs of one host, beside NCCL's of nccl4py."""
    for kib, size in _SIZES[:1] if quick else (*_SIZES[:3], (262144, "256 MB")):
        common = dict(suite="distributed", op="all_reduce", dtype="bfloat16", unit="us", compared=False, threads=1)
        options = {"ranks": 2, "elements": 512 * kib, "device": "cuda"}
        name = f"all_reduce {size}, 2 GPUs"
        yield Case(name=name, peers=("nccl",), options=options | {"kind": "tensor"}, **common)
        if kib <= 1024:  # as many as a graph holds
            name = f"{name}, in a graph"
            yield Case(name=name, peers=("nccl",), options=options | {"kind": "recorded"}, **common)


def _steps_on_gpus(quick):
    """The same steps as on CPUs, in bfloat16 autocast, 16 sequences a GPU; passes by Python and replayed."""
    name, tokens, batch = ("tiny GPT-2", 8, 2) if quick else ("GPT-2 124M", 1024, 16)
    for recorded, ranks in itertools.product((False, True), (1, 2)):
        kind = f"data-parallel step{', recorded' if recorded else ''}, {name}"
        options = {"tokens": tokens, "batch": batch, "quick": quick, "device": "cuda", "recorded": recorded}
        yield Case(
            suite="distributed", name=f"{kind}, {_gpus(ranks)}", op="ddp_step", dtype="bfloat16",
            unit="tokens/s", work=float(batch * tokens * ranks), peers=(), compared=False, threads=1,
            options=options | {"ranks": ranks}, rounds=5, base=None if ranks == 1 else (f"{kind}, 1 GPU", "bfloat16"),
        )  # fmt: skip


def _decoding_on_gpus(quick):
    """Tokens of one text, from a model that two GPUs divide, beside one of them."""
    for model in (TINY,) if quick else (TINYLLAMA, LLAMA_8B):
        name = f"decode, {model.name}"
        for axis, ranks in (("", 1), ("tp", 2), ("pp", 2)):
            yield Case(
                suite="distributed", name=f"{name}, {axis} 2, 2 GPUs" if axis else f"{name}, 1 GPU",
                op="divided_decode", dtype=model.dtype, unit="tokens/s", compared=False, repeat=False, rounds=5,
                threads=1, base=(f"{name}, 1 GPU", model.dtype) if axis else None, peers=(),
                options={
                    "model": model.name, "prompt": 32, "ranks": ranks, "axes": {axis: 2} if axis else {},
                    "device": "cuda",
                },
            )  # fmt: skip


def _gpus(count):
    return "1 GPU" if count == 1 else f"{count} GPUs"


DISTRIBUTED = (
    _collectives, _steps, _many_ranks, _pipelines, _decoding, _checkpoints, _sums_on_gpus, _steps_on_gpus,
    _decoding_on_gpus,
)  # fmt: skip


def _check_machine(options):
    """Skip where there are too few CPUs, or each rank cannot have a GPU of its own."""
    from ..kernels.cpu.machine import available_cpus
    from ..kernels.cuda import driver

    if options.get("cpus", 1) > available_cpus():
        raise Skip(f"needs {options['cpus']} CPUs, and this machine has {available_cpus()}")
    found = driver.device_count()
    if options.get("device") == "cuda" and found < options["ranks"]:
        raise Skip(f"needs {_gpus(options['ranks'])}, and this machine has {found}")


def measure(case, sides, rounds, turn_s, folder):
    """({side: seconds of a call, each turn}, notes) of a case, by a job of MPI; checkpoints lie in `folder`."""
    from ..distributed import launch
    from .generation import find_checkpoint

    _check_machine(case.options)
    more = {}
    if "model" in case.options:
        more["path"] = find_checkpoint(case.options["model"], folder)
    with tempfile.TemporaryDirectory(prefix="infinicore-perf-") as folder:
        asked, answer = Path(folder, "asked.json"), Path(folder, "answer.json")
        asked.write_text(
            json.dumps(
                {
                    "op": case.op,
                    "dtype": case.dtype,
                    "sides": sides,
                    "rounds": rounds,
                    "turn_s": turn_s,
                    "folder": folder,
                }
                | case.options
                | more
            )
        )
        script = str(Path(__file__).with_name("rank_worker.py"))
        line, environment = launch.command(case.options["ranks"], None, script, [str(asked), str(answer)])
        environment |= dict.fromkeys(("INFINICORE_NUM_THREADS", "OMP_NUM_THREADS"), str(case.threads))
        root = str(Path(__file__).parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
        try:
            done = subprocess.run(
                line, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return {}, [f"ours failed: the job did not end within {_TIMEOUT_S} s"]
        if done.returncode or not answer.exists():
            last = " ".join(done.stderr.split())[-300:]
            return {}, [f"ours failed: status {done.returncode}: {last}"]
        return json.loads(answer.read_text()), []
