"""Convolutions as their definition says, where groups are small or there is little to do.

A thread sums up neighbouring places of a plane of the result, or a block one element of the weight.
"""

from numba import types

from ...blocks.cuda import CONV_WEIGHT, PLANES
from ...build import jit
from ...lang.ptx import thread, threads
from ...lang.simd import bitcast, fill, load, muladd, ptr, reduce_add, store, vpick
from ..block import block_sum, read, write
from ..gemm.wgmma import ratio
from .columns import places_from, within

I32, U32 = types.int32, types.uint32


@jit.inline
def step_of(x, size, S):
    """(which of [0, size) places x are, if steps of S lead to them; whether they do)."""
    if S == 1:
        return x, within(x, size)
    whole = bitcast(x, U32) // S
    return bitcast(whole, I32), (whole * S == bitcast(x, U32)) & (whole < size)


@jit.inline
def planes(args, lo, hi, T, A, N, S_H, S_W):
    """N places of y [n, outputs, *] for each of [lo, hi), each the sum of the few planes of x of its group.

    S_H and S_W: how far apart the elements of x lie for a window (the gradient of an input that windows step over).
    """
    x_h, x_w, y_h, y_w = (
        load(args, PLANES.x_h), load(args, PLANES.x_w), load(args, PLANES.y_h), load(args, PLANES.y_w),
    )  # fmt: skip
    kernel_h, kernel_w = load(args, PLANES.kernel_h), load(args, PLANES.kernel_w)
    gap_h, gap_w = load(args, PLANES.gap_h), load(args, PLANES.gap_w)
    inputs, outputs, groups = load(args, PLANES.inputs), load(args, PLANES.outputs), load(args, PLANES.groups)
    for index in range(lo, hi):
        plane = index // load(args, PLANES.vectors)
        first = (index - plane * load(args, PLANES.vectors)) * N
        image = plane // (groups * outputs)
        channel = plane - image * groups * outputs
        group = ratio(channel, outputs)
        x = ptr(load(args, PLANES.x), T) + (image * groups + group) * inputs * x_h * x_w
        weight = ptr(load(args, PLANES.weight), T) + (
            group * load(args, PLANES.of_group) + (channel - group * outputs) * load(args, PLANES.of_output)
        )
        i, j = places_from(first, y_w, N)
        top = i * load(args, PLANES.stride_h) - load(args, PLANES.pad_h)
        left = j * load(args, PLANES.stride_w) - load(args, PLANES.pad_w)
        valid, total = i < y_h, fill(0.0, A, N)
        for _ in range(inputs):
            for a in range(kernel_h):
                row, meets = step_of(top + a * gap_h, x_h, S_H)
                meets, start = meets & valid, row * x_w
                for b in range(kernel_w):
                    column, inside = step_of(left + b * gap_w, x_w, S_W)
                    value = vpick(x, start + column, meets & inside)
                    total = muladd(value, load(weight, a * kernel_w + b), total)
            x, weight = x + x_h * x_w, weight + load(args, PLANES.of_input)
        if load(args, PLANES.bias) != 0:
            total = total + load(ptr(load(args, PLANES.bias), T), channel)
        write(ptr(load(args, PLANES.y), T) + plane * y_h * y_w, first, total, y_h * y_w - first)
    return 0


@jit.inline
def weight(args, lo, hi, T, A, N):
    """Element `lo` of the gradient of the weight: a sum over all images and places, N at a time, by a block."""
    groups = load(args, CONV_WEIGHT.groups)
    c, m = load(args, CONV_WEIGHT.c) // groups, load(args, CONV_WEIGHT.m)
    x_h, x_w = load(args, CONV_WEIGHT.x_h), load(args, CONV_WEIGHT.x_w)
    y_h, y_w = load(args, CONV_WEIGHT.y_h), load(args, CONV_WEIGHT.y_w)
    kernel_h, kernel_w = load(args, CONV_WEIGHT.kernel_h), load(args, CONV_WEIGHT.kernel_w)
    b, rest = lo % kernel_w, lo // kernel_w
    a, rest = rest % kernel_h, rest // kernel_h
    k, channel = rest % c, rest // c
    plane = channel // (m // groups) * c + k
    down = load(args, CONV_WEIGHT.pad_h) - a * load(args, CONV_WEIGHT.gap_h)
    along = load(args, CONV_WEIGHT.pad_w) - b * load(args, CONV_WEIGHT.gap_w)
    vectors, total = load(args, CONV_WEIGHT.vectors), fill(0.0, A, N)
    for item in range(thread(), load(args, CONV_WEIGHT.images) * vectors, threads()):
        image = item // vectors
        first = (item - image * vectors) * N
        i, j = places_from(first, y_w, N)
        row, column = i * load(args, CONV_WEIGHT.stride_h) - down, j * load(args, CONV_WEIGHT.stride_w) - along
        g = ptr(load(args, CONV_WEIGHT.g), T) + (image * m + channel) * y_h * y_w
        x = ptr(load(args, CONV_WEIGHT.x), T) + (image * c * groups + plane) * x_h * x_w
        value = vpick(x, row * x_w + column, within(row, x_h) & within(column, x_w))
        total = muladd(value, read(g, first, y_h * y_w - first, total), total)
    found = block_sum(reduce_add(total))
    if thread() == 0:
        store(ptr(load(args, CONV_WEIGHT.dw), T), lo, found)
    return 0
