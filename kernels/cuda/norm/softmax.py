"""Softmax over contiguous rows and with a causal mask: rows that registers hold (`held.py`), or as follows.

A short row is for a warp, a longer one for a block. It is read once for its maximum and its sum of exponentials, which
are scaled where the maximum grows, and again for the result. A row whose maximum is NaN or infinite is all NaN, as in
PyTorch.
"""

from numba import types

from ...blocks.softmax import LOGSUMEXP, ROWS
from ...build import jit
from ...lang.by_type import by_type
from ...lang.ptx import exp2
from ...lang.simd import bitcast, fill, lane, load, muladd, ptr, reduce_add, reduce_max, reduce_or, select, store
from ...lang.vmath import LOG2E, LOG2E_HI_F32, LOG2E_LO_F32, MAGIC_F32, exp, log
from ..block import fold_row, places, read, share_rows, team_max, team_sum, vector, width, write
from .held import inside_part, over_rows, part_max, part_sum, read_part, write_part

F32, I32 = types.float32, types.int32
INF, NAN = float("inf"), float("nan")


@jit.inline
def add_exponentials(state, v, left):
    """The state is (sums of exponentials, the largest so far, numbers of lanes)."""
    total, top, lanes = state
    v = select(lanes < left, v, -INF)
    best = reduce_max(v)
    if best > top:
        total = total * exp_of(top - best)
        top = best
    if top > -INF or reduce_or(v != v):  # a row may begin with many -inf
        total = total + exp(v - top)
    return total, top, lanes


@jit.inline
def row_statistics(x, size, team):
    """(the largest x[i], the sum of exp(x - largest)) of a row; the sum is NaN where the largest is not finite."""
    nothing = vector(x, 0.0)
    state = nothing, reduce_max(vector(x, -INF)), places(x)
    total, top, _ = fold_row(x, size, team, state, add_exponentials, nothing)
    shift, own = team_max(top, team), reduce_add(total)
    if top > -INF:
        own *= exp_of(top - shift)
    whole = team_sum(own, team)
    return shift, (whole if -INF < shift < INF else whole * NAN)


@by_type
def log_of(value):
    """log of a number."""
    dtype = value
    return lambda value: lane(log(fill(value, dtype, 1)), 0)


@by_type
def exp_of(value):
    """exp of a number."""
    dtype = value
    return lambda value: lane(exp(fill(value, dtype, 1)), 0)


@jit.inline
def valid_length(row, size, period):
    """How many elements of a row count: all, or with a causal mask over `period` rows the lower part."""
    return size if period == 0 else size - period + 1 + row % period


@jit.inline
def exp_below(d):
    """exp(d) of float32 for finite d <= 0 or d = -inf; subnormal results are 0: 8 instructions, not 18."""
    shifted = muladd(d, LOG2E, MAGIC_F32)
    k = shifted - MAGIC_F32
    e = exp2(muladd(d, LOG2E_LO_F32, muladd(d, LOG2E_HI_F32, -k)))
    return select(d < -87.0, 0.0, bitcast(bitcast(e, I32) + (bitcast(shifted, I32) << 23), F32))


@jit.inline
def held_statistics(x, size, team, like):
    """(this thread's part of a row less the largest element, exponentials of that, their sum over the row).

    The sum is NaN where the largest element is not finite.
    """
    v = select(inside_part(x, team, size, like), read_part(x, x, team, size, like), -INF)
    top = part_max(reduce_max(v), team)
    v = v - top
    e = exp_below(v)
    total = part_sum(reduce_add(e), team)
    return v, e, (total if -INF < top < INF else total * F32(NAN))


@jit.inline
def softmax_held(args, row, team, size, like, T, W, B):
    """One row."""
    _, e, total = held_statistics(ptr(load(args, ROWS.x), T) + row * load(args, ROWS.stride), size, team, like)
    write_part(ptr(load(args, ROWS.y), T) + row * size, team, size, e * (F32(1.0) / total))


@jit.inline
def log_softmax_held(args, row, team, size, like, T, W, B):
    """One row."""
    v, _, total = held_statistics(ptr(load(args, ROWS.x), T) + row * load(args, ROWS.stride), size, team, like)
    write_part(ptr(load(args, ROWS.y), T) + row * size, team, size, v - log_of(total))


@jit.inline
def hold(args, rows, T, one):
    """Whether registers hold the rows: then one(...) has made the results."""
    size, places = load(args, ROWS.size), load(args, ROWS.x) | load(args, ROWS.y)
    return over_rows(args, rows, size, load(args, ROWS.stride), places, one, ptr(load(args, ROWS.x), T), T, T, T)


@jit.inline
def softmax(args, lo, hi, T):
    """All rows."""
    size, period = load(args, ROWS.size), load(args, ROWS.period)
    if period == 0 and hold(args, hi, T, softmax_held):
        return 0
    first, step, team = share_rows(ptr(load(args, ROWS.x), T), size)
    for row in range(first, hi, step):
        x, y = ptr(load(args, ROWS.x), T) + row * load(args, ROWS.stride), ptr(load(args, ROWS.y), T) + row * size
        valid, like, lanes = valid_length(row, size, period), vector(x, 0.0), places(x)
        top, total = row_statistics(x, valid, team)
        scale = 1.0 / total
        for i in range(team[0] * width(x), size, team[1] * width(x)):
            v = exp(read(x, i, size - i, like) - top) * scale
            write(y, i, select(lanes < valid - i, v, 0.0), size - i)
    return 0


softmax_narrow = softmax


@jit.inline
def log_softmax(args, lo, hi, T, C):
    """All rows."""
    if hold(args, hi, T, log_softmax_held):
        return 0
    size = load(args, ROWS.size)
    first, step, team = share_rows(ptr(load(args, ROWS.x), T), size)
    for row in range(first, hi, step):
        x, y = ptr(load(args, ROWS.x), T) + row * load(args, ROWS.stride), ptr(load(args, ROWS.y), T) + row * size
        like = vector(x, 0.0)
        top, total = row_statistics(x, size, team)
        shift = log_of(total)
        for i in range(team[0] * width(x), size, team[1] * width(x)):
            write(y, i, read(x, i, size - i, like) - top - shift, size - i)
    return 0


@jit.inline
def logsumexp(args, lo, hi, T):
    """All rows: the maximum itself where it is infinite."""
    size = load(args, LOGSUMEXP.size)
    first, step, team = share_rows(ptr(load(args, LOGSUMEXP.x), T), size)
    for row in range(first, hi, step):
        x = ptr(load(args, LOGSUMEXP.x), T) + row * load(args, LOGSUMEXP.stride)
        top, total = row_statistics(x, size, team)
        if team[0] == 0:
            store(ptr(load(args, LOGSUMEXP.y), T), row, top + log_of(total) if -INF < top < INF else top)
    return 0
