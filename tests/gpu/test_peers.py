"""Sums and gathers through windows, run by the CPU: a rank is a thread of Python, a block of it one of the GPU."""

import ctypes
import itertools
import threading

import numpy as np
import pytest
from infinicore.distributed import gpu
from infinicore.kernels.blocks.comm import AVG, MAX, MIN, RECEIVE, SEND, SUM
from infinicore.kernels.blocks.cuda import PEERS
from infinicore.kernels.build import jit
from infinicore.kernels.cpu.comm.waiting import now
from infinicore.kernels.cuda import block
from infinicore.kernels.cuda.comm import peers, sizes, told
from infinicore.kernels.lang.atomic import load_acquire, store_release
from infinicore.kernels.lang.simd import fill, ptr, ramp, stack
from numba import types

import infinicore as ic

from ..stand_ins import StandIns, alone, first


@jit.inline
def _nothing():
    return 0


@jit.inline
def _load(at):
    return load_acquire(ptr(at, types.int64), 0)


@jit.inline
def _store(at, value):
    store_release(ptr(at, types.int64), 0, value)


@jit.inline
def _tell(at, a, b):
    store_release(ptr(at, types.int64), 0, a)
    store_release(ptr(at, types.int64), 1, b)


@jit.inline
def _look(at):
    a, b = load_acquire(ptr(at, types.int64), 0), load_acquire(ptr(at, types.int64), 1)
    return fill(a, types.int64, 2) + (b - a) * ramp(0, types.int64, 2)


@jit.inline
def _look_packet(at):
    b = load_acquire(ptr(at, types.int64), 1)  # which is stored last
    a = load_acquire(ptr(at, types.int64), 0)
    return fill(a, types.int64, 2) + (b - a) * ramp(0, types.int64, 2)


_ALONE = StandIns(
    __file__, (peers, "thread", first), (peers, "threads", alone), (peers, "WARP", 0), (peers, "barrier", _nothing),
    (peers, "load_of_system", _load), (peers, "store_to_system", _store), (peers, "nanoseconds", now),
    (told, "tell_pair", _tell), (told, "store_to_system", _store), (peers, "look_at_pair", _look),
    (peers, "tell_packet", _tell), (peers, "look_at_packet", _look_packet), (peers, "shared", stack),
    (block, "thread", first),
)  # fmt: skip


@pytest.fixture
def run():
    """`run(types, calls)`: the codes of calls, (args of a rank, blocks) each, that run at the same time."""

    def together(parameters, calls, name="all_reduce"):
        """`parameters` are those of the kernel, or of that of each rank."""
        each = parameters if isinstance(parameters, list) else [parameters] * len(calls)
        kernels, codes = [], [[] for _ in calls]
        for one in each:
            kernels.append(_ALONE.kernel(f"comm.peers.{name}", one))

        def rank(number, values, blocks):
            args, kernel = (ctypes.c_int64 * len(values))(*values), kernels[number]
            codes[number] = [kernel(ctypes.addressof(args), b, b + 1) for b in range(blocks)]

        threads = [threading.Thread(target=rank, args=(i, *call)) for i, call in enumerate(calls)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return codes

    return together


class Team:
    """The windows of some ranks, and their calls."""

    def __init__(self, size, timeout=60.0):
        self.size, self.timeout = size, timeout
        self.memory = [np.zeros(sizes.WINDOW_BYTES // 8, np.int64) for _ in range(size)]
        self.windows = [x.ctypes.data for x in self.memory]

    def call(self, rank, x, nbytes=sizes.PIECE_BYTES):
        """(block, blocks) of one rank, each block with so many bytes."""
        piece = nbytes // x.itemsize
        values = PEERS.numbers(
            count=x.size, piece=piece, rank=rank, own=self.windows[rank], timeout=int(self.timeout * 1e9),
            windows=self.windows,
        )  # fmt: skip
        values[PEERS.x] = values[PEERS.y] = x.ctypes.data
        return values, -(-x.size // piece)


FOLD = {SUM: np.add, AVG: np.add, MIN: np.minimum, MAX: np.maximum}


@pytest.mark.parametrize(
    "size, dtype, how",
    [
        (2, "float32", SUM),
        (2, "bfloat16", AVG),
        (3, "bfloat16", AVG),
        (3, "float32", AVG),
        (4, "float16", MAX),
        (2, "int32", MIN),
    ],
)
def test_values_of_many_rounds(run, rng, size, dtype, how):
    """Lengths that change from round to round, as different calls of a group do; all ranks have the same bits."""
    team, kind = Team(size), ic.dtype(dtype).numpy
    parameters = {"T": dtype, "HOW": how, "SIZE": size}
    for n in (1, 5, 40_000, 40_000, 8, 100_003, 100_003, 100_003, 17):
        every = [(rng.integers(-64, 64, n) / (16 if "float" in dtype else 1)).astype(kind) for _ in range(size)]
        wide = [x.astype("float32") if "float" in dtype else x for x in every]
        wanted = wide[0]
        for x in wide[1:]:
            wanted = FOLD[how](wanted, x)
        wanted = (wanted / np.float32(size) if how == AVG else wanted).astype(kind)
        codes = run(parameters, [team.call(rank, x) for rank, x in enumerate(every)])
        assert not any(itertools.chain(*codes))
        for x in every:
            assert x.tobytes() == wanted.tobytes(), n


@pytest.mark.parametrize(
    "name, size, dtype, how",
    [
        ("few", 2, "bfloat16", SUM),
        ("few", 3, "float32", AVG),
        ("few", 4, "int64", MAX),
        ("few", 2, "int8", MIN),
        ("few", 3, "float16", SUM),
        ("packets", 2, "bfloat16", SUM),
        ("packets", 3, "float32", AVG),
        ("packets", 4, "int32", MAX),
        ("packets", 2, "float16", AVG),
    ],
)
def test_what_says_its_round(run, rng, name, size, dtype, how):
    """Words and packets between rounds by flags: all have one count, and the same bits."""
    team, kind, like = Team(size), ic.dtype(dtype).numpy, Team(size)
    parameters = {"T": dtype, "HOW": how, "SIZE": size}
    nbytes = {"few": sizes.TOLD_BYTES, "packets": sizes.PACKET_BYTES}
    for n, short in ((1, True), (5, True), (9_001, False), (9_001, True), (9_001, True), (8, False), (5_003, True)):
        every = [(rng.integers(-64, 64, n) / (16 if "float" in dtype else 1)).astype(kind) for _ in range(size)]
        wanted = [x.copy() for x in every]
        run(parameters, [like.call(rank, x) for rank, x in enumerate(wanted)])
        calls = [team.call(rank, x, nbytes[name] if short else sizes.PIECE_BYTES) for rank, x in enumerate(every)]
        codes = run(parameters, calls, f"all_reduce_{name}" if short else "all_reduce")
        assert not any(itertools.chain(*codes))
        for x, y in zip(every, wanted):
            assert x.tobytes() == y.tobytes(), n
        assert len({x.tobytes() for x in every}) == 1


@pytest.mark.parametrize("name", ["all_reduce", "all_reduce_few", "all_reduce_packets"])
def test_who_waits_too_long_gives_up_for_all(run, name):
    team, parameters = Team(3, timeout=0.2), {"T": "float32", "HOW": SUM, "SIZE": 3}
    every = [np.ones(10, np.float32) for _ in range(3)]
    calls = [team.call(rank, x) for rank, x in enumerate(every)]
    first, second = run(parameters, calls[:2], name)
    assert {first[0], second[0]} <= {3, sizes.GAVE_UP} and 3 in (first[0], second[0])  # 1 + the rank that is missing
    assert run(parameters, calls, name) == [[sizes.GAVE_UP]] * 3
    assert all((x == 1).all() for x in every)


class Gpu:
    """A backend that keeps what a rank launches."""

    stream = 7

    def __init__(self):
        self.launched = []

    def kernel(self, name, types):
        return name, types

    def launch(self, handle, values, blocks, grain, keep, errors, places=(), tensors=None):
        values = list(values)
        for place, name, offset in places:
            values[place] = tensors[name].address + offset
        self.launched.append((*handle, values, blocks))


def done(run, ranks):
    """Run the launches of ranks, one after the other, each of all ranks at the same time."""
    for calls in zip(*(one.backend.launched for one in ranks), strict=True):
        names, parameters, *_ = zip(*calls)
        assert len(set(names)) == 1
        codes = run(list(parameters), [call[2:] for call in calls], names[0].rpartition(".")[2])
        assert not any(itertools.chain(*codes))
    for one in ranks:
        one.backend.launched.clear()


@pytest.mark.parametrize("size", [2, 3])
def test_gathers_and_sums_of_any_sizes(run, rng, size):
    """Unequal parts, from one rank alone, more than a launch takes; sums between them. Bytes are those that were given.

    Words are as large as addresses and sizes allow, which differ from rank to rank.
    """
    team = Team(size)
    ranks = [gpu.Peers(Gpu(), rank, size, team.windows, 60.0) for rank in range(size)]
    for counts in ([5, 0, 3], [40_001, 16_384, 40_000], [8, 8, 8], [0, 100_000, 0], [3 << 20, (1 << 20) + 2, 64]):
        counts = counts[:size]
        every = [rng.integers(0, 256, count + 9, np.uint8)[2 * r : 2 * r + count] for r, count in enumerate(counts)]
        got = [[np.zeros(count, np.uint8) for count in counts] for _ in ranks]
        for rank, one in enumerate(ranks):
            moves = [(SEND, peer, every[rank].ctypes.data, counts[rank]) for peer in range(size) if peer != rank]
            moves += [(RECEIVE, p, got[rank][p].ctypes.data, counts[p]) for p in range(size) if p != rank]
            one.all_gather([move for move in moves if move[3]], ())
        done(run, ranks)
        for rank, parts in enumerate(got):
            for peer, part in enumerate(parts):
                assert peer == rank or part.tobytes() == every[peer].tobytes(), (counts, rank, peer)
        for n in (300_007, 5_001):
            sums = [ic.ones(n) * (rank + 1) for rank in range(size)]
            for one, x in zip(ranks, sums):
                one.all_reduce(x, SUM)
            done(run, ranks)
            assert all((x.numpy() == size * (size + 1) / 2).all() for x in sums)


def test_streams_follow_one_another():
    one = gpu.Peers(Gpu(), 0, 2, [1 << 20, 2 << 20], 60.0)
    one.backend.follow = lambda stream: one.backend.launched.append(stream)
    for stream in (7, 8, 8):
        one.backend.stream = stream
        one.all_gather([(SEND, 1, 4096, 64)], ())
    names = [entry if isinstance(entry, int) else "gather" for entry in one.backend.launched]
    assert names == ["gather", 7, "gather", "gather"]
    assert [entry[1]["T"] for entry in one.backend.launched if isinstance(entry, tuple)] == ["uint64"] * 3


def test_the_window_has_room():
    assert sizes.COUNT < sizes.RECORD and sizes.SLOTS % 256 == 0 and sizes.BROKEN * 8 < sizes.SLOTS
    assert sizes.BLOCKS * sizes.PACKET_BYTES >= sizes.MOST_BYTES and sizes.TOLD_BLOCKS <= sizes.BLOCKS
    assert sizes.BLOCKS * sizes.PIECE_BYTES >= sizes.MOST_BYTES and sizes.PACKETS % 256 == 0
    for size in range(2, sizes.MOST_RANKS + 1):  # slots of all ranks, for two rounds
        blocks = -(-(sizes.MOST_BYTES // (size - 1)) // sizes.PACKET_BYTES)
        assert sizes.PACKETS + 2 * blocks * size * sizes.PACKET_BYTES // 12 * 16 <= sizes.WINDOW_BYTES
    assert gpu._FEW_BYTES <= sizes.TOLD_BLOCKS * sizes.TOLD_BYTES and sizes.TOLD % 256 == 0
    assert sizes.THREADS <= 1024
