"""Norms: their gradients are sums over rows, taken in chunks that the shape alone determines, and joined in order."""

from ...blocks.cuda import SOFTMAX_COLUMNS
from ...blocks.norm import BACKWARD, JOIN
from ...build.load import kernel
from ...cpu.plans.norm import joined, sums_of, wanted_of
from ...plan import Plan, launch
from ...problems.norm import ChunkSums, LogSumExp, NormBackward, SoftmaxColumns

_ROWS = 4  # that a block takes at a time
_CHUNKS = 1056  # at most, eight for each of 132 multiprocessors; their sums are written once and read once:
_SUMS = 1 << 21  # of so many columns together
COLUMNS = 32  # of a block of the launch that joins them
_WARPS = 4  # of a block
_PIECES = {"bfloat16": 4, "float16": 4, "float32": 8, "float64": 4}  # vectors of a row that a thread has room for
_JOINED, _FEW = 528, 32  # blocks that join sums of chunks where there are enough of them; chunks that are few
_THREADS = 135168  # that keep a GPU busy, each with a vector of columns: 1,024 for each of 132 multiprocessors
_SHORT, _PART = 32, 64  # rows that are not cut, and rows of a part at least: eight for each warp
_TEAMS = 1056, 528  # warps, blocks that keep a GPU busy where they hold their rows


def _in_registers(p, wanted):
    """(pieces, short, rows of a chunk, chunks) where threads hold rows, vectors of which begin at 16 bytes; or None."""
    lanes = 16 // {"float64": 8, "float32": 4}.get(p.dtype, 2)
    strides = p.size, p.g_stride, p.x_stride, p.residual_stride or 0
    pieces = -(-p.size // (32 * lanes))
    short = pieces <= _PIECES[p.dtype]
    pieces = pieces if short else -(-pieces // _WARPS)
    if not p.size or pieces > _PIECES[p.dtype] or any(stride % lanes for stride in strides):
        return None
    most, teams = (_TEAMS[0], _WARPS) if short else (_TEAMS[1], 1)
    chunk = max(1, -(-p.rows // most)) if wanted else 1
    return pieces, short, chunk, -(-max(1, -(-p.rows // chunk)) // teams) * teams


def backward(problem):
    """One pass over the rows; a second launch joins the sums of chunks, unless there is one chunk."""
    p, size = problem, problem.size
    wanted = wanted_of(p)
    held = _in_registers(p, wanted)
    if held:
        pieces, short, chunk, chunks = held
    else:
        most = max(128, min(_CHUNKS, _SUMS // (size or 1))) if wanted else p.rows
        chunk = -(-max(1, -(-p.rows // most)) // _ROWS) * _ROWS
        chunks = max(1, -(-p.rows // chunk))
    sums, name, n = sums_of(p, chunks), "norm.grad.backward", chunks
    types = sums.types
    if held:
        name, n = "norm.registers.backward", chunks // _WARPS if short else chunks
        types = sums.types | {"PIECES": pieces, "SHORT": short}
    first = launch(
        kernel(name, **types), BACKWARD, n, 1, sums.at, step=size, size=size, g_stride=p.g_stride,
        x_stride=p.x_stride, residual_stride=p.residual_stride or 0, rows=p.rows, chunk_rows=chunk, eps=p.eps,
    )  # fmt: skip
    if not sums.parts:
        return Plan((first,))
    second = join(sums.compute, sums.parts, wanted, size, chunks, size)
    return Plan((first, second), (("partial", sums.nbytes),))


def join(compute, parts, wanted, step, chunks, columns):
    """The launch that joins the sums of chunks: `parts` says where they lie, `wanted` the dtypes of dw and db."""
    at, types = joined(compute, parts, wanted)
    numbers = {"step": step, "chunks": chunks, "columns": columns}
    return launch(kernel("norm.grad.join", **types), JOIN, -(-columns // COLUMNS), 1, at, **numbers)


def chunk_sums(problem):
    """One launch, or two where few blocks would have many chunks each: every so many chunks first, then these sums."""
    p, names = problem, ("dw", "db")
    parts, wanted = {"dw": ("parts_w", 0), "db": ("parts_b", 0)}, dict.fromkeys(names, p.dtype)
    together = min(p.chunks // _FEW, -(-_JOINED // -(-p.columns // COLUMNS)))
    if together < 2:
        return Plan((join(p.compute, parts, wanted, p.columns, p.chunks, p.columns),))
    columns, nbytes = together * p.columns, together * p.columns * (8 if p.compute == "float64" else 4)
    sums = {name: ("sums", k * nbytes) for k, name in enumerate(names)}
    at = {"first_w": parts["dw"], "first_b": parts["db"], "w": sums["dw"], "b": sums["db"]}
    numbers = {"step": columns, "chunks": -(-p.chunks // together), "columns": columns}
    handle = kernel("norm.grad.join", C=p.compute, W=p.compute, B=p.compute)
    first = launch(handle, JOIN, -(-columns // COLUMNS), 1, at, **numbers, whole=p.chunks * p.columns)
    second = join(p.compute, sums, wanted, p.columns, together, p.columns)
    return Plan((first, second), (("sums", 2 * nbytes),))


def _parts(outer, size, columns, dtype):
    """(blocks of an outer slice, parts of its rows, rows of a part)."""
    groups = -(-columns // (32 * _lanes(dtype)))
    parts = max(1, min(-(-_CHUNKS // (outer * groups)), size // _PART))
    step = -(-size // parts)
    return groups, -(-size // step), step


def _lanes(dtype):
    """Elements of 16 bytes."""
    return {"float64": 2, "float32": 4}.get(dtype, 8)


def softmax_columns(problem):
    """A thread for each vector of columns, if these are many; else parts of rows, joined, and a launch for results."""
    p, vectors = problem, problem.outer * -(-problem.columns // _lanes(problem.dtype))
    numbers = {"size": p.size, "columns": p.columns, "outer": p.outer, "stride": p.stride, "g_stride": p.g_stride}
    types, at = {"T": p.dtype, "LOGARITHM": p.logarithm}, {} if p.backward else {"g": None}
    if vectors >= _THREADS or p.size < _SHORT:
        each = kernel(f"norm.columns.{'each_gradient' if p.backward else 'each'}", **types)
        return Plan((launch(each, SOFTMAX_COLUMNS, vectors, 1, at | {"states": None}, **numbers),))
    groups, parts, step = _parts(p.outer, p.size, p.columns, p.dtype)
    numbers |= {"parts": parts, "step": step}
    n, results, compute = (
        p.outer * groups * parts,
        p.outer * p.columns,
        "float64" if p.dtype == "float64" else "float32",
    )
    first, second, last = (
        ("products", "total", "gradient") if p.backward else ("statistics", "finish", "apply")
    )  # fmt: skip
    sums = types if p.backward else {"T": p.dtype}
    launches = [launch(kernel(f"norm.columns.{first}", **sums), SOFTMAX_COLUMNS, n, 1, at | {"y": None}, **numbers)]
    joined = {"T": compute} if p.backward else types
    if parts > 1 or not p.backward:
        handle = kernel(f"norm.columns.{second}", **joined)
        launches.append(launch(handle, SOFTMAX_COLUMNS, results, 1, {"y": None, "g": None}, **numbers))
    launches.append(launch(kernel(f"norm.columns.{last}", **types), SOFTMAX_COLUMNS, n, 1, at, **numbers))
    planes = 1 if p.backward else 2
    return Plan(tuple(launches), (("states", planes * parts * results * (8 if compute == "float64" else 4)),))


def logsumexp(problem):
    """Parts of rows, joined."""
    p, types = problem, {"T": problem.dtype}
    groups, parts, step = _parts(p.outer, p.size, p.columns, p.dtype)
    numbers = {"size": p.size, "columns": p.columns, "outer": p.outer, "stride": p.size * p.columns}
    numbers |= {"parts": parts, "step": step}
    first = launch(
        kernel("norm.columns.statistics", **types), SOFTMAX_COLUMNS, p.outer * groups * parts, 1,
        {"y": None, "g": None}, **numbers,
    )  # fmt: skip
    results = p.outer * p.columns
    second = launch(kernel("norm.columns.logsumexp", **types), SOFTMAX_COLUMNS, results, 1, {"g": None}, **numbers)
    return Plan((first, second), (("states", 2 * parts * results * (8 if p.dtype == "float64" else 4)),))


PLANNERS = {
    NormBackward: backward, ChunkSums: chunk_sums, SoftmaxColumns: softmax_columns, LogSumExp: logsumexp,
}  # fmt: skip
