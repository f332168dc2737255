"""The Trainer and `infinicore train` on a mesh (`programs/training.py`): results of one process, and failures."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import infinicore
from infinicore.io import load_file
from infinicore.train import checkpoints

SIZES = "--arch gpt2 --layers 2 --heads 2 --width 32 --sequence-length 32 --batch-size 4 --log-every 5 --no-progress"

FLAT = "--schedule=constant"  # more steps may be asked for


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_meshes_train_as_one_process(ranks, count):
    assert ranks(count, "training.py", "meshes", timeout=400).stdout.count("done") == count


@pytest.mark.parametrize("count", [2, 4])
def test_a_run_goes_on_on_another_mesh_and_in_one_process(ranks, count, tmp_path):
    assert ranks(count, "training.py", "resume", tmp_path, timeout=400).stdout.count("done") == count
    assert "done" in ranks(1, "training.py", "alone", tmp_path).stdout
    assert all((path / "index.json").is_file() for _, path in checkpoints(tmp_path / "plain"))  # for any mesh again


def test_a_disk_that_is_full_for_one_rank(ranks, tmp_path):
    done = ranks(2, "training.py", "full", tmp_path)
    assert done.stdout.count("could not be written (rank 1 on") == 2 and done.stdout.count("File too large") == 2
    assert [step for step, _ in checkpoints(tmp_path)] == [2]
    assert not [path for path in tmp_path.iterdir() if "writing" in path.name]


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.long)])
def test_a_rank_that_is_late_costs_the_others_no_processor(ranks, seconds):
    lines = [line.split() for line in ranks(2, "training.py", "late", seconds).stdout.splitlines() if "of" in line]
    assert len(lines) == 2 and all(float(used) < 0.25 * seconds + 1.5 for _, used, _, _ in lines), lines


# ---- the command ----


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    words = "the cat dog ran sat over under mat hill big small red blue quick".split()
    choice = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(choice.choice(words) for _ in range(5000)))
    return path


def start(count, text, out, *more):
    """`infinicore run -n COUNT train ...`, in a session of its own."""
    line = [sys.executable, "-m", "infinicore", "run", "-n", str(count), "train", *SIZES.split()]
    line += ["--data", str(text), "--out", str(out), *map(str, more)]
    root = str(Path(infinicore.__file__).parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"INFINICORE_NUM_THREADS": "1", "PYTHONPATH": path}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
    return subprocess.Popen(line, env=environment, start_new_session=True, **pipes)


def finish(job, timeout=300):
    """(status, output, errors) of a job; it must end."""
    try:
        output, errors = job.communicate(timeout=timeout)
        return job.returncode, output, errors
    finally:
        job.kill()


RANK = "infinicore.distributed.start"  # in the command line of each


def lives(pid):
    """Whether a process is there, and not merely waiting to be forgotten."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def wait_for(what, job, seconds=90):
    end = time.monotonic() + seconds
    while not what():
        assert job.poll() is None and time.monotonic() < end, finish(job)
        time.sleep(0.05)


def test_errors_are_one_sentence(ranks, text, tmp_path):
    for more, sentence in (
        (["--mesh", "dp=3"], "`mesh` dp=3 needs 3 ranks, and this job has 2: start it with `infinicore run -n 3 train"),
        (["--mesh", "dp=0"], "`mesh` must be axes and their ranks as in dp=2,tp=2"),
        (["--mesh", "tp=2,sp=3"], "`sp` divides sequences among the ranks of `tp`, so it must be 2 (or 1), got 3"),
        (["--mesh", "sp=3"], "`mesh` sp=3 needs 3 ranks, and this job has 2"),
        (["--mesh", "tp=2", "--heads", "1"], "must be at least the 2 ranks of `tp`"),
        ([], "`mesh` is missing: this is a job of 2 ranks"),
        (["--mesh", "dp=2", "--steps", "many"], "argument --steps: invalid int value"),
        (["--mesh", "dp=2", "--batch-size", "1"], "has batches of 1 rows, too few for 2 replicas"),
    ):
        job = start(2, text, tmp_path / "out", *more)
        _, _, errors = finish(job)
        assert job.returncode == 2 and errors.count("error: ") == 1 and sentence in errors, errors


def test_one_log_and_an_interrupt(ranks, processes, text, tmp_path):
    """Ctrl-C ends all ranks; the same command goes on, on another mesh, and writes one model."""
    job = start(2, text, tmp_path / "out", "--mesh", "dp=2", "--steps", "100000", "--save-every", "5", FLAT)
    wait_for(lambda: checkpoints(tmp_path / "out"), job)
    pids = processes(job, RANK)
    job.send_signal(signal.SIGINT)
    finish(job, timeout=30)
    assert job.returncode != 0 and len(pids) == 2
    end = time.monotonic() + 15  # `mpiexec` may be gone before its ranks are
    while any(map(lives, pids)):
        assert time.monotonic() < end, "ranks outlive their job"
        time.sleep(0.1)
    step = checkpoints(tmp_path / "out")[-1][0]
    job = start(2, text, tmp_path / "out", "--mesh", "tp=2", "--steps", step + 5, FLAT)
    _, output, errors = finish(job)
    assert job.returncode == 0, errors
    assert output.count("million parameters after") == 1 and f"after {step + 5} steps" in output
    rows = (tmp_path / "out" / "log.jsonl").read_text().splitlines()
    assert len({row.partition(",")[0] for row in rows}) >= len(rows) - 2  # a row a step: of one rank
    assert infinicore.models.from_pretrained(tmp_path / "out" / "model").config.vocab_size > 10


def test_a_damaged_shard(ranks, text, tmp_path):
    job = start(2, text, tmp_path / "out", "--mesh", "dp=2", "--steps", "6", "--save-every", "2", FLAT)
    assert finish(job)[0] == 0
    part = checkpoints(tmp_path / "out")[-1][1] / "rank-00001.safetensors"
    part.write_bytes(part.read_bytes()[:-8] + b"damaged!")
    job = start(2, text, tmp_path / "out", "--mesh", "dp=2", "--steps", "8", "--save-every", "2", FLAT)
    _, _, errors = finish(job)
    assert job.returncode == 2 and errors.count("infinicore: error") == 1, errors
    assert "rank-00001.safetensors is damaged or missing" in errors and "step-00000004" in errors


def test_a_run_that_is_over_is_resumed(ranks, text, tmp_path):
    """As one whose rank was killed behind its last checkpoint: there is nothing left to do but the model's files."""
    steps = ["--mesh", "dp=2", "--steps", 4, "--save-every", 2]
    for _ in range(2):
        job = start(2, text, tmp_path / "run", *steps)
        _, _, errors = finish(job)
        assert job.returncode == 0, errors
        assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.long)])
def test_a_rank_that_is_killed(ranks, processes, text, tmp_path, times):
    """At a random moment: the job ends with a sentence, and goes on to the result of a run that was left alone."""
    choice = random.Random(7)
    steps = ["--mesh", "dp=2", "--zero", "1", "--steps", 60, "--save-every", 3, "--dropout", "0.1"]
    began = time.monotonic()
    job = start(2, text, tmp_path / "whole", *steps)
    _, _, errors = finish(job)
    length = time.monotonic() - began
    assert job.returncode == 0, errors
    whole = load_file(tmp_path / "whole" / "model" / "model.safetensors")
    for number in range(times):
        out = tmp_path / f"killed-{number}"
        while True:
            shutil.rmtree(out, ignore_errors=True)
            moment, job = time.monotonic() + choice.uniform(0, length), start(2, text, out, *steps)
            wait_for(lambda job=job: len(processes(job, RANK)) == 2, job)
            time.sleep(max(0.0, moment - time.monotonic()))
            victims = processes(job, RANK)
            if len(victims) < 2:  # it is done already
                finish(job)
                continue
            os.kill(choice.choice(victims), signal.SIGKILL)
            began = time.monotonic()
            _, _, errors = finish(job, timeout=30)
            assert job.returncode != 0 and time.monotonic() - began < 30
            assert any(words in errors for words in ("signal 9", "which has ended", "while it joined")), errors
            job = start(2, text, out, *steps)  # from the last checkpoint, if there was one
            _, _, errors = finish(job)
            assert job.returncode == 0, errors
            break
        result = load_file(out / "model" / "model.safetensors")
        assert all(np.array_equal(result[name].numpy(), x.numpy()) for name, x in whole.items()), number
