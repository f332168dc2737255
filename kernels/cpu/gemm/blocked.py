"""Blocked matrix product: C = alpha A B + bias, for any strides of A and B, batched.

The work is cut into tiles of C (a grid over each matrix of the batch). A tile packs its own blocks of A and B, so
threads share nothing and meet once. Many threads pack A first, all together, or read it as it lies, so that tiles can
be small, of which fast cores do more than slow ones; B, which is the weight of a layer, stays with who packs it
(`blocking.shared_blocks`). The loops are those of K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix
Multiplication" (2008).
"""

from numba import types

from ...blocks.gemm import BLOCKED, INTEGER, PACK
from ...build import jit
from ...lang.by_type import by_type
from ...lang.simd import address, bitcast, fill, load, ptr, stack, store, vload, vload_first, vstore, vstore_first
from .blocking import LANES, ROWS, SHORT_ROWS, VECTORS
from .blocking import rows_group as group_of_rows
from .epilogue import activates, finish_row
from .microkernel import depth, fetch, holds_sums, lanes, lanes_of, panel_ptr, sum_ptr, tile_product
from .pack import pack_panels

ROW_BYTES = VECTORS * 64
TILE_BYTES = ROWS * ROW_BYTES

rows_group = jit.inline(group_of_rows)


@by_type
def add_parts(tile, part, part_stride, height, width, first, last):
    """Add the partial sums, which begin with the `first` block of k, to a tile of sums.

    The sum is kept in the tile after the `last` block, else in the partial sums.
    """
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
def batch_offsets(args, batch, index):
    """Element offsets of matrix `index` in A, B and C; `batch`: where the block says how many dims follow."""
    a = b = c = 0
    for d in range(load(args, batch) - 1, -1, -1):
        at = batch + 1 + 4 * d
        rest = index // load(args, at)
        i = index - rest * load(args, at)
        a, b, c = a + i * load(args, at + 1), b + i * load(args, at + 2), c + i * load(args, at + 3)
        index = rest
    return a, b, c


@jit.inline
def matmul(args, lo, hi, thread, T, ACT, R):
    """Tiles [lo, hi) of C[M, N] = residual + activation(alpha A[M, K] B[K, N] + bias[N]); columns of C are contiguous.

    C and the residual (which may be C) are of type R.
    """
    products(args, lo, hi, thread, pack_rows, rows_group, ROWS, block, T, ACT, R)
    return 0


@jit.inline
def pack_rows(target, x, total, steps, k, stride, k_stride, T):
    """A block of A in panels of ROWS rows."""
    pack_panels(target, rows_group(steps), x, total, k, stride, k_stride, types.int64(ROWS), T)


@jit.inline
def pack_a(args, lo, hi, T):
    """Groups [lo, hi) of rows of A, for all threads."""
    pack_groups(args, lo, hi, pack_rows, rows_group, ROWS, T)
    return 0


@jit.inline
def pack_groups(args, lo, hi, pack, group, high, T):
    """Groups of `high` rows with all of k, of `group` elements each, by the function `pack`."""
    k, stride, pair = load(args, PACK.k), load(args, PACK.stride), depth(T)
    steps, first = (k + pair - 1) // pair, lo * high
    a, to = ptr(load(args, PACK.w), T) + first * stride, panel_ptr(load(args, PACK.panels), T) + lo * group(steps)
    pack(to, a, min(load(args, PACK.rows), hi * high) - first, steps, k, stride, load(args, PACK.k_stride), T)


@jit.inline
def products(args, lo, hi, thread, pack, group, high, multiply, T, ACT, R):
    """The loops of `matmul`, for a micro-kernel: `pack` brings A into its order, in groups of `high` rows, of `group`
    elements each, `multiply` does a pair of blocks.

    Blocks of `kc` by `nc` of B and of `mc` by `kc` of A are packed in turn, into the thread's part of the scratch.
    """
    M, N, K = load(args, BLOCKED.rows), load(args, BLOCKED.columns), load(args, BLOCKED.k)
    a_stride, a_k, c_stride = load(args, BLOCKED.a_stride), load(args, BLOCKED.a_k), load(args, BLOCKED.c_stride)
    b_k, b_stride = load(args, BLOCKED.b_k), load(args, BLOCKED.b_stride)
    grid_m, grid_n = load(args, BLOCKED.grid_m), load(args, BLOCKED.grid_n)
    tile_m, tile_n = load(args, BLOCKED.tile_m), load(args, BLOCKED.tile_n)
    mc, kc, nc = load(args, BLOCKED.mc), load(args, BLOCKED.kc), load(args, BLOCKED.nc)
    packed, a_packed = load(args, BLOCKED.panel), load(args, BLOCKED.a_group)
    part_offset = load(args, BLOCKED.part_offset)
    scratch = load(args, BLOCKED.scratch) + thread * load(args, BLOCKED.thread_bytes)
    a_block, b_block = panel_ptr(scratch, T), panel_ptr(scratch + load(args, BLOCKED.b_offset), T)
    across, pair = VECTORS * lanes(T), depth(T)
    splits = max(1, load(args, BLOCKED.splits))
    length = load(args, BLOCKED.split_k) if splits > 1 else K
    for unit in range(lo, hi):
        item, split = unit // splits, unit % splits
        p_start = split * length
        p_stop = min(K, p_start + length)
        matrix = item // (grid_m * grid_n)
        i_tile = (item - matrix * grid_m * grid_n) // grid_n
        i_start, j_start = i_tile * tile_m, (item - (matrix * grid_m + i_tile) * grid_n) * tile_n
        i_stop, j_stop = min(M, i_start + tile_m), min(N, j_start + tile_n)
        a_offset, b_offset, c_offset = batch_offsets(args, BLOCKED.batch, matrix)
        a = ptr(load(args, BLOCKED.a), T) + a_offset
        for j in range(j_start, j_stop, nc):
            columns = min(nc, j_stop - j)
            for p in range(p_start, max(p_stop, 1), kc):  # also once when K is 0: the bias alone
                k = min(kc, p_stop - p)
                steps = (k + pair - 1) // pair
                if packed:
                    panels, b_panel = panel_ptr(load(args, BLOCKED.b), T), packed
                    panels = panels + (j // across * packed + p // pair * across)
                else:
                    panels, b_panel = b_block, steps * across
                    b = ptr(load(args, BLOCKED.b), T) + (b_offset + j * b_stride + p * b_k)
                    pack_panels(panels, b_panel, b, columns, k, b_stride, b_k, across, T)
                for i in range(i_start, i_stop, mc):
                    rows, c_at, at = min(mc, i_stop - i), c_offset + i * c_stride + j, i * a_stride + p * a_k
                    if a_packed < 0:
                        a_groups, a_group = panel_ptr(address(a + at), T), a_packed
                    elif a_packed:
                        a_groups = panel_ptr(load(args, BLOCKED.a), T) + (i // high * a_packed + p // pair * high)
                        a_group = a_packed
                    else:
                        a_groups, a_group = a_block, group(steps)
                        pack(a_groups, a + at, rows, steps, k, a_stride, a_k, T)
                    part, part_stride = sum_ptr(load(args, BLOCKED.c), T) + c_at, c_stride
                    if splits > 1:
                        part = sum_ptr(load(args, BLOCKED.scratch) + load(args, BLOCKED.parts), T)
                        part, part_stride = part + ((split * M + i) * N + j), N
                    elif part_offset:
                        part, part_stride = sum_ptr(scratch + part_offset, T) + (i - i_start) * nc, nc
                    ends = p == p_start, p + k >= p_stop and splits == 1
                    where = part, part_stride, c_at, j
                    multiply(args, a_groups, a_group, panels, b_panel, steps, where, rows, columns, ends, T, ACT, R)


@jit.inline
def destination(args, where, ends, nothing, T, ACT, R):
    """Where a whole tile goes straight from the registers, and the one thing that is added to it on the way.

    The place and its stride; partial sums, bias, residual or `nothing`, with strides along rows and columns; and
    whether that is all there is to do (768 x 512 x 128 with a bias: 6 % faster than by way of memory).
    """
    part, part_stride, c_at, j_start = where
    bias, residual, c_stride = load(args, BLOCKED.bias), load(args, BLOCKED.residual), load(args, BLOCKED.c_stride)
    place, stride, term, row, column, terms = part, part_stride, nothing, 0, 0, 0
    if not ends[0]:
        term, row, column, terms = part, part_stride, 1, 1
    if not ends[1]:
        return place, stride, term, row, column, True
    place, stride = sum_ptr(address(ptr(load(args, BLOCKED.c), R) + c_at), T), c_stride
    if bias != 0:
        term, row, column, terms = sum_ptr(address(ptr(bias, T) + j_start), T), 0, 1, terms + 1
    if residual != 0:
        term, row, column, terms = sum_ptr(address(ptr(residual, R) + c_at), T), c_stride, 1, terms + 1
    as_it_is = holds_sums(T, R) and (bias == 0 or holds_sums(R, T))
    as_it_is = as_it_is and not activates(ACT) and bitcast(load(args, BLOCKED.alpha), types.float64) == 1.0
    return place, stride, term, row, column, as_it_is and terms <= 1


@jit.inline
def block(args, a_groups, a_group, panels, b_panel, steps, where, rows, columns, ends, T, ACT, R):
    """The product of a packed block of A and one of B, added to the partial sums.

    `where`: the partial sums and their stride, the place in C, its first column; `ends`: first, last in k.
    """
    part, part_stride, c_at, j_start = where
    across = VECTORS * lanes(T)
    tile = sum_ptr(stack(TILE_BYTES), T)
    c, residual = ptr(load(args, BLOCKED.c), R) + c_at, ptr(load(args, BLOCKED.residual), R) + c_at
    bias, c_stride = ptr(load(args, BLOCKED.bias), T) + j_start, load(args, BLOCKED.c_stride)
    given = load(args, BLOCKED.bias) != 0, load(args, BLOCKED.residual) != 0
    alpha = bitcast(load(args, BLOCKED.alpha), types.float64)
    nothing = sum_ptr(stack(ROW_BYTES), T)
    for i in range(across):
        store(nothing, i, -0.0)
    place, stride, term, term_row, term_column, at_once = destination(args, where, ends, nothing, T, ACT, R)
    for j in range(0, columns, across):
        b, width = panels + j // across * b_panel, min(across, columns - j)
        i = 0
        while i < rows:
            height = min(ROWS, rows - i)
            a = a_groups + (i // ROWS * a_group + i % ROWS)
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


@by_type
def add_row(total, part, width):
    """total[j] += part[j] for j < width."""
    count = lanes_of(total.dtype)

    def implementation(total, part, width):
        for j in range(0, width, count):
            value = vload_first(total, j, count, width - j) + vload_first(part, j, count, width - j)
            vstore_first(total, j, value, width - j)

    return implementation


@jit.inline
def join_parts(args, lo, hi, T, ACT, R):
    """Rows [lo, hi) of C from the sums of the parts of k; arguments as of `matmul`."""
    M, N, alpha = (
        load(args, BLOCKED.rows),
        load(args, BLOCKED.columns),
        bitcast(load(args, BLOCKED.alpha), types.float64),
    )
    given = load(args, BLOCKED.bias) != 0, load(args, BLOCKED.residual) != 0
    parts = sum_ptr(load(args, BLOCKED.scratch) + load(args, BLOCKED.parts), T)
    bias = ptr(load(args, BLOCKED.bias), T)
    for i in range(lo, hi):
        total = parts + i * N
        for split in range(1, load(args, BLOCKED.splits)):
            add_row(total, parts + (split * M + i) * N, N)
        c, residual = ptr(load(args, BLOCKED.c), R) + i * N, ptr(load(args, BLOCKED.residual), R) + i * N
        finish_row(c, total, bias, residual, alpha, given, N, ACT)
    return 0


@jit.inline
def integer_rows(args, lo, hi, T):
    """Rows [lo, hi) of C = alpha A B in integers that wrap around: one row of B after the other."""
    M, N, K = load(args, INTEGER.rows), load(args, INTEGER.columns), load(args, INTEGER.k)
    a_stride, a_k, c_stride = load(args, INTEGER.a_stride), load(args, INTEGER.a_k), load(args, INTEGER.c_stride)
    b_k, b_stride = load(args, INTEGER.b_k), load(args, INTEGER.b_stride)
    alpha = load(ptr(address(args + INTEGER.alpha), T), 0)
    for item in range(lo, hi):
        matrix = item // M
        i = item - matrix * M
        a_offset, b_offset, c_offset = batch_offsets(args, INTEGER.batch, matrix)
        a = ptr(load(args, INTEGER.a), T) + (a_offset + i * a_stride)
        b = ptr(load(args, INTEGER.b), T) + b_offset
        c = ptr(load(args, INTEGER.c), T) + (c_offset + i * c_stride)
        for j in range(0, N, LANES):
            vstore_first(c, j, fill(0, T, LANES), N - j)
        for p in range(K):
            value = load(a, p * a_k) * alpha
            row = b + p * b_k
            if b_stride == 1:
                for j in range(0, N, LANES):
                    term = vload_first(row, j, LANES, N - j) * value
                    vstore_first(c, j, vload_first(c, j, LANES, N - j) + term, N - j)
            else:
                for j in range(N):
                    store(c, j, load(c, j) + load(row, j * b_stride) * value)
    return 0
