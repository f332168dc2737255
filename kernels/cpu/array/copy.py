"""Copies between layouts, for elements of 1, 2, 4 and 8 bytes (as unsigned integers).

All kernels walk rows: the last dim of a collapsed layout is copied by a loop of its own, the outer dims
are counted like an odometer. A unit of work is one block of one row, so one long row splits as well as
many short ones. `transpose*` copies two dims whose strides are swapped, tile by tile in registers.

Arguments: 0 destination, 1 source, 2 row length, 3-4 strides along the row (destination, source),
5 units per row, 6 elements per unit; for `transpose*` 7-8 the strides of the dim that is contiguous in
the source (destination, source) and 9 its size; then 10 the number of outer dims, and from 11 their
sizes, their strides in the destination, and in the source.
"""

from numba import types

from ...build import isa, jit
from ...lang.shuffle import transpose_tile
from ...lang.simd import fill, load, ptr, stack, store, vload, vload_first, vstore, vstore_first

LANES = isa.lanes()
WIDE = 4 * LANES
I64 = types.int64
DIMS = 11  # where the outer dims begin in the arguments
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
def copy_strided(y, y_stride, x, x_stride, size, E):
    """`size` elements at any strides; stride 0 in the source fills."""
    if x_stride == 0 and y_stride == 1:
        value = fill(load(x, 0), E, LANES)
        for i in range(0, size, LANES):
            vstore_first(y, i, value, size - i)
        return
    i = 0
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
    num_dims = load(args, DIMS - 1)
    y_at, x_at = 0, 0
    for k in range(num_dims):
        d = num_dims - 1 - k
        size = load(args, DIMS + d)
        rest = row // size
        digit = row - rest * size
        row = rest
        store(counters, d, digit)
        y_at += digit * load(args, DIMS + num_dims + d)
        x_at += digit * load(args, DIMS + 2 * num_dims + d)
    return y_at, x_at


@jit.inline
def advance(args, counters, y_at, x_at):
    """The offsets of the next row."""
    num_dims = load(args, DIMS - 1)
    d = num_dims - 1
    while d >= 0:
        digit = load(counters, d) + 1
        size, y_stride = load(args, DIMS + d), load(args, DIMS + num_dims + d)
        x_stride = load(args, DIMS + 2 * num_dims + d)
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
    y, x = ptr(load(args, 0), E), ptr(load(args, 1), E)
    units, last = load(args, 5), load(args, DIMS - 1) - 1
    # in registers: behind a store, the compiler would load arguments again
    shape = (load(args, 2), load(args, 3), load(args, 4), load(args, 6), load(args, 7), load(args, 9))
    counters = ptr(stack(COUNTERS_BYTES), I64)
    row = lo // units
    unit = lo - row * units
    y_at, x_at = start_at(args, row, counters)
    todo = hi - lo
    while todo > 0:
        run, y_step, x_step = 1, 0, 0
        if units == 1 and last >= 0:
            digit = load(counters, last)
            run = min(todo, load(args, DIMS + last) - digit)
            y_step, x_step = load(args, DIMS + 2 * last + 1), load(args, DIMS + 3 * last + 2)
            store(counters, last, digit + run - 1)
        part(shape, y + y_at, x + x_at, unit, run, y_step, x_step, E)
        y_at, x_at = y_at + (run - 1) * y_step, x_at + (run - 1) * x_step
        todo -= run
        unit += 1
        if unit == units:
            unit = 0
            y_at, x_at = advance(args, counters, y_at, x_at)
    return 0


@jit.inline
def part_of_rows(shape, y, x, unit, run, y_step, x_step, E):
    length, _, _, step, _, _ = shape
    start = unit * step
    size = min(length - start, step)
    for k in range(run):
        copy_row(y + (start + k * y_step), x + (start + k * x_step), size)


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

    Arguments: 0 destination, 1 its elements, 2 elements of a row, 3 of a unit, 4 the number of sources, and
    from 5 on the address of each, where its piece begins in a row, and its length. One launch for all sources saves
    one wake-up of the threads for each (two of 2 MB: 60 us, not 68).
    """
    y, total, width, step = ptr(load(args, 0), E), load(args, 1), load(args, 2), load(args, 3)
    at, stop = lo * step, min(total, hi * step)
    row = at // width
    column, part = at - row * width, 0
    while load(args, 6 + 3 * part) + load(args, 7 + 3 * part) <= column:
        part += 1
    while at < stop:
        start, length = load(args, 6 + 3 * part), load(args, 7 + 3 * part)
        within = column - start
        size = min(length - within, stop - at)
        copy_row(y + at, ptr(load(args, 5 + 3 * part), E) + (row * length + within), size)
        at, column, part = at + size, column + size, part + 1
        if column == width:
            row, column, part = row + 1, 0, 0
    return 0
