"""Collectives of tensors that the host cannot reach: through page-locked memory, in chunks, of any device.

Where MPI takes addresses of the device, and carries the messages, it gets them, when the stream has come that far.

    stream  | 0 to the host | 1 to the host |             | 0 back | 2 to the host |        | 1 back | ...
    host                    | ranks meet: 0               | ranks meet: 1                   | ranks meet: 2

What the stream does is in its order, so two buffers in turn are enough: chunk 2 comes into the first one behind the
copy that takes chunk 0 out of it, and when the host sees the mark behind chunk 2, it may write there as well.
"""

import collections
import itertools
import threading

from ..core import launch as core_launch
from ..core import memory
from ..device import CPU
from ..dispatch import refuse_recording
from ..dtype import uint8
from ..kernels.blocks.comm import RECEIVE, SEND
from ..tensor.tensor import Tensor
from . import world
from .transport import CHANNELS, Messages
from .work import Arriving, Forked, Queued, in_side_stream

CHUNK = 2 << 20  # bytes of a rank that are on their way at a time
PART = 1 << 20  # of a message of a collective
_ALIGN = 64
_AHEAD = 2  # chunks: one with the ranks, one on its way to the host


class Piece:
    """Host memory of one call: its address, and what holds it."""

    def __init__(self, backend, nbytes):
        self.backend, self.memory = backend, backend.stage(max(1, nbytes))
        self.address = self.memory.address

    def release(self):
        """Let it be taken again when the current stream has done what it has so far."""
        marks = getattr(self.memory, "marks", None)
        if marks is not None:
            mark = self.backend.event()
            mark.record(self.backend.stream)
            marks.append(mark)


class Staged:
    """The `links` of a group for tensors of one device: those of the host, and copies to it and back."""

    def __init__(self, group, device):
        self.group, self.device, self.backend = group, device, device.backend
        self._buffers, self._marks, self._sides, self._last = None, None, None, [None] * CHANNELS
        self._held, self._lock = collections.deque(), threading.Lock()

    def queues(self, what, x, how, nbytes=None):
        """Where an operation is put that asks nothing of the host: into the current stream ("here"), or into one for
        communication ("beside"). None: it asks.

        `how` is that of a reduction; `nbytes` are the most that a rank gives, where ranks may give different numbers.
        """
        return None

    def records(self):
        """Whether graphs of the device hold all-reduces, all-gathers and broadcasts. All ranks call it."""
        return False

    def prepare(self):
        """What all ranks of the group make together, when they call something of this device for the first time."""
        if self._buffers is not None:
            return
        # Ranks reduce such memory where it lies, for all, if the driver can lock its pages.
        size = 2 * CHUNK * CHANNELS * _AHEAD
        shared = self.group.empty((size,), uint8)
        if shared.storage.block is not None or not self.backend.lock_pages(shared.address, size):
            piece = self.backend.stage(size)
            shared = _tensor(piece, piece.address, size, uint8)
        self._buffers = shared
        self._marks = [[self.backend.event() for _ in range(_AHEAD)] for _ in range(CHANNELS)]

    def _direct(self):
        """Whether MPI itself reaches the tensors."""
        return isinstance(self.group.links, Messages) and world.reaches(self.device.type)

    def _arrive(self):
        """Wait until the stream has come here: what others send and receive now is what its calls have left."""
        mark = self.backend.event()
        mark.record(self.backend.stream)
        mark.synchronize()

    def _refuse(self, what):
        refuse_recording(
            f"`{what}` of tensors on {self.device}, which travel through the host,", "call it outside of the recording"
        )

    # ---- reductions ----

    def _chunks(self, starts, item, scatter):
        """(spans of x, where the ranks' parts begin in them) of each chunk."""
        if not scatter:
            n, step = starts[-1], CHUNK // item
            for lo in range(0, n, step):
                hi = min(n, lo + step)
                yield [(lo, hi)], self.group.starts(hi - lo, item)
            return
        parts = list(itertools.pairwise(starts))
        step = CHUNK // max(1, sum(b > a for a, b in parts)) // _ALIGN * _ALIGN // item
        for at in range(0, max(b - a for a, b in parts), step):
            spans = [(min(b, a + at), min(b, a + at + step)) for a, b in parts]
            yield spans, tuple(itertools.accumulate((hi - lo for lo, hi in spans), initial=0))

    def _begin(self, chunk, x, address, channel, number):
        """Start to bring a chunk of x to the host."""
        item = x.dtype.itemsize
        for lo, hi in chunk[0]:
            if hi > lo:
                self.backend.read_later(address, x.address + lo * item, (hi - lo) * item)
                address += (hi - lo) * item
        self._marks[channel][number % _AHEAD].record(self.backend.stream)

    def reduce(self, what, x, y, starts, how, channel, scatter=False):
        """As of the links of the host."""
        self._refuse(what)
        self.prepare()
        if self._direct():
            self._arrive()
            return self.group.links.reduce(what, x, y, starts, how, channel, scatter, self._arrive)
        backend, item, rank = self.backend, x.dtype.itemsize, self.group.rank
        backend.enter()
        chunks = list(self._chunks(starts, item, scatter))
        base, done = self._buffers.address + channel * 2 * CHUNK * _AHEAD, 0
        places = [base + 2 * CHUNK * number for number in range(_AHEAD)]
        self._follow(channel)
        for number in range(min(_AHEAD, len(chunks))):
            self._begin(chunks[number], x, places[number], channel, number)
        for number, (spans, own) in enumerate(chunks):
            place = places[number % _AHEAD]
            self._marks[channel][number % _AHEAD].synchronize()
            given = _tensor(self._buffers.storage, place, own[-1], x.dtype)
            if scatter:
                count = own[rank + 1] - own[rank]
                taken = _tensor(self._buffers.storage, place + CHUNK, count, x.dtype)
                self.group.links.reduce(what, given, taken, own, how, channel, scatter=True)
            else:
                count, taken = own[-1], given
                self.group.links.reduce(what, given, given, own, how, channel)
            if count:
                at = done if scatter else spans[0][0]
                backend.copy_later(y.address + at * item, taken.address, count * item)
                done += count
            if number + _AHEAD < len(chunks):
                self._begin(chunks[number + _AHEAD], x, place, channel, number)
        self._last[channel] = backend.stream, backend.event()
        self._last[channel][1].record(backend.stream)

    def _follow(self, channel):
        """Let the current stream wait for the copies from the buffers that another one has begun."""
        if self._last[channel] is not None and self._last[channel][0] != self.backend.stream:
            self._last[channel][1].wait(self.backend.stream)

    def in_place(self, *_):
        """None: nothing is known beforehand."""

    # ---- messages of collectives: part k of all of them at once, on every rank ----

    def transfer(self, what, moves, keep, channel, tag=1):
        """As of the links of the host; what is sent to several ranks is copied once."""
        self._refuse(what)
        if self._direct():
            self._arrive()
            return self.group.links.transfer(what, moves, keep, channel, tag=tag)
        backend, largest = self.backend, max((nbytes for *_, nbytes in moves), default=0)
        room = min(PART, -(-max(1, largest) // _ALIGN) * _ALIGN)
        slots = {}
        for kind, peer, address, nbytes in moves:
            slots.setdefault((kind, address, nbytes) if kind == SEND else (kind, peer, address, nbytes), len(slots))
        piece = Piece(backend, _AHEAD * room * len(slots))
        rounds = max(1, -(-largest // room))
        marks = [backend.event() for _ in range(min(_AHEAD, rounds))]

        def parts(number):
            for kind, peer, address, nbytes in moves:
                slot = slots[(kind, address, nbytes) if kind == SEND else (kind, peer, address, nbytes)]
                count = min(room, nbytes - number * room)
                if count > 0 or number == 0:
                    here = piece.address + (number % _AHEAD * len(slots) + slot) * room
                    yield kind, peer, address + number * room, here, max(0, count)

        def begin(number):
            begun = set()
            for kind, _, there, here, count in parts(number):
                if kind == SEND and count and here not in begun:
                    begun.add(here)
                    backend.read_later(here, there, count)
            marks[number % _AHEAD].record(backend.stream)

        for number in range(min(_AHEAD, rounds)):
            begin(number)
        for number in range(rounds):
            marks[number % _AHEAD].synchronize()
            now = list(parts(number))
            self.group.links.transfer(
                what, [(kind, peer, here, count) for kind, peer, _, here, count in now], (piece,), channel, tag=tag
            )
            for kind, _, there, here, count in now:
                if kind == RECEIVE and count:
                    backend.copy_later(there, here, count)
            if number + _AHEAD < rounds:
                begin(number + _AHEAD)
        piece.release()

    # ---- messages of pairs: each is one, so that the other side may be of any device ----

    def messages(self, what, moves, keep, wait):
        """As `Group.transfer`."""
        self._refuse(what)
        if self._direct():
            if wait:
                self._arrive()
                return self.group.transfer(what, moves, keep)
            return self.group.transfer(what, moves, keep, False, self._mark()[1])
        backend, at, here = self.backend, 0, []
        for *_, nbytes in moves:
            here.append(at)
            at += -(-nbytes // _ALIGN) * _ALIGN
        piece = Piece(backend, at)
        for (kind, _, address, nbytes), at in zip(moves, here):
            if kind == SEND and nbytes:
                backend.read_later(piece.address + at, address, nbytes)
        mark, ready = self._mark()
        own = [(kind, peer, piece.address + at, nbytes) for (kind, peer, _, nbytes), at in zip(moves, here)]

        def bring():
            for (kind, _, address, nbytes), at in zip(moves, here):
                if kind == RECEIVE and nbytes:
                    backend.copy_later(address, piece.address + at, nbytes)
            piece.release()

        if wait:
            mark.synchronize()
            self.group.transfer(what, own, (piece, keep))
            bring()
            return None

        return Arriving(self.group.transfer(what, own, (piece, keep), False, ready), bring)

    def _mark(self):
        """(a mark behind what the stream has so far, whether it has come there)."""
        mark = self.backend.event()
        mark.record(self.backend.stream)

        def ready():
            self.backend.enter()
            return mark.query()

        return mark, ready

    # ---- in the background ----

    def beside(self, run):
        """`run` for the thread that communicates beside this one: in a stream of its own, behind what this one has."""
        begin = self._begin_beside()
        # whoever waits for the work finds the values, in any stream
        return lambda: self._in_side_stream(begin, run).synchronize()

    def put_beside(self, run, result):
        """Put what the host need not wait for into that stream; its `Work`."""
        begin = self._begin_beside()
        if core_launch.recording() is not None:
            return Forked(self.backend, self._sides, run, result, self)
        return Queued(self.backend, self._in_side_stream(begin, run), result, self.check)

    def check(self):
        """Raise what has gone wrong with operations in streams."""

    def before_replay(self):
        """As of the owner of `Backend.act`."""

    def after_replay(self):
        """As of the owner of `Backend.act`."""

    def _begin_beside(self):
        """A mark behind what the current stream has."""
        self.prepare()
        if self._sides is None:
            self._sides = self.backend.side_stream()
        begin = self.backend.event()
        begin.record(self.backend.stream)
        return begin

    def _in_side_stream(self, begin, run):
        """Do `run` behind a mark; the mark behind it."""
        backend = self.backend
        backend.enter()
        end = backend.event()
        try:
            in_side_stream(backend, self._sides, begin, end, run)
        finally:
            self._hold(end, run)
        return end

    def _hold(self, end, run):
        """Keep the tensors of an operation until the stream has come behind it, whoever else drops them.

        The pool knows nothing of that stream, and would give their memory to the next tensor at once.
        """
        with self._lock:
            while self._held and self._held[0][0].query():
                self._held.popleft()
            self._held.append((end, run))


def _tensor(owner, address, count, dtype):
    """A flat tensor of host memory, of a storage or of what `stage` returned."""
    storage = owner if isinstance(owner, memory.Storage) else memory.Storage(address, count, None, owner)
    tensor = Tensor.__new__(Tensor)
    tensor.set_layout(storage, address, dtype, CPU, (count,), (1,), count, True)
    return tensor
