"""Sums and gathers of many elements, which copy engines carry between the GPUs of one host.

`kernels/cuda/comm/copies.py` has the rounds, and says why nobody reads too early or writes too soon, and why products
of a backward pass go on meanwhile.
"""

import contextlib
import itertools

from ..kernels.blocks.cuda import JOINED_PART, MEETING
from ..kernels.cuda.comm import sizes
from .transport import slices
from .windows import gathered, open_windows, sentences

_URGENT = -5  # the priority of lanes, for the driver to cut: blocks of a sum begin before those of a product that waits
_LINE = 64  # bytes that chunks of a tensor are multiples of
_VECTOR = 16  # bytes


class _Lane:
    """A stream, and the place of its rounds in the windows: what waits in one lane holds up no other one."""

    def __init__(self, backend, number):
        self.stream, self.end = backend.side_stream(_URGENT), backend.event()
        self.flags = 8 * (sizes.MEETINGS + number * sizes.MOST_RANKS)
        self.places = sizes.COPIES_SLOTS + number * sizes.LANE_BYTES


class Copies:
    """All-reduces, reduce-scatters and all-gathers over `windows` of all ranks, each of which has a GPU of its own.

    The host does not wait; what goes wrong is raised when it does.
    """

    def __init__(self, backend, rank, size, windows, timeout):
        self.backend, self.rank, self.size, self.windows = backend, rank, size, windows
        self.timeout, self.part = int(timeout * 1e9), sizes.part_bytes(size)
        self.others = [(rank + apart) % size for apart in range(1, size)]  # no two ranks copy to one at the same time
        self.lanes = itertools.cycle([_Lane(backend, number) for number in range(sizes.LANES)])
        self.begin, self.carried, self.last = backend.event(), backend.event(), backend.event()
        self.carries = False  # whether a round of this operation has been carried
        self.meeting = backend.kernel("comm.copies.meet", {"SIZE": size})
        self.errors = {
            code + sizes.WHAT * number: error
            for number, what in enumerate(sizes.WHATS)
            for code, error in sentences(what, size, timeout).items()
        }

    # ---- operations: the same rounds in the same lanes on all ranks ----

    def reduce(self, what, x, y, starts, how, scatter=False):
        """As of the links of the host: elements [starts[r], starts[r + 1]) for rank r, or, without `scatter`, all."""
        item = x.dtype.itemsize
        types = {"T": x.dtype.name, "HOW": how, "SIZE": self.size, "PULLED": not scatter}
        kernels = [self.backend.kernel(f"comm.copies.{name}", types) for name in ("whole", "ragged")]
        done = 0
        chunks = self._parts(starts, item) if scatter else self._chunks(starts[-1], item)
        with self._behind_current() as lanes:
            for spans in chunks:
                self._enter(next(lanes))
                at = [(x.address + lo * item, (hi - lo) * item) for lo, hi in spans]
                self._carry((self._place(peer, self.rank), *at[peer]) for peer in self.others)
                self._meet(what)
                own, nbytes = at[self.rank]
                to = y.address + done * item if scatter else y.address + spans[self.rank][0] * item
                self._join(kernels, own, to, nbytes, item)
                done += nbytes // item
                self._meet(what)
                for peer in self.others if not scatter else ():
                    lo, hi = spans[peer]
                    self._copy(y.address + lo * item, self._place(peer, peer), (hi - lo) * item)

    def all_gather(self, moves):
        """What every rank gives, by the `moves` of this one (as `Group.transfer`), to all."""
        given, counts, places = gathered(moves, self.rank, self.size)
        step = self._step(max(counts), self.part, sizes.SPLIT_BYTES // self.size)
        with self._behind_current() as lanes:
            for at in range(0, max(counts), step):
                some = [min(step, max(0, count - at)) for count in counts]
                self._enter(next(lanes))
                self._meet("all_gather")
                self._copy(self._place(self.rank, self.rank), given + at, some[self.rank])
                self._meet("all_gather")
                self._carry((places[peer] + at, self._place(peer, peer), some[peer]) for peer in self.others)

    # ---- how they are cut ----

    @staticmethod
    def _step(n, most, split):
        """How many of `n` bytes are in a round that takes up to `most`; from `split` on all lanes have work."""
        rounds = max(-(-n // most), sizes.LANES if n >= split else 1)
        return min(most, max(1, -(-n // rounds // _LINE)) * _LINE)

    def _chunks(self, n, item):
        """The parts of ranks, (first element, behind the last one), of each round of an all-reduce."""
        step = self._step(n * item, self.part * self.size, sizes.SPLIT_BYTES) // item
        for at in range(0, n, step):
            starts = slices(min(step, n - at), self.size, item)
            yield [(at + lo, at + hi) for lo, hi in itertools.pairwise(starts)]

    def _parts(self, starts, item):
        """The same of a reduce-scatter, whose parts may be unequal."""
        parts = list(itertools.pairwise(starts))
        most = max(hi - lo for lo, hi in parts) * item
        step = self._step(most, self.part, sizes.SPLIT_BYTES // self.size) // item
        for at in range(0, most // item, step):
            yield [(min(hi, lo + at), min(hi, lo + at + step)) for lo, hi in parts]

    # ---- what a round is made of, in the current stream, which is that of `self.lane` ----

    @contextlib.contextmanager
    def _behind_current(self):
        """The lanes, which wait for the current stream; which waits for those that were used.

        Marks are of this operation alone, but for that behind the one before: a graph has none of outside.
        """
        backend, used = self.backend, {}

        def lanes():
            for lane in self.lanes:
                if lane.stream not in used:
                    used[lane.stream] = lane
                    self.begin.wait(lane.stream)
                yield lane

        backend.enter()
        before, self.carries = backend.stream, False
        if not backend.captures:
            self.before_replay()
        self.begin.record(before)
        try:
            yield lanes()
        finally:
            backend.stream = before
            for lane in used.values():
                lane.end.record(lane.stream)
                lane.end.wait(before)
            if not backend.captures:
                self.after_replay()

    def before_replay(self):
        """Let the current stream wait for what used the lanes before, in whichever stream."""
        self.last.wait(self.backend.stream)

    def after_replay(self):
        """Mark that what the current stream has so far may have used the lanes."""
        self.last.record(self.backend.stream)

    def _enter(self, lane):
        self.lane, self.backend.stream = lane, lane.stream

    def _place(self, window, rank):
        """The address here of the place of a rank in the window of one."""
        return self.windows[window] + self.lane.places + rank * self.part

    def _copy(self, to, at, nbytes):
        if nbytes:
            self.backend.copy(to, at, nbytes, self.backend)

    def _carry(self, copies):
        """The first copies of a round from GPU to GPU, behind those of the round before, whose lane is another one.

        Both at once would end at the same time, and leave NVLink idle while both lanes meet and add: 32 MB of two ranks
        would take 120 us, and so 90 (by the figures at `sizes.LANES`).
        """
        if self.carries:
            self.carried.wait(self.lane.stream)
        for copy in copies:
            self._copy(*copy)
        self.carried.record(self.lane.stream)
        self.carries = True

    def _meet(self, what):
        values, keep = MEETING(
            flags=self.lane.flags, what=sizes.WHAT * sizes.WHATS.index(what), rank=self.rank,
            own=self.windows[self.rank], timeout=self.timeout, windows=self.windows,
        )  # fmt: skip
        self.backend.launch(self.meeting, values, 1, 1, keep, self.errors)

    def _join(self, kernels, x, y, nbytes, item):
        """The own part: vectors as far as there are any at such addresses, then what is left."""
        vectors = 0 if x % _VECTOR or y % _VECTOR else nbytes // _VECTOR * _VECTOR
        for kernel, at, stop in zip(kernels, (0, vectors), (vectors, nbytes), strict=True):
            if stop > at:
                values = JOINED_PART.numbers(
                    count=(stop - at) // item, others=self.size - 1, rank=self.rank,
                    given=self._place(self.rank, 0) + at, part=self.part,
                )  # fmt: skip
                values[JOINED_PART.x], values[JOINED_PART.y] = x + at, y + at
                self.backend.launch(kernel, values, -(-(stop - at) // _VECTOR), 1, (), None)


def open_copies(group, backend):
    """The `Copies` of a group whose GPUs reach one another; None, on all ranks, where one has no room. All call it."""
    windows = open_windows(group, backend, sizes.COPIES_BYTES)
    return windows and Copies(backend, group.rank, group.size, windows, group.links.timeout)
