"""Recorded launches, replayed in one compiled loop without Python."""

import contextlib
import ctypes
import sys

from ..kernels.blocks.driver import RECORD
from ..kernels.blocks.pool import SHARED
from ..kernels.cpu import threads
from ..kernels.plan import streamed
from . import launch


def raise_for(status, errors, name):
    """Raise the sentence of a kernel's error code, or the exception that stands for it."""
    sentence = (errors or {}).get(status)
    if isinstance(sentence, Exception):
        raise sentence
    if sentence is None:
        raise RuntimeError(f"kernel of `{name}` failed with code {status}")
    raise ValueError(sentence)


def _streams(records):
    """Of each launch, where what the next one that streams reads begins, the bytes of a thread's part, and the end.

    Behind the last launch comes the first one: most graphs are replayed again at once.
    """
    found, ahead = [(0, 0, 0)] * len(records), (0, 0, 0)
    for i in 2 * [*reversed(range(len(records)))]:
        found[i] = ahead
        kernel, args, n, parts = records[i][:4]
        if kernel in streamed and parts > 1:
            start, item_bytes = (args[place] for place in streamed[kernel])
            count, each = parts % SHARED, max(1, parts // SHARED)
            ahead = start, each * -(-n // (count * each)) * item_bytes, start + n * item_bytes
    return found


@contextlib.contextmanager
def unrecorded():
    """Launches within are not part of the graph that is being recorded."""
    records = launch.recording()
    if records is not None:
        launch.record_into(None)
    try:
        yield
    finally:
        if records is not None:
            launch.record_into(records)


class Graph:
    """A recorded sequence of launches. `run()` replays it."""

    def __init__(self, records, arena):
        self._arena = arena
        self._errors = [errors for *_, errors in records]
        self._keep = [keep for *_, keep, _ in records]  # memory that is not of the arena
        blocks = [args for _, args, *_ in records]
        self._blocks = (ctypes.c_int64 * max(1, sum(map(len, blocks))))()
        self._table = (ctypes.c_int64 * max(1, RECORD.WIDTH * len(records)))()
        at = ctypes.addressof(self._blocks)
        offset = 0
        parallel = False
        for i, ((kernel, args, n, parts, *_), (ahead, step, end)) in enumerate(zip(records, _streams(records))):
            self._blocks[offset : offset + len(args)] = args
            row = RECORD(
                kernel=kernel, args=at + 8 * offset, n=n, parts=parts, ahead=ahead, ahead_step=step, ahead_end=end
            )[0]
            self._table[RECORD.WIDTH * i : RECORD.WIDTH * (i + 1)] = row
            offset += len(args)
            parallel = parallel or parts > 1
        self._count, self._parallel = len(records), parallel
        self._words = [len(args) for args in blocks]
        self._address = ctypes.addressof(self._table)
        self._prepare()

    def _prepare(self):
        """Load what replays."""
        self._replay = threads.load_driver("replay" if self._parallel else "replay_serial", "args, lo, hi")

    def rows(self):
        """Of each launch: (kernel, address of its block, words of it, n)."""
        for i, count in enumerate(self._words):
            row = self._table[RECORD.WIDTH * i : RECORD.WIDTH * (i + 1)]
            yield row[RECORD.kernel], row[RECORD.args], count, row[RECORD.n]

    def __del__(self, at_exit=sys.is_finalizing):
        if getattr(self, "_arena", None) is not None and not at_exit():  # then what `close` needs may be gone
            self._arena.close()

    def __len__(self):
        return self._count

    def __repr__(self):
        return f"Graph({self._count} launches)"

    @property
    def nbytes(self):
        """Bytes of the memory that the recording allocated."""
        return self._arena.nbytes

    def places(self, value):
        """Where a number stands in the argument blocks."""
        return [place for place, found in enumerate(self._blocks) if found == value]

    def replace(self, place, value):
        """Put another number into an argument block."""
        self._blocks[place] = value

    def run(self):
        """Replay every launch, in order. Raises as the recorded op would. For one thread at a time."""
        if self._parallel:
            launch.gather_team()
        status = launch.call(self._replay, self._address, 0, self._count)
        if status:
            raise_for(status % 1000, self._errors[status // 1000], f"graph, launch {status // 1000}")
