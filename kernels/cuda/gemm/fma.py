"""Products of float32 by multiply-adds and of float64 on the matrix units, of any strides: tiles of c for a block.

A few of k at a time go to a ring of stages in shared memory, which the units fill while sums go on. There both operands
lie in rows across k, with 4 elements of nothing behind each, so that neither the copies of a warp nor its reads meet in
a bank. What lies in rows of k is copied element by element, 32 bytes of a row by neighbouring threads.
"""

from numba import types

from ...blocks.cuda import PRODUCT
from ...build import jit
from ...lang.mma import (
    both,
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
from .wgmma import in_groups, ratio

F32, F64 = types.float32, types.float64
PAD = 4  # elements behind a row of shared memory


@jit.inline
def tile_of(args, tile):
    """(matrix, part of k, row, column) of a tile, in tiles."""
    across, tiles = load(args, PRODUCT.across), load(args, PRODUCT.tiles)
    whole = ratio(tile, tiles)
    row, column = in_groups(tile - whole * tiles, across, ratio(tiles, across))
    matrix = ratio(whole, load(args, PRODUCT.splits))
    return matrix, whole - matrix * load(args, PRODUCT.splits), row, column


@jit.inline
def first_bits(left, step, most):
    """As many bits as there are i < `most` with i * step < left."""
    return (1 << min(max((left + step - 1) // step, 0), most)) - 1


def _operand(rows, depth, threads, size):
    """How a thread copies its share of `rows` x `depth` of an operand to shared memory: (begin, bring).

    A share is `count` copies, `jump` bytes apart in memory and `hop` bytes in shared memory. What lies in rows of k is
    copied down the rows, anything else along k; `quads`: 16 bytes at once.
    """
    pitch, lanes, count = (rows + PAD) * size, 16 // size, rows * depth // threads
    copy = copy_4 if size == 4 else copy_8
    tall, narrow, wide = threads // depth, threads // rows, threads * lanes // rows
    few = count // lanes

    @jit.inline
    def begin(x, left, stride, k_stride):
        """What `bring` knows of the `left` rows from address x on; strides are in bytes."""
        quads = stride == size and (x | k_stride | left * size) & 15 == 0
        if stride != size:
            row, at = thread() // depth, thread() % depth
            bits, jump, hop = first_bits(left - row, tall, count), tall * stride, tall * size
        elif quads:
            row, at = thread() % (rows // lanes) * lanes, thread() // (rows // lanes)
            bits, jump, hop = (-1 if row < left else 0), wide * k_stride, wide * pitch
        else:
            row, at = thread() % rows, thread() // rows
            bits, jump, hop = (-1 if row < left else 0), narrow * k_stride, narrow * pitch
        address, place = x + row * stride + at * k_stride, at * pitch + row * size
        return address, place, bits, jump, hop, stride != size, quads, depth * k_stride

    @jit.inline
    def bring(operand, to, step, left):
        """Start a thread's copies of the step number `step`, of which `left` places of k are there."""
        address, place, bits, jump, hop, down, quads, along = operand
        x, to = address + step * along, to + place
        if left < depth:
            if down:
                bits = bits if thread() % depth < left else 0
            elif quads:
                bits &= first_bits(left - thread() // (rows // lanes), wide, few)
            else:
                bits &= first_bits(left - thread() // rows, narrow, count)
        if quads:
            for i in range(few):
                copy_16(to + i * hop, x + i * jump, bits & (1 << i))
        else:
            for i in range(count):
                copy(to + i * hop, x + i * jump, bits & (1 << i))

    return begin, bring


def _product(rows, columns, depth, stages, down, across, size, fetch, most, multiply, keep, lanes, early):
    """The kernel for tiles of this shape, for `down` x `across` warps."""
    threads = down * across * WARP
    begin_a, bring_a = _operand(rows, depth, threads, size)
    begin_b, bring_b = _operand(columns, depth, threads, size)
    a_bytes, stage_bytes = (rows + PAD) * depth * size, (rows + columns + 2 * PAD) * depth * size
    ring, ahead, behind, dtype = stages * stage_bytes, stages - 1, stages - 2, F32 if size == 4 else F64

    @jit.inline
    def product(args, lo, hi, T, R, ACT):
        matrix, split, tile_row, tile_column = tile_of(args, lo)
        row, column = tile_row * rows, tile_column * columns
        in_a, in_b, in_c = place(args, matrix, PRODUCT.dims, load(args, PRODUCT.ndim))
        in_c += (matrix * load(args, PRODUCT.splits) - matrix + split) * (
            load(args, PRODUCT.rows) * load(args, PRODUCT.columns)
        )
        start = split * load(args, PRODUCT.part)
        k = min(load(args, PRODUCT.k) - start, load(args, PRODUCT.part))
        a_stride, a_k = load(args, PRODUCT.a_stride) * size, load(args, PRODUCT.a_k) * size
        b_stride, b_k = load(args, PRODUCT.b_stride) * size, load(args, PRODUCT.b_k) * size
        a = begin_a(
            load(args, PRODUCT.a) + in_a * size + row * a_stride + start * a_k,
            load(args, PRODUCT.rows) - row, a_stride, a_k,
        )  # fmt: skip
        b = begin_b(
            load(args, PRODUCT.b) + in_b * size + column * b_stride + start * b_k,
            load(args, PRODUCT.columns) - column, b_stride, b_k,
        )  # fmt: skip
        base, steps = dynamic_shared(), (k + depth - 1) // depth
        for step in range(stages):
            if step < steps:
                bring_a(a, base + step * stage_bytes, step, k - step * depth)
                bring_b(b, base + step * stage_bytes + a_bytes, step, k - step * depth)
            commit_copies()
        wait_copies(ahead)
        barrier()
        sums, current, coming = fill(0.0, dtype, lanes), base, fetch(base, base + a_bytes, 0)
        for step in range(steps):
            if not early:
                coming = fetch(current, current + a_bytes, 0)
            sums, last = most(sums, current, current + a_bytes, coming)
            wait_copies(behind)
            barrier()  # what the next step reads is there, and all have read what this one does
            free, current = current, base if current == base + ring - stage_bytes else current + stage_bytes
            if early:
                coming = fetch(current, current + a_bytes, 0)
            if step + stages < steps:
                bring_a(a, free, step + stages, k - (step + stages) * depth)
                bring_b(b, free + a_bytes, step + stages, k - (step + stages) * depth)
            commit_copies()
            sums = multiply(sums, last)
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
    def place_of():
        """The first row and column of this thread."""
        warp, lane = thread() // WARP, thread() % WARP
        y, x = lane // 16 * 2 + lane % 2, lane // 2 % 8
        return warp // across * high + y * 4, warp % across * broad + x * 4

    @jit.inline
    def fetch(a, b, at):
        row, column = place_of()
        one = load_shared(a + row * 4 + at * a_pitch, F32, 4, a_quads, 64)
        return one, load_shared(b + column * 4 + at * b_pitch, F32, 4, b_quads, 128)

    @jit.inline
    def multiply(sums, pair):
        return outer_product(sums, pair[0], pair[1])

    @jit.inline
    def most(sums, a, b, first):
        """(sums with all but the last place of k, that one)."""
        one = fetch(a, b, 1)
        sums = multiply(sums, first)
        two = fetch(a, b, 2)
        sums = multiply(sums, one)
        one = fetch(a, b, 3)
        sums = multiply(sums, two)
        two = fetch(a, b, 4)
        sums = multiply(sums, one)
        one = fetch(a, b, 5)
        sums = multiply(sums, two)
        two = fetch(a, b, 6)
        sums = multiply(sums, one)
        one = fetch(a, b, 7)
        sums = multiply(sums, two)
        return sums, one

    @jit.inline
    def keep(args, sums, row, column, in_c, T, R, ACT):
        y, x = place_of()
        for i in range(tall):
            for j in range(b_quads):
                value = some_lanes(sums, i * b_quads + j, 4)
                finish(args, value, row + y + i // 4 * 16 + i % 4, column + x + j * 32, in_c, T, R, F32, ACT)

    return _product(rows, columns, depth, stages, down, across, 4, fetch, most, multiply, keep, tall * wide, True)


def _float64(rows, columns, down, across, depth, stages):
    """Tiles of 16 x 8 by warps."""
    high, broad = rows // down, columns // across
    wide, pairs = broad // 8, high // 8
    a_pitch, b_pitch = (rows + PAD) * 8, (columns + PAD) * 8

    @jit.inline
    def place_of():
        """The first row and column of this warp."""
        warp = thread() // WARP
        return warp // across * high, warp % across * broad

    @jit.inline
    def fetch(a, b, at):
        lane = thread() % WARP
        row, column = place_of()
        a += (row + lane // 4) * 8 + (lane % 4 + at) * a_pitch
        b += (column + lane // 4) * 8 + (lane % 4 + at) * b_pitch
        left = both(load_shared(a, F64, 1, pairs, 64), load_shared(a + 4 * a_pitch, F64, 1, pairs, 64))
        return left, both(load_shared(b, F64, 1, wide, 64), load_shared(b + 4 * b_pitch, F64, 1, wide, 64))

    @jit.inline
    def multiply(sums, pair):
        return multiply_doubles(sums, pair[0], pair[1])

    @jit.inline
    def most(sums, a, b, first):
        for at in range(8, depth, 8):
            sums, first = multiply(sums, first), fetch(a, b, at)
        return sums, first

    @jit.inline
    def keep(args, sums, row, column, in_c, T, R, ACT):
        lane = thread() % WARP
        y, x = place_of()
        for i in range(pairs):
            for j in range(wide):
                value = some_lanes(sums, (i // 2 * wide + j) * 2 + i % 2, 2)
                at = row + y + i * 8 + lane // 4
                finish(args, value, at, column + x + j * 8 + lane % 4 * 2, in_c, T, R, F64, ACT)

    return _product(rows, columns, depth, stages, down, across, 8, fetch, most, multiply, keep, pairs * wide * 2, False)


float32_128_128 = _float32(128, 128, 2, 2, 8, 4)
float32_64_64 = _float32(64, 64, 2, 2, 8, 4)
float64_128_128 = _float64(128, 128, 2, 4, 16, 3)
float64_64_64 = _float64(64, 64, 2, 2, 8, 4)
