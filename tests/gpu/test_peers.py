"""All-reduces through windows, run by the CPU: a rank is a thread of Python, a block of it one thread of the GPU."""

import ctypes
import itertools
import threading

import numpy as np
import pytest
from infinicore.kernels.blocks.comm import AVG, MAX, MIN, SUM
from infinicore.kernels.blocks.cuda import PEERS
from infinicore.kernels.build import jit, render
from infinicore.kernels.cpu.comm.waiting import now
from infinicore.kernels.cuda import block
from infinicore.kernels.cuda.comm import peers, sizes
from infinicore.kernels.lang.atomic import load_acquire, store_release
from infinicore.kernels.lang.simd import ptr, stack
from numba import types

import infinicore as ic


@jit.inline
def _first():
    return 0


@jit.inline
def _alone():
    return 1


@jit.inline
def _nothing():
    return 0


@jit.inline
def _load(at):
    return load_acquire(ptr(at, types.int64), 0)


@jit.inline
def _store(at, value):
    store_release(ptr(at, types.int64), 0, value)


@pytest.fixture
def run(monkeypatch):
    """`run(types, calls)`: the codes of calls, (args of a rank, blocks) each, that run at the same time."""
    for module, name, other in (
        (peers, "thread", _first), (peers, "threads", _alone), (peers, "WARP", 0), (peers, "barrier", _nothing),
        (peers, "load_of_system", _load), (peers, "store_to_system", _store), (peers, "nanoseconds", now),
        (peers, "shared", stack), (block, "thread", _first),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, other)

    def together(parameters, calls):
        source = render.stub("comm.peers.all_reduce", parameters, "cuda")
        handle = jit.load_kernel("emulated.comm.peers.all_reduce", source)
        kernel, codes = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(handle & ~1), [[] for _ in calls]

        def rank(number, values, blocks):
            args = (ctypes.c_int64 * len(values))(*values)
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

    def call(self, rank, x):
        """(block, blocks) of one rank."""
        piece = sizes.PIECE_BYTES // x.itemsize
        values = PEERS.numbers(
            count=x.size, piece=piece, rank=rank, own=self.windows[rank], timeout=int(self.timeout * 1e9),
            windows=self.windows,
        )  # fmt: skip
        values[PEERS.x] = values[PEERS.y] = x.ctypes.data
        return values, -(-x.size // piece)


FOLD = {SUM: np.add, AVG: np.add, MIN: np.minimum, MAX: np.maximum}


@pytest.mark.parametrize(
    "size, phases, dtype, how",
    [
        (2, 1, "float32", SUM),
        (3, 1, "bfloat16", AVG),
        (3, 2, "float32", AVG),
        (4, 2, "float16", MAX),
        (2, 1, "int32", MIN),
    ],
)
def test_values_of_many_rounds(run, rng, size, phases, dtype, how):
    """Lengths that change from round to round, as different calls of a group do; all ranks have the same bits."""
    team, kind = Team(size), ic.dtype(dtype).numpy
    parameters = {"T": dtype, "HOW": how, "SIZE": size, "PHASES": phases}
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


def test_who_waits_too_long_gives_up_for_all(run):
    team, parameters = Team(3, timeout=0.2), {"T": "float32", "HOW": SUM, "SIZE": 3, "PHASES": 1}
    every = [np.ones(10, np.float32) for _ in range(3)]
    calls = [team.call(rank, x) for rank, x in enumerate(every)]
    first, second = run(parameters, calls[:2])
    assert {first[0], second[0]} <= {3, sizes.GAVE_UP} and 3 in (first[0], second[0])  # 1 + the rank that is missing
    assert run(parameters, calls) == [[sizes.GAVE_UP]] * 3
    assert all((x == 1).all() for x in every)


def test_the_window_has_room():
    assert sizes.COUNT < sizes.RECORD and sizes.SLOTS % 256 == 0 and sizes.BROKEN * 8 < sizes.SLOTS
    assert sizes.BLOCKS * sizes.PIECE_BYTES == sizes.MOST_BYTES
    assert sizes.THREADS <= 1024
