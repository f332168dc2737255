"""Collectives of tensors on GPUs: between GPUs where they can, else through the host."""

from .. import config
from ..kernels.blocks.cuda import PEERS
from ..kernels.cuda.comm import sizes
from . import nccl
from .staging import Staged
from .world import PeerError

_ONE_PHASE_BYTES = 256 << 10  # of all ranks together; above, with more than two, each rank reduces a part
_X_AND_Y = ((PEERS.x, "x", 0), (PEERS.y, "y", 0))
_KEPT = 4096


class GpuLinks(Staged):
    """The `links` of a group for tensors of its ranks' GPUs.

    Small all-reduces on one host are one kernel (`Peers`), everything else NCCL's (`Nccl`), where each rank has a GPU
    of its own; what neither does goes through the host.
    """

    def __init__(self, group, device):
        super().__init__(group, device)
        self.peers = self.nccl = None

    def prepare(self):
        if self._buffers is not None:
            return
        super().prepare()
        how, comm = config.get("INFINICORE_COMM_GPU"), self.group.comm
        found = comm.allgather((how, self.backend.gpu.identity))
        hows, gpus = zip(*found, strict=True)
        if "host" in hows:
            return
        alone = len(set(gpus)) == len(gpus)
        if self.group.nodes == 1 and self.group.size <= sizes.MOST_RANKS and (alone or "peers" in hows):
            self.peers = open_peers(self.group, self.backend)
        if alone:
            self.nccl = nccl.start(self.group, self.backend)

    def _by_peers(self, what, x):
        return what == "all_reduce" and self.peers is not None and x.numel_ * x.dtype.itemsize <= sizes.MOST_BYTES

    def queues(self, what, x, how):
        """Where an operation is put that asks nothing of the host."""
        self.prepare()
        if self._by_peers(what, x):
            return "here"
        reduces = how is not None
        return "beside" if self.nccl is not None and (not reduces or self.nccl.reduces(x.dtype, how)) else None

    def reduce(self, what, x, y, starts, how, channel, scatter=False):
        self.prepare()
        if self._by_peers(what, x):
            self.peers.all_reduce(x, how)
        elif self.nccl is not None and self.nccl.reduces(x.dtype, how):
            self._refuse(what)
            self.nccl.reduce(x, y, starts, how, channel, scatter)
        else:
            super().reduce(what, x, y, starts, how, channel, scatter)

    def in_place(self, what, n, dtype, starts, how):
        """The kernel of a small all-reduce as a function of the tensor."""
        if self.peers is None or n * dtype.itemsize > sizes.MOST_BYTES:
            return None
        return lambda x: self.peers.all_reduce(x, how)

    def transfer(self, what, moves, keep, channel, tag=1):
        self.prepare()
        if self.nccl is None:
            return super().transfer(what, moves, keep, channel, tag)
        self._refuse(what)
        return self.nccl.transfer(moves, channel)


class Peers:
    """All-reduces of up to 1 MB by GPUs that reach one another's memory: `kernels/cuda/comm/peers.py`."""

    def __init__(self, backend, rank, size, windows, timeout):
        self.backend, self.rank, self.size, self.windows = backend, rank, size, windows
        self.timeout, self._plans, self._last = int(timeout * 1e9), {}, None
        self.errors = {sizes.GAVE_UP: PeerError("`all_reduce` cannot be done: a rank of its group has given up one")}
        for peer in range(size):
            self.errors[1 + peer] = PeerError(
                f"`all_reduce` waited for rank {peer} of its group of {size} longer than {timeout:g} s: it hangs or "
                "computes (`timeout` of `init` allows more), or called something else"
            )

    def _plan(self, n, dtype, how):
        """(handle, block, blocks) of a launch, whose tensor is still open."""
        nbytes = n * dtype.itemsize
        phases = 1 if self.size == 2 or nbytes * self.size <= _ONE_PHASE_BYTES else 2
        types = {"T": dtype.name, "HOW": how, "SIZE": self.size, "PHASES": phases}
        piece = sizes.PIECE_BYTES // dtype.itemsize
        values = PEERS.numbers(
            count=n, piece=piece, rank=self.rank, own=self.windows[self.rank], timeout=self.timeout,
            windows=self.windows,
        )  # fmt: skip
        if len(self._plans) >= _KEPT:
            self._plans.clear()
        plan = self._plans[n, dtype, how] = (
            self.backend.kernel("comm.peers.all_reduce", types), tuple(values), -(-n // piece),
        )  # fmt: skip
        return plan

    def all_reduce(self, x, how):
        """In place, in the current stream; what goes wrong is raised when the host waits."""
        stream = self.backend.stream
        if stream != self._last:  # rounds follow one another
            if self._last is not None:
                self.backend.follow(self._last)
            self._last = stream
        handle, values, blocks = self._plans.get((x.numel_, x.dtype, how)) or self._plan(x.numel_, x.dtype, how)
        self.backend.launch(handle, values, blocks, 1, (x, self), self.errors, _X_AND_Y, {"x": x, "y": x})


def open_peers(group, backend):
    """The `Peers` of a group on one host; None, on all ranks, where some GPU does not reach another. All call it."""
    own, handle = backend.window(sizes.WINDOW_BYTES)
    handles, windows, reached = group.comm.allgather(handle), [], True
    for rank, other in enumerate(handles):
        try:
            windows.append(own if rank == group.rank else backend.open_window(other))
        except RuntimeError:
            reached = False
    if not all(group.comm.allgather(reached)):
        return None
    return Peers(backend, group.rank, group.size, windows, group.links.timeout)
