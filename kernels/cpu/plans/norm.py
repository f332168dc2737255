"""Norms: their gradients are sums over rows, taken in chunks that the shape alone determines, and joined in order."""

from typing import NamedTuple

from ...blocks.norm import BACKWARD, JOIN
from ...blocks.softmax import BACKWARD as BACKWARD_SOFTMAX
from ...blocks.softmax import COLUMNS, LOGSUMEXP
from ...build.load import kernel, sized_kernel
from ...plan import Plan, launch
from ...problems.array import Copy
from ...problems.norm import ChunkSums, LogSumExp, NormBackward, SoftmaxColumns
from .. import policy
from .array import copy

_CHUNKS = 16  # at most
_CHUNK = 16384  # elements of a chunk at least, and _CHUNK_ROWS rows: its own sums are written once and read once
_CHUNK_ROWS = 32


def backward(problem, threads):
    """One pass over the rows; a second launch joins the sums of chunks, unless there is one chunk."""
    p, size = problem, problem.size
    chunk = max(_CHUNK_ROWS, -(-p.rows // _CHUNKS), _CHUNK // (size or 1))
    chunks = max(1, -(-p.rows // chunk))
    sums = sums_of(p, chunks)
    first = launch(
        kernel("norm.grad.backward", **sums.types), BACKWARD, chunks, max(1, _CHUNK // (chunk * size or 1)), sums.at,
        step=size, size=size, g_stride=p.g_stride, x_stride=p.x_stride, residual_stride=p.residual_stride or 0,
        rows=p.rows, chunk_rows=chunk, eps=p.eps,
    )  # fmt: skip
    if not sums.parts:
        return Plan((first,))
    second = join(sums.compute, sums.parts, wanted_of(p), size, chunks, size)
    return Plan((first, second), (("partial", sums.nbytes),))


class Sums(NamedTuple):
    """The sums of chunks of rows, in floats of type `compute`, for the gradients of a weight and a bias.

    They lie at `parts`, "dw" and "db", of a workspace of `nbytes`, or are the gradients themselves, without parts. A
    launch over chunks writes to `at` and has these `types`.
    """

    compute: str
    parts: dict
    at: dict
    types: dict
    nbytes: int


def wanted_of(p):
    """The dtypes of the gradients that a problem wants, of "dw" and "db"."""
    return {name: dtype for name, dtype in (("dw", p.weight), ("db", p.bias)) if dtype is not None}


def sums_of(p, chunks):
    """The `Sums` of a problem whose rows are cut into so many chunks."""
    compute, wanted = "float64" if p.dtype == "float64" else "float32", wanted_of(p)
    direct = chunks == 1 and all(dtype == compute for dtype in wanted.values())
    step = chunks * p.size * (8 if compute == "float64" else 4)
    parts = {} if direct else {name: ("partial", k * step) for k, name in enumerate(wanted)}
    at = dict.fromkeys(("dw", "db")) | ({name: (name, 0) for name in wanted} if direct else parts)
    types = {"T": p.dtype, "W": p.weight or p.dtype, "C": compute, "CENTER": p.center, "WEIGHT": p.weight is not None}
    types |= {"DW": "dw" in wanted, "DB": "db" in wanted, "ADD": p.residual_stride is not None}
    return Sums(compute, parts, at, types, len(wanted) * step)


def joined(compute, parts, results):
    """(where a launch that joins chunks has its operands, its types)."""
    at = {"first_w": parts.get("dw"), "first_b": parts.get("db")}
    at |= {"w": ("dw", 0) if "dw" in results else None, "b": ("db", 0) if "db" in results else None}
    return at, {"C": compute, "W": results.get("dw", compute), "B": results.get("db", compute)}


def join(compute, parts, results, step, chunks, columns):
    """The launch that adds up the sums of chunks: `parts` and the dtypes of `results` by name, "dw" and "db"."""
    at, types = joined(compute, parts, results)
    n, grain = policy.split("reduce.chunks.join", columns, chunks * len(results))
    numbers = {"step": step, "chunks": chunks, "columns": columns}
    return launch(kernel("reduce.chunks.join", **types), JOIN, n, grain, at, **numbers)


def chunk_sums(problem, threads):
    """One launch."""
    p = problem
    parts = {"dw": ("parts_w", 0), "db": ("parts_b", 0)}
    return Plan((join(p.compute, parts, dict.fromkeys(parts, p.dtype), p.columns, p.chunks, p.columns),))


def softmax_columns(problem, threads):
    """One launch, blocks of columns."""
    p = problem
    numbers = {"size": p.size, "columns": p.columns}
    if p.backward:
        name, block, types = "norm.softmax_grad.columns", BACKWARD_SOFTMAX, {"T": p.dtype, "LOGARITHM": p.logarithm}
        numbers |= {"g_stride": p.g_stride, "y_stride": p.stride}
        at = {"y": ("x", 0), "dx": ("y", 0)}
    else:
        name, block, types, at = "norm.softmax.columns", COLUMNS, {"T": p.dtype}, {}
        numbers |= {"stride": p.stride, "logarithm": int(p.logarithm)}
    n, grain = policy.split(name, (p.outer, p.columns), p.size)
    return Plan((launch(kernel(name, **types), block, n, grain, at, **numbers),))


def logsumexp(problem, threads):
    """A copy with rows in place of columns, then one launch over these."""
    p, rows = problem, problem.outer * problem.columns
    size = {"float64": 8, "float32": 4}.get(p.dtype, 2)
    whole = p.size * p.columns
    (one,) = copy(Copy((p.outer, p.columns, p.size), (whole, p.size, 1), (whole, 1, p.columns), size), threads).launches
    places = {"x": "x", "y": "rows"}
    one = one._replace(places=tuple((k, places[name], offset) for k, name, offset in one.places))
    n, grain = policy.split("norm.softmax.logsumexp", rows, p.size)
    handle = sized_kernel("norm.softmax.logsumexp", p.size, T=p.dtype)
    found = launch(handle, LOGSUMEXP, n, grain, {"x": ("rows", 0)}, size=p.size, stride=p.size)
    return Plan((one, found), (("rows", rows * p.size * size),))


PLANNERS = {
    NormBackward: backward, ChunkSums: chunk_sums, SoftmaxColumns: softmax_columns,
    LogSumExp: logsumexp,
}  # fmt: skip
