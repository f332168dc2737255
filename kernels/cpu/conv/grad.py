"""The gradient of a convolution's weight: products of the gradient with the padded image, summed over places.

dW[m, c, tap] = sum over n, i, j of g[n, m, i, j] x[n, c, place (i, j) moved by the tap]. A row of the register tile is
an element (c, tap) of the patch, whose values are read as scalars straight from the padded image (`conv.pad_image`);
its columns are channels m, for which a block of g is packed as [places, m]. The images are cut into a number of parts
that the sizes alone determine; each part has sums of its own, added up in one order by `join_parts`.

Where a group has few channels m (one, of a depthwise convolution), they would leave most lanes idle: there the lanes
are neighbouring places (`weight_dots`).
"""

from ...blocks.conv import JOIN, SUMS
from ...build import jit
from ...lang.by_type import by_type
from ...lang.rows import fill_row
from ...lang.simd import load, ptr, stack, store, vload_first, vstore
from ..gemm.microkernel import depth, is_pair, itemsize, lanes, lanes_of, panel_ptr, sum_ptr
from ..gemm.pack import pack_panels
from .forward import INT64, TILE_BYTES, U16, pad_image, store_sums, turn
from .products import tap_dots, tap_product
from .sizes import SLACK

BEHIND = 4  # a pair may reach one element behind the image, times a zero


@by_type
def image_ptr(address, T):
    """The pointer to elements of a padded image: bfloat16 that is multiplied in pairs keeps its bits."""
    if is_pair(T.instance_type):
        return lambda address, T: ptr(address, U16)
    return lambda address, T: sum_ptr(address, T)


@by_type
def source_ptr(address, T):
    """The pointer at an image to copy into what `image_ptr` points to."""
    if is_pair(T.instance_type):
        return lambda address, T: ptr(address, U16)
    return lambda address, T: ptr(address, T)


@jit.inline
def share_of(args, unit):
    """What a unit of sums is about: (part of the images, group, first channel of the gradient, how many)."""
    share, rest = unit % load(args, SUMS.shares), unit // load(args, SUMS.shares)
    first, groups = share * load(args, SUMS.unit_channels), load(args, SUMS.groups)
    return rest // groups, rest % groups, first, min(load(args, SUMS.unit_channels), load(args, SUMS.m) - first)


@jit.inline
def bring_image_to(args, scratch, i, place, group, T):
    """Copy what a block of rows, `place` among those of all images, reads of a group of an image, with its margins, as
    the i-th into the scratch: (image, first row, where it lies).
    """
    blocks, C = load(args, SUMS.blocks), load(args, SUMS.c)
    n, row = place // blocks, place % blocks * load(args, SUMS.block_rows)
    x_at = n * load(args, SUMS.x_image) + group * C * load(args, SUMS.x_channel)
    buffer = image_ptr(scratch + i * load(args, SUMS.image_bytes), T)
    pad_image(args, SUMS.table, buffer, source_ptr(load(args, SUMS.x), T) + x_at, row, C, 1)
    return n, row, buffer


@jit.inline
def weight_sums(args, lo, hi, thread, T, R, V):
    """Units [lo, hi): the sums of a part of the images for some channels of a group."""
    M, C, groups = load(args, SUMS.m), load(args, SUMS.c), load(args, SUMS.groups)
    blocks, block_rows = load(args, SUMS.blocks), load(args, SUMS.block_rows)
    pitch, k_total, width = load(args, SUMS.pitch), load(args, SUMS.patch), load(args, SUMS.columns)
    parts, places = load(args, SUMS.parts), load(args, SUMS.images) * blocks
    OH, OW = load(args, SUMS.g_h), load(args, SUMS.g_w)
    g_image, g_channel = load(args, SUMS.g_image), load(args, SUMS.g_channel)
    scratch = load(args, SUMS.scratch) + thread * load(args, SUMS.thread_bytes)
    offsets, packed = ptr(scratch + load(args, SUMS.offsets), INT64), panel_ptr(scratch + load(args, SUMS.packed), T)
    across, pair = V * lanes(T), depth(T)
    size = itemsize(T) if pair == 2 else 8 if itemsize(T) == 8 else 4
    rows_of_k = (k_total + R - 1) // R * R
    patch_offsets(args, offsets, C, k_total, rows_of_k, size)
    steps = (OW + pair - 1) // pair
    block_size = load(args, SUMS.unit_channels) * block_rows * steps + SLACK
    for unit in range(lo, hi):
        part, group, first, count = share_of(args, unit)
        panels = (count + across - 1) // across
        sums = sum_ptr(load(args, SUMS.sums), T) + ((part * groups + group) * rows_of_k * width + first)
        for k in range(rows_of_k):
            fill_row(sums + k * width, panels * across, 0)
        stop = (part + 1) * places // parts
        for begin in range(part * places // parts, stop, load(args, SUMS.together)):
            together = min(load(args, SUMS.together), stop - begin)
            for i in range(together):
                n, row, buffer = bring_image_to(args, scratch, i, begin + i, group, T)
                fill_row(buffer + C * load(args, SUMS.channel), BEHIND, 0)
                g = ptr(load(args, SUMS.g), T) + (n * g_image + (group * M + first) * g_channel + row * OW)
                pack_places(packed + i * block_size, g, count, min(block_rows, OH - row), OW, g_channel, across, T)
            for k in range(0, k_total, R):
                for j in range(panels):
                    target = sums + (k * width + j * across)
                    for i in range(together):
                        num_rows = min(block_rows, OH - (begin + i) % blocks * block_rows)
                        block = packed + (i * block_size + j * num_rows * steps * across)
                        buffer = image_ptr(scratch + i * load(args, SUMS.image_bytes), T)
                        tap_product(buffer, offsets + k, pitch * size, num_rows, block, steps, target, width, T, R, V)
    return 0


@jit.inline
def weight_dots(args, lo, hi, thread, T, R):
    """Units [lo, hi): the sums of a part of the images for a group, by dot products along rows of R taps at once.

    3 x 3 depthwise, 64 channels of 56 x 56: 0.46 ms for a batch of 4, with channels along the lanes 3.7 (one
    core of Emerald Rapids). The sums are [parts, groups, m, elements of a patch filled up to R].
    """
    M, C, groups = load(args, SUMS.m), load(args, SUMS.c), load(args, SUMS.groups)
    blocks, block_rows = load(args, SUMS.blocks), load(args, SUMS.block_rows)
    parts, places = load(args, SUMS.parts), load(args, SUMS.images) * blocks
    OH, OW, k_total = load(args, SUMS.g_h), load(args, SUMS.g_w), load(args, SUMS.patch)
    scratch = load(args, SUMS.scratch) + thread * load(args, SUMS.thread_bytes)
    offsets, size = ptr(scratch + load(args, SUMS.offsets), INT64), 8 if itemsize(T) == 8 else 4
    pitch, rows_of_k = load(args, SUMS.pitch) * size, (k_total + R - 1) // R * R
    patch_offsets(args, offsets, C, k_total, rows_of_k, size)
    for unit in range(lo, hi):
        part, group = unit // groups, unit % groups
        sums = sum_ptr(load(args, SUMS.sums), T) + unit * M * rows_of_k
        fill_row(sums, M * rows_of_k, 0)
        for place in range(part * places // parts, (part + 1) * places // parts):
            n, row, buffer = bring_image_to(args, scratch, 0, place, group, T)
            num_rows = min(block_rows, OH - row)
            for m in range(M):
                g_at = n * load(args, SUMS.g_image) + (group * M + m) * load(args, SUMS.g_channel) + row * OW
                g = ptr(load(args, SUMS.g), T) + g_at
                for k in range(0, k_total, R):
                    tap_dots(buffer, offsets + k, pitch, num_rows, g, OW, sums + (m * rows_of_k + k), T, R)
    return 0


@jit.inline
def join_rows(args, lo, hi, T):
    """The weight's gradient from the sums of `weight_dots`: rows [lo, hi), each of a channel m."""
    parts, k_total, padded = load(args, JOIN.parts), load(args, JOIN.patch), load(args, JOIN.padded)
    step, count = load(args, JOIN.groups) * load(args, JOIN.m) * padded, lanes(T)
    row = sum_ptr(stack(TILE_BYTES), T)
    for unit in range(lo, hi):
        sums, target = sum_ptr(load(args, JOIN.sums), T) + unit * padded, ptr(load(args, JOIN.dw), T) + unit * k_total
        for k in range(0, k_total, count):
            valid = min(count, k_total - k)
            add_up(row, sums + k, parts, step, valid)
            store_sums(target + k, 1, row, valid, 0.0)
    return 0


@jit.inline
def pack_places(packed, g, count, num_rows, columns, stride, across, T):
    """Panels [places, across] of `count` channels of g, whose rows are contiguous; rows begin with a whole pair."""
    pair = depth(T)
    steps = (columns + pair - 1) // pair
    panel = num_rows * steps * across
    if columns % pair == 0:
        pack_panels(packed, panel, g, count, num_rows * columns, stride, 1, across, T)
    else:
        for i in range(num_rows):
            pack_panels(packed + i * steps * across, panel, g + i * columns, count, columns, stride, 1, across, T)


@jit.inline
def patch_offsets(args, offsets, C, k_total, rows_of_k, size):
    """The offset in bytes of each element (c, tap) of a patch, padded with zeros to whole tiles."""
    channel, at = load(args, SUMS.channel), SUMS.table + 2 * load(args, SUMS.phases)
    taps = k_total // C
    for c in range(C):
        for t in range(taps):
            store(offsets, c * taps + t, (c * channel + load(args, at + 2 * t)) * size)
    for k in range(k_total, rows_of_k):
        store(offsets, k, 0)


@jit.inline
def join_parts(args, lo, hi, T):
    """The weight's gradient: blocks [lo, hi) of as many channels as a vector has lanes, group by group."""
    parts, groups, M = load(args, JOIN.parts), load(args, JOIN.groups), load(args, JOIN.m)
    k_total, padded, width, count = load(args, JOIN.patch), load(args, JOIN.padded), load(args, JOIN.columns), lanes(T)
    blocks = (M + count - 1) // count
    tile, turned = sum_ptr(stack(TILE_BYTES), T), sum_ptr(stack(TILE_BYTES), T)
    for unit in range(lo, hi):
        group, m = unit // blocks, unit % blocks * count
        valid = min(count, M - m)
        target = ptr(load(args, JOIN.dw), T) + (group * M + m) * k_total
        for k in range(0, k_total, count):
            some = min(count, k_total - k)
            at = sum_ptr(load(args, JOIN.sums), T) + ((group * padded + k) * width + m)
            for i in range(some):
                add_up(tile + i * count, at + i * width, parts, groups * padded * width, valid)
            turn(turned, tile, count, count)
            for i in range(valid):
                store_sums(target + (i * k_total + k), 1, turned + i * count, some, 0.0)
    return 0


@by_type
def add_up(row, sums, parts, step, valid):
    """row = the sum of `parts` vectors that lie `step` apart, in order."""
    count = lanes_of(row.dtype)

    def implementation(row, sums, parts, step, valid):
        total = vload_first(sums, 0, count, valid)
        for part in range(1, parts):
            total = total + vload_first(sums, part * step, count, valid)
        vstore(row, 0, total)

    return implementation
