"""Running sums along a dim, and the logarithm of a sum of exponentials.

A running sum is kept in float64 (int64 for integers), whatever the element type: the error of a float32 sum would grow
with its length, and the loop waits for one addition per element either way. Backwards (the derivative) is a
start at the last element and negative steps.
"""

import math

from numba import types

from ...build import isa, jit
from ...lang.shuffle import high, low
from ...lang.simd import (
    convert,
    fill,
    load,
    ptr,
    ramp,
    reduce_add,
    select,
    store,
    vload,
    vload_first,
    vstore_first,
)
from ..norm.softmax import exp_below, row_max

LANES = isa.lanes()
PAIR = 2 * LANES
F64, I64 = types.float64, types.int64
INF = math.inf


@jit.inline
def cumsum_rows(args, lo, hi, T, A, O):
    """Rows [lo, hi). args: x, y, row length, row strides of x and y, steps of x and y along the row."""
    x, y, size = ptr(load(args, 0), T), ptr(load(args, 1), O), load(args, 2)
    x_row, y_row, x_step, y_step = load(args, 3), load(args, 4), load(args, 5), load(args, 6)
    for row in range(lo, hi):
        source, target = x + row * x_row, y + row * y_row
        total = A(0)
        for i in range(size):
            total += load(source, i * x_step)
            store(target, i * y_step, total)
    return 0


@jit.inline
def cumsum_columns(args, lo, hi, T, A, O):
    """Blocks [lo, hi) of LANES neighbouring columns.

    args: x, y, length, outer strides of x and y, steps of x and y along the dim, columns, blocks.
    """
    x, y, size = ptr(load(args, 0), T), ptr(load(args, 1), O), load(args, 2)
    x_outer, y_outer, x_step, y_step = load(args, 3), load(args, 4), load(args, 5), load(args, 6)
    columns, blocks = load(args, 7), load(args, 8)
    for unit in range(lo, hi):
        outer = unit // blocks
        column = (unit - outer * blocks) * LANES
        left = columns - column
        source, target = x + (outer * x_outer + column), y + (outer * y_outer + column)
        total = fill(0, A, LANES)
        for i in range(size):
            total = total + convert(vload_first(source, i * x_step, LANES, left), A)
            vstore_first(target, i * y_step, convert(total, O), left)
    return 0


@jit.inline
def sum_of_exp(x, size, shift, T):
    """sum(exp(x - shift)) over `size` contiguous elements, none above `shift`."""
    total, rest = fill(0.0, T, PAIR), fill(0.0, T, LANES)
    i = 0
    while i + PAIR <= size:
        total = total + exp_below(vload(x, i, PAIR) - shift)
        i += PAIR
    while i < size:
        left = size - i
        v = exp_below(vload_first(x, i, LANES, left) - shift)
        rest = rest + select(ramp(0, I64, LANES) < left, v, 0.0)
        i += LANES
    return reduce_add(low(total) + high(total) + rest)


@jit.inline
def logsumexp(args, lo, hi, T):
    """Rows [lo, hi). args: x, y, row length, row stride of x."""
    x, y, size, stride = ptr(load(args, 0), T), ptr(load(args, 1), T), load(args, 2), load(args, 3)
    for row in range(lo, hi):
        top = row_max(x + row * stride, size, T)
        if top == top and -INF < top < INF:
            top = top + math.log(sum_of_exp(x + row * stride, size, top, T))
        store(y, row, top)
    return 0
