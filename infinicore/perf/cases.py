"""What a case of the comparison is: the inputs, how much work one call does, against whom, and which limit applies.

Inputs come from one seeded generator, so that every process makes the same arrays, and none of them is zeros
(zeros draw less power and flatter a kernel).
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np

ITEMSIZE = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
HIGHER_IS_BETTER = ("GFLOP/s", "GB/s", "tokens/s")
NUMPY, TORCH = ("numpy",), ("torch",)
BOTH = ("numpy", "torch")
LLM = ("transformers", "llama.cpp")

_POOL = 1 << 24  # more normal numbers than these repeat: making 256 Mi takes three seconds

# how far two sides may differ, relative to the largest value of the result
TOLERANCE = {"int64": 0.0, "float32": 1e-4, "float64": 1e-10, "bfloat16": 2e-2, "float16": 4e-3}


def times_better(unit, figure, other):
    """How many times `figure` is better than `other`: above 1 means faster, or smaller for memory."""
    return figure / other if unit in HIGHER_IS_BETTER else other / figure


class Skip(Exception):
    """A case that cannot be run here (a file or a package is absent)."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Input:
    """One array: normal numbers, or what `kind` names (`_MADE`), with numbers from `low` to `high`.

    `layout` "transposed" and "sliced": a side shows the last two dims exchanged, or rows with gaps between them.
    """

    shape: tuple[int, ...]
    kind: str = "normal"
    high: float = 0
    scale: float = 1.0
    low: float = 0
    layout: str = "contiguous"

    def make(self, rng):
        if self.kind == "normal":
            count = min(int(np.prod(self.shape)), _POOL)
            return np.resize(rng.standard_normal(count, dtype=np.float32) * np.float32(self.scale), self.shape)
        return _MADE[self.kind](self, rng)


def _definite(given, rng):
    x = rng.standard_normal(given.shape, dtype=np.float32)
    return x @ np.swapaxes(x, -1, -2) / given.shape[-1] + np.eye(given.shape[-1], dtype=np.float32)


_MADE = {
    "index": lambda x, rng: rng.integers(0, x.high, x.shape, dtype=np.int64),
    "permutation": lambda x, rng: rng.permutation(np.prod(x.shape)).reshape(x.shape),
    "permutations": lambda x, rng: rng.permuted(np.tile(np.arange(x.shape[-1]), (*x.shape[:-1], 1)), axis=-1),
    "bool": lambda x, rng: rng.random(x.shape) < 0.5,
    "uniform": lambda x, rng: rng.uniform(x.low, x.high, x.shape).astype(np.float32),
    "sorted": lambda x, rng: np.sort(rng.standard_normal(x.shape, dtype=np.float32)),
    "definite": _definite,
    "pivots": lambda x, rng: np.arange(1, x.shape[0] + 1, dtype=np.int32),  # no rows exchanged
}


@dataclass(kw_only=True, slots=True, frozen=True)
class Case:
    """One row of the report.

    `work` is what one call does, in the unit's terms: FLOPs, bytes, tokens, or 1 for a time. The least
    time that the machine could need is `limit_work` (operations or bytes) at the rate that `limit` names:
    "fma" (multiply-add peak of the dtype), "int8" (the same of bytes), "read" (read bandwidth of a buffer of
    `limit_bytes`) or "update" (that of reading four arrays of `limit_bytes` together and writing three of them).
    `group` names cases that share processes of their own.
    """

    suite: str
    name: str
    op: str
    dtype: str
    unit: str
    work: float = 1.0
    inputs: dict[str, Input] = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    peers: tuple[str, ...] = BOTH
    limit: str | None = None
    limit_work: float = 0.0
    limit_bytes: int = 0
    group: str = "shared"
    threads: int | None = None  # of every side; None: the run's number
    tolerance: float | None = None
    absolute: bool = False  # the tolerance is of the difference itself, not relative to the largest value
    compared: bool = True  # False: the sides may rightly differ, and results are not compared
    repeat: bool = True  # False: one call per turn, where repeating costs too much or means nothing
    rounds: int | None = None  # turns of each side; None: the run's number
    turn_s: float | None = None  # how long a turn takes; None: the run's time. The results are then compared first
    base: tuple[str, str] | None = None  # (name, dtype) of the row of the suite that ours is also set against
    family: str = ""  # of the op, where a case belongs to a row of the op table
    layout: str = ""  # of its tensors, likewise
    series: str | None = None  # the curve of the plots that this case is a point of, at `x`
    x: float | None = None
    device: str = "cpu"  # where both sides compute; on a GPU calls are timed by its events,
    calls_from_python: bool = False  # or by the clock, where Python is what takes time

    @property
    def higher_is_better(self):
        return self.unit in HIGHER_IS_BETTER

    @property
    def allowed_error(self):
        return TOLERANCE[self.dtype] if self.tolerance is None else self.tolerance

    def value(self, measured):
        """The figure of the report for one call that took `measured` seconds (or bytes, for MB)."""
        scale = {"GFLOP/s": 1e-9, "GB/s": 1e-9, "tokens/s": 1.0}
        if self.higher_is_better:
            return self.work * scale[self.unit] / measured
        return measured * {"us": 1e6, "ms": 1e3, "s": 1.0, "MB": 1e-6}[self.unit]

    def arrays(self):
        """Its inputs as NumPy arrays (float32, int64, bool), the same in every process."""
        seed = int.from_bytes(hashlib.sha256(repr(self.inputs).encode()).digest()[:8], "little")
        rng = np.random.default_rng(seed)
        return {name: given.make(rng) for name, given in self.inputs.items()}
