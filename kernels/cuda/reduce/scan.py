"""Scans on GPUs: running states along a dim, of rules (rendered: `cuda/render.py: scan`) and extremes (`running.py`).

A thread has some vectors of 16 bytes in registers. What lies before a vector is joined in this order: lanes, threads of
a warp by shuffles, vectors, warps, and parts of a row. `rows`: a row is for a team of 1 to 32 threads. `blocks`: a
block goes through a row, part after part. `chunks`: each part is a block's, and the states of all parts before come
through memory, of which every block makes the same tree: results are the same each time. `columns`: the dim is not the
last one; threads have neighbouring columns, and slices of a block take rows in turn.

States of floats are float32 (float64 of float64), those of integers int64. As in every parallel scan, a state is joined
of others than in a loop: what lies between two elements may overflow by itself, and its product with 0 be NaN.
"""

from numba import types

from ...blocks.cuda import SCAN
from ...build import jit
from ...lang.by_type import by_type
from ...lang.memory import element_bytes
from ...lang.pieces import span_places, vgather_span, vload_span, vstore_span
from ...lang.ptx import WARP, barrier, thread
from ...lang.shuffle import turned_around
from ...lang.simd import address, convert, fill, load, ptr, select, vstore
from .sizes import GROUP, THREADS
from .states import (
    at_place,
    before_each,
    below,
    in_pieces,
    in_vectors,
    keep,
    kept,
    memory_of,
    put,
    spread,
    states,
    wait,
    words_bytes,
)

WARPS = THREADS // WARP
TURNS, STATES = 2 * WARPS, 2 * THREADS  # of two turns
I32, I64 = types.int32, types.int64


# ---- elements -----------------------------------------------------------------------------------


@by_type
def lanes_of(x, y):
    """How many elements a vector has: 16 bytes of the wider ones."""
    lanes = 16 // max(element_bytes(p.dtype) for p in (x, y))
    return lambda x, y: lanes


@by_type
def offset(p, lanes):
    """How many elements p is behind the vector that it points into."""
    nbytes = element_bytes(p.dtype)
    return lambda p, lanes: address(p) // nbytes % lanes


@jit.inline
def span(x, y, z, size):
    """(elements before the row in its first vector, where the row ends then, whether x and z have vectors as y has).

    Rows of whole vectors that begin elsewhere have none before, and elements go one by one.
    """
    lanes = lanes_of(x, y)
    low = offset(y, lanes)
    lined = offset(x, lanes) == low and offset(z, lanes) == low
    whole = True
    if low != 0 and size % lanes == 0:
        low, lined, whole = 0, False, False
    return low, low + size, lined, whole


@jit.inline
def element_states(x, first, apart, low, high, lined, nothing, start, STATE, W, P, REVERSE):
    """The states of a thread's elements; those before the row are `nothing`."""
    if lined:
        v = convert(vload_span(x + -low, first, apart, high, W, P), STATE)
    else:
        v = convert(vgather_span(x + -low, first, apart, low, high, W, P), STATE)
    places = span_places(first, apart, I32, 1, W, P)
    if REVERSE:
        if high % W != 0:
            v = select(places < I32(high), v, start)
        v = turned_around(v, W)
    elif low != 0:
        v = select(places >= I32(low), v, start)
    return states(v, places - I32(low), nothing)


@by_type
def write(s, outs, first, apart, low, high, left, lined, whole, W, P, RESULT, REVERSE):
    """Store results: of a rule to y, of extremes to values, which are `lined` up or not, and indices."""
    if isinstance(s, types.BaseTuple):

        def both(s, outs, first, apart, low, high, left, lined, whole, W, P, RESULT, REVERSE):
            vstore_span(outs[1] + -low, first, apart, low, high, left, lined, convert(s[0], RESULT), P)
            vstore_span(outs[0] + -low, first, apart, low, high, left, whole, convert(s[1], I64), P)

        return both

    def one(s, outs, first, apart, low, high, left, lined, whole, W, P, RESULT, REVERSE):
        v = convert(s, RESULT)
        if REVERSE:
            v = turned_around(v, W)
        vstore_span(outs[0] + -low, first, apart, low, high, left, whole, v, P)

    return one


@by_type
def results(args, nothing, RESULT):
    """Pointers to results: (y, y), or (indices, values)."""
    if isinstance(nothing, types.BaseTuple):
        return lambda args, nothing, RESULT: (ptr(load(args, SCAN.indices), I64), ptr(load(args, SCAN.y), RESULT))
    return lambda args, nothing, RESULT: (ptr(load(args, SCAN.y), RESULT), ptr(load(args, SCAN.y), RESULT))


# ---- a row for a team, or for a block, or parts of it for blocks ----------------------------------


@jit.inline
def below_each(ends, join, nothing, TEAM, P):
    """(the states before each of P vectors of this thread, that of all), of the last states of vectors of a team.

    The vectors number k of all threads come before those number k + 1.
    """
    place, upto = thread() % TEAM, ends
    for apart in (1, 2, 4, 8, 16):
        if apart < TEAM:
            before = below(upto, apart)
            if place >= apart:
                upto = join(before, upto)
    before = below(upto, 1)
    if place == 0:
        before = spread(nothing, P, 1)
    parts, whole = before_each(at_place(upto, thread() % WARP // TEAM * TEAM + TEAM - 1), join, nothing)
    return join(parts, before), whole


@jit.inline
def rows(args, item, join, nothing, start, T, STATE, RESULT, TEAM, P, REVERSE):
    """As many rows as a block has teams, from number `item` times so many on."""
    count, size = load(args, SCAN.rows), load(args, SCAN.size)
    first_row = item * (THREADS // TEAM) + thread() // WARP * (WARP // TEAM)
    if first_row < count:
        own = first_row + thread() % WARP // TEAM
        row = min(own, count - 1)
        outs = results(args, nothing, RESULT)
        x = ptr(load(args, SCAN.x), T) + row * load(args, SCAN.x_stride)
        outs = outs[0] + row * size, outs[1] + row * size
        W = lanes_of(x, outs[0])
        low, high, lined, whole = span(x, outs[0], outs[1], size)
        first, apart = thread() % TEAM * W, TEAM * W
        if REVERSE:
            first, apart = ((high + W - 1) // W - 1) * W - first, -apart
        s = element_states(x, first, apart, low, high, lined, nothing, start, STATE, W, P, REVERSE)
        s, ends = in_vectors(s, join, W)
        before, _ = below_each(ends, join, nothing, TEAM, P)
        left = W if own < count else 0
        write(join(spread(before, 1, W), s), outs, first, apart, low, high, left, lined, whole, W, P, RESULT, REVERSE)
    return 0


@jit.inline
def before_part(args, row, part, whole, join, nothing):
    """The state before a part of a row, of those of all parts before.

    The parts of a group tell theirs; the last one waits for these and tells that of the group and all before.
    """
    parts, nbytes = load(args, SCAN.parts), words_bytes(nothing)
    words, group, place = load(args, SCAN.words) + row * parts * nbytes, part // GROUP, part % GROUP
    ends = load(args, SCAN.words) + (load(args, SCAN.rows) * parts + row * (parts // GROUP)) * nbytes
    if thread() == 0:
        put(words + part * nbytes, whole)
    if part == 0:
        return nothing
    s = nothing
    if thread() == 0:
        if group > 0:
            s = wait(ends + (group - 1) * nbytes, nothing)
    elif thread() <= place:
        s = wait(words + (group * GROUP + thread() - 1) * nbytes, nothing)
    for apart in (1, 2, 4, 8, 16):
        before = below(s, apart)
        if thread() % WARP >= apart:
            s = join(before, s)
    memory = memory_of(nothing, WARPS)
    if thread() % WARP == WARP - 1:
        keep(memory, WARPS, thread() // WARP, s)
    barrier()
    s = kept(memory, WARPS, 0, nothing)
    for k in range(1, WARPS):
        s = join(s, kept(memory, WARPS, k, nothing))
    if place == GROUP - 1 and thread() == 0:
        put(ends + group * nbytes, join(s, whole))
    return s


@jit.inline
def part_of_row(args, row, part, turn, carry, join, nothing, start, T, STATE, RESULT, P, REVERSE, CUT):
    """P vectors for each thread of part number `part`; the state at its end. Unless `CUT`, `carry` is that before."""
    size, outs = load(args, SCAN.size), results(args, nothing, RESULT)
    x = ptr(load(args, SCAN.x), T) + row * load(args, SCAN.x_stride)
    outs = outs[0] + row * size, outs[1] + row * size
    W = lanes_of(x, outs[0])
    low, high, lined, full = span(x, outs[0], outs[1], size)
    warp, place = thread() // WARP, thread() % WARP
    first, apart = ((part * WARPS + warp) * (P * WARP) + place) * W, WARP * W
    if REVERSE:
        first, apart = ((high + W - 1) // W - 1) * W - first, -apart
    s = element_states(x, first, apart, low, high, lined, nothing, start, STATE, W, P, REVERSE)
    s, ends = in_vectors(s, join, W)
    before, whole = below_each(ends, join, nothing, WARP, P)
    memory = memory_of(nothing, TURNS)  # parts take turns, so that one barrier is enough
    if place == 0:
        keep(memory, TURNS, turn * WARPS + warp, whole)
    barrier()
    inside, total = nothing, nothing
    for k in range(WARPS):
        one = kept(memory, TURNS, turn * WARPS + k, nothing)
        if k < warp:
            inside = join(inside, one)
        total = join(total, one)
    if CUT:
        carry = before_part(args, row, part, total, join, nothing)
    before = spread(join(spread(join(carry, inside), P, 1), before), 1, W)
    write(join(before, s), outs, first, apart, low, high, W, lined, full, W, P, RESULT, REVERSE)
    return join(carry, total)


@jit.inline
def blocks(args, row, join, nothing, start, T, STATE, RESULT, TEAM, P, REVERSE):
    """A row."""
    carry, turn = nothing, 0
    for part in range(load(args, SCAN.parts)):
        carry = part_of_row(args, row, part, turn, carry, join, nothing, start, T, STATE, RESULT, P, REVERSE, False)
        turn = 1 - turn
    return 0


@jit.inline
def chunks(args, item, join, nothing, start, T, STATE, RESULT, TEAM, P, REVERSE):
    """A part of a row, for a block that waits for blocks of lower numbers, which began before it."""
    row = item // load(args, SCAN.parts)
    part = item - row * load(args, SCAN.parts)
    part_of_row(args, row, part, 0, nothing, join, nothing, start, T, STATE, RESULT, P, REVERSE, True)
    return 0


# ---- columns --------------------------------------------------------------------------------------


@jit.inline
def columns(args, item, join, nothing, start, T, STATE, RESULT, LANES, P, REVERSE):
    """A strip of LANES vectors of columns, for slices of LANES threads that have P rows each at a time."""
    size, count, strips = load(args, SCAN.size), load(args, SCAN.columns), load(args, SCAN.strips)
    outer, own, part = item // strips, thread() % LANES, thread() // LANES
    outs = results(args, nothing, RESULT)
    outs = outs[0] + outer * size * count, outs[1] + outer * size * count
    x = ptr(load(args, SCAN.x), T) + outer * load(args, SCAN.x_stride)
    W = lanes_of(x, outs[0])
    column = ((item - outer * strips) * LANES + own) * W
    left = count - column
    lined = count % W == 0 and offset(x, W) == 0 and offset(outs[0], W) == 0 and offset(outs[1], W) == 0
    column, high = min(column, max(0, count - W)) if lined else min(column, count - 1), size * count
    carry, turn, SLICES = spread(nothing, W, 1), 0, THREADS // LANES
    memory = memory_of(carry, STATES)
    for row in range(part * P, size + part * P, SLICES * P):
        first, apart = row * count + column, count
        if REVERSE:
            first, apart = (size - 1 - row) * count + column, -count
        if lined:
            v = convert(vload_span(x, first, apart, high, W, P), STATE)
        else:
            v = convert(vgather_span(x, first, apart, 0, high, W, P), STATE)
        s, whole = in_pieces(states(v, span_places(row, 1, I32, 0, W, P), nothing), join, W)
        before = carry
        if SLICES > 1:
            keep(memory, STATES, turn * THREADS + thread(), whole)
            barrier()
            for k in range(SLICES):
                if k == part:
                    before = carry
                carry = join(carry, kept(memory, STATES, turn * THREADS + k * LANES + own, whole))
            turn = 1 - turn
        else:
            carry = join(carry, whole)
        s = join(spread(before, P, 1), s)
        write(s, outs, first, apart, 0, high, left, lined, lined, W, P, RESULT, False)
    return 0


@jit.inline
def clear(args, lo, hi):
    """No words are there."""
    words = ptr(load(args, SCAN.words), I64)
    for k in range(lo, hi):
        vstore(words, k, fill(0, I64, 1))
    return 0
