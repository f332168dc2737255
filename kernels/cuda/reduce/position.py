"""Where the largest or smallest elements are: reductions to a value and its place, of equal values the first one.

NaN is above all. `rows`: the elements of a part of a row are contiguous, and a team of threads has them, four vectors
of each on their way at once. `columns`: a warp has 32 vectors of neighbouring results, and the warps of a block take
rows in turn. `each`: a thread has one result, where there are few elements of it. Of rows and columns in parts, the
best of each go to memory, and `join` has the best of these.

A thread meets its elements in their order, so a later one wins only if it is better: a comparison and two choices for
an element, and one test for NaN. Which of equal ones is the first is asked where threads are joined.
"""

from numba import types

from ...blocks.cuda import PLACES
from ...build import jit
from ...lang.by_type import by_type
from ...lang.pieces import span_places, vload_span, vpiece
from ...lang.ptx import WARP, barrier, from_lane, thread, threads
from ...lang.shuffle import high as last_half
from ...lang.shuffle import low as first_half
from ...lang.simd import convert, fill, lane, load, ptr, ramp, select, store, vload, vstore_first
from ...lang.vector import compute_type
from ..apart import aligned, any_row, lined_row, whole_row
from ..block import width
from .running import _end
from .scan import offset
from .states import keep, kept, memory_of

I32, I64 = types.int32, types.int64
FAR = (1 << 31) - 1  # the place of nothing
WARPS, THREADS = 8, 256  # of a block


def _nothing(largest):
    """A function of a pointer and a count of lanes: what is no better than any element of its type."""

    @by_type(prefer_literal=True)
    def nothing(x, lanes):
        dtype, count = compute_type(x.dtype), lanes.literal_value
        value = _end(types.NumberClass(dtype), largest)
        return lambda x, lanes: fill(value, dtype, count)

    return nothing


least, greatest = _nothing(True), _nothing(False)


@jit.inline
def larger(a, b):
    return a > b


@jit.inline
def smaller(a, b):
    return a < b


@jit.inline
def then(s, v, at, better):
    """The state s after the elements v, which stand behind it, at the place (or places) `at`."""
    wins = better(v, s[0]) | ((v != v) & (s[0] == s[0]))
    return select(wins, v, s[0]), select(wins, at, s[1])


@jit.inline
def best(a, b, better):
    """The better one of two states, of equal ones that which comes first."""
    same = (a[0] == b[0]) | ((a[0] != a[0]) & (b[0] != b[0]))
    wins = better(b[0], a[0]) | ((b[0] != b[0]) & (a[0] == a[0])) | (same & (b[1] < a[1]))
    return select(wins, b[0], a[0]), select(wins, b[1], a[1])


@by_type
def over_lanes(s, better):
    """The best of the lanes of a state, as one of one lane."""
    lines, lanes = ["def made(s, better):", "    s0 = s"], s[0].lanes
    step = 0
    while lanes > 1:
        halves = (f"({half}(s{step}[0]), {half}(s{step}[1]))" for half in ("first_half", "last_half"))
        lines.append(f"    s{step + 1} = best({', '.join(halves)}, better)")
        step, lanes = step + 1, lanes // 2
    scope = {"first_half": first_half, "last_half": last_half, "best": best}
    exec("\n".join([*lines, f"    return s{step}"]), scope)
    return scope["made"]


@jit.inline
def over_team(s, better, TEAM):
    """The best of the threads of a team: a part of a warp, a warp, or a whole block."""
    for apart in (1, 2, 4, 8, 16):
        if apart < TEAM:
            s = best(s, (from_lane(s[0], apart), from_lane(s[1], apart)), better)
    if TEAM > WARP:
        memory = memory_of(s, WARPS)
        if thread() % WARP == 0:
            keep(memory, WARPS, thread() // WARP, s)
        barrier()
        s = kept(memory, WARPS, 0, s)
        for k in range(1, WARPS):
            s = best(s, kept(memory, WARPS, k, s), better)
        barrier()
    return s


@jit.inline
def write(args, at, s, first, T):
    """A state of one lane to the results, or to those of parts; `first` is the place that its places count from."""
    if load(args, PLACES.values) != 0:
        store(ptr(load(args, PLACES.values), T), at, lane(s[0], 0))
    store(ptr(load(args, PLACES.indices), I64), at, first + I64(lane(s[1], 0)))


@jit.inline
def element(args, index, T):
    """Where the elements of result number `index` begin."""
    inside = load(args, PLACES.inner)
    a = index // inside
    place = a * load(args, PLACES.outer_stride) + (index - a * inside) * load(args, PLACES.inner_stride)
    return ptr(load(args, PLACES.x), T) + place


# ---- rows ---------------------------------------------------------------------------------------


@jit.inline
def span_best(x, low, high, own, nothing, better, W, TEAM):
    """The best of what thread `own` of TEAM has of elements [low, high) behind x, a multiple of 16 bytes."""
    apart, begin, s = TEAM * W, own * W, (nothing, fill(-1, I32, W))
    while begin - own * W < high:
        v = vload_span(x, begin, apart, high, W, 4)
        if (begin == own * W and low > 0) or begin - own * W + 4 * apart > high:
            at = span_places(begin, apart, I32, 1, W, 4)
            v = select((at >= I32(low)) & (at < I32(high)), v, lane(nothing, 0))
        s = then(s, vpiece(v, 0, W), I32(begin), better)
        s = then(s, vpiece(v, 1, W), I32(begin + apart), better)
        s = then(s, vpiece(v, 2, W), I32(begin + 2 * apart), better)
        s = then(s, vpiece(v, 3, W), I32(begin + 3 * apart), better)
        begin += 4 * apart
    # where nothing was better than nothing, the first element of the lane is as good as all others
    first = ramp(own * W, I32, W)
    first = select(first >= I32(low), first, first + I32(apart))
    first = select(first < I32(high), first, FAR)
    return s[0], select(s[1] >= 0, s[1] + ramp(0, I32, W), first)


@jit.inline
def rows(args, item, nothing, better, T, TEAM):
    """As many parts of rows as a block has teams, from number `item` times so many on."""
    unit, parts, step = item * (threads() // TEAM) + thread() // TEAM, load(args, PLACES.parts), load(args, PLACES.step)
    count = load(args, PLACES.results) * parts
    own = min(unit, count - 1)
    row = own // parts
    first = (own - row * parts) * step
    x = element(args, row, T) + first
    W = width(x)
    low = offset(x, W)
    size = min(step, load(args, PLACES.length) - first)
    s = span_best(x + -low, low, low + size, thread() % TEAM, nothing(x, W), better, W, TEAM)
    s = over_team(over_lanes(s, better), better, TEAM)
    if thread() % TEAM == 0 and unit < count:
        write(args, unit, s, first - low, T)
    return 0


# ---- columns ------------------------------------------------------------------------------------


@jit.inline
def down(x, count, stride, left, nothing, read, better, W):
    """The best of every WARPS-th of `count` rows, from this warp's on; four are on their way at once."""
    i = thread() // WARP
    s = nothing, fill(FAR, I32, W)
    if i < count:
        s = read(x, i * stride, left, W), fill(I32(i), I32, W)
        i += WARPS
    while i + 3 * WARPS < count:
        a, b = read(x, i * stride, left, W), read(x, (i + WARPS) * stride, left, W)
        c, d = read(x, (i + 2 * WARPS) * stride, left, W), read(x, (i + 3 * WARPS) * stride, left, W)
        s = then(then(s, a, I32(i), better), b, I32(i + WARPS), better)
        s = then(then(s, c, I32(i + 2 * WARPS), better), d, I32(i + 3 * WARPS), better)
        i += 4 * WARPS
    while i < count:
        s = then(s, read(x, i * stride, left, W), I32(i), better)
        i += WARPS
    return s


@jit.inline
def columns(args, item, nothing, better, T):
    """A part of the rows of 32 vectors of results, neighbours along the inner kept dim, which has unit stride."""
    x, inside, parts = ptr(load(args, PLACES.x), T), load(args, PLACES.inner), load(args, PLACES.parts)
    W = width(x)
    groups, step, stride = (inside + WARP * W - 1) // (WARP * W), load(args, PLACES.step), load(args, PLACES.stride)
    a = item // (groups * parts)
    part = item // groups - a * parts
    column = (item % groups * WARP + thread() % WARP) * W
    left, first = inside - column, part * step
    at = x + (a * load(args, PLACES.outer_stride) + column + first * stride)
    count, none = min(step, load(args, PLACES.length) - first), nothing(x, W)
    s = none, fill(FAR, I32, W)
    if left >= W and aligned(at, stride):
        s = down(at, count, stride, left, none, lined_row, better, W)
    elif left >= W:
        s = down(at, count, stride, left, none, whole_row, better, W)
    elif left > 0:
        s = down(at, count, stride, left, none, any_row, better, W)
    memory = memory_of(s, THREADS)
    keep(memory, THREADS, thread(), s)
    barrier()
    if thread() < WARP and left > 0:
        for k in range(1, WARPS):
            s = best(s, kept(memory, THREADS, k * WARP + thread(), s), better)
        to = part * load(args, PLACES.results) + a * inside + column
        if load(args, PLACES.values) != 0:
            vstore_first(ptr(load(args, PLACES.values), T), to, s[0], left)
        vstore_first(ptr(load(args, PLACES.indices), I64), to, convert(s[1], I64) + first, left)
    barrier()
    return 0


# ---- few elements, and parts ----------------------------------------------------------------------


@jit.inline
def each(args, lo, hi, nothing, better, T):
    """Results [lo, hi)."""
    for index in range(lo, hi):
        x, stride = element(args, index, T), load(args, PLACES.stride)
        s = vload(x, 0, 1), fill(0, I32, 1)
        for i in range(1, load(args, PLACES.length)):
            s = then(s, vload(x, i * stride, 1), I32(i), better)
        write(args, index, s, 0, T)
    return 0


@jit.inline
def join(args, item, nothing, better, T, TEAM):
    """As many results as a block has teams, each of the best ones of `parts` parts."""
    number, stride = item * (threads() // TEAM) + thread() // TEAM, load(args, PLACES.stride)
    index = min(number, load(args, PLACES.results) - 1)
    begin = index * load(args, PLACES.inner_stride)
    x, places = ptr(load(args, PLACES.x), T), ptr(load(args, PLACES.found), I64)
    s = nothing(x, 1), fill(1 << 62, I64, 1)
    for i in range(thread() % TEAM, load(args, PLACES.parts), TEAM):
        s = best(s, (vload(x, begin + i * stride, 1), vload(places, begin + i * stride, 1)), better)
    s = over_team(s, better, TEAM)
    if thread() % TEAM == 0 and number < load(args, PLACES.results):
        write(args, index, s, 0, T)
    return 0


def _kernels(nothing, better):
    """Those of the largest or of the smallest elements."""

    @jit.inline
    def of_rows(args, lo, hi, T, TEAM):
        return rows(args, lo, nothing, better, T, TEAM)

    @jit.inline
    def of_columns(args, lo, hi, T):
        return columns(args, lo, nothing, better, T)

    @jit.inline
    def of_each(args, lo, hi, T):
        return each(args, lo, hi, nothing, better, T)

    @jit.inline
    def of_parts(args, lo, hi, T, TEAM):
        return join(args, lo, nothing, better, T, TEAM)

    return of_rows, of_columns, of_each, of_parts


max_rows, max_columns, max_each, max_join = _kernels(least, larger)
min_rows, min_columns, min_each, min_join = _kernels(greatest, smaller)
