"""Norms, scaling and clamping of many tensors in one launch: a unit for a block (`kernels/cpu/optim/norm.py`).

Threads add up in float64, each its own vectors, and are joined in the order of their numbers: the same bits each time.
"""

import math

from numba import types

from ...blocks.optim import FINISH, MANY, TENSOR
from ...build import jit
from ...cpu.optim import norm as cpu
from ...lang.by_type import by_type
from ...lang.ptx import thread, threads
from ...lang.simd import (
    address,
    bitcast,
    convert,
    fill,
    load,
    muladd,
    ptr,
    reduce_add,
    select,
    store,
    vabs,
    vmax,
    vmin,
    vstore_aligned,
)
from ..block import block_max, block_min, block_sum, places, read, read_aligned, vector, width, write

F64, I64 = types.float64, types.int64


@by_type
def wide(x, value):
    """A vector of float64 of as many lanes as elements of x make 16 bytes."""
    lanes = 16 // (x.dtype.bitwidth // 8)
    return lambda x, value: fill(value, F64, lanes)


@jit.inline
def unit_of(args, unit, T):
    """The address of a unit's first element, and how many it has."""
    index, _, first, count = cpu.find(args, unit, 0, 0)
    return ptr(load(args, MANY.tensors + TENSOR.WIDTH * index + TENSOR.x), T) + first, count


@jit.inline
def fold(args, lo, absorb, within, join, start, T):
    """The partial norm of unit `lo`; four vectors of a thread are on their way at a time."""
    x, count = unit_of(args, lo, T)
    order, total, like = bitcast(load(args, MANY.number), F64), wide(x, start), vector(x, 0.0)
    i, apart, lanes = thread() * width(x), threads() * width(x), width(x)
    while address(x) & 15 == 0 and i + 3 * apart + lanes <= count:
        a, b = read_aligned(x, i, like), read_aligned(x, i + apart, like)
        c, d = read_aligned(x, i + 2 * apart, like), read_aligned(x, i + 3 * apart, like)
        total = absorb(total, vabs(convert(a, F64)), order)
        total = absorb(total, vabs(convert(b, F64)), order)
        total = absorb(total, vabs(convert(c, F64)), order)
        total = absorb(total, vabs(convert(d, F64)), order)
        i += 4 * apart
    while i < count:
        v = vabs(convert(read(x, i, count - i, like), F64))
        total = select(places(x) < count - i, absorb(total, v, order), total)
        i += apart
    total = join(within(total))
    if thread() == 0:
        store(ptr(load(args, MANY.result), F64), lo, total)
    return 0


@jit.inline
def squares(args, lo, hi, T):
    return fold(args, lo, cpu.add_square, cpu.total_of, block_sum, 0.0, T)


@jit.inline
def magnitudes(args, lo, hi, T):
    return fold(args, lo, cpu.add, cpu.total_of, block_sum, 0.0, T)


@jit.inline
def nonzeros(args, lo, hi, T):
    return fold(args, lo, cpu.add_one, cpu.total_of, block_sum, 0.0, T)


@jit.inline
def powers(args, lo, hi, T):
    return fold(args, lo, cpu.add_power, cpu.total_of, block_sum, 0.0, T)


@jit.inline
def maxima(args, lo, hi, T):
    return fold(args, lo, cpu.larger, cpu.largest_of, block_max, 0.0, T)


@jit.inline
def minima(args, lo, hi, T):
    return fold(args, lo, cpu.smaller, cpu.smallest_of, block_min, math.inf, T)


@jit.inline
def finish(args, lo, hi, T):
    """The norm from partial results, by a block."""
    partial, count, kind = ptr(load(args, FINISH.partial), F64), load(args, FINISH.count), load(args, FINISH.kind)
    total = load(partial, 0) if kind != 0 else 0.0
    for i in range(thread(), count, threads()):
        v = load(partial, i)
        if kind == 0:
            total += v
        else:
            total = vmax(total, v) if kind == 1 else vmin(total, v)
    if kind == 0:
        total = block_sum(total)
    else:
        total = block_max(total) if kind == 1 else block_min(total)
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
    bad, i, apart, lanes = like, thread() * width(x), threads() * width(x), width(x)
    while address(x) & 15 == 0 and i + 3 * apart + lanes <= count:
        a, b = read_aligned(x, i, like), read_aligned(x, i + apart, like)
        c, d = read_aligned(x, i + 2 * apart, like), read_aligned(x, i + 3 * apart, like)
        bad = muladd(a, 0.0, muladd(b, 0.0, muladd(c, 0.0, muladd(d, 0.0, bad))))
        vstore_aligned(x, i, a * factor)
        vstore_aligned(x, i + apart, b * factor)
        vstore_aligned(x, i + 2 * apart, c * factor)
        vstore_aligned(x, i + 3 * apart, d * factor)
        i += 4 * apart
    while i < count:
        v = read(x, i, count - i, like)
        bad = muladd(v, 0.0, bad)
        write(x, i, v * factor, count - i)
        i += apart
    if found != 0 and reduce_add(bad) != 0.0:  # NaN too
        store(ptr(found, I64), 0, 1)
    return 0


@jit.inline
def clamp(args, lo, hi, T):
    """Unit `lo`, as on the CPU."""
    x, count = unit_of(args, lo, T)
    limit, like = bitcast(load(args, MANY.number), F64), vector(x, 0.0)
    for i in range(thread() * width(x), count, threads() * width(x)):
        write(x, i, vmin(vmax(read(x, i, count - i, like), -limit), limit), count - i)
    return 0
