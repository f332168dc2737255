"""Batch norm and group norm of [N, C, L], and their gradients.

Batch norm takes a channel at a time (N segments of L contiguous elements), group norm a group of channels of one image
(contiguous). Mean and variance are two passes, as in `norm.py`, over what the second-level cache mostly still holds (64
images of 14 x 14 are 50 KB a channel); sums of segments are float64.
"""

import math

from numba import types

from ...blocks.channels import BATCH, BATCH_GRAD, GROUP, GROUP_GRAD
from ...build import isa, jit
from ...lang.simd import (
    bitcast,
    fill,
    load,
    muladd,
    ptr,
    reduce_add,
    store,
    vload,
    vload_first,
    vstore,
    vstore_first,
)
from ..gemm.microkernel import sum_ptr
from .rows import row_mean, row_variance

LANES = isa.lanes()
WIDE = 4 * LANES
F64 = types.float64


@jit.inline
def normalize_row(x, y, size, mean, scale, shift):
    """y[i] = (x[i] - mean) * scale + shift."""
    i = 0
    while i + WIDE <= size:
        vstore(y, i, muladd(vload(x, i, WIDE) - mean, scale, shift))
        i += WIDE
    while i < size:
        vstore_first(y, i, muladd(vload_first(x, i, LANES, size - i) - mean, scale, shift), size - i)
        i += LANES


@jit.inline
def gradient_sums(g, x, size, mean, T):
    """(sum of g[i], sum of g[i] (x[i] - mean))."""
    total, moment = fill(0.0, T, WIDE), fill(0.0, T, WIDE)
    rest, rest_moment = fill(0.0, T, LANES), fill(0.0, T, LANES)
    i = 0
    while i + WIDE <= size:
        v = vload(g, i, WIDE)
        total = total + v
        moment = muladd(v, vload(x, i, WIDE) - mean, moment)
        i += WIDE
    while i < size:
        v = vload_first(g, i, LANES, size - i)
        rest = rest + v
        rest_moment = muladd(v, vload_first(x, i, LANES, size - i) - mean, rest_moment)
        i += LANES
    return reduce_add(total) + reduce_add(rest), reduce_add(moment) + reduce_add(rest_moment)


@jit.inline
def gradient_row(g, x, y, size, mean, scale, slope, shift):
    """y[i] = g[i] * scale + (x[i] - mean) * slope + shift."""
    i = 0
    while i + WIDE <= size:
        v = muladd(vload(x, i, WIDE) - mean, slope, shift)
        vstore(y, i, muladd(vload(g, i, WIDE), scale, v))
        i += WIDE
    while i < size:
        left = size - i
        v = muladd(vload_first(x, i, LANES, left) - mean, slope, shift)
        vstore_first(y, i, muladd(vload_first(g, i, LANES, left), scale, v), left)
        i += LANES


@jit.inline
def factor_of(w, W, c, missing):
    """Element c of a weight or bias at address w, or `missing` where there is none."""
    return F64(load(ptr(w, W), c)) if w != 0 else missing


@jit.inline
def batch_norm(args, lo, hi, T, W, B, R, TRAINING):
    """Channels [lo, hi)."""
    N, C, L = load(args, BATCH.n), load(args, BATCH.c), load(args, BATCH.length)
    w, b = load(args, BATCH.w), load(args, BATCH.b)
    means, inverses = sum_ptr(load(args, BATCH.mean), T), sum_ptr(load(args, BATCH.inverse), T)
    running_mean, running_var = ptr(load(args, BATCH.running_mean), R), ptr(load(args, BATCH.running_var), R)
    momentum, eps = bitcast(load(args, BATCH.momentum), F64), bitcast(load(args, BATCH.eps), F64)
    count = float(N * L)
    for c in range(lo, hi):
        x, y = ptr(load(args, BATCH.x), T) + c * L, ptr(load(args, BATCH.y), T) + c * L
        if TRAINING:
            mean, variance = 0.0, 0.0
            for n in range(N):
                mean += row_mean(x + n * C * L, L, T) * (L / count)
            for n in range(N):
                variance += row_variance(x + n * C * L, L, mean, T) * (L / count)
            if load(args, BATCH.running_mean) != 0:
                store(running_mean, c, load(running_mean, c) * (1.0 - momentum) + mean * momentum)
                unbiased = variance * (count / (count - 1.0))
                store(running_var, c, load(running_var, c) * (1.0 - momentum) + unbiased * momentum)
        else:
            mean, variance = F64(load(running_mean, c)), F64(load(running_var, c))
        inverse = 1.0 / math.sqrt(variance + eps)
        store(means, c, mean)
        store(inverses, c, inverse)
        scale, shift = inverse * factor_of(w, W, c, 1.0), factor_of(b, B, c, 0.0)
        for n in range(N):
            normalize_row(x + n * C * L, y + n * C * L, L, mean, scale, shift)
    return 0


@jit.inline
def batch_norm_backward(args, lo, hi, T, W, TRAINING):
    """Channels [lo, hi)."""
    N, C, L = load(args, BATCH_GRAD.n), load(args, BATCH_GRAD.c), load(args, BATCH_GRAD.length)
    dw, db = ptr(load(args, BATCH_GRAD.dw), W), ptr(load(args, BATCH_GRAD.db), W)
    means, inverses = sum_ptr(load(args, BATCH_GRAD.mean), T), sum_ptr(load(args, BATCH_GRAD.inverse), T)
    count = float(N * L)
    for c in range(lo, hi):
        g, x = ptr(load(args, BATCH_GRAD.g), T) + c * L, ptr(load(args, BATCH_GRAD.x), T) + c * L
        dx = ptr(load(args, BATCH_GRAD.dx), T) + c * L
        mean, inverse = F64(load(means, c)), F64(load(inverses, c))
        total, moment = 0.0, 0.0
        for n in range(N):
            one, two = gradient_sums(g + n * C * L, x + n * C * L, L, mean, T)
            total, moment = total + one, moment + two
        scale = inverse * factor_of(load(args, BATCH_GRAD.w), W, c, 1.0)
        store(dw, c, moment * inverse)
        store(db, c, total)
        slope, shift = 0.0, 0.0
        if TRAINING:
            slope, shift = -scale * inverse * inverse * moment / count, -scale * total / count
        for n in range(N):
            gradient_row(g + n * C * L, x + n * C * L, dx + n * C * L, L, mean, scale, slope, shift)
    return 0


@jit.inline
def group_norm(args, lo, hi, T, W, B):
    """Groups [lo, hi) of all images."""
    groups, channels, L = load(args, GROUP.groups), load(args, GROUP.channels), load(args, GROUP.length)
    w, b, eps = load(args, GROUP.w), load(args, GROUP.b), bitcast(load(args, GROUP.eps), F64)
    means, inverses = sum_ptr(load(args, GROUP.mean), T), sum_ptr(load(args, GROUP.inverse), T)
    size = channels * L
    for unit in range(lo, hi):
        x, y = ptr(load(args, GROUP.x), T) + unit * size, ptr(load(args, GROUP.y), T) + unit * size
        mean = row_mean(x, size, T)
        inverse = 1.0 / math.sqrt(row_variance(x, size, mean, T) + eps)
        store(means, unit, mean)
        store(inverses, unit, inverse)
        first = unit % groups * channels
        for c in range(channels):
            scale, shift = inverse * factor_of(w, W, first + c, 1.0), factor_of(b, B, first + c, 0.0)
            normalize_row(x + c * L, y + c * L, L, mean, scale, shift)
    return 0


@jit.inline
def group_norm_backward(args, lo, hi, T, W):
    """Groups [lo, hi) of all images; `dw` and `db` are parts, those of each image."""
    groups, channels, L = load(args, GROUP_GRAD.groups), load(args, GROUP_GRAD.channels), load(args, GROUP_GRAD.length)
    means, inverses = sum_ptr(load(args, GROUP_GRAD.mean), T), sum_ptr(load(args, GROUP_GRAD.inverse), T)
    w, size = load(args, GROUP_GRAD.w), channels * L
    for unit in range(lo, hi):
        g, x = ptr(load(args, GROUP_GRAD.g), T) + unit * size, ptr(load(args, GROUP_GRAD.x), T) + unit * size
        dx, first = ptr(load(args, GROUP_GRAD.dx), T) + unit * size, unit % groups * channels
        dw = sum_ptr(load(args, GROUP_GRAD.dw), T) + unit * channels
        db = sum_ptr(load(args, GROUP_GRAD.db), T) + unit * channels
        mean, inverse = F64(load(means, unit)), F64(load(inverses, unit))
        total, moment = 0.0, 0.0
        for c in range(channels):
            one, two = gradient_sums(g + c * L, x + c * L, L, mean, T)
            store(dw, c, two * inverse)
            store(db, c, one)
            factor = factor_of(w, W, first + c, 1.0)
            total, moment = total + one * factor, moment + two * factor
        slope, shift = -inverse * inverse * inverse * moment / float(size), -inverse * total / float(size)
        for c in range(channels):
            scale = inverse * factor_of(w, W, first + c, 1.0)
            gradient_row(g + c * L, x + c * L, dx + c * L, L, mean, scale, slope, shift)
    return 0
