"""Reductions, scans, sorting, sampling: which loop, in how many pieces, with how much workspace."""

from math import prod

from ...blocks.norm import VARIANCE
from ...blocks.reduce import EXTREMES, FOLD, MODES, PICK, POSITION, RANKED, SAMPLE, SCAN, SORT
from ...build.load import kernel, rendered, sized_kernel
from ...plan import Plan, launch
from ...problems.array import Copy
from ...problems.reduce import Ends, Modes, Position, Reduce, Running, Sample, Scan, Select, Sort, Variance
from .. import policy
from ..reduce.sizes import LANES, LIST, PAIR, SAMPLE_BYTES, SHORT, SORT_BYTES, WIDE
from .array import copy, merged

_CHUNK = 65536  # elements of a slice of a long reduction: 3 us
_WHOLE = 1 << 62  # "not in chunks"
_SCAN = 16384  # elements of a slice of a scan: 20 us
_SORT = 8192  # elements from which rows to sort go to several threads: 50 us
_RANKED, _LONG = 32, 1 << 16  # lengths of rows from which on a rank or two are found without a sort, and several
_TOPK = 65536  # elements of a slice of `topk`: 15 us
_SAMPLE = 65536  # logits from which rows go to several threads: 20 us of sampling
_INFINITY = {"float64": 0x7FF0000000000000, "float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}


def _bytes(dtype):
    """The size of an element."""
    return 1 if dtype == "bool" else int(dtype.lstrip("bfloatuin")) // 8


# ---- reductions --------------------------------------------------------------------------------


def _two(groups):
    """Two (size, stride) pairs, outer and inner."""
    return [(1, 0)] * (2 - len(groups)) + [tuple(group) for group in groups]


class _Folded:
    """A layout as the kernels see it.

    "inner": the reduced elements are contiguous; "outer": neighbouring results are. Kernels take at most two merged
    kept dims and `max_reduced` reduced ones; where there are more, a launch `before` copies the tensor to workspace
    (`scratch`), the dims of what is contiguous last, and `x` says so. A long reduction with few results goes in
    `chunks` of `step`.
    """

    def __init__(self, problem, max_reduced, threads):
        shape, strides, dims = problem.shape, problem.strides, problem.dims
        others = [d for d in range(len(shape)) if d not in dims]
        self.count = prod(shape[d] for d in dims)
        self.results = prod(shape[d] for d in others)
        kept = merged([shape[d] for d in others], [strides[d] for d in others])
        reduced = merged([shape[d] for d in dims], [strides[d] for d in dims]) or [(1, 1)]
        self.kind, self.before, self.scratch, self.x = None, (), (), {}
        if len(kept) <= 2 and len(reduced) <= max_reduced:
            self.kind = "inner" if reduced[-1][1] == 1 else "outer" if kept and kept[-1][1] == 1 else None
        if self.kind is None and self.results > 1 and others[-1] == len(shape) - 1:
            self.kind = "outer"
            self._copy(problem, (*dims, *others), threads)
            kept, reduced = [(self.results, 1)], [(self.count, self.results)]
        elif self.kind is None:
            self.kind = "inner"
            self._copy(problem, (*others, *dims), threads)
            kept, reduced = merged([self.results], [self.count]), [(self.count, 1)]
        self.kept, self.reduced = _two(kept), _two(reduced)
        units = self.results if self.kind == "inner" else -(-self.results // WIDE)
        one_group = len(kept) <= 1 and len(reduced) == 1
        self.step = max(1, _CHUNK // (self.results if self.kind == "outer" and self.results else 1))
        long = one_group and units < 4 and self.count * self.results >= 4 * _CHUNK
        self.chunks = -(-self.count // self.step) if long else 1

    def is_short(self):
        """Whether results come from rows of a few elements, and there are enough of these for a lane each."""
        (rows, _), (length, _) = self.reduced
        return self.kind == "inner" and rows == 1 and length <= SHORT and self.kept[1][0] >= WIDE

    def _copy(self, problem, order, threads):
        """Let the launches read a row-major copy with the dims in another order."""
        shape, size = tuple(problem.shape[d] for d in order), _bytes(problem.dtype)
        to, of = tuple(prod(shape[d + 1 :]) for d in range(len(shape))), tuple(problem.strides[d] for d in order)
        if prod(shape):
            places = {"x": "x", "y": "copy"}
            (one,) = copy(Copy(shape, to, of, size), threads).launches
            self.before = (one._replace(places=tuple((k, places[name], offset) for k, name, offset in one.places)),)
            self.scratch, self.x = (("copy", prod(shape) * size),), {"x": ("copy", 0)}


def _fold(rule, types, kind, kept, reduced, count, at=None, cut="", whole=_WHOLE, plane=0):
    """One launch of a reduction; `kept` and `reduced` are (size, stride) of outer and inner dims."""
    ((outer, outer_stride), (inner, inner_stride)), ((rows, row_stride), (length, stride)) = kept, reduced
    n, width = (outer * inner, 1) if kind == "inner" else (outer * -(-inner // WIDE), min(inner, WIDE))
    address = rendered("reduction", rule, kind, *types, cut)
    return launch(
        address, FOLD, n, max(1, _CHUNK // max(1, rows * length * width)), at, inner=inner, outer_stride=outer_stride,
        inner_stride=inner_stride, rows=rows, length=length, row_stride=row_stride, stride=stride, whole=whole,
        count=float(count), plane=plane,
    )  # fmt: skip


def reduce(problem, threads):
    """One launch, or one for the states of chunks and one that joins them."""
    rule, f = problem.rule, _Folded(problem, 2, threads)
    types = rule.types(problem.dtype)
    if f.chunks == 1:
        kind, plane = ("short", f.kept[1][1]) if f.is_short() else (f.kind, 0)
        return Plan((*f.before, _fold(rule, types, kind, f.kept, f.reduced, f.count, f.x, plane=plane)), f.scratch)
    length, stride = f.reduced[1]
    plane = f.chunks * f.results
    kept, reduced = [(f.chunks, f.step * stride), f.kept[1]], _two([(f.step, stride)])
    states = {"y": ("states", 0)}
    first = _fold(rule, types, f.kind, kept, reduced, f.count, f.x | states, "parts", length, plane)
    kind, kept = ("inner", _two([])) if f.results == 1 else ("outer", _two([(f.results, 1)]))
    states = {"x": ("states", 0)}
    second = _fold(rule, types, kind, kept, _two([(f.chunks, f.results)]), f.count, states, "whole", plane=plane)
    return Plan((*f.before, first, second), (*f.scratch, ("states", rule.parts * plane * _bytes(types[2]))))


def ends(problem, threads):
    """One after the other."""
    plans = [reduce(Reduce(rule, *problem[2:]), threads) for rule in problem.alone]
    launches = [one for plan, name in zip(plans, ("low", "high")) for one in writing(plan.launches, name)]
    return Plan(tuple(launches), plans[0].scratch)


def writing(launches, name):
    """Launches whose result is another tensor."""

    def named(places):
        return tuple((place, name if field == "y" else field, offset) for place, field, offset in places)

    return [one._replace(places=named(one.places)) for one in launches]


def position(problem, threads):
    """One launch; a long row in chunks, whose extremes a second launch searches."""
    f = _Folded(problem, 1, threads)
    (outer, outer_stride), (inner, inner_stride) = f.kept
    length, stride = f.reduced[1]
    address = kernel(f"reduce.argmax.{'argmax' if problem.largest else 'argmin'}_{f.kind}", T=problem.dtype)
    wanted = {"chunk_indices": None} | ({} if problem.values else {"values": None})

    def search(n, at, inner, outer_stride, inner_stride, length, stride=1, whole=_WHOLE, chunk=0):
        grain = max(1, _CHUNK // max(1, length * (1 if f.kind == "inner" else PAIR)))
        numbers = {"inner": inner, "outer_stride": outer_stride, "inner_stride": inner_stride, "length": length}
        return launch(address, POSITION, n, grain, at, **numbers, stride=stride, whole=whole, chunk=chunk)

    if f.chunks == 1 or f.results > 1 or f.kind == "outer":
        n = outer * (inner if f.kind == "inner" else -(-inner // PAIR))
        one = search(n, f.x | wanted, inner, outer_stride, inner_stride, length, stride)
        return Plan((*f.before, one), f.scratch)
    parts = {"values": ("extremes", 0), "indices": ("places", 0), "chunk_indices": None}
    first = search(f.chunks, f.x | parts, 1, f.step, 0, f.step, whole=length)
    wanted |= {"x": ("extremes", 0), "chunk_indices": ("places", 0)}
    second = search(1, wanted, 1, 0, 0, f.chunks, chunk=f.step)
    scratch = (("extremes", f.chunks * _bytes(problem.dtype)), ("places", 8 * f.chunks))
    return Plan((*f.before, first, second), (*f.scratch, *scratch))


def variance(problem, threads, copied=copy):
    """Rows, which are copied first (by the plan `copied`) where they do not lie so."""
    p = problem
    others = [d for d in range(len(p.shape)) if d not in p.dims]
    count, size = prod(p.shape[d] for d in others), prod(p.shape[d] for d in p.dims)
    kept = merged([p.shape[d] for d in others], [p.strides[d] for d in others])
    reduced = merged([p.shape[d] for d in p.dims], [p.strides[d] for d in p.dims])
    wanted = {} if p.mean is not None else {"mean": None}
    before, scratch, at, stride = (), (), wanted, kept[0][1] if kept else size
    if size and (len(kept) > 1 or len(reduced) > 1 or (reduced and reduced[0][1] != 1)):
        order, stride = (*others, *p.dims), size
        own = tuple(p.shape[d] for d in order)
        to = tuple(prod(own[d + 1 :]) for d in range(len(own)))
        places = {"x": "x", "y": "copy"}
        (one,) = copied(Copy(own, to, tuple(p.strides[d] for d in order), _bytes(p.dtype)), threads).launches
        before = (one._replace(places=tuple((k, places[name], offset) for k, name, offset in one.places)),)
        at, scratch = wanted | {"x": ("copy", 0)}, (("copy", count * size * _bytes(p.dtype)),)
    n, grain = policy.split("norm.rows.variance", count, size)
    numbers = {"size": size, "stride": stride, "divisor": p.degrees}
    one = launch(sized_kernel("norm.rows.variance", size, T=p.dtype), VARIANCE, n, grain, at, **numbers)
    return Plan((*before, one), scratch)


# ---- scans, sorting, sampling ------------------------------------------------------------------


def scan(problem, threads):
    """Rows one element after the other, or LANES columns at a time."""
    p, types = problem, problem.rule.types(problem.dtype)
    step, whole = p.columns, p.size * p.columns
    start, step = (whole - step, -step) if p.reverse else (0, step)
    at = {"x": ("x", start * _bytes(types[0])), "y": ("y", start * _bytes(types[2]))}
    kind, n, width = ("rows", p.outer, 1) if p.columns == 1 else ("columns", p.outer * -(-p.columns // LANES), LANES)
    address = rendered("scan", p.rule, kind, *types)
    numbers = {"size": p.size, "x_stride": p.stride, "y_stride": whole, "x_step": step, "y_step": step}
    return Plan((launch(address, SCAN, n, max(1, _SCAN // (p.size * width)), at, **numbers, columns=p.columns),))


def running(problem, threads):
    """A column after the other."""
    p = problem
    types = {"T": "uint8" if p.dtype == "bool" else p.dtype, "LARGEST": p.largest}
    n, grain = policy.split("reduce.extremes.running", p.outer * p.columns, p.size)
    handle = kernel("reduce.extremes.running", **types)
    return Plan((launch(handle, EXTREMES, n, grain, size=p.size, columns=p.columns),))


def sort_keys(problem):
    """(types, numbers) by which kernels make the keys of a `Sort`."""
    kind = 2 if problem.dtype in _INFINITY else 0 if problem.dtype[0] in "ub" else 1
    numbers = {"infinity": _INFINITY.get(problem.dtype, 0), "mask": -1 if problem.descending else 0}
    return {"E": f"uint{8 * _bytes(problem.dtype)}", "KIND": kind}, numbers


def sort(problem, threads):
    """A few of many elements by a list of the best, else all of them sorted, in a share of the rows for each thread."""
    p, size = problem, _bytes(problem.dtype)
    types, numbers = sort_keys(p)
    numbers |= {"stride": p.stride, "rows": p.rows, "size": p.size, "wanted": p.wanted, "digits": size}
    at = {} if p.values else {"values": None}
    if p.values and p.wanted <= LIST and p.wanted * 4 <= p.size:
        at["workspace"] = None
        topk = kernel("reduce.sort.topk", **types)
        return Plan((launch(topk, SORT, p.rows, max(1, _TOPK // p.size), at, **numbers),))
    slots = max(1, min(threads, p.rows)) if p.rows * p.size >= _SORT else 1
    numbers |= {"slots": slots, "room": SORT_BYTES * p.size}
    one = launch(kernel("reduce.sort.sort", **types), SORT, slots, 1, at, **numbers)
    return Plan((one,), (("workspace", slots * SORT_BYTES * p.size),))


def select(problem, threads):
    """A few elements of long rows digit by digit; of others all sorted, then those that are asked for."""
    p, size = problem, _bytes(problem.dtype)
    whole = Sort(p.dtype, p.rows, p.size, p.stride, p.size, False, True)
    if not _RANKED <= p.size < 1 << 31 or p.count > (12 if p.size >= _LONG else 2):
        return picked(p, sort(whole, threads), size)
    (types, keys), (at, ranks), items = sort_keys(whole), rank_of(p), p.rows * p.count
    slots, room = (
        max(1, min(threads, items)) if items * p.size >= _SORT else 1,
        -(-(8 + size) * (p.size + 1) // 64) * 64,
    )
    one = launch(
        kernel("reduce.select.ranked", **types), RANKED, slots, 1, at, stride=p.stride, rows=p.rows, size=p.size,
        count=p.count, slots=slots, room=room, bits=8 * size, infinity=keys["infinity"], **ranks,
    )  # fmt: skip
    return Plan((one,), (("workspace", slots * room),))


def rank_of(p):
    """(places, numbers) of the ranks of a `Select`."""
    return ({}, {}) if p.rank is None else ({"ranks": None}, {"rank": p.rank})


def picked(p, ordered, size):
    """The plan of a `Select` behind one that sorts."""
    at, numbers = rank_of(p)
    handle = kernel("reduce.select.pick", E=f"uint{8 * size}")
    numbers |= {"infinity": _INFINITY.get(p.dtype, 0)}
    one = launch(handle, PICK, p.rows * p.count, 4096, at, size=p.size, count=p.count, **numbers)
    return behind(ordered, p.rows * p.size, size, (one,))


def behind(ordered, whole, size, launches, scratch=()):
    """The plan of launches that read `ordered` and `order`, which one that sorts `whole` elements has made."""
    own = {"values": "ordered", "indices": "order"}
    before = [
        one._replace(places=tuple((k, own.get(name, name), offset) for k, name, offset in one.places))
        for one in ordered.launches
    ]
    return Plan((*before, *launches), (*ordered.scratch, ("ordered", whole * size), ("order", 8 * whole), *scratch))


def modes(problem, threads):
    """Rows sorted, then the longest run of each."""
    p, size = problem, _bytes(problem.dtype)
    ordered = sort(Sort(p.dtype, p.rows, p.size, p.stride, p.size, False, True), threads)
    handle = kernel("reduce.modes.modes", **mode_types(p.dtype))
    one = launch(handle, MODES, p.rows, 1 + _TOPK // p.size, {"best": None}, size=p.size, rows=p.rows)
    return behind(ordered, p.rows * p.size, size, (one,))


def mode_types(dtype):
    """The types of sorted elements, and of their bits."""
    return {"T": "uint8" if dtype == "bool" else dtype, "E": f"uint{8 * _bytes(dtype)}"}


def sample(problem, threads):
    """A share of the rows for each thread."""
    p = problem
    return sample_in(p, max(1, min(threads, p.rows)) if p.rows * p.size >= _SAMPLE else 1)


def sample_in(p, slots):
    """Shares of the rows in so many slots of a workspace."""
    numbers = {"stride": p.stride, "rows": p.rows, "size": p.size, "slots": slots}
    numbers |= {"history_stride": p.history_stride, "history_length": p.history_length, "bias_stride": p.bias_stride}
    one = launch(kernel("reduce.sample.sample_tokens"), SAMPLE, slots, 1, **numbers)
    return Plan((one,), (("workspace", slots * SAMPLE_BYTES * p.size),))


PLANNERS = {
    Reduce: reduce, Position: position, Variance: variance, Scan: scan, Running: running, Sort: sort, Sample: sample,
    Select: select, Ends: ends, Modes: modes,
}  # fmt: skip
