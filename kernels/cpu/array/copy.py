"""Copies between layouts, for elements of 1, 2, 4 and 8 bytes (as unsigned integers).

All kernels walk rows: the last dim of a collapsed layout is copied by a loop of its own, the outer dims
are counted like an odometer. A unit of work is one block of one row, so one long row splits as well as
many short ones. `transpose*` copies two dims whose strides are swapped, tile by tile in registers.
"""

from numba import types

from ...blocks.array import COPY, JOINED, PIECE
from ...build import isa, jit
from ...lang.shuffle import reverse, transpose_tile
from ...lang.simd import (
    address,
    fence,
    fill,
    load,
    ptr,
    stack,
    store,
    vload,
    vload_first,
    vstore,
    vstore_first,
    vstore_nontemporal,
)
from . import sizes

LANES = isa.lanes()
WIDE = 4 * LANES
I64 = types.int64
COUNTERS_BYTES = 8 * 64


@jit.inline
def copy_row(y, x, size):
    """`size` contiguous elements."""
    i = 0
    while i + WIDE <= size:
        vstore(y, i, vload(x, i, WIDE))
        i += WIDE
    while i < size:
        vstore_first(y, i, vload_first(x, i, LANES, size - i), size - i)
        i += LANES


@jit.inline
def copy_row_nontemporal(y, x, size):
    """The same past the caches, but for what is no whole line."""
    i, end = 0, min(size, (-address(y) & 63) // (address(y + 1) - address(y)))
    while i < size:
        while i < end:
            vstore_first(y, i, vload_first(x, i, LANES, end - i), end - i)
            i = min(end, i + LANES)
        while i + WIDE <= size:
            vstore_nontemporal(y, i, vload(x, i, WIDE))
            i += WIDE
        end = size


@jit.inline
def copy_strided(y, y_stride, x, x_stride, size, E):
    """`size` elements at any strides; stride 0 in the source fills, -1 reverses."""
    i = 0
    if x_stride == 0 and y_stride == 1:
        wide, value = fill(load(x, 0), E, WIDE), fill(load(x, 0), E, LANES)
        while i + WIDE <= size:
            vstore(y, i, wide)
            i += WIDE
        while i < size:
            vstore_first(y, i, value, size - i)
            i += LANES
        return
    if x_stride == -1 and y_stride == 1:
        while i + LANES <= size:
            vstore(y, i, reverse(vload(x, 1 - LANES - i, LANES)))
            i += LANES
    while i + 4 <= size:  # four independent loads in flight
        a, b = load(x, i * x_stride), load(x, (i + 1) * x_stride)
        c, d = load(x, (i + 2) * x_stride), load(x, (i + 3) * x_stride)
        store(y, i * y_stride, a)
        store(y, (i + 1) * y_stride, b)
        store(y, (i + 2) * y_stride, c)
        store(y, (i + 3) * y_stride, d)
        i += 4
    while i < size:
        store(y, i * y_stride, load(x, i * x_stride))
        i += 1


@jit.inline
def start_at(args, row, counters):
    """Set the odometer to `row`; (offset in the destination, offset in the source)."""
    num_dims = load(args, COPY.num_dims)
    y_at, x_at = 0, 0
    for k in range(num_dims):
        d = num_dims - 1 - k
        size = load(args, COPY.dims + d)
        rest = row // size
        digit = row - rest * size
        row = rest
        store(counters, d, digit)
        y_at += digit * load(args, COPY.dims + num_dims + d)
        x_at += digit * load(args, COPY.dims + 2 * num_dims + d)
    return y_at, x_at


@jit.inline
def advance(args, counters, y_at, x_at):
    """The offsets of the next row."""
    num_dims = load(args, COPY.num_dims)
    d = num_dims - 1
    while d >= 0:
        digit = load(counters, d) + 1
        size, y_stride = load(args, COPY.dims + d), load(args, COPY.dims + num_dims + d)
        x_stride = load(args, COPY.dims + 2 * num_dims + d)
        y_at, x_at = y_at + y_stride, x_at + x_stride
        if digit < size:
            store(counters, d, digit)
            return y_at, x_at
        store(counters, d, 0)
        y_at, x_at = y_at - size * y_stride, x_at - size * x_stride
        d -= 1
    return y_at, x_at


@jit.inline
def walk(args, lo, hi, part, E):
    """Run `part` on units [lo, hi); where rows are one unit, on runs of them along the last outer dim."""
    y, x = ptr(load(args, COPY.y), E), ptr(load(args, COPY.x), E)
    units, last = load(args, COPY.units), load(args, COPY.num_dims) - 1
    # in registers: behind a store, the compiler would load arguments again
    shape = (
        load(args, COPY.length), load(args, COPY.y_stride), load(args, COPY.x_stride), load(args, COPY.step),
        load(args, COPY.other_y_stride), load(args, COPY.other),
    )  # fmt: skip
    counters = ptr(stack(COUNTERS_BYTES), I64)
    row = lo // units
    unit = lo - row * units
    y_at, x_at = start_at(args, row, counters)
    todo = hi - lo
    while todo > 0:
        run, y_step, x_step = 1, 0, 0
        if units == 1 and last >= 0:
            digit = load(counters, last)
            run = min(todo, load(args, COPY.dims + last) - digit)
            y_step, x_step = load(args, COPY.dims + 2 * last + 1), load(args, COPY.dims + 3 * last + 2)
            store(counters, last, digit + run - 1)
        part(shape, y + y_at, x + x_at, unit, run, y_step, x_step, E)
        y_at, x_at = y_at + (run - 1) * y_step, x_at + (run - 1) * x_step
        todo -= run
        unit += 1
        if unit == units:
            unit = 0
            y_at, x_at = advance(args, counters, y_at, x_at)
    return 0


def _part(copy):
    """The `part` of `walk` for rows that `copy` copies."""

    @jit.inline
    def part(shape, y, x, unit, run, y_step, x_step, E):
        length, _, _, step, _, _ = shape
        start = unit * step
        size = min(length - start, step)
        for k in range(run):
            copy(y + (start + k * y_step), x + (start + k * x_step), size)

    return part


part_of_rows, part_of_rows_nontemporal = _part(copy_row), _part(copy_row_nontemporal)


@jit.inline
def part_of_short_rows(shape, y, x, unit, run, y_step, x_step, E):
    """Rows of up to 7 elements: one access for each side, masked, and no wider than it must be, since lanes that are
    masked off fetch a cache line too.
    """
    size = shape[0]
    if size <= 4:
        for k in range(run):
            vstore_first(y + k * y_step, 0, vload_first(x + k * x_step, 0, 4, size), size)
    else:
        for k in range(run):
            vstore_first(y + k * y_step, 0, vload_first(x + k * x_step, 0, 8, size), size)


@jit.inline
def part_of_strided_rows(shape, y, x, unit, run, y_step, x_step, E):
    length, y_stride, x_stride, step, _, _ = shape
    start = unit * step
    y, x, size = y + start * y_stride, x + start * x_stride, min(length - start, step)
    for k in range(run):
        copy_strided(y + k * y_step, y_stride, x + k * x_step, x_stride, size, E)


@jit.inline
def transposed_strip(shape, y, x, unit, tile, side, E):
    """Rows [unit * side, ...) of the destination: y[i, j] = x[j, i], contiguous along j, i."""
    columns, _, x_stride, _, y_stride, rows = shape
    first = unit * side
    last = min(first + side, rows)
    j = 0
    if last - first == side:
        while j + side <= columns:
            tile(y + (first * y_stride + j), y_stride, x + (j * x_stride + first), x_stride)
            j += side
    for i in range(first, last):
        for k in range(j, columns):
            store(y, i * y_stride + k, load(x, k * x_stride + i))


@jit.inline
def tile_8(y, y_stride, x, x_stride):
    transpose_tile(y, y_stride, x, x_stride, 8)


@jit.inline
def tile_16(y, y_stride, x, x_stride):
    transpose_tile(y, y_stride, x, x_stride, 16)


@jit.inline
def strip_8(shape, y, x, unit, run, y_step, x_step, E):
    for k in range(run):
        transposed_strip(shape, y + k * y_step, x + k * x_step, unit, tile_8, 8, E)


@jit.inline
def strip_16(shape, y, x, unit, run, y_step, x_step, E):
    for k in range(run):
        transposed_strip(shape, y + k * y_step, x + k * x_step, unit, tile_16, 16, E)


@jit.inline
def rows(args, lo, hi, E):
    """Rows that are contiguous on both sides."""
    return walk(args, lo, hi, part_of_rows, E)


@jit.inline
def rows_nontemporal(args, lo, hi, E):
    """The same where the caches have no room for both sides."""
    status = walk(args, lo, hi, part_of_rows_nontemporal, E)
    fence()
    return status


@jit.inline
def short_rows(args, lo, hi, E):
    """Rows of a few elements that are contiguous on both sides."""
    return walk(args, lo, hi, part_of_short_rows, E)


@jit.inline
def strided(args, lo, hi, E):
    """Rows at any strides."""
    return walk(args, lo, hi, part_of_strided_rows, E)


@jit.inline
def transpose_8(args, lo, hi, E):
    """Strips of 8 rows of a transposition."""
    return walk(args, lo, hi, strip_8, E)


@jit.inline
def transpose_16(args, lo, hi, E):
    """Strips of 16 rows of a transposition."""
    return walk(args, lo, hi, strip_16, E)


@jit.inline
def joined(args, lo, hi, E):
    """Units [lo, hi) of rows that consist of pieces, one from each of several contiguous sources.

    One launch for all sources saves one wake-up of the threads for each (two of 2 MB: 60 us, not 68).
    """
    y, total, width = ptr(load(args, JOINED.y), E), load(args, JOINED.numel), load(args, JOINED.width)
    step, pieces = sizes.UNIT // load(args, JOINED.itemsize), args + JOINED.pieces
    at, stop = lo * step, min(total, hi * step)
    row = at // width
    column, piece = at - row * width, pieces
    while load(piece, PIECE.start) + load(piece, PIECE.length) <= column:
        piece = piece + PIECE.WIDTH
    while at < stop:
        start, length = load(piece, PIECE.start), load(piece, PIECE.length)
        within = column - start
        size = min(length - within, stop - at)
        copy_row(y + at, ptr(load(piece, PIECE.x), E) + (row * length + within), size)
        at, column, piece = at + size, column + size, piece + PIECE.WIDTH
        if column == width:
            row, column, piece = row + 1, 0, pieces
    return 0
