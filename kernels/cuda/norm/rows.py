"""RMS norm and layer norm: rows that registers hold, or a short row for a warp, a longer one for a block.

Later passes over rows that registers do not hold find them in the caches.

Statistics are float32 (float64 for float64), their final square root and division float64, as on the CPU.
"""

import math

from numba import types

from ...blocks.norm import ADD_RMS, LAYER, RMS, VARIANCE
from ...build import jit
from ...lang.simd import bitcast, load, muladd, ptr, reduce_add, select, store
from ...lang.wide import inverse_root, quotient
from ..block import fold_row, number, places, read, team_sum, vector, width, write
from .held import each_row, inside_part, lined, own_rows, part_of, part_sum, read_along, read_part, write_part

F32, F64 = types.float32, types.float64


@jit.inline
def add_squares(total, v, left):
    """Zeros behind the row add nothing."""
    return muladd(v, v, total)


@jit.inline
def add_distances(state, v, left):
    """The state is (sum of distances from the first element, that element, numbers of lanes)."""
    total, first, lanes = state
    return total + select(lanes < left, v - first, 0.0), first, lanes


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
def held_scale(v, size, eps, TEAM):
    """1 / sqrt(mean of v^2 + eps), v the parts of a row that threads hold: of float32, so no sum is subnormal here."""
    return F32(inverse_root(F64(part_sum(reduce_add(v * v), TEAM)) * quotient(1.0, float(size)) + eps))


@jit.inline
def read_row(x, part, like):
    """What this thread has of a row, and zeros."""
    return select(inside_part(x, part, like), read_part(x, part, like), 0.0)


@jit.inline
def rms_held(args, row, like, T, W, B, TEAM, SPAN):
    """One row."""
    size, eps = load(args, RMS.size), bitcast(load(args, RMS.eps), F64)
    x = ptr(load(args, RMS.x), T) + row * load(args, RMS.x_stride)
    part = part_of(x, size, TEAM, SPAN)
    v = read_row(x, part, like)
    v = v * held_scale(v, size, eps, TEAM) * read_along(ptr(load(args, RMS.w), W), x, part, like, SPAN)
    write_part(ptr(load(args, RMS.y), T) + row * load(args, RMS.y_stride), part, v)


@jit.inline
def rms_norm(args, lo, hi, T, W, TEAM, PIECES, SPAN):
    """All rows."""
    x, y = ptr(load(args, RMS.x), T), ptr(load(args, RMS.y), T)
    even = lined(x, y, load(args, RMS.x_stride), load(args, RMS.y_stride), SPAN)
    if PIECES > 0 and even and (SPAN or load(args, RMS.w) & 15 == 0):
        each_row(args, hi, rms_held, x, T, W, W, TEAM, PIECES, SPAN)
        return 0
    size, eps = load(args, RMS.size), bitcast(load(args, RMS.eps), F64)
    first, step, team = own_rows(TEAM)
    for row in range(first, hi, step):
        x = ptr(load(args, RMS.x), T) + row * load(args, RMS.x_stride)
        y = ptr(load(args, RMS.y), T) + row * load(args, RMS.y_stride)
        mean = sum_squares(x, size, team) / float(size)
        scale_row(x, ptr(load(args, RMS.w), W), y, size, 1.0 / math.sqrt(mean + eps), team)
    return 0


@jit.inline
def add_rms_held(args, row, like, T, W, B, TEAM, SPAN):
    """One row."""
    size, eps = load(args, ADD_RMS.size), bitcast(load(args, ADD_RMS.eps), F64)
    a = ptr(load(args, ADD_RMS.a), T) + row * load(args, ADD_RMS.a_stride)
    b = ptr(load(args, ADD_RMS.b), T) + row * load(args, ADD_RMS.b_stride)
    total = ptr(load(args, ADD_RMS.total), T) + row * load(args, ADD_RMS.total_stride)
    part = part_of(a, size, TEAM, SPAN)
    write_part(total, part, read_part(a, part, like) + read_part(b, part, like))
    v = read_row(total, part, like)  # each thread reads again what it wrote
    v = v * held_scale(v, size, eps, TEAM) * read_along(ptr(load(args, ADD_RMS.w), W), a, part, like, SPAN)
    write_part(ptr(load(args, ADD_RMS.y), T) + row * load(args, ADD_RMS.y_stride), part, v)


@jit.inline
def add_rms_lined(args, T, SPAN):
    """Whether all rows have their vectors at the same places."""
    a, stride = ptr(load(args, ADD_RMS.a), T), load(args, ADD_RMS.a_stride)
    return (
        lined(a, ptr(load(args, ADD_RMS.b), T), stride, load(args, ADD_RMS.b_stride), SPAN)
        and lined(a, ptr(load(args, ADD_RMS.y), T), stride, load(args, ADD_RMS.y_stride), SPAN)
        and lined(a, ptr(load(args, ADD_RMS.total), T), stride, load(args, ADD_RMS.total_stride), SPAN)
        and (SPAN or load(args, ADD_RMS.w) & 15 == 0)
    )


@jit.inline
def add_rms_norm(args, lo, hi, T, W, TEAM, PIECES, SPAN):
    """All rows; the norm is that of the rounded sum, which a separate addition would hand to it."""
    if PIECES > 0 and add_rms_lined(args, T, SPAN):
        each_row(args, hi, add_rms_held, ptr(load(args, ADD_RMS.a), T), T, W, W, TEAM, PIECES, SPAN)
        return 0
    size, eps = load(args, ADD_RMS.size), bitcast(load(args, ADD_RMS.eps), F64)
    first, step, team = own_rows(TEAM)
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
def first_of(x, size):
    """The first element, from which means are distances (as in `cpu/norm/rows.py`); 0 where it is no finite number."""
    first = F64(reduce_add(read(x, 0, min(size, 1), number(x, 0.0))))
    return first if abs(first) < math.inf else 0.0


@jit.inline
def row_mean(x, size, team):
    """Mean of `size` contiguous elements."""
    nothing, first = vector(x, 0.0), first_of(x, size)
    state = fold_row(x, size, team, (nothing, nothing + first, places(x)), add_distances, nothing)
    return first + F64(team_sum(reduce_add(state[0]), team)) / float(size)


@jit.inline
def held_mean(v, x, size, part, like, TEAM):
    """Mean of a row of whose elements v is what threads hold."""
    first = first_of(x, size)
    distances = select(inside_part(x, part, like), v - F32(first), 0.0)
    return F32(first + F64(part_sum(reduce_add(distances), TEAM)) / float(size))


@jit.inline
def row_variance(x, size, mean, team):
    """Mean of (x[i] - mean)^2: a pass of its own, since E[x^2] - mean^2 cancels."""
    nothing = vector(x, 0.0)
    state = fold_row(x, size, team, (nothing, nothing + mean, places(x)), add_differences, nothing)
    return team_sum(reduce_add(state[0]), team) / float(size)


@jit.inline
def layer_held(args, row, like, T, W, B, TEAM, SPAN):
    """One row."""
    size, eps = load(args, LAYER.size), bitcast(load(args, LAYER.eps), F64)
    x = ptr(load(args, LAYER.x), T) + row * load(args, LAYER.x_stride)
    part = part_of(x, size, TEAM, SPAN)
    v = read_row(x, part, like)
    mean = held_mean(v, x, size, part, like, TEAM)
    v = select(inside_part(x, part, like), v - mean, 0.0)
    v = v * held_scale(v, size, eps, TEAM)
    if load(args, LAYER.w) != 0:
        v = v * read_along(ptr(load(args, LAYER.w), W), x, part, like, SPAN)
    if load(args, LAYER.b) != 0:
        v = v + read_along(ptr(load(args, LAYER.b), B), x, part, like, SPAN)
    write_part(ptr(load(args, LAYER.y), T) + row * load(args, LAYER.y_stride), part, v)


@jit.inline
def layer_norm(args, lo, hi, T, W, B, TEAM, PIECES, SPAN):
    """All rows."""
    x, y, along = ptr(load(args, LAYER.x), T), ptr(load(args, LAYER.y), T), load(args, LAYER.w) | load(args, LAYER.b)
    even = lined(x, y, load(args, LAYER.x_stride), load(args, LAYER.y_stride), SPAN) and (SPAN or along & 15 == 0)
    if PIECES > 0 and even:
        each_row(args, hi, layer_held, x, T, W, B, TEAM, PIECES, SPAN)
        return 0
    size, eps = load(args, LAYER.size), bitcast(load(args, LAYER.eps), F64)
    w, b = ptr(load(args, LAYER.w), W), ptr(load(args, LAYER.b), B)
    has_weight, has_bias = load(args, LAYER.w) != 0, load(args, LAYER.b) != 0
    first, step, team = own_rows(TEAM)
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
def variance_held(args, row, like, T, W, B, TEAM, SPAN):
    """One row."""
    size = load(args, VARIANCE.size)
    x = ptr(load(args, VARIANCE.x), T) + row * load(args, VARIANCE.stride)
    part = part_of(x, size, TEAM, SPAN)
    v = read_row(x, part, like)
    mean = held_mean(v, x, size, part, like, TEAM)
    v = select(inside_part(x, part, like), v - mean, 0.0)
    found = F64(part_sum(reduce_add(v * v), TEAM)) / bitcast(load(args, VARIANCE.divisor), F64)
    if part[0] == 0:
        store_moments(args, row, found, mean, T)


@jit.inline
def store_moments(args, row, found, mean, T):
    """The variance of a row, and its mean where that is wanted."""
    store(ptr(load(args, VARIANCE.y), T), row, found)
    if load(args, VARIANCE.mean) != 0:
        store(ptr(load(args, VARIANCE.mean), T), row, mean)


@jit.inline
def variance(args, lo, hi, T, TEAM, PIECES, SPAN):
    """All rows."""
    x, stride = ptr(load(args, VARIANCE.x), T), load(args, VARIANCE.stride)
    if PIECES > 0 and lined(x, x, stride, stride, SPAN):
        each_row(args, hi, variance_held, x, T, T, T, TEAM, PIECES, SPAN)
        return 0
    size, divisor = load(args, VARIANCE.size), bitcast(load(args, VARIANCE.divisor), F64)
    first, step, team = own_rows(TEAM)
    for row in range(first, hi, step):
        x = ptr(load(args, VARIANCE.x), T) + row * load(args, VARIANCE.stride)
        mean = row_mean(x, size, team)
        found = row_variance(x, size, mean, team) * (float(size) / divisor)
        if team[0] == 0:
            store_moments(args, row, found, mean, T)
    return 0
