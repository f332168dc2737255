"""RMS norm and layer norm over rows whose elements are contiguous.

One row at a time: a pass for the statistics, a pass for the result; the second finds the row in L1.
Statistics are float32 (float64 for float64), their final square root and division float64.
"""

import math

from numba import types

from ...blocks.norm import ADD_RMS, LAYER, RMS, VARIANCE
from ...build import isa, jit
from ...lang.simd import (
    bitcast,
    fill,
    load,
    muladd,
    ptr,
    ramp,
    reduce_add,
    select,
    store,
    vload,
    vload_first,
    vstore,
    vstore_first,
)

LANES = isa.lanes()
# Four registers at once: independent chains of additions hide their latency of 4 cycles.
WIDE = 4 * LANES
F64, I64 = types.float64, types.int64


@jit.inline
def sum_squares(x, size, T):
    """Sum of x[i]^2 over `size` contiguous elements."""
    total, rest = fill(0.0, T, WIDE), fill(0.0, T, LANES)
    i = 0
    while i + WIDE <= size:
        v = vload(x, i, WIDE)
        total = muladd(v, v, total)
        i += WIDE
    while i < size:
        v = vload_first(x, i, LANES, size - i)
        rest = muladd(v, v, rest)
        i += LANES
    return reduce_add(total) + reduce_add(rest)


@jit.inline
def scale_row(x, w, y, size, scale):
    """y[i] = x[i] * scale * w[i]."""
    i = 0
    while i + WIDE <= size:
        vstore(y, i, vload(x, i, WIDE) * scale * vload(w, i, WIDE))
        i += WIDE
    while i < size:
        left = size - i
        v = vload_first(x, i, LANES, left) * scale * vload_first(w, i, LANES, left)
        vstore_first(y, i, v, left)
        i += LANES


@jit.inline
def rms_norm(args, lo, hi, T, W):
    """Rows [lo, hi)."""
    x, w, y = ptr(load(args, RMS.x), T), ptr(load(args, RMS.w), W), ptr(load(args, RMS.y), T)
    size, x_stride, y_stride = load(args, RMS.size), load(args, RMS.x_stride), load(args, RMS.y_stride)
    eps = bitcast(load(args, RMS.eps), F64)
    for row in range(lo, hi):
        x_row = x + row * x_stride
        mean = sum_squares(x_row, size, T) / float(size)
        scale_row(x_row, w, y + row * y_stride, size, 1.0 / math.sqrt(mean + eps))
    return 0


@jit.inline
def add_rms_norm(args, lo, hi, T, W):
    """Rows [lo, hi)."""
    a, b, w = ptr(load(args, ADD_RMS.a), T), ptr(load(args, ADD_RMS.b), T), ptr(load(args, ADD_RMS.w), W)
    y, total = ptr(load(args, ADD_RMS.y), T), ptr(load(args, ADD_RMS.total), T)
    size, a_stride, b_stride = load(args, ADD_RMS.size), load(args, ADD_RMS.a_stride), load(args, ADD_RMS.b_stride)
    y_stride, total_stride = load(args, ADD_RMS.y_stride), load(args, ADD_RMS.total_stride)
    eps = bitcast(load(args, ADD_RMS.eps), F64)
    for row in range(lo, hi):
        a_row, b_row, total_row = a + row * a_stride, b + row * b_stride, total + row * total_stride
        i = 0
        while i + WIDE <= size:
            vstore(total_row, i, vload(a_row, i, WIDE) + vload(b_row, i, WIDE))
            i += WIDE
        while i < size:
            left = size - i
            v = vload_first(a_row, i, LANES, left) + vload_first(b_row, i, LANES, left)
            vstore_first(total_row, i, v, left)
            i += LANES
        # from the rounded sum: what a separate addition would hand to the norm
        mean = sum_squares(total_row, size, T) / float(size)
        scale_row(total_row, w, y + row * y_stride, size, 1.0 / math.sqrt(mean + eps))
    return 0


@jit.inline
def row_sum(x, size, start, T):
    """Sum of x[i] - start over `size` contiguous elements."""
    total, rest = fill(0.0, T, WIDE), fill(0.0, T, LANES)
    i = 0
    while i + WIDE <= size:
        total = total + (vload(x, i, WIDE) - start)
        i += WIDE
    while i < size:
        left = size - i
        rest = rest + select(ramp(0, I64, LANES) < left, vload_first(x, i, LANES, left) - start, 0.0)
        i += LANES
    return reduce_add(total) + reduce_add(rest)


@jit.inline
def row_mean(x, size, T):
    """Mean of `size` contiguous elements, as a distance from the first one.

    So a row of equal elements has its mean and no variance. Of 4096 times 1000.1 in float32 the sum through the count
    is 1e-3 beside it, and layer_norm, which divides by the root of `eps` then, was 0.33 instead of 0.
    """
    first = F64(reduce_add(vload_first(x, 0, LANES, min(size, 1))))  # 0 of none
    first = first if abs(first) < math.inf else 0.0
    return first + row_sum(x, size, first, T) / float(size)


@jit.inline
def row_variance(x, size, mean, T):
    """Mean of (x[i] - mean)^2: a pass of its own, since E[x^2] - mean^2 cancels."""
    total, rest = fill(0.0, T, WIDE), fill(0.0, T, LANES)
    i = 0
    while i + WIDE <= size:
        v = vload(x, i, WIDE) - mean
        total = muladd(v, v, total)
        i += WIDE
    while i < size:
        left = size - i
        v = vload_first(x, i, LANES, left) - mean
        v = select(ramp(0, I64, LANES) < left, v, 0.0)
        rest = muladd(v, v, rest)
        i += LANES
    return (reduce_add(total) + reduce_add(rest)) / float(size)


@jit.inline
def layer_norm(args, lo, hi, T, W, B):
    """Rows [lo, hi)."""
    x, y = ptr(load(args, LAYER.x), T), ptr(load(args, LAYER.y), T)
    w, b = ptr(load(args, LAYER.w), W), ptr(load(args, LAYER.b), B)
    size, x_stride, y_stride = load(args, LAYER.size), load(args, LAYER.x_stride), load(args, LAYER.y_stride)
    has_weight, has_bias = load(args, LAYER.w) != 0, load(args, LAYER.b) != 0
    eps = bitcast(load(args, LAYER.eps), F64)
    for row in range(lo, hi):
        x_row, y_row = x + row * x_stride, y + row * y_stride
        mean = row_mean(x_row, size, T)
        scale = 1.0 / math.sqrt(row_variance(x_row, size, mean, T) + eps)
        i = 0
        while i + WIDE <= size:
            v = (vload(x_row, i, WIDE) - mean) * scale
            if has_weight:
                v = v * vload(w, i, WIDE)
            if has_bias:
                v = v + vload(b, i, WIDE)
            vstore(y_row, i, v)
            i += WIDE
        while i < size:
            left = size - i
            v = (vload_first(x_row, i, LANES, left) - mean) * scale
            if has_weight:
                v = v * vload_first(w, i, LANES, left)
            if has_bias:
                v = v + vload_first(b, i, LANES, left)
            vstore_first(y_row, i, v, left)
            i += LANES
    return 0


@jit.inline
def variance(args, lo, hi, T):
    """Rows [lo, hi)."""
    x, y = ptr(load(args, VARIANCE.x), T), ptr(load(args, VARIANCE.y), T)
    size, stride = load(args, VARIANCE.size), load(args, VARIANCE.stride)
    divisor = bitcast(load(args, VARIANCE.divisor), F64)
    for row in range(lo, hi):
        x_row = x + row * stride
        mean = row_mean(x_row, size, T)
        store(y, row, row_variance(x_row, size, mean, T) * (float(size) / divisor))
        if load(args, VARIANCE.mean) != 0:
            store(ptr(load(args, VARIANCE.mean), T), row, mean)
    return 0
