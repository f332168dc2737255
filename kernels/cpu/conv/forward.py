"""Convolution of images [N, C, H, W] without patches: a blocked product that reads the padded image in place.

The image of a unit of work (a block of rows, all channels of a group) is copied once, padded, into rows of `pitch`
elements. On that grid a result lies at q = row * pitch + column, and the element (channel, tap) of its patch at
q + offset, so the matrix of patches never exists. Few channels of results are multiplied in tiles of channels by
vectors of q (`correlate`), where some columns of the grid are nobody's (of 28 with a kernel of 3: 7 %); many in tiles
of places by vectors of channels (`correlate_lanes`), transposed as they are stored. A stride s > 1 deals the input
into s x s phases, in each of which neighbouring results read neighbours; the gradient of the input (a transposed
convolution) has phases of results instead, each with its own taps. bfloat16 pairs (see microkernel.py) are pairs of
channels.

Sums run over channels and taps in one order, whatever the cut into units.
"""

from numba import types

from ...blocks.conv import IMAGE, PRODUCT, WEIGHT
from ...build import jit
from ...lang.by_type import by_type
from ...lang.rows import fill_row
from ...lang.shuffle import transpose_tile
from ...lang.simd import address, convert, load, ptr, stack, store, vload, vload_first, vstore_first
from ..gemm.microkernel import depth, is_pair, itemsize, lanes, lanes_of, panel_ptr, sum_ptr
from ..gemm.pack import load_unit, load_units, transpose_block
from .products import offset_product, row_product
from .sizes import SLACK_COLUMNS

TILE_BYTES = 64 * 64 + 256  # sums of a tile in whole vectors both ways, and what is read behind them
INT32, INT64, U16 = types.int32, types.int64, types.uint16


# ---- the weight --------------------------------------------------------------------------------


@jit.inline
def pack_weight(args, lo, hi, T):
    """Panels [lo, hi) of a weight: for each phase [channels (or pairs), taps, width], over the panels of all groups."""
    w, panels, pair = ptr(load(args, WEIGHT.weight), T), panel_ptr(load(args, WEIGHT.panels), T), depth(T)
    m_stride, c_stride, run = load(args, WEIGHT.m_stride), load(args, WEIGHT.c_stride), load(args, WEIGHT.run)
    M, C, per_group = load(args, WEIGHT.m), load(args, WEIGHT.c), load(args, WEIGHT.group_panels)
    phases, taps, width = load(args, WEIGHT.phases), load(args, WEIGHT.taps), load(args, WEIGHT.width)
    channels = (C + pair - 1) // pair
    for unit in range(lo, hi):
        group = unit // per_group
        first = (unit - group * per_group) * width
        source = w + (group * load(args, WEIGHT.group_stride) + first * m_stride)
        target = panels + unit * (channels * taps * width)
        if run > 0:
            pack_runs(target, source, C * taps, run, c_stride, m_stride, min(width, M - first), width, T)
            continue
        tap = 0
        for phase in range(phases):
            own = load(args, WEIGHT.table + phase)
            for c in range(channels):
                for t in range(tap, tap + own):
                    at = c * pair * c_stride + load(args, WEIGHT.table + phases + t)
                    for r in range(width):
                        if first + r < M:
                            value = load_unit(source, at + r * m_stride, c_stride, (c + 1) * pair <= C)
                            store(target, r, value)
                        else:
                            store(target, r, 0)
                    target = target + width
            tap += own
    return 0


@jit.inline
def pack_runs(target, source, total, run, run_stride, stride, valid, width, T):
    """target[k, r] = source[k // run * run_stride + k % run + r * stride] for k < `total`, r < `valid`.

    By squares in registers, whose lanes beyond `width` the next rows overwrite; the last rows one by one. One image of
    3 x 3 with a weight [512, 512, 3, 3] takes 1.8 ms so, element by element 3.9 (one core of Emerald Rapids).
    """
    count = lanes(T)
    groups = (width + count - 1) // count
    behind = count + (groups * count - 1) // width  # rows that a square may write to
    for start in range(0, total, run):
        place = source + start // run * run_stride
        k = 0
        if run == 1 and stride == 1:
            for g in range(0, valid, count):
                vstore_first(target, start * width + g, load_units(place, g, 0, False, valid - g), width - g)
            continue
        while k < run and start + k + behind <= total:
            for g in range(groups - 1, -1, -1):
                if g * count < valid:
                    block = target + ((start + k) * width + g * count)
                    transpose_block(block, width, place + (g * count * stride + k), stride, valid - g * count)
            k += count
        for i in range(k, run):
            for r in range(valid):
                store(target, (start + i) * width + r, load_unit(place, i + r * stride, 0, False))


# ---- the padded image --------------------------------------------------------------------------


@by_type
def copy_image_row(target, x, other, count, step):
    """target[i] = x[i * step] for i < count; pairs have their upper halves from `other` elements later, or zeros."""
    width = lanes_of(x.dtype)

    def plain(target, x, other, count, step):
        if step == 1:
            for i in range(0, count, width):
                vstore_first(target, i, vload_first(x, i, width, count - i), count - i)
        else:
            for i in range(count):
                store(target, i, load(x, i * step))

    def pairs(target, x, other, count, step):
        if step == 1:
            bits = ptr(address(x), U16)
            for i in range(0, count, width):
                valid = count - i
                value = convert(vload_first(bits, i, width, valid), INT32)
                upper = convert(vload_first(bits, i + other, width, valid if other != 0 else 0), INT32)
                vstore_first(target, i, value | (upper << 16), valid)
        else:
            for i in range(count):
                store(target, i, load_unit(x, i * step, other, other != 0))

    return pairs if is_pair(x.dtype) else plain


@jit.inline
def pad_image(args, table, buffer, x, row, channels, pair):
    """Copy the part of an image that results from grid row `row` on read; `pair` channels of x make one of `buffer`.

    The block begins as `IMAGE`; its phases stand from `table` on. What is read behind a plane ends in columns that
    nobody reads, and is zero all the same: what lay there may be subnormal, which the CPU multiplies a hundred times
    slower (16 channels of 12 x 12 to 32: 0.88 ms, and 0.50 so).
    """
    C, x_channel, H, W = load(args, IMAGE.c), load(args, IMAGE.x_channel), load(args, IMAGE.h), load(args, IMAGE.w)
    h_stride, w_stride, pitch = load(args, IMAGE.stride_h), load(args, IMAGE.stride_w), load(args, IMAGE.pitch)
    channel, plane, num_rows = load(args, IMAGE.channel), load(args, IMAGE.plane), load(args, IMAGE.plane_rows)
    h_first, w_first, phases = row + load(args, IMAGE.first_h), load(args, IMAGE.first_w), load(args, IMAGE.phases)
    if pitch == W and w_first == 0 and phases == 1 and h_stride == 1 and w_stride == 1 and h_first >= 0:
        # Without padding all rows are one: 28 x 28 by 1 x 1, 256 channels to 64, takes 0.80 ms so, by rows 0.9.
        size = min(num_rows, H - h_first) * W
        for c in range(channels):
            source = x + (c * pair * x_channel + h_first * W)
            copy_image_row(buffer + c * channel, source, x_channel if c * pair + 1 < C else 0, size, 1)
            fill_row(buffer + (c * channel + size), num_rows * W - size, 0)
            fill_row(buffer + (c * channel + num_rows * W), channel - num_rows * W, 0)
        fill_row(buffer + channels * channel, SLACK_COLUMNS, 0)
        return
    left = min(pitch, max(0, -w_first))
    for c in range(channels):
        other = x_channel if c * pair + 1 < C else 0
        for phase in range(phases):
            h_phase, w_phase = load(args, table + 2 * phase), load(args, table + 2 * phase + 1)
            right = max(left, min(pitch, (W - 1 - w_phase) // w_stride + 1 - w_first))
            source = x + (c * pair * x_channel + (left + w_first) * w_stride + w_phase)
            target = buffer + (c * channel + phase * plane)
            for i in range(num_rows):
                h = (i + h_first) * h_stride + h_phase
                if 0 <= h < H and left < right:
                    fill_row(target, left, 0)
                    copy_image_row(target + left, source + h * W, other, right - left, w_stride)
                    fill_row(target + right, pitch - right, 0)
                else:
                    fill_row(target, pitch, 0)
                target = target + pitch
        fill_row(buffer + (c * channel + phases * plane), channel - phases * plane, 0)
    fill_row(buffer + channels * channel, SLACK_COLUMNS, 0)


# ---- the product -------------------------------------------------------------------------------


@by_type
def store_sums(y, step, sums, count, bias):
    """y[i * step] = sums[i] + bias for i < count."""
    width = lanes_of(y.dtype)

    def implementation(y, step, sums, count, bias):
        if step == 1:
            for i in range(0, count, width):
                vstore_first(y, i, vload(sums, i, width) + bias, count - i)
        else:
            for i in range(count):
                store(y, i * step, load(sums, i) + bias)

    return implementation


@jit.inline
def store_tile(y, strides, tile, across, start, stop, grid, rows, bias, has_bias):
    """Sums of grid positions [start, stop) and `rows` channels to their places; `grid`: pitch, columns that count."""
    channel, row, column = strides
    pitch, width = grid
    i, at = start // pitch, 0
    j = start - i * pitch
    while start + at < stop:
        count = min(stop - start - at, width - j)
        if count > 0:
            place = y + (i * row + j * column)
            for r in range(rows):
                shift = load(bias, r) if has_bias else 0.0
                store_sums(place + r * channel, column, tile + (r * across + at), count, shift)
        at, i, j = at + pitch - j, i + 1, 0


@jit.inline
def place_of(args, unit):
    """Where a unit lies: (number of its block of rows among those of all images, image, group, first row)."""
    blocks, groups = load(args, PRODUCT.blocks), load(args, PRODUCT.groups)
    place = unit // load(args, PRODUCT.shares)
    image = place // blocks
    return place, image // groups, image % groups, place % blocks * load(args, PRODUCT.block_rows)


@jit.inline
def bring_image(args, buffer, n, group, row, channels, pair, T):
    """Copy what a block of rows reads of an image, with its margins."""
    x_at = n * load(args, PRODUCT.x_image) + group * load(args, PRODUCT.c) * load(args, PRODUCT.x_channel)
    pad_image(args, PRODUCT.table, buffer, ptr(load(args, PRODUCT.x), T) + x_at, row, channels, pair)


@jit.inline
def phase_of(args, at, n, channel, row, T):
    """What a block of rows has of a phase of the results, whose numbers begin at `at`: (taps, where the results of a
    channel begin, how many places of the padded image they stand for, the grid of these for `store_tile`).
    """
    pitch, y_row, width = load(args, PRODUCT.pitch), load(args, PRODUCT.y_row), load(args, at + 2)
    num_rows = min(load(args, PRODUCT.block_rows), load(args, at + 1) - row)
    y_at = n * load(args, PRODUCT.y_image) + channel * load(args, PRODUCT.y_channel) + row * y_row + load(args, at + 3)
    end = (num_rows - 1) * pitch + width if num_rows > 0 else 0
    grid = pitch, width
    if width == pitch and y_row == width * load(args, PRODUCT.y_column):
        grid = end, end
    return load(args, at), ptr(load(args, PRODUCT.y), T) + y_at, end, grid


@jit.inline
def correlate(args, lo, hi, thread, T, R, V):
    """Units [lo, hi): y[n, m] = bias[m] + sum over c and taps of weight[m, c, tap] x[n, c] moved by the tap.

    A unit is some panels of R channels of the results of a block of rows; units that share the padded image follow
    one another.
    """
    tile = sum_ptr(stack(TILE_BYTES), T)
    M, C, shares = load(args, PRODUCT.m), load(args, PRODUCT.c), load(args, PRODUCT.shares)
    taps, per_group = load(args, PRODUCT.taps), load(args, PRODUCT.group_panels)
    scratch = load(args, PRODUCT.scratch) + thread * load(args, PRODUCT.thread_bytes)
    buffer, offsets = panel_ptr(scratch, T), ptr(scratch + load(args, PRODUCT.offsets), INT64)
    across, pair = V * lanes(T), depth(T)
    channels = (C + pair - 1) // pair
    results = PRODUCT.table + 2 * load(args, PRODUCT.phases)
    fill_offsets(args, offsets, channels, 8 if itemsize(T) == 8 else 4)
    strides = load(args, PRODUCT.y_channel), load(args, PRODUCT.y_row), load(args, PRODUCT.y_column)
    packed = types.int64(-1)
    for unit in range(lo, hi):
        place, n, group, row = place_of(args, unit)
        if place != packed:
            bring_image(args, buffer, n, group, row, channels, pair, T)
            packed = place
        first = unit % shares * load(args, PRODUCT.unit_panels)
        panels = panel_ptr(load(args, PRODUCT.panels), T) + (group * per_group + first) * channels * taps * R
        bias = ptr(load(args, PRODUCT.bias), T) + group * M
        for panel in range(first, min(per_group, first + load(args, PRODUCT.unit_panels))):
            begin = 0
            for phase in range(load(args, PRODUCT.results)):
                own, y, end, grid = phase_of(args, results + 4 * phase, n, group * M + panel * R, row, T)
                for q in range(0, end, across):
                    offset_product(panels, buffer + q, offsets + begin, tile, channels * own, T, R, V)
                    valid = min(R, M - panel * R)
                    stop = min(end, q + across)
                    has_bias = load(args, PRODUCT.bias) != 0
                    store_tile(y, strides, tile, across, q, stop, grid, valid, bias + panel * R, has_bias)
                begin += channels * own
                panels = panels + channels * own * R
    return 0


@jit.inline
def fill_offsets(args, offsets, channels, size):
    """The offset in bytes of each element of a patch: for each phase of the results [channels, taps]."""
    results, channel = PRODUCT.table + 2 * load(args, PRODUCT.phases), load(args, PRODUCT.channel)
    taps = results + 4 * load(args, PRODUCT.results)
    k = 0
    for phase in range(load(args, PRODUCT.results)):
        own = load(args, results + 4 * phase)
        for c in range(channels):
            for t in range(own):
                store(offsets, k, (c * channel + load(args, taps + 2 * t)) * size)
                k += 1
        taps += 2 * own


# ---- the product with channels along the lanes ---------------------------------------------------


@by_type
def turn(turned, tile, rows, across):
    """turned[c, r] = tile[r, c] for c < across; rows of `turned` have whole vectors."""
    count = lanes_of(tile.dtype)

    def implementation(turned, tile, rows, across):
        width = (rows + count - 1) // count * count
        for r in range(0, rows, count):
            for c in range(0, across, count):
                transpose_tile(turned + (c * width + r), width, tile + (r * across + c), across, count)

    return implementation


@jit.inline
def correlate_lanes(args, lo, hi, thread, T, R, V):
    """As `correlate`, in tiles of R neighbours of a row by V vectors of channels, which are transposed at the end.

    No column between rows is idle, so images as small as 7 x 7 come out even. A panel of the weight holds V vectors of
    channels. Neighbours have one address: tiles of any places had 14, for which the registers do not suffice (256
    channels, 14 x 14, one core of Emerald Rapids: 121 GFLOP/s, and 168 so).
    """
    tile, turned = sum_ptr(stack(TILE_BYTES), T), sum_ptr(stack(TILE_BYTES), T)
    M, C, shares = load(args, PRODUCT.m), load(args, PRODUCT.c), load(args, PRODUCT.shares)
    pitch, taps, per_group = load(args, PRODUCT.pitch), load(args, PRODUCT.taps), load(args, PRODUCT.group_panels)
    scratch = load(args, PRODUCT.scratch) + thread * load(args, PRODUCT.thread_bytes)
    buffer, offsets = panel_ptr(scratch, T), ptr(scratch + load(args, PRODUCT.offsets), INT64)
    across, pair, count = V * lanes(T), depth(T), lanes(T)
    channels = (C + pair - 1) // pair
    results = PRODUCT.table + 2 * load(args, PRODUCT.phases)
    fill_offsets(args, offsets, channels, 8 if itemsize(T) == 8 else 4)
    y_channel, y_row, y_column = load(args, PRODUCT.y_channel), load(args, PRODUCT.y_row), load(args, PRODUCT.y_column)
    turned_width = (R + count - 1) // count * count
    packed = types.int64(-1)
    for unit in range(lo, hi):
        place, n, group, row = place_of(args, unit)
        if place != packed:
            bring_image(args, buffer, n, group, row, channels, pair, T)
            packed = place
        first = unit % shares * load(args, PRODUCT.unit_panels)
        bias, has_bias, begin = ptr(load(args, PRODUCT.bias), T) + group * M, load(args, PRODUCT.bias) != 0, 0
        for phase in range(load(args, PRODUCT.results)):
            at = results + 4 * phase
            own, width = load(args, at), load(args, at + 2)
            num_rows = max(0, min(load(args, PRODUCT.block_rows), load(args, at + 1) - row))
            y_at = n * load(args, PRODUCT.y_image) + group * M * y_channel + row * y_row + load(args, at + 3)
            y = ptr(load(args, PRODUCT.y), T) + y_at
            if width == pitch and y_row == width * y_column:  # one long row
                width, num_rows = num_rows * width, min(num_rows, 1)
            for panel in range(first, min(per_group, first + load(args, PRODUCT.unit_panels))):
                w_at = ((group * per_group + panel) * channels * taps + begin) * across
                w, m = panel_ptr(load(args, PRODUCT.panels), T) + w_at, panel * across
                for i in range(num_rows):
                    for j in range(0, width, R):
                        image_at = buffer + (i * pitch + j)
                        row_product(image_at, offsets + begin, w, tile, channels * own, T, R, V)
                        turn(turned, tile, R, across)
                        target = y + (m * y_channel + i * y_row + j * y_column)
                        for c in range(min(across, M - m)):
                            shift = load(bias, m + c) if has_bias else 0.0
                            sums = turned + c * turned_width
                            store_sums(target + c * y_channel, y_column, sums, min(R, width - j), shift)
            begin += channels * own
    return 0
