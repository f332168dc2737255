"""Products of float32 by multiply-adds and of float64 on the matrix units, of any strides: tiles of c for a block.

A few of k at a time go to a ring of stages in shared memory, which the units fill while sums go on. There both operands
lie in rows across k, with 4 elements of nothing behind each, so that neither the copies of a warp nor its reads meet in
a bank. What lies across k is copied there 16 bytes at once; rows of k of float32 go through registers, which turn them.
Anything else, and float64 in rows of k, is copied element by element. Sums go to their rows through the same memory.
"""

from typing import NamedTuple

from numba import types

from ...blocks.cuda import PRODUCT
from ...build import jit
from ...lang.mma import (
    both,
    commit_copies,
    copy_4,
    copy_8,
    copy_16,
    load_quads,
    load_shared,
    multiply_doubles,
    outer_product,
    shared_stores,
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


class _Mover(NamedTuple):
    """How a thread brings its share of a step of an operand to shared memory.

    `fits(x, left, k, stride, k_stride)`: whether the `left` rows of `k` from address x on can be brought so; strides
    are in bytes. `begin`, of the same: what the others know. `bring(operand, to, step)` starts copies; or
    `take(operand, step)` reads lines to registers, and `put(operand, to, lines)` stores them a step later.
    """

    fits: object
    begin: object
    bring: object
    take: object
    put: object


@jit.inline
def _operand(address, place, bits, rest_bits, jump, k, depth, k_stride):
    """What a mover knows: its pieces are `jump` bytes apart, steps `along`; those of the last step are `rest_bits`."""
    whole, along = k // depth, depth * k_stride
    return address, place, bits, rest_bits, whole, jump, along


@jit.inline
def _bits_of(operand, step):
    """Which of its pieces a thread brings in a step."""
    _, _, bits, rest_bits, whole, _, _ = operand
    return bits if step < whole else rest_bits if step == whole else 0


def _mover(T, fits, begin, copy, count, hop):
    """One that starts `count` copies, `jump` bytes apart in memory and `hop` bytes in shared memory."""

    @jit.inline
    def bring(operand, to, step):
        address, place, _, _, _, jump, along = operand
        bits, x, to = _bits_of(operand, step), address + step * along, to + place
        for i in range(count):
            copy(to + i * hop, x + i * jump, bits & (1 << i))

    @jit.inline
    def take(operand, step):
        return fill(0.0, T, 2)

    @jit.inline
    def put(operand, to, lines):
        pass

    return _Mover(fits, begin, bring, take, put)


def _elements(rows, depth, threads, size, lines):
    """The mover of any strides: element by element, down the rows where they are `lines` of k, else along k."""
    lines = lines or threads < rows
    pitch, count = (rows + PAD) * size, rows * depth // threads
    high, wide = threads // depth, threads // rows
    hop = high * size if lines else wide * pitch

    @jit.inline
    def fits(x, left, k, stride, k_stride):
        return True

    @jit.inline
    def down(x, left, k, stride, k_stride):
        row, at = thread() // depth, thread() % depth
        bits, place, jump = first_bits(left - row, high, count), at * pitch + row * size, high * stride
        rest = bits if at < k % depth else 0
        return _operand(x + row * stride + at * k_stride, place, bits, rest, jump, k, depth, k_stride)

    @jit.inline
    def along(x, left, k, stride, k_stride):
        row, at = thread() % rows, thread() // rows
        bits, rest = -1 if row < left else 0, first_bits(k % depth - at, wide, count)
        place, jump = at * pitch + row * size, wide * k_stride
        return _operand(x + row * stride + at * k_stride, place, bits, bits & rest, jump, k, depth, k_stride)

    copy = copy_4 if size == 4 else copy_8
    return _mover(F32 if size == 4 else F64, fits, down if lines else along, copy, count, hop)


def _quads(rows, depth, threads, size):
    """The mover of rows across k: 16 bytes at once, along k."""
    pitch, lanes = (rows + PAD) * size, 16 // size
    count, wide = rows * depth // threads // lanes, threads * lanes // rows

    @jit.inline
    def fits(x, left, k, stride, k_stride):
        return stride == size and (x | k_stride | left * size) & 15 == 0

    @jit.inline
    def begin(x, left, k, stride, k_stride):
        row, at = thread() % (rows // lanes) * lanes, thread() // (rows // lanes)
        bits, rest = -1 if row < left else 0, first_bits(k % depth - at, wide, count)
        place, jump = at * pitch + row * size, wide * k_stride
        return _operand(x + row * size + at * k_stride, place, bits, bits & rest, jump, k, depth, k_stride)

    return _mover(F32 if size == 4 else F64, fits, begin, copy_16, count, wide * pitch)


def _lines(rows, depth, threads):
    """The mover of rows of k of float32: 16 bytes at once, down the rows, by registers, which turn them."""
    pitch, count, across = (rows + PAD) * 4, rows * depth // threads // 4, depth // 4
    high = threads // across
    store = shared_stores(1, [i * high * 4 + j * pitch for i in range(count) for j in range(4)])

    @jit.inline
    def fits(x, left, k, stride, k_stride):
        return k_stride == 4 and (x | stride | k * 4) & 15 == 0

    @jit.inline
    def begin(x, left, k, stride, k_stride):
        row, at = thread() // across, thread() % across * 4
        bits = first_bits(left - row, high, count)
        rest, place = bits if at < k % depth else 0, at * pitch + row * 4
        return _operand(x + row * stride + at * 4, place, bits, rest, high * stride, k, depth, k_stride)

    @jit.inline
    def bring(operand, to, step):
        pass

    @jit.inline
    def take(operand, step):
        address, _, _, _, _, jump, along = operand
        return load_quads(address + step * along, count, jump, _bits_of(operand, step))

    @jit.inline
    def put(operand, to, lines):
        store(to + operand[1], lines)

    return _Mover(fits, begin, bring, take, put)


def _steps(left, right, a_bytes, stage_bytes, depth, stages, fetch, most, multiply, lanes, early, dtype):
    """The loop over k of the tiles whose operands come by the movers `left` and `right`: a function of them."""
    ring, ahead, behind = stages * stage_bytes, stages - 1, stages - 2
    bring_a, take_a, put_a = left[2:]
    bring_b, take_b, put_b = right[2:]

    @jit.inline
    def sums_of(a, b, k):
        base, steps = dynamic_shared(), (k + depth - 1) // depth
        for step in range(stages):
            bring_a(a, base + step * stage_bytes, step)
            bring_b(b, base + step * stage_bytes + a_bytes, step)
            commit_copies()
        for step in range(stages):  # without branches, so that all are on their way at once
            put_a(a, base + step * stage_bytes, take_a(a, step))
            put_b(b, base + step * stage_bytes + a_bytes, take_b(b, step))
        lines_a, lines_b = take_a(a, stages), take_b(b, stages)
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
                bring_a(a, free, step + stages)
                bring_b(b, free + a_bytes, step + stages)
                put_a(a, free, lines_a)
                put_b(b, free + a_bytes, lines_b)
                lines_a, lines_b = take_a(a, step + stages + 1), take_b(b, step + stages + 1)
            commit_copies()
            sums = multiply(sums, last)
        wait_copies(0)
        barrier()
        return sums

    return sums_of


def _product(rows, columns, depth, stages, threads, layout, size, fetch, most, multiply, store, lanes, early):
    """The kernel for tiles of this shape; `store(at, sums)` brings a thread's sums to rows of shared memory."""
    in_lines, wide, dtype = (layout[0] == "n", layout[1] == "t"), 16 // size, F32 if size == 4 else F64
    any_a, any_b = (_elements(n, depth, threads, size, is_) for n, is_ in zip((rows, columns), in_lines))
    # lines of float64 would be twice as many registers: 2048 x 2048 x 2048 took 440 to 510 us by them, 390 without
    own_a, own_b = (
        (_quads(n, depth, threads, size) if not is_ else _lines(n, depth, threads) if size == 4 else one)
        for n, is_, one in zip((rows, columns), in_lines, (any_a, any_b))
    )
    a_bytes, stage_bytes = (rows + PAD) * depth * size, (rows + columns + 2 * PAD) * depth * size
    common = a_bytes, stage_bytes, depth, stages, fetch, most, multiply, lanes, early, dtype
    whole, single = _steps(own_a, own_b, *common), _steps(any_a, any_b, *common)
    (fits_a, begin_a), (fits_b, begin_b), any_a, any_b = own_a[:2], own_b[:2], any_a.begin, any_b.begin
    across, pitch, pieces = columns // wide, (columns + PAD) * size, rows * columns // wide

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
        a = load(args, PRODUCT.a) + in_a * size + row * a_stride + start * a_k
        b = load(args, PRODUCT.b) + in_b * size + column * b_stride + start * b_k
        a_left, b_left = load(args, PRODUCT.rows) - row, load(args, PRODUCT.columns) - column
        if fits_a(a, a_left, k, a_stride, a_k) and fits_b(b, b_left, k, b_stride, b_k):
            sums = whole(begin_a(a, a_left, k, a_stride, a_k), begin_b(b, b_left, k, b_stride, b_k), k)
        else:
            sums = single(any_a(a, a_left, k, a_stride, a_k), any_b(b, b_left, k, b_stride, b_k), k)
        base = dynamic_shared()
        store(base, sums)
        barrier()
        for i in range(thread(), pieces, threads):
            y, x = i // across, i % across * wide
            value = load_shared(base + y * pitch + x * size, dtype, wide, 1, 0)
            finish(args, value, row + y, column + x, in_c, T, R, dtype, ACT)
        return 0

    return product


def _float32(rows, columns, down, across, depth, stages, layout):
    """Warps of 4 x 8 threads: threads 2 i and 2 i + 1 read the same of b, i and i + 2 the same of a."""
    tall, wide = rows // down // 4, columns // across // 8  # what a thread has: quads of rows, quads of columns
    high, broad, a_quads, b_quads = rows // down, columns // across, tall // 4, wide // 4
    a_pitch, b_pitch = (rows + PAD) * 4, (columns + PAD) * 4
    turning = rows == 64  # up to 9 % faster; 3 % slower where a thread has 128 sums

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
        return outer_product(sums, pair[0], pair[1], turning)

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

    stores = shared_stores(4, [(i // 4 * 16 + i % 4) * b_pitch + j * 128 for i in range(tall) for j in range(b_quads)])

    @jit.inline
    def store(at, sums):
        y, x = place_of()
        stores(at + y * b_pitch + x * 4, sums)

    threads = down * across * WARP
    return _product(rows, columns, depth, stages, threads, layout, 4, fetch, most, multiply, store, tall * wide, True)


def _float64(rows, columns, down, across, depth, stages, layout):
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

    stores = shared_stores(
        2, [i * 8 * b_pitch + j * 64 for p in range(pairs // 2) for j in range(wide) for i in (2 * p, 2 * p + 1)]
    )

    @jit.inline
    def store(at, sums):
        y, x = place_of()
        lane = thread() % WARP
        stores(at + (y + lane // 4) * b_pitch + (x + lane % 4 * 2) * 8, sums)

    threads = down * across * WARP
    return _product(
        rows, columns, depth, stages, threads, layout, 8, fetch, most, multiply, store, pairs * wide * 2, False
    )


# The first letter is `n` where a lies in rows of k, the second `t` where b does, as `linear` has them.
for _layout in ("nt", "nn", "tt", "tn"):
    globals()[f"float32_{_layout}_128_128"] = _float32(128, 128, 2, 2, 8, 4, _layout)
    globals()[f"float32_{_layout}_64_64"] = _float32(64, 64, 2, 2, 8, 4, _layout)
    globals()[f"float32_{_layout}_16_64"] = _float32(16, 64, 1, 1, 8, 4, _layout)
    globals()[f"float64_{_layout}_128_128"] = _float64(128, 128, 2, 4, 16, 3, _layout)
    globals()[f"float64_{_layout}_64_64"] = _float64(64, 64, 2, 2, 8, 4, _layout)
