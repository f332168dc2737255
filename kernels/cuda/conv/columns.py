"""Convolutions as products: columns of an input, a row of places for each tap, and the sums of such columns.

The columns of an image are as many times larger than it as a window has taps, but they are written once in vectors of
16 bytes and read once by the copy engine: 3 x 3 of 32 x 64 x 56 x 56 took 7.9 ms as sums of their definition.
"""

from numba import types

from ...blocks.cuda import BIAS, COLUMNS, FOLDED
from ...build import jit
from ...lang.by_type import by_type
from ...lang.ptx import thread, threads
from ...lang.simd import load, ptr, ramp, select, store, vpick, vstore_aligned
from ..block import vector, width, write
from ..gemm.wgmma import ratio

I32 = types.int32


@by_type
def numbers(p):
    """0, 1, ... in int32, over the lanes of 16 bytes."""
    lanes = 16 // max(1, p.dtype.bitwidth // 8)
    return lambda p: ramp(0, I32, lanes)


@jit.inline
def places_from(p, first, width_of_row):
    """(rows, columns) of neighbouring places of a plane from `first` on, over the lanes of 16 bytes of a pointer.

    One division for all lanes; those that pass the end of the row are moved to the next one.
    """
    start = ratio(first, width_of_row)
    left = first - start * width_of_row
    row, column = numbers(p) * 0 + start, numbers(p) + left
    for _ in range(ratio(left + width(p) - 1, width_of_row)):
        over = column >= width_of_row
        row, column = select(over, row + 1, row), select(over, column - width_of_row, column)
    return row, column


@jit.inline
def columns(args, lo, hi, E):
    """Vectors [lo, hi) of places, of all channels, for all taps; elements are unsigned integers of their size.

    Where `span` is more than the places of an image, the rest of the span is 0; where it is just as many, a vector may
    begin in one image and end in the next.
    """
    x_h, x_w, y_h, y_w = (
        load(args, COLUMNS.x_h), load(args, COLUMNS.x_w), load(args, COLUMNS.y_h), load(args, COLUMNS.y_w),
    )  # fmt: skip
    kernel_h, kernel_w = load(args, COLUMNS.kernel_h), load(args, COLUMNS.kernel_w)
    gap_h, gap_w = load(args, COLUMNS.gap_h), load(args, COLUMNS.gap_w)
    vectors, span, row_step = load(args, COLUMNS.vectors), load(args, COLUMNS.span), load(args, COLUMNS.row_step)
    for item in range(lo, hi):
        channel = ratio(item, vectors)
        first = (item - channel * vectors) * width(ptr(load(args, COLUMNS.y), E))
        image = ratio(first, span)
        first -= image * span
        x = ptr(load(args, COLUMNS.x), E) + (image * load(args, COLUMNS.x_image) + channel * x_h * x_w)
        y = ptr(load(args, COLUMNS.y), E) + (
            image * load(args, COLUMNS.image_step) + channel * kernel_h * kernel_w * row_step + first
        )
        i, j = places_from(x, first, y_w)
        further = numbers(x) * 0  # images
        if span == y_h * y_w:
            for _ in range(ratio(ratio(first, y_w) + width(x), y_h)):
                over = i >= y_h
                i, further = select(over, i - y_h, i), select(over, further + 1, further)
        valid = (i < y_h) & (further < load(args, COLUMNS.images) - image)
        top = i * load(args, COLUMNS.stride_h) - load(args, COLUMNS.pad_h)
        left = j * load(args, COLUMNS.stride_w) - load(args, COLUMNS.pad_w)
        at = further * load(args, COLUMNS.x_image) + top * x_w + left
        for a in range(kernel_h):
            down = top + a * gap_h
            meets = valid & (down >= 0) & (down < x_h)
            for b in range(kernel_w):
                along = left + b * gap_w
                inside = meets & (along >= 0) & (along < x_w)
                vstore_aligned(y, 0, vpick(x, at + (a * gap_h * x_w + b * gap_w), inside))
                y = y + row_step
    return 0


@jit.inline
def fold(args, lo, hi, T, A):
    """Elements [lo, hi) of x [n, c, *]: the sums of what columns y [n, c, taps, places] of type A have of them."""
    x_h, x_w, y_h, y_w = (
        load(args, FOLDED.x_h), load(args, FOLDED.x_w), load(args, FOLDED.y_h), load(args, FOLDED.y_w),
    )  # fmt: skip
    kernel_h, kernel_w = load(args, FOLDED.kernel_h), load(args, FOLDED.kernel_w)
    for index in range(lo, hi):
        plane = index // (x_h * x_w)
        place = index - plane * x_h * x_w
        i = ratio(place, x_w)
        j, total = place - i * x_w, A(0)
        y = ptr(load(args, FOLDED.y), A) + plane * kernel_h * kernel_w * y_h * y_w
        for a in range(kernel_h):
            down = i + load(args, FOLDED.pad_h) - a * load(args, FOLDED.gap_h)
            row = ratio(max(0, down), load(args, FOLDED.stride_h))
            if row * load(args, FOLDED.stride_h) == down and row < y_h:
                for b in range(kernel_w):
                    along = j + load(args, FOLDED.pad_w) - b * load(args, FOLDED.gap_w)
                    column = ratio(max(0, along), load(args, FOLDED.stride_w))
                    if column * load(args, FOLDED.stride_w) == along and column < y_w:
                        total += load(y, ((a * kernel_w + b) * y_h + row) * y_w + column)
        store(ptr(load(args, FOLDED.x), T), index, total)
    return 0


@jit.inline
def bias(args, lo, hi, T):
    """Plane number `lo` of the result [n, m, places] before the products: the bias of its channel."""
    channels, places = load(args, BIAS.channels), load(args, BIAS.length)
    y = ptr(load(args, BIAS.y), T) + lo * places
    value = vector(y, load(ptr(load(args, BIAS.bias), T), lo - ratio(lo, channels) * channels))
    for i in range(thread() * width(y), places, threads() * width(y)):
        write(y, i, value, places - i)
    return 0
