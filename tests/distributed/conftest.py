"""Programs that run on several ranks by `mpiexec`; without MPI these tests skip."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import infinicore

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def python_path():
    """Where ranks find the package that is tested, also where it is not installed, and what this process finds."""
    here = str(Path(infinicore.__file__).parents[1])
    return os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))


@pytest.fixture(scope="session")
def ranks(python_path):
    """`ranks(n, program, *arguments, **environment)`: run a program on n ranks; the finished process."""
    from infinicore.distributed import launch

    try:
        launch.mpiexec()
    except ImportError as missing:
        pytest.skip(str(missing))

    def run(count, program, *arguments, timeout=120, check=True, **environment):
        line, variables = launch.command(count, None, str(PROGRAMS / program), list(map(str, arguments)))
        if count == 1:  # without MPI
            line = [sys.executable, str(PROGRAMS / program), *map(str, arguments)]
        variables |= {"INFINICORE_NUM_THREADS": "1", "PYTHONPATH": python_path, "INFINICORE_COMM_TIMEOUT": "60"}
        variables |= environment
        done = finished(line, variables, timeout)
        if check:
            assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
        return done

    return run


def finished(line, variables, timeout):
    """A job that has ended; one that takes longer is ended with all its ranks, and what it has said is the error."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(line, env=variables, **options) as job:
        try:
            out, errors = job.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGTERM)  # mpiexec ends its ranks, which have groups of their own
            try:
                out, errors = job.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                out, errors = job.communicate()
            pytest.fail(f"the job did not end within {timeout} s:\n{out[-4000:]}\n{errors[-8000:]}")
        except BaseException:  # an interrupt reaches this process alone
            os.killpg(job.pid, signal.SIGTERM)
            raise
    return subprocess.CompletedProcess(line, job.returncode, out, errors)


@pytest.fixture
def command():
    """`command(*arguments, **environment)`: run `infinicore ...`."""

    def run(*arguments, **environment):
        line = [sys.executable, "-m", "infinicore", *map(str, arguments)]
        return subprocess.run(line, env=os.environ | environment, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def processes():
    """`processes(job, word)`: the processes below one whose command line has a word."""

    def find(job, word):
        return [pid for pid in children(job.pid, 2) if word in command_line(pid)]

    return find


def children(pid, depth):
    """Processes below one, to some depth."""
    found = [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/stat") if parent_of(p) == pid]
    return found + [below for child in found if depth for below in children(child, depth - 1)]


def parent_of(stat):
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return None


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
