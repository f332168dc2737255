"""Products of 16-bit floats by the tile registers of Intel's AMX: blocks of 32 x 32 sums in four tiles of 16 x 16.

The pairs of `lang/tile_registers.py` are as in the panels of `pack.py`, which serve here as they are. Subnormals of
bfloat16 count as zero. Tiles have one shape for the whole of a launch: what is missing at the end of k is zero in
copies of the last tiles. Where the CPU has AMX-FP16, float16 goes the same way by `tdpfp16ps`, as a type of its own
(`lowp.float16_pairs`).
"""

from numba import types

from ...blocks.gemm import BLOCKED, PANELS
from ...build import jit
from ...lang.rows import fill_row
from ...lang.simd import address, bitcast, load, ptr, stack, store, vload, vload_first, vstore
from ...lang.tile_registers import HALF, ROW, begin, release, tile_sums
from .blocked import add_parts, batch_offsets, destination, pack_groups, products
from .blocking import TILE_DEPTH, TILE_ROWS
from .blocking import tiles_group as group_of_tiles
from .epilogue import activates, finish_row
from .lanes import store_lanes
from .microkernel import fetch, panel_ptr, sum_ptr
from .pack import load_unit, load_units, pack_panels, transpose_pairs
from .skinny import all_panels, first_packed, own_panels

PAIRS = TILE_DEPTH // 2  # rows of a tile of B, and 4-byte columns of a tile of A
ACROSS = 32  # columns of a panel of B, which two tiles read
STEP = TILE_ROWS * PAIRS  # elements of A, 4 bytes each, that a step reads; and of B
TILE_BYTES, STEP_BYTES, LINE_BYTES = TILE_ROWS * ACROSS * 4, 4 * STEP, 4 * ACROSS
# Strides of packed tiles of A, and of a panel of B: see `tile_sums`.
PACKED, PANEL = (ROW, HALF * ROW, STEP_BYTES), (2 * ROW, STEP_BYTES)
U16 = types.uint16

tiles_group = jit.inline(group_of_tiles)


@jit.inline
def pack_tiles(target, x, total, steps, k, stride, k_stride, T):
    """Pack x[i, p] = x[i * stride + p * k_stride] into tiles of 16 rows of 16 pairs, two of them a step of k.

    `target` is [total / 32, steps / 16, 2, 16, 16] pairs; what lies beyond k is zero, rows beyond `total` are anything.
    For A whose rows do not lie in whole lines: those are read as they lie, see `block`.
    """
    deep = (steps + PAIRS - 1) // PAIRS
    bits = ptr(address(x), U16)
    for start in range(0, total, HALF):
        group = target + (start // TILE_ROWS * deep * STEP + start % TILE_ROWS * PAIRS)
        valid = min(HALF, total - start)
        for s in range(deep):
            tile, p = group + s * STEP, s * TILE_DEPTH
            left = min(TILE_DEPTH, k - p)
            if k_stride == 1:
                for r in range(valid):
                    at, to = (start + r) * stride + p, ptr(address(tile + r * PAIRS), U16)
                    fetch(bits, at + 8 * TILE_DEPTH)
                    if left >= TILE_DEPTH:
                        vstore(to, 0, vload(bits, at, TILE_DEPTH))
                    else:
                        vstore(to, 0, vload_first(bits, at, TILE_DEPTH, left))
            elif stride == 1:
                for q in range(PAIRS):
                    at = (p + 2 * q) * k_stride + start
                    some = valid if 2 * q < left else 0
                    vstore(tile, q * PAIRS, load_units(x, at, k_stride, 2 * q + 1 < left, some))
                transpose_pairs(tile)
            else:
                for r in range(valid):
                    at = (start + r) * stride + p * k_stride
                    for q in range(PAIRS):
                        if 2 * q < left:
                            unit = load_unit(x, at + 2 * q * k_stride, k_stride, 2 * q + 1 < left)
                            store(tile, r * PAIRS + q, unit)
                        else:
                            store(tile, r * PAIRS + q, 0)


@jit.inline
def block(args, a_groups, a_group, panels, b_panel, steps, where, rows, columns, ends, T, ACT, R):
    """The product of a block of A and a packed one of B, as `blocked.block` does it with vectors.

    A is packed, or read as it lies (`a_group` is negative): then k is even, and there are 32 rows or more, so that
    where the last ones do not fill a tile, some before them are read again. That saves the time of packing and what
    other cores have just written, which comes slowly: 1024 x 1024 x 1024 with 16 threads 5,184 GFLOP/s, 3,125 and 3,936
    when all threads packed A first and its tiles were loaded twice.
    """
    part, part_stride, c_at, j_start = where
    tile, last = sum_ptr(stack(TILE_BYTES), T), panel_ptr(stack(STEP_BYTES), T)
    c, residual = ptr(load(args, BLOCKED.c), R) + c_at, ptr(load(args, BLOCKED.residual), R) + c_at
    bias, c_stride = ptr(load(args, BLOCKED.bias), T) + j_start, load(args, BLOCKED.c_stride)
    given = load(args, BLOCKED.bias) != 0, load(args, BLOCKED.residual) != 0
    alpha = bitcast(load(args, BLOCKED.alpha), types.float64)
    nothing = sum_ptr(stack(LINE_BYTES), T)
    fill_row(nothing, ACROSS, 0.0)
    place, stride, term, term_row, term_column, at_once = destination(args, where, ends, nothing, T, ACT, R)
    plain = alpha == 1.0 and not (given[0] or given[1] or activates(ACT))
    whole, rest = steps // PAIRS, steps % PAIRS
    as_it_lies, a_row, last_a = a_group < 0, 2 * load(args, BLOCKED.a_stride), ptr(stack(STEP_BYTES), types.int32)
    a_strides, group_bytes = PACKED, 4 * a_group
    if as_it_lies:
        a_strides, group_bytes = (a_row, HALF * a_row, types.int64(ROW)), TILE_ROWS * a_row
    for j in range(0, columns, ACROSS):
        b, width = panels + j // ACROSS * b_panel, min(ACROSS, columns - j)
        if rest != 0:
            for q in range(0, rest * ACROSS, PAIRS):
                vstore(last, q, vload(b, whole * STEP + q, PAIRS))
            fill_row(last + rest * ACROSS, (PAIRS - rest) * ACROSS, 0)
        for i in range(0, rows, TILE_ROWS):
            height = min(TILE_ROWS, rows - i)
            a, again = address(a_groups) + i // TILE_ROWS * group_bytes, 0  # rows before it that are read again
            a_end = a + whole * STEP_BYTES
            if as_it_lies:
                again = -height % HALF
                a, a_end = a - again * a_row, address(last_a)
                if rest != 0:
                    for r in range(height + again):
                        row = ptr(a + r * a_row + whole * ROW, types.int32)
                        vstore(last_a, r * PAIRS, vload_first(row, 0, PAIRS, rest))
            direct = at_once and width == ACROSS and (height == TILE_ROWS or height == HALF)
            to, step, more, more_row = tile, ACROSS, nothing, 0
            if direct:
                to, step = place + (i * stride + j), stride
                more, more_row = term + (i * term_row + j * term_column), term_row
            ends_of_k = a_end, address(last)
            if height > HALF:
                tile_sums(T, a, a_strides, b, PANEL, ends_of_k, more, 4 * more_row, to, 4 * step, whole, rest, 2, 2)
            else:
                tile_sums(T, a, a_strides, b, PANEL, ends_of_k, more, 4 * more_row, to, 4 * step, whole, rest, 1, 2)
            if not direct:
                sums = tile + again * ACROSS
                if not (ends[0] and ends[1]):
                    add_parts(sums, part + (i * part_stride + j), part_stride, height, width, ends[0], ends[1])
                if ends[1] and plain and width == ACROSS:  # 1024^3 spends a fifth of its time here with `finish_row`
                    for r in range(height):
                        vstore(c, (i + r) * c_stride + j, vload(sums, r * ACROSS, ACROSS))
                elif ends[1]:
                    for r in range(height):
                        at = (i + r) * c_stride + j
                        finish_row(c + at, sums + r * ACROSS, bias + j, residual + at, alpha, given, width, ACT)


@jit.inline
def matmul(args, lo, hi, thread, T, ACT, R):
    """As `blocked.matmul`."""
    begin()
    products(args, lo, hi, thread, pack_tiles, tiles_group, TILE_ROWS, block, T, ACT, R)
    release()
    return 0


@jit.inline
def pack_a(args, lo, hi, T):
    """As `blocked.pack_a`."""
    pack_groups(args, lo, hi, pack_tiles, tiles_group, TILE_ROWS, T)
    return 0


# ---- a weight times few rows ---------------------------------------------------------------------


@jit.inline
def pack_x(args, lo, hi, T, ACROSS):
    """Pieces [lo, hi) of x for `few_rows`."""
    panels, x, first, stop = all_panels(args, lo, hi, T)
    M, x_stride, x_k = load(args, PANELS.tokens), load(args, PANELS.x_stride), load(args, PANELS.x_k)
    width = types.int64(HALF * ACROSS)
    panel, place = (load(args, PANELS.k) + 1) // 2 * width, panels + first // 2 * width
    pack_panels(place, panel, x + first * x_k, M, stop - first, x_stride, x_k, width, T)
    return 0


@jit.inline
def few_rows(args, lo, hi, thread, T, ACT, ACROSS):
    """Groups [lo, hi) of 32 rows of a weight times rows of x, which are packed in panels of 16 ACROSS columns.

    The weight takes the place of A and is read as it lies, once, so that it need not be packed; the sums are those of
    the transposed result. Blocks as in `skinny.py`. The weight has at least 16 rows; those before the last ones are
    read again where its last 16 are not whole.
    """
    N, M, K = load(args, PANELS.rows), load(args, PANELS.tokens), load(args, PANELS.k)
    w_stride, out_stride = load(args, PANELS.w_stride), load(args, PANELS.out_stride)
    panels = own_panels(args, thread, T)
    tile, turned = sum_ptr(stack(TILE_BYTES), T), sum_ptr(stack(STEP_BYTES), T)
    last_a, last_b = ptr(stack(STEP_BYTES), T), panel_ptr(stack(STEP_BYTES), T)
    nothing = sum_ptr(stack(LINE_BYTES), T)
    fill_row(nothing, 2 * HALF, 0.0)
    width, groups, whole, left = HALF * ACROSS, (N + TILE_ROWS - 1) // TILE_ROWS, K // TILE_DEPTH, K % TILE_DEPTH
    pairs = (K + 1) // 2
    panel = pairs * width
    strides, x_strides = (2 * w_stride, 2 * HALF * w_stride, types.int64(ROW)), (ROW * ACROSS, ROW * ACROSS * PAIRS)
    packed = first_packed(args)
    begin()
    for item in range(lo, hi):
        matrix = item // groups
        start = (item - matrix * groups) * TILE_ROWS
        w_offset, x_offset, out_offset = batch_offsets(args, PANELS.batch, matrix)
        if packed != matrix:
            packed = matrix
            source = ptr(load(args, PANELS.x), T) + x_offset
            x_stride, x_k = load(args, PANELS.x_stride), load(args, PANELS.x_k)
            pack_panels(panels, panel, source, M, K, x_stride, x_k, types.int64(width), T)
        while start < min(N, (item - matrix * groups + 1) * TILE_ROWS):
            valid = min(N - start, TILE_ROWS)
            both = valid == TILE_ROWS
            n = start if both else min(start, N - HALF)  # from where rows are read
            valid = valid if both else min(valid, HALF)
            w = ptr(load(args, PANELS.w), T) + (w_offset + n * w_stride)
            if left:
                for r in range(TILE_ROWS if both else HALF):
                    row = ptr(address(w + (r * w_stride + whole * TILE_DEPTH)), U16)
                    vstore(ptr(address(last_a), U16), r * TILE_DEPTH, vload_first(row, 0, TILE_DEPTH, left))
            for m in range(0, M, width):
                x = panels + m // width * panel
                if left:
                    fill_row(last_b, HALF * width, 0)
                    for q in range(0, (pairs - whole * PAIRS) * width, PAIRS):
                        vstore(last_b, q, vload(x, whole * PAIRS * width + q, PAIRS))
                w_at, ends_of_k = address(w), (address(last_a), address(last_b))
                if both:
                    tile_sums(
                        T, w_at, strides, x, x_strides, ends_of_k, nothing, 0, tile, 4 * width, whole, left, 2, ACROSS
                    )
                else:
                    tile_sums(
                        T, w_at, strides, x, x_strides, ends_of_k, nothing, 0, tile, 4 * width, whole, left, 1, ACROSS
                    )
                at = out_offset + m * out_stride + start
                rows = tile + (start - n) * width
                store_lanes(args, at, start, rows, turned, width, valid, min(width, M - m), T, ACT)
            start += valid
    release()
    return 0
