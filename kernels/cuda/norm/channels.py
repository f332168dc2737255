"""Batch norm and group norm of [N, C, L], and their gradients (formulas: `kernels/cpu/norm/channels.py`).

A unit, the elements that share statistics, is a channel's (a run of L elements of each image) or a group's (one run). A
warp has a short unit, a block a longer one; later passes find it in the second-level cache. An item a thread, as the
CPU's kernels go, 32 images of 64 x 56 x 56 took 18.5 ms, 170 times as long as PyTorch.
"""

import math

from numba import types

from ...blocks.channels import BATCH, BATCH_GRAD, GROUP, GROUP_GRAD
from ...build import jit
from ...cpu.gemm.microkernel import sum_ptr
from ...cpu.norm.channels import factor_of
from ...lang.by_type import by_type
from ...lang.ptx import WARP, barrier, block, blocks, from_lane, shared, thread, threads
from ...lang.simd import address, bitcast, load, muladd, ptr, reduce_add, store, vload_aligned, vstore_aligned
from ..block import SHORT, across, add, number, share_rows, vector, width
from ..gemm.wgmma import ratio
from .rows import first_of

F64, I64 = types.float64, types.int64
TOGETHER = 4  # channels of one element an image that a block takes at once: alone, each would read 32 bytes for 4
SUMS_BYTES = 16 * TOGETHER * 8  # of 16 warps
TINY = 16  # elements of a channel that a thread goes through


@by_type
def fetch(p, i, like):
    """As many elements from `i` on as `like` has lanes."""
    lanes = like.lanes
    return lambda p, i, like: vload_aligned(p, i, lanes)


@by_type
def lanes_of(like):
    """How many lanes a vector has."""
    lanes = like.lanes
    return lambda like: lanes


@by_type
def sum_over(v, team):
    """The sum of a number of each thread of a team; of neighbours' teams, (own number, members, TOGETHER)."""
    dtype = v
    if len(team) == 2:
        return lambda v, team: across(v, add, team[1])

    def implementation(v, team):
        for apart in (4, 8, 16):
            v += from_lane(v, apart)
        parts, own = ptr(shared(SUMS_BYTES), dtype), thread() % TOGETHER
        if thread() % WARP < TOGETHER:
            store(parts, thread() // WARP * TOGETHER + own, v)
        barrier()
        v = load(parts, own)
        for k in range(1, threads() // WARP):
            v += load(parts, k * TOGETHER + own)
        barrier()
        return v

    return implementation


@jit.inline
def even(x, y, z, length):
    """Whether runs of `length` elements of three arrays are whole vectors of 16 bytes."""
    return length % width(x) == 0 and (address(x) | address(y) | address(z)) & 15 == 0


@jit.inline
def over(unit, like, team, state, add):
    """`state` after `add(state, place, like)` for the vectors of this thread, four of which are read before the next.

    `unit`: (elements, length of a run, elements between one run's end and the next one's beginning).
    """
    count, length, gap = unit
    i, apart = team[0] * lanes_of(like), team[1] * lanes_of(like)
    while i + 3 * apart < count:
        a, b, c, d = i, i + apart, i + 2 * apart, i + 3 * apart
        if gap != 0:
            a, b = a + ratio(a, length) * gap, b + ratio(b, length) * gap
            c, d = c + ratio(c, length) * gap, d + ratio(d, length) * gap
        state = add(add(add(add(state, a, like), b, like), c, like), d, like)
        i += 4 * apart
    while i < count:
        state = add(state, i + ratio(i, length) * gap, like)
        i += apart
    return state


@jit.inline
def add_distances(state, place, like):
    total, x, first = state
    return total + (fetch(x, place, like) - first), x, first


@jit.inline
def add_squares(state, place, like):
    total, x, mean = state
    v = fetch(x, place, like) - mean
    return muladd(v, v, total), x, mean


@jit.inline
def add_products(state, place, like):
    """Of the gradient, and of it times differences from the mean."""
    total, moment, g, x, mean = state
    v = fetch(g, place, like)
    return total + v, muladd(v, fetch(x, place, like) - mean, moment), g, x, mean


@jit.inline
def mean_and_variance(x, unit, like, team):
    """Of a unit, in two passes: E[x^2] - mean^2 cancels."""
    first = first_of(x, unit[0])
    distances = over(unit, like, team, (like, x, like + first), add_distances)[0]
    mean = first + F64(sum_over(reduce_add(distances), team)) / float(unit[0])
    total = over(unit, like, team, (like, x, like + mean), add_squares)[0]
    return mean, sum_over(reduce_add(total), team) / float(unit[0])


@jit.inline
def own_sums(g, x, unit, mean, like, team):
    """This thread's share of (sum of g, sum of g (x - mean)) over a unit or a run."""
    state = over(unit, like, team, (like, like, g, x, like + mean), add_products)
    return reduce_add(state[0]), reduce_add(state[1])


@jit.inline
def gradient_sums(g, x, unit, mean, like, team):
    """The same of all threads of a team."""
    total, moment = own_sums(g, x, unit, mean, like, team)
    return F64(sum_over(total, team)), F64(sum_over(moment, team))


@jit.inline
def scale_element(state, place, like):
    x, y, mean, scale, shift = state
    vstore_aligned(y, place, muladd(fetch(x, place, like) - mean, scale, shift))
    return state


@jit.inline
def gradient_element(state, place, like):
    g, x, dx, mean, scale, slope, shift = state
    v = muladd(fetch(x, place, like) - mean, slope, shift)
    vstore_aligned(dx, place, muladd(fetch(g, place, like), scale, v))
    return state


@jit.inline
def batch_channel(args, c, unit, like, team, T, W, B, R, TRAINING):
    """A channel of batch norm."""
    x, y = ptr(load(args, BATCH.x), T) + c * unit[1], ptr(load(args, BATCH.y), T) + c * unit[1]
    momentum, count = bitcast(load(args, BATCH.momentum), F64), float(unit[0])
    running_mean, running_var = ptr(load(args, BATCH.running_mean), R), ptr(load(args, BATCH.running_var), R)
    if TRAINING:
        mean, variance = mean_and_variance(x, unit, like, team)
        if load(args, BATCH.running_mean) != 0 and team[0] == 0:
            store(running_mean, c, load(running_mean, c) * (1.0 - momentum) + mean * momentum)
            unbiased = variance * (count / (count - 1.0))
            store(running_var, c, load(running_var, c) * (1.0 - momentum) + unbiased * momentum)
    else:
        mean, variance = F64(load(running_mean, c)), F64(load(running_var, c))
    inverse = 1.0 / math.sqrt(variance + bitcast(load(args, BATCH.eps), F64))
    if team[0] == 0:
        store(sum_ptr(load(args, BATCH.mean), T), c, mean)
        store(sum_ptr(load(args, BATCH.inverse), T), c, inverse)
    scale = like + inverse * factor_of(load(args, BATCH.w), W, c, 1.0)
    over(unit, like, team, (x, y, like + mean, scale, like + factor_of(load(args, BATCH.b), B, c, 0.0)), scale_element)


@jit.inline
def batch_norm(args, lo, hi, T, W, B, R, TRAINING):
    """All channels."""
    length, x, y = load(args, BATCH.length), ptr(load(args, BATCH.x), T), ptr(load(args, BATCH.y), T)
    unit = load(args, BATCH.n) * length, length, (load(args, BATCH.c) - 1) * length
    if length == 1 and hi % TOGETHER == 0:
        team, own = (thread() // TOGETHER, threads() // TOGETHER, I64(TOGETHER)), thread() % TOGETHER
        for c in range(block() * TOGETHER, hi, blocks() * TOGETHER):
            batch_channel(args, c + own, unit, number(x, 0.0), team, T, W, B, R, TRAINING)
        return 0
    first, step, team = share_rows(x, unit[0])
    for c in range(first, hi, step):
        if even(x, x, y, length):
            batch_channel(args, c, unit, vector(x, 0.0), team, T, W, B, R, TRAINING)
        else:
            batch_channel(args, c, unit, number(x, 0.0), team, T, W, B, R, TRAINING)
    return 0


@jit.inline
def batch_channel_backward(args, c, unit, like, team, T, W, TRAINING):
    """A channel of the gradient of batch norm."""
    g, x = ptr(load(args, BATCH_GRAD.g), T) + c * unit[1], ptr(load(args, BATCH_GRAD.x), T) + c * unit[1]
    dx = ptr(load(args, BATCH_GRAD.dx), T) + c * unit[1]
    mean = F64(load(sum_ptr(load(args, BATCH_GRAD.mean), T), c))
    inverse = F64(load(sum_ptr(load(args, BATCH_GRAD.inverse), T), c))
    total, moment = gradient_sums(g, x, unit, mean, like, team)
    if team[0] == 0:
        store(ptr(load(args, BATCH_GRAD.dw), W), c, moment * inverse)
        store(ptr(load(args, BATCH_GRAD.db), W), c, total)
    scale, slope, shift = inverse * factor_of(load(args, BATCH_GRAD.w), W, c, 1.0), 0.0, 0.0
    if TRAINING:
        slope, shift = -scale * inverse * inverse * moment / float(unit[0]), -scale * total / float(unit[0])
    state = g, x, dx, like + mean, like + scale, like + slope, like + shift
    over(unit, like, team, state, gradient_element)


@jit.inline
def batch_norm_backward(args, lo, hi, T, W, TRAINING):
    """All channels."""
    length, x = load(args, BATCH_GRAD.length), ptr(load(args, BATCH_GRAD.x), T)
    g, dx = ptr(load(args, BATCH_GRAD.g), T), ptr(load(args, BATCH_GRAD.dx), T)
    unit = load(args, BATCH_GRAD.n) * length, length, (load(args, BATCH_GRAD.c) - 1) * length
    if length == 1 and hi % TOGETHER == 0:
        team, own = (thread() // TOGETHER, threads() // TOGETHER, I64(TOGETHER)), thread() % TOGETHER
        for c in range(block() * TOGETHER, hi, blocks() * TOGETHER):
            batch_channel_backward(args, c + own, unit, number(x, 0.0), team, T, W, TRAINING)
        return 0
    first, step, team = share_rows(x, unit[0])
    for c in range(first, hi, step):
        if even(g, x, dx, length):
            batch_channel_backward(args, c, unit, vector(x, 0.0), team, T, W, TRAINING)
        else:
            batch_channel_backward(args, c, unit, number(x, 0.0), team, T, W, TRAINING)
    return 0


# ---- groups -------------------------------------------------------------------------------------


@jit.inline
def group_unit(args, unit, like, team, T, W, B):
    """A group of one image."""
    channels, length = load(args, GROUP.channels), load(args, GROUP.length)
    size = channels * length
    x, y = ptr(load(args, GROUP.x), T) + unit * size, ptr(load(args, GROUP.y), T) + unit * size
    mean, variance = mean_and_variance(x, (size, size, 0), like, team)
    inverse = 1.0 / math.sqrt(variance + bitcast(load(args, GROUP.eps), F64))
    if team[0] == 0:
        store(sum_ptr(load(args, GROUP.mean), T), unit, mean)
        store(sum_ptr(load(args, GROUP.inverse), T), unit, inverse)
    first, w, b = unit % load(args, GROUP.groups) * channels, load(args, GROUP.w), load(args, GROUP.b)
    for i in range(team[0] * lanes_of(like), size, team[1] * lanes_of(like)):
        c = first + ratio(i, length)
        scale, shift = like + inverse * factor_of(w, W, c, 1.0), like + factor_of(b, B, c, 0.0)
        vstore_aligned(y, i, muladd(fetch(x, i, like) - (like + mean), scale, shift))


@jit.inline
def group_norm(args, lo, hi, T, W, B):
    """The groups of all images."""
    length, x, y = load(args, GROUP.length), ptr(load(args, GROUP.x), T), ptr(load(args, GROUP.y), T)
    first, step, team = share_rows(x, load(args, GROUP.channels) * length)
    for unit in range(first, hi, step):
        if even(x, x, y, length):
            group_unit(args, unit, vector(x, 0.0), team, T, W, B)
        else:
            group_unit(args, unit, number(x, 0.0), team, T, W, B)
    return 0


@jit.inline
def group_unit_backward(args, unit, like, team, T, W):
    """A group of the gradient of group norm; `dw` and `db` are parts, those of each image."""
    channels, length = load(args, GROUP_GRAD.channels), load(args, GROUP_GRAD.length)
    size, w, first = channels * length, load(args, GROUP_GRAD.w), unit % load(args, GROUP_GRAD.groups) * channels
    g, x = ptr(load(args, GROUP_GRAD.g), T) + unit * size, ptr(load(args, GROUP_GRAD.x), T) + unit * size
    dx = ptr(load(args, GROUP_GRAD.dx), T) + unit * size
    dw = sum_ptr(load(args, GROUP_GRAD.dw), T) + unit * channels
    db = sum_ptr(load(args, GROUP_GRAD.db), T) + unit * channels
    mean = F64(load(sum_ptr(load(args, GROUP_GRAD.mean), T), unit))
    inverse = F64(load(sum_ptr(load(args, GROUP_GRAD.inverse), T), unit))
    # A short channel is a warp's, as a short unit is: the warps of a block share the channels out. A tiny one is a
    # thread's.
    short, tiny = length <= SHORT, length <= TINY
    own = (team[0] % WARP, I64(WARP)) if short else team
    start, step = (team[0] // WARP, team[1] // WARP) if short else (I64(0), I64(1))
    if tiny:
        own, start, step = (I64(0), I64(1)), I64(team[0]), I64(team[1])
    total, moment = 0.0, 0.0
    for c in range(start, channels, step):
        run = length, length, 0
        if tiny:
            few = own_sums(g + c * length, x + c * length, run, mean, like, own)
            one, two = F64(few[0]), F64(few[1])
        else:
            one, two = gradient_sums(g + c * length, x + c * length, run, mean, like, own)
        if own[0] == 0:
            store(dw, c, two * inverse)
            store(db, c, one)
        factor = factor_of(w, W, first + c, 1.0)
        total, moment = total + one * factor, moment + two * factor
    if short:
        total, moment = (total, moment) if own[0] == 0 else (0.0, 0.0)
        total, moment = sum_over(total, team), sum_over(moment, team)
    slope, shift = like - inverse * inverse * inverse * moment / float(size), like - inverse * total / float(size)
    for i in range(team[0] * lanes_of(like), size, team[1] * lanes_of(like)):
        scale = like + inverse * factor_of(w, W, first + ratio(i, length), 1.0)
        v = muladd(fetch(x, i, like) - (like + mean), slope, shift)
        vstore_aligned(dx, i, muladd(fetch(g, i, like), scale, v))


@jit.inline
def group_norm_backward(args, lo, hi, T, W):
    """The groups of all images."""
    length, x = load(args, GROUP_GRAD.length), ptr(load(args, GROUP_GRAD.x), T)
    g, dx = ptr(load(args, GROUP_GRAD.g), T), ptr(load(args, GROUP_GRAD.dx), T)
    first, step, team = share_rows(x, load(args, GROUP_GRAD.channels) * length)
    for unit in range(first, hi, step):
        if even(g, x, dx, length):
            group_unit_backward(args, unit, vector(x, 0.0), team, T, W)
        else:
            group_unit_backward(args, unit, number(x, 0.0), team, T, W)
    return 0
