"""Sums and gathers by copy engines, run by the CPU: a stream of a rank is a thread, and all run at the same time."""

import ctypes
import random
import threading
import time

import numpy as np
import pytest
from infinicore.distributed import copies as ours
from infinicore.distributed.transport import slices
from infinicore.kernels.blocks.comm import AVG, MAX, MIN, PROD, RECEIVE, SEND, SUM
from infinicore.kernels.cuda.comm import sizes

import infinicore as ic

from ..stand_ins import Kernel


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Lanes that a few elements fill."""
    lane = 24 << 10
    monkeypatch.setattr(sizes, "LANE_BYTES", lane)
    monkeypatch.setattr(sizes, "SPLIT_BYTES", 6 << 10)
    monkeypatch.setattr(sizes, "COPIES_BYTES", sizes.COPIES_SLOTS + sizes.LANES * lane)


class Mark:
    """A mark in the streams of a rank."""

    def __init__(self, streams):
        self.streams, self.passed = streams, None

    def record(self, stream):
        self.passed = threading.Event()
        self.streams.put(stream, self.passed.set)

    def wait(self, stream):
        if self.passed is not None:
            self.streams.put(stream, lambda passed=self.passed: passed.wait(60))


class Streams:
    """A backend of a rank, which keeps what each stream is to do, and does all at once when it is told so."""

    def __init__(self, rank):
        self.stream, self.rank, self.queues, self.found, self.captures = "main", rank, {"main": []}, [], False

    def put(self, stream, do):
        self.queues[stream].append(do)

    def enter(self):
        pass

    def event(self):
        return Mark(self)

    def side_stream(self, priority=0):
        self.queues[f"side {len(self.queues)}"] = []
        return list(self.queues)[-1]

    def copy(self, to, at, nbytes, source):
        assert source is self and nbytes > 0
        self.put(self.stream, lambda: ctypes.memmove(to, at, nbytes))

    kernel = staticmethod(Kernel.of)

    def launch(self, kernel, values, n, grain, keep, errors):
        def run():
            code = kernel.run(values, n)
            if code:
                self.found.append(errors[code])

        self.put(self.stream, run)

    def threads(self):
        """The threads of all streams, which take their time at any place."""

        def run(todo, chance):
            for do in todo:
                if chance.random() < 0.3:
                    time.sleep(chance.random() * 2e-3)
                do()

        for number, name in enumerate(list(self.queues)):
            todo, self.queues[name] = self.queues[name], []
            yield threading.Thread(target=run, args=(todo, random.Random(10 * self.rank + number)))


class Team:
    """The ranks of a host, and their windows."""

    def __init__(self, size, timeout=60.0):
        self.memory = [np.zeros(sizes.COPIES_BYTES, np.uint8) for _ in range(size)]
        windows = [x.ctypes.data for x in self.memory]
        self.ranks = [ours.Copies(Streams(rank), rank, size, windows, timeout) for rank in range(size)]

    def run(self, ranks=None):
        """Do what was asked for; the errors of each rank."""
        threads = [one for rank in ranks or self.ranks for one in rank.backend.threads()]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return [rank.backend.found for rank in self.ranks]


FOLD = {SUM: np.add, AVG: np.add, MIN: np.minimum, MAX: np.maximum, PROD: np.multiply}


def given(rng, n, dtype, size, offset=0):
    """What each rank has, `offset` elements behind a multiple of 16 bytes."""
    high = 5 if "float" not in dtype else 64
    wide = [rng.integers(-high * ("uint" not in dtype), high, n + offset) for _ in range(size)]
    return [(x / (16 if "float" in dtype else 1)).astype(ic.dtype(dtype).numpy)[offset:] for x in wide]


def folded(every, dtype, how):
    """In float32 where floats are narrow, in the order of ranks, rounded once."""
    wide = [x.astype("float32") if "float" in dtype and x.itemsize < 4 else x for x in every]
    total = wide[0]
    for x in wide[1:]:
        total = FOLD[how](total, x)
    return (total / total.dtype.type(len(every)) if how == AVG else total).astype(every[0].dtype)


@pytest.mark.parametrize(
    "size, dtype, how",
    [
        (2, "float32", SUM),
        (2, "bfloat16", AVG),
        (3, "float16", SUM),
        (4, "float32", AVG),
        (3, "int64", MAX),
        (2, "uint8", MIN),
        (4, "int32", PROD),
        (2, "float64", SUM),
        (3, "float8_e4m3", SUM),
        (2, "uint16", SUM),
        (6, "bfloat16", SUM),
    ],
)
def test_all_reduces_that_follow_one_another(rng, size, dtype, how):
    """Of several lengths and places, in rounds of all lanes, without the host; all ranks have the same bits."""
    team, cases = Team(size), []
    for n, offset in ((1, 0), (5, 0), (0, 0), (3_001, 1), (20_011, 0), (13, 3), (8_192, 0)):
        every = given(rng, n, dtype, size, offset)
        wanted = folded(every, dtype, how)
        for rank, x in zip(team.ranks, every, strict=True):
            t = ic.from_numpy(x)
            assert t.address == x.ctypes.data or not n
            rank.reduce("all_reduce", t, t, slices(n, size, x.itemsize), how)
        cases.append((every, wanted))
    assert not any(team.run())
    for every, wanted in cases:
        for x in every:
            assert x.tobytes() == wanted.tobytes(), len(x)


@pytest.mark.parametrize("how", [SUM, MAX, MIN])
def test_nan_stays_nan(how):
    """Whoever has it, and wherever it lies: among whole vectors, and among the last elements."""
    team, n = Team(3), 10_003
    every = [np.full(n, rank, np.float32) for rank in range(3)]
    for rank, x in enumerate(every):
        x[[rank, 5_000 + rank, n - 1 - rank]] = np.nan
    wanted = np.isnan(every).any(axis=0)
    for rank, x in zip(team.ranks, every, strict=True):
        t = ic.from_numpy(x)
        rank.reduce("all_reduce", t, t, slices(n, 3, 4), how)
    assert not any(team.run())
    for x in every:
        assert (np.isnan(x) == wanted).all() and (x[~wanted] == {SUM: 3, MAX: 2, MIN: 0}[how]).all()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_kinds_in_two_streams(rng, size):
    """Those of a group use the same lanes, one after the other, whichever stream asks, with equal and unequal parts."""
    team, checks, backends, kept = Team(size), [], [], []
    for rank in team.ranks:
        backends.append((rank.backend, rank.backend.side_stream()))
    counts = ([9_000] * size, [5, 0, 30_001, 4_000][-size:], [0, 1, 20_000, 7][:size], [25_000] * size)
    for number, parts in enumerate(counts * 2):
        for backend, side in backends:
            backend.stream = side if number % 2 else "main"
        starts = tuple(int(x) for x in np.cumsum([0, *parts]))
        every = given(rng, starts[-1], "float32", size)
        taken = [np.zeros(count, np.float32) for count in parts]
        sent = [rng.integers(0, 256, count, np.uint8) for count in parts]
        got = [[np.zeros(count, np.uint8) for count in parts] for _ in range(size)]
        wanted = folded(every, "float32", SUM)
        kept.append(every)  # until the streams have come there
        for r, rank in enumerate(team.ranks):
            rank.reduce("reduce_scatter", ic.from_numpy(every[r]), ic.from_numpy(taken[r]), starts, SUM, True)
            moves = [(SEND, peer, sent[r].ctypes.data, parts[r]) for peer in range(size) if peer != r]
            moves += [(RECEIVE, peer, got[r][peer].ctypes.data, parts[peer]) for peer in range(size) if peer != r]
            rank.all_gather([move for move in moves if move[3]])
        for r in range(size):
            checks.append((taken[r], wanted[starts[r] : starts[r + 1]]))
            checks += [(got[r][peer], sent[peer]) for peer in range(size) if peer != r]
        again = given(rng, 7_001, "bfloat16", size)
        total = folded(again, "bfloat16", MAX)
        for rank, x in zip(team.ranks, again, strict=True):
            t = ic.from_numpy(x)
            rank.reduce("all_reduce", t, t, slices(x.size, size, x.itemsize), MAX)
        checks += [(x, total) for x in again]
    assert not any(team.run())
    for found, wanted in checks:
        assert found.tobytes() == wanted.tobytes()


def test_lanes_come_behind_the_current_stream_and_it_behind_them():
    """What a stream computes before is added, and what it does later finds the sum."""
    team, size, found = Team(2), 2, []
    every = [np.zeros(9_001, np.float32) for _ in range(size)]
    for number, (rank, x) in enumerate(zip(team.ranks, every, strict=True)):
        streams, t = rank.backend, ic.from_numpy(x)
        for stream in ("main", streams.side_stream(), "main"):
            streams.stream = stream
            mark = streams.event()  # the second stream follows the first one, as any who use one tensor
            streams.put(stream, lambda: time.sleep(5e-3))
            streams.put(stream, lambda x=x, number=number: x.__iadd__(number + 1))
            rank.reduce("all_reduce", t, t, slices(x.size, size, 4), SUM)
            assert streams.stream == stream
            streams.put(stream, lambda x=x: found.append((x.min(), x.max())))
            mark.record(stream)
            for other in list(streams.queues):
                mark.wait(other)
    assert not any(team.run())
    assert sorted(found) == sorted([(3.0, 3.0), (9.0, 9.0), (21.0, 21.0)] * size)


def test_who_waits_too_long_gives_up_for_all(rng):
    """The sentences are those of few elements; `what` is what was asked for."""
    team = Team(3, timeout=0.3)
    x = [ic.from_numpy(np.ones(9_000, np.float32)) for _ in range(3)]
    starts = slices(9_000, 3, 4)
    for rank, one in zip(team.ranks, x):
        rank.reduce("all_reduce", one, one, starts, SUM)
    first, second, third = team.run(team.ranks[:2])
    late = "`all_reduce` waited for rank 2 of its group of 3 longer than 0.3 s: it hangs or computes"
    gone = "`all_reduce` cannot be done: a rank of its group has given up one"
    assert not third
    for found in (first, second):
        assert found and all(str(error).startswith((late, gone)) for error in found)
    assert any(str(error).startswith(late) for error in first + second)
    first, second, third = team.run(team.ranks[2:])
    assert third and all(str(error) == gone for error in third)
    for rank in team.ranks:
        rank.backend.found.clear()
        rank.reduce("reduce_scatter", x[0], ic.zeros(3_000), (0, 3_000, 6_000, 9_000), SUM, True)
    for found in team.run():
        assert found and all(str(error) == gone.replace("all_reduce", "reduce_scatter") for error in found)


@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_rounds_cover_everything_once_and_fit(size):
    one = ours.Copies(Streams(0), 0, size, [1 << 20] * size, 60.0)
    for item in (1, 2, 8):
        for n in (0, 1, 63, 1_000, 20_003, 100_000):
            for parts in (
                one._chunks(n, item),
                one._parts(slices(n, size, item), item),
                one._parts(_uneven(n, size), item),
            ):
                seen, rounds = np.zeros(n, np.int8), 0
                for spans in parts:
                    rounds += 1
                    assert len(spans) == size and all((hi - lo) * item <= one.part for lo, hi in spans)
                    for lo, hi in spans:
                        seen[lo:hi] += 1
                assert (seen == 1).all()
                assert rounds >= sizes.LANES or n * item < sizes.SPLIT_BYTES


def _uneven(n, size):
    return (0, *sorted([n // 7, n // 3] + [n // 2] * (size - 3)), n) if size > 2 else (0, n // 5, n)


def test_the_windows_have_room():
    assert sizes.COPIES_BROKEN * 8 < sizes.COPIES_SLOTS and sizes.COPIES_SLOTS % 256 == 0
    assert len(sizes.WHATS) * sizes.WHAT < 1 << 16 and sizes.MOST_RANKS < sizes.GAVE_UP
    for size in range(2, sizes.MOST_RANKS + 1):
        assert size * sizes.part_bytes(size) <= sizes.LANE_BYTES and sizes.part_bytes(size) % 256 == 0
        assert sizes.part_bytes(size) >= ours._LINE
