"""Copies: whole accesses of 16 bytes where both sides are contiguous, tiles where rows and columns change places."""

from math import prod

from ...blocks import float_bits
from ...blocks.cuda import ADD_SORTED, COPY, ROW_COPY, STRIDED_COPY, TRANSPOSE
from ...build.load import kernel
from ...cpu.plans.array import merged
from ...plan import Plan, launch
from ...problems.array import AddRows, BinCounts, Copy, Elements, PutRows
from .indexed import bin_counts, elements, put_rows

TILE = 32
_OUTERS = 8  # of the same: rows of v that a thread has
_NARROW, _OUTER, _OF_EACH = 4, 32, 16  # rows of few elements, many of them, and few of an index on average
_CHUNK = 64  # of `cuda/array/scatter.py`


def copy(problem):
    """One launch, by falling strides of y."""
    shape, y_strides, x_strides, itemsize = problem
    if itemsize == 16:  # complex128, for which there is no integer: pairs of 8 bytes
        shape, itemsize = (*shape, 2), 8
        y_strides, x_strides = ((*(2 * step for step in steps), 1) for steps in (y_strides, x_strides))
    order = sorted(range(len(shape)), key=lambda d: -abs(y_strides[d]))
    dims = merged(*([values[d] for d in order] for values in (shape, y_strides, x_strides))) or [[1, 1, 1]]
    n, element = prod(d[0] for d in dims), f"uint{8 * itemsize}"
    if len(dims) == 1 and dims[0][1:] == [1, 1]:
        return Plan((launch(kernel(f"array.copy.contiguous_{itemsize}", E=element), COPY, n, 1),))
    if dims[-1][1] == 1 and dims[-1][0] >= 8:
        turned = [d for d in dims[:-1] if d[2] == 1 and d[0] >= 8]
        if turned and dims[-1][2] != 1:
            size, y_stride, _ = turned[0]
            others = [d for d in dims[:-1] if d is not turned[0]]
            length, _, x_stride = dims[-1]
            tiles = -(-size // TILE), -(-length // TILE)
            numbers = {"rows": size, "columns": length, "y_stride": y_stride, "x_stride": x_stride}
            record = launch(
                kernel("array.copy.transpose", E=element), TRANSPOSE, prod(tiles) * prod(d[0] for d in others), 1,
                across=tiles[1], tiles=prod(tiles), ndim=len(others), dims=_columns(others), **numbers,
            )  # fmt: skip
            return Plan((record,))
    length, lanes = dims[-1][0], 16 // itemsize
    if dims[-1][1:] == [1, 1] and length >= 2 * lanes and len(dims) > 1:
        rows, vectors = dims[:-1], -(-length // lanes)
        numbers = {"length": length, "ndim": len(rows), "dims": _columns(rows)}
        return Plan((launch(kernel("array.copy.rows", E=element), ROW_COPY, n // length * vectors, 1, **numbers),))
    numbers = {"ndim": len(dims), "dims": _columns(dims)}
    return Plan((launch(kernel("array.copy.strided", E=element), STRIDED_COPY, n, 1, **numbers),))


def _columns(dims):
    """Dims as kernels read them: all sizes, all strides in y, in x."""
    return [d[k] for k in range(3) for d in dims]


def add_rows(problem):
    """The indices sorted, then a launch for chunks of equal ones, and one for indices of several chunks."""
    from .reduce import by_digits  # which copies by this file

    p, bits = problem, int(problem.index.removeprefix("int"))
    digits = min(bits // 8, max(1, -(-(p.rows - 1).bit_length() // 8)))
    types = {"E": f"uint{bits}", "KIND": 0}
    launches, scratch, at = by_digits(1, p.indices, bits // 8, digits, types, "index", stride=0, step=p.step,
                                      infinity=0, mask=0)  # fmt: skip
    floating = "float" in p.dtype
    sums = p.dtype if p.dtype == "float64" or not floating else "float32"
    windows = 2 * -(-p.indices // _CHUNK)
    numbers = {"indices": p.indices, "rows": p.rows, "length": p.length, "outer": p.outer, "windows": windows}
    numbers["scale"] = float_bits(p.scale) if floating else p.scale
    types, n = {"T": p.dtype, "C": sums, "I": p.index}, p.outer * p.indices
    if p.length <= _NARROW and p.outer >= _OUTER and p.indices <= _OF_EACH * p.rows:
        each = kernel("array.scatter.add_each", T=p.dtype, A="float64" if floating else "int64", C=sums, I=p.index)
        n = p.rows * p.length * -(-p.outer // _OUTERS)
        one = launch(each, ADD_SORTED, n, 1, at | {"parts": None}, **numbers)
        return Plan((*launches, one), scratch)
    add = kernel("array.scatter.add_sorted", T=p.dtype, A="float64" if floating else "int64", C=sums, I=p.index)
    launches.append(launch(add, ADD_SORTED, n, 1, at, **numbers))
    if p.indices > _CHUNK:
        launches.append(launch(kernel("array.scatter.add_parts", **types), ADD_SORTED, n, 1, at, **numbers))
    parts = ("parts", max(1, p.outer * windows * p.length) * (8 if "64" in sums else 4))
    return Plan(tuple(launches), (*scratch, parts))


PLANNERS = {Copy: copy, AddRows: add_rows, Elements: elements, PutRows: put_rows, BinCounts: bin_counts}
