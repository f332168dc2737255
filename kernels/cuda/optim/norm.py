"""Norms and scaling of many tensors in one launch (`kernels/cpu/optim/norm.py`): a unit for a block, in order."""

from numba import types

from ...blocks.optim import FINISH, MANY, TENSOR
from ...build import jit
from ...cpu.optim import norm as cpu
from ...lang.ptx import thread, threads
from ...lang.shuffle import largest, smallest
from ...lang.simd import bitcast, convert, load, muladd, ptr, reduce_add, select, store, vabs, vmax, vmin
from ..block import across, block_sum, fold_row, places, read, vector, width, write

F64, I64 = types.float64, types.int64
INF = float("inf")


@jit.inline
def plus(a, b):
    return a + b


@jit.inline
def larger(a, b):
    """NaN if one is."""
    return b if b != b or b > a else a


@jit.inline
def smaller(a, b):
    """NaN if one is."""
    return b if b != b or b < a else a


@jit.inline
def unit_of(args, lo, T):
    """(where unit `lo` begins, its elements)."""
    index, _, first, count = cpu.find(args, lo, 0, 0)
    return ptr(load(args, MANY.tensors + TENSOR.WIDTH * index + TENSOR.x), T) + first, count


def partial(absorb, of_lanes, join, start):
    """The kernel of partial norms, in float64, that begin at `start`."""

    @jit.inline
    def add(state, v, left):
        total, order, lanes = state
        return select(lanes < left, absorb(total, vabs(convert(v, F64)), order), total), order, lanes

    @jit.inline
    def kernel(args, lo, hi, T):
        """That of unit `lo`."""
        x, count = unit_of(args, lo, T)
        nothing, order = vector(x, 0.0), bitcast(load(args, MANY.number), F64)
        state = convert(vector(x, start), F64), order, places(x)
        total = across(of_lanes(fold_row(x, count, (thread(), threads()), state, add, nothing)[0]), join, threads())
        if thread() == 0:
            store(ptr(load(args, MANY.result), F64), lo, total)
        return 0

    return kernel


squares = partial(cpu.add_square, reduce_add, plus, 0.0)
magnitudes = partial(cpu.add, reduce_add, plus, 0.0)
nonzeros = partial(cpu.add_one, reduce_add, plus, 0.0)
powers = partial(cpu.add_power, reduce_add, plus, 0.0)
maxima = partial(cpu.larger, largest, larger, 0.0)
minima = partial(cpu.smaller, smallest, smaller, INF)


@jit.inline
def fold_partial(partial, count, join):
    """All partial results, by the threads of the block."""
    total = load(partial, min(thread(), count - 1))
    for i in range(thread() + threads(), count, threads()):
        total = join(total, load(partial, i))
    return total


@jit.inline
def finish(args, lo, hi, T):
    """The norm from partial results; kinds as on the CPU."""
    partial, count, kind = ptr(load(args, FINISH.partial), F64), load(args, FINISH.count), load(args, FINISH.kind)
    if kind == 0:
        total = block_sum(fold_partial(partial, count, plus) if thread() < count else 0.0)
    elif kind == 1:
        total = across(fold_partial(partial, count, larger), larger, threads())
    else:
        total = across(fold_partial(partial, count, smaller), smaller, threads())
    if thread() == 0:
        store(ptr(load(args, FINISH.y), T), 0, total ** bitcast(load(args, FINISH.root), F64))
    return 0


@jit.inline
def scale(args, lo, hi, T, R):
    """Unit `lo`, as on the CPU."""
    factor, found = cpu.factor_of(args, R), load(args, MANY.result)
    if cpu.nothing_to_scale(args, factor):
        return 0
    x, count = unit_of(args, lo, T)
    like = vector(x, 0.0)
    bad = like
    for i in range(thread() * width(x), count, threads() * width(x)):
        v = read(x, i, count - i, like)
        bad = muladd(v, like, bad)  # infinity and NaN times zero are NaN
        write(x, i, v * factor, count - i)
    if found != 0 and reduce_add(bad) != 0.0:  # NaN, too
        store(ptr(found, I64), 0, 1)
    return 0


@jit.inline
def clamp(args, lo, hi, T):
    """Unit `lo` clamped in place to [-limit, limit]; NaN stays."""
    limit, (x, count) = bitcast(load(args, MANY.number), F64), unit_of(args, lo, T)
    like = vector(x, 0.0)
    for i in range(thread() * width(x), count, threads() * width(x)):
        write(x, i, vmin(vmax(read(x, i, count - i, like), -limit), limit), count - i)
    return 0
