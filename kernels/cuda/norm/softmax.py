"""Softmax over contiguous rows and with a causal mask: a row for a block, in three passes over the first-level cache.

A row whose maximum is NaN or infinite is all NaN, as in PyTorch. Exponentials are made again rather than kept.
"""

from ...blocks.softmax import LOGSUMEXP, ROWS
from ...build import jit
from ...lang.by_type import by_type
from ...lang.ptx import thread, threads
from ...lang.simd import fill, lane, load, ptr, reduce_add, reduce_max, select, store
from ...lang.vmath import exp, log
from ..block import block_max, block_sum, places, read, vector, width, write

INF, NAN = float("inf"), float("nan")


@jit.inline
def row_max(x, size):
    """Maximum of `size` contiguous elements; NaN if one is, -inf if there are none."""
    best, lanes = vector(x, -INF), places(x)
    for i in range(thread() * width(x), size, threads() * width(x)):
        best = larger(best, select(lanes < size - i, read(x, i, size - i, best), -INF))
    return block_max(reduce_max(best))


@jit.inline
def larger(a, b):
    """The larger of two, lane by lane; NaN if one is."""
    return select((a > b) | (a != a), a, b)


@jit.inline
def sum_of_exp(x, size, top):
    """sum(exp(x - top)) over `size` contiguous elements."""
    total, lanes = vector(x, 0.0), places(x)
    for i in range(thread() * width(x), size, threads() * width(x)):
        total = total + select(lanes < size - i, exp(read(x, i, size - i, total) - top), 0.0)
    return block_sum(reduce_add(total))


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
def softmax(args, lo, hi, T):
    """Row `lo`."""
    size, period = load(args, ROWS.size), load(args, ROWS.period)
    x, y = ptr(load(args, ROWS.x), T) + lo * load(args, ROWS.stride), ptr(load(args, ROWS.y), T) + lo * size
    valid, like, lanes = valid_length(lo, size, period), vector(x, 0.0), places(x)
    top = row_max(x, valid)
    total = sum_of_exp(x, valid, top)
    scale = 1.0 / total if -INF < top < INF else NAN
    for i in range(thread() * width(x), size, threads() * width(x)):
        v = exp(read(x, i, size - i, like) - top) * scale
        write(y, i, select(lanes < valid - i, v, 0.0), size - i)
    return 0


softmax_narrow = softmax


@jit.inline
def log_softmax(args, lo, hi, T, C):
    """Row `lo`."""
    size = load(args, ROWS.size)
    x, y = ptr(load(args, ROWS.x), T) + lo * load(args, ROWS.stride), ptr(load(args, ROWS.y), T) + lo * size
    like, top = vector(x, 0.0), row_max(x, size)
    total = sum_of_exp(x, size, top)
    shift = log_of(total) if -INF < top < INF else C(NAN)
    for i in range(thread() * width(x), size, threads() * width(x)):
        write(y, i, read(x, i, size - i, like) - top - shift, size - i)
    return 0


@jit.inline
def logsumexp(args, lo, hi, T):
    """Row `lo`: the maximum itself where it is infinite."""
    size = load(args, LOGSUMEXP.size)
    x = ptr(load(args, LOGSUMEXP.x), T) + lo * load(args, LOGSUMEXP.stride)
    top = row_max(x, size)
    total = sum_of_exp(x, size, top)
    if thread() == 0:
        store(ptr(load(args, LOGSUMEXP.y), T), lo, top + log_of(total) if -INF < top < INF else top)
    return 0
