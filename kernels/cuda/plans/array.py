"""Copies: whole accesses of 16 bytes where both sides are contiguous, tiles where rows and columns change places."""

from math import ceil, prod

from ...blocks.array import FILLED
from ...blocks.cuda import COPY, FIRSTS, ROW_COPY, STEPPED_COPY, STRIDED_COPY, TRANSPOSE
from ...build.load import elsewhere, kernel
from ...cpu.plans.array import merged, run_types
from ...plan import Plan, launch
from ...problems.array import AddRows, BinCounts, Copy, Elements, FirstOfRuns, GatherRows, PutRows
from ..array.sizes import FIRSTS_BLOCKS, FIRSTS_THREADS, LANES
from ..policy import ROW_THREADS
from .indexed import add_rows, bin_counts, elements, gather_rows, put_rows

TILE, ROW_BYTES = 64, 256  # rows of a tile, and the bytes of each
_MANY = 16  # vectors of a row
EACH = 8  # elements of a thread, of rows whose elements are not side by side


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
    if len(dims) == 1 and dims[0][1:] == [1, 0]:
        return Plan((launch(kernel("array.create.repeated", E=element), COPY, n, 1),))
    length, lanes = dims[-1][0], 16 // itemsize
    whole_rows = {1: "rows", 0: "spread", -1: "reversed_rows"}.get(dims[-1][2]) if dims[-1][1] == 1 else None
    if whole_rows is None and dims[-1][1] == 1 and length >= 8:
        turned = [d for d in dims[:-1] if d[2] == 1 and d[0] >= 8]
        if turned:
            size, y_stride, _ = turned[0]
            others = [d for d in dims[:-1] if d is not turned[0]]
            length, _, x_stride = dims[-1]
            tiles = -(-size // TILE), -(-length * itemsize // ROW_BYTES)
            numbers = {"rows": size, "columns": length, "y_stride": y_stride, "x_stride": x_stride}
            record = launch(
                kernel("array.copy.transpose", E=element), TRANSPOSE, prod(tiles) * prod(d[0] for d in others), 1,
                across=tiles[1], tiles=prod(tiles), ndim=len(others), dims=_columns(others), **numbers,
            )  # fmt: skip
            return Plan((record,))
    if whole_rows and (length >= 2 * lanes or len(dims) == 1):
        rows = dims[:-1]
        # One vector more where rows of y may begin beside vectors, of those with many it is no loss.
        anywhere = length >= _MANY * lanes or any(d[1] % lanes for d in rows)
        vectors = -(-(length + (lanes - 1) * anywhere) // lanes)
        numbers = {"length": length, "vectors": vectors, "ndim": len(rows), "dims": _columns(rows)}
        kind = kernel(f"array.copy.{whole_rows}", E=element)
        return Plan((launch(kind, ROW_COPY, n // length * vectors, 1, **numbers),))
    if length >= EACH * ROW_THREADS // 4:
        parts = -(-length // (EACH * ROW_THREADS))
        numbers = {"length": length, "parts": parts, "y_step": dims[-1][1], "x_step": dims[-1][2]}
        numbers |= {"ndim": len(dims) - 1, "dims": _columns(dims[:-1])}
        return Plan((launch(kernel("array.copy.stepped", E=element), STEPPED_COPY, n // length * parts, 1, **numbers),))
    numbers = {"ndim": len(dims), "dims": _columns(dims)}
    near = all(d[0] * abs(d[2]) < 1 << 26 for d in dims[-2:])  # offsets within a vector are numbers of 32 bits
    flat = all(d[1] == prod(size for size, *_ in dims[k + 1 :]) for k, d in enumerate(dims))
    name = "gathered" if flat and near else "strided"
    return Plan((launch(kernel(f"array.copy.{name}", E=element), STRIDED_COPY, n, 1, **numbers),))


def _columns(dims):
    """Dims as kernels read them: all sizes, all strides in y, in x."""
    return [d[k] for k in range(3) for d in dims]


def first_of_runs(problem):
    """As many chunks for each warp, whose blocks' words begin as 0; all blocks have room at the same time."""
    p, types = problem, run_types(problem.dtype)
    warps, chunks = FIRSTS_THREADS // 32, -(-p.size // (32 * LANES))
    share = -(-chunks // ceil(FIRSTS_BLOCKS * elsewhere().multiprocessors * warps))
    blocks = -(-chunks // (share * warps))
    zeros = launch(kernel("array.create.filled", E="uint64"), FILLED, blocks, 1, {"y": ("words", 0)}, value=0)
    numbers = {"size": p.size, "chunks": chunks, "share": share, "shift": (-(-share // 64) - 1).bit_length()}
    one = launch(kernel("array.firsts.first_of_runs", **types), FIRSTS, blocks, 1, **numbers)
    return Plan((zeros, one), (("words", 8 * blocks),))


PLANNERS = {
    Copy: copy, Elements: elements, GatherRows: gather_rows, AddRows: add_rows, PutRows: put_rows,
    BinCounts: bin_counts, FirstOfRuns: first_of_runs,
}  # fmt: skip
