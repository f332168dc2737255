"""Softmax along a dim with others behind it, and its way back: columns, whose rows lie far apart.

`each`: where there are many columns, a thread has a vector of them and goes down all rows twice. Of fewer, a block has
32 vectors and a part of the rows, which its warps take in turn: `statistics` keeps the largest element and the sum of
exponentials of each column, scaled where the maximum grows, four rows at a time; `finish` joins those of parts; `apply`
reads x once more. On the way back the sums of products (`products`, `total`, `gradient`) take their place.
"""

from ...blocks.cuda import SOFTMAX_COLUMNS as BLOCK
from ...build import jit
from ...lang.by_type import by_type
from ...lang.ptx import WARP, barrier, thread
from ...lang.simd import lane, load, muladd, ptr, select, vload, vload_first, vmax, vstore_first
from ...lang.vector import compute_type
from ...lang.vmath import exp, log
from ..apart import any_row, lined, lined_row, put_any, put_lined
from ..block import vector, width
from ..reduce.states import keep, kept, memory_of
from .softmax import INF, NAN, exp_below, lowest

WARPS, THREADS = 8, 256


@by_type
def states_of(x, at):
    """A pointer to numbers of the type that elements of x are computed in."""
    dtype = compute_type(x.dtype)
    return lambda x, at: ptr(at, dtype)


@jit.inline
def nothing(x):
    """The state of no elements: (the largest, the sum of exponentials)."""
    none = vector(x, 0.0)
    return none + lowest(lane(none, 0)), none


@jit.inline
def joined(x, a, b):
    """One state of two."""
    top = vmax(a[0], b[0])
    return top, a[1] * exp_below(x, a[0] - top) + b[1] * exp_below(x, b[0] - top)


@jit.inline
def after(x, s, v):
    """A state after one row."""
    top = vmax(s[0], v)
    return top, s[1] * exp_below(x, s[0] - top) + exp_below(x, v - top)


@jit.inline
def after_four(x, s, a, b, c, d):
    """A state after four rows: five exponentials, and not eight."""
    top = vmax(s[0], vmax(vmax(a, b), vmax(c, d)))
    more = (exp_below(x, a - top) + exp_below(x, b - top)) + (exp_below(x, c - top) + exp_below(x, d - top))
    return top, s[1] * exp_below(x, s[0] - top) + more


@jit.inline
def down(x, first, last, by, stride, left, read, W):
    """The state of rows first, first + by, ... below `last`."""
    s, i = nothing(x), first
    while i + 3 * by < last:
        a, b = read(x, i * stride, left, W), read(x, (i + by) * stride, left, W)
        c, d = read(x, (i + 2 * by) * stride, left, W), read(x, (i + 3 * by) * stride, left, W)
        s = after_four(x, s, a, b, c, d)
        i += 4 * by
    while i < last:
        s = after(x, s, read(x, i * stride, left, W))
        i += by
    return s


@jit.inline
def statistics_of(x, first, last, by, stride, left, W):
    """The same, of rows that lie anywhere."""
    if lined(x, stride, left, W):
        return down(x, first, last, by, stride, left, lined_row, W)
    return down(x, first, last, by, stride, left, any_row, W)


@jit.inline
def settled(s, LOGARITHM):
    """(the largest, what results are scaled by, or the logarithm of the sum); NaN where the largest is not finite."""
    top = select(s[1] != 0.0, s[0], -INF)  # else all elements are
    found = log(s[1]) if LOGARITHM else 1.0 / s[1]
    return top, select((top > -INF) & (top < INF), found, NAN)


@jit.inline
def result_of(x, v, top, scale, LOGARITHM):
    """Softmax of elements, or its logarithm."""
    return v - top - scale if LOGARITHM else exp_below(x, v - top) * scale


@jit.inline
def gradient_of(g, y, total, LOGARITHM):
    """That of the input, of a result and its gradient."""
    return g - exp(y) * total if LOGARITHM else y * (g - total)


@jit.inline
def sum_down(g, y, first, last, by, stride, left, read, W, LOGARITHM):
    """The sums of g * y (of g, if LOGARITHM) over rows first, first + by, ..., in two parts."""
    even, odd, i = vector(g, 0.0), vector(g, 0.0), first
    while i + by < last:
        a, b = read(g, i * stride, left, W), read(g, (i + by) * stride, left, W)
        if LOGARITHM:
            even, odd = even + a, odd + b
        else:
            c, d = read(y, i * stride, left, W), read(y, (i + by) * stride, left, W)
            even, odd = muladd(a, c, even), muladd(b, d, odd)
        i += 2 * by
    if i < last:
        a = read(g, i * stride, left, W)
        even = even + a if LOGARITHM else muladd(a, read(y, i * stride, left, W), even)
    return even + odd


@jit.inline
def sums_of(g, y, first, last, by, stride, left, W, LOGARITHM):
    """The same, of rows that lie anywhere."""
    if lined(g, stride, left, W) and lined(y, stride, left, W):
        return sum_down(g, y, first, last, by, stride, left, lined_row, W, LOGARITHM)
    return sum_down(g, y, first, last, by, stride, left, any_row, W, LOGARITHM)


@jit.inline
def results_down(x, y, s, first, last, by, stride, left, read, put, W, LOGARITHM):
    """Write the results of these rows, by what `settled` found."""
    i = first
    while i + by < last:
        a, b = read(x, i * stride, left, W), read(x, (i + by) * stride, left, W)
        put(y, i * stride, result_of(x, a, s[0], s[1], LOGARITHM), left)
        put(y, (i + by) * stride, result_of(x, b, s[0], s[1], LOGARITHM), left)
        i += 2 * by
    if i < last:
        put(y, i * stride, result_of(x, read(x, i * stride, left, W), s[0], s[1], LOGARITHM), left)


@jit.inline
def write_results(x, y, s, first, last, by, stride, left, W, LOGARITHM):
    """The same, to rows that lie anywhere."""
    if lined(x, stride, left, W) and lined(y, stride, left, W):
        results_down(x, y, s, first, last, by, stride, left, lined_row, put_lined, W, LOGARITHM)
    else:
        results_down(x, y, s, first, last, by, stride, left, any_row, put_any, W, LOGARITHM)


@jit.inline
def gradients_down(g, x, y, total, first, last, by, stride, left, read, put, W, LOGARITHM):
    """Write the gradients of these rows."""
    for i in range(first, last, by):
        a, b = read(g, i * stride, left, W), read(x, i * stride, left, W)
        put(y, i * stride, gradient_of(a, b, total, LOGARITHM), left)


@jit.inline
def write_gradients(g, x, y, total, first, last, by, stride, left, W, LOGARITHM):
    """The same, to rows that lie anywhere."""
    if lined(g, stride, left, W) and lined(x, stride, left, W) and lined(y, stride, left, W):
        gradients_down(g, x, y, total, first, last, by, stride, left, lined_row, put_lined, W, LOGARITHM)
    else:
        gradients_down(g, x, y, total, first, last, by, stride, left, any_row, put_any, W, LOGARITHM)


# ---- many columns -------------------------------------------------------------------------------


@jit.inline
def strip(args, unit, W):
    """(outer index, first column, columns from there on) of vector number `unit` of all outer slices."""
    columns = load(args, BLOCK.columns)
    vectors = (columns + W - 1) // W
    outer = unit // vectors
    column = (unit - outer * vectors) * W
    return outer, column, columns - column


@jit.inline
def each(args, lo, hi, T, LOGARITHM):
    """Vectors [lo, hi) of columns."""
    size, columns = load(args, BLOCK.size), load(args, BLOCK.columns)
    for unit in range(lo, hi):
        x, y = ptr(load(args, BLOCK.x), T), ptr(load(args, BLOCK.y), T)
        W = width(x)
        outer, column, left = strip(args, unit, W)
        x, y = x + (outer * load(args, BLOCK.stride) + column), y + (outer * size * columns + column)
        s = settled(statistics_of(x, 0, size, 1, columns, left, W), LOGARITHM)
        write_results(x, y, s, 0, size, 1, columns, left, W, LOGARITHM)
    return 0


@jit.inline
def each_gradient(args, lo, hi, T, LOGARITHM):
    """The way back of vectors [lo, hi) of columns: x is the result, y the gradient of the input."""
    size, columns = load(args, BLOCK.size), load(args, BLOCK.columns)
    for unit in range(lo, hi):
        g, x, y = (ptr(load(args, BLOCK.g), T), ptr(load(args, BLOCK.x), T), ptr(load(args, BLOCK.y), T))
        W = width(x)
        outer, column, left = strip(args, unit, W)
        g, x = g + (outer * load(args, BLOCK.g_stride) + column), x + (outer * load(args, BLOCK.stride) + column)
        y = y + (outer * size * columns + column)
        total = sums_of(g, x, 0, size, 1, columns, left, W, LOGARITHM)
        write_gradients(g, x, y, total, 0, size, 1, columns, left, W, LOGARITHM)
    return 0


# ---- parts of rows ------------------------------------------------------------------------------


@jit.inline
def part_of(args, item, W):
    """(outer index, part, first column of this thread, columns from there on, first row, rows) of a block's item."""
    columns, parts, step = load(args, BLOCK.columns), load(args, BLOCK.parts), load(args, BLOCK.step)
    groups = (columns + WARP * W - 1) // (WARP * W)
    outer = item // (groups * parts)
    part = item // groups - outer * parts
    column = (item % groups * WARP + thread() % WARP) * W
    return outer, part, column, columns - column, part * step, min(step, load(args, BLOCK.size) - part * step)


@jit.inline
def statistics(args, lo, hi, T):
    """The states of a part of the rows of 32 vectors of columns."""
    x = ptr(load(args, BLOCK.x), T)
    W, columns = width(x), load(args, BLOCK.columns)
    outer, part, column, left, first, count = part_of(args, lo, W)
    x = x + (outer * load(args, BLOCK.stride) + column + first * columns)
    s = nothing(x)
    if left > 0:
        s = statistics_of(x, thread() // WARP, count, WARPS, columns, left, W)
    memory = memory_of(s, THREADS)
    keep(memory, THREADS, thread(), s)
    barrier()
    if thread() < WARP and left > 0:
        for k in range(1, WARPS):
            s = joined(x, s, kept(memory, THREADS, k * WARP + thread(), s))
        states, results = states_of(x, load(args, BLOCK.states)), load(args, BLOCK.outer) * columns
        at = part * results + outer * columns + column
        vstore_first(states, at, s[0], left)
        vstore_first(states, load(args, BLOCK.parts) * results + at, s[1], left)
    return 0


@jit.inline
def whole(args, x, at):
    """The state of one column, number `at`, of those of all parts."""
    states, results = states_of(x, load(args, BLOCK.states)), load(args, BLOCK.outer) * load(args, BLOCK.columns)
    plane = load(args, BLOCK.parts) * results
    s = vload(states, at, 1), vload(states, plane + at, 1)
    for k in range(1, load(args, BLOCK.parts)):
        s = joined(x, s, (vload(states, k * results + at, 1), vload(states, plane + k * results + at, 1)))
    return s


@jit.inline
def finish(args, lo, hi, T, LOGARITHM):
    """What the results of columns [lo, hi) are made by, in the place of the states of the first part."""
    x = ptr(load(args, BLOCK.x), T)
    plane = load(args, BLOCK.parts) * load(args, BLOCK.outer) * load(args, BLOCK.columns)
    for at in range(lo, hi):
        top, scale = settled(whole(args, x, at), LOGARITHM)
        states = states_of(x, load(args, BLOCK.states))
        vstore_first(states, at, top, 1)
        vstore_first(states, plane + at, scale, 1)
    return 0


@jit.inline
def logsumexp(args, lo, hi, T):
    """The logarithms of the sums of columns [lo, hi); the largest element itself where it is infinite, or NaN."""
    x, y = ptr(load(args, BLOCK.x), T), ptr(load(args, BLOCK.y), T)
    for at in range(lo, hi):
        top, scale = settled(whole(args, x, at), True)
        vstore_first(y, at, select((top > -INF) & (top < INF), top + scale, top), 1)
    return 0


@jit.inline
def apply(args, lo, hi, T, LOGARITHM):
    """The results of a part of the rows of 32 vectors of columns."""
    x, y = ptr(load(args, BLOCK.x), T), ptr(load(args, BLOCK.y), T)
    W, columns, size = width(x), load(args, BLOCK.columns), load(args, BLOCK.size)
    outer, _, column, left, first, count = part_of(args, lo, W)
    if left > 0:
        states, at = states_of(x, load(args, BLOCK.states)), outer * columns + column
        plane = load(args, BLOCK.parts) * load(args, BLOCK.outer) * columns
        s = vload_first(states, at, W, left), vload_first(states, plane + at, W, left)
        x, y = x + (outer * load(args, BLOCK.stride) + column), y + (outer * size * columns + column)
        write_results(x, y, s, first + thread() // WARP, first + count, WARPS, columns, left, W, LOGARITHM)
    return 0


@jit.inline
def products(args, lo, hi, T, LOGARITHM):
    """The sums of a part of the rows of 32 vectors of columns."""
    g, x = ptr(load(args, BLOCK.g), T), ptr(load(args, BLOCK.x), T)
    W, columns = width(x), load(args, BLOCK.columns)
    outer, part, column, left, first, count = part_of(args, lo, W)
    own = column + first * columns
    g, x = g + (outer * load(args, BLOCK.g_stride) + own), x + (outer * load(args, BLOCK.stride) + own)
    total = vector(x, 0.0)
    if left > 0:
        total = sums_of(g, x, thread() // WARP, count, WARPS, columns, left, W, LOGARITHM)
    memory = memory_of(total, THREADS)
    keep(memory, THREADS, thread(), total)
    barrier()
    if thread() < WARP and left > 0:
        for k in range(1, WARPS):
            total = total + kept(memory, THREADS, k * WARP + thread(), total)
        at = part * load(args, BLOCK.outer) * columns + outer * columns + column
        vstore_first(states_of(x, load(args, BLOCK.states)), at, total, left)
    return 0


@jit.inline
def total(args, lo, hi, T):
    """The sums of columns [lo, hi), in the place of those of the first part."""
    states, results = ptr(load(args, BLOCK.states), T), load(args, BLOCK.outer) * load(args, BLOCK.columns)
    for at in range(lo, hi):
        found = vload(states, at, 1)
        for k in range(1, load(args, BLOCK.parts)):
            found = found + vload(states, k * results + at, 1)
        vstore_first(states, at, found, 1)
    return 0


@jit.inline
def gradient(args, lo, hi, T, LOGARITHM):
    """The gradients of a part of the rows of 32 vectors of columns."""
    g, x, y = (ptr(load(args, BLOCK.g), T), ptr(load(args, BLOCK.x), T), ptr(load(args, BLOCK.y), T))
    W, columns, size = width(x), load(args, BLOCK.columns), load(args, BLOCK.size)
    outer, _, column, left, first, count = part_of(args, lo, W)
    if left > 0:
        whole = vload_first(states_of(x, load(args, BLOCK.states)), outer * columns + column, W, left)
        g, x = g + (outer * load(args, BLOCK.g_stride) + column), x + (outer * load(args, BLOCK.stride) + column)
        y = y + (outer * size * columns + column)
        last = first + count
        write_gradients(g, x, y, whole, first + thread() // WARP, last, WARPS, columns, left, W, LOGARITHM)
    return 0
