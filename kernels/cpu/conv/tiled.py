"""Convolution of 16-bit floats by tile registers, as `forward.py` does it with vectors.

A tile of weights has 16 channels of results by 32 of the image, for one tap. A tile of the image is read where it lies
padded: 16 pairs of channels, a plane apart, by 16 neighbours on the grid, at the offset of the tap. What is missing of
32 channels are planes of zeros. Sums run over taps, and for each over channels.

For the gradient of the weight a tile of the image has 16 channels by 32 neighbours of the grid, and the gradient of the
result lies in pairs of those, with zeros between its rows: one product for all rows. Where an image has infinities or
NaN, of which zeros would make NaN for taps that have no part in them, it is one for each row, whose last neighbours are
copied, with zeros behind.
"""

from numba import types

from ...blocks.conv import PRODUCT, SUMS, WEIGHT
from ...build import jit
from ...lang.by_type import by_type
from ...lang.lowp import float16_pairs
from ...lang.rows import fill_row
from ...lang.simd import address, fill, load, ptr, reduce_max, select, stack, store, vload, vload_first, vstore
from ...lang.tile_registers import HALF, ROW, begin, release, tile_sums, tile_sums_at
from ..gemm.microkernel import panel_ptr, sum_ptr
from ..gemm.pack import load_unit, pack_panels
from .forward import INT64, TILE_BYTES, U16, bring_image, phase_of, place_of, store_tile
from .grad import bring_image_to, image_ptr, share_of
from .sizes import SLACK, SLACK_COLUMNS, TILED_CHANNELS, TILED_PLACES, tiled_steps

PAIRS = TILED_CHANNELS // 2  # rows of a tile of the image
ACROSS = 2 * HALF  # results of a block both ways: channels, and places of the grid
STEP = ACROSS * PAIRS  # elements, pairs, of two tiles of the weight
B_STEP = TILED_PLACES // 2 * ACROSS  # and of the gradient of the result
steps_of = jit.inline(tiled_steps)


@jit.inline
def pack_weight(args, lo, hi, T):
    """Panels [lo, hi) of a weight: for each phase [taps, channels / 32, 32 channels of results, 16 pairs]."""
    w, panels = ptr(load(args, WEIGHT.weight), T), panel_ptr(load(args, WEIGHT.panels), T)
    m_stride, c_stride = load(args, WEIGHT.m_stride), load(args, WEIGHT.c_stride)
    M, C, per_group = load(args, WEIGHT.m), load(args, WEIGHT.c), load(args, WEIGHT.group_panels)
    phases, taps = load(args, WEIGHT.phases), load(args, WEIGHT.taps)
    steps = (C + TILED_CHANNELS - 1) // TILED_CHANNELS
    for unit in range(lo, hi):
        group = unit // per_group
        first = (unit - group * per_group) * ACROSS
        source = w + (group * load(args, WEIGHT.group_stride) + first * m_stride)
        target = panels + unit * (steps * taps * STEP)
        for tap in range(taps):
            index = load(args, WEIGHT.table + phases + tap)
            for step in range(steps):
                c = step * TILED_CHANNELS
                whole = min(PAIRS, (C - c) // 2)
                for r in range(ACROSS):
                    row = target + r * PAIRS
                    if first + r >= M:
                        fill_row(row, PAIRS, 0)
                        continue
                    at = r * m_stride + c * c_stride + index
                    for q in range(whole):
                        store(row, q, load_unit(source, at + 2 * q * c_stride, c_stride, True))
                    if whole < PAIRS:
                        fill_row(row + whole, PAIRS - whole, 0)
                        if c + 2 * whole < C:
                            store(row, whole, load_unit(source, at + 2 * whole * c_stride, c_stride, False))
                target = target + STEP
    return 0


@jit.inline
def correlate(args, lo, hi, thread, T):
    """Units [lo, hi), as `forward.correlate`, in panels of 32 channels of results by 32 places of the grid."""
    tile = sum_ptr(stack(TILE_BYTES), T)
    M, C, shares = load(args, PRODUCT.m), load(args, PRODUCT.c), load(args, PRODUCT.shares)
    channel, taps, per_group = load(args, PRODUCT.channel), load(args, PRODUCT.taps), load(args, PRODUCT.group_panels)
    scratch = load(args, PRODUCT.scratch) + thread * load(args, PRODUCT.thread_bytes)
    buffer, offsets = panel_ptr(scratch, T), ptr(scratch + load(args, PRODUCT.offsets), INT64)
    pairs, steps = (C + 1) // 2, (C + TILED_CHANNELS - 1) // TILED_CHANNELS
    results = PRODUCT.table + 2 * load(args, PRODUCT.phases)
    table = results + 4 * load(args, PRODUCT.results)
    for tap in range(taps):
        for step in range(steps):
            at = step * PAIRS * channel + load(args, table + 2 * tap)
            store(offsets, tap * steps + step, 4 * at)
    strides = load(args, PRODUCT.y_channel), load(args, PRODUCT.y_row), load(args, PRODUCT.y_column)
    has_bias, packed = load(args, PRODUCT.bias) != 0, types.int64(-1)
    begin()
    for unit in range(lo, hi):
        place, n, group, row = place_of(args, unit)
        if place != packed:
            bring_image(args, buffer, n, group, row, pairs, 2, T)
            fill_row(buffer + pairs * channel, (steps * PAIRS - pairs) * channel + SLACK_COLUMNS, 0)
            packed = place
        first = unit % shares * load(args, PRODUCT.unit_panels)
        bias = ptr(load(args, PRODUCT.bias), T) + group * M
        for panel in range(first, min(per_group, first + load(args, PRODUCT.unit_panels))):
            w, valid = panel_ptr(load(args, PRODUCT.panels), T), min(ACROSS, M - panel * ACROSS)
            w, offset = w + (group * per_group + panel) * steps * taps * STEP, offsets
            for phase in range(load(args, PRODUCT.results)):
                taps_of, y, end, grid = phase_of(args, results + 4 * phase, n, group * M + panel * ACROSS, row, T)
                own = taps_of * steps
                for q in range(0, end, ACROSS):
                    if valid > HALF:
                        tile_sums_at(T, w, buffer + q, 4 * channel, offset, tile, 4 * ACROSS, own, 2, 2)
                    else:
                        tile_sums_at(T, w, buffer + q, 4 * channel, offset, tile, 4 * ACROSS, own, 1, 2)
                    stop = min(end, q + ACROSS)
                    store_tile(y, strides, tile, ACROSS, q, stop, grid, valid, bias + panel * ACROSS, has_bias)
                w, offset = w + own * STEP, offset + own
    release()
    return 0


@jit.inline
def weight_sums(args, lo, hi, thread, T):
    """Units [lo, hi), as `grad.weight_sums`; a part's sums are [channels, whole blocks of them, taps, columns]."""
    M, C, groups = load(args, SUMS.m), load(args, SUMS.c), load(args, SUMS.groups)
    blocks, block_rows = load(args, SUMS.blocks), load(args, SUMS.block_rows)
    pitch, channel, width = load(args, SUMS.pitch), load(args, SUMS.channel), load(args, SUMS.columns)
    parts, places = load(args, SUMS.parts), load(args, SUMS.images) * blocks
    OH, OW = load(args, SUMS.g_h), load(args, SUMS.g_w)
    g_image, g_channel = load(args, SUMS.g_image), load(args, SUMS.g_channel)
    scratch = load(args, SUMS.scratch) + thread * load(args, SUMS.thread_bytes)
    ends, packed = ptr(scratch + load(args, SUMS.offsets), U16), panel_ptr(scratch + load(args, SUMS.packed), T)
    taps, table = load(args, SUMS.patch) // C, SUMS.table + 2 * load(args, SUMS.phases)
    all_channels = (C + TILED_CHANNELS - 1) // TILED_CHANNELS * TILED_CHANNELS
    whole, rest, row_size = OW // TILED_PLACES, OW % TILED_PLACES, pitch // 2 * ACROSS
    panel_size = steps_of(block_rows * pitch) * B_STEP
    block_size = load(args, SUMS.unit_channels) // ACROSS * panel_size + SLACK
    a_strides = 2 * channel, 2 * HALF * channel, types.int64(ROW)
    b_strides = types.int64(4 * ACROSS), types.int64(4 * B_STEP)
    plain = ends + block_rows * TILED_CHANNELS * TILED_PLACES  # whether images that are packed together are finite
    begin()
    for unit in range(lo, hi):
        part, group, first, count = share_of(args, unit)
        panels = (count + ACROSS - 1) // ACROSS
        sums = sum_ptr(load(args, SUMS.sums), T) + ((part * groups + group) * all_channels * taps * width + first)
        for k in range(all_channels * taps):
            fill_row(sums + k * width, panels * ACROSS, 0)
        stop = (part + 1) * places // parts
        for start in range(part * places // parts, stop, load(args, SUMS.together)):
            together = min(load(args, SUMS.together), stop - start)
            for i in range(together):
                n, row, buffer = bring_image_to(args, scratch, i, start + i, group, T)
                fill_row(buffer + C * channel, (all_channels - C) * channel + SLACK_COLUMNS, 0)
                g = ptr(load(args, SUMS.g), T) + (n * g_image + (group * M + first) * g_channel + row * OW)
                block = packed + i * block_size
                for r in range(min(block_rows, OH - row)):
                    pack_panels(block + r * row_size, panel_size, g + r * OW, count, OW, g_channel, 1, ACROSS, T)
                for j in range(panels):
                    panel, used = block + j * panel_size, (OW + 1) // 2 * ACROSS
                    for r in range(min(block_rows, OH - row)):
                        fill_row(panel + r * row_size + used, row_size - used, 0)
                    done = min(block_rows, OH - row) * row_size
                    fill_row(panel + done, panel_size - done, 0)
                store(plain, i, all_finite(buffer, all_channels * channel, T))
            for c in range(0, C, TILED_CHANNELS):
                for tap in range(taps):
                    for i in range(together):
                        num_rows = min(block_rows, OH - (start + i) % blocks * block_rows)
                        at = c * channel + load(args, table + 2 * tap)
                        a = image_ptr(scratch + i * load(args, SUMS.image_bytes), T) + at
                        one = load(plain, i) != 0
                        if rest != 0 and not one:
                            copy_ends(ends, a + whole * TILED_PLACES, num_rows, pitch, channel, rest)
                        for j in range(panels):
                            to, step = sums + ((c * taps + tap) * width + j * ACROSS), 4 * taps * width
                            panel = packed + (i * block_size + j * panel_size)
                            steps, left = whole, rest
                            if one:
                                steps, left = ((num_rows - 1) * pitch + OW + TILED_PLACES - 1) // TILED_PLACES, 0
                            for r in range(1 if one else num_rows):
                                b = panel + r * row_size
                                last = address(ends + r * TILED_CHANNELS * TILED_PLACES), address(b + whole * B_STEP)
                                row_a = address(a + r * pitch)
                                if C - c > HALF:
                                    add_row(to, step, row_a, a_strides, b, b_strides, last, steps, left, 2, T)
                                else:
                                    add_row(to, step, row_a, a_strides, b, b_strides, last, steps, left, 1, T)
    release()
    return 0


@jit.inline
def add_row(to, step, a, a_strides, b, b_strides, last, whole, rest, high, T):
    """Add the products of neighbours of the image and of the gradient to a block of sums."""
    tile_sums(T, a, a_strides, b, b_strides, last, to, step, to, step, whole, rest, high, 2)


@by_type
def all_finite(x, size, T):
    """1 if none of so many elements, a multiple of 32, is an infinity or NaN, else 0."""
    least = 0x7C00 if T.instance_type == float16_pairs else 0x7F80  # the exponent of those

    def implementation(x, size, T):
        found = fill(0, U16, TILED_PLACES)
        for i in range(0, size, TILED_PLACES):
            bits = vload(x, i, TILED_PLACES) & U16(0x7FFF)
            found = select(bits > found, bits, found)
        return 1 if reduce_max(found) < least else 0

    return implementation


@jit.inline
def copy_ends(to, image, num_rows, pitch, channel, valid):
    """to[row, channel, place] = the `valid` places of each row of 32 channels of an image, and zeros behind."""
    for r in range(num_rows):
        for c in range(TILED_CHANNELS):
            vstore(to, 0, vload_first(image, r * pitch + c * channel, TILED_PLACES, valid))
            to = to + TILED_PLACES
