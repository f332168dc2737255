"""Norms and scaling of many tensors in one launch (gradients: clipping, loss scaling).

Each tensor is cut into units of UNIT elements, which do not depend on threads: a unit's partial result goes to a
place of its own, and `finish` adds them up in order, so that norms are the same bits for any number of threads.
Norms are accumulated in float64: squares of float32 neither overflow nor lose digits there.
"""

import math

from numba import types

from ...blocks.optim import FINISH, MANY, TENSOR, UNIT
from ...build import isa, jit
from ...lang.by_type import by_type
from ...lang.shuffle import largest, smallest
from ...lang.simd import (
    bitcast,
    convert,
    fill,
    load,
    muladd,
    ptr,
    ramp,
    reduce_add,
    select,
    store,
    vabs,
    vload,
    vload_first,
    vmax,
    vmin,
    vstore,
    vstore_first,
)
from ...lang.vmath import pow as vpow

LANES = isa.lanes()
WIDE = 2 * LANES  # four registers of float64: independent chains of additions
F64, I64 = types.float64, types.int64


@jit.inline
def find(args, unit, index, before):
    """The tensor of a unit, from tensor `index` on, which has `before` units before it.

    Its index, the units before it, the first element of the unit, and how many there are.
    """
    while True:
        count = load(args, MANY.tensors + TENSOR.WIDTH * index + TENSOR.numel)
        units = (count + UNIT - 1) // UNIT
        if unit - before < units:
            first = (unit - before) * UNIT
            return index, before, first, min(UNIT, count - first)
        before += units
        index += 1


@jit.inline
def fold(args, lo, hi, absorb, across, start, T):
    """Partial norms of units [lo, hi), in float64; the number is the order p."""
    out, order = ptr(load(args, MANY.result), F64), bitcast(load(args, MANY.number), F64)
    index, before = 0, 0
    for unit in range(lo, hi):
        index, before, first, count = find(args, unit, index, before)
        x = ptr(load(args, MANY.tensors + TENSOR.WIDTH * index + TENSOR.x), T) + first
        total = fill(start, F64, WIDE)
        i = 0
        while i + WIDE <= count:
            total = absorb(total, vabs(convert(vload(x, i, WIDE), F64)), order)
            i += WIDE
        if i < count:
            v = vabs(convert(vload_first(x, i, WIDE, count - i), F64))
            total = select(ramp(0, I64, WIDE) < count - i, absorb(total, v, order), total)
        store(out, unit, across(total))
    return 0


@by_type
def alike(v, value):
    """A vector like `v` of one value."""
    lanes = v.lanes
    return lambda v, value: fill(value, F64, lanes)


@jit.inline
def add_square(total, v, order):
    return muladd(v, v, total)


@jit.inline
def add(total, v, order):
    return total + v


@jit.inline
def add_one(total, v, order):
    return select(v != 0.0, total + 1.0, total)


@jit.inline
def add_power(total, v, order):
    return total + vpow(v, alike(v, order))


@jit.inline
def larger(total, v, order):
    # NaN stays; `vmax` also orders -0 below 0, for 13 ms instead of 9 over 124 million elements
    return select(v != v, v, select(v > total, v, total))


@jit.inline
def smaller(total, v, order):
    return select(v != v, v, select(v < total, v, total))


@jit.inline
def total_of(v):
    return reduce_add(v)


@jit.inline
def largest_of(v):
    return largest(v)


@jit.inline
def smallest_of(v):
    return smallest(v)


@jit.inline
def squares(args, lo, hi, T):
    """Sums of x^2."""
    return fold(args, lo, hi, add_square, total_of, 0.0, T)


@jit.inline
def magnitudes(args, lo, hi, T):
    """Sums of |x|."""
    return fold(args, lo, hi, add, total_of, 0.0, T)


@jit.inline
def nonzeros(args, lo, hi, T):
    """Numbers of elements that are not zero."""
    return fold(args, lo, hi, add_one, total_of, 0.0, T)


@jit.inline
def powers(args, lo, hi, T):
    """Sums of |x|^p."""
    return fold(args, lo, hi, add_power, total_of, 0.0, T)


@jit.inline
def maxima(args, lo, hi, T):
    """Largest |x|, NaN if one is."""
    return fold(args, lo, hi, larger, largest_of, 0.0, T)


@jit.inline
def minima(args, lo, hi, T):
    """Smallest |x|, NaN if one is."""
    return fold(args, lo, hi, smaller, smallest_of, math.inf, T)


@jit.inline
def finish(args, lo, hi, T):
    """The norm from partial results; kind 0 adds them up, 1 takes the maximum, 2 the minimum; root is 1/p."""
    partial, count, kind = ptr(load(args, FINISH.partial), F64), load(args, FINISH.count), load(args, FINISH.kind)
    total = load(partial, 0)
    for i in range(1, count):
        v = load(partial, i)
        if kind == 0:
            total += v
        elif total == total and (v != v or (v > total) == (kind == 1)):
            total = v
    store(ptr(load(args, FINISH.y), T), 0, total ** bitcast(load(args, FINISH.root), F64))
    return 0


@jit.inline
def factor_of(args, R):
    """The number; where there is a total norm, of type R, what brings that down to the number, at most 1."""
    number, total = bitcast(load(args, MANY.number), F64), load(args, MANY.total)
    if total == 0:
        return number
    factor = number / (F64(load(ptr(total, R), 0)) + 1e-6)
    return 1.0 if factor >= 1.0 else factor  # NaN spreads to all tensors, as in PyTorch


@jit.inline
def nothing_to_scale(args, factor):
    """Whether nobody asks for what is not finite, and all stays as it is."""
    return factor == 1.0 and load(args, MANY.result) == 0


@jit.inline
def scale(args, lo, hi, T, R):
    """Multiply in place by `factor_of`; the result, an int64 or none, becomes 1 if an element was not finite."""
    factor, found = factor_of(args, R), load(args, MANY.result)
    if nothing_to_scale(args, factor):
        return 0
    index, before = 0, 0
    for unit in range(lo, hi):
        index, before, first, count = find(args, unit, index, before)
        x = ptr(load(args, MANY.tensors + TENSOR.WIDTH * index + TENSOR.x), T) + first
        bad = fill(0.0, T, LANES)
        i = 0
        while i + LANES <= count:
            v = vload(x, i, LANES)
            bad = muladd(v, 0.0, bad)  # infinity and NaN times zero are NaN
            vstore(x, i, v * factor)
            i += LANES
        if i < count:
            v = vload_first(x, i, LANES, count - i)
            bad = muladd(v, 0.0, bad)
            vstore_first(x, i, v * factor, count - i)
        if found != 0 and not reduce_add(bad) == 0.0:
            store(ptr(found, I64), 0, 1)
    return 0


@jit.inline
def clamp(args, lo, hi, T):
    """Clamp in place to [-limit, limit] for the number `limit`; NaN stays."""
    limit = bitcast(load(args, MANY.number), F64)
    index, before = 0, 0
    for unit in range(lo, hi):
        index, before, first, count = find(args, unit, index, before)
        x = ptr(load(args, MANY.tensors + TENSOR.WIDTH * index + TENSOR.x), T) + first
        i = 0
        while i < count:
            left = count - i
            v = vload_first(x, i, LANES, left)
            vstore_first(x, i, vmin(vmax(v, -limit), limit), left)
            i += LANES
    return 0
