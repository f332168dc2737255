"""Batch norm and group norm of [N, C, L], and their gradients.

Batch norm takes a channel at a time (N segments of L contiguous elements), group norm a group of channels of one image
(contiguous). Mean and variance are two passes, as in `norm.py`, over what the second-level cache mostly still holds (64
images of 14 x 14 are 50 KB a channel); sums of segments are float64.
"""

import math

from numba import types

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
def batch_norm(args, lo, hi, T, W, B, R, TRAINING):
    """Channels [lo, hi). args: 0 x, 1 w, 2 b (each or 0), 3 y, 4-6 N, C, L, 7-8 running mean and variance (or 0),
    9 momentum, 10 eps (bits), 11-12 where the mean and the inverse deviation go.
    """
    N, C, L = load(args, 4), load(args, 5), load(args, 6)
    running_mean, running_var = ptr(load(args, 7), R), ptr(load(args, 8), R)
    momentum, eps = bitcast(load(args, 9), F64), bitcast(load(args, 10), F64)
    count = float(N * L)
    for c in range(lo, hi):
        x, y = ptr(load(args, 0), T) + c * L, ptr(load(args, 3), T) + c * L
        if TRAINING:
            mean, variance = 0.0, 0.0
            for n in range(N):
                mean += row_mean(x + n * C * L, L, T) * (L / count)
            for n in range(N):
                variance += row_variance(x + n * C * L, L, mean, T) * (L / count)
            if load(args, 7) != 0:
                store(running_mean, c, load(running_mean, c) * (1.0 - momentum) + mean * momentum)
                unbiased = variance * (count / (count - 1.0))
                store(running_var, c, load(running_var, c) * (1.0 - momentum) + unbiased * momentum)
        else:
            mean, variance = F64(load(running_mean, c)), F64(load(running_var, c))
        inverse = 1.0 / math.sqrt(variance + eps)
        store(sum_ptr(load(args, 11), T), c, mean)
        store(sum_ptr(load(args, 12), T), c, inverse)
        scale = inverse * load(ptr(load(args, 1), W), c) if load(args, 1) != 0 else inverse
        shift = F64(load(ptr(load(args, 2), B), c)) if load(args, 2) != 0 else 0.0
        for n in range(N):
            normalize_row(x + n * C * L, y + n * C * L, L, mean, scale, shift)
    return 0


@jit.inline
def batch_norm_backward(args, lo, hi, T, W, TRAINING):
    """Channels [lo, hi). args: 0 g, 1 x, 2 w (or 0), 3-4 mean and inverse deviation, 5-7 N, C, L, 8 dx, 9 dw, 10 db."""
    N, C, L = load(args, 5), load(args, 6), load(args, 7)
    count = float(N * L)
    for c in range(lo, hi):
        g, x, y = ptr(load(args, 0), T) + c * L, ptr(load(args, 1), T) + c * L, ptr(load(args, 8), T) + c * L
        mean, inverse = F64(load(sum_ptr(load(args, 3), T), c)), F64(load(sum_ptr(load(args, 4), T), c))
        total, moment = 0.0, 0.0
        for n in range(N):
            one, two = gradient_sums(g + n * C * L, x + n * C * L, L, mean, T)
            total, moment = total + one, moment + two
        scale = inverse * load(ptr(load(args, 2), W), c) if load(args, 2) != 0 else inverse
        store(ptr(load(args, 9), W), c, moment * inverse)
        store(ptr(load(args, 10), W), c, total)
        slope, shift = 0.0, 0.0
        if TRAINING:
            slope, shift = -scale * inverse * inverse * moment / count, -scale * total / count
        for n in range(N):
            gradient_row(g + n * C * L, x + n * C * L, y + n * C * L, L, mean, scale, slope, shift)
    return 0


@jit.inline
def group_norm(args, lo, hi, T, W, B):
    """Groups [lo, hi) of all images. args: 0 x, 1 w, 2 b (each or 0), 3 y, 4 groups, 5 channels of a group, 6 L,
    7 eps (bits), 8-9 where the mean and the inverse deviation go.
    """
    groups, channels, L, eps = load(args, 4), load(args, 5), load(args, 6), bitcast(load(args, 7), F64)
    size = channels * L
    for unit in range(lo, hi):
        x, y = ptr(load(args, 0), T) + unit * size, ptr(load(args, 3), T) + unit * size
        mean = row_mean(x, size, T)
        inverse = 1.0 / math.sqrt(row_variance(x, size, mean, T) + eps)
        store(sum_ptr(load(args, 8), T), unit, mean)
        store(sum_ptr(load(args, 9), T), unit, inverse)
        first = unit % groups * channels
        for c in range(channels):
            scale = inverse * load(ptr(load(args, 1), W), first + c) if load(args, 1) != 0 else inverse
            shift = F64(load(ptr(load(args, 2), B), first + c)) if load(args, 2) != 0 else 0.0
            normalize_row(x + c * L, y + c * L, L, mean, scale, shift)
    return 0


@jit.inline
def group_norm_backward(args, lo, hi, T, W):
    """Groups [lo, hi) of all images. args: 0 g, 1 x, 2 w (or 0), 3-4 mean and inverse deviation, 5 groups,
    6 channels of a group, 7 L, 8 dx, 9-10 the parts of each image in dw and db, [N, C].
    """
    groups, channels, L = load(args, 5), load(args, 6), load(args, 7)
    size = channels * L
    for unit in range(lo, hi):
        g, x = ptr(load(args, 0), T) + unit * size, ptr(load(args, 1), T) + unit * size
        y, w = ptr(load(args, 8), T) + unit * size, ptr(load(args, 2), W) + unit % groups * channels
        dw, db = sum_ptr(load(args, 9), T) + unit * channels, sum_ptr(load(args, 10), T) + unit * channels
        mean, inverse = F64(load(sum_ptr(load(args, 3), T), unit)), F64(load(sum_ptr(load(args, 4), T), unit))
        total, moment = 0.0, 0.0
        for c in range(channels):
            one, two = gradient_sums(g + c * L, x + c * L, L, mean, T)
            store(dw, c, two * inverse)
            store(db, c, one)
            factor = F64(load(w, c)) if load(args, 2) != 0 else 1.0
            total, moment = total + one * factor, moment + two * factor
        slope, shift = -inverse * inverse * inverse * moment / float(size), -inverse * total / float(size)
        for c in range(channels):
            scale = inverse * load(w, c) if load(args, 2) != 0 else inverse
            gradient_row(g + c * L, x + c * L, y + c * L, L, mean, scale, slope, shift)
    return 0


@jit.inline
def sum_images(args, lo, hi, T, W):
    """Blocks [lo, hi) of LANES channels: sums over the rows of two [N, C] (0, 1) go to 2 and 3. args: 4-5 N, C."""
    N, C = load(args, 4), load(args, 5)
    for block in range(lo, hi):
        c = block * LANES
        for which in range(2):
            parts, y = sum_ptr(load(args, which), T), ptr(load(args, 2 + which), W)
            total = vload_first(parts, c, LANES, C - c)
            for n in range(1, N):
                total = total + vload_first(parts, n * C + c, LANES, C - c)
            vstore_first(y, c, total, C - c)
    return 0
