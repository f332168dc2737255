"""Elements and rows by index: an element for a thread, or 16 bytes of a row where rows are made of them."""

from math import prod

from ...blocks.array import BIN_COUNTS, FILLED
from ...blocks.cuda import COUNTED, PLACED
from ...build.load import kernel
from ...cpu.plans import array as cpu
from ...cpu.plans.array import merged
from ...plan import Plan, launch

ROOM = 8192  # counts of 32 bits in a block's shared memory, of which seven have room in a multiprocessor
_SHORT = 1 << 31  # numbers below are of 32 bits


def _bytes(dtype):
    return 1 if dtype == "bool" else int(dtype.partition("_")[0].lstrip("bfloatuin")) // 8


def placed(name, types, bound, t_k, dims, at=None):
    """One launch of `array/elements.py`: `dims` are (size, strides in t, in the index, in v), the innermost last."""
    moved, lanes = name in ("gather", "scatter"), 16 // _bytes(types["T"])
    length, *steps = dims[-1]
    others = [step for _, t_step, _, v_step in dims[:-1] for step in (t_step, v_step)]
    pieces = moved and steps == [1, 0, 1] and not any(n % lanes for n in (length, t_k, *others)) and lanes > 1
    if pieces:
        dims, types = dims[:-1] or [[1, 0, 0, 0]], {"T": types["T"], "I": types["I"]}
    n = prod(d[0] for d in dims) * (length // lanes if pieces else 1)
    wide = n >= _SHORT or any(abs(step) >= _SHORT for d in dims for step in d)
    handle = kernel(f"array.elements.{name}{'_rows' * pieces}", **types, DIMS=len(dims), WIDE=wide)
    columns = [d[k] for k in range(4) for d in dims]
    return launch(handle, PLACED, n, 1, at, bound=bound, t_k=t_k, length=length, dims=columns)


def elements(problem):
    """One launch over the elements of the index, by falling strides of it and of v; ordered ones are the CPU's."""
    p, dim = problem, problem.dim
    if p.ordered:
        return cpu.elements(p, 1)
    order = sorted(range(len(p.own)), key=lambda d: -abs(p.strides[d]) - abs(p.v_strides[d]))
    t_strides = [0 if d == dim else step for d, step in enumerate(p.t_strides)]
    dims = merged(*([values[d] for d in order] for values in (p.own, t_strides, p.strides, p.v_strides)))
    bound, t_k = (p.shape[dim], p.t_strides[dim]) if p.own else (1, 1)
    if p.kernel == "scatter_add" and len(dims) == 1 and bound <= ROOM and not dims[0][1] and not dims[0][3]:
        types, (n, _, step, _) = {"T": p.t, "V": p.v, "I": p.i}, dims[0]
        numbers = {"cells": bound, "copies": copies(bound), "step": step, "t_k": t_k}
        return Plan((launch(kernel("array.counts.count", **types), COUNTED, n, 1, **numbers),))
    return Plan((placed(p.kernel, {"T": p.t, "V": p.v, "I": p.i}, bound, t_k, dims or [[1, 0, 0, 0]]),))


def put_rows(problem):
    """The same of rows that are written; those that are added are the CPU's."""
    p = problem
    if p.add:
        return cpu.put_rows(p, 1)
    v_outer, v_row, v_step = p.v_strides
    sizes = (p.outer, p.count, p.length)
    dims = merged(sizes, (p.rows * p.length, 0, 1), (0, 1, 0), (v_outer, v_row, v_step)) or [[1, 0, 0, 0]]
    return Plan((placed("scatter", {"T": p.t, "V": p.v, "I": "int64"}, p.rows, p.length, dims),))


def copies(cells):
    """How many counts of each cell a block has: one for each thread of a warp, or as many as there is room for."""
    return min(32, 1 << (ROOM // max(1, cells)).bit_length() - 1)


def bin_counts(problem):
    """Zeros, to which blocks add what they have counted."""
    p, shared = problem, problem.bins <= ROOM
    zeros = launch(kernel("array.create.filled", E="uint64"), FILLED, p.bins, 1, value=0)
    numbers = {"size": p.size, "step": p.size, "bins": p.bins, "copies": copies(p.bins) if shared else 1}
    bins = kernel("array.counts.bins", T=p.dtype, SHARED=shared)
    return Plan((zeros, launch(bins, BIN_COUNTS, p.size, 1, later=("low", "high"), **numbers)))
