"""Convolutions as their definition says, where channels are few or there is little to do.

A thread sums up some places of a few planes of the result, or of a plane that is made of one; or a block one element of
the weight.
"""

from numba import types

from ...blocks.cuda import CONV_SUMS, CONV_WEIGHT
from ...build import jit
from ...cpu.conv.pooling import three
from ...lang.by_type import by_type
from ...lang.mma import outer_product, some_lanes
from ...lang.ptx import barrier, shared, thread, threads
from ...lang.shuffle import repeated
from ...lang.simd import bitcast, fill, load, muladd, ptr, ramp, reduce_add, store, vload_aligned, vpick, vput
from ..block import block_sum, read, write
from ..gemm.wgmma import ratio
from .columns import first_tap, places_from, within
from .sizes import ROOM

I32, U32, I64 = types.int32, types.uint32, types.int64


@jit.inline
def taps_of(args, d, u):
    """What results u, u + apart, ... of dim d meet: (how many there are, taps, the first tap, where it is in x)."""
    apart, kernel = load(args, CONV_SUMS.apart + d), load(args, CONV_SUMS.kernel + d)
    if apart == 1:
        return load(args, CONV_SUMS.out + d), kernel, I64(0), -load(args, CONV_SUMS.pad + d)
    period = load(args, CONV_SUMS.period + d)
    first, start = first_tap(u - load(args, CONV_SUMS.pad + d), -load(args, CONV_SUMS.gap + d), period, apart)
    results = max(load(args, CONV_SUMS.out + d) - u + apart - 1, apart) // apart
    return results, max(kernel - first + period - 1, 0) // period, first, start


@jit.inline
def split(v, size):
    """(quotients, remainders) of lanes that are not negative."""
    whole = bitcast(bitcast(v, U32) // size, I32)
    return whole, v - whole * size


@by_type
def of_output(sums, number, like):
    """The sums of result number `number`, of as many places as `like` has lanes."""
    places = like.lanes
    if sums.lanes == places:
        return lambda sums, number, like: sums
    return lambda sums, number, like: some_lanes(sums, number, places)


@jit.inline
def bring_weight(args, memory, weight, taps, first, stop, outputs, M):
    """The block's weights of (tap, channel) number `first` to `stop`: M outputs of each, zeros behind the last one."""
    _, many_h, many_w, first_d, first_h, first_w = taps
    inputs, kernel_h = load(args, CONV_SUMS.inputs), load(args, CONV_SUMS.kernel + 1)
    kernel_w = load(args, CONV_SUMS.kernel + 2)
    for k in range(thread(), (stop - first) * M, threads()):
        one = ratio(k, M)
        output = k - one * M
        tap = ratio(first + one, inputs)
        channel = first + one - tap * inputs
        row = ratio(tap, many_w)
        layer = ratio(row, many_h)
        a = first_d + layer * load(args, CONV_SUMS.period)
        b = first_h + (row - layer * many_h) * load(args, CONV_SUMS.period + 1)
        c = first_w + (tap - row * many_w) * load(args, CONV_SUMS.period + 2)
        at = output * load(args, CONV_SUMS.of_output) + channel * load(args, CONV_SUMS.of_input)
        value = load(weight, at + (a * kernel_h + b) * kernel_w + c) if output < outputs else 0.0
        store(memory, k, value)


@jit.inline
def sums(args, lo, hi, T, A, M, N, VOLUME):
    """A tile of places of M planes of y: a thread has N of them, as far apart as a block has threads.

    So neighbouring threads read neighbours; weights come from shared memory, for all places of a thread at once. Of the
    gradient of an input that windows step over, the places of a tile are those which the same taps meet (a phase).
    """
    D, H, W = three(args, CONV_SUMS.size, VOLUME)
    inputs, groups, bands = load(args, CONV_SUMS.inputs), load(args, CONV_SUMS.groups), load(args, CONV_SUMS.bands)
    part = ratio(lo, load(args, CONV_SUMS.tiles))
    tile = lo - part * load(args, CONV_SUMS.tiles)
    rest = ratio(part, bands)
    phase = ratio(rest, groups)
    band, group = part - rest * bands, rest - phase * groups
    upper = ratio(phase, load(args, CONV_SUMS.apart + 2))
    u_w, u_d = phase - upper * load(args, CONV_SUMS.apart + 2), ratio(upper, load(args, CONV_SUMS.apart + 1))
    u_h = upper - u_d * load(args, CONV_SUMS.apart + 1)
    some_d, many_d, first_d, front = taps_of(args, 0, u_d) if VOLUME else (1, 1, 0, 0)
    some_h, many_h, first_h, top = taps_of(args, 1, u_h)
    some_w, many_w, first_w, left = taps_of(args, 2, u_w)
    place = ramp(0, I32, N) * threads() + (tile * N * threads() + thread())
    valid = place < load(args, CONV_SUMS.images) * some_d * some_h * some_w
    above, column = split(place, some_w)
    image, row = split(above, some_h)
    layer = fill(0, I32, N)
    if VOLUME:
        image, layer = split(image, some_d)
    in_y = ((layer * load(args, CONV_SUMS.apart) + u_d) * load(args, CONV_SUMS.out + 1)) + (
        row * load(args, CONV_SUMS.apart + 1) + u_h
    )
    in_y = in_y * load(args, CONV_SUMS.out + 2) + column * load(args, CONV_SUMS.apart + 2) + u_w
    layer = layer * load(args, CONV_SUMS.stride) + front if VOLUME else layer
    row, column = row * load(args, CONV_SUMS.stride + 1) + top, column * load(args, CONV_SUMS.stride + 2) + left
    in_x = image * (groups * inputs * D * H * W) + ((layer * H + row) * W + column)
    leap_d = load(args, CONV_SUMS.leap) if VOLUME else 0
    leap_h, leap_w = load(args, CONV_SUMS.leap + 1), load(args, CONV_SUMS.leap + 2)
    x = ptr(load(args, CONV_SUMS.x), T) + group * inputs * D * H * W
    outputs, channel = load(args, CONV_SUMS.outputs) - band * M, group * load(args, CONV_SUMS.outputs) + band * M
    weight = ptr(load(args, CONV_SUMS.weight), T) + (
        group * load(args, CONV_SUMS.of_group) + band * M * load(args, CONV_SUMS.of_output)
    )
    memory, zero = ptr(shared(ROOM), A), fill(0.0, A, N)
    total = repeated(zero, M, 1)
    volume, row_step, layer_step = D * H * W, leap_h * W, leap_d * H * W
    pair, pairs, first, b, c = 0, many_d * many_h * many_w * inputs, 0, 0, 0
    over, down, along, shift, start = 0, 0, 0, 0, 0  # where the tap is in x, beside the first one
    while pair < pairs:
        stop, at = min(pairs, pair + load(args, CONV_SUMS.chunk)), 0
        barrier()
        taps = many_d, many_h, many_w, first_d, first_h, first_w
        bring_weight(args, memory, weight, taps, pair, stop, outputs, M)
        barrier()
        while pair < stop:
            inside = valid & within(row + down, H) & within(column + along, W)
            if VOLUME:
                inside = inside & within(layer + over, D)
            places, plane, last = in_x + (shift + along), x + first * volume, min(inputs, first + stop - pair)
            for _ in range(first, last):
                total = outer_product(total, vload_aligned(memory, at, M), vpick(plane, places, inside), False)
                plane, at = plane + volume, at + M
            pair += last - first
            first = last
            if last == inputs:  # the next tap; by quotients it took 100 instructions
                first, c, along = 0, c + 1, along + leap_w
                if c == many_w:
                    b, c, down, along, shift = b + 1, 0, down + leap_h, 0, shift + row_step
                    if b == many_h:
                        b, down, over, start = 0, 0, over + leap_d, start + layer_step
                        shift = start
    size = load(args, CONV_SUMS.out + 1) * load(args, CONV_SUMS.out + 2)
    size = load(args, CONV_SUMS.out) * size if VOLUME else size
    in_y = in_y + image * (groups * load(args, CONV_SUMS.outputs) * size)
    for m in range(M):
        if m < outputs:
            value = of_output(total, m, zero)
            if load(args, CONV_SUMS.bias) != 0:
                value = value + load(ptr(load(args, CONV_SUMS.bias), T), channel + m)
            vput(ptr(load(args, CONV_SUMS.y), T) + (channel + m) * size, in_y, value, valid)
    return 0


@jit.inline
def each(args, lo, hi, T, A, N, K_H, K_W, S_H, S_W, G_H, G_W):
    """N neighbouring places of a row of y for each of [lo, hi), of planes that each are made of one plane of x.

    Windows (K: elements, S: steps, G: gaps) are constants, so that loops are unrolled, and what neighbouring places
    share is loaded once: 18 elements for four places of 3 x 3 in place of 36. `tiles` are the vectors of a row.
    """
    H, W = load(args, CONV_SUMS.size + 1), load(args, CONV_SUMS.size + 2)
    OH, OW = load(args, CONV_SUMS.out + 1), load(args, CONV_SUMS.out + 2)
    outputs, vectors = load(args, CONV_SUMS.outputs), load(args, CONV_SUMS.tiles)
    channels = load(args, CONV_SUMS.groups) * outputs
    for index in range(lo, hi):
        line = ratio(index, vectors)
        plane, first = ratio(line, OH), (index - line * vectors) * N
        source = ratio(plane, outputs) if outputs > 1 else plane
        channel = plane - ratio(plane, channels) * channels
        x = ptr(load(args, CONV_SUMS.x), T) + source * H * W
        weight = ptr(load(args, CONV_SUMS.weight), T) + channel * (K_H * K_W)
        top = (line - plane * OH) * S_H - load(args, CONV_SUMS.pad + 1)
        column, total = ramp(first, I32, N) * S_W - load(args, CONV_SUMS.pad + 2), fill(0.0, A, N)
        for a in range(K_H):
            row = top + a * G_H
            width = W if 0 <= row < H else 0
            for b in range(K_W):
                at = column + b * G_W
                total = muladd(vpick(x, row * W + at, within(at, width)), load(weight, a * K_W + b), total)
        if load(args, CONV_SUMS.bias) != 0:
            total = total + load(ptr(load(args, CONV_SUMS.bias), T), channel)
        write(ptr(load(args, CONV_SUMS.y), T) + line * OW, first, total, OW - first)
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
