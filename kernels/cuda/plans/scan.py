"""Scans: rows for teams of threads, for blocks, or in parts for many blocks; columns for slices of blocks."""

from ...blocks.cuda import SCAN
from ...build.load import kernel, rendered
from ...cpu import plans as cpu
from ...plan import Plan, launch
from ..reduce.sizes import GROUP, THREADS

_STATES = 192  # bytes of states that a thread has at most
_WARP = 32
_BUSY = 528  # blocks that keep a GPU busy, four for each of 132 multiprocessors
_LONGEST = (1 << 31) - 64  # elements of a row: places are 32-bit integers
_SLOTS = 1024  # of a plan of the CPU


def _bytes(dtype):
    return 1 if dtype == "bool" else int(dtype.lstrip("bfloatuin")) // 8


def _power(n):
    """The least power of two that is no less."""
    return 1 << max(0, n - 1).bit_length()


def _few(n, most):
    """The least count of vectors that kernels are made for, of n."""
    return next(k for k in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16) if k >= min(n, most))


def _rows(outer, size, lanes, state_bytes):
    """(loop, threads of a team, vectors of a thread, items, parts of a row)."""
    most = _STATES // state_bytes // lanes
    vectors = size // lanes if size % lanes == 0 else -(-(size + lanes - 1) // lanes)
    if vectors <= _WARP * most:
        team = min(_WARP, _power(-(-vectors // 2)))
        return "rows", team, _few(-(-vectors // team), most), -(-outer // (THREADS // team)), 1
    # of few rows, as many parts as keep a GPU busy, but not smaller ones than are worth their words
    most = min(most, 8)
    fits = [k for k in (8, 4, 2) if k <= most and outer * -(-vectors // (THREADS * k)) >= _BUSY]
    each = max([*fits[:1], min(2, most)])
    parts = -(-vectors // (THREADS * each))
    if outer < _BUSY and parts > 1:
        return "chunks", THREADS, each, outer * parts, parts
    each = _few(-(-vectors // THREADS), min(4, most))
    return "blocks", THREADS, each, outer, -(-vectors // (THREADS * each))


def _columns(outer, size, columns, lanes, most):
    """(threads of a slice, rows of a thread, strips)."""
    vectors = -(-columns // lanes)
    each = min(most, _power(size))
    own = min(256, max(16, _power(vectors)))
    while own > 16 and (THREADS // own) * each < size and (own > 32 or outer * -(-vectors // own) < _BUSY // 2):
        own //= 2
    return own, each, -(-vectors // own)


def _plan(problem, widest, state_bytes, stride, handle, at):
    """The launch of a scan: `handle(kind, threads, vectors)` is its kernel."""
    p, lanes = problem, 16 // widest
    numbers = {"size": p.size, "x_stride": stride, "rows": p.outer}
    if p.columns > 1:
        team, each, strips = _columns(p.outer, p.size, p.columns, lanes, min(8, _STATES // state_bytes // lanes))
        numbers |= {"columns": p.columns, "strips": strips}
        one = launch(handle("columns", team, each), SCAN, p.outer * strips, 1, at | {"words": None}, **numbers)
        return Plan((one,))
    kind, team, each, n, parts = _rows(p.outer, p.size, lanes, state_bytes)
    one = handle(kind, team, each)
    if kind != "chunks":
        return Plan((launch(one, SCAN, n, 1, at | {"words": None}, **numbers, parts=parts),))
    words = p.outer * (parts + parts // GROUP) * state_bytes // 4  # 32 bits of a state in each
    none = launch(kernel("reduce.scan.clear"), SCAN, words, 1, dict.fromkeys(("x", "y", "indices")), **numbers)
    return Plan((none, launch(one, SCAN, n, 1, at, **numbers, parts=parts)), (("words", 8 * words),))


def scan(problem):
    """By a rule."""
    p, types = problem, problem.rule.types(problem.dtype)
    if p.size > _LONGEST:
        return cpu.plan(p, _SLOTS)
    T, state, result = types
    state = "float32" if state == "float64" and T != "float64" else state

    def handle(kind, team, each):
        way = "back" if p.reverse else ""
        return rendered("parallel_scan", p.rule, kind, T, state, result, str(team), str(each), way)

    return _plan(p, max(_bytes(T), _bytes(result)), _bytes(state), p.stride, handle, {"indices": None})


def running(problem):
    """Extremes, and where they are."""
    p = problem
    if p.size > _LONGEST:
        return cpu.plan(p, _SLOTS)
    T = "uint8" if p.dtype == "bool" else p.dtype
    wide = {8: T, 4: T if T[0] == "i" else "int64" if T[0] == "u" else "float32"}
    state = wide.get(_bytes(T), "float32" if "float" in T else "int32")

    def handle(kind, team, each):
        return kernel(f"reduce.running.{'max' if p.largest else 'min'}_{kind}", T=T, STATE=state, TEAM=team, P=each)

    return _plan(p, 8, _bytes(state) + 4, p.size * p.columns, handle, {"y": ("values", 0)})
