"""RMS norm and layer norm: a row for a block, whose second pass finds it in the first-level cache.

Statistics are float32 (float64 for float64), their final square root and division float64, as on the CPU.
"""

import math

from numba import types

from ...blocks.norm import ADD_RMS, LAYER, RMS, VARIANCE
from ...build import jit
from ...lang.ptx import barrier, thread, threads
from ...lang.simd import bitcast, load, muladd, ptr, reduce_add, select, store
from ..block import block_sum, places, read, vector, width, write

F64 = types.float64


@jit.inline
def sum_squares(x, size):
    """Sum of x[i]^2 over `size` contiguous elements."""
    total = vector(x, 0.0)
    for i in range(thread() * width(x), size, threads() * width(x)):
        v = read(x, i, size - i, total)
        total = muladd(v, v, total)
    return block_sum(reduce_add(total))


@jit.inline
def scale_row(x, w, y, size, scale):
    """y[i] = x[i] * scale * w[i]."""
    like = vector(x, 0.0)
    for i in range(thread() * width(x), size, threads() * width(x)):
        write(y, i, read(x, i, size - i, like) * scale * read(w, i, size - i, like), size - i)


@jit.inline
def rms_norm(args, lo, hi, T, W):
    """Row `lo`."""
    size = load(args, RMS.size)
    x = ptr(load(args, RMS.x), T) + lo * load(args, RMS.x_stride)
    y = ptr(load(args, RMS.y), T) + lo * load(args, RMS.y_stride)
    mean = sum_squares(x, size) / float(size)
    scale_row(x, ptr(load(args, RMS.w), W), y, size, 1.0 / math.sqrt(mean + bitcast(load(args, RMS.eps), F64)))
    return 0


@jit.inline
def add_rms_norm(args, lo, hi, T, W):
    """Row `lo`; the norm is that of the rounded sum, which a separate addition would hand to it."""
    size = load(args, ADD_RMS.size)
    a = ptr(load(args, ADD_RMS.a), T) + lo * load(args, ADD_RMS.a_stride)
    b = ptr(load(args, ADD_RMS.b), T) + lo * load(args, ADD_RMS.b_stride)
    y = ptr(load(args, ADD_RMS.y), T) + lo * load(args, ADD_RMS.y_stride)
    total = ptr(load(args, ADD_RMS.total), T) + lo * load(args, ADD_RMS.total_stride)
    like = vector(a, 0.0)
    for i in range(thread() * width(a), size, threads() * width(a)):
        write(total, i, read(a, i, size - i, like) + read(b, i, size - i, like), size - i)
    barrier()
    mean = sum_squares(total, size) / float(size)
    scale = 1.0 / math.sqrt(mean + bitcast(load(args, ADD_RMS.eps), F64))
    scale_row(total, ptr(load(args, ADD_RMS.w), W), y, size, scale)
    return 0


@jit.inline
def row_mean(x, size):
    """Mean of `size` contiguous elements."""
    total = vector(x, 0.0)
    for i in range(thread() * width(x), size, threads() * width(x)):
        total = total + read(x, i, size - i, total)
    return block_sum(reduce_add(total)) / float(size)


@jit.inline
def row_variance(x, size, mean):
    """Mean of (x[i] - mean)^2: a pass of its own, since E[x^2] - mean^2 cancels."""
    total, lanes = vector(x, 0.0), places(x)
    for i in range(thread() * width(x), size, threads() * width(x)):
        v = select(lanes < size - i, read(x, i, size - i, total) - mean, 0.0)
        total = muladd(v, v, total)
    return block_sum(reduce_add(total)) / float(size)


@jit.inline
def layer_norm(args, lo, hi, T, W, B):
    """Row `lo`."""
    size = load(args, LAYER.size)
    x = ptr(load(args, LAYER.x), T) + lo * load(args, LAYER.x_stride)
    y = ptr(load(args, LAYER.y), T) + lo * load(args, LAYER.y_stride)
    w, b = ptr(load(args, LAYER.w), W), ptr(load(args, LAYER.b), B)
    has_weight, has_bias = load(args, LAYER.w) != 0, load(args, LAYER.b) != 0
    mean = row_mean(x, size)
    scale = 1.0 / math.sqrt(row_variance(x, size, mean) + bitcast(load(args, LAYER.eps), F64))
    like = vector(x, 0.0)
    for i in range(thread() * width(x), size, threads() * width(x)):
        v = (read(x, i, size - i, like) - mean) * scale
        if has_weight:
            v = v * read(w, i, size - i, like)
        if has_bias:
            v = v + read(b, i, size - i, like)
        write(y, i, v, size - i)
    return 0


@jit.inline
def variance(args, lo, hi, T):
    """Row `lo`."""
    size, divisor = load(args, VARIANCE.size), bitcast(load(args, VARIANCE.divisor), F64)
    x = ptr(load(args, VARIANCE.x), T) + lo * load(args, VARIANCE.stride)
    found = row_variance(x, size, row_mean(x, size)) * (float(size) / divisor)
    if thread() == 0:
        store(ptr(load(args, VARIANCE.y), T), lo, found)
    return 0
