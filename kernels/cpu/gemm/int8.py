"""C = A B for int8 matrices, exactly, in int32: four products of bytes at a time (`vpdpbusd`, where the CPU has it).

The instruction takes unsigned bytes on one side, so A is packed as a + 128, and sums of a column of B times 128 are
what the sums begin with, negated. Blocks are packed as in blocked.py: panels of ROWS rows of A and of VECTORS vectors
of B, whose elements are int32 with four neighbours along k; what is missing at the end of k is zero in B.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...blocks.gemm import BYTES
from ...build import jit
from ...lang.simd import address, convert, fill, load, ptr, stack, store, vload, vload_first, vstore_first
from ...lang.vector import I32, literal_of, splat
from ..quant.tile import dot_bytes
from .blocked import batch_offsets
from .blocking import LANES, ROWS, VECTORS
from .microkernel import read, sum_loop, write

INT8, INT32, UINT8 = types.int8, types.int32, types.uint8
ACROSS = VECTORS * LANES
TILE_BYTES = ROWS * VECTORS * 64
FLIP = -2139062144  # 0x80808080 as int32: a + 128 in each byte of a


@intrinsic(prefer_literal=True)
def byte_tile(typingctx, a, b, starts, tile, steps, rows):
    """tile[rows, ACROSS] = starts[ACROSS] + the products of panels `a` [steps, ROWS] and `b` [steps, ACROSS]."""
    height = literal_of(rows)
    if height is None:
        return None

    def codegen(context, builder, sig, args):
        vector = ir.VectorType(I32, LANES)

        def body(at, sums):
            right = [read(builder, at[1], vector, 4, 4 * j * LANES) for j in range(VECTORS)]
            new = []
            for i in range(height):
                left = splat(builder, read(builder, at[0], I32, 4, 4 * i), LANES)
                for j in range(VECTORS):
                    new.append(dot_bytes(builder, sums[i * VECTORS + j], left, right[j]))
            return new

        steps = context.cast(builder, args[4], sig.args[4], types.int64)
        first = [read(builder, args[2], vector, 4, 4 * j * LANES) for j in range(VECTORS)] * height
        _, sums = sum_loop(builder, steps, args[:2], [4 * ROWS, 4 * ACROSS], first, body)
        for index, value in enumerate(sums):
            write(builder, value, args[3], 4, 4 * index * LANES)
        return context.get_dummy_value()

    return types.void(a, b, starts, tile, steps, rows), codegen


@intrinsic
def column_sums(typingctx, b, starts, steps):
    """starts[ACROSS] = -128 times the sums of the columns of a panel `b`."""

    def codegen(context, builder, sig, args):
        vector = ir.VectorType(I32, LANES)
        ones, zero = ir.Constant(vector, [0x01010101] * LANES), ir.Constant(vector, [0] * LANES)

        def body(at, sums):
            right = [read(builder, at[0], vector, 4, 4 * j * LANES) for j in range(VECTORS)]
            return [dot_bytes(builder, s, ones, r) for s, r in zip(sums, right)]

        steps = context.cast(builder, args[2], sig.args[2], types.int64)
        _, sums = sum_loop(builder, steps, args[:1], [4 * ACROSS], [zero] * VECTORS, body)
        for j, value in enumerate(sums):
            value = builder.mul(value, ir.Constant(vector, [-128] * LANES))
            write(builder, value, args[1], 4, 4 * j * LANES)
        return context.get_dummy_value()

    return types.void(b, starts, steps), codegen


@jit.inline
def quad(x, k_stride, left):
    """Four bytes along k as an int32, of which `left` exist and the others are zero."""
    if k_stride == 1 and left >= 4:
        return load(ptr(address(x), INT32), 0)
    value = INT32(0)
    for e in range(min(4, left)):
        value |= INT32(INT32(load(ptr(address(x), UINT8), e * k_stride)) << INT32(8 * e))
    return value


@jit.inline
def pack_quads(panel, x, valid, k, stride, k_stride, width, flip):
    """panel[p, i] = bytes 4 p to 4 p + 3 along k of row i of x, flipped by `flip`; rows from `valid` on repeat."""
    for p in range(0, k, 4):
        row, at = x + p * k_stride, panel + p // 4 * width
        if stride == 1 and p + 4 <= k:
            for i in range(0, width, LANES):
                bits, total = ptr(address(row), UINT8), fill(0, INT32, LANES)
                for e in range(4):
                    part = convert(vload_first(bits, e * k_stride + i, LANES, max(0, valid - i)), INT32)
                    total = total | (part << (8 * e))
                vstore_first(at, i, total ^ flip, width - i)
        else:
            for i in range(width):
                store(at, i, quad(row + min(i, valid - 1) * stride, k_stride, k - p) ^ flip)


@jit.inline
def matmul(args, lo, hi, thread):
    """Tiles [lo, hi) of C[M, N] = A[M, K] B[K, N], each some columns of one matrix of the batch."""
    M, N, K = load(args, BYTES.rows), load(args, BYTES.columns), load(args, BYTES.k)
    a_stride, a_k, c_stride = load(args, BYTES.a_stride), load(args, BYTES.a_k), load(args, BYTES.c_stride)
    b_k, b_stride = load(args, BYTES.b_k), load(args, BYTES.b_stride)
    columns, block = load(args, BYTES.width), load(args, BYTES.height)
    scratch = load(args, BYTES.scratch) + thread * load(args, BYTES.thread_bytes)
    steps, tiles = (K + 3) // 4, (N + columns - 1) // columns
    b_panels = ptr(scratch, INT32)
    starts = b_panels + columns * steps
    a_panels = starts + columns
    tile = ptr(stack(TILE_BYTES), INT32)
    for item in range(lo, hi):
        matrix = item // tiles
        first = (item - matrix * tiles) * columns
        width = min(columns, N - first)
        a_offset, b_offset, c_offset = batch_offsets(args, BYTES.batch, matrix)
        b = ptr(load(args, BYTES.b), INT8) + (b_offset + first * b_stride)
        for j in range(0, width, ACROSS):
            panel = b_panels + j * steps
            pack_quads(panel, b + j * b_stride, min(ACROSS, width - j), K, b_stride, b_k, ACROSS, INT32(0))
            column_sums(panel, starts + j, steps)
        for top in range(0, M, block):
            rows = min(block, M - top)
            for i in range(0, rows, ROWS):
                a = ptr(load(args, BYTES.a), INT8) + (a_offset + (top + i) * a_stride)
                pack_quads(a_panels + i * steps, a, min(ROWS, rows - i), K, a_stride, a_k, ROWS, INT32(FLIP))
            for j in range(0, width, ACROSS):
                for i in range(0, rows, ROWS):
                    byte_tile(a_panels + i * steps, b_panels + j * steps, starts + j, tile, steps, ROWS)
                    c = ptr(load(args, BYTES.c), INT32) + (c_offset + (top + i) * c_stride + first + j)
                    for r in range(min(ROWS, rows - i)):
                        for e in range(0, min(ACROSS, width - j), LANES):
                            value = vload(tile, r * ACROSS + e, LANES)
                            vstore_first(c, r * c_stride + e, value, width - j - e)
    return 0
