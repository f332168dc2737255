"""Elements and rows by index: an element for a thread, or 16 bytes of a row where rows are made of them."""

from math import prod

from ...blocks import float_bits
from ...blocks.array import BIN_COUNTS, FILLED, GATHER_ROWS
from ...blocks.cuda import ADD_SORTED, COPY, COUNTED, PLACED
from ...build.load import kernel
from ...cpu.plans import array as cpu
from ...cpu.plans.array import merged
from ...plan import Plan, launch

ROOM = 8192  # counts of 32 bits in a block's shared memory, of which seven have room in a multiprocessor
_OUTERS = 8  # of `cuda/array/scatter.py`: rows of v that a thread has
_NARROW, _OUTER, _OF_EACH = 4, 32, 16  # rows of few elements, many of them, and few of an index on average
_CHUNK = 64  # of `cuda/array/scatter.py`
FEW = 1024  # indices that each block compares with its own
_LEAST, _PIECE = 32, 4096  # elements of rows that are worth it, and of a block
_FILLED = 1 << 16  # elements from which on 16 bytes at once are worth a second launch
_WORDS = ("float32", "float64", "int32", "int64")  # that memory adds to by itself
_SHORT = 1 << 31  # numbers below are of 32 bits


def _bytes(dtype):
    return 1 if dtype == "bool" else int(dtype.partition("_")[0].lstrip("bfloatuin")) // 8


def placed(name, types, bound, t_k, dims, wrap=0, at=None):
    """One launch of `array/elements.py`: `dims` are (size, strides in t, in the index, in v), the innermost last; `at`
    says where tensors are, as for `launch`."""
    moved, lanes = name in ("gather", "scatter"), 16 // _bytes(types["T"])
    length, *steps = dims[-1]
    others = [step for _, t_step, _, v_step in dims[:-1] for step in (t_step, v_step)]
    pieces = moved and steps == [1, 0, 1] and not any(n % lanes for n in (length, t_k, *others)) and lanes > 1
    if pieces:
        dims, types = dims[:-1] or [[1, 0, 0, 0]], {"T": types["T"], "I": types["I"]}
    extremes = name in ("scatter_larger", "scatter_smaller") and types["T"] in ("bfloat16", "float16")
    if extremes and steps == [1, 0, 1] and not any(n % 4 for n in (length, t_k, *others)):
        name, dims = f"{name}_four", [*dims[:-1], [length // 4, 4, 0, 4]]
    n = prod(d[0] for d in dims) * (length // lanes if pieces else 1)
    wide = n >= _SHORT or any(abs(step) >= _SHORT for d in dims for step in d)
    handle = kernel(f"array.elements.{name}{'_rows' * pieces}", **types, DIMS=len(dims), WIDE=wide)
    columns = [d[k] for k in range(4) for d in dims]
    return launch(handle, PLACED, n, 1, at, bound=bound, t_k=t_k, wrap=wrap, length=length, dims=columns)


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
    types, dims = {"T": p.t, "V": p.v, "I": p.i}, dims or [[1, 0, 0, 0]]
    return Plan((placed(p.kernel, types, bound, t_k, dims, bound if p.wrap else 0),))


def gather_rows(problem):
    """One launch over the pieces of 16 bytes of all rows of y, or over their elements where rows are shorter."""
    p = problem
    lanes = 16 // _bytes(p.bits)
    whole = p.length >= lanes
    n = p.outer * p.indices * (-(-p.length // lanes) if whole else p.length)
    numbers = {field: getattr(p, field) for field in GATHER_ROWS.names if field not in ("y", "x", "index")}
    wide = max(n, p.length, p.end, p.outer, *map(abs, (p.step, p.row_stride, p.outer_stride))) >= _SHORT
    kind = "rows" if whole else "single" if p.outer == p.length == 1 else "elements"
    handle = kernel(f"array.gather.gather_{kind}", E=p.bits, I=p.index, WIDE=wide)
    return Plan((launch(handle, GATHER_ROWS, n, 1, **numbers),))


def put_rows(problem):
    """The same of rows that are written; of rows that are added, as `add_rows`."""
    p = problem
    if p.add:
        return _added(p, p.t, p.v, "int64", 1, p.count, 1, p.v_strides)
    types, at, launches, scratch = {"T": p.t, "V": p.v, "I": "int64"}, None, (), ()
    v_outer, v_row, v_step = p.v_strides
    many = p.outer * p.count * p.length >= _FILLED
    if many and p.t == p.v and not (v_outer or v_row or v_step) and p.length % (16 // _bytes(p.t)) == 0:
        # One number becomes a row, so that rows are written 16 bytes at a time.
        one = kernel("array.create.repeated", E=f"uint{8 * _bytes(p.t)}")
        launches = (launch(one, COPY, p.length, 1, {"x": ("v", 0), "y": ("row", 0)}),)
        scratch, at, v_step = (("row", p.length * _bytes(p.t)),), {"v": ("row", 0)}, 1
    dims = _rows(p, 1, p.count, (v_outer, v_row, v_step))
    return Plan((*launches, placed("scatter", types, p.rows, p.length, dims, at=at)), scratch)


def _rows(p, step, count, v_strides):
    """Dims of rows by index for `placed`."""
    v_outer, v_row, v_step = v_strides
    layouts = (p.rows * p.length, 0, 1), (0, step, 0), (v_outer, v_row, v_step)
    return merged((p.outer, count, p.length), *layouts) or [[1, 0, 0, 0]]


def add_rows(problem):
    """Short rows of integers by atomic additions; few rows by comparing indices; others by sorting them."""
    p = problem
    return _added(p, p.dtype, p.dtype, p.index, p.step, p.indices, p.scale, (p.indices * p.length, p.length, 1))


def _added(p, dtype, of, index, step, count, scale, v_strides):
    """t[o, index[n]] += scale * v[o, n], of `outer`, `rows` and `length` of a problem."""
    floating = "float" in dtype
    each = p.length <= _NARROW and p.outer >= _OUTER and count <= _OF_EACH * p.rows and of == dtype
    if p.length <= _NARROW and not (floating or each) and dtype in _WORDS and scale == 1:
        types = {"T": dtype, "V": of, "I": index}
        return Plan((placed("scatter_add", types, p.rows, p.length, _rows(p, step, count, v_strides)),))
    sums = dtype if dtype == "float64" or not floating else "float32"
    numbers = {"indices": count, "rows": p.rows, "length": p.length, "outer": p.outer, "step": step}
    numbers |= dict(zip(("v_outer", "v_row", "v_step"), v_strides))
    numbers["scale"] = float_bits(scale) if floating else scale
    types = {"T": dtype, "V": of, "A": "float64" if floating else "int64", "C": sums, "I": index}
    if count <= FEW and p.length >= _LEAST:
        pieces, at = -(-p.length // _PIECE), {"keys": ("index", 0), "order": None, "parts": None}
        few = kernel("array.scatter.add_few", **types)
        return Plan((launch(few, ADD_SORTED, p.outer * count * pieces, 1, at, **numbers, windows=pieces),))
    from .reduce import by_digits  # which copies by `array.py`, which adds by this file

    bits, windows = int(index.removeprefix("int")), 2 * -(-count // _CHUNK)
    digits = min(bits // 8, max(1, -(-(p.rows - 1).bit_length() // 8)))
    keys = {"E": f"uint{bits}", "KIND": 0}
    sort = {"stride": 0, "step": step, "infinity": 0, "mask": 0}
    launches, scratch, at = by_digits(1, count, bits // 8, digits, keys, "index", **sort)
    numbers["windows"], n = windows, p.outer * count
    if each:
        n = p.rows * p.length * -(-p.outer // _OUTERS)
        one = launch(kernel("array.scatter.add_each", **types), ADD_SORTED, n, 1, at | {"parts": None}, **numbers)
        return Plan((*launches, one), scratch)
    launches.append(launch(kernel("array.scatter.add_sorted", **types), ADD_SORTED, n, 1, at, **numbers))
    if count > _CHUNK:
        types = {"T": dtype, "C": sums, "I": index}
        launches.append(launch(kernel("array.scatter.add_parts", **types), ADD_SORTED, n, 1, at, **numbers))
    parts = ("parts", max(1, p.outer * windows * p.length) * (8 if "64" in sums else 4))
    return Plan(tuple(launches), (*scratch, parts))


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
