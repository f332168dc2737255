"""Convolutions as their definition says, where groups are small or there is little to do.

A thread sums up 16 bytes of a plane of the result, or an element of the gradient of an input that was stepped over, or
a block an element of the weight.
"""

from ...blocks.cuda import CONV, CONV_WEIGHT, PLANES
from ...build import jit
from ...lang.ptx import thread, threads
from ...lang.simd import load, muladd, ptr, store, vpick
from ..block import block_sum, vector, width, write
from ..gemm.wgmma import ratio
from .columns import places_from


@jit.inline
def planes(args, lo, hi, T):
    """Vectors [lo, hi) of places of y [n, outputs, *], each the sum of the few planes of x of its group."""
    x_h, x_w, y_h, y_w = (
        load(args, PLANES.x_h), load(args, PLANES.x_w), load(args, PLANES.y_h), load(args, PLANES.y_w),
    )  # fmt: skip
    kernel_h, kernel_w = load(args, PLANES.kernel_h), load(args, PLANES.kernel_w)
    gap_h, gap_w = load(args, PLANES.gap_h), load(args, PLANES.gap_w)
    inputs, outputs, groups = load(args, PLANES.inputs), load(args, PLANES.outputs), load(args, PLANES.groups)
    for index in range(lo, hi):
        plane = index // load(args, PLANES.vectors)
        first = (index - plane * load(args, PLANES.vectors)) * width(ptr(load(args, PLANES.y), T))
        image = plane // (groups * outputs)
        channel = plane - image * groups * outputs
        group = ratio(channel, outputs)
        x = ptr(load(args, PLANES.x), T) + (image * groups + group) * inputs * x_h * x_w
        weight = ptr(load(args, PLANES.weight), T) + (
            group * load(args, PLANES.of_group) + (channel - group * outputs) * load(args, PLANES.of_output)
        )
        i, j = places_from(x, first, y_w)
        top = i * load(args, PLANES.stride_h) - load(args, PLANES.pad_h)
        left = j * load(args, PLANES.stride_w) - load(args, PLANES.pad_w)
        at, valid, total = top * x_w + left, i < y_h, vector(x, 0.0)
        for _ in range(inputs):
            for a in range(kernel_h):
                down = top + a * gap_h
                meets = valid & (down >= 0) & (down < x_h)
                for b in range(kernel_w):
                    along = left + b * gap_w
                    inside = meets & (along >= 0) & (along < x_w)
                    value = vpick(x, at + (a * gap_h * x_w + b * gap_w), inside)
                    total = muladd(value, load(weight, a * kernel_w + b), total)
            x, weight = x + x_h * x_w, weight + load(args, PLANES.of_input)
        if load(args, PLANES.bias) != 0:
            total = total + load(ptr(load(args, PLANES.bias), T), channel)
        write(ptr(load(args, PLANES.y), T) + plane * y_h * y_w, first, total, y_h * y_w - first)
    return 0


@jit.inline
def backward(args, lo, hi, T, A):
    """Elements [lo, hi) of the gradient y [n, c, *] of the input, from the gradient x [n, m, *] of the result."""
    groups = load(args, CONV.groups)
    c, m = load(args, CONV.c) // groups, load(args, CONV.m) // groups
    x_h, x_w, y_h, y_w = load(args, CONV.x_h), load(args, CONV.x_w), load(args, CONV.y_h), load(args, CONV.y_w)
    kernel_h, kernel_w = load(args, CONV.kernel_h), load(args, CONV.kernel_w)
    stride_h, stride_w = load(args, CONV.stride_h), load(args, CONV.stride_w)
    g, weights = ptr(load(args, CONV.x), T), ptr(load(args, CONV.weight), T)
    for index in range(lo, hi):
        j, rest = index % x_w, index // x_w
        i, rest = rest % x_h, rest // x_h
        channel, image = rest % (c * groups), rest // (c * groups)
        group, total = channel // c, A(0)
        for k in range(group * m, (group + 1) * m):
            weight = weights + (k * c + channel - group * c) * kernel_h * kernel_w
            for a in range(kernel_h):
                down = i + load(args, CONV.pad_h) - a * load(args, CONV.gap_h)
                row = down // stride_h
                if down >= 0 and row * stride_h == down and row < y_h:
                    for b in range(kernel_w):
                        along = j + load(args, CONV.pad_w) - b * load(args, CONV.gap_w)
                        column = along // stride_w
                        if along >= 0 and column * stride_w == along and column < y_w:
                            at = ((image * m * groups + k) * y_h + row) * y_w + column
                            total += A(load(weight, a * kernel_w + b)) * A(load(g, at))
        store(ptr(load(args, CONV.y), T), index, total)
    return 0


@jit.inline
def weight(args, lo, hi, T, A):
    """Element `lo` of the gradient of the weight: a sum over all images and places, by a block."""
    groups = load(args, CONV_WEIGHT.groups)
    c, m = load(args, CONV_WEIGHT.c) // groups, load(args, CONV_WEIGHT.m)
    x_h, x_w = load(args, CONV_WEIGHT.x_h), load(args, CONV_WEIGHT.x_w)
    y_h, y_w = load(args, CONV_WEIGHT.y_h), load(args, CONV_WEIGHT.y_w)
    kernel_h, kernel_w = load(args, CONV_WEIGHT.kernel_h), load(args, CONV_WEIGHT.kernel_w)
    b, rest = lo % kernel_w, lo // kernel_w
    a, rest = rest % kernel_h, rest // kernel_h
    k, channel = rest % c, rest // c
    first = channel // (m // groups) * c
    x, g, total = ptr(load(args, CONV_WEIGHT.x), T), ptr(load(args, CONV_WEIGHT.g), T), A(0)
    for place in range(thread(), load(args, CONV_WEIGHT.images) * y_h * y_w, threads()):
        j, rest = place % y_w, place // y_w
        i, image = rest % y_h, rest // y_h
        row = i * load(args, CONV_WEIGHT.stride_h) - load(args, CONV_WEIGHT.pad_h) + a * load(args, CONV_WEIGHT.gap_h)
        column = (
            j * load(args, CONV_WEIGHT.stride_w) - load(args, CONV_WEIGHT.pad_w) + b * load(args, CONV_WEIGHT.gap_w)
        )
        if 0 <= row < x_h and 0 <= column < x_w:
            value = A(load(g, ((image * m + channel) * y_h + i) * y_w + j))
            total += value * A(load(x, ((image * c * groups + first + k) * x_h + row) * x_w + column))
    total = block_sum(total)
    if thread() == 0:
        store(ptr(load(args, CONV_WEIGHT.dw), T), lo, total)
    return 0
