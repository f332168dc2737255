"""The loops of reductions on GPUs, rendered with a rule each (`kernels/cuda/render.py: reduction`).

The argument block is that of the CPU's loops (`blocks/reduce.py: FOLD`). `inner`: a block folds one result, whose
elements are contiguous, its threads taking vectors in turn; lanes, threads and warps are joined in a fixed order.
`rows` is the same with a warp for each result, where a block would wait for its warps more than it works. Where
elements lie in one row, `short` has those of a result in registers of a few threads, and `held` in those of a warp or a
block, all at once or so many at a time.
`apart`: a block of 32 warps folds one result, whose elements lie apart.
`columns`: a warp folds 32 vectors of neighbouring results, and the warps of a block take rows in turn. `outer`: a
thread folds one result.
"""

from numba import types

from ...blocks.reduce import FOLD
from ...build import jit
from ...lang.by_type import by_type
from ...lang.memory import element_bytes
from ...lang.pieces import inside_held, span_places, vgather_span, vload_held, vload_pieces, vload_span
from ...lang.ptx import WARP, barrier, thread, threads
from ...lang.simd import address, bitcast, fill, load, ptr
from ..apart import aligned

WARPS = 8  # of a block
AT_ONCE = 8  # elements of a thread
BLOCK = 64  # elements of a thread before a partial state is set aside: the error of a sum grows with its square root
F64 = types.float64


@jit.inline
def fold(x, start, stop, step, stride, plane, nothing, read, join):
    """The elements (or vectors) from `start` on, in steps, joined into a state; four at a time are on their way."""
    total, i = nothing, start
    while i < stop:
        part, other, end = nothing, nothing, min(stop, i + BLOCK * step)
        while i + 3 * step < end:
            a, b = read(x, i * stride, plane), read(x, (i + step) * stride, plane)
            c, d = read(x, (i + 2 * step) * stride, plane), read(x, (i + 3 * step) * stride, plane)
            part, other = join(join(part, a), c), join(join(other, b), d)
            i += 4 * step
        while i + step < end:
            part = join(part, read(x, i * stride, plane))
            other = join(other, read(x, (i + step) * stride, plane))
            i += 2 * step
        if i < end:
            part = join(part, read(x, i * stride, plane))
            i += step
        total = join(total, join(part, other))
    return total


@jit.inline
def inner(
    args, index, nothing, read, read_aligned, read_rest, join, lanes, exchange, memory, keep, kept, write, T, O, N
):  # fmt: skip
    """Result number `index`."""
    y = ptr(load(args, FOLD.y), O)
    state = fold_one(args, index, thread(), threads(), nothing, read, read_aligned, read_rest, join, T, N)
    state = over_warp(lanes(state), join, exchange)
    states, warps = memory(), threads() // WARP
    if warps > 1:
        if thread() % WARP == 0:
            keep(states, thread() // WARP, state)
        barrier()
        state = kept(states, 0)
        for k in range(1, warps):
            state = join(state, kept(states, k))
        barrier()
    if thread() == 0:
        write(y, index, state, bitcast(load(args, FOLD.count), F64), load(args, FOLD.plane), 1)
    return 0


@jit.inline
def apart(args, index, nothing, read, rest, join, lanes, exchange, memory, keep, kept, write, T, O):
    """Result number `index`: eight elements of each thread are on their way at once, so that a few thousand are all."""
    x, length, stride = elements_of(args, index, T), load(args, FOLD.length), load(args, FOLD.stride)
    plane, state = load(args, FOLD.plane), nothing
    for first in range(thread(), length, AT_ONCE * threads()):
        for k in range(AT_ONCE):
            i = first + k * threads()
            v = read(x, min(i, length - 1) * stride, plane)
            state = join(state, rest(v, fill(i, types.int64, 1) < length))
    state, states = over_warp(lanes(state), join, exchange), memory()
    if thread() % WARP == 0:
        keep(states, thread() // WARP, state)
    barrier()
    state = over_warp(kept(states, thread() % WARP), join, exchange)  # a state of each of 32 warps
    barrier()
    if thread() == 0:
        write(ptr(load(args, FOLD.y), O), index, state, bitcast(load(args, FOLD.count), F64), plane, 1)
    return 0


@jit.inline
def rows(args, block, nothing, read, read_aligned, read_rest, join, lanes, exchange, write, T, O, N):
    """The results of block number `block`, one for each warp."""
    index = block * WARPS + thread() // WARP
    if index < load(args, FOLD.results):
        state = fold_one(args, index, thread() % WARP, WARP, nothing, read, read_aligned, read_rest, join, T, N)
        state = over_warp(lanes(state), join, exchange)
        if thread() % WARP == 0:
            y, count = ptr(load(args, FOLD.y), O), bitcast(load(args, FOLD.count), F64)
            write(y, index, state, count, load(args, FOLD.plane), 1)
    return 0


@jit.inline
def short(args, block, states, rest, join, lanes, exchange, write, T, O, W, P, TEAM):
    """The results of block number `block`, one for each TEAM of threads, which hold P vectors of W elements each.

    Every thread goes the same way: where lengths leave some without a vector, loops of their own took 4 times as long.
    """
    number, length = block * (WARPS * WARP // TEAM) + thread() // TEAM, load(args, FOLD.length)
    index = min(number, load(args, FOLD.results) - 1)
    at = elements_of(args, index, T)
    first, apart, plane = thread() % TEAM * W, TEAM * W, load(args, FOLD.plane)
    strides = load(args, FOLD.outer_stride) | load(args, FOLD.inner_stride)
    if (length | strides) % W == 0 and load(args, FOLD.x) & 15 == 0:
        state = states(vload_pieces(at, first, apart, length, W, P))
    else:
        state = states(vgather_span(at, first, apart, 0, length, W, P))
    state = lanes(rest(state, span_places(first, apart, types.int32, 1, W, P) < types.int32(length)))
    for apart in (1, 2, 4, 8, 16):
        if apart < TEAM:
            state = join(state, exchange(state, apart))
    if thread() % TEAM == 0 and number < load(args, FOLD.results):
        write(ptr(load(args, FOLD.y), O), index, state, bitcast(load(args, FOLD.count), F64), plane, 1)
    return 0


@jit.inline
def held(
    args, block, nothing, states, rest, join, lanes, exchange, memory, keep, kept, write, T, O, W, P, TEAM, LOOPS
):  # fmt: skip
    """The results of block number `block`, one for each TEAM of threads: a part of a warp, a warp or all.

    P vectors of each thread are on their way at once, wherever rows begin; with LOOPS, rows are longer than these, and
    else those may be that begin beside vectors.
    """
    own, number = thread() % TEAM, thread() // TEAM
    index, length, plane = block * (threads() // TEAM) + number, load(args, FOLD.length), load(args, FOLD.plane)
    at = elements_of(args, min(index, load(args, FOLD.results) - 1), T)
    low = offset(at, W)
    x, high, apart, begin, state = at + -low, low + length, TEAM * W, own * W, nothing
    if LOOPS or high > P * apart:
        while begin - own * W + P * apart < high:
            s = rest(states(vload_held(x, begin, apart, high, W, P)), inside_held(begin, apart, low, high, W, P))
            state = join(state, lanes(s))
            begin += P * apart
        places = span_places(begin, apart, types.int32, 1, W, P)
        there = (places >= types.int32(low)) & (places < types.int32(high))
        state = join(state, lanes(rest(states(vload_span(x, begin, apart, high, W, P)), there)))
    else:
        s = rest(states(vload_held(x, begin, apart, high, W, P)), inside_held(begin, apart, low, high, W, P))
        state = lanes(s)
    for by in (1, 2, 4, 8, 16):
        if by < TEAM:
            state = join(state, exchange(state, by))
    if TEAM > WARP:
        parts, warps = memory(), TEAM // WARP
        if thread() % WARP == 0:
            keep(parts, thread() // WARP, state)
        barrier()
        state = kept(parts, number * warps)
        for k in range(1, warps):
            state = join(state, kept(parts, number * warps + k))
        barrier()
    if own == 0 and index < load(args, FOLD.results):
        write(ptr(load(args, FOLD.y), O), index, state, bitcast(load(args, FOLD.count), F64), plane, 1)
    return 0


@jit.inline
def elements_of(args, index, T):
    """Where the elements of result number `index` begin."""
    inside, a = load(args, FOLD.inner), 0
    if inside < load(args, FOLD.results):
        a = index // inside
    place = a * load(args, FOLD.outer_stride) + (index - a * inside) * load(args, FOLD.inner_stride)
    return ptr(load(args, FOLD.x), T) + place


@by_type
def offset(p, lanes):
    """How many elements p is behind the vector that it points into."""
    nbytes = element_bytes(p.dtype)
    return lambda p, lanes: address(p) // nbytes % lanes


@jit.inline
def over_warp(state, join, exchange):
    """The states of the threads of a warp, joined."""
    for apart in (1, 2, 4, 8, 16):
        state = join(state, exchange(state, apart))
    return state


@jit.inline
def fold_one(args, index, own, members, nothing, read, read_aligned, read_rest, join, T, N):
    """What thread `own` of `members` has of result number `index`, in lanes."""
    length, plane, a, at = load(args, FOLD.length), load(args, FOLD.plane), 0, elements_of(args, index, T)
    if load(args, FOLD.inner) < load(args, FOLD.results):
        a = index // load(args, FOLD.inner)
    count = min(length, load(args, FOLD.whole) - a * length)
    total = nothing
    for row in range(load(args, FOLD.rows)):
        row_at, whole = at + row * load(args, FOLD.row_stride), count // N * N
        if address(row_at) & 15 == 0:
            part = fold(row_at, own * N, whole, members * N, 1, plane, nothing, read_aligned, join)
        else:
            part = fold(row_at, own * N, whole, members * N, 1, plane, nothing, read, join)
        if whole < count and own == members - 1:
            part = join(part, read_rest(row_at, whole, count - whole, plane))
        total = join(total, part)
    return total


@jit.inline
def columns(args, index, nothing, read, read_aligned, read_rest, join, memory, keep, kept, write, T, O, N):
    """Group number `index` of 32 vectors of results, neighbours along the inner kept dim, which has unit stride."""
    x, y = ptr(load(args, FOLD.x), T), ptr(load(args, FOLD.y), O)
    inside, length, plane = load(args, FOLD.inner), load(args, FOLD.length), load(args, FOLD.plane)
    stride, row_stride = load(args, FOLD.stride), load(args, FOLD.row_stride)
    groups, warp, lane = (inside + WARP * N - 1) // (WARP * N), thread() // WARP, thread() % WARP
    a = index // groups
    column = ((index - a * groups) * WARP + lane) * N
    at, left = x + (a * load(args, FOLD.outer_stride) + column), inside - column
    count = min(length, load(args, FOLD.whole) - a * length)
    total = nothing
    for row in range(load(args, FOLD.rows)):
        row_at, part = at + row * row_stride, nothing
        if left >= N and aligned(row_at, stride):
            part = fold(row_at, warp, count, WARPS, stride, plane, nothing, read_aligned, join)
        elif left >= N:
            part = fold(row_at, warp, count, WARPS, stride, plane, nothing, read, join)
        elif left > 0:
            for i in range(warp, count, WARPS):
                part = join(part, read_rest(row_at, i * stride, left, plane))
        total = join(total, part)
    states = memory()
    keep(states, thread(), total)
    barrier()
    if warp == 0 and left > 0:
        state = kept(states, lane)
        for k in range(1, WARPS):
            state = join(state, kept(states, k * WARP + lane))
        write(y, a * inside + column, state, bitcast(load(args, FOLD.count), F64), plane, left)
    barrier()
    return 0


@jit.inline
def outer(args, lo, hi, nothing, read, join, write, T, O):
    """Results [lo, hi); x has unit stride along the inner kept dim, or any stride."""
    x, y = ptr(load(args, FOLD.x), T), ptr(load(args, FOLD.y), O)
    inside, length, plane = load(args, FOLD.inner), load(args, FOLD.length), load(args, FOLD.plane)
    for index in range(lo, hi):
        a = index // inside
        at = x + (a * load(args, FOLD.outer_stride) + (index - a * inside) * load(args, FOLD.inner_stride))
        count = min(length, load(args, FOLD.whole) - a * length)
        total = nothing
        for row in range(load(args, FOLD.rows)):
            part = fold(
                at + row * load(args, FOLD.row_stride), 0, count, 1, load(args, FOLD.stride), plane, nothing, read, join
            )
            total = join(total, part)
        write(y, index, total, bitcast(load(args, FOLD.count), F64), plane, 1)
    return 0
