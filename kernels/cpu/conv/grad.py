"""The gradient of a convolution's weight: products of the gradient with the padded image, summed over places.

dW[m, c, tap] = sum over n, i, j of g[n, m, i, j] x[n, c, place (i, j) moved by the tap]. A row of the register tile is
an element (c, tap) of the patch, whose values are read as scalars straight from the padded image (`conv.pad_image`);
its columns are channels m, for which a block of g is packed as [places, m]. The images are cut into a number of parts
that the sizes alone determine; each part has sums of its own, added up in one order by `join_parts`.

The argument block is that of `conv.correlate` (with M = results' channels, but pairs of bfloat16 are neighbours of a
row here), except:
  1 g   2 sums [parts, groups, elements of a patch, columns]   3 where the packed g lies in the scratch (bytes)
  14-15 strides of g: image, channel   16 parts   17 images   22 channels of a unit   23 units that share them out
  31 rows, 32 columns of g   35 columns of the sums   36 images (blocks of rows) that are packed together: their
  products meet the same sums, which for large weights come from memory   37 bytes of a padded image
  the taps begin where the phases of the input end, as (offset, index).
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from ...build import jit
from ...lang.simd import load, ptr, stack, store, vload_first, vstore
from ...lang.vector import I64, element_type, literal_of, splat
from ..gemm.microkernel import (
    add_products_of,
    depth,
    is_pair,
    itemsize,
    lanes,
    lanes_of,
    panel_ptr,
    panel_type,
    read,
    sum_loop,
    sum_ptr,
    sum_type,
    write,
)
from ..gemm.pack import pack_panels
from .forward import INT64, TABLE, TILE_BYTES, U16, pad_image, store_sums, turn, zero_row

SLACK = 64  # elements behind packed panels, whose last vector is filled up
BEHIND = 4  # a pair may reach one element behind the image, times a zero


@intrinsic(prefer_literal=True)
def tap_product(typingctx, x, offsets, pitch, num_rows, g, steps, sums, sums_stride, T, rows, vectors):
    """sums[r, :] += sum over `num_rows` and `steps` of x[offsets[r] + row * pitch + step] g[row, step, :].

    `offsets` and `pitch` are in bytes, `sums_stride` in elements; g is [num_rows, steps, vectors * lanes]. A step of
    bfloat16 is a pair of neighbours. The last two arguments are literals.
    """
    height, across = literal_of(rows), literal_of(vectors)
    if height is None or across is None or not isinstance(T, types.NumberClass):
        return None
    dtype = T.instance_type
    count, size = lanes_of(dtype), panel_type(dtype).bitwidth // 8

    def codegen(context, builder, sig, args):
        one = element_type(panel_type(dtype))
        vector, total = ir.VectorType(one, count), ir.VectorType(element_type(sum_type(dtype)), count)

        def integer(index):
            return context.cast(builder, args[index], sig.args[index], types.int64)

        pitch, num_rows, steps = integer(2), integer(3), integer(5)
        sums_stride = builder.mul(integer(7), ir.Constant(I64, size))
        sources = [builder.add(args[0], read(builder, args[1], I64, 8, 8 * i)) for i in range(height)]

        def step(at, sums):
            right = [read(builder, at[1], vector, size, j * count * size) for j in range(across)]
            new = []
            for i in range(height):
                left = read(builder, builder.add(sources[i], at[0]), one, 2 if is_pair(dtype) else size)
                left = splat(builder, left, count)
                for j in range(across):
                    new.append(add_products_of(builder, left, right[j], sums[i * across + j]))
            return new

        def row(at, sums):
            _, sums = sum_loop(builder, steps, at, [size, across * count * size], sums, step)
            return sums

        rows = [builder.add(args[6], builder.mul(sums_stride, ir.Constant(I64, i))) for i in range(height)]
        start = [read(builder, p, total, size, j * count * size) for p in rows for j in range(across)]
        length = builder.mul(steps, ir.Constant(I64, across * count * size))
        values = rows_loop(builder, num_rows, [ir.Constant(I64, 0), args[4]], [pitch, length], start, row)
        for index, value in enumerate(values):
            write(builder, value, rows[index // across], size, index % across * count * size)
        return context.get_dummy_value()

    sig = types.void(x, offsets, pitch, num_rows, g, steps, sums, sums_stride, T, rows, vectors)
    return sig, codegen


def rows_loop(builder, times, pointers, strides, totals, body):
    """As `sum_loop`, with strides that are values; the new totals."""
    entry = builder.block
    loop, done = builder.append_basic_block("rows.loop"), builder.append_basic_block("rows.done")
    builder.cbranch(builder.icmp_signed(">", times, ir.Constant(I64, 0)), loop, done)
    builder.position_at_end(loop)
    carried = []
    for start in [ir.Constant(I64, 0), *pointers, *totals]:
        phi = builder.phi(start.type)
        phi.add_incoming(start, entry)
        carried.append(phi)
    split = 1 + len(pointers)
    new = body(carried[1:split], carried[split:])
    following = [builder.add(p, s) for p, s in zip(carried[:split], [ir.Constant(I64, 1), *strides])]
    for phi, value in zip(carried, [*following, *new]):
        phi.add_incoming(value, builder.block)
    last = builder.block
    builder.cbranch(builder.icmp_signed("<", following[0], times), loop, done)
    builder.position_at_end(done)
    results = []
    for before, after in zip(totals, new):
        phi = builder.phi(before.type)
        phi.add_incoming(before, entry)
        phi.add_incoming(after, last)
        results.append(phi)
    return results


def image_ptr(address, T):
    """The pointer to elements of a padded image: bfloat16 that is multiplied in pairs keeps its bits."""
    raise NotImplementedError("`image_ptr` is for jitted code")


@overload(image_ptr)
def _image_ptr(address, T):
    if is_pair(T.instance_type):
        return lambda address, T: ptr(address, U16)
    return lambda address, T: sum_ptr(address, T)


def source_ptr(address, T):
    """The pointer at an image to copy into what `image_ptr` points to."""
    raise NotImplementedError("`source_ptr` is for jitted code")


@overload(source_ptr)
def _source_ptr(address, T):
    if is_pair(T.instance_type):
        return lambda address, T: ptr(address, U16)
    return lambda address, T: ptr(address, T)


@jit.inline
def weight_sums(args, lo, hi, T, R, V):
    """Units [lo, hi): the sums of a part of the images for some channels of a group."""
    M, C, groups, blocks, shares = load(args, 7), load(args, 8), load(args, 9), load(args, 21), load(args, 23)
    pitch, block_rows, k_total, width = load(args, 24), load(args, 20), load(args, 33), load(args, 35)
    parts, places, OH, OW = load(args, 16), load(args, 17) * load(args, 21), load(args, 31), load(args, 32)
    scratch = load(args, 4) + lo // load(args, 6) * load(args, 5)
    offsets, packed = ptr(scratch + load(args, 34), INT64), panel_ptr(scratch + load(args, 3), T)
    across, pair = V * lanes(T), depth(T)
    size = itemsize(T) if pair == 2 else 8 if itemsize(T) == 8 else 4
    rows_of_k = (k_total + R - 1) // R * R
    patch_offsets(args, offsets, C, k_total, rows_of_k, size)
    steps = (OW + pair - 1) // pair
    block_size = load(args, 22) * block_rows * steps + SLACK
    for unit in range(lo, hi):
        share, rest = unit % shares, unit // shares
        part, group = rest // groups, rest % groups
        first = share * load(args, 22)
        count = min(load(args, 22), M - first)
        panels = (count + across - 1) // across
        sums = sum_ptr(load(args, 2), T) + ((part * groups + group) * rows_of_k * width + first)
        for k in range(rows_of_k):
            zero_row(sums, k * width, k * width + panels * across)
        stop = (part + 1) * places // parts
        for begin in range(part * places // parts, stop, load(args, 36)):
            together = min(load(args, 36), stop - begin)
            for i in range(together):
                n, row = (begin + i) // blocks, (begin + i) % blocks * block_rows
                x = source_ptr(load(args, 0), T) + (n * load(args, 10) + group * C * load(args, 11))
                buffer = image_ptr(scratch + i * load(args, 37), T)
                pad_image(args, buffer, x, row, C, 1)
                zero_row(buffer, C * load(args, 25), C * load(args, 25) + BEHIND)
                g = ptr(load(args, 1), T) + (n * load(args, 14) + (group * M + first) * load(args, 15) + row * OW)
                pack_places(packed + i * block_size, g, count, min(block_rows, OH - row), OW, load(args, 15), across, T)
            for k in range(0, k_total, R):
                for j in range(panels):
                    target = sums + (k * width + j * across)
                    for i in range(together):
                        num_rows = min(block_rows, OH - (begin + i) % blocks * block_rows)
                        block = packed + (i * block_size + j * num_rows * steps * across)
                        buffer = image_ptr(scratch + i * load(args, 37), T)
                        tap_product(buffer, offsets + k, pitch * size, num_rows, block, steps, target, width, T, R, V)
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
    channel, at = load(args, 25), TABLE + 2 * load(args, 30)
    taps = k_total // C
    for c in range(C):
        for t in range(taps):
            store(offsets, c * taps + t, (c * channel + load(args, at + 2 * t)) * size)
    for k in range(k_total, rows_of_k):
        store(offsets, k, 0)


@jit.inline
def join_parts(args, lo, hi, T):
    """Weights of channels. args: 0 sums, 1 dW, 2 parts, 3 groups, 4 M, 5 elements of a patch, 6 padded, 7 columns.

    [lo, hi) counts blocks of as many channels as a vector has lanes, group by group.
    """
    parts, groups, M, k_total = load(args, 2), load(args, 3), load(args, 4), load(args, 5)
    padded, width, count = load(args, 6), load(args, 7), lanes(T)
    blocks = (M + count - 1) // count
    tile, turned = sum_ptr(stack(TILE_BYTES), T), sum_ptr(stack(TILE_BYTES), T)
    for unit in range(lo, hi):
        group, m = unit // blocks, unit % blocks * count
        valid = min(count, M - m)
        target = ptr(load(args, 1), T) + (group * M + m) * k_total
        for k in range(0, k_total, count):
            some = min(count, k_total - k)
            at = sum_ptr(load(args, 0), T) + ((group * padded + k) * width + m)
            for i in range(some):
                add_up(tile + i * count, at + i * width, parts, groups * padded * width, valid)
            turn(turned, tile, count, count)
            for i in range(valid):
                store_sums(target + (i * k_total + k), 1, turned + i * count, some, 0.0)
    return 0


def add_up(row, sums, parts, step, valid):
    """row = the sum of `parts` vectors that lie `step` apart, in order."""
    raise NotImplementedError("`add_up` is for jitted code")


@overload(add_up)
def _add_up(row, sums, parts, step, valid):
    count = lanes_of(row.dtype)

    def implementation(row, sums, parts, step, valid):
        total = vload_first(sums, 0, count, valid)
        for part in range(1, parts):
            total = total + vload_first(sums, part * step, count, valid)
        vstore(row, 0, total)

    return implementation
