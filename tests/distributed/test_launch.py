"""`infinicore run`, and what `infinicore info` says on several ranks."""

import json
import os
import subprocess
import sys

import infinicore.distributed as dist
import pytest
from infinicore.distributed import launch, transport

import infinicore as ic
from infinicore import nn


def test_cpus_are_divided():
    assert [launch.share_of(range(8), r, 3) for r in range(3)] == [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert [launch.share_of([4, 9], r, 4) for r in range(4)] == [[4], [9], [4], [9]]


def test_handles_of_mpich_are_words():
    """They are numbers of 32 bits, the highest of which is set, and mpi4py's are those of pointers."""
    assert transport._word((1 << 64) - (1 << 32) + 0x84000001) == 0x84000001 - (1 << 32)
    assert transport._word(0x7F12_3456_7890) == 0x7F12_3456_7890


def test_run_gives_ranks_their_share(ranks, command, tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(
        "import sys\nfrom infinicore import info\nassert __name__ == '__main__' and sys.argv[1:] == ['--json', '-x']\n"
        "sys.argv.pop()\ninfo.main(sys.argv[1:])\n"
    )
    done = command("run", "-n", 2, script, "--json", "-x")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)["ranks"]
    assert (facts["size"], facts["nodes"], facts["transport"]) == (2, 1, "shared memory")
    assert all(one["threads"] >= 1 and one["cpus"] for one in facts["each"])
    script.write_text("import sys\nimport infinicore.distributed as d\nsys.exit(7 * (d.init().rank == 1))\n")
    assert command("run", "-n", 2, script).returncode != 0


def test_run_without_mpi_says_what_to_install(command, tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("print(1)\n")
    (tmp_path / "mpi4py.py").write_text("raise ImportError")
    done = command("run", "-n", 2, tmp_path / "missing.py")
    assert done.returncode == 2 and "there is none at" in done.stderr
    monkeypatch.setattr(launch.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(launch, "_installed", lambda: None)
    with pytest.raises(ImportError, match=r"infinicore-numba\[mpi\]"):
        launch.command(2, None, str(script), [])


def test_hosts_are_named(ranks, monkeypatch):
    line, _ = launch.command(4, "a,b", "script.py", ["--x"])
    assert line[line.index("-n") + 1] == "4" and line[-4:] == ["infinicore.distributed.start", "2", "script.py", "--x"]
    assert sys.executable in line
    assert "a:2,b:2" in line or "a,b" in line
    with pytest.raises(ValueError, match="`-n`"):
        launch.command(0, None, "script.py", [])


@pytest.mark.parametrize(
    "said, told",
    [
        ("PMIX ERROR: PMIX_ERR_UNREACH in file x.c", True),
        ("PMIX ERROR: PMIX_ERR_UNREACH in file x.c\nrank 1 exited on\\nsignal 9", False),
        ("nothing", False),
    ],
)
@pytest.mark.parametrize("hosts", [None, "a,b"])
def test_a_rank_that_ends_while_it_joins(tmp_path, said, told, hosts):
    """Open MPI's words for it have a sentence of ours behind them; all else of its is handed on as it is."""
    job = ["/bin/sh", "-c", f"echo out; printf '{said}\\n' >&2; exit 137"]
    line = (
        f"import os, sys\nfrom infinicore.distributed import launch\nlaunch.command = lambda *_: ({job!r}, os.environ)"
    )
    line += f"\nsys.exit(launch.start(2, {hosts!r}, 'script.py', []))"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (137, "out\n")
    ours = "infinicore: a rank was killed or ended while it joined the job: so did the job\n"
    assert done.stderr == said.replace("\\n", "\n") + "\n" + ours * told


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere orphans are not told apart")
@pytest.mark.parametrize("quiet", [True, False])
def test_no_rank_outlives_a_lost_host(tmp_path, quiet):
    rank = tmp_path / "rank"
    leave = f"sleep 300 {'>/dev/null 2>&1' if quiet else ''} & echo $! > {rank}"
    job = f"({leave}); echo lost communication with a remote daemon >&2"
    line = f"import sys, os\nfrom infinicore.distributed.launch import supervise\nlaunch = ['sh', '-c', {job!r}]\n"
    done = subprocess.run(
        [sys.executable, "-c", line + "sys.exit(supervise(launch, dict(os.environ)))"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "cannot be reached any more" in done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(rank.read_text()), 0)


@pytest.mark.parametrize("count", [2, 4])
def test_a_script_for_torchrun(ranks, count):
    assert ranks(count, "torch_script.py").stdout.count("done") == count


def test_another_number_of_ranks_than_the_script_says():
    with pytest.raises(ValueError, match=r"`world_size` is 4, and this is 1 .* `infinicore run -n RANKS script.py`"):
        dist.init_process_group("nccl", world_size=4, rank=0)
    with pytest.raises(ValueError, match=r"`rank` is 3"):
        dist.init_process_group(world_size=1, rank=3)
    with pytest.raises(ValueError, match=r"`backend` must be one of 'mpi'"):
        dist.init_process_group("carrier pigeon")
    with pytest.raises(ValueError, match=r"`device_ids` must name one device"):
        dist.DistributedDataParallel(nn.Linear(1, 1), device_ids=[0, 1])
    with pytest.raises(ValueError, match=r"`op` must be `isend` or `irecv`"):
        dist.P2POp(dist.send, ic.zeros(1), 1)
    with pytest.raises(ValueError, match=r"`input_split_sizes` must be 1 numbers"):
        dist.all_to_all_single(ic.zeros(3), ic.zeros(3), [3], [2])
