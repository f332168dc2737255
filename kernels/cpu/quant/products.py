"""Products with quantised weights: out[M, N] = x[M, K] W[N, K]^T + bias; `panels.py` says how W lies.

`quantize_rows` makes integers of the activations, in tiles of 8 rows, and `stream` multiplies them with each panel as
it lies: it comes from memory once, at the rate of memory for few rows, and is unpacked in registers for each tile. That
costs little beside 8 rows of products (661 of 681 GOP/s that a panel expanded to bytes first gave, with 512 rows).
`stream_floats` multiplies activations that stay as they are, laid out by `spread_rows`.
"""

from numba import types

from ...blocks.quant import PRODUCT, TILES
from ...build import jit
from ...lang import lowp
from ...lang.by_type import by_type
from ...lang.rows import clear
from ...lang.simd import (
    address,
    bitcast,
    convert,
    fill,
    load,
    ptr,
    reduce_add,
    reduce_max,
    select,
    stack,
    store,
    vload,
    vload_first,
    vmax,
    vstore,
    vstore_first,
)
from ..gemm.blocking import LANES
from .panels import QUADS, SUPER, TILE_ROWS, UNIT, record_bytes
from .tile import flat_tile, float_tile, integer_tile
from .traits import format_of, groups_of, has_min, is_flat, unit_bytes, words_of, zero_of

F16, F32, F64, I8, I32, U8 = lowp.float16, types.float32, types.float64, types.int8, types.int32, types.uint8
SCALED_UNITS = 32  # units whose parameters are decoded at a time: they stay in the first-level cache
PART_BYTES = 4 * UNIT  # a unit of a row as float32
ROW = 4 * LANES  # bytes of an int32 or float32 of each row of a panel
PARAMETERS_BYTES = SCALED_UNITS * 2 * ROW
TOTALS_BYTES = TILE_ROWS * ROW
SMALLEST = 1e-30  # activations below, over 127, have no scale whose inverse is finite


# ---- activations -------------------------------------------------------------------------------


@jit.inline
def height_of(rows):
    """Rows of the tile that takes `rows` rows: 1, 2, 4 or 8. What it has beyond repeats the last row."""
    return rows if rows <= 2 else 4 if rows <= 4 else TILE_ROWS


@jit.inline
def read_unit_of_row(x, k, valid, order, part):
    """part[32] (float32) = the unit of a row at k, of which `valid` elements exist; in `order` if that is not 0."""
    if order != 0:
        at = ptr(order, I32)
        for i in range(UNIT):
            store(part, i, load(x, load(at, k + i)) if i < valid else 0.0)
        return
    for i in range(0, UNIT, LANES):
        if valid >= i + LANES:
            vstore(part, i, convert(vload(x, k + i, LANES), F32))
        else:
            vstore(part, i, convert(vload_first(x, k + i, LANES, max(0, valid - i)), F32))


@jit.inline
def largest(part, bits):
    """The larger of `bits` and the bits of the largest magnitude of a unit; those of NaN are largest of all."""
    top = fill(bits, I32, LANES)
    for i in range(0, UNIT, LANES):
        top = vmax(top, bitcast(vload(part, i, LANES), I32) & 0x7FFFFFFF)
    return reduce_max(top)


@jit.inline
def nearest_bytes(x):
    """The nearest integers of floats from -128 to 127, as int32; of NaN that comes of infinity times 0, 0.

    Beside 1.5 * 2^23 there is room for integers alone, whose low byte is that of the sum. LLVM's conversion looks at
    each lane for NaN and for what does not fit: 512 x 2048 activations 1.2 ns an element on one core, so MEASURED.
    """
    return (bitcast(x + F32(12582912.0), I32) << 24) >> 24


@jit.inline
def quantize_unit(part, inverse, bytes_, half):
    """bytes_[16 half...] = round(part * inverse) for a half of the unit; returns the sum."""
    total = fill(0, I32, LANES)
    for i in range(half * 16, half * 16 + 16, LANES):
        q = nearest_bytes(vload(part, i, LANES) * inverse)
        vstore(bytes_, i, convert(q, I8))
        total = total + q
    return reduce_add(total)


@jit.inline
def put_quads(bytes_, quads, unit, height, i, words):
    """Place the 8 quads of a unit of row `i` of a tile, as one word of bytes or two of pairs each."""
    source = ptr(address(bytes_), I32)
    for quad in range(QUADS):
        at = (unit * QUADS + quad) * words * height + i
        if words == 1:
            store(quads, at, load(source, quad))
            continue
        for word in range(2):
            low, high = load(bytes_, 4 * quad + word), load(bytes_, 4 * quad + word + 2)
            store(quads, at + word * height, (low & 0xFFFF) | (high << 16))


@jit.inline
def quantize_rows(args, lo, hi, F, T):
    """Tiles [lo, hi) of 8 rows of x as integers: quads, scales and corrections as `tile.py` wants them.

    A scale is the largest magnitude of its unit (of its row, for flat formats) over 127. NaN and infinity make the
    scale NaN or infinite, and thus every result of the row NaN.
    """
    stride, rows, order = load(args, TILES.stride), load(args, TILES.rows), load(args, TILES.order)
    k_size, units = load(args, TILES.k), load(args, TILES.units)
    part, bytes_, groups, words = ptr(stack(PART_BYTES), F32), ptr(stack(UNIT), I8), groups_of(F), words_of(F)
    for tile in range(lo, hi):
        valid_rows = min(TILE_ROWS, rows - tile * TILE_ROWS)
        height = height_of(valid_rows)
        in_place = words == 1 and height == 1
        quads = ptr(load(args, TILES.tiles) + tile * TILE_ROWS * units * UNIT * words, I32)
        per_row = 1 if is_flat(F) else units
        scales = ptr(load(args, TILES.scales) + tile * TILE_ROWS * per_row * 4, F32)
        fixes = load(args, TILES.fixes) + tile * TILE_ROWS * per_row * groups * 4
        for i in range(height):
            x = ptr(load(args, TILES.x), T) + (tile * TILE_ROWS + min(i, valid_rows - 1)) * stride
            bits, whole = I32(0), 0
            if is_flat(F):
                for unit in range(units):
                    read_unit_of_row(x, unit * UNIT, k_size - unit * UNIT, order, part)
                    bits = largest(part, bits)
            for unit in range(units):
                read_unit_of_row(x, unit * UNIT, k_size - unit * UNIT, order, part)
                if not is_flat(F):
                    bits = largest(part, I32(0))
                top = bitcast(bits, F32)
                inverse = F32(127.0) / top if top > SMALLEST else F32(0.0)
                scale = F32(0.0) if top <= SMALLEST else top * F32(1 / 127)
                to = ptr(address(quads) + (i * units + unit) * UNIT, I8) if in_place else bytes_
                first, second = quantize_unit(part, inverse, to, 0), quantize_unit(part, inverse, to, 1)
                if not in_place:
                    put_quads(bytes_, quads, unit, height, i, words)
                if is_flat(F):
                    whole += first + second
                    store(scales, i, scale)
                    store(ptr(fixes, I32), i, -zero_of(F) * whole)
                    continue
                store(scales, unit * height + i, scale)
                for group in range(groups):
                    total = first + second if groups == 1 else first if group == 0 else second
                    at = (unit * groups + group) * height + i
                    if has_min(F):
                        store(ptr(fixes, F32), at, scale * total)
                    else:
                        store(ptr(fixes, I32), at, -zero_of(F) * total)
    return 0


@jit.inline
def spread_rows(args, lo, hi, T):
    """Tiles [lo, hi) of the rows of x as float32 [k, rows of the tile], for `float_tile`."""
    stride, rows, order = load(args, TILES.stride), load(args, TILES.rows), load(args, TILES.order)
    k_size, units = load(args, TILES.k), load(args, TILES.units)
    part = ptr(stack(PART_BYTES), F32)
    for tile in range(lo, hi):
        valid_rows = min(TILE_ROWS, rows - tile * TILE_ROWS)
        height = height_of(valid_rows)
        to = ptr(load(args, TILES.tiles) + tile * TILE_ROWS * units * UNIT * 4, F32)
        for i in range(height):
            x = ptr(load(args, TILES.x), T) + (tile * TILE_ROWS + min(i, valid_rows - 1)) * stride
            for unit in range(units):
                read_unit_of_row(x, unit * UNIT, k_size - unit * UNIT, order, part)
                for k in range(UNIT):
                    store(to, (unit * UNIT + k) * height + i, load(part, k))
    return 0


# ---- parameters of weights ---------------------------------------------------------------------


@by_type
def read_parameters(F, records, first, count, shift, s, m):
    """Scales s[unit, groups, LANES] and minimums m, as float32, of units [first, first + count) of a panel."""
    form = format_of(F)
    kind, groups, size = form.parameters, form.groups, record_bytes(form)
    in_super = SUPER // form.group

    def half(F, records, first, count, shift, s, m):
        for u in range(count):
            record = ptr(records + ((first + u) >> shift) * size, F16)
            vstore(s, u * LANES, vload(record, 0, LANES))

    def half_min(F, records, first, count, shift, s, m):
        for u in range(count):
            record = ptr(records + ((first + u) >> shift) * size, F16)
            vstore(s, u * LANES, vload(record, 0, LANES))
            vstore(m, u * LANES, vload(record, LANES, LANES))

    def half_zero(F, records, first, count, shift, s, m):
        for u in range(count):
            record = records + ((first + u) >> shift) * size
            scale = vload(ptr(record, F16), 0, LANES)
            vstore(s, u * LANES, scale)
            vstore(m, u * LANES, -(scale * convert(vload(ptr(record + 2 * LANES, U8), 0, LANES), F32)))

    def single(F, records, first, count, shift, s, m):
        for u in range(count):
            vstore(s, u * LANES, vload(ptr(records + ((first + u) >> shift) * size, F32), 0, LANES))

    def exponent(F, records, first, count, shift, s, m):
        for u in range(count):  # 2^(e - 127), of twice the values; 255 is NaN, and 0 a subnormal number
            e = convert(vload(ptr(records + ((first + u) >> shift) * size, U8), 0, LANES), I32)
            bits = select(e == 255, 0x7FC00000, select(e == 0, 0x400000, e << 23))
            vstore(s, u * LANES, bitcast(bits, F32) * F32(0.5))

    def super_(F, records, first, count, shift, s, m):
        for g in range(first * groups, (first + count) * groups):
            record = records + g // in_super * size
            d = vload(ptr(record, F16), 0, LANES)
            scale = convert(vload(ptr(record + 2 * LANES, I8), g % in_super * LANES, LANES), F32)
            vstore(s, (g - first * groups) * LANES, d * scale)

    def super_min(F, records, first, count, shift, s, m):
        for g in range(first * groups, (first + count) * groups):
            record = records + g // in_super * size
            d, least = vload(ptr(record, F16), 0, LANES), vload(ptr(record, F16), LANES, LANES)
            bytes_ = ptr(record + 4 * LANES, I8)
            scale = convert(vload(bytes_, g % in_super * LANES, LANES), F32)
            offset = convert(vload(bytes_, (in_super + g % in_super) * LANES, LANES), F32)
            vstore(s, (g - first * groups) * LANES, d * scale)
            vstore(m, (g - first * groups) * LANES, -(least * offset))

    kinds = (half, half_min, half_zero, single, exponent, super_, super_min)
    return next(function for function in kinds if function.__name__.rstrip("_") == kind)


# ---- products ----------------------------------------------------------------------------------


@jit.inline
def finish(args, totals, apart, panel, first_row, rows, T):
    """Totals of a panel, rows `apart` elements from each other, plus the bias, to their place in the result."""
    columns, stride, column = load(args, PRODUCT.columns), load(args, PRODUCT.y_stride), panel * LANES
    out, bias, valid = ptr(load(args, PRODUCT.y), T), ptr(load(args, PRODUCT.bias), T), columns - column
    for i in range(rows):
        value = vload(totals, i * apart, LANES)
        if load(args, PRODUCT.bias) != 0:
            value = value + convert(vload_first(bias, column, LANES, valid), F32)
        at = (first_row + i) * stride + column
        if valid >= LANES:
            vstore(out, at, value)
        else:
            vstore_first(out, at, value, valid)


@jit.inline
def stream(args, lo, hi, F, T):
    """Panels [lo, hi) times all rows, in tiles of 8 rows, straight from the planes."""
    rows, units, shift = load(args, PRODUCT.rows), load(args, PRODUCT.units), load(args, PRODUCT.shift)
    s_at, m_at, totals_at = stack(PARAMETERS_BYTES), stack(PARAMETERS_BYTES), stack(TOTALS_BYTES)
    s, m, totals, groups = ptr(s_at, F32), ptr(m_at, F32), ptr(totals_at, F32), groups_of(F)
    for panel in range(lo, hi):
        planes = load(args, PRODUCT.weight) + panel * load(args, PRODUCT.panel_bytes)
        for row in range(0, rows, TILE_ROWS):
            valid_rows = min(TILE_ROWS, rows - row)
            height = height_of(valid_rows)
            clear(totals, height * LANES)
            for first in range(0, units, SCALED_UNITS):
                many = min(SCALED_UNITS, units - first)
                read_parameters(F, planes + units * unit_bytes(F), first, many, shift, s, m)
                w, done = planes + first * unit_bytes(F), row * units + first * height
                x, scales, fixes = (
                    load(args, PRODUCT.x) + done * UNIT * words_of(F),
                    load(args, PRODUCT.scales) + done * 4,
                    load(args, PRODUCT.fixes) + done * groups * 4,
                )
                if height == 1:
                    integer_tile(x, scales, fixes, w, s_at, m_at, totals_at, many, F, 1)
                elif height == 2:
                    integer_tile(x, scales, fixes, w, s_at, m_at, totals_at, many, F, 2)
                elif height == 4:
                    integer_tile(x, scales, fixes, w, s_at, m_at, totals_at, many, F, 4)
                else:
                    integer_tile(x, scales, fixes, w, s_at, m_at, totals_at, many, F, TILE_ROWS)
            finish(args, totals, LANES, panel, row, valid_rows, T)
    return 0


@jit.inline
def stream_floats(args, lo, hi, F, T):
    """As `stream`, with activations of float32 that `spread_rows` laid out."""
    rows, units, shift = load(args, PRODUCT.rows), load(args, PRODUCT.units), load(args, PRODUCT.shift)
    s_at, m_at, totals_at = stack(PARAMETERS_BYTES), stack(PARAMETERS_BYTES), stack(TOTALS_BYTES)
    s, m, totals = ptr(s_at, F32), ptr(m_at, F32), ptr(totals_at, F32)
    for panel in range(lo, hi):
        planes = load(args, PRODUCT.weight) + panel * load(args, PRODUCT.panel_bytes)
        for row in range(0, rows, TILE_ROWS):
            valid_rows = min(TILE_ROWS, rows - row)
            height = height_of(valid_rows)
            clear(totals, height * LANES)
            for first in range(0, units, SCALED_UNITS):
                many = min(SCALED_UNITS, units - first)
                read_parameters(F, planes + units * unit_bytes(F), first, many, shift, s, m)
                x = load(args, PRODUCT.x) + (row * units + first * height) * UNIT * 4
                w = planes + first * unit_bytes(F)
                if height == 1:
                    float_tile(x, w, s_at, m_at, totals_at, many, F, 1)
                elif height == 2:
                    float_tile(x, w, s_at, m_at, totals_at, many, F, 2)
                elif height == 4:
                    float_tile(x, w, s_at, m_at, totals_at, many, F, 4)
                else:
                    float_tile(x, w, s_at, m_at, totals_at, many, F, TILE_ROWS)
            finish(args, totals, LANES, panel, row, valid_rows, T)
    return 0


# ---- one scale per row -------------------------------------------------------------------------


@jit.inline
def stream_flat(args, lo, hi, F, T):
    """As `stream`, for bytes with one scale per row: sums are integers until the end."""
    rows, units = load(args, PRODUCT.rows), load(args, PRODUCT.units)
    at = stack(TOTALS_BYTES)
    totals, integers = ptr(at, F32), ptr(at, I32)
    for panel in range(lo, hi):
        w = load(args, PRODUCT.weight) + panel * load(args, PRODUCT.panel_bytes)
        weights = vload(ptr(w + units * QUADS * ROW, F32), 0, LANES)
        for row in range(0, rows, TILE_ROWS):
            valid_rows = min(TILE_ROWS, rows - row)
            height = height_of(valid_rows)
            x, fixes, scales = (
                load(args, PRODUCT.x) + row * units * UNIT * words_of(F),
                load(args, PRODUCT.fixes) + row * 4,
                ptr(load(args, PRODUCT.scales), F32) + row,
            )
            if height == 1:
                flat_tile(x, fixes, w, at, units, F, 1)
            elif height == 2:
                flat_tile(x, fixes, w, at, units, F, 2)
            elif height == 4:
                flat_tile(x, fixes, w, at, units, F, 4)
            else:
                flat_tile(x, fixes, w, at, units, F, TILE_ROWS)
            for i in range(valid_rows):
                value = convert(vload(integers, i * LANES, LANES), F32) * (weights * load(scales, i))
                vstore(totals, i * LANES, value)
            finish(args, totals, LANES, panel, row, valid_rows, T)
    return 0
