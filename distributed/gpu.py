"""Collectives of tensors on GPUs: between GPUs where they can, else through the host."""

import functools

from .. import config
from ..core import launch as core_launch
from ..kernels.blocks.cuda import PEERS
from ..kernels.cuda import driver
from ..kernels.cuda.comm import sizes
from . import nccl, world
from .copies import open_copies
from .staging import Staged
from .windows import gathered, open_windows, sentences

_FEW_BYTES = 64 << 10  # that a rank sends in words which say their round; 256 KB take 4.5 us so, 4.1 in packets
_X_AND_Y = ((PEERS.x, "x", 0), (PEERS.y, "y", 0))
_KEPT = 4096


class GpuLinks(Staged):
    """The `links` of a group for tensors of its ranks' GPUs.

    Where each rank has a GPU of its own, few elements on one host go through windows (`Peers`), all else by NCCL
    (`Nccl`), and where that is not installed, or lacks the dtype, by copy engines (`Copies`). What none of these does
    goes through the host. Graphs hold all of these; what neither NCCL nor copies do goes through windows there, in as
    many launches as it takes.
    """

    def __init__(self, group, device):
        super().__init__(group, device)
        self.peers = self.copies = self.nccl = None
        self._copying = False  # whether `copies` are still to be made, when they are first asked for
        self._prefers_copies = False

    def prepare(self):
        if self._buffers is not None:
            return
        super().prepare()
        how, comm = config.get("INFINICORE_COMM_GPU"), self.group.comm
        # What waits on a GPU for another rank keeps all ranks on it from computing, those of other groups as well.
        shared = world.shares_gpu(driver.device_count())
        found = comm.allgather((how, self.backend.identity, shared))
        hows, gpus, crowded = zip(*found, strict=True)
        if "host" in hows:
            return
        alone = len(set(gpus)) == len(gpus) and not any(crowded)
        shares = not {"peers", "copies"}.isdisjoint(hows)
        if self.group.nodes == 1 and self.group.size <= sizes.MOST_RANKS and (alone or shares):
            self.peers = open_peers(self.group, self.backend)
        self._prefers_copies = "copies" in hows
        self._copying = self.peers is not None and (alone or self._prefers_copies)
        if alone:
            self.nccl = nccl.start(self.group, self.backend)

    def records(self):
        self.prepare()
        return self.peers is not None or self.nccl is not None

    def check(self):
        if self.nccl is not None:
            self.nccl.check()

    def before_replay(self):
        if self.copies is not None:
            self.copies.before_replay()

    def after_replay(self):
        if self.copies is not None:
            self.copies.after_replay()
        if self.nccl is not None:
            self.nccl.watch()

    def _way(self, what, nbytes, x=None, how=None, beside=False):
        """Who carries it, as all ranks find alike: "peers", "copies" or "nccl"; None: the host.

        Copies leave the multiprocessors to the products of a backward pass, but are slower alone (two H200: 64 MB 276
        us, NCCL 250; 256 MB 1,297 and 899), and where the host puts them into streams, it puts five pieces of work for
        each 16 MB. So they take what runs `beside` others in a graph.
        """
        few, recorded = nbytes <= sizes.MOST_BYTES, core_launch.recording() is not None or self.backend.captures
        reached = self.peers is not None and what in ("all_reduce", "all_gather", "broadcast")
        if (few and reached) or (recorded and not self.backend.holds_acts):
            return "peers" if reached else None
        to_nccl = self.nccl is not None and (how is None or self.nccl.reduces(x.dtype, how))
        copied = self._prefers_copies or not to_nccl or (recorded and beside)
        if not few and what in sizes.WHATS and copied and self._opened():
            return "copies"
        return "nccl" if to_nccl else "peers" if recorded and reached else None

    def _opened(self):
        """Whether there are `copies`; what they need is made when the first ones ask."""
        if self._copying:
            self._copying, self.copies = False, open_copies(self.group, self.backend)
        return self.copies is not None

    def queues(self, what, x, how, nbytes=None):
        self.prepare()
        nbytes = x.numel_ * x.dtype.itemsize if nbytes is None else nbytes
        return {"peers": "here", None: None}.get(self._way(what, nbytes, x, how, True), "beside")

    def reduce(self, what, x, y, starts, how, channel, scatter=False):
        self.prepare()
        way = self._way(what, x.numel_ * x.dtype.itemsize, x, how, channel == 1)
        if way == "peers":
            self.peers.all_reduce(x, how)
        elif way == "copies":
            self.backend.act(lambda: self.copies.reduce(what, x, y, starts, how, scatter), self)
        elif way == "nccl":
            self.backend.act(lambda: self.nccl.reduce(x, y, starts, how, channel, scatter), self)
        else:
            super().reduce(what, x, y, starts, how, channel, scatter)

    def in_place(self, what, n, dtype, starts, how):
        """The kernel of a small all-reduce as a function of the tensor."""
        if self.peers is None or n * dtype.itemsize > sizes.MOST_BYTES:
            return None
        return functools.partial(self.peers.all_reduce, how=how)

    def transfer(self, what, moves, keep, channel, tag=1):
        self.prepare()
        most = max((nbytes for *_, nbytes in moves), default=0)
        way = self._way(what, most, beside=channel == 1)
        if way == "peers":
            return self.peers.all_gather(moves, keep)
        if way == "copies":
            return self.backend.act(lambda _=keep: self.copies.all_gather(moves), self)
        if way == "nccl":
            return self.backend.act(lambda _=keep: self.nccl.transfer(moves, channel), self)
        return super().transfer(what, moves, keep, channel, tag)


class Peers:
    """All-reduces and gathers by GPUs that reach one another's memory: `kernels/cuda/comm/peers.py`.

    1 MB of a rank is a launch. `packets`: whether the driver knows the instructions that these need.
    """

    def __init__(self, backend, rank, size, windows, timeout, packets=True):
        self._packets = packets
        self.backend, self.rank, self.size, self.windows = backend, rank, size, windows
        self.timeout, self._plans, self._last = int(timeout * 1e9), {}, None
        self.errors = {what: sentences(what, size, timeout) for what in ("all_reduce", "all_gather")}

    def _plan(self, n, dtype, how):
        """(handle, block, blocks) of a launch, whose tensor is still open."""
        nbytes = n * dtype.itemsize
        kernel, types = "all_reduce", {"T": dtype.name, "HOW": how, "SIZE": self.size}
        sent, piece = nbytes * (self.size - 1), sizes.PIECE_BYTES
        if sent <= _FEW_BYTES and dtype.itemsize <= 8:
            kernel, piece = "all_reduce_few", sizes.TOLD_BYTES
        elif self._packets and sent <= sizes.MOST_BYTES and dtype.itemsize in (2, 4):
            kernel, piece = "all_reduce_packets", sizes.PACKET_BYTES
        piece //= dtype.itemsize
        values = PEERS.numbers(
            count=n, piece=piece, rank=self.rank, own=self.windows[self.rank], timeout=self.timeout,
            windows=self.windows,
        )  # fmt: skip
        if len(self._plans) >= _KEPT:
            self._plans.clear()
        plan = self._plans[n, dtype, how] = (
            self.backend.kernel(f"comm.peers.{kernel}", types), tuple(values), -(-n // piece),
        )  # fmt: skip
        return plan

    def _enter(self):
        """Let the current stream wait for the rounds before: those of a group follow one another."""
        stream = self.backend.stream
        if stream != self._last:
            if self._last is not None:
                self.backend.follow(self._last)
            self._last = stream

    def all_reduce(self, x, how):
        """In place, in the current stream; what goes wrong is raised when the host waits."""
        self._enter()
        most = sizes.MOST_BYTES // x.dtype.itemsize
        if x.numel_ <= most:
            return self._reduce(x, how)
        for at in range(0, x.numel_, most):
            self._reduce(core_launch.view_tensor(x, (min(most, x.numel_ - at),), (1,), at), how)

    def _reduce(self, x, how):
        handle, values, blocks = self._plans.get((x.numel_, x.dtype, how)) or self._plan(x.numel_, x.dtype, how)
        keep, errors = (x, self), self.errors["all_reduce"]
        self.backend.launch(handle, values, blocks, 1, keep, errors, _X_AND_Y, {"x": x, "y": x})

    def all_gather(self, moves, keep):
        """What every rank gives, or one of them, by the `moves` of this one (as `Group.transfer`), to all."""
        self._enter()
        given, counts, places = gathered(moves, self.rank, self.size)
        for at in range(0, max(counts), sizes.MOST_BYTES):
            some = [min(sizes.MOST_BYTES, max(0, count - at)) for count in counts]
            self._gather(given + at, some, [place and place + at for place in places], keep)

    def _gather(self, given, counts, places, keep):
        """The launch of up to 1 MB, in the largest words that addresses and sizes here are multiples of."""
        word = next(size for size in (8, 4, 2, 1) if not any(number % size for number in (given, *counts, *places)))
        values = PEERS.numbers(
            count=counts[self.rank] // word, piece=sizes.PIECE_BYTES // word, rank=self.rank,
            own=self.windows[self.rank], timeout=self.timeout,
            windows=[*self.windows, *(count // word for count in counts), *places],
        )  # fmt: skip
        values[PEERS.x] = given
        handle = self.backend.kernel("comm.peers.all_gather", {"T": f"uint{8 * word}", "SIZE": self.size})
        blocks, errors = -(-max(counts) // sizes.PIECE_BYTES), self.errors["all_gather"]
        self.backend.launch(handle, values, blocks, 1, (*keep, self), errors)


def open_peers(group, backend):
    """The `Peers` of a group on one host; None, on all ranks, where some GPU does not reach another. All call it."""
    windows = open_windows(group, backend, sizes.WINDOW_BYTES)
    packets = driver.version() >= (12, 4)  # the same for all GPUs of a host
    return windows and Peers(backend, group.rank, group.size, windows, group.links.timeout, packets)
