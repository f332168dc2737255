"""Convolutions as products: columns of an input, a row of places for each tap, and the sums of such columns.

The columns of an image are as many times larger than it as a window has taps, but they are written once in vectors of
16 bytes and read once by the copy engine: 3 x 3 of 32 x 64 x 56 x 56 took 7.9 ms as sums of their definition.
"""

from numba import types

from ...blocks.cuda import BANDS, BIAS, COLUMNS, FOLDED
from ...build import jit
from ...lang.ptx import thread, threads
from ...lang.simd import bitcast, fill, load, ptr, ramp, select, store, vpick, vstore_aligned
from ..block import vector, width, write
from ..gemm.wgmma import ratio

I32, U32, I64 = types.int32, types.uint32, types.int64


@jit.inline
def places_from(first, width_of_row, N):
    """(rows, columns) of N neighbouring places of a plane from `first` on, as int32.

    One division for all of them; those that pass the end of the row are moved to the next one.
    """
    start = ratio(first, width_of_row)
    left = first - start * width_of_row
    row, column = fill(start, I32, N), ramp(left, I32, N)
    for _ in range(ratio(left + N - 1, width_of_row)):
        over = column >= width_of_row
        row, column = select(over, row + 1, row), select(over, column - width_of_row, column)
    return row, column


@jit.inline
def within(x, size):
    """Whether lanes of int32 lie in [0, size): one comparison."""
    return bitcast(x, U32) < size


@jit.inline
def columns(args, lo, hi, E, N):
    """N places of a channel for each of [lo, hi), for all taps; elements are unsigned integers of their size.

    Where `span` is more than the places of an image, the rest of the span is 0; where it is just as many, the places
    may begin in one image and end in the next.
    """
    x_h, x_w, y_h, y_w = (
        load(args, COLUMNS.x_h), load(args, COLUMNS.x_w), load(args, COLUMNS.y_h), load(args, COLUMNS.y_w),
    )  # fmt: skip
    kernel_h, kernel_w = load(args, COLUMNS.kernel_h), load(args, COLUMNS.kernel_w)
    gap_h, gap_w = load(args, COLUMNS.gap_h), load(args, COLUMNS.gap_w)
    vectors, span, row_step = load(args, COLUMNS.vectors), load(args, COLUMNS.span), load(args, COLUMNS.row_step)
    for item in range(lo, hi):
        channel = ratio(item, vectors)
        first = (item - channel * vectors) * N
        image = ratio(first, span)
        first -= image * span
        x = ptr(load(args, COLUMNS.x), E) + (image * load(args, COLUMNS.x_image) + channel * x_h * x_w)
        y = ptr(load(args, COLUMNS.y), E) + (
            image * load(args, COLUMNS.image_step) + channel * kernel_h * kernel_w * row_step + first
        )
        i, j = places_from(first, y_w, N)
        further = fill(0, I32, N)  # images
        if span == y_h * y_w:
            for _ in range(ratio(ratio(first, y_w) + N, y_h)):
                over = i >= y_h
                i, further = select(over, i - y_h, i), select(over, further + 1, further)
        valid = (i < y_h) & (further < load(args, COLUMNS.images) - image)
        top = i * load(args, COLUMNS.stride_h) - load(args, COLUMNS.pad_h)
        left = j * load(args, COLUMNS.stride_w) - load(args, COLUMNS.pad_w)
        at = further * load(args, COLUMNS.x_image) + top * x_w + left
        for a in range(kernel_h):
            meets = valid & within(top + a * gap_h, x_h)
            for b in range(kernel_w):
                inside = meets & within(left + b * gap_w, x_w)
                vstore_aligned(y, 0, vpick(x, at + (a * gap_h * x_w + b * gap_w), inside))
                y = y + row_step
    return 0


@jit.inline
def join_bands(args, lo, hi, T):
    """Elements [lo, hi) of the gradient of the weight: the sums of parts, which have a row of the window each."""
    kernel_h, kernel_w, splits = load(args, BANDS.kernel_h), load(args, BANDS.kernel_w), load(args, BANDS.splits)
    line = load(args, BANDS.channels) * kernel_w
    size, sums = load(args, BANDS.rows) * line, ptr(load(args, BANDS.sums), T)
    for index in range(lo, hi):
        pair = ratio(index, kernel_w)
        channel = ratio(pair, kernel_h)
        row, a = ratio(channel, load(args, BANDS.channels)), pair - channel * kernel_h
        place = row * line + (channel - row * load(args, BANDS.channels)) * kernel_w + index - pair * kernel_w
        total = T(0)
        for image in range(load(args, BANDS.images)):
            part = sums + ((image * kernel_h + a) * splits * size + place)
            for first in range(0, splits, 8):
                for i in range(8):  # whose loads are on their way at once
                    one = load(part, min(first + i, splits - 1) * size)
                    total = total + one if first + i < splits else total
        store(ptr(load(args, BANDS.dw), T), index, total)
    return 0


@jit.inline
def first_tap(x, gap, period, S):
    """(the first tap that a step of S may have brought to place x of a dim, its window); `period` if there is none.

    `x` counts from where the first window begins; from then on every tap number `period` is another one.
    """
    for tap in range(period):
        window = (x - tap * gap) // S
        if window * S == x - tap * gap:
            return tap, window
    return 1 << 30, I64(0)


@jit.inline
def fold(args, lo, hi, T, A, S_H, S_W):
    """Elements [lo, hi) of x [n, c, *]: the sums of what columns y [n, c, taps, places] of type A have of them.

    S_H and S_W are the steps of windows; taps that meet a place are `period` apart, and their windows `jump`.
    """
    x_h, x_w, y_h, y_w = (
        load(args, FOLDED.x_h), load(args, FOLDED.x_w), load(args, FOLDED.y_h), load(args, FOLDED.y_w),
    )  # fmt: skip
    kernel_h, kernel_w = load(args, FOLDED.kernel_h), load(args, FOLDED.kernel_w)
    period_h, period_w = load(args, FOLDED.period_h), load(args, FOLDED.period_w)
    for index in range(lo, hi):
        plane = index // (x_h * x_w)
        place = index - plane * (x_h * x_w)
        i = ratio(place, x_w)
        j, total = place - i * x_w, A(0)
        a, row = first_tap(i + load(args, FOLDED.pad_h), load(args, FOLDED.gap_h), period_h, S_H)
        start, far = first_tap(j + load(args, FOLDED.pad_w), load(args, FOLDED.gap_w), period_w, S_W)
        y = ptr(load(args, FOLDED.y), A) + plane * kernel_h * kernel_w * y_h * y_w
        while a < kernel_h:
            if 0 <= row < y_h:
                b, column = start, far
                at = (a * kernel_w + b) * y_h * y_w + row * y_w + column
                while b < kernel_w:
                    if 0 <= column < y_w:
                        total += load(y, at)
                    b += period_w
                    column -= load(args, FOLDED.jump_w)
                    at += period_w * y_h * y_w - load(args, FOLDED.jump_w)
            a += period_h
            row -= load(args, FOLDED.jump_h)
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
