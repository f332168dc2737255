"""The device that a program computes on: its first argument, else the CPU."""

import functools
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
    """Let `host2` stand for GPUs that reach one another: what would go through windows, goes as that of CPUs does.

    So graphs hold it.
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
