"""Blocked matrix product: C = alpha A B + bias, for any strides of A and B, batched.

One launch. The work is cut into tiles of C (a grid over each matrix of the batch); a tile packs its
own blocks of A and B, so threads share nothing and meet once. The loops are those of K. Goto and
R. van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).
"""

from numba import types
from numba.extending import overload

from ...build import jit
from ...lang.simd import address, bitcast, fill, load, ptr, stack, store, vload, vload_first, vstore, vstore_first
from .blocking import (
    BATCH,
    LANES,
    PARTS,
    RESIDUAL,
    ROWS,
    SCRATCH,
    SHORT_ROWS,
    SLICE_BYTES,
    SLICE_ITEMS,
    SPLIT_K,
    SPLITS,
    VECTORS,
)
from .epilogue import finish_row
from .microkernel import depth, fetch, holds_sums, lanes, lanes_of, panel_ptr, sum_ptr, tile_product
from .pack import pack_panels

ROW_BYTES = VECTORS * 64
TILE_BYTES = ROWS * ROW_BYTES


def add_parts(tile, part, part_stride, height, width, first, last):
    """Add the partial sums, which begin with the `first` block of k, to a tile of sums.

    The sum is kept in the tile after the `last` block, else in the partial sums.
    """
    raise NotImplementedError("`add_parts` is for jitted code")


@overload(add_parts)
def _add_parts(tile, part, part_stride, height, width, first, last):
    count = lanes_of(tile.dtype)
    across = VECTORS * count

    def implementation(tile, part, part_stride, height, width, first, last):
        for i in range(height):
            for j in range(0, width, count):
                valid = width - j
                value = vload(tile, i * across + j, count)
                if not first:
                    value = value + vload_first(part, i * part_stride + j, count, valid)
                if last:
                    vstore(tile, i * across + j, value)
                else:
                    vstore_first(part, i * part_stride + j, value, valid)

    return implementation


@jit.inline
def batch_offsets(args, index):
    """Element offsets of matrix `index` of the batch in A, B and C."""
    a = b = c = 0
    for d in range(load(args, BATCH) - 1, -1, -1):
        at = BATCH + 1 + 4 * d
        rest = index // load(args, at)
        i = index - rest * load(args, at)
        a, b, c = a + i * load(args, at + 1), b + i * load(args, at + 2), c + i * load(args, at + 3)
        index = rest
    return a, b, c


@jit.inline
def matmul(args, lo, hi, T, ACT, R):
    """Tiles [lo, hi) of C[M, N] = residual + activation(alpha A[M, K] B[K, N] + bias[N]); columns of C are contiguous.

    C and the residual (which may be C) are of type R. Blocks of `kc` by `nc` of B and of `mc` by `kc` of A are packed
    in turn, into the slice of the scratch that belongs to the first tile, and thus to the thread.
    """
    M, N, K, a_stride, a_k = load(args, 5), load(args, 6), load(args, 7), load(args, 8), load(args, 9)
    b_k, b_stride, c_stride = load(args, 10), load(args, 11), load(args, 12)
    grid_m, grid_n = load(args, 13), load(args, 14)
    mc, kc, nc, packed, part_offset = load(args, 17), load(args, 18), load(args, 19), load(args, 23), load(args, 25)
    scratch = load(args, SCRATCH) + lo // load(args, SLICE_ITEMS) * load(args, SLICE_BYTES)
    a_block, b_block = panel_ptr(scratch, T), panel_ptr(scratch + load(args, 24), T)
    across, pair, height = VECTORS * lanes(T), depth(T), types.int64(ROWS)
    splits = max(1, load(args, SPLITS))
    length = load(args, SPLIT_K) if splits > 1 else K
    for unit in range(lo, hi):
        item, split = unit // splits, unit % splits
        p_start = split * length
        p_stop = min(K, p_start + length)
        matrix = item // (grid_m * grid_n)
        i_tile = (item - matrix * grid_m * grid_n) // grid_n
        i_start, j_start = i_tile * load(args, 15), (item - (matrix * grid_m + i_tile) * grid_n) * load(args, 16)
        i_stop, j_stop = min(M, i_start + load(args, 15)), min(N, j_start + load(args, 16))
        a_offset, b_offset, c_offset = batch_offsets(args, matrix)
        a = ptr(load(args, 0), T) + a_offset
        for j in range(j_start, j_stop, nc):
            columns = min(nc, j_stop - j)
            for p in range(p_start, max(p_stop, 1), kc):  # also once when K is 0: the bias alone
                k = min(kc, p_stop - p)
                steps = (k + pair - 1) // pair
                if packed:
                    panels, b_panel = panel_ptr(load(args, 1), T) + (j // across * packed + p // pair * across), packed
                else:
                    panels, b_panel = b_block, steps * across
                    b = ptr(load(args, 1), T) + (b_offset + j * b_stride + p * b_k)
                    pack_panels(panels, b_panel, b, columns, k, b_stride, b_k, across, T)
                for i in range(i_start, i_stop, mc):
                    rows, c_at, at = min(mc, i_stop - i), c_offset + i * c_stride + j, i * a_stride + p * a_k
                    pack_panels(a_block, (steps + 1) * height, a + at, rows, k, a_stride, a_k, height, T)
                    part, part_stride = sum_ptr(load(args, 2), T) + c_at, c_stride
                    if splits > 1:
                        part = sum_ptr(load(args, SCRATCH) + load(args, PARTS), T) + ((split * M + i) * N + j)
                        part_stride = N
                    elif part_offset:
                        part, part_stride = sum_ptr(scratch + part_offset, T) + (i - i_start) * nc, nc
                    ends = p == p_start, p + k >= p_stop and splits == 1
                    where = part, part_stride, c_at, j
                    block(args, a_block, panels, b_panel, steps, where, rows, columns, ends, T, ACT, R)
    return 0


@jit.inline
def destination(args, where, ends, nothing, T, ACT, R):
    """Where a whole tile goes straight from the registers, and the one thing that is added to it on the way.

    The place and its stride; partial sums, bias, residual or `nothing`, with strides along rows and columns; and
    whether that is all there is to do (768 x 512 x 128 with a bias: 6 % faster than by way of memory).
    """
    part, part_stride, c_at, j_start = where
    bias, residual, c_stride = load(args, 3), load(args, RESIDUAL), load(args, 12)
    place, stride, term, row, column, terms = part, part_stride, nothing, 0, 0, 0
    if not ends[0]:
        term, row, column, terms = part, part_stride, 1, 1
    if not ends[1]:
        return place, stride, term, row, column, True
    place, stride = sum_ptr(address(ptr(load(args, 2), R) + c_at), T), c_stride
    if bias != 0:
        term, row, column, terms = sum_ptr(address(ptr(bias, T) + j_start), T), 0, 1, terms + 1
    if residual != 0:
        term, row, column, terms = sum_ptr(address(ptr(residual, R) + c_at), T), c_stride, 1, terms + 1
    as_it_is = holds_sums(T, R) and (bias == 0 or holds_sums(R, T))
    as_it_is = as_it_is and ACT == 0 and bitcast(load(args, 4), types.float64) == 1.0
    return place, stride, term, row, column, as_it_is and terms <= 1


@jit.inline
def block(args, a_block, panels, b_panel, steps, where, rows, columns, ends, T, ACT, R):
    """The product of a packed block of A and one of B, added to the partial sums.

    `where`: the partial sums and their stride, the place in C, its first column; `ends`: first, last in k.
    """
    part, part_stride, c_at, j_start = where
    across = VECTORS * lanes(T)
    tile = sum_ptr(stack(TILE_BYTES), T)
    c, residual, c_stride = ptr(load(args, 2), R) + c_at, ptr(load(args, RESIDUAL), R) + c_at, load(args, 12)
    bias, alpha = ptr(load(args, 3), T) + j_start, bitcast(load(args, 4), types.float64)
    given = load(args, 3) != 0, load(args, RESIDUAL) != 0
    nothing = sum_ptr(stack(ROW_BYTES), T)
    for i in range(across):
        store(nothing, i, -0.0)
    place, stride, term, term_row, term_column, at_once = destination(args, where, ends, nothing, T, ACT, R)
    for j in range(0, columns, across):
        b, width = panels + j // across * b_panel, min(across, columns - j)
        i = 0
        while i < rows:
            height = min(ROWS, rows - i)
            a = a_block + (i // ROWS * (steps + 1) * ROWS + i % ROWS)
            for r in range(height):  # lines of the result: asked for early, 2 % faster (1024 x 1024 x 1024)
                fetch(c, (i + r) * c_stride + j)
                fetch(c, (i + r) * c_stride + j + across // 2)
            short = (height + SHORT_ROWS - 1) // SHORT_ROWS * SHORT_ROWS + i % ROWS < ROWS
            high = SHORT_ROWS if short else ROWS
            height = min(high, height)
            direct = at_once and height == high and width == across
            to, step, more, more_row = tile, across, nothing, 0
            if direct:
                to, step = place + (i * stride + j), stride
                more, more_row = term + (i * term_row + j * term_column), term_row
            if short:
                tile_product(a, b, more, more_row, to, step, steps, T, SHORT_ROWS, ROWS, VECTORS)
            else:
                tile_product(a, b, more, more_row, to, step, steps, T, ROWS, ROWS, VECTORS)
            if not direct:
                if not (ends[0] and ends[1]):
                    add_parts(tile, part + (i * part_stride + j), part_stride, height, width, ends[0], ends[1])
                if ends[1]:
                    for r in range(height):
                        at = (i + r) * c_stride + j
                        finish_row(c + at, tile + r * across, bias + j, residual + at, alpha, given, width, ACT)
            i += height


def add_row(total, part, width):
    """total[j] += part[j] for j < width."""
    raise NotImplementedError("`add_row` is for jitted code")


@overload(add_row)
def _add_row(total, part, width):
    count = lanes_of(total.dtype)

    def implementation(total, part, width):
        for j in range(0, width, count):
            value = vload_first(total, j, count, width - j) + vload_first(part, j, count, width - j)
            vstore_first(total, j, value, width - j)

    return implementation


@jit.inline
def join_parts(args, lo, hi, T, ACT, R):
    """Rows [lo, hi) of C from the sums of the parts of k; arguments as of `matmul`."""
    M, N, alpha = load(args, 5), load(args, 6), bitcast(load(args, 4), types.float64)
    given = load(args, 3) != 0, load(args, RESIDUAL) != 0
    parts = sum_ptr(load(args, SCRATCH) + load(args, PARTS), T)
    for i in range(lo, hi):
        total = parts + i * N
        for split in range(1, load(args, SPLITS)):
            add_row(total, parts + (split * M + i) * N, N)
        c, residual = ptr(load(args, 2), R) + i * N, ptr(load(args, RESIDUAL), R) + i * N
        finish_row(c, total, ptr(load(args, 3), T), residual, alpha, given, N, ACT)
    return 0


@jit.inline
def integer_rows(args, lo, hi, T):
    """Rows [lo, hi) of C = alpha A B in integers that wrap around: one row of B after the other."""
    M, N, K = load(args, 5), load(args, 6), load(args, 7)
    b_k, b_stride, alpha = load(args, 10), load(args, 11), load(ptr(address(args + 4), T), 0)
    for item in range(lo, hi):
        matrix = item // M
        i = item - matrix * M
        a_offset, b_offset, c_offset = batch_offsets(args, matrix)
        a = ptr(load(args, 0), T) + (a_offset + i * load(args, 8))
        b = ptr(load(args, 1), T) + b_offset
        c = ptr(load(args, 2), T) + (c_offset + i * load(args, 12))
        for j in range(0, N, LANES):
            vstore_first(c, j, fill(0, T, LANES), N - j)
        for p in range(K):
            value = load(a, p * load(args, 9)) * alpha
            row = b + p * b_k
            if b_stride == 1:
                for j in range(0, N, LANES):
                    term = vload_first(row, j, LANES, N - j) * value
                    vstore_first(c, j, vload_first(c, j, LANES, N - j) + term, N - j)
            else:
                for j in range(N):
                    store(c, j, load(c, j) + load(row, j * b_stride) * value)
    return 0
