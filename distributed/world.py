"""Whether this process is one of several, and what MPI says of them. The only file that imports mpi4py."""

import functools
import os
import platform
import sys
import time

SINGLE, SEVERAL = "a single process", "several"
# How starters tell a process how many there are.
_COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_SIZE")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MPI_LOCALRANKID", "PMIX_RANK", "SLURM_PROCID")
_FORWARDING_S = 0.1  # of who starts ranks, to hand on what they have written: MPICH's loses it when one aborts


class PeerError(RuntimeError):
    """A collective failed because of another rank: it ended, came too late, or called something else."""


def launched():
    """How many processes this one was started with, as far as its environment says; 1 alone."""
    for name in _COUNTS:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    if os.environ.get("SLURM_STEP_ID") and os.environ.get("SLURM_NTASKS", "").isdecimal():
        return int(os.environ["SLURM_NTASKS"])
    return 1


def rank():
    """The number of this process among those, as far as its environment says; 0 alone."""
    for name in _RANKS:
        if launched() > 1 and os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 0


@functools.cache
def mpi():
    """The module `mpi4py.MPI`, initialised; None in a process that was started alone.

    ImportError where this is one process of several, and mpi4py or its MPI library is missing.
    """
    if launched() == 1:
        return None
    os.environ.setdefault("OMPI_MCA_osc", "^ucx")  # Open MPI's wheel: that part of it fails, and says so on each rank
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"this is one of {launched()} processes, and mpi4py cannot be used ({error}): "
            'install `pip install "infinicore-numba[mpi]"`, or mpi4py for the MPI of this machine'
        ) from error
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError("MPI was initialised without THREAD_MULTIPLE, which overlapping communication needs")
    _abort_on_errors(MPI)
    return MPI


def _abort_on_errors(MPI):
    """Let an exception that nobody catches end all processes, after its traceback: the others would wait for it."""
    shown = sys.excepthook

    def hook(kind, error, traceback):
        shown(kind, error, traceback)
        if not issubclass(kind, KeyboardInterrupt):
            print(f"infinicore: rank {MPI.COMM_WORLD.rank} on {host()} ends the job", file=sys.stderr)  # noqa: T201
        sys.stderr.flush()
        time.sleep(_FORWARDING_S)
        MPI.COMM_WORLD.Abort(130 if issubclass(kind, KeyboardInterrupt) else 1)

    sys.excepthook = hook


def abort(status):
    """End this process, and by that all of this job.

    Whoever started the ranks ends them when one leaves with a status other than 0, and says so in fewer words than
    after `MPI_Abort`. Slurm does not, by default.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if "SLURM_STEP_ID" in os.environ and "mpi4py.MPI" in sys.modules:
        sys.modules["mpi4py.MPI"].COMM_WORLD.Abort(status)
    os._exit(status)


def host():
    """The name of this machine."""
    return platform.node()


_gpus = []  # of every rank: (its host, its place there, what CUDA shows it), this one's first


def note_gpus(comm, place):
    """Note which GPUs the ranks of the job will take (`device.take_gpu`); all of them call it."""
    own = host(), place, os.environ.get("CUDA_VISIBLE_DEVICES")
    every = comm.allgather(own)
    every.remove(own)
    _gpus[:] = [own, *every]


def shares_gpu(count):
    """Whether another rank of the job, of this group or not, has the GPU of this one, which sees `count` of them."""

    def name(where, place, shown):
        names = shown.split(",") if shown else range(count)
        return where, str(names[place % len(names)])

    found = [name(*one) for one in _gpus]
    return bool(found) and found[0] in found[1:]


@functools.cache
def reaches(device_type):
    """Whether this MPI takes addresses of devices of a type ("cuda") as it takes those of the host."""
    import ctypes

    if mpi() is None or device_type != "cuda":
        return False
    try:
        return bool(ctypes.CFUNCTYPE(ctypes.c_int)(function("MPIX_Query_cuda_support"))())  # Open MPI's name
    except RuntimeError:
        return False


@functools.cache
def function(name):
    """The address of a C function of the MPI library that mpi4py has loaded."""
    import ctypes

    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "libmpi" in line and "/" in line}
    for library in [ctypes.CDLL(path) for path in sorted(paths)]:
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            pass
    raise RuntimeError(f"the MPI library of this process has no function `{name}`: looked into {sorted(paths)}")
