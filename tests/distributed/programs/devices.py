"""The device that a program computes on: its first argument, else the CPU."""

import ctypes
import functools
import mmap
import os
import sys
from pathlib import Path

import infinicore as ic

NAME = sys.argv[1] if len(sys.argv) > 1 else "cpu"


@functools.cache
def device():
    """To be asked for after `init`, since "cuda" is then this rank's own GPU."""
    if NAME == "host2":
        sys.path.append(str(Path(__file__).parents[2]))
        import host2

        return host2.device()
    return ic.device(NAME)


def put(array):
    """A tensor of a NumPy array."""
    return ic.from_numpy(array) if NAME == "cpu" else ic.from_numpy(array).to(device())


def new(name, *args, **kwargs):
    """What `infinicore.empty`, `zeros`, ... make, there."""
    return getattr(ic, name)(*args, **kwargs, device=device())


def give_windows(rank):
    """Let `host2` stand for GPUs that reach one another.

    Few elements go as those of CPUs do, so graphs hold them; many by copies through windows that processes share.
    """
    from infinicore.distributed import gpu

    class Peers:
        def __init__(self, group, backend):
            self.group = group

        def all_reduce(self, x, how):
            starts = self.group.starts(x.numel_, x.dtype.itemsize)
            self.group.links.reduce("all_reduce", x, x, starts, how, 0)

        def all_gather(self, moves, keep):
            self.group.links.transfer("all_gather", moves, keep, 0)

    gpu.open_peers, gpu.nccl.start, gpu.world.shares_gpu = Peers, lambda *_: None, lambda count: False
    device().backend.has_windows, device().backend.identity = True, rank
    _share_windows(device().backend)


def _share_windows(backend):
    """Windows in memory that another process opens by a name, and the kernels of copies on the CPU."""
    import stand_ins

    from infinicore.core.backend import Backend

    def mapped(file, nbytes):
        kept.append(mmap.mmap(file, nbytes))
        return ctypes.addressof(ctypes.c_char.from_buffer(kept[-1]))

    def window(nbytes):
        file = os.memfd_create("window")
        os.truncate(file, nbytes)
        return mapped(file, nbytes), f"/proc/{os.getpid()}/fd/{file}"

    def open_window(name):
        with open(name, "r+b") as file:
            return mapped(file.fileno(), 0)

    def kernel(name, parameters):
        if name.startswith("comm.copies."):
            return stand_ins.Kernel.of(name, parameters)
        return Backend.kernel(backend, name, parameters)

    def launch(kernel, values, n, grain, keep, errors, *more):
        if not isinstance(kernel, stand_ins.Kernel):
            return Backend.launch(kernel, values, n, grain, keep, errors, *more)
        code = kernel.run(values, n)
        if code:
            raise errors[code]
        return 0

    kept = []
    backend.window, backend.open_window, backend.kernel, backend.launch = window, open_window, kernel, launch
