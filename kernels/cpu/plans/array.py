"""Copies, and elements and rows by index: which loop walks a layout, and in which pieces."""

from math import prod

from ...blocks import float_bits
from ...blocks.array import ADD_ROWS, BIN_COUNTS, CHAIN, COPY, ELEMENTS, GATHER_ROWS, PUT_ROWS, RUNS, SUM_OF_BINS
from ...build.load import kernel
from ...plan import Plan, launch
from ...problems.array import AddRows, BinCounts, Copy, Elements, FirstOfRuns, GatherRows, PutRows
from .. import policy
from ..array import sizes
from ..machine import cache_bytes

_LONG_ROW = 1024  # bytes, of which nearly all are whole lines


def merged(shape, *layouts):
    """[size, strides...] of dims of several layouts, neighbours merged where all step evenly."""
    dims = []
    for size, *strides in zip(shape, *layouts):
        if size == 1:
            continue
        if dims and all(a == size * b for a, b in zip(dims[-1][1:], strides)):
            dims[-1] = [dims[-1][0] * size, *strides]
        else:
            dims.append([size, *strides])
    return dims


def _columns(dims, width):
    """Dims as kernels read them: all sizes, all strides in the first layout, in the second, ..."""
    return [d[k] for k in range(width) for d in dims]


def _loop_of(dims):
    """Which dim is the inner loop where the last one is short: the innermost that is not, else the longest.

    Not simply the longest: windows [1024, 511, 4] of a matrix would be written column by column, in 11 and not 0.8 ms.
    """
    long = [d for d, (size, *_) in enumerate(dims) if size >= sizes.SHORT]
    return long[-1] if long else max(range(len(dims)), key=lambda d: dims[d][0])


def copy(problem, threads):
    """Rows by rows, by falling stride in y; two dims of swapped strides in tiles, in registers."""
    shape, y_strides, x_strides, itemsize = problem
    order = sorted(range(len(shape)), key=lambda d: -abs(y_strides[d]))
    dims = merged(*([values[d] for d in order] for values in (shape, y_strides, x_strides))) or [[1, 1, 1]]
    short = sizes.MASKED and 1 < dims[-1][0] < sizes.SHORT and dims[-1][1:] == [1, 1] and itemsize <= 8
    if dims[-1][0] < sizes.SHORT and not short:  # loops of a few elements cost more than large steps
        dims.append(dims.pop(_loop_of(dims)))
    size, y_stride, x_stride = dims.pop()
    turned = y_stride == 1 and x_stride not in (0, 1) and size >= 8  # rows of one value are filled
    turned = [d for d in dims if d[2] == 1 and d[0] >= 8] if turned else None
    if turned:
        dims.remove(turned[0])
        other, other_y_stride, other_x_stride = turned[0]
        step = 8 if itemsize == 8 else 16
        name, units, elements = f"array.copy.transpose_{step}", -(-other // step), step * size
    else:
        other, other_y_stride, other_x_stride = 1, 0, 0
        step = sizes.UNIT // itemsize
        name = "array.copy.rows" if y_stride == 1 and x_stride == 1 else "array.copy.strided"
        if name == "array.copy.rows" and size * itemsize >= _LONG_ROW and 2 * itemsize * prod(shape) > cache_bytes():
            name = "array.copy.rows_nontemporal"  # 64 Mi float32 on two cores of a Zen 3: 24 to 33 ms, so 17 to 18
        name = "array.copy.short_rows" if short else name
        units, elements = -(-size // step), min(size, step)
    n, grain = policy.split(name, units * prod(d[0] for d in dims), elements * itemsize)
    record = launch(
        kernel(name, E=f"uint{8 * itemsize}"), COPY, n, grain, length=size, y_stride=y_stride, x_stride=x_stride,
        units=units, step=step, other_y_stride=other_y_stride, other_x_stride=other_x_stride, other=other,
        num_dims=len(dims), dims=_columns(dims, 3),
    )  # fmt: skip
    return Plan((record,))


def elements(problem, threads):
    """Blocks of the innermost kept dim (j) and of the indexed one (k), which is whole where t is written."""
    p, dim = problem, problem.dim
    others = [d for d in range(len(p.own)) if d != dim]
    kept = merged(*([values[d] for d in others] for values in (p.own, p.t_strides, p.strides, p.v_strides)))
    bound, count, steps = 1, 1, (1, 0, 0)
    if p.own:
        bound, count, steps = p.shape[dim], p.own[dim], (p.t_strides[dim], p.strides[dim], p.v_strides[dim])
    inner = [1, 0, 0, 0]
    if kept and (count == 1 or sum(a < b for a, b in zip(kept[-1][1:], steps)) > 1):  # of t, index and v, most are
        inner = kept.pop()  # closer together along it; else the dim itself is the inner loop
    written = p.kernel != "gather"
    j_step = min(inner[0], sizes.WRITTEN if written else sizes.ELEMENTS)
    k_step = count if written else max(1, sizes.ELEMENTS // j_step)
    j_blocks, k_blocks = -(-inner[0] // j_step), -(-count // k_step)
    name, units = f"array.scatter.{p.kernel}", j_blocks * k_blocks * prod(d[0] for d in kept)
    n, grain = policy.split(name, units, j_step * min(k_step, count))
    handle = kernel(name, T=p.t, V=p.v, I=p.i, **({} if written else {"WRAP": p.wrap}))
    record = launch(
        handle, ELEMENTS, n, grain, bound=bound, count=count, t_k=steps[0], i_k=steps[1],
        v_k=steps[2], length=inner[0], t_j=inner[1], i_j=inner[2], v_j=inner[3], j_step=j_step, j_blocks=j_blocks,
        k_step=k_step, k_blocks=k_blocks, num_dims=len(kept), dims=_columns(kept, 4),
    )  # fmt: skip
    return Plan((record,))


def gather_rows(problem, threads):
    """Rows of y, one after the other."""
    p, name = problem, "array.gather.gather_rows"
    n, grain = policy.split(name, p.outer * p.indices, p.length * int(p.bits.removeprefix("uint")) // 8)
    numbers = {field: getattr(p, field) for field in GatherRows._fields if field not in ("bits", "index", "outer")}
    return Plan((launch(kernel(name, E=p.bits, I=p.index), GATHER_ROWS, n, grain, **numbers),))


def add_rows(problem, threads):
    """Equal indices are chained first, by one thread; then each unit adds up its columns of all rows."""
    p = problem
    floating = "float" in p.dtype
    numbers = {"step": p.step, "indices": p.indices, "rows": p.rows}
    chain = launch(kernel("array.scatter.chain", I=p.index), CHAIN, 1, 1, **numbers)
    name, blocks = "array.scatter.add_rows", -(-p.length // sizes.COLUMNS)
    n, grain = policy.split(name, (p.outer, p.length), p.indices)
    types = {"T": p.dtype, "A": "float64" if floating else "int64", "I": p.index}
    numbers |= {"length": p.length, "blocks": blocks, "scale": float_bits(p.scale) if floating else p.scale}
    scratch = ("first", 4 * p.rows), ("following", 4 * p.indices)
    return Plan((chain, launch(kernel(name, **types), ADD_ROWS, n, grain, **numbers)), scratch)


def put_rows(problem, threads):
    """Blocks of columns of all rows: of equal places, the last one counts."""
    p = problem
    columns = min(p.length, sizes.PUT_COLUMNS) or 1
    name, blocks = "array.scatter.put_rows", -(-p.length // columns)
    n, grain = policy.split(name, p.outer * blocks, columns * p.count)
    v_outer, v_row, v_step = p.v_strides
    numbers = {"count": p.count, "length": p.length, "t_outer": p.rows * p.length, "columns": columns, "blocks": blocks}
    numbers |= {"v_outer": v_outer, "v_row": v_row, "v_step": v_step}
    return Plan((launch(kernel(name, T=p.t, V=p.v, ADD=p.add), PUT_ROWS, n, grain, **numbers),))


def bin_counts(problem, threads):
    """A part of the elements for each thread, if there are enough, and the sums of what they have counted."""
    p = problem
    parts = max(1, min(threads, p.size // sizes.BINNED))
    step = -(-p.size // parts)
    numbers = {"size": p.size, "step": step, "bins": p.bins, "copies": 1}
    n, grain = policy.split("array.bins.counts", parts, step)
    to = {"y": ("parts", 0)} if parts > 1 else None
    counts = kernel("array.bins.counts", T=p.dtype)
    first = launch(counts, BIN_COUNTS, n, grain, to, later=("low", "high"), **numbers)
    if parts == 1:
        return Plan((first,))
    n, grain = policy.split("array.bins.sums", p.bins, parts)
    sums = launch(kernel("array.bins.sums"), SUM_OF_BINS, n, grain, count=parts, bins=p.bins)
    return Plan((first, sums), (("parts", 8 * parts * p.bins),))


def run_types(dtype):
    """The types of elements that are compared, floats or their bits, and of their bits."""
    bits = "uint8" if dtype == "bool" else f"uint{dtype.lstrip('bfloatuin').partition('_')[0]}"
    return {"T": dtype if "float" in dtype else bits, "E": bits}


def first_of_runs(problem, threads):
    """All elements are one chunk."""
    at = {"counts": ("count", 0), "inverse": None, "lengths": None}
    runs = kernel("array.chosen.runs", **run_types(problem.dtype))
    one = launch(runs, RUNS, 1, 1, at, numel=problem.size, step=max(1, problem.size))
    return Plan((one,), (("lasts", 8),))


PLANNERS = {
    Copy: copy, Elements: elements, GatherRows: gather_rows, AddRows: add_rows, PutRows: put_rows,
    BinCounts: bin_counts, FirstOfRuns: first_of_runs,
}  # fmt: skip
