"""Products of float32 by multiply-adds and of float64 on the matrix units, of any strides: tiles of c for a block.

A few of k at a time go to a ring of stages in shared memory, which the units fill while sums go on. There both operands
lie in rows across k, with 4 elements of nothing behind each, so that neither the copies of a warp nor its reads meet in
a bank. What lies in rows of k is copied element by element, 32 bytes of a row by neighbouring threads.
"""

from numba import types

from ...blocks.cuda import PRODUCT
from ...build import jit
from ...lang.mma import (
    commit_copies,
    copy_4,
    copy_8,
    copy_16,
    load_shared,
    multiply_doubles,
    outer_product,
    some_lanes,
    wait_copies,
)
from ...lang.ptx import WARP, barrier, dynamic_shared, thread
from ...lang.simd import fill, load
from .tiled import finish, place
from .wgmma import ratio

F32, F64 = types.float32, types.float64
PAD = 4  # elements behind a row of shared memory
GROUP = 8  # rows of tiles below one another that follow one another: what they read of b stays in the cache


@jit.inline
def tile_of(args, tile):
    """(matrix, part of k, row, column) of a tile, in tiles."""
    across, tiles = load(args, PRODUCT.across), load(args, PRODUCT.tiles)
    whole = ratio(tile, tiles)
    rest, down = tile - whole * tiles, ratio(tiles, across)
    group = ratio(rest, GROUP * across)
    height = min(down - GROUP * group, GROUP)
    rest -= group * GROUP * across
    column = ratio(rest, height)
    matrix = ratio(whole, load(args, PRODUCT.splits))
    return matrix, whole - matrix * load(args, PRODUCT.splits), GROUP * group + rest - column * height, column


@jit.inline
def first_bits(left, step, most):
    """As many bits as there are i < `most` with i * step < left."""
    return (1 << min(max((left + step - 1) // step, 0), most)) - 1


def _operand(rows, depth, threads, size):
    """How a thread copies its share of `rows` x `depth` of an operand to shared memory: (begin, ends, bring).

    A share is `count` copies, `jump` bytes apart in memory and `hop` bytes in shared memory. What lies in rows of k is
    copied down the rows, anything else along k; `quads`: 16 bytes at once.
    """
    pitch, lanes, count = (rows + PAD) * size, 16 // size, rows * depth // threads
    copy = copy_4 if size == 4 else copy_8
    tall, narrow, wide = threads // depth, threads // rows, threads * lanes // rows
    few = count // lanes

    @jit.inline
    def begin(x, left, stride, k_stride):
        """(address, place in shared memory, bits of the copies that are in the `left` rows, jump, hop, quads)."""
        if stride != size:
            row, at = thread() // depth, thread() % depth
            bits, jump, hop, quads = first_bits(left - row, tall, count), tall * stride, tall * size, False
        else:
            quads = (x | k_stride | left * size) & 15 == 0
            if quads:
                row, at = thread() % (rows // lanes) * lanes, thread() // (rows // lanes)
                jump, hop = wide * k_stride, wide * pitch
            else:
                row, at = thread() % rows, thread() // rows
                jump, hop = narrow * k_stride, narrow * pitch
            bits = -1 if row < left else 0
        return x + row * stride + at * k_stride, at * pitch + row * size, bits, jump, hop, quads

    @jit.inline
    def ends(left, stride, quads):
        """The bits of the copies that are in the `left` last places of k."""
        if stride != size:
            return -1 if thread() % depth < left else 0
        if quads:
            return first_bits(left - thread() // (rows // lanes), wide, few)
        return first_bits(left - thread() // rows, narrow, count)

    @jit.inline
    def bring(to, x, bits, jump, hop, quads):
        """Start a thread's copies."""
        if quads:
            for i in range(few):
                copy_16(to + i * hop, x + i * jump, bits & (1 << i))
        else:
            for i in range(count):
                copy(to + i * hop, x + i * jump, bits & (1 << i))

    return begin, ends, bring


def _product(rows, columns, depth, stages, down, across, size, multiply, keep, lanes):
    """The kernel for tiles of this shape, for `down` x `across` warps."""
    threads = down * across * WARP
    begin_a, ends_a, bring_a = _operand(rows, depth, threads, size)
    begin_b, ends_b, bring_b = _operand(columns, depth, threads, size)
    a_bytes, stage_bytes = (rows + PAD) * depth * size, (rows + columns + 2 * PAD) * depth * size
    ring, behind, dtype = stages * stage_bytes, stages - 2, F32 if size == 4 else F64

    @jit.inline
    def product(args, lo, hi, T, R, ACT):
        matrix, split, tile_row, tile_column = tile_of(args, lo)
        row, column = tile_row * rows, tile_column * columns
        in_a, in_b, in_c = place(args, matrix, PRODUCT.dims, load(args, PRODUCT.ndim))
        in_c += (matrix * load(args, PRODUCT.splits) - matrix + split) * (
            load(args, PRODUCT.rows) * load(args, PRODUCT.columns)
        )
        start, a_k, b_k = split * load(args, PRODUCT.part), load(args, PRODUCT.a_k) * size, load(args, PRODUCT.b_k) * size
        k = min(load(args, PRODUCT.k) - start, load(args, PRODUCT.part))
        a_stride, b_stride = load(args, PRODUCT.a_stride) * size, load(args, PRODUCT.b_stride) * size
        a, a_to, a_bits, a_jump, a_hop, a_quads = begin_a(
            load(args, PRODUCT.a) + in_a * size + row * a_stride + start * a_k,
            load(args, PRODUCT.rows) - row, a_stride, a_k,
        )  # fmt: skip
        b, b_to, b_bits, b_jump, b_hop, b_quads = begin_b(
            load(args, PRODUCT.b) + in_b * size + column * b_stride + start * b_k,
            load(args, PRODUCT.columns) - column, b_stride, b_k,
        )  # fmt: skip
        base, steps, to, current = dynamic_shared(), (k + depth - 1) // depth, 0, 0
        a_to += base
        b_to += base + a_bytes
        sums = fill(0.0, dtype, lanes)
        for step in range(1 - stages, steps):
            if step >= 0:
                wait_copies(behind)
                barrier()
            if step + stages - 1 < steps:
                if k < depth:
                    a_bits &= ends_a(k, a_stride, a_quads)
                    b_bits &= ends_b(k, b_stride, b_quads)
                bring_a(a_to + to, a, a_bits, a_jump, a_hop, a_quads)
                bring_b(b_to + to, b, b_bits, b_jump, b_hop, b_quads)
                a += depth * a_k
                b += depth * b_k
                k -= depth
                to = 0 if to == ring - stage_bytes else to + stage_bytes
            commit_copies()
            if step >= 0:
                sums = multiply(sums, base + current, base + current + a_bytes)
                current = 0 if current == ring - stage_bytes else current + stage_bytes
        wait_copies(0)
        keep(args, sums, row, column, in_c, T, R, ACT)
        return 0

    return product


def _float32(rows, columns, down, across, depth, stages):
    """Warps of 4 x 8 threads: threads 2 i and 2 i + 1 read the same of b, i and i + 2 the same of a."""
    tall, wide = rows // down // 4, columns // across // 8  # what a thread has: quads of rows, quads of columns
    high, broad, a_quads, b_quads = rows // down, columns // across, tall // 4, wide // 4
    a_pitch, b_pitch = (rows + PAD) * 4, (columns + PAD) * 4

    @jit.inline
    def once(sums, a, b, at):
        column = load_shared(a + at * a_pitch, F32, 4, a_quads, 64)
        return outer_product(sums, column, load_shared(b + at * b_pitch, F32, 4, b_quads, 128))

    @jit.inline
    def place_of():
        """The first row and column of this thread."""
        warp, lane = thread() // WARP, thread() % WARP
        y, x = lane // 16 * 2 + lane % 2, lane // 2 % 8
        return warp // across * high + y * 4, warp % across * broad + x * 4

    @jit.inline
    def multiply(sums, a, b):
        row, column = place_of()
        a += row * 4
        b += column * 4
        for at in range(0, depth, 8):
            sums = once(sums, a, b, at)
            sums = once(sums, a, b, at + 1)
            sums = once(sums, a, b, at + 2)
            sums = once(sums, a, b, at + 3)
            sums = once(sums, a, b, at + 4)
            sums = once(sums, a, b, at + 5)
            sums = once(sums, a, b, at + 6)
            sums = once(sums, a, b, at + 7)
        return sums

    @jit.inline
    def keep(args, sums, row, column, in_c, T, R, ACT):
        y, x = place_of()
        for i in range(tall):
            for j in range(b_quads):
                value = some_lanes(sums, i * (b_quads) + j, 4)
                finish(args, value, row + y + i // 4 * 16 + i % 4, column + x + j * 32, in_c, T, R, F32, ACT)

    return _product(rows, columns, depth, stages, down, across, 4, multiply, keep, tall * wide)


def _float64(rows, columns, down, across, depth, stages):
    """Tiles of 16 x 8 by warps."""
    high, broad = rows // down, columns // across
    tall, wide, pairs = high // 16, broad // 8, high // 8
    a_pitch, b_pitch = (rows + PAD) * 8, (columns + PAD) * 8

    @jit.inline
    def place_of():
        """The first row and column of this warp."""
        warp = thread() // WARP
        return warp // across * high, warp % across * broad

    @jit.inline
    def multiply(sums, a, b):
        lane = thread() % WARP
        row, column = place_of()
        a += (row + lane // 4) * 8 + lane % 4 * a_pitch
        b += (column + lane // 4) * 8 + lane % 4 * b_pitch
        for at in range(0, depth, 8):
            a_low = load_shared(a + at * a_pitch, F64, 1, pairs, 64)
            a_high = load_shared(a + (at + 4) * a_pitch, F64, 1, pairs, 64)
            b_low = load_shared(b + at * b_pitch, F64, 1, wide, 64)
            b_high = load_shared(b + (at + 4) * b_pitch, F64, 1, wide, 64)
            sums = multiply_doubles(sums, a_low, a_high, b_low, b_high)
        return sums

    @jit.inline
    def keep(args, sums, row, column, in_c, T, R, ACT):
        lane = thread() % WARP
        y, x = place_of()
        for i in range(pairs):
            for j in range(wide):
                value = some_lanes(sums, (i // 2 * wide + j) * 2 + i % 2, 2)
                at = row + y + i * 8 + lane // 4
                finish(args, value, at, column + x + j * 8 + lane % 4 * 2, in_c, T, R, F64, ACT)

    return _product(rows, columns, depth, stages, down, across, 8, multiply, keep, 4 * tall * wide)


a1 = _float32(128, 128, 2, 2, 8, 4)  # 128 threads, 16 x 8
a2 = _float32(128, 128, 2, 2, 16, 3)
a3 = _float32(128, 128, 4, 2, 8, 4)  # 256 threads, 8 x 8
a4 = _float32(128, 128, 4, 2, 16, 3)
a5 = _float32(64, 64, 2, 2, 16, 3)  # 128 threads, 8 x 4
a6 = _float32(128, 64, 2, 2, 16, 3)  # 128 threads, 16 x 4
a7 = _float32(256, 128, 4, 2, 8, 4)  # 256 threads, 16 x 8
a8 = _float32(64, 64, 2, 2, 8, 4)  # 128 threads, 8 x 4
a9 = _float32(128, 64, 2, 2, 8, 4)  # 128 threads, 16 x 4
d1 = _float64(128, 128, 2, 4, 16, 3)  # 256 threads, 64 x 32 a warp
d2 = _float64(128, 128, 4, 2, 8, 4)  # 32 x 64 a warp
d3 = _float64(64, 64, 2, 2, 16, 3)  # 128 threads, 32 x 32 a warp
d4 = _float64(128, 64, 4, 2, 16, 3)  # 256 threads, 32 x 32 a warp
d5 = _float64(128, 64, 2, 2, 16, 3)  # 128 threads, 64 x 32 a warp
d6 = _float64(128, 128, 2, 4, 8, 4)
d7 = _float64(64, 64, 2, 2, 8, 4)
