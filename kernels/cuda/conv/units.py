"""Convolutions of 16-bit floats by their definition on the matrix units of warps, of any dims: a product whose columns
are never written.

A warp has 16 R outputs of a group and 8 N places. For each tap, 16 channels of its places come from memory (mostly the
first-level cache, as taps share them) to the registers from which the units take them. Weights are packed before, in
the order in which threads read them: 16 bytes of each thread for 16 outputs, 16 channels and a tap.
"""

from numba import types

from ...blocks.cuda import CONV_SUMS
from ...build import jit
from ...cpu.conv.pooling import three
from ...lang.fragments import multiply_columns, pick_pairs
from ...lang.mma import some_lanes
from ...lang.near import each
from ...lang.ptx import WARP, thread, threads
from ...lang.simd import fill, load, ptr, ramp, store, vload_aligned, vput
from ...lang.tiles import columns, pair, spread
from ..gemm.wgmma import ratio
from .columns import within
from .direct import split
from .sizes import DEPTH

I32, I64, F32, U16, U32 = types.int32, types.int64, types.float32, types.uint16, types.uint32


@jit.inline
def weight_of(args, weight, output, channel, tap):
    """The bits of a weight of a group; 0 where there is none."""
    if output >= load(args, CONV_SUMS.outputs) or channel >= load(args, CONV_SUMS.inputs):
        return U32(0)
    at = output * load(args, CONV_SUMS.of_output) + channel * load(args, CONV_SUMS.of_input) + tap
    return U32(load(weight, at))


@jit.inline
def pack(args, lo, hi, R):
    """The weights of a thread for 16 outputs and a step, for each of [lo, hi): (group, band, step, thread, 16 of R)."""
    steps, bands = load(args, CONV_SUMS.chunk), load(args, CONV_SUMS.bands)
    blocks = (load(args, CONV_SUMS.inputs) + DEPTH - 1) // DEPTH
    to = ptr(load(args, CONV_SUMS.y), U32)
    for item in range(lo, hi):
        of_thread = ratio(item, R)
        step, own = of_thread // WARP, of_thread % WARP
        part = ratio(step, steps)
        group = ratio(part, bands)
        tap = ratio(step - part * steps, blocks)
        first = ((part - group * bands) * R + item - of_thread * R) * 16 + own // 4
        channel = (step - part * steps - tap * blocks) * DEPTH + 4 * (own % 4)
        weight = ptr(load(args, CONV_SUMS.weight), U16) + group * load(args, CONV_SUMS.of_group)
        for word in range(4):
            output, own_channel = first + 8 * (word & 1), channel + 2 * (word >> 1)
            low, high = (
                weight_of(args, weight, output, own_channel, tap),
                weight_of(args, weight, output, own_channel + 1, tap),
            )
            store(to, 4 * item + word, U32(low | U32(high << U32(16))))
    return 0


@jit.inline
def channels_of(x, left, volume, places, inside, WHOLE):
    """Two neighbouring channels of places, from x on, in words; 0 outside, and behind the `left` channels there."""
    if WHOLE:
        return pick_pairs(x, volume, places, inside)
    words = pick_pairs(x + volume * min(0, left - 1), volume if left > 1 else 0, places, inside & (left > 0))
    return words & (U32(0xFFFFFFFF) if left > 1 else U32(0xFFFF))


def _sums(R, N):
    """The kernel for 16 R outputs and 8 N places of a warp."""
    words, values, lanes = 4 * R, 4 * N, 4 * R * N

    @jit.inline
    def write_rows(state, i):
        """16 outputs of the places of a warp."""
        args, sums, y, in_y, valid, output, bias, size = state
        own = some_lanes(sums, i, values) if R > 1 else sums
        rows = pair(I32(output + 16 * i), I32(output + 16 * i + 8))
        ok = valid & (spread(rows, values) < load(args, CONV_SUMS.outputs))
        if load(args, CONV_SUMS.bias) != 0:
            last = load(args, CONV_SUMS.outputs) - 1
            more = pair(F32(load(bias, min(output + 16 * i, last))), F32(load(bias, min(output + 16 * i + 8, last))))
            own = own + spread(more, values)
        vput(y + (output + 16 * i) * size, in_y, own, ok)
        return 0

    @jit.inline
    def sums(args, lo, hi, T, VOLUME, WHOLE):
        """A tile of places of a band of the outputs of a group; all warps of the block have places of their own."""
        D, H, W = three(args, CONV_SUMS.size, VOLUME)
        inputs, groups, outputs = (
            load(args, CONV_SUMS.inputs),
            load(args, CONV_SUMS.groups),
            load(args, CONV_SUMS.outputs),
        )
        part = ratio(lo, load(args, CONV_SUMS.tiles))
        group = ratio(part, load(args, CONV_SUMS.bands))
        own, volume = thread() % WARP, D * H * W
        first = ((lo - part * load(args, CONV_SUMS.tiles)) * (threads() // WARP) + thread() // WARP) * (8 * N)
        out_d, out_h, out_w = three(args, CONV_SUMS.out, VOLUME)
        size = out_d * out_h * out_w
        count = load(args, CONV_SUMS.images) * size
        place = ramp(0, I32, N) * 8 + (first + own // 4)
        valid = place < count
        above, column = split(place, out_w)
        image, row = split(above, out_h)
        layer = fill(0, I32, N)
        if VOLUME:
            image, layer = split(image, out_d)
            layer = layer * load(args, CONV_SUMS.stride) - load(args, CONV_SUMS.pad)
        row = row * load(args, CONV_SUMS.stride + 1) - load(args, CONV_SUMS.pad + 1)
        column = column * load(args, CONV_SUMS.stride + 2) - load(args, CONV_SUMS.pad + 2)
        in_x = image * (groups * inputs * volume) + ((layer * H + row) * W + column)
        x = ptr(load(args, CONV_SUMS.x), U16) + (group * inputs + 4 * (own % 4)) * volume
        steps = load(args, CONV_SUMS.chunk)
        packed, at = ptr(load(args, CONV_SUMS.weight), U32) + (part * steps * WARP + own) * words, 0
        total, mine = fill(0.0, F32, lanes), inputs - 4 * (own % 4)
        for a in range(load(args, CONV_SUMS.kernel) if VOLUME else 1):
            over = a * load(args, CONV_SUMS.gap) if VOLUME else 0
            of_layer = valid & within(layer + over, D) if VOLUME else valid
            for b in range(load(args, CONV_SUMS.kernel + 1)):
                down = b * load(args, CONV_SUMS.gap + 1)
                of_row, shift = of_layer & within(row + down, H), (over * H + down) * W
                for c in range(load(args, CONV_SUMS.kernel + 2)):
                    along = c * load(args, CONV_SUMS.gap + 2)
                    inside, places = of_row & within(column + along, W), in_x + (shift + along)
                    for channel in range(0, inputs, DEPTH):
                        plane, left = x + channel * volume, mine - channel
                        upper = channels_of(plane, left, volume, places, inside, WHOLE)
                        lower = channels_of(plane + 2 * volume, left - 2, volume, places, inside, WHOLE)
                        total = multiply_columns(total, vload_aligned(packed, at, words), upper, lower, T)
                        at += WARP * words
        output = (part - group * load(args, CONV_SUMS.bands)) * (16 * R) + own // 4
        place = columns(values) + I32(first + 2 * (own % 4))
        image, _ = split(place, size)
        in_y = place + image * ((groups * outputs - 1) * size) + spread(pair(I32(0), I32(8 * size)), values)
        y = ptr(load(args, CONV_SUMS.y), T) + group * outputs * size
        bias = ptr(load(args, CONV_SUMS.bias), T) + group * outputs
        each(R, write_rows, (args, total, y, in_y, place < count, output, bias, size))
        return 0

    return sums


sums_1_2, sums_1_4, sums_2_2, sums_2_4, sums_4_2, sums_4_4 = (_sums(R, N) for R in (1, 2, 4) for N in (2, 4))
