"""NVIDIA's NCCL by `nccl4py`, where it is installed: collectives of GPUs of which each rank has one of its own.

The communicators are made over MPI, which says who there is. What NCCL does is put into a stream, and the host goes on.
On a GPU it waits without end for a rank that has gone or hangs, and so does the host that waits for the stream. So a
thread looks whether streams get on, and where one has not for longer than the timeout, it ends the job with a sentence.
"""

import functools
import itertools
import sys
import threading
import time
import weakref

from ..kernels.blocks.comm import AVG, MAX, MIN, PROD, RECEIVE, SUM
from .transport import CHANNELS
from .world import PeerError

_DTYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7, "float64": 8,
    "bfloat16": 9,
}  # fmt: skip
_OPS = {SUM: 0, PROD: 1, MAX: 2, MIN: 3, AVG: 4}
_BYTES = _DTYPES["uint8"]
_LOOK_S = 1.0  # between looks at streams
_open = weakref.WeakSet()


def library():
    """(function that makes the name of a communicator, the functions of NCCL); None where they cannot be used."""
    try:
        from nccl.bindings import nccl
        from nccl.core import get_unique_id
    except (ImportError, RuntimeError, OSError):
        return None
    return get_unique_id, nccl


def start(group, backend):
    """The `Nccl` of a group whose ranks have a GPU each; None, on all ranks, where one has no `nccl4py`."""
    found = library()
    if not all(group.comm.allgather(found is not None)):
        return None
    make_name, functions = found
    names = [bytes(make_name()) for _ in range(CHANNELS)] if group.rank == 0 else None
    backend.enter()
    comms = [
        functions.comm_init_rank(group.size, bytearray(name), group.rank) for name in group.comm.bcast(names)
    ]  # fmt: skip
    return Nccl(functions, comms, group, backend, group.settings[0])


@functools.cache
def _start_watch():
    """Start the thread that looks at the operations of all groups, as long as the process lasts."""

    def watch():
        while True:
            time.sleep(_LOOK_S)
            for one in list(_open):
                one.look()

    threading.Thread(target=watch, name="NCCL's streams", daemon=True).start()


class Nccl:
    """Collectives by NCCL. `comms` are its communicators, one for each channel.

    `timeout`: seconds after which an operation that has not ended ends the job; None: never.
    """

    name = "NCCL"

    def __init__(self, functions, comms, group, backend, timeout=None):
        self.functions, self.comms, self.group, self.backend = functions, comms, group, backend
        self.timeout, self._mark, self._since = timeout, None, 0.0
        if timeout is not None:
            _open.add(self)
            _start_watch()

    def watch(self):
        """Let the thread watch for the end of what was put into the current stream, unless it watches something."""
        if self.timeout is not None and self._mark is None and not self.backend.captures:
            mark, self._since = self.backend.event(), time.monotonic()
            mark.record(self.backend.stream)
            self._mark = mark

    def look(self):
        """End the job where what is watched has not ended for too long, or NCCL has failed."""
        mark = self._mark
        if mark is None:
            return
        self.backend.enter()
        if mark.query():
            self._mark = None
            return
        try:
            self.check()
        except PeerError as error:
            return self._end_job(error)
        if time.monotonic() - self._since > self.timeout:
            self._end_job(
                f"an operation of {self.group!r} on {self.backend.device} has not ended for {self.timeout:g} s: a rank "
                "hangs or computes (`timeout` of `init` allows more), or called something else"
            )

    def _end_job(self, why):
        """The main thread may wait for the GPU, and hears nothing."""
        print(f"infinicore: error: {why}", file=sys.stderr, flush=True)  # noqa: T201
        self.group.comm.Abort(1)

    def check(self):
        """PeerError where a communicator has failed."""
        for comm in self.comms:
            self._check(comm)

    @staticmethod
    def reduces(dtype, how):
        """Whether NCCL has sums and the like of a dtype."""
        return dtype.name in _DTYPES and how in _OPS

    def _check(self, comm):
        """PeerError where a communicator has failed: another rank is gone, or its network."""
        code = int(self.functions.comm_get_async_error(comm))
        if code:
            what = self.functions.get_error_string(code)
            raise PeerError(f"NCCL reports `{what}` in {self.group!r}: NCCL_DEBUG=INFO says more")

    def reduce(self, x, y, starts, how, channel, scatter):
        """As of the links of the host, but in the order in which NCCL takes ranks."""
        comm, stream, rank = self.comms[channel], self.backend.stream, self.group.rank
        dtype, op, item, functions = _DTYPES[x.dtype.name], _OPS[how], x.dtype.itemsize, self.functions
        self.backend.enter()
        self._check(comm)
        counts = [stop - first for first, stop in itertools.pairwise(starts)]
        if not starts[-1]:
            return
        if not scatter:
            functions.all_reduce(x.address, y.address, starts[-1], dtype, op, comm, stream)
        elif len(set(counts)) == 1:
            functions.reduce_scatter(x.address, y.address, counts[0], dtype, op, comm, stream)
        else:
            functions.group_start()
            for root, count in enumerate(counts):
                if count:
                    at = x.address + starts[root] * item
                    functions.reduce(at, y.address if root == rank else 0, count, dtype, op, root, comm, stream)
            functions.group_end()
        self.watch()

    def transfer(self, moves, channel):
        """Messages of a collective, all at once."""
        comm, stream, functions = self.comms[channel], self.backend.stream, self.functions
        self.backend.enter()
        self._check(comm)
        functions.group_start()
        for kind, peer, address, nbytes in moves:
            if nbytes:
                act = functions.recv if kind == RECEIVE else functions.send
                act(address, nbytes, _BYTES, peer, comm, stream)
        functions.group_end()
        self.watch()
