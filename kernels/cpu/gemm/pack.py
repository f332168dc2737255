"""Packing: a block of a matrix with any strides -> panels that micro-kernels read front to back.

A panel covers `width` rows of A (or columns of B) and all k of the block, as [k, width]; panels follow
one another. Types widen on the way (float16 -> float32), bfloat16 stays in pairs (see microkernel.py).
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...blocks.gemm import PACK
from ...build import isa, jit
from ...lang.by_type import by_type
from ...lang.memory import from_memory
from ...lang.rows import fill_row
from ...lang.simd import address, convert, load, ptr, store, vload, vload_first, vstore
from ...lang.vector import I32, I64, memory_type
from .blocking import VECTORS
from .microkernel import (
    PREFETCH_BYTES,
    depth,
    fetch,
    is_pair,
    lanes,
    lanes_of,
    panel_ptr,
    panel_type,
    prefetch_line,
    read,
    write,
)

K_GROUP = 4  # rows of k
# Whether packing by transposing asks for what comes later. On a Zen 4 whole products of 512 x 2048 x 2048 take 2 %
# less so in bfloat16 and as long in float32. Elsewhere caches see so many streams by themselves: asking took as long as
# the rest of what lies in a cache (float32 of 256 x 1024, AVX2: 2.4e9 elements a second, without 3.9e9), and 3 % of
# whole products by 16 threads of an Emerald Rapids.
_AHEAD = isa.vector_bytes() == 64 and not isa.multiplies_faster_than_it_reads()
U16, U32, INT32 = types.uint16, types.uint32, types.int32


def _shuffle(builder, a, b, picks):
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(picks)), picks))


def _interleave(builder, a, b, width):
    """Elements of a and b in turn: from the lower and from the upper half of each `width` elements."""
    count, half = a.type.count, width // 2
    for start in (0, half):
        chosen = [base + start + e for base in range(0, count, width) for e in range(half)]
        yield _shuffle(builder, a, b, [e + source for e in chosen for source in (0, count)])


def _every_other(builder, a, b, width):
    """The even, and the odd, blocks of `width` elements of a followed by b."""
    count = a.type.count
    for odd in (0, width):
        yield _shuffle(builder, a, b, [s + e for s in range(odd, 2 * count, 2 * width) for e in range(width)])


def _transpose(builder, rows):
    """Transpose n vectors of n elements, with one shuffle instruction per vector and stage."""
    n, width = len(rows), 2 if isinstance(rows[0].type.element, ir.DoubleType) else 4
    squares = []
    for q in range(0, n, width):  # squares within the 128-bit lanes, by perfect shuffles
        square, half = rows[q : q + width], width // 2
        for _ in range(half.bit_length()):
            square = [v for i in range(half) for v in _interleave(builder, square[i], square[i + half], width)]
        squares.append(square)
    columns = [None] * n
    for c in range(width):  # then the lanes themselves
        lanes = [square[c] for square in squares]
        for _ in range(len(squares).bit_length() - 1):
            pairs = [list(_every_other(builder, a, b, width)) for a, b in zip(lanes[::2], lanes[1::2])]
            lanes = [p[0] for p in pairs] + [p[1] for p in pairs]
        columns[c::width] = lanes
    return columns


@intrinsic
def transpose_block(typingctx, panel, width, x, stride, valid):
    """panel[k, i] = x[min(i, valid - 1), k] for a square of as many elements as a register has lanes.

    The rows of `panel` are `width` elements apart, those of `x` are `stride`. Lanes of rows beyond
    `valid` repeat the last row: they end in sums that nobody reads.
    """
    dtype = x.dtype
    n, size = lanes_of(dtype), panel_type(dtype).bitwidth // 8

    def codegen(context, builder, sig, args):
        panel, x = args[0], args[2]
        width, stride, valid = (context.cast(builder, args[i], sig.args[i], types.int64) for i in (1, 3, 4))
        kind = ir.VectorType(I32 if is_pair(dtype) else memory_type(dtype), n)
        item = dtype.bitwidth // 8
        step = builder.mul(stride, ir.Constant(I64, item))
        last = builder.sub(valid, ir.Constant(I64, 1))
        rows = []
        for i in range(n):
            row = ir.Constant(I64, i)
            row = builder.select(builder.icmp_signed("<", row, last), row, last)
            row = builder.add(x, builder.mul(row, step))
            if _AHEAD:
                prefetch_line(builder, row, PREFETCH_BYTES)
            bits = read(builder, row, kind, item)
            rows.append(bits if is_pair(dtype) else from_memory(builder, dtype, bits))
        step = builder.mul(width, ir.Constant(I64, size))
        for column in _transpose(builder, rows):
            write(builder, column, panel, size)
            panel = builder.add(panel, step)
        return context.get_dummy_value()

    return types.void(panel, width, x, stride, valid), codegen


@intrinsic
def transpose_pairs(typingctx, tile):
    """tile[q, r] becomes tile[r, q], for as many rows of 4-byte elements as a register has lanes."""
    n = isa.lanes()

    def codegen(context, builder, sig, args):
        rows = [read(builder, args[0], ir.VectorType(I32, n), 4, 4 * n * i) for i in range(n)]
        for i, column in enumerate(_transpose(builder, rows)):
            write(builder, column, args[0], 4, 4 * n * i)
        return context.get_dummy_value()

    return types.void(tile), codegen


@by_type
def load_unit(x, index, step, whole):
    """One panel element of `x` at `index`; for pairs also the element `step` later, unless not `whole`."""
    if not is_pair(x.dtype):
        return lambda x, index, step, whole: load(x, index)

    def pair(x, index, step, whole):
        bits = ptr(address(x), U16)
        low = U32(load(bits, index))
        high = U32(load(bits, index + step)) if whole else U32(0)
        return INT32(low | (high << U32(16)))

    return pair


@by_type
def load_units(x, index, step, whole, valid):
    """As `load_unit`, for a vector of neighbours of which `valid` exist; the others are zero."""
    count = lanes_of(x.dtype)
    if not is_pair(x.dtype):

        def plain(x, index, step, whole, valid):
            if valid >= count:
                return vload(x, index, count)
            return vload_first(x, index, count, valid)

        return plain

    def pair(x, index, step, whole, valid):
        bits = ptr(address(x), U16)
        if valid >= count and whole:
            low, high = vload(bits, index, count), vload(bits, index + step, count)
            return convert(low, INT32) | (convert(high, INT32) << 16)
        low = convert(vload_first(bits, index, count, valid), INT32)
        high = convert(vload_first(bits, index + step, count, valid if whole else 0), INT32)
        return low | (high << 16)

    return pair


@jit.inline
def pack_panels(panels, panel_stride, x, total, k, stride, k_stride, width, T):
    """Pack x[i, p] = x[i * stride + p * k_stride] for i < total, p < k into panels of `width` rows.

    Panels are `panel_stride` elements apart: beside their own they need space to fill up the last vector.
    Rows beyond `total` become zero or repeats, since they are multiplied: what earlier work has left there may be
    subnormal, and an Emerald Rapids took 100 us for 64 rows by a weight of 10 x 128 then, otherwise 9. `k` is padded
    with zeros to whole pairs.
    """
    count, pair = lanes(T), depth(T)
    groups = (width + count - 1) // count
    whole = k // (count * pair) * (count * pair) if k_stride == 1 else 0
    if stride == 1:  # rows of k are contiguous: a few of them at a time, across the panels
        for first in range(0, k, K_GROUP):
            for start in range(0, total, width):
                panel, left = panels + start // width * panel_stride, total - start
                for p in range(first, min(k, first + K_GROUP), pair):
                    for g in range(groups):
                        at = p * k_stride + start + g * count
                        fetch(x, at + K_GROUP * k_stride)
                        if pair > 1:
                            fetch(x, at + (K_GROUP + 1) * k_stride)
                        # Lanes beyond the panel are overwritten by its next row.
                        units = load_units(x, at, k_stride, p + 1 < k, max(0, left - g * count))
                        vstore(panel, p // pair * width + g * count, units)
        return
    for start in range(0, total, width):
        panel, valid, base = panels + start // width * panel_stride, min(width, total - start), x + start * stride
        if valid < width:
            fill_row(panel, (k + pair - 1) // pair * width, 0)
        for p in range(0, whole, count * pair):
            # The last group of a row of the panel may overlap the next row, so groups go backwards.
            for g in range(groups - 1, -1, -1):
                if g * count < valid:
                    block = panel + (p // pair * width + g * count)
                    transpose_block(block, width, base + (g * count * stride + p), stride, valid - g * count)
        for p in range(whole, k, pair):
            for i in range(valid):
                unit = load_unit(base, i * stride + p * k_stride, k_stride, p + 1 < k)
                store(panel, p // pair * width + i, unit)


@jit.inline
def pack_weight(args, lo, hi, T):
    """Panels [lo, hi) of a weight [N, K] with any strides, each with all of k: what `blocked.matmul` calls packed."""
    N, K, stride, k_stride = (
        load(args, PACK.rows),
        load(args, PACK.k),
        load(args, PACK.stride),
        load(args, PACK.k_stride),
    )
    across, pair = VECTORS * lanes(T), depth(T)
    size = (K + pair - 1) // pair * across
    x, panels = ptr(load(args, PACK.w), T) + lo * across * stride, panel_ptr(load(args, PACK.panels), T) + lo * size
    pack_panels(panels, size, x, min(N, hi * across) - lo * across, K, stride, k_stride, across, T)
    return 0
