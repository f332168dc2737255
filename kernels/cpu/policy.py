"""How the CPU splits launches: how many units of a paragraph one item of a kernel does, and how many items a thread.

A paragraph says how many units of work there are, and how large one is, in elements that it reads or computes. A row of
`WORK` says what the kernels of a file (or one kernel) make of that: a slice of `grain` such elements is worth a thread
(some 10 us), and one item is `units` of the paragraph's units (columns that are taken together, rows of a panel).
"""

from typing import NamedTuple

from ..blocks.array import DROPOUT_GROUP
from ..blocks.optim import UNIT
from .array import sizes as array_sizes
from .quant import panels
from .reduce import sizes as reduce_sizes


class Work(NamedTuple):
    """A slice of `grain` elements is worth a thread; an item is `units` units, each of which costs `fixed` more."""

    grain: int
    units: int = 1
    fixed: int = 0


DEFAULT = Work(32768)

# By kernel (`folder.file.function`), or by the file of kernels. What only moves elements is counted in bytes.
WORK = {
    "array.activation_grad": Work(16384),  # 10 us for float32
    "array.cells": Work(16384),  # 10 us for float32
    "array.chosen": Work(65536),
    "array.copy": Work(262144),  # 10 us
    "array.copy.joined": Work(262144, array_sizes.UNIT),
    "array.create": Work(262144),
    "array.create.count_nonzero": Work(65536),  # elements
    "array.create.nonzero": Work(65536),
    "array.dropout": Work(16384, DROPOUT_GROUP),  # 8 us for float32
    "array.draws": Work(8192, DROPOUT_GROUP),
    "array.gather": Work(131072),  # some 10 us
    "array.masks": Work(32768),  # elements: some 20 us
    "array.repeats": Work(262144),  # bytes
    "array.scatter": Work(16384),  # 20 us
    "array.scatter.add_rows": Work(32768, array_sizes.COLUMNS),
    "array.scatter.offsets": Work(4096),
    "attention.kvcache.write": Work(262144),  # some 30 us
    "attention.kvcache.write_int8": Work(65536),  # bytes of the source: four times as long
    "conv.pooling": Work(16384),
    "linalg.cross": Work(16384, reduce_sizes.LANES),
    "linalg.factor.solve_triangular": Work(32768, reduce_sizes.PAIR),
    "loss.classes": Work(32768, fixed=256),  # logits: 6 us for float32; a row costs 50 ns besides
    "norm.channels": Work(16384),
    "norm.rows": Work(32768),  # 8 us for float32, 12 on an Emerald Rapids
    "norm.softmax.columns": Work(32768, reduce_sizes.PAIR),
    "norm.softmax.logsumexp": Work(8192),
    "norm.softmax_grad.columns": Work(32768, reduce_sizes.PAIR),
    "optim.norm": Work(4 * UNIT),  # reading 64 Ki elements takes some 10 us
    "optim.adaptive": Work(2 * UNIT),
    "optim.update": Work(2 * UNIT),  # some 20 us of AdamW
    "quant.quantize": Work(16384, panels.LANES),  # some 20 us
    "quant.layouts": Work(16384, panels.LANES),
    "quant.layouts.awq": Work(16384, panels.AWQ_COLUMNS),
    "quant.expand.dequantize": Work(16384, panels.LANES),
    "quant.gguf.dequantize": Work(65536),  # 20 to 60 us, by kind
    "quant.gguf.pack": Work(65536, panels.LANES),
    "recurrent.delta.delta_rule": Work(32768, reduce_sizes.PAIR),
    "recurrent.selective.put_states": Work(262144),  # bytes
    "reduce.chunks": Work(65536, reduce_sizes.PAIR),
    "reduce.sample.greedy": Work(65536),
}

_known = {}  # kernel -> its Work


def _work(kernel):
    found = WORK.get(kernel) or WORK.get(kernel.rpartition(".")[0]) or DEFAULT
    _known[kernel] = found
    return found


def split(kernel, units, unit_size):
    """(items, grain) of a launch of `units` units of `unit_size` elements; none of these kernels counts its slices.

    `units` may be a pair (outer, inner): items then never cross from one of the outer units to the next.
    """
    grain, together, fixed = _known.get(kernel) or _work(kernel)
    unit_size += fixed
    if together > 1:
        outer, inner = units if type(units) is tuple else (1, units)
        units, unit_size = outer * -(-inner // together), unit_size * together
    elif type(units) is tuple:
        units = units[0] * units[1]
    return units, -max(1, grain // unit_size) if unit_size else -grain
