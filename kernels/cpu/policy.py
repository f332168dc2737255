"""How the CPU splits launches: how many units of a paragraph one item of a kernel does, and how many items a thread.

A paragraph says how many units of work there are, and how large one is, in elements that it reads or computes. A row of
`WORK` says what the kernels of a file (or one kernel) make of that: a slice of `grain` such elements is worth a thread
(some 10 us), and one item is `units` of the paragraph's units (columns that are taken together, rows of a panel).
"""

from typing import NamedTuple

from .quant import panels
from .reduce import sizes as reduce_sizes


class Work(NamedTuple):
    """A slice of `grain` elements is worth a thread; an item is `units` units."""

    grain: int
    units: int = 1


DEFAULT = Work(32768)

# by kernel (`folder.file.function`), or by the file of kernels
WORK = {
    "norm.rows": Work(65536),  # 8 us for float32
    "quant.quantize": Work(16384, panels.LANES),  # some 20 us
    "quant.layouts": Work(16384, panels.LANES),
    "quant.layouts.awq": Work(16384, panels.AWQ_COLUMNS),
    "quant.expand.dequantize": Work(16384, panels.LANES),
    "quant.gguf.dequantize": Work(65536),  # 20 to 60 us, by kind
    "quant.gguf.pack": Work(65536, panels.LANES),
    "reduce.chunks": Work(65536, reduce_sizes.PAIR),
}

_known = {}  # kernel -> its Work


def _work(kernel):
    found = WORK.get(kernel) or WORK.get(kernel.rpartition(".")[0]) or DEFAULT
    _known[kernel] = found
    return found


def split(kernel, units, unit_size):
    """(items, grain) of a launch of `units` units of `unit_size` elements.

    `units` may be a pair (outer, inner): items then never cross from one of the outer units to the next.
    """
    grain, together = _known.get(kernel) or _work(kernel)
    if together > 1:
        outer, inner = units if type(units) is tuple else (1, units)
        units, unit_size = outer * -(-inner // together), unit_size * together
    elif type(units) is tuple:
        units = units[0] * units[1]
    return units, max(1, grain // unit_size) if unit_size else grain
