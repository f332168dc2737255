"""Products on the matrix units of Hopper: tiles of c of 128 x `columns`, for as many blocks as there are
multiprocessors, which take tile after tile. Operands are 16-bit floats, float32 as TF32, float8 (e4m3) or int8.

A block has three warpgroups. The first one brings tiles of 128 bytes of k of both operands to a ring of stages in
shared memory: by the copy engine, or, where an address is no multiple of 16, element by element. The others have 64
rows of the tile each: 64 x `columns` sums in registers, float32 or of integers int32, from there through shared memory
to the epilogue, which works on four columns at a time. Two blocks with the widest tiles, one below the other, are a
cluster: each brings a half of b to both.

Operands lie in shared memory as they do in memory: in rows of k, or, of 16-bit floats, (`across`) in rows across it,
which the units transpose. Both are swizzled: the 16 bytes number j of a row i of 128 bytes are at place j ^ (i & 7).
"""

from numba import types

from ...blocks.cuda import JOIN, WGMMA
from ...build import jit
from ...cpu.gemm.epilogue import activate
from ...lang.by_type import by_type
from ...lang.lowp import StorageFloat
from ...lang.memory import as_words
from ...lang.mma import load_shared
from ...lang.products import (
    ROW,
    add_columns,
    finish_products,
    load_sums,
    multiply_tiles,
    no_sums,
    store_pairs,
    store_sums,
)
from ...lang.ptx import (
    barrier,
    barrier_arrive,
    barrier_arrive_in,
    barrier_expect,
    barrier_new,
    barrier_of,
    barrier_wait,
    block,
    blocks,
    cluster_barrier,
    copy_tile,
    copy_tile_to_both,
    dynamic_shared,
    fence_async,
    fence_barriers,
    rounded_tf32,
    set_registers,
    store_byte,
    store_short,
    store_word,
    thread,
    warp_barrier,
)
from ...lang.simd import address, bitcast, fill, load, ptr, vload_aligned, vstore_aligned
from ..block import read, size_of, write
from .epilogue import alpha_of, bias_of, column_factors, factor_of_row, rows_weighed, weighed

I64, U32, F32, F64 = types.int64, types.uint32, types.float32, types.float64
ROWS = 128  # of c
A_BYTES = ROWS * ROW
SLAB = 64 * ROW  # bytes of 64 rows or columns of an operand
STAGES = {256: 4, 192: 4, 128: 6, 64: 8}
CLUSTER = {256: 2, 192: 2, 128: 1, 64: 1}  # blocks below one another that share what they read of b
GROUP = (
    8  # rows of tiles below one another that follow one another: what they read of b stays in the second-level cache
)
WARPS = 8  # with sums
PIECE = 16 * 64 * 4  # bytes of a warp's 64 columns of sums


@jit.inline
def ratio(x, y):
    """x // y of numbers of 32 bits."""
    return I64(U32(x) // U32(y))


@jit.inline
def in_groups(tile, across, down):
    """(row, column) of a tile of a matrix, which has `down` x `across`."""
    group = ratio(tile, GROUP * across)
    rows = min(down - GROUP * group, GROUP)
    rest = tile - group * GROUP * across
    column = ratio(rest, rows)
    return GROUP * group + rest - column * rows, column


@jit.inline
def tile_of(args, tile):
    """(number in the batch, part of k, tile row, tile column) of a tile."""
    # counted in rows of tiles of a cluster, which are the same for its blocks
    across, down = load(args, WGMMA.across), load(args, WGMMA.down)
    whole = ratio(tile, across * down)
    row, column = in_groups(tile - whole * across * down, across, down)
    matrix = ratio(whole, load(args, WGMMA.splits))
    return matrix, whole - matrix * load(args, WGMMA.splits), row, column


@jit.inline
def steps_of(args, split):
    """The steps of 64 of k that a part has: (first, last + 1)."""
    first = split * load(args, WGMMA.split_steps)
    return first, min(first + load(args, WGMMA.split_steps), load(args, WGMMA.steps))


@by_type
def depth_of(T):
    """Elements of k at a time."""
    depth = ROW * 8 // T.instance_type.bitwidth
    return lambda T: depth


@by_type
def elements(at, T):
    """The pointer to elements at an address, as integers of their size."""
    kind = getattr(types, f"uint{T.instance_type.bitwidth}")
    return lambda at, T: ptr(at, kind)


@by_type
def store_element(at, x, value):
    """Store the bits of an element like those of `x` at a shared address, as the units want them."""
    if x.dtype.bitwidth == 32:
        return lambda at, x, value: store_word(at, rounded_tf32(value))
    if x.dtype.bitwidth == 8:
        return lambda at, x, value: store_byte(at, value)
    return lambda at, x, value: store_short(at, value)


@jit.inline
def gather(to, x, first, count, rows, start, k, stride, k_stride, across):
    """`count` rows from `first` on and 128 bytes of k from `start` on, to shared memory, by 128 threads; 0 beyond."""
    size = size_of(x)
    depth = ROW // size
    for i in range(thread(), count * depth, 128):
        if across:
            row, at = (i & 63) + (i >> 12 << 6), i >> 6 & 63
            place = (row >> 6) * SLAB + at * 128 + (((row >> 3 & 7) ^ (at & 7)) << 4) + (row & 7) * 2
        else:
            row, at = ratio(i, depth), i & (depth - 1)
            place = row * ROW + (((at * size >> 4) ^ (row & 7)) << 4) + (at * size & 15)
        value = I64(0)
        if first + row < rows and start + at < k:
            value = I64(load(x, (first + row) * stride + (start + at) * k_stride))
        store_element(to + place, x, value)


@jit.inline
def descriptor(place, across):
    """What the units know of an operand: its place, 1024 bytes from eight rows to the next, a slab from 64 columns."""
    leading = SLAB // 16 if across else 1
    return (place >> 4 & 0x3FFF) | (1 << 62) | (64 << 32) | (leading << 16)


@jit.inline
def finish(args, memory, row, column, in_c, T, R, ACT):
    """The epilogue of 64 columns of a warp's rows."""
    rows, columns = load(args, WGMMA.rows), load(args, WGMMA.columns)
    lane = thread() & 31
    quad, row, left = lane & 15, row + (lane >> 4), columns - column - (lane & 15) * 4
    c, residual = ptr(load(args, WGMMA.c), R) + in_c, ptr(load(args, WGMMA.residual), R) + in_c
    if left > 0:
        alpha = F32(bitcast(load(args, WGMMA.alpha), F64))
        factors = column_factors(load(args, WGMMA.b_scales), load(args, WGMMA.b_step), columns - left, left, alpha, T)
        bias = bias_of(load(args, WGMMA.bias), columns - left, left, T, R, fill(0.0, F32, 4))
        at, given = row * columns + columns - left, load(args, WGMMA.residual) != 0
        if columns & 3 == 0 and (address(c) | address(residual)) & 15 == 0 and row + 14 < rows:
            # all are there and can be read and written at once: four rows at a time are under way
            place, even, odd = memory + (lane >> 4) * 256 + (quad & 1) * 16, quad >> 1, lane >> 4
            for i in range(0, 16, 8):
                v0 = load_sums(place + i * 256 + ((even ^ odd) << 5), R)
                v1 = load_sums(place + (i + 2) * 256 + ((even ^ (2 | odd)) << 5), R)
                v2 = load_sums(place + (i + 4) * 256 + ((even ^ (4 | odd)) << 5), R)
                v3 = load_sums(place + (i + 6) * 256 + ((even ^ (6 | odd)) << 5), R)
                v0 = weighed(v0, factors, None, R) + bias
                v1 = weighed(v1, factors, None, R) + bias
                v2 = weighed(v2, factors, None, R) + bias
                v3 = weighed(v3, factors, None, R) + bias
                v0, v1, v2, v3 = activate(v0, ACT), activate(v1, ACT), activate(v2, ACT), activate(v3, ACT)
                to = at + i * columns
                if given:
                    r0, r1 = vload_aligned(residual, to, 4), vload_aligned(residual, to + 2 * columns, 4)
                    r2, r3 = vload_aligned(residual, to + 4 * columns, 4), vload_aligned(residual, to + 6 * columns, 4)
                    v0, v1, v2, v3 = v0 + r0, v1 + r1, v2 + r2, v3 + r3
                vstore_aligned(c, to, v0)
                vstore_aligned(c, to + 2 * columns, v1)
                vstore_aligned(c, to + 4 * columns, v2)
                vstore_aligned(c, to + 6 * columns, v3)
            return
        for i in range(0, 16, 2):
            if row + i < rows:
                turn = (quad >> 1 ^ (i & 7 | lane >> 4)) << 5
                value = load_sums(memory + (i + (lane >> 4)) * 256 + turn + (quad & 1) * 16, R)
                value = activate(weighed(value, factors, None, R) + bias, ACT)
                if given:
                    value = value + read(residual, at + i * columns, left, value)
                write(c, at + i * columns, value, left)


@jit.inline
def write_rows(args, memory, row, column, in_c, R):
    """The 128 columns of a warp's rows that `store_pairs` has stored, 16 bytes for a thread, to c."""
    lane, columns = thread() & 31, load(args, WGMMA.columns)
    column += 8 * (lane & 15)
    if column < columns:
        c, left = ptr(load(args, WGMMA.c) + 2 * (in_c + column), U32), load(args, WGMMA.rows) - row - (lane >> 4)
        step, chunk = columns >> 1, lane & 15
        for i in range(0, 16, 2):
            if i < left:
                line = i + (lane >> 4)
                value = load_shared(memory + line * 256 + ((chunk ^ line & 7) << 4), U32, 4, 1, 0)
                vstore_aligned(c, (row + line) * step, value)


def _finish_tile(columns):
    """The function that finishes a warp's 16 rows of a tile of so many columns."""
    second = columns // 8  # the first word of the columns from 128 on

    @jit.inline
    def in_pieces(args, sums, memory, row, column, in_c, T, R, ACT):
        lane, rows = thread() & 31, load(args, WGMMA.rows)
        at, turn = memory + (lane >> 2) * 256 + (lane & 3) * 8, lane >> 2 << 5
        scales, at_step = load(args, WGMMA.a_scales), load(args, WGMMA.a_step)
        finals = rows_weighed(sums, scales, at_step, row + (lane >> 2), rows, T, R)
        for piece in range(columns // 64):
            warp_barrier()
            store_sums(finals, piece, at, turn)
            warp_barrier()
            finish(args, memory, row, column + piece * 64, in_c, T, R, ACT)

    @by_type
    def finish_tile(args, sums, memory, row, column, in_c, T, R, ACT):
        """Of 16-bit results without an activation, pairs are stored, where nothing is added but a bias."""
        narrow = all(isinstance(t.instance_type, StorageFloat) and t.instance_type.bitwidth == 16 for t in (T, R))
        if not narrow or types.none != ACT or columns % 128:
            return lambda args, sums, memory, row, column, in_c, T, R, ACT: in_pieces(
                args, sums, memory, row, column, in_c, T, R, ACT
            )

        def in_pairs(args, sums, memory, row, column, in_c, T, R, ACT):
            bias, count, lane = load(args, WGMMA.bias), load(args, WGMMA.columns), thread() & 31
            if load(args, WGMMA.residual) | (count & 7) | (load(args, WGMMA.c) & 15) | (bias & 3) != 0:
                in_pieces(args, sums, memory, row, column, in_c, T, R, ACT)
                return
            finals, first = sums * F32(bitcast(load(args, WGMMA.alpha), F64)), column + 2 * (lane & 3)
            if bias != 0:
                place = min(first, count - 2)
                finals = add_columns(finals, bias + 2 * place, 2 * (count - 2 - place), T)
            at, turn, words = memory + (lane >> 2) * 256 + (lane & 3) * 4, lane >> 2 << 4, as_words(finals, R)
            warp_barrier()
            store_pairs(words, 0, at, turn)
            warp_barrier()
            write_rows(args, memory, row, column, in_c, R)
            if columns > 128:
                warp_barrier()
                store_pairs(words, second, at, turn)
                warp_barrier()
                write_rows(args, memory, row, column + 128, in_c, R)

        return in_pairs

    return finish_tile


def _product(columns, a_across, b_across):
    """The kernel for tiles of so many columns, operands across k or along it."""
    stages, lanes, cluster = STAGES[columns], columns // 2, CLUSTER[columns]
    b_bytes = columns * ROW
    stage_bytes = A_BYTES + b_bytes
    staging = stages * stage_bytes
    barriers, finish_tile = staging + WARPS * PIECE, _finish_tile(columns)

    @jit.inline
    def copy(args, n, base, T):
        """One thread starts the copies of all tiles."""
        a_map, b_map = address(args) + 8 * WGMMA.map_a, address(args) + 8 * WGMMA.map_b
        stage, phase, tile, rank = 0, 1, block() // cluster, block() % cluster
        while tile < n:
            matrix, split, down, across = tile_of(args, tile)
            outer = ratio(matrix, load(args, WGMMA.inner))
            inner = matrix - outer * load(args, WGMMA.inner)
            a_outer, a_inner = outer * load(args, WGMMA.a_outer), inner * load(args, WGMMA.a_inner)
            b_outer, b_inner = outer * load(args, WGMMA.b_outer), inner * load(args, WGMMA.b_inner)
            row, column = (down * cluster + rank) * ROWS, across * columns + rank * (columns // cluster)
            step, last = steps_of(args, split)
            while step < last:
                full, place, k = base + barriers + 16 * stage, base + stage * stage_bytes, step * depth_of(T)
                barrier_wait(full + 8, phase)
                barrier_expect(full, stage_bytes)
                if a_across:
                    copy_tile(place, a_map, row, k, a_inner, a_outer, full)
                    copy_tile(place + SLAB, a_map, row + 64, k, a_inner, a_outer, full)
                else:
                    copy_tile(place, a_map, k, row, a_inner, a_outer, full)
                if cluster == 2:  # each block brings a half of b, to both
                    to = place + A_BYTES + rank * (b_bytes // 2)
                    if b_across:
                        copy_tile_to_both(to, b_map, column, k, b_inner, b_outer, full)
                        copy_tile_to_both(to + SLAB, b_map, column + 64, k, b_inner, b_outer, full)
                    else:
                        copy_tile_to_both(to, b_map, k, column, b_inner, b_outer, full)
                elif b_across:
                    for i in range(0, columns, 64):
                        copy_tile(place + A_BYTES + i * ROW, b_map, column + i, k, b_inner, b_outer, full)
                else:
                    copy_tile(place + A_BYTES, b_map, k, column, b_inner, b_outer, full)
                step += 1
                stage += 1
                if stage == stages:
                    stage, phase = 0, phase ^ 1
            tile += blocks() // cluster

    @jit.inline
    def bring(args, n, base, T):
        """A warpgroup copies all tiles, element by element."""
        k, stage, phase, tile = load(args, WGMMA.k), 0, 1, block() // cluster
        while tile < n:
            matrix, split, down, across = tile_of(args, tile)
            outer = ratio(matrix, load(args, WGMMA.inner))
            inner = matrix - outer * load(args, WGMMA.inner)
            in_a = outer * load(args, WGMMA.a_outer_stride) + inner * load(args, WGMMA.a_inner_stride)
            in_b = outer * load(args, WGMMA.b_outer_stride) + inner * load(args, WGMMA.b_inner_stride)
            a, b = elements(load(args, WGMMA.map_a), T) + in_a, elements(load(args, WGMMA.map_b), T) + in_b
            step, last = steps_of(args, split)
            while step < last:
                full, place = base + barriers + 16 * stage, base + stage * stage_bytes
                start = step * depth_of(T)
                barrier_wait(full + 8, phase)
                gather(
                    place, a, (down * cluster + block() % cluster) * ROWS, ROWS, load(args, WGMMA.rows), start, k,
                    load(args, WGMMA.a_stride), load(args, WGMMA.a_k), a_across,
                )  # fmt: skip
                gather(
                    place + A_BYTES, b, across * columns, columns, load(args, WGMMA.columns), start, k,
                    load(args, WGMMA.b_stride), load(args, WGMMA.b_k), b_across,
                )  # fmt: skip
                fence_async()
                barrier_of(1, 128)
                if thread() == 0:
                    barrier_arrive(full)
                step += 1
                stage += 1
                if stage == stages:
                    stage, phase = 0, phase ^ 1
            tile += blocks() // cluster

    @jit.inline
    def release(free, lane):
        """A warp needs a stage no more: all that write to it are told."""
        if cluster == 1:
            if lane == 0:
                barrier_arrive(free)
        elif lane < cluster:
            barrier_arrive_in(free, lane)

    @jit.inline
    def multiply(args, n, base, T, R, ACT):
        """A warpgroup sums up 64 rows of all tiles."""
        half, warp, lane = (thread() >> 7) - 1, thread() >> 5 & 3, thread() & 31
        memory = base + staging + (half * 4 + warp) * PIECE
        stage, phase, tile = 0, 0, block() // cluster
        while tile < n:
            matrix, split, down, across = tile_of(args, tile)
            step, last = steps_of(args, split)
            sums, before = no_sums(T, lanes), 0
            while step < last:
                full, place = base + barriers + 16 * stage, base + stage * stage_bytes
                barrier_wait(full, phase)
                left, right = descriptor(place + half * SLAB, a_across), descriptor(place + A_BYTES, b_across)
                sums = multiply_tiles(sums, left, right, T, a_across, b_across)
                if before != 0:  # the stage before is free
                    release(before, lane)
                before = full + 8
                step += 1
                stage += 1
                if stage == stages:
                    stage, phase = 0, phase ^ 1
            sums = finish_products(sums)
            release(before, lane)
            in_c = (matrix * load(args, WGMMA.splits) + split) * load(args, WGMMA.rows) * load(args, WGMMA.columns)
            row = (down * cluster + block() % cluster) * ROWS + half * 64 + warp * 16
            finish_tile(args, sums, memory, row, across * columns, in_c, T, R, ACT)
            tile += blocks() // cluster

    @jit.inline
    def product(args, lo, hi, T, R, ACT):
        base = dynamic_shared()
        if thread() == 0:
            for i in range(stages):
                barrier_new(base + barriers + 16 * i, 1)
                barrier_new(base + barriers + 16 * i + 8, WARPS * cluster)
            fence_barriers()
            fence_async()
        barrier()
        if cluster > 1:
            cluster_barrier()
        if thread() < 128:
            set_registers(56)
            if (load(args, WGMMA.map_a) | load(args, WGMMA.map_b)) & 15 == 0:
                if thread() == 0:
                    copy(args, hi // cluster, base, T)
            else:
                bring(args, hi // cluster, base, T)
        else:
            set_registers(224)
            multiply(args, hi // cluster, base, T, R, ACT)
        if cluster > 1:  # the other block may still write here
            cluster_barrier()
        return 0

    return product


# `nt`: both operands in rows of k, as `linear` has them; the first letter is `t` where a lies across k, the second `n`
# where b does.
nt_256, nt_192, nt_128, nt_64 = (_product(columns, 0, 0) for columns in STAGES)
nn_256, nn_128, nn_64 = (_product(columns, 0, 1) for columns in (256, 128, 64))
tt_256, tt_128, tt_64 = (_product(columns, 1, 0) for columns in (256, 128, 64))
tn_256, tn_128, tn_64 = (_product(columns, 1, 1) for columns in (256, 128, 64))


@jit.inline
def _total(parts, start, step, splits, left, A):
    """The sum of `splits` vectors, `step` apart, in their order; loads of 8 of them are on their way at once."""
    value = fill(0, A, 4)
    if left >= 4 and (address(parts + start) | address(parts + start + step)) & 15 == 0:
        for first in range(0, splits, 8):
            for i in range(8):
                part = vload_aligned(parts, start + min(first + i, splits - 1) * step, 4)
                value = value + part if first + i < splits else value
    else:
        for i in range(splits):
            value = value + read(parts, start + i * step, left, value)
    return value


@jit.inline
def join(args, lo, hi, T, R, A, ACT):
    """The sum of the parts of k, and the epilogue: four columns of a row of c."""
    columns, parts = load(args, JOIN.columns), ptr(load(args, JOIN.parts), A)
    quads = (columns + 3) // 4
    alpha = alpha_of(load(args, JOIN.alpha), A)
    for item in range(lo, hi):
        row = item // quads
        column = (item - row * quads) * 4
        left, splits = columns - column, load(args, JOIN.splits)
        matrix = row // load(args, JOIN.rows)
        start = ((matrix * splits - matrix) * load(args, JOIN.rows) + row) * columns + column
        value = _total(parts, start, load(args, JOIN.rows) * columns, splits, left, A)
        factors = column_factors(load(args, JOIN.b_scales), load(args, JOIN.b_step), column, left, alpha, T)
        value = weighed(value, factors, factor_of_row(load(args, JOIN.a_scales), row * load(args, JOIN.a_step), T), R)
        value = value + bias_of(load(args, JOIN.bias), column, left, T, R, value)
        value = activate(value, ACT)
        at = row * columns + column
        if load(args, JOIN.residual) != 0:
            value = value + read(ptr(load(args, JOIN.residual), R), at, left, value)
        write(ptr(load(args, JOIN.c), R), at, value, left)
    return 0
