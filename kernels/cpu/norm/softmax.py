"""Softmax over contiguous rows, over a strided dim, and with a causal mask.

Three passes over a row that the first one brings into L1: maximum; exponentials and their sum; scaling.
A 16-bit result cannot hold the exponentials: they wait in a buffer on the stack, and rows longer than
that compute them again. A row whose maximum is NaN or infinite is all NaN, as in PyTorch.
"""

import math

from numba import types

from ...blocks.softmax import COLUMNS, LOGSUMEXP, ROWS
from ...build import jit
from ...lang.by_type import by_type
from ...lang.rows import fill_row
from ...lang.shuffle import high, larger, largest, low
from ...lang.simd import (
    bitcast,
    fill,
    lane,
    load,
    muladd,
    ptr,
    ramp,
    reduce_add,
    select,
    stack,
    store,
    vload,
    vload_first,
    vstore,
    vstore_first,
)
from ...lang.vmath import exp, log
from ..reduce.sizes import LANES, PAIR, WIDE  # PAIR for exponentials: they need a dozen registers for their constants

INF, NAN = float("inf"), float("nan")
F32, F64, I32, I64 = types.float32, types.float64, types.int32, types.int64
BUFFER = 4096  # float32 elements: half of a 32 KiB L1
BUFFER_BYTES = 4 * BUFFER


def _exp_below_f32(d):
    # As `vmath.exp` without its upper half: 12 instructions, not 20.
    shifted = muladd(d, 1.4426950408889634, 12582912.0)
    k = shifted - 12582912.0
    r = muladd(k, 2.12194440e-4, muladd(k, -0.693359375, d))
    # minimax over |r| <= ln(2)/2: 1.05e-7 of the value
    p = muladd(r, 0.00831252057, 0.0418901555)
    p = muladd(p, r, 0.166671142)
    p = muladd(p, r, 0.499992311)
    p = muladd(p, r, 1.0)
    p = muladd(p, r, 1.0)
    e = bitcast(bitcast(p, I32) + (bitcast(shifted, I32) << 23), F32)
    return select(d < -87.0, 0.0, e)


@by_type
def exp_below(d):
    """exp(d) for finite d <= 0 or d = -inf; subnormal results are 0."""
    if d.dtype == F32:
        return _exp_below_f32
    return lambda d: exp(d)


@jit.inline
def row_max(x, size, T):
    """Maximum of `size` contiguous elements; NaN if one is, -inf if there are none."""
    i = 0
    best = fill(-INF, T, LANES)
    if size >= WIDE:
        wide = vload(x, 0, WIDE)
        i = WIDE
        while i + WIDE <= size:
            wide = larger(wide, vload(x, i, WIDE))
            i += WIDE
        pair = larger(low(wide), high(wide))
        best = larger(low(pair), high(pair))
    while i < size:
        left = size - i
        v = select(ramp(0, I64, LANES) < left, vload_first(x, i, LANES, left), -INF)
        best = larger(best, v)
        i += LANES
    return largest(best)


@jit.inline
def exp_row(x, y, size, top, T):
    """y[i] = exp(x[i] - top); returns the sum."""
    total, rest = fill(0.0, T, PAIR), fill(0.0, T, LANES)
    i = 0
    while i + PAIR <= size:
        v = exp_below(vload(x, i, PAIR) - top)
        vstore(y, i, v)
        total = total + v
        i += PAIR
    while i < size:
        left = size - i
        v = exp_below(vload_first(x, i, LANES, left) - top)
        v = select(ramp(0, I64, LANES) < left, v, 0.0)
        vstore_first(y, i, v, left)
        rest = rest + v
        i += LANES
    return reduce_add(low(total) + high(total) + rest)


@jit.inline
def scale_row(x, y, size, scale):
    """y[i] = x[i] * scale."""
    i = 0
    while i + WIDE <= size:
        vstore(y, i, vload(x, i, WIDE) * scale)
        i += WIDE
    while i < size:
        left = size - i
        vstore_first(y, i, vload_first(x, i, LANES, left) * scale, left)
        i += LANES


@jit.inline
def scale_of(top, total):
    """1 / total, or NaN for a row that has no softmax."""
    return 1.0 / total if -INF < top < INF else NAN


@jit.inline
def valid_length(row, size, period):
    """How many elements of a row count: all, or with a causal mask over `period` rows the lower part."""
    return size if period == 0 else size - period + 1 + row % period


@jit.inline
def softmax(args, lo, hi, T):
    """Rows [lo, hi)."""
    x, y = ptr(load(args, ROWS.x), T), ptr(load(args, ROWS.y), T)
    size, x_stride, period = load(args, ROWS.size), load(args, ROWS.stride), load(args, ROWS.period)
    for row in range(lo, hi):
        x_row, y_row = x + row * x_stride, y + row * size
        valid = valid_length(row, size, period)
        top = row_max(x_row, valid, T)
        total = exp_row(x_row, y_row, valid, top, T)
        scale_row(y_row, y_row, valid, scale_of(top, total))
        if valid < size:
            fill_row(y_row + valid, size - valid, 0.0)
    return 0


@jit.inline
def softmax_narrow(args, lo, hi, T):
    """As `softmax`, for 16-bit types."""
    x, y = ptr(load(args, ROWS.x), T), ptr(load(args, ROWS.y), T)
    size, x_stride, period = load(args, ROWS.size), load(args, ROWS.stride), load(args, ROWS.period)
    buffer = ptr(stack(BUFFER_BYTES), F32)
    for row in range(lo, hi):
        x_row, y_row = x + row * x_stride, y + row * size
        valid = valid_length(row, size, period)
        top = row_max(x_row, valid, T)
        total = 0.0
        for start in range(0, valid, BUFFER):
            total += exp_row(x_row + start, buffer, min(BUFFER, valid - start), top, T)
        scale = scale_of(top, total)
        for start in range(0, valid, BUFFER):
            count = min(BUFFER, valid - start)
            if valid > BUFFER:
                exp_row(x_row + start, buffer, count, top, T)
            scale_row(buffer, y_row + start, count, scale)
        if valid < size:
            fill_row(y_row + valid, size - valid, 0.0)
    return 0


@jit.inline
def log_of(top, total, T):
    """log(total) as a scalar of the compute type, or NaN for a row that has no softmax."""
    return lane(log(fill(total if -INF < top < INF else NAN, T, LANES)), 0)


@jit.inline
def log_softmax(args, lo, hi, T, C):
    """Rows [lo, hi); C is the compute type of T."""
    x, y = ptr(load(args, ROWS.x), T), ptr(load(args, ROWS.y), T)
    size, x_stride = load(args, ROWS.size), load(args, ROWS.stride)
    buffer = ptr(stack(BUFFER_BYTES), C)
    step = BUFFER // 2
    for row in range(lo, hi):
        x_row, y_row = x + row * x_stride, y + row * size
        top = row_max(x_row, size, T)
        total = 0.0
        for start in range(0, size, step):
            total += exp_row(x_row + start, buffer, min(step, size - start), top, T)
        shift = log_of(top, total, T)
        i = 0
        while i + WIDE <= size:
            vstore(y_row, i, vload(x_row, i, WIDE) - top - shift)
            i += WIDE
        while i < size:
            left = size - i
            vstore_first(y_row, i, vload_first(x_row, i, LANES, left) - top - shift, left)
            i += LANES
    return 0


@jit.inline
def columns(args, lo, hi, T):
    """Softmax, or its logarithm, along a dim with `columns` elements behind it: blocks [lo, hi) of PAIR of them."""
    x, y = ptr(load(args, COLUMNS.x), T), ptr(load(args, COLUMNS.y), T)
    size, inner, x_outer = load(args, COLUMNS.size), load(args, COLUMNS.columns), load(args, COLUMNS.stride)
    logarithm, blocks = load(args, COLUMNS.logarithm), (inner + PAIR - 1) // PAIR
    for unit in range(lo, hi):
        outer = unit // blocks
        column = (unit - outer * blocks) * PAIR
        left = inner - column
        x_at, y_at = x + (outer * x_outer + column), y + (outer * size * inner + column)
        top = fill(-INF, T, PAIR)
        for i in range(size):
            top = larger(top, vload_first(x_at, i * inner, PAIR, left))
        total = fill(0.0, T, PAIR)
        for i in range(size):
            total = total + exp_below(vload_first(x_at, i * inner, PAIR, left) - top)
        defined = (top < INF) & (top > -INF)
        total = select(defined, log(total) if logarithm else 1.0 / total, NAN)
        for i in range(size):
            v = vload_first(x_at, i * inner, PAIR, left) - top
            v = v - total if logarithm else exp_below(v) * total
            vstore_first(y_at, i * inner, v, left)
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
    """The logarithm of the sum of exponentials of rows [lo, hi)."""
    x, y = ptr(load(args, LOGSUMEXP.x), T), ptr(load(args, LOGSUMEXP.y), T)
    size, stride = load(args, LOGSUMEXP.size), load(args, LOGSUMEXP.stride)
    for row in range(lo, hi):
        top = row_max(x + row * stride, size, T)
        if top == top and -INF < top < INF:
            top = top + math.log(sum_of_exp(x + row * stride, size, top, T))
        store(y, row, top)
    return 0
