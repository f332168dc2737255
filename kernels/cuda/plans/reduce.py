"""Reductions: a block for each result where elements are contiguous, else a thread; a few long ones in chunks."""

from math import prod

from ...blocks.array import FILLED
from ...blocks.cuda import PLACES, RADIX, SELECT
from ...blocks.reduce import FOLD, MODES
from ...build.load import kernel, rendered
from ...cpu.plans import reduce as cpu
from ...cpu.plans.array import merged
from ...cpu.plans.reduce import behind, mode_types, picked, rank_of, sample_in, sort_keys, writing
from ...plan import Plan, launch
from ...problems.array import Copy
from ...problems.reduce import Ends, Modes, Position, Reduce, Running, Sample, Scan, Select, Sort, Variance
from ..policy import ROW_THREADS
from ..reduce.sizes import SWEEP_THREADS
from ..render import reduction_lanes
from .array import copy
from .scan import running, scan

_WHOLE = 1 << 62  # "not in chunks"
_ENOUGH = 1024  # blocks that keep a GPU busy
_CHUNK = 16384  # elements of a block that are worth a second launch
_WARPS = ROW_THREADS // 32  # of a block
_SHORT = 256  # elements of a row that a few threads hold; of 768 to 1000 that reads 2.4 of 4.2 TB/s, a warp's loop 3.9
_WARP = 4096  # elements of a row that is a warp's
_COLUMN = 32  # the same of a thread, which waits for its elements four at a time: 8192 in chunks of 512 took 53 us
_APART, _SPREAD = 8, 1 << 15  # the same where so many elements are all: a diagonal of 8192 took 14 us, PyTorch 9
_ALL = 256  # elements of a result from which on a block has them where results are few: one launch, not two
_ROWS = 64  # the same of a block that has columns, eight rows at a time: from twice as many on it has them
_BLOCKS = 1056  # of such blocks, eight for each of 132 multiprocessors
_MODES = 1024  # elements of a sorted row that a warp looks through
_LINE = 32  # bytes of neighbouring results at least, where a block has columns
_MOST = 1 << 30  # elements of a part, whose places are 32-bit integers
_SLOTS = 264  # of a workspace for choosing tokens, two for each of 132 multiprocessors
_HELD = 128  # bytes of states of a thread that holds elements
_RANKS, _ALONE = 8, 1 << 17  # ranks of a row that are found without sorting it, and elements that a block takes then
_FEW_ROWS = 132  # as blocks, these leave multiprocessors idle
_EXACT = 1 << 24  # counts below are exact in float32
_DIGITS = 256
_COUNTED = 1 << 16  # elements of a block that counts digits, whose sums are 4 KB of additions to memory
_COMPARED = 64  # elements of a row of which each is compared with all
_ROOMS = (1024, 4096, 8192)  # elements of up to 4 bytes of a row that a block sorts in shared memory
_LIST = 2048  # the same of the first ones of `cuda/reduce/first.py`
_PART, _PARTS = 4096, 1056  # elements of a part of a row, and parts of all rows, eight for each of 132 multiprocessors


def _bytes(dtype):
    """The size of an element."""
    return 1 if dtype == "bool" else int(dtype.lstrip("bfloatuin")) // 8


def _two(groups):
    """Two (size, stride) pairs, outer and inner."""
    return [(1, 0)] * (2 - len(groups)) + [tuple(group) for group in groups]


def _fold(rule, types, kind, kept, reduced, count, at=None, cut="", whole=_WHOLE, plane=0):
    """One launch of a reduction; `kept` and `reduced` are (size, stride) of outer and inner dims."""
    ((outer, outer_stride), (inner, inner_stride)), ((rows, row_stride), (length, stride)) = kept, reduced
    more = ()
    if kind in ("short", "held"):
        team, pieces = (_team if kind == "short" else _warps)(rule, types, length)
        more = str(team), str(pieces)
    handle, n = rendered("reduction", rule, kind, *types, cut, *more), outer * inner
    if kind == "columns":
        n = outer * -(-inner // _width(rule, types, cut))
    elif kind == "rows":
        n = -(-n // _WARPS)
    elif kind in ("short", "held"):
        n = -(-n // (ROW_THREADS // team))
    return launch(
        handle, FOLD, n, 1, at, inner=inner, outer_stride=outer_stride, inner_stride=inner_stride,
        rows=rows, length=length, row_stride=row_stride, stride=stride, whole=whole, count=float(count), plane=plane,
        results=outer * inner,
    )  # fmt: skip


def _team(rule, types, length):
    """(threads of a result, vectors of each) where they hold its elements, or None."""
    lanes = reduction_lanes(rule, "short", types[0], types[2], "")
    vectors, most = -(-length // lanes), min(8, _HELD // (lanes * rule.parts * max(4, _bytes(types[2]))))
    for pieces in (1, 2, 4, 8):
        for team in (1, 2, 4, 8, 16, 32):
            if pieces <= most and team * pieces >= vectors and (pieces >= 2 or team < 4) and (pieces < 4 or team == 32):
                return team, pieces
    return None


def _warps(rule, types, length):
    """(threads of a result, vectors of each at once) that hold its elements, or None; "+": there are more vectors."""
    lanes = reduction_lanes(rule, "held", types[0], types[2], "")
    most = min(8, _HELD // (lanes * rule.parts * max(4, _bytes(types[2]))))
    vectors = -(-(length + (lanes - 1) * (length % lanes != 0)) // lanes)
    for team in (8, 16, 32):
        if vectors <= team * most and lanes > 1:
            return team, -(-vectors // team)
    return (32 if length <= _WARP else ROW_THREADS, f"{most}+") if most and lanes > 1 else None


def _width(rule, types, cut=""):
    """The results of a block that has columns: a vector for each lane of a warp."""
    return 32 * reduction_lanes(rule, "columns", types[0], types[2], cut)


def _copied(problem, others):
    """(the launch that copies the tensor with its reduced dims last, its workspace, where launches find it then)."""
    shape, strides, size = problem.shape, problem.strides, _bytes(problem.dtype)
    order = (*others, *problem.dims)
    own = tuple(shape[d] for d in order)
    to = tuple(prod(own[d + 1 :]) for d in range(len(own)))
    places = {"x": "x", "y": "copy"}
    (one,) = copy(Copy(own, to, tuple(strides[d] for d in order), size)).launches
    one = one._replace(places=tuple((k, places[name], offset) for k, name, offset in one.places))
    return (one,), (("copy", prod(own) * size),), {"x": ("copy", 0)}


def reduce(problem):
    """One launch, or one for the states of chunks and one that joins them; before it a copy, if dims do not merge."""
    rule, shape, strides, dims = problem.rule, problem.shape, problem.strides, problem.dims
    types = rule.types(problem.dtype)
    others = [d for d in range(len(shape)) if d not in dims]
    count, results = prod(shape[d] for d in dims), prod(shape[d] for d in others)
    kept = merged([shape[d] for d in others], [strides[d] for d in others])
    reduced = merged([shape[d] for d in dims], [strides[d] for d in dims]) or [(1, 1)]
    before, scratch, x = (), (), {}
    if len(kept) > 2 or len(reduced) > 2:
        before, scratch, x = _copied(problem, others)
        kept, reduced = merged([results], [count]), [(count, 1)]
    kind = "inner" if reduced[-1][1] == 1 and count >= 32 else "outer"
    kept, reduced = _two(kept), _two(reduced)
    length, stride = reduced[1]
    if kind == "inner" and results >= _WARPS and length <= _WARP:
        kind = "rows"
    plain = results >= _WARPS and stride == 1 and reduced[0][0] == 1
    if plain and 8 <= length <= _SHORT and _team(rule, types, length):
        kind = "short"
    elif plain and length > _SHORT and _warps(rule, types, length):
        kind = "held"
    if kind == "outer" and kept[1][1] == 1 and length >= _ROWS // 4:
        kind = "columns"
    # what a block or thread should have at least, the results of one, and how many keep a GPU busy
    step, each, least = {
        "inner": (_CHUNK, 1, _ENOUGH), "rows": (_CHUNK, 1, _ENOUGH), "short": (_CHUNK, 1, _ENOUGH),
        "held": (_CHUNK, 1, _ENOUGH),
        "columns": (_ROWS, _width(rule, types), _BLOCKS),
        "outer": (_COLUMN, 1, 128 * _ENOUGH),
    }[kind]  # fmt: skip
    if kind == "outer" and 2 * step <= length and length * results <= _SPREAD:
        if reduced[0][0] == 1 and length >= _ALL and results <= _FEW_ROWS:
            return Plan((*before, _fold(rule, types, "apart", kept, reduced, count, x)), scratch)
        step = _APART
    units = -(-results // each)
    if kept[0][0] > 1 or reduced[0][0] > 1 or units >= least or length < 2 * step:
        return Plan((*before, _fold(rule, types, kind, kept, reduced, count, x)), scratch)
    kind = "inner" if kind == "held" else kind
    step = max(step, -(-length * max(1, units) // least))
    chunks = -(-length // step)
    plane, states = chunks * results, ("states", 0)
    first = _fold(
        rule, types, kind, [(chunks, step * stride), kept[1]], _two([(step, stride)]), count, x | {"y": states},
        "parts", length, plane,
    )  # fmt: skip
    second_kind, kept = ("inner", _two([])) if results == 1 else ("columns", _two([(results, 1)]))
    reduced = _two([(chunks, results)])
    second = _fold(rule, types, second_kind, kept, reduced, count, {"x": states}, "whole", plane=plane)
    return Plan((*before, first, second), (*scratch, ("states", rule.parts * plane * _bytes(types[2]))))


def position(problem):
    """One launch, or one for parts of rows or columns and one that has the best of these."""
    p = problem
    others = [d for d in range(len(p.shape)) if d not in p.dims]
    count, results = prod(p.shape[d] for d in p.dims), prod(p.shape[d] for d in others)
    if not results:
        return Plan(())
    kept = merged([p.shape[d] for d in others], [p.strides[d] for d in others])
    reduced = merged([p.shape[d] for d in p.dims], [p.strides[d] for d in p.dims]) or [(1, 1)]
    before, scratch, x = (), (), {}
    lines, few = reduced[0][1] == 1, count < _ROWS // 4
    neighbours = bool(kept) and kept[-1][1] == 1 and kept[-1][0] * _bytes(p.dtype) >= _LINE
    if len(kept) > 2 or len(reduced) > 1 or not (lines or few or neighbours):
        before, scratch, x = _copied(p, others)
        kept, reduced, lines = merged([results], [count]), [(count, 1)], True
    outer, inner = _two(kept)
    length, stride = reduced[0]
    way, lanes = "max" if p.largest else "min", 16 // _bytes(p.dtype)
    at, types = x | {"found": None} | ({} if p.values else {"values": None}), {"T": p.dtype}
    numbers = {
        "inner": inner[0], "outer_stride": outer[1], "inner_stride": inner[1], "length": length, "stride": stride,
        "results": results,
    }  # fmt: skip
    if not lines and few:
        each = kernel(f"reduce.position.{way}_each", **types)
        return Plan((*before, launch(each, PLACES, results, 1, at, **numbers)), scratch)
    units = results if lines else outer[0] * -(-inner[0] // (32 * lanes))
    least = _PART if lines else _ROWS
    parts = max(1, min(-(-_BLOCKS // units), length // least), -(-length // _MOST))
    step = -(-length // (parts * lanes)) * lanes if lines else -(-length // parts)
    parts = -(-length // step)
    if parts > 1:
        to = at | {"values": ("extremes", 0), "indices": ("places", 0)}
        scratch = (*scratch, ("extremes", parts * results * _bytes(p.dtype)), ("places", 8 * parts * results))
    else:
        to = at
    numbers |= {"parts": parts, "step": step}
    if lines:
        vectors = -(-(step + lanes - 1) // lanes)
        team = next((team for team in (4, 8, 16, 32) if vectors <= team * (4 if team < 32 else 16)), ROW_THREADS)
        handle, n = kernel(f"reduce.position.{way}_rows", **types, TEAM=team), -(-results * parts * team // ROW_THREADS)
    else:
        handle, n = kernel(f"reduce.position.{way}_columns", **types), units * parts
    launches = [*before, launch(handle, PLACES, n, 1, to, **numbers)]
    if parts > 1:
        team, apart, step = (ROW_THREADS, parts, 1) if lines else (1, 1, results)
        at |= {"x": ("extremes", 0), "found": ("places", 0)}
        handle = kernel(f"reduce.position.{way}_join", **types, TEAM=team)
        numbers |= {"inner_stride": apart, "stride": step}
        launches.append(launch(handle, PLACES, -(-results * team // ROW_THREADS), 1, at, **numbers))
    return Plan(tuple(launches), scratch)


def ends(problem):
    """Where chunks are joined, both from the same states; else one after the other."""
    p = problem
    plans = [reduce(Reduce(rule, *p[2:])) for rule in p.together]
    if any(name == "states" for name, _ in plans[0].scratch):
        first, last = writing(plans[0].launches, "low"), writing(plans[1].launches[-1:], "high")
        return Plan((*first, *last), plans[0].scratch)
    plans = [reduce(Reduce(rule, *p[2:])) for rule in p.alone]
    launches = [one for plan, name in zip(plans, ("low", "high")) for one in writing(plan.launches, name)]
    return Plan(tuple(launches), plans[0].scratch)


def _check(size):
    if size >= 1 << 31:
        raise NotImplementedError(f"GPUs sort rows of up to {(1 << 31) - 1} elements, got {size}; sort parts of them")


def by_digits(rows, size, itemsize, digits, types, source="x", last=None, **numbers):
    """(launches, workspaces, places of the sorted keys and of where they were) of a sort of `rows` rows of `size`.

    What is counted begins at 0; then one launch counts all digits of the keys, or their `digits` lowest bytes, and
    another one moves elements by each. `last`: the places of results that the last pass has, instead of sorted keys.
    """
    _check(size)
    # few elements of a thread where many would leave multiprocessors idle: 65,536 elements are 8 large tiles
    most = 16 if itemsize <= 4 else 8
    each = next((k for k in (2, 4, 8) if k < most and rows * size <= _SLOTS * k * SWEEP_THREADS), most)
    room = each * SWEEP_THREADS
    tiles, chunk = -(-size // room), room * max(1, min(_COUNTED // room, rows * size // (_PARTS * room)))
    totals, chunks = 4 * rows * digits * _DIGITS, -(-size // chunk)
    words = totals // 8 + rows * tiles * _DIGITS
    found, names = {"source": (source, 0)}, {field for _, field in RADIX.places}
    counts = {"counts": ("counts", totals), "totals": ("counts", 0)}
    numbers |= {"size": size, "digits": digits}
    zeros = launch(kernel("array.create.filled", E="uint64"), FILLED, words, 1, {"y": ("counts", 0)}, value=0)
    count = kernel("reduce.sweep.count", **types, DIGIT_COUNT=digits)
    at = dict.fromkeys(names) | found | counts
    launches = [zeros, launch(count, RADIX, rows * chunks, 1, at, **numbers, tiles=chunks, room=chunk)]
    for digit in range(digits):
        ends = last is not None and digit == digits - 1
        to = {"to": ("keys", digit % 2 * rows * size * itemsize), "order_to": ("places", digit % 2 * rows * size * 4)}
        at = dict.fromkeys(names) | found | counts | (last if ends else to)
        kind = {"I": "int64" if ends else "int32", "K": each, "FIRST": digit == 0, "LAST": ends}
        move = kernel("reduce.sweep.move", **types, **kind)
        launches.append(launch(move, RADIX, rows * tiles, 1, at, **numbers, tiles=tiles, shift=8 * digit))
        found = {"source": to["to"], "order": to["order_to"]}
        numbers |= {"stride": size, "step": 1}
    scratch = (
        ("keys", 2 * rows * size * itemsize), ("counts", 8 * words),
        ("places", 8 * rows * size + 4 * room),  # of a tile that ends before others do, numbers behind it are read
    )  # fmt: skip
    return launches, scratch, {"keys": found["source"], "order": found["order"]}


def _cut(rows, size, wanted):
    """Into how many parts rows go: large ones beside what is wanted of them, and not more than keep a GPU busy."""
    return max(1, min(size // max(_PART, 4 * wanted), -(-_PARTS // rows)))


def _first(p, itemsize, types, at, **numbers):
    """The first ones of all parts of rows, then those of these, until a row is one part."""
    _check(p.size)
    launches, sizes, found, size = [], [0, 0], {"source": ("x", 0)}, p.size
    parts = _cut(p.rows, size, p.wanted)
    while True:
        to, last = len(launches) % 2, parts == 1
        places = at | found | ({} if last else {"to": (f"keys{to}", 0), "order_to": (f"order{to}", 0)})
        handle = kernel("reduce.first.first", **types, BYTES=itemsize, FIRST=not launches, LAST=last)
        launches.append(launch(handle, RADIX, p.rows * parts, 1, places, **numbers, size=size, tiles=parts))
        if last:
            break
        size = parts * p.wanted
        sizes[to], numbers["stride"] = max(sizes[to], p.rows * size), size
        found, parts = {"source": (f"keys{to}", 0), "order": (f"order{to}", 0)}, _cut(p.rows, size, p.wanted)
    scratch = [
        (f"{name}{k}", n * b) for k, n in enumerate(sizes) for name, b in (("keys", itemsize), ("order", 4)) if n
    ]
    return Plan(tuple(launches), tuple(scratch))


def sort(problem):
    """Short rows by comparing all, those that have room in shared memory there, longer ones by tiles; the first few."""
    p, size, (types, numbers) = problem, _bytes(problem.dtype), sort_keys(problem)
    numbers |= {"stride": p.stride, "wanted": p.wanted}
    results = {"indices": ("indices", 0)} | ({"values": ("values", 0)} if p.values else {})
    at = dict.fromkeys(field for _, field in RADIX.places) | results | {"source": ("x", 0)}
    if p.size <= _COMPARED:
        short = kernel("reduce.radix.short", **types)
        return Plan((launch(short, RADIX, p.rows * p.size, 1, at, **numbers, size=p.size),))
    if 4 * p.wanted <= p.size and p.wanted * max(4, size) <= 4 * _LIST:
        return _first(p, size, types, at, **numbers)
    for room in _ROOMS:
        if p.size * max(4, size) <= 4 * room:
            rows = kernel(f"reduce.radix.rows_{room}", **types, BYTES=size)
            return Plan((launch(rows, RADIX, p.rows, 1, at, **numbers, size=p.size),))
    launches, scratch, _ = by_digits(p.rows, p.size, size, size, types, last=results, **numbers, step=1)
    return Plan(tuple(launches), scratch)


def select(problem):
    """A block for each rank; where rows are few and long, or ranks many, rows are sorted."""
    p, size = problem, _bytes(problem.dtype)
    whole = Sort(p.dtype, p.rows, p.size, p.stride, p.size, False, True)
    if p.count > _RANKS or (p.size > _ALONE and p.rows * p.count < _FEW_ROWS):
        return picked(p, sort(whole), size)
    types, numbers = sort_keys(whole)
    handle = kernel("reduce.select.select", **types, BYTES=size)
    at, ranks = rank_of(p)
    at, ranks = at | {"source": ("x", 0)}, ranks | {"infinity": numbers["infinity"]}
    one = launch(handle, SELECT, p.rows * p.count, 1, at, size=p.size, stride=p.stride, count=p.count, **ranks)
    return Plan((one,))


def variance(problem):
    """A reduction where neighbours are of neighbouring results, or rows are few and long; else rows as on the CPU."""
    p = problem
    others = [d for d in range(len(p.shape)) if d not in p.dims]
    kept = merged([p.shape[d] for d in others], [p.strides[d] for d in others])
    reduced = merged([p.shape[d] for d in p.dims], [p.strides[d] for d in p.dims])
    count, results = prod(size for size, _ in reduced), prod(size for size, _ in kept)
    apart = len(kept) in (1, 2) and len(reduced) in (1, 2) and kept[-1][1] == 1 and reduced[-1][1] != 1
    # a chunk's count is exact, and that of all chunks right to 2^-24 in any case
    long = results < _FEW_ROWS and len(reduced) == 1 and 2 * _CHUNK <= count < _EXACT * _ENOUGH
    if p.rule is not None and ((apart and 0 < count < _EXACT) or long):
        found = reduce(Reduce(p.rule, p.dtype, p.shape, p.strides, p.dims))
        if p.mean is None:
            return found
        last = reduce(Reduce(p.mean, p.dtype, p.shape, p.strides, p.dims)).launches[-1:]  # from the same states
        return Plan((*found.launches, *writing(last, "mean")), found.scratch)
    return cpu.variance(p, 1, lambda rows, threads: copy(rows))


def modes(problem):
    """Rows sorted, then the longest run of each: a row for a warp or a block, few long ones in parts."""
    p, size, team = problem, _bytes(problem.dtype), 32 if problem.size <= _MODES else ROW_THREADS
    parts = max(1, min(-(-_BLOCKS // p.rows), p.size // _CHUNK))
    part = -(-p.size // parts)
    parts, types = -(-p.size // part), mode_types(p.dtype)
    handle = kernel("reduce.modes.modes", **types, TEAM=team, CUT=parts > 1)
    n, numbers = -(-p.rows * parts * team // ROW_THREADS), dict(size=p.size, rows=p.rows, parts=parts, part=part)
    launches, scratch = [launch(handle, MODES, n, 1, {"best": None} if parts == 1 else {}, **numbers)], ()
    if parts > 1:
        scratch = (("best", 8 * p.rows * parts),)
        launches.append(launch(kernel("reduce.modes.join", E=types["E"]), MODES, p.rows, 1, **numbers))
    ordered = sort(Sort(p.dtype, p.rows, p.size, p.stride, p.size, False, True))
    return behind(ordered, p.rows * p.size, size, launches, scratch)


def sample(problem):
    """A row for a block."""
    return sample_in(problem, max(1, min(_SLOTS, problem.rows)))


PLANNERS = {
    Reduce: reduce, Position: position, Scan: scan, Running: running, Variance: variance, Sort: sort, Sample: sample,
    Select: select, Ends: ends, Modes: modes,
}  # fmt: skip
