"""Softmax over contiguous rows and with a causal mask: rows that registers hold (`held.py`), or as follows.

A long row is a block's. It is read once for its maximum and its sum of exponentials, which are scaled where the maximum
grows, and again, from the second-level cache, for the result. A row whose maximum is NaN or infinite is all NaN, as in
PyTorch.
"""

from numba import types

from ...blocks.softmax import LOGSUMEXP, ROWS
from ...build import jit
from ...lang import lowp
from ...lang.by_type import by_type
from ...lang.memory import element_bytes
from ...lang.pieces import span_places, vload_span, vstore_span
from ...lang.ptx import exp2_small
from ...lang.simd import address, bitcast, fill, lane, load, muladd, ptr, reduce_add, reduce_max, select, store, vmax
from ...lang.vmath import LOG2E, LOG2E_HI_F32, LOG2E_LO_F32, MAGIC_F32, exp, log
from ..block import team_max, team_sum, vector, width
from .held import each_row, inside_part, lined, offset, own_rows, part_max, part_of, part_sum, read_part, write_part

F32, I32 = types.float32, types.int32
INF, NAN = float("inf"), float("nan")
CHUNK = 4  # vectors of a thread that are on their way at once where registers do not hold a row
LOWEST = {types.float32: -3.4028234663852886e38, types.float64: -1.7976931348623157e308}


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


def _exp_narrow(x, d):
    return exp2_small(d * LOG2E)


def _exp_float32(x, d):
    shifted = muladd(d, LOG2E, MAGIC_F32)
    k = shifted - MAGIC_F32
    e = exp2_small(muladd(d, LOG2E_LO_F32, muladd(d, LOG2E_HI_F32, -k)))
    return select(d < -87.0, 0.0, bitcast(bitcast(e, I32) + (bitcast(shifted, I32) << 23), F32))


@by_type
def exp_below(x, d):
    """exp(d) of a vector d <= 0, or -inf, for elements of memory as at x; of d = NaN anything; subnormals are 0.

    Where memory has 16-bit floats it is right to 1e-5, in two instructions; of float32, whole, in 8, and not 18.
    """
    if isinstance(x.dtype, lowp.StorageFloat):
        return _exp_narrow
    return _exp_float32 if x.dtype == F32 else lambda x, d: exp(d)


@by_type
def exp_one_below(x, d):
    """The same of a number."""
    dtype = d
    return lambda x, d: lane(exp_below(x, fill(d, dtype, 1)), 0)


@jit.inline
def valid_length(row, size, period):
    """How many elements of a row count: all, or with a causal mask over `period` rows the lower part."""
    return size if period == 0 else size - period + 1 + row % period


# ---- rows that registers hold ---------------------------------------------------------------------


@by_type
def part_places(x, part, like):
    """The places of the lanes of a thread's part."""
    lanes = 16 // element_bytes(x.dtype)
    count = like.lanes // lanes
    return lambda x, part, like: span_places(part[0], part[1], I32, 1, lanes, count)


@jit.inline
def held_statistics(x, part, valid, like, TEAM):
    """(a row's part less the largest element, exponentials of that, the sum of these over the row, the largest).

    Of the row the `valid` first elements count. The sum is NaN where the largest element is not finite.
    """
    v = select(inside_part(x, part, like), read_part(x, part, like), -INF)
    if valid != part[3] - part[2]:
        v = select(part_places(x, part, like) < I32(part[2] + valid), v, -INF)
    top = part_max(reduce_max(v), TEAM)
    v = v - top
    e = exp_below(x, v)
    total = part_sum(reduce_add(e), TEAM)
    return v, e, (total if -INF < top < INF else total * F32(NAN)), top


@jit.inline
def softmax_held(args, row, like, T, W, B, TEAM, SPAN):
    """One row."""
    size = load(args, ROWS.size)
    x = ptr(load(args, ROWS.x), T) + row * load(args, ROWS.stride)
    valid = valid_length(row, size, load(args, ROWS.period))
    part = part_of(x, size, TEAM, SPAN)
    _, e, total, _ = held_statistics(x, part, valid, like, TEAM)
    e = e * (F32(1.0) / total)
    if valid != size:
        e = select(part_places(x, part, like) < I32(part[2] + valid), e, 0.0)
    write_part(ptr(load(args, ROWS.y), T) + row * size, part, e)


@jit.inline
def log_softmax_held(args, row, like, T, W, B, TEAM, SPAN):
    """One row."""
    size = load(args, ROWS.size)
    x = ptr(load(args, ROWS.x), T) + row * load(args, ROWS.stride)
    part = part_of(x, size, TEAM, SPAN)
    v, _, total, _ = held_statistics(x, part, size, like, TEAM)
    write_part(ptr(load(args, ROWS.y), T) + row * size, part, v - log_of(total))


@jit.inline
def logsumexp_held(args, row, like, T, W, B, TEAM, SPAN):
    """One row."""
    size = load(args, LOGSUMEXP.size)
    x = ptr(load(args, LOGSUMEXP.x), T) + row * load(args, LOGSUMEXP.stride)
    part = part_of(x, size, TEAM, SPAN)
    _, _, total, top = held_statistics(x, part, size, like, TEAM)
    if part[0] == 0:
        store(ptr(load(args, LOGSUMEXP.y), T), row, top + log_of(total) if -INF < top < INF else top)


# ---- rows that they do not ------------------------------------------------------------------------


@by_type(prefer_literal=True)
def chunk(x, first, apart, low, high, COUNT):
    """(COUNT vectors of this thread from place `first` of a row on, their places); those outside of it may be anything.

    Places count from the vector that the row begins in.
    """
    lanes = 16 // element_bytes(x.dtype)

    def implementation(x, first, apart, low, high, COUNT):
        at = x + -low
        return vload_span(at, first, apart, high, lanes, COUNT), span_places(first, apart, I32, 1, lanes, COUNT)

    return implementation


@by_type
def write_chunk(y, v, first, apart, low, high):
    """Store such vectors."""
    lanes = 16 // element_bytes(y.dtype)
    count = v.lanes // lanes

    def implementation(y, v, first, apart, low, high):
        at = y + -low
        vstore_span(at, first, apart, low, high, lanes, address(at) & 15 == 0, v, count)

    return implementation


@by_type
def lowest(top):
    """The lowest number of the type of another one."""
    dtype, least = top, LOWEST[top]
    return lambda top: lane(fill(least, dtype, 1), 0)


@jit.inline
def row_statistics(x, size, team, COUNT):
    """(the largest x[i], the sum of exp(x - largest)) of a row; the sum is NaN where the largest is not finite."""
    low, lanes = offset(x), width(x)
    high, apart = low + size, team[1] * lanes
    total = lane(vector(x, 0.0), 0)
    top = lowest(total)
    for begin in range(0, high, COUNT * apart):
        v, at = chunk(x, begin + team[0] * lanes, apart, low, high, COUNT)
        if begin == 0 or begin + COUNT * apart > high:
            v = select((at >= I32(low)) & (at < I32(high)), v, -INF)
        best = vmax(top, reduce_max(v))
        total = total * exp_one_below(x, top - best) + reduce_add(exp_below(x, v - best))
        top = best
    shift = team_max(top, team)
    whole = team_sum(total * exp_one_below(x, top - shift), team)
    shift = shift if whole != 0.0 else -INF  # all elements are
    return shift, (whole if -INF < shift < INF else whole * NAN)


@jit.inline
def holds(args, T, SPAN):
    """Whether rows and results have their vectors at the same places."""
    x, y = ptr(load(args, ROWS.x), T), ptr(load(args, ROWS.y), T)
    return lined(x, y, load(args, ROWS.stride), load(args, ROWS.size), SPAN)


@jit.inline
def softmax_twice(args, rows, T, TEAM, COUNT):
    """All rows, each read twice."""
    size, period = load(args, ROWS.size), load(args, ROWS.period)
    start, step, team = own_rows(TEAM)
    for row in range(start, rows, step):
        x, y = ptr(load(args, ROWS.x), T) + row * load(args, ROWS.stride), ptr(load(args, ROWS.y), T) + row * size
        valid, low, apart = valid_length(row, size, period), offset(x), team[1] * width(x)
        top, total = row_statistics(x, valid, team, COUNT)
        scale = 1.0 / total
        for begin in range(team[0] * width(x), low + size, COUNT * apart):
            v, at = chunk(x, begin, apart, low, low + size, COUNT)
            v = exp_below(x, v - top) * scale
            if valid != size:
                v = select(at < I32(low + valid), v, 0.0)
            write_chunk(y, v, begin, apart, low, low + size)


@jit.inline
def softmax(args, lo, hi, T, TEAM, PIECES, SPAN):
    """All rows."""
    if PIECES == 0:
        softmax_twice(args, hi, T, TEAM, CHUNK)
    elif holds(args, T, SPAN):
        each_row(args, hi, softmax_held, ptr(load(args, ROWS.x), T), T, T, T, TEAM, PIECES, SPAN)
    else:
        softmax_twice(args, hi, T, TEAM, 1)  # rows beside their vectors: so that it takes few registers
    return 0


softmax_narrow = softmax


@jit.inline
def log_softmax_twice(args, rows, T, TEAM, COUNT):
    """All rows, each read twice."""
    size = load(args, ROWS.size)
    start, step, team = own_rows(TEAM)
    for row in range(start, rows, step):
        x, y = ptr(load(args, ROWS.x), T) + row * load(args, ROWS.stride), ptr(load(args, ROWS.y), T) + row * size
        low, apart = offset(x), team[1] * width(x)
        top, total = row_statistics(x, size, team, COUNT)
        shift = log_of(total)
        for begin in range(team[0] * width(x), low + size, COUNT * apart):
            v, _ = chunk(x, begin, apart, low, low + size, COUNT)
            write_chunk(y, v - top - shift, begin, apart, low, low + size)


@jit.inline
def log_softmax(args, lo, hi, T, C, TEAM, PIECES, SPAN):
    """All rows."""
    if PIECES == 0:
        log_softmax_twice(args, hi, T, TEAM, CHUNK)
    elif holds(args, T, SPAN):
        each_row(args, hi, log_softmax_held, ptr(load(args, ROWS.x), T), T, T, T, TEAM, PIECES, SPAN)
    else:
        log_softmax_twice(args, hi, T, TEAM, 1)
    return 0


@jit.inline
def logsumexp_in_turns(args, rows, T, TEAM, COUNT):
    """All rows, some vectors at a time."""
    size = load(args, LOGSUMEXP.size)
    start, step, team = own_rows(TEAM)
    for row in range(start, rows, step):
        x = ptr(load(args, LOGSUMEXP.x), T) + row * load(args, LOGSUMEXP.stride)
        top, total = row_statistics(x, size, team, COUNT)
        if team[0] == 0:
            store(ptr(load(args, LOGSUMEXP.y), T), row, top + log_of(total) if -INF < top < INF else top)


@jit.inline
def logsumexp(args, lo, hi, T, TEAM, PIECES, SPAN):
    """All rows: the maximum itself where it is infinite."""
    x, stride = ptr(load(args, LOGSUMEXP.x), T), load(args, LOGSUMEXP.stride)
    if PIECES == 0:
        logsumexp_in_turns(args, hi, T, TEAM, CHUNK)
    elif lined(x, x, stride, stride, SPAN):
        each_row(args, hi, logsumexp_held, x, T, T, T, TEAM, PIECES, SPAN)
    else:
        logsumexp_in_turns(args, hi, T, TEAM, 1)
    return 0
