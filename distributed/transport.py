"""How bytes get from rank to rank: by memory that the ranks of a node share, or by MPI's messages.

Both make launch records, which graphs replay. A transport has `channels`, each with memory or a communicator of its
own: number 0 is that of the calling thread, 1 that of the thread that communicates in the background.
"""

import ctypes
import itertools
import os
import time
import zlib

from ..core import launch as core_launch
from ..core import memory
from ..core.backend import raise_for
from ..device import CPU
from ..dispatch.launcher import Launcher
from ..dtype import int64, uint8
from ..kernels.blocks import comm as blocks
from ..kernels.blocks.comm import MESSAGES, REDUCE, ROWS, TRANSFER
from . import world

CHANNELS = 2
_SLOT_BYTES = 256 << 10  # what a rank publishes at a time: half of a second-level cache
_MAIL_BYTES = 64 << 10
_ONE_PHASE_BYTES = 64 << 10  # of all ranks together; above, each rank reduces a part
_COPIED_BYTES = 16 << 10  # up to this, also tensors of the window are copied: one meeting is cheaper than two
_SPIN, _SPIN_SHORT = 20_000, 50  # looks before the CPU is given away; where ranks share CPUs, a few
_ALIGN = 64
_SHARED_FOLDER = "/dev/shm"  # where MPI keeps windows
_SPARE = 1.25
_KEPT = 4096  # plans of reductions


class Errors:
    """The sentences of a collective's error codes, with the rank that the kernel reports."""

    def __init__(self, transport, what):
        self.transport, self.what = transport, what

    def get(self, code):
        """The exception that stands for a code."""
        group = self.transport.group
        peer = self.transport.report[0]
        whom = f"rank {group.ranks[peer]} on {group.hosts[peer]}" if 0 <= peer < group.size else "another rank"
        me = f"rank {group.ranks[group.rank]} on {group.hosts[group.rank]}"
        waited = f"`{self.what}` of {me}"
        text = {
            blocks.LATE: f"{waited} waited for {whom} longer than {self.transport.timeout:g} s: it hangs or computes "
            "(`timeout` of `init` allows more)",
            blocks.GONE: f"{waited} waited for {whom}, which has ended",
            blocks.BROKEN: f"{waited} cannot be done: {whom} has given up an operation of this group",
            blocks.DISAGREE: f"{waited} and what {whom} called at the same time differ in kind, dtype, number of "
            "elements or order: `init(debug=True)` names the lines",
            blocks.MPI_ERROR: f"MPI reported an error in {waited}",
        }.get(code)
        return None if text is None else world.PeerError(text)


def slices(n, size, item):
    """Where the parts of `n` elements begin that `size` ranks reduce: whole cache lines, as equal as they can be."""
    line = max(1, _ALIGN // item)
    lines = -(-n // line)
    return tuple(min(n, lines * r // size * line) for r in range(size)) + (n,)


class _Transport:
    """What both have in common: the numbers that waiting needs."""

    def __init__(self, group, comm, timeout, crowded):
        self.group, self.comm, self.timeout = group, comm, timeout
        self.report = (ctypes.c_int64 * 1)(-1)
        self.spin = _SPIN_SHORT if crowded else _SPIN
        self.pids = None
        self.broken = 0

    def waiting(self, channel):
        """The fields of `WAITING`; in the background, computing is worth more than looking."""
        return {
            "spin": _SPIN_SHORT if channel else self.spin,
            "timeout": int(self.timeout * 1e9),
            "report": ctypes.addressof(self.report),
            "pids": ctypes.addressof(self.pids) if self.pids else 0,
            "size": self.group.size,
            "rank": self.group.rank,
            "broken": self.broken,
        }

    @staticmethod
    def beside(run):
        """`run` for the thread that communicates beside this one."""
        return run

    @staticmethod
    def queues(what, x, how, nbytes=None):
        """Where an operation is put that asks nothing of the host: nowhere."""
        return None

    def launch(self, kernel, types, block, keep, what):
        """Run (or record) a serial launch."""
        errors = Errors(self, what)
        status = core_launch.launch(CPU.backend.kernel(kernel, types), block[0], 1, 0, (*keep, self), errors)
        if status:
            raise_for(status, errors, what)


def _combine(dtype, how):
    """The address of the kernel that reduces rows."""
    return CPU.backend.kernel("comm.combine.rows", {"T": dtype.name, "HOW": how})


class SharedMemory(_Transport):
    """For a group whose ranks all run on one node."""

    name = "shared memory"

    def __init__(self, group, comm, timeout, crowded):
        super().__init__(group, comm, timeout, crowded)
        size = group.size
        self.slot_bytes = _SLOT_BYTES
        self.mail_bytes = max(4096, min(_MAIL_BYTES, (16 << 20) // (size * size * blocks.LETTERS)) // 4096 * 4096)
        control = size * blocks.RECORD * 8
        slots = size * blocks.SLOTS * self.slot_bytes
        mail = size * size * (blocks.PAIR * 8 + blocks.LETTERS * self.mail_bytes)
        self._offsets = (64, 64 + control, 64 + control + mail)
        self._channel_bytes = -(-(64 + control + slots + mail) // 4096) * 4096
        self._window, self._base, _ = self._allocate(CHANNELS * self._channel_bytes if group.rank == 0 else 0)
        if group.rank == 0:
            for channel in range(CHANNELS):  # the rest is written before it is read
                ctypes.memset(self._base + channel * self._channel_bytes, 0, self._offsets[2])
        comm.Barrier()
        self.broken = self._base
        self.pids = self._ask_pids()
        self._plans, self._heaps = {}, []
        self._nothing, self._no_parts = core_launch.new_tensor((1,), uint8, CPU), (0,) * (size + 1)

    def _allocate(self, nbytes):
        """(window, address of the first rank's part, bytes of this rank's part) of new shared memory."""
        MPI = world.mpi()
        info = MPI.Info.Create()
        info.Set("alloc_shared_noncontig", "false")
        window = MPI.Win.Allocate_shared(nbytes, 1, info, self.comm)
        memory, _ = window.Shared_query(0)
        return window, memory.address, nbytes

    def _ask_pids(self):
        """The process numbers of all ranks, 0 where this one cannot see a process of that number."""
        found = (ctypes.c_int64 * self.group.size)(*self.comm.allgather(os.getpid()))
        for peer, pid in enumerate(found):
            try:
                os.kill(pid, 0)
            except OSError:
                found[peer] = 0
        return found

    def _shared(self, channel, signature):
        base = self._base + channel * self._channel_bytes
        control, _, slots = self._offsets
        return {
            **self.waiting(channel),
            "control": base + control,
            "slots": base + slots,
            "slot_bytes": self.slot_bytes,
            "signature": zlib.crc32(repr(signature).encode()),
        }

    def _plan(self, key):
        """(handle, values, errors) of a reduction, whose tensors are still open."""
        what, mode, how, dtype, starts, channel, heap = key
        block = REDUCE(
            x=0, y=0, combine=_combine(dtype, how), item=dtype.itemsize, mode=mode, heap=heap[0], segment=heap[1],
            offset=0, starts=starts,
            **self._shared(channel, (what, mode, how, dtype.name, starts, heap[2])),
        )  # fmt: skip
        handle = CPU.backend.kernel("comm.shared.reduce", {})
        if len(self._plans) >= _KEPT:
            self._plans.clear()
        self._plans[key] = handle, tuple(block[0]), Errors(self, what)
        return self._plans[key]

    def reduce(self, what, x, y, starts, how, channel, scatter=False):
        """Elements [starts[r], starts[r + 1]) of x, reduced by rank r: into its y (scatter), or into all of every y."""
        heap, values = (0, 0, 0), {}
        nbytes = starts[-1] * x.dtype.itemsize * self.group.size
        if scatter:
            mode = blocks.SCATTER
        elif nbytes <= _COPIED_BYTES:
            mode = blocks.ONE_PHASE
        elif x is y and type(x.storage.owner) is Heap and x.storage.owner.transport is self:
            owner = x.storage.owner
            mode, heap, values = blocks.IN_PLACE, owner.place, {"offset": x.address - owner.address}
        elif nbytes <= _ONE_PHASE_BYTES:
            mode = blocks.ONE_PHASE
        else:
            mode = blocks.TWO_PHASES
        key = (what, mode, how, x.dtype, starts, channel, heap)
        handle, block, errors = self._plans.get(key) or self._plan(key)
        if values:
            block = list(block)
            block[REDUCE.offset] = values["offset"]
        status = core_launch.launch(handle, block, 1, 0, (x, y, self), errors, _X_AND_Y, {"x": x, "y": y})
        if status:
            raise_for(status, errors, what)

    def in_place(self, what, n, dtype, starts, how):
        """`reduce(what, x, x, starts, how, 0)` of `n` contiguous elements as a function of x; None for many elements.

        All that a call of few elements costs is what it looks up: 2.6 us in place of 4.4 for 4 KB.
        """
        if n * dtype.itemsize * self.group.size > _COPIED_BYTES:
            return None
        key = (what, blocks.ONE_PHASE, how, dtype, starts, 0, (0, 0, 0))
        handle, block, errors = self._plans.get(key) or self._plan(key)

        def run(x):
            status = core_launch.launch(handle, block, 1, 0, (x, self), errors, _X_AND_Y, {"x": x, "y": x})
            if status:
                raise_for(status, errors, what)

        return run

    def note(self, task):
        """How far messages have got: nowhere."""
        return core_launch.new_tensor((2 * len(task[1]),), int64, CPU).zero_()

    def progress(self, what, moves, keep, state, since):
        """Go on with messages for a moment; whether all have arrived."""
        if time.monotonic() - since > self.timeout:
            self.report[0] = moves[0][1]
            raise Errors(self, what).get(blocks.LATE)
        return self.transfer(what, moves, keep, 0, state=state, resume=1)

    def transfer(self, what, moves, keep, channel, state=None, resume=0, tag=1):
        """Messages: (kind, peer, address, bytes) each. With `resume`, whether all have arrived."""
        if state is None:
            state = core_launch.new_tensor((max(1, 2 * len(moves)),), int64, CPU)
        _, mail, _ = self._offsets
        block = TRANSFER(
            mail=self._base + channel * self._channel_bytes + mail, mail_bytes=self.mail_bytes,
            state=state.address, resume=resume, count=len(moves), moves=[n for move in moves for n in move],
            **self.waiting(channel),
        )  # fmt: skip
        errors = Errors(self, what)
        handle = CPU.backend.kernel("comm.shared.transfer", {})
        status = core_launch.launch(handle, block[0], 1, 0, (*keep, state, self), errors)
        if status and status != blocks.NOT_DONE:
            raise_for(status, errors, what)
        return status == 0

    def barrier(self, what, channel):
        """Wait for all."""
        self.reduce(what, self._nothing, self._nothing, self._no_parts, blocks.MAX, channel)

    def has_room(self, nbytes):
        """Whether all ranks can share as much memory: where it is full, a process ends when it writes."""
        try:
            found = os.statvfs(_SHARED_FOLDER)
            room = found.f_bavail * found.f_frsize
        except OSError:
            room = None
        enough = room is None or room > _SPARE * nbytes * self.group.size
        return all(self.comm.allgather(enough))

    def heap(self, nbytes):
        """Memory of this rank that the others may read and write too: (owner, address). All ranks call it alike."""
        nbytes = -(-max(nbytes, 1) // 4096) * 4096
        window, base, _ = self._allocate(nbytes)
        self._heaps.append(window)
        memory.count_used(nbytes)
        return Heap(self, base, nbytes, len(self._heaps))


_X_AND_Y = ((REDUCE.x, "x", 0), (REDUCE.y, "y", 0))


class Heap:
    """What owns the memory of tensors in a window."""

    def __init__(self, transport, base, segment, number):
        self.transport, self.place = transport, (base, segment, number)
        self.address = base + transport.group.rank * segment


def _word(handle):
    """A handle of MPI as a signed word. (MPICH's are negative numbers of 32 bits, which mpi4py gives as unsigned.)"""
    return handle - (1 << 64) if handle >> 63 else handle


class Messages(_Transport):
    """For a group whose ranks run on several nodes: every sum is ours, MPI carries bytes."""

    name = "MPI messages"

    def __init__(self, group, comm, timeout, crowded):
        super().__init__(group, comm, timeout, crowded)
        MPI = world.mpi()
        self._comms = [comm.Dup() for _ in range(CHANNELS)]
        for one in self._comms:
            one.Set_errhandler(MPI.ERRORS_RETURN)
        self._lost = []
        self._handles = [_word(MPI._handleof(one)) for one in self._comms]
        self._byte = _word(MPI._handleof(MPI.BYTE))
        self._functions = {name: world.function(f"MPI_{name.capitalize()}") for name in ("isend", "irecv", "testall")}
        self._request_bytes, self._status_bytes = MPI._sizeof(MPI.Request), MPI._sizeof(MPI.Status)

    def in_place(self, what, n, dtype, starts, how):
        """None: every reduction is messages and sums of its own."""

    def note(self, task):
        """The requests of messages, which travel from now on."""
        MPI, found = world.mpi(), []
        for kind, peer, address, nbytes in task[1]:
            for start in range(0, max(1, nbytes), 1 << 30):
                part = MPI.memory.fromaddress(address + start, min(1 << 30, nbytes - start))
                act = self._comms[0].Irecv if kind == blocks.RECEIVE else self._comms[0].Isend
                found.append(act([part, MPI.BYTE], peer, 2))
        return found

    def progress(self, what, moves, keep, requests, since):
        """Whether all messages have arrived."""
        if world.mpi().Request.Testall(requests):
            return True
        if time.monotonic() - since > self.timeout:
            self.report[0] = moves[0][1]
            self._lost.append((keep, requests))
            raise Errors(self, what).get(blocks.LATE)
        time.sleep(5e-5)
        return False

    def transfer(self, what, moves, keep, channel, tag=1):
        """Messages: (kind, peer, address, bytes) each."""
        requests = core_launch.new_tensor((max(1, len(moves)) * self._request_bytes,), uint8, CPU)
        statuses = core_launch.new_tensor((max(1, len(moves)) * self._status_bytes,), uint8, CPU)
        block = MESSAGES(
            **self.waiting(channel), **self._functions, comm=self._handles[channel], byte=self._byte, tag=tag,
            requests=requests.address, request_bytes=self._request_bytes, statuses=statuses.address,
            count=len(moves), moves=[n for move in moves for n in move],
        )  # fmt: skip
        keep = (*keep, requests, statuses)
        try:
            self.launch("comm.messages.transfer", {}, block, keep, what)
        except world.PeerError:
            self._lost.append(keep)  # MPI may still write to it
            raise
        return True

    def reduce(self, what, x, y, starts, how, channel, scatter=False, arrive=None):
        """As of `SharedMemory`: parts go to the rank that reduces them, and results to all.

        Of tensors on a device that MPI reaches, `arrive()` waits until what was launched there has ended.
        """
        rank, size, item, dtype = self.group.rank, self.group.size, x.dtype.itemsize, x.dtype
        others = [r for r in range(size) if r != rank]
        whole = not scatter and starts[-1] * item * size <= _ONE_PHASE_BYTES
        parts = ((0, starts[-1]),) * size if whole else tuple(itertools.pairwise(starts))
        first, last = parts[rank]
        n = last - first
        rows = core_launch.new_tensor((size, max(1, n)), dtype, x.device)
        width = rows.strides_[0] * item
        moves = [(blocks.RECEIVE, r, rows.address + r * width, n * item) for r in others]
        moves += [(blocks.SEND, r, x.address + parts[r][0] * item, (parts[r][1] - parts[r][0]) * item) for r in others]
        self.transfer(what, moves, (x, rows), channel)
        mine = y if scatter else core_launch.view_tensor(y, (n,), (1,), first)
        if n:
            own = core_launch.view_tensor(x, (n,), (1,), first)
            block = ROWS(rows=rows, own=own, y=mine, stride=width, size=size, rank=rank)
            types = {"T": dtype.name, "HOW": how}
            Launcher(what, x.device).launch("comm.combine.rows", types, block, n, size * 2)
        if arrive is not None:
            arrive()
        if not whole and not scatter:
            moves = [
                (blocks.RECEIVE, r, y.address + starts[r] * item, (starts[r + 1] - starts[r]) * item) for r in others
            ]
            moves += [(blocks.SEND, r, mine.address, n * item) for r in others]
            self.transfer(what, moves, (y,), channel)

    def barrier(self, what, channel):
        """Wait for all."""
        others = [r for r in range(self.group.size) if r != self.group.rank]
        x = core_launch.new_tensor((1,), uint8, CPU)
        moves = [(kind, r, x.address, 0) for kind in (blocks.RECEIVE, blocks.SEND) for r in others]
        self.transfer(what, moves, (x,), channel)
