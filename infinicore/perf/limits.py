"""The machine's limits, measured with kernels of our own: multiply-add peak, and bandwidth of reading and updating.

They are launched through the same driver and on the same threads as every other kernel, and a report
measures them in turn with the cases, because the clock and the neighbours of a machine change.
"""

import numpy as np

from .. import dispatch  # noqa: F401 (it tells the launcher who its threads are)
from ..core import launch
from ..kernels.blocks.measure import RATE, READ, UPDATE
from ..kernels.blocks.pool import SHARE, SHARED
from ..kernels.build import isa
from ..kernels.cpu import threads
from ..kernels.cpu.measure.sizes import BLOCK_BYTES, CHAINS, TILE_BYTES
from ..kernels.cpu.measure.timed import Timed, aligned

_ROUNDS = 200_000  # 12 multiply-adds each: about 0.7 ms
DEFAULT_READ_BYTES = 256 << 20
_MOST_READ_BYTES = 512 << 20  # far beyond every cache: more reads no slower
_LEAST_READ_BYTES = 64 << 10
_LEAST_BYTES_PER_THREAD = 256 << 10  # 3 us of reading: with less, starting a thread costs more than it brings


def _timed(name, block, n, parts):
    if parts > 1:
        launch.gather_team()
    return Timed(name, block, n, parts)


class FmaPeak:
    """Multiply-adds in registers, on every thread: `amount` FLOPs per call.

    Threads take turns as in any launch: with a slice for each the slowest of 16 shared cores said how fast all are, and
    products were at 135 % of the peak (tile registers: 4,300 GFLOP/s, where each by itself did 11,000 in all).

    `dtype` is what is multiplied: bfloat16 uses tiles or the dot instruction where the CPU has them; otherwise it
    and float16 are widened and multiplied as float32, which is then their peak as well. int8 uses the dot
    instruction of bytes where the CPU has it (4 times the float32 rate), otherwise it is widened too.
    """

    def __init__(self, dtype):
        lanes, parts = isa.lanes(), threads.default_threads()
        name, self.per_round = "measure.rates.fma_f32", 2 * lanes
        self.unit = "GOP/s" if dtype == "int8" else "GFLOP/s"
        if dtype == "float64":
            name, self.per_round = "measure.rates.fma_f64", lanes
        elif dtype == "bfloat16" and isa.has_amx():
            name, self.per_round = "measure.rates.tiles_bf16", 2 * 32**3 / CHAINS
        elif dtype == "bfloat16" and isa.has_bf16_dot():
            name, self.per_round = "measure.rates.dot_bf16_f32", 4 * lanes
        elif dtype == "int8" and isa.has_int8_dot():
            name, self.per_round = "measure.rates.dot_i8_i32", 8 * lanes
        self.amount = float(self.per_round * CHAINS * _ROUNDS * parts)
        rng = np.random.default_rng(0)
        # Factor and addend in (0.25, 0.75): the chains stay near 1, far from denormals and infinity.
        kind = np.float64 if dtype == "float64" else np.float32
        tiled = name == "measure.rates.tiles_bf16"  # 4 KB of operands, and as much for each result
        count = (TILE_BYTES if tiled else 14 * isa.vector_bytes()) // np.dtype(kind).itemsize
        self._operands = (rng.random(count) / 2 + 0.25).astype(kind)
        if "bf16" in name:  # the upper half of a float32 is a bfloat16: twice, for a pair
            high = self._operands.view(np.uint32) >> 16
            self._operands = (high << 16 | high).view(np.float32)
        if name == "measure.rates.dot_i8_i32":
            kind, self._operands = np.int32, rng.integers(1, 2**31, count, dtype=np.int32)
        each = SHARE if parts > 1 else 1
        result = (TILE_BYTES if tiled else isa.vector_bytes()) // self._operands.itemsize
        self._out = np.zeros(parts * each * result, kind)
        block = RATE(operands=self._operands.ctypes.data, results=self._out.ctypes.data, rounds=_ROUNDS // each)
        self._launch = _timed(name, block, parts * each, parts + SHARED * each if parts > 1 else 1)
        self._launch.seconds()

    def measure(self, repetitions):
        """Seconds of one call: the fastest of `repetitions`, since a limit is what can be reached."""
        return min(self._launch.seconds() for _ in range(repetitions))

    def results(self):
        """What the chains came to: finite and not zero, if they ran."""
        return self._out


class ReadBandwidth:
    """Reading a buffer of `nbytes` (64 KiB to 512 MiB) on every thread: `amount` bytes per call.

    A buffer that fits a cache gives the cache's bandwidth: take the size of the case's data.
    """

    unit = "GB/s"

    def __init__(self, nbytes=DEFAULT_READ_BYTES):
        parts = max(1, min(threads.default_threads(), int(nbytes) // _LEAST_BYTES_PER_THREAD))
        blocks = min(max(int(nbytes), _LEAST_READ_BYTES), _MOST_READ_BYTES) // BLOCK_BYTES
        self.amount = float(blocks * BLOCK_BYTES)
        self._buffer = aligned(blocks * BLOCK_BYTES)
        self._buffer.view(np.uint64)[:] = np.random.default_rng(0).integers(0, 2**63, blocks * BLOCK_BYTES // 8)
        self._sums = np.zeros(blocks, np.int64)
        block = READ(data=self._buffer.ctypes.data, sums=self._sums.ctypes.data)
        self._launch = _timed("measure.rates.read", block, blocks, parts)
        self._launch.seconds()

    def measure(self, repetitions):
        """Seconds of one call: the fastest of `repetitions`."""
        return min(self._launch.seconds() for _ in range(repetitions))

    def checksum(self):
        """The sum of the buffer's uint32 values modulo 2^32, as the kernel found it."""
        return int(self._sums.sum()) % 2**32

    def expected_checksum(self):
        """The same by NumPy."""
        return int(self._buffer.view(np.uint32).sum(dtype=np.uint64)) % 2**32


class UpdateBandwidth:
    """Reading four float32 arrays of `nbytes` together and writing three of them: `amount` bytes moved per call.

    What a step of AdamW moves (arrays are the gradient, two states and the parameter), on every thread.
    """

    unit = "GB/s"

    def __init__(self, nbytes):
        parts = threads.default_threads()
        blocks = max(parts, int(nbytes) // 4 // BLOCK_BYTES)
        self.amount = 7.0 * blocks * BLOCK_BYTES
        self.arrays = [aligned(blocks * BLOCK_BYTES).view(np.float32) for _ in range(4)]
        pattern = np.random.default_rng(0).random(1 << 16, dtype=np.float32) + np.float32(0.5)  # far from denormals
        for array in self.arrays:
            for i in range(0, array.size, pattern.size):
                array[i : i + pattern.size] = pattern[: array.size - i]
        names = "gradient", "first", "second", "value"
        block = UPDATE(**{name: array.ctypes.data for name, array in zip(names, self.arrays)})
        self._launch = _timed("measure.rates.update", block, blocks, parts)
        self._launch.seconds()

    def measure(self, repetitions):
        """Seconds of one call: the fastest of `repetitions`."""
        return min(self._launch.seconds() for _ in range(repetitions))


def prepare(kind, dtype, nbytes):
    """The limit that a case names: "fma", "int8", "read" or "update"."""
    if kind == "update":
        return UpdateBandwidth(nbytes)
    return ReadBandwidth(nbytes) if kind == "read" else FmaPeak("int8" if kind == "int8" else dtype)


def table():
    """All limits of this machine: rows of (name, value, unit), for `infinicore perf limits`."""
    rows = []
    for dtype in ("float32", "float64", "bfloat16", "int8"):
        peak = FmaPeak(dtype)
        rows.append((f"multiply-add peak, {dtype}", peak.amount / peak.measure(30) / 1e9, peak.unit))
    for mib in (1, 16, DEFAULT_READ_BYTES >> 20):
        read = ReadBandwidth(mib << 20)
        rows.append((f"read bandwidth, {mib} MiB", read.amount / read.measure(10) / 1e9, read.unit))
    update = UpdateBandwidth(DEFAULT_READ_BYTES)
    name = f"update bandwidth, {DEFAULT_READ_BYTES >> 20} MiB in four arrays"
    rows.append((name, update.amount / update.measure(10) / 1e9, update.unit))
    return rows
