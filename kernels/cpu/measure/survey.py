"""The rates of this machine (`build/rates.py`), measured in a tenth of a second.

What is compared is measured in turn, and each rate is the best of many short runs: they are to say what the machine
can do, and its neighbours take a part of some of them.
"""

import time
from types import SimpleNamespace

import numpy as np

from ...blocks.measure import PAGES, RATE, READ
from ...blocks.pool import SHARE, SHARED, SLICES
from ...build import isa, jit
from ...build.rates import Rates
from .. import machine, threads
from .sizes import BLOCK_BYTES, CHAINS, TILE_BYTES, WIDENED_BYTES
from .timed import Timed, aligned

_PAGE = 4096
_MOST_BYTES = 256 << 20  # of memory that is read: beyond most last-level caches, and 0.1 s
_CACHES = 4  # times what these hold, if that is less
_TURNS = 30  # of the rates of instructions: some 30 us each
_READS = 4  # of memory
_LAUNCHES, _LAUNCHES_ASLEEP = 8, 12  # in a turn; in all
_REST = 0.0005  # seconds, after which workers sleep


def survey():
    """The `Rates`; None in a process that runs no kernels, or that may start no threads."""
    if jit.stores_only() or threads.limit() == 1 < threads.available_cpus():
        return None
    threads.set_team(threads.available_cpus())
    launches = _Launches()
    registers = _registers(launches.turn)
    one, every = _memory()
    return Rates(**registers, one_core=one, all_cores=every, launches=launches.found())


def _registers(between):
    """What one thread does in registers, and in its own caches; calls `between()` in turn with them."""
    lanes, rng = isa.lanes(), np.random.default_rng(0)
    floats = (rng.random(TILE_BYTES // 4) / 2 + 0.25).astype(np.float32)  # sums stay finite, and no subnormals
    halves = (floats.view(np.uint32) >> 16).astype(np.uint16)
    pairs = np.resize(np.repeat(halves, 2), WIDENED_BYTES // 2)
    float16 = floats.astype(np.float16).repeat(2)
    bytes_ = rng.integers(1, 8, TILE_BYTES, dtype=np.int8)
    out, near = np.zeros(TILE_BYTES, np.uint8), aligned(machine.second_level_bytes() // 2)
    near[:] = 1
    tile, bf16, byte, both = 2 * 32**3, isa.has_bf16_dot(), isa.has_int8_dot(), isa.has_amx()
    # name: (kernel, operands, rounds, operations of a round, whether the CPU has it)
    chains = {
        "multiply": ("fma_f32", floats, 10_000, 2 * lanes * CHAINS, True),
        "divide": ("divide_f32", floats, 600, lanes * CHAINS, True),
        "widened": ("widened", pairs, 25, WIDENED_BYTES, True),
        "dots": ("dot_bf16_f32", pairs, 10_000, 4 * lanes * CHAINS, bf16),
        "byte_dots": ("dot_i8_i32", bytes_, 10_000, 8 * lanes * CHAINS, byte),
        "tiles": ("tiles_bf16", pairs, 500, tile, both),
        "float16_tiles": ("tiles_f16", float16, 500, tile, isa.has_amx_float16()),
        "byte_tiles": ("tiles_i8", bytes_, 500, 2 * tile, both),
    }
    runs = {}
    for name, (kernel, operands, rounds, each, has) in chains.items():
        if has:
            block = RATE(operands=operands.ctypes.data, results=out.ctypes.data, rounds=rounds)
            runs[name] = Timed(f"measure.rates.{kernel}", block, 1), rounds * each
    sums = np.zeros(len(near) // BLOCK_BYTES, np.int64)
    block = READ(data=near.ctypes.data, sums=sums.ctypes.data)
    runs["near"] = Timed("measure.rates.read", block, len(sums)), len(near)
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(_TURNS):
        for name, (run, _) in runs.items():
            best[name] = min(best[name], run.seconds())
        between()
    found = {name: amount / best[name] / 1e9 for name, (_, amount) in runs.items()}
    return dict.fromkeys(chains, 0.0) | found


def _memory():
    """GB/s that one thread reads from memory, and that all of them read."""
    count, free = threads.available_cpus(), machine.free_bytes()
    nbytes = min(_MOST_BYTES, _CACHES * machine.cache_bytes(), (free or 1 << 30) // 8)
    blocks = max(count, nbytes // (_READS * BLOCK_BYTES)) * _READS
    data, sums = aligned(blocks * BLOCK_BYTES), np.zeros(blocks, np.int64)
    pages = len(data) // _PAGE
    split = count + SHARED * min(SHARE, SLICES // count) if count > 1 else 1
    touched = PAGES(memory=SimpleNamespace(address=data.ctypes.data), page_bytes=_PAGE)
    Timed("measure.touch.pages", touched, pages, split).seconds()
    whole = Timed("measure.rates.read", READ(data=data.ctypes.data, sums=sums.ctypes.data), blocks, split)
    every, one, part = float("inf"), float("inf"), blocks // _READS
    for i in range(_READS):
        block = READ(data=data.ctypes.data + i * part * BLOCK_BYTES, sums=sums.ctypes.data)
        one = min(one, Timed("measure.rates.read", block, part).seconds())
        every = min(every, whole.seconds())
    return part * BLOCK_BYTES / one / 1e9, len(data) / every / 1e9


class _Launches:
    """What launches of 2, 4, 8, ... threads take, each the best of many short turns."""

    def __init__(self):
        most = threads.available_cpus()
        counts = sorted({1, most, *(1 << bit for bit in range(most.bit_length()))})
        block = RATE(operands=0, results=0, rounds=0)
        self._runs = {count: Timed("measure.rates.idle", block, count, count) for count in counts}
        self._warm = dict.fromkeys(counts, float("inf"))

    def turn(self):
        """Some launches of each."""
        for count, run in self._runs.items():
            seconds = sorted(run.seconds() for _ in range(_LAUNCHES))
            self._warm[count] = min(self._warm[count], seconds[_LAUNCHES // 2])

    def found(self):
        """(threads, microseconds that a launch of so many takes longer than a call, more where workers sleep)."""
        found, call = [], 0.0
        for count, run in self._runs.items():
            rested = sorted(_rested(run) for _ in range(_LAUNCHES_ASLEEP))[_LAUNCHES_ASLEEP // 4]
            longer = max(0.0, self._warm[count] - self._warm[1])
            if count == 1:
                call = rested
            else:
                found.append((count, 1e6 * longer, 1e6 * max(0.0, rested - call - longer)))
        return tuple(found)


def _rested(run):
    time.sleep(_REST)
    return run.seconds()
