"""RMS norm and layer norm: a short row for a warp, a longer one for a block; later passes find it in the caches.

Statistics are float32 (float64 for float64), their final square root and division float64, as on the CPU.
"""

import math

from numba import types

from ...blocks.norm import ADD_RMS, LAYER, RMS, VARIANCE
from ...build import jit
from ...lang.simd import bitcast, load, muladd, ptr, reduce_add, select, store
from ..block import fold_row, places, read, share_rows, team_sum, vector, width, write

F64 = types.float64


@jit.inline
def add_squares(total, v, left):
    """Zeros behind the row add nothing."""
    return muladd(v, v, total)


@jit.inline
def add_plain(total, v, left):
    return total + v


@jit.inline
def add_differences(state, v, left):
    """The state is (sum of squared differences from the mean, the mean, numbers of lanes)."""
    total, mean, lanes = state
    v = select(lanes < left, v - mean, 0.0)
    return muladd(v, v, total), mean, lanes


@jit.inline
def sum_squares(x, size, team):
    """Sum of x[i]^2 over `size` contiguous elements."""
    nothing = vector(x, 0.0)
    return team_sum(reduce_add(fold_row(x, size, team, nothing, add_squares, nothing)), team)


@jit.inline
def scale_row(x, w, y, size, scale, team):
    """y[i] = x[i] * scale * w[i]."""
    like = vector(x, 0.0)
    for i in range(team[0] * width(x), size, team[1] * width(x)):
        write(y, i, read(x, i, size - i, like) * scale * read(w, i, size - i, like), size - i)


@jit.inline
def rms_norm(args, lo, hi, T, W):
    """All rows."""
    size, eps = load(args, RMS.size), bitcast(load(args, RMS.eps), F64)
    first, step, team = share_rows(ptr(load(args, RMS.x), T), size)
    for row in range(first, hi, step):
        x = ptr(load(args, RMS.x), T) + row * load(args, RMS.x_stride)
        y = ptr(load(args, RMS.y), T) + row * load(args, RMS.y_stride)
        mean = sum_squares(x, size, team) / float(size)
        scale_row(x, ptr(load(args, RMS.w), W), y, size, 1.0 / math.sqrt(mean + eps), team)
    return 0


@jit.inline
def add_rms_norm(args, lo, hi, T, W):
    """All rows; the norm is that of the rounded sum, which a separate addition would hand to it."""
    size, eps = load(args, ADD_RMS.size), bitcast(load(args, ADD_RMS.eps), F64)
    first, step, team = share_rows(ptr(load(args, ADD_RMS.a), T), size)
    for row in range(first, hi, step):
        a = ptr(load(args, ADD_RMS.a), T) + row * load(args, ADD_RMS.a_stride)
        b = ptr(load(args, ADD_RMS.b), T) + row * load(args, ADD_RMS.b_stride)
        y = ptr(load(args, ADD_RMS.y), T) + row * load(args, ADD_RMS.y_stride)
        total = ptr(load(args, ADD_RMS.total), T) + row * load(args, ADD_RMS.total_stride)
        like = vector(a, 0.0)
        for i in range(team[0] * width(a), size, team[1] * width(a)):  # each thread reads again what it writes
            write(total, i, read(a, i, size - i, like) + read(b, i, size - i, like), size - i)
        scale = 1.0 / math.sqrt(sum_squares(total, size, team) / float(size) + eps)
        scale_row(total, ptr(load(args, ADD_RMS.w), W), y, size, scale, team)
    return 0


@jit.inline
def row_mean(x, size, team):
    """Mean of `size` contiguous elements."""
    nothing = vector(x, 0.0)
    return team_sum(reduce_add(fold_row(x, size, team, nothing, add_plain, nothing)), team) / float(size)


@jit.inline
def row_variance(x, size, mean, team):
    """Mean of (x[i] - mean)^2: a pass of its own, since E[x^2] - mean^2 cancels."""
    nothing = vector(x, 0.0)
    state = fold_row(x, size, team, (nothing, nothing + mean, places(x)), add_differences, nothing)
    return team_sum(reduce_add(state[0]), team) / float(size)


@jit.inline
def layer_norm(args, lo, hi, T, W, B):
    """All rows."""
    size, eps = load(args, LAYER.size), bitcast(load(args, LAYER.eps), F64)
    w, b = ptr(load(args, LAYER.w), W), ptr(load(args, LAYER.b), B)
    has_weight, has_bias = load(args, LAYER.w) != 0, load(args, LAYER.b) != 0
    first, step, team = share_rows(ptr(load(args, LAYER.x), T), size)
    for row in range(first, hi, step):
        x = ptr(load(args, LAYER.x), T) + row * load(args, LAYER.x_stride)
        y = ptr(load(args, LAYER.y), T) + row * load(args, LAYER.y_stride)
        mean, like = row_mean(x, size, team), vector(x, 0.0)
        scale = 1.0 / math.sqrt(row_variance(x, size, mean, team) + eps)
        for i in range(team[0] * width(x), size, team[1] * width(x)):
            v = (read(x, i, size - i, like) - mean) * scale
            if has_weight:
                v = v * read(w, i, size - i, like)
            if has_bias:
                v = v + read(b, i, size - i, like)
            write(y, i, v, size - i)
    return 0


@jit.inline
def variance(args, lo, hi, T):
    """All rows."""
    size, divisor = load(args, VARIANCE.size), bitcast(load(args, VARIANCE.divisor), F64)
    first, step, team = share_rows(ptr(load(args, VARIANCE.x), T), size)
    for row in range(first, hi, step):
        x = ptr(load(args, VARIANCE.x), T) + row * load(args, VARIANCE.stride)
        found = row_variance(x, size, row_mean(x, size, team), team) * (float(size) / divisor)
        if team[0] == 0:
            store(ptr(load(args, VARIANCE.y), T), row, found)
    return 0
