"""Float weights to panels of `int8` and `int4`, and panels of every format back to floats.

All kernels do panels [lo, hi) and share the head of their argument block: 0 address of the float rows, 1 of the first
panel, 2 number of rows, 3 their length K, 4 elements from row to row, 5 bytes of a panel, 6 units of a row.
"""

from numba import types

from ...build import jit
from ...lang.lowp import float16 as F16
from ...lang.shuffle import transpose_tile
from ...lang.simd import (
    bitcast,
    convert,
    fill,
    load,
    muladd,
    ptr,
    reduce_max,
    select,
    stack,
    store,
    vabs,
    vload,
    vload_first,
    vmax,
    vmin,
    vstore,
    vstore_first,
)
from .formats import LANES, QUADS, UNIT
from .pack import QUADS_BYTES, UNIT_BYTES, read_unit, write_quads, write_unit

F32, I8, I32, I64, U8 = types.float32, types.int8, types.int32, types.int64, types.uint8
NOT_FINITE, TOO_LARGE = 1, 2
INFINITE_BITS = 0x7F800000
TINY_BITS = 0x06800000  # 2^-114: rows below it are zeros to int8, whose scales would lose bits as subnormals

# Adding 1.5 x 2^23 to a float32 of less than 2^22 rounds it to nearest even and leaves the integer in the low bits.
MAGIC, MAGIC_BITS = 12582912.0, 0x4B400000

# int4 scales tried for a group: absolutely largest element / these. Q4_0 takes -8 alone; the best of seven, with the
# scale that minimises the squared error of its integers, errs 5 to 7 % less (0.081 instead of 0.086 of the standard
# deviation of normal weights in groups of 32), and 60 gain only another 0.5 %.
STEPS, FIRST_STEP, STEP = 7, -9.2, 0.6
GROUP_UNITS = 4  # units of the largest group
GROUP_BYTES = 4 * LANES * UNIT * GROUP_UNITS
SQUARE_BYTES = 4 * LANES * LANES
LINE_BYTES = 4 * LANES


@jit.inline
def magnitude_bits(v):
    """Bits of |v| (float32): they order as the magnitudes do, and NaN comes out above infinity."""
    return bitcast(v, I32) & 0x7FFFFFFF


@jit.inline
def largest_bits(x, size):
    """`magnitude_bits` of the largest of `size` elements."""
    peak = fill(0, I32, LANES)
    i = 0
    while i + LANES <= size:
        peak = vmax(peak, magnitude_bits(convert(vload(x, i, LANES), F32)))
        i += LANES
    if i < size:
        peak = vmax(peak, magnitude_bits(convert(vload_first(x, i, LANES, size - i), F32)))
    return reduce_max(peak)


@jit.inline
def zero_bytes(p, size):
    """Set `size` bytes, a multiple of 4 * LANES, to zero."""
    words = ptr(p, I32)
    for i in range(0, size // 4, LANES):
        vstore(words, i, fill(0, I32, LANES))


@jit.inline
def int8_scales(scales, x, stride, rows, K):
    """Scales of the rows of a panel (float32, 1 where all is zero); False for NaN or infinity."""
    vstore(scales, 0, fill(1.0, F32, LANES))
    for row in range(rows):
        peak = largest_bits(x + row * stride, K)
        if peak >= INFINITE_BITS:
            return False
        if peak >= TINY_BITS:
            store(scales, row, bitcast(I32(peak), F32) / F32(127.0))
    return True


@jit.inline
def int8(args, lo, hi, T):
    """q = round(w / scale) + 128 with scale = largest |w| of the row / 127."""
    x, N, K, stride = ptr(load(args, 0), T), load(args, 2), load(args, 3), load(args, 4)
    panel_bytes, units = load(args, 5), load(args, 6)
    scratch = stack(UNIT_BYTES)
    tile, scales = ptr(scratch, U8), ptr(stack(LINE_BYTES), F32)
    for panel in range(lo, hi):
        out, rows = load(args, 1) + panel * panel_bytes, min(LANES, N - panel * LANES)
        base = x + panel * LANES * stride
        if not int8_scales(scales, base, stride, rows, K):
            return NOT_FINITE
        vstore_first(ptr(out + units * UNIT_BYTES, F32), 0, fill(0.0, F32, LANES), LANES)
        vstore_first(ptr(out + units * UNIT_BYTES, F32), 0, vload(scales, 0, LANES), rows)
        zero_bytes(scratch, UNIT_BYTES)
        for u in range(units):
            left = K - u * UNIT
            if left < UNIT:
                zero_bytes(scratch, UNIT_BYTES)
            for row in range(rows):
                source, target, scale = base + (row * stride + u * UNIT), tile + row * UNIT, load(scales, row)
                if left >= UNIT:
                    for i in range(0, UNIT, LANES):
                        vstore(target, i, int8_bytes(vload(source, i, LANES), scale))
                else:
                    for i in range(0, left, LANES):
                        v = vload_first(source, i, LANES, left - i)
                        vstore_first(target, i, int8_bytes(v, scale), left - i)
            write_unit(out + u * UNIT_BYTES, tile, UNIT, 8)
    return 0


@jit.inline
def int8_bytes(v, scale):
    """round(v / scale) + 128 as bytes."""
    return convert(bitcast(convert(v, F32) / scale + (MAGIC + 128), I32), U8)


@jit.inline
def load_columns(columns, square, x, stride, rows, k, K):
    """columns[i, row] = x[row, k + i] for one unit, as float32; zero beyond `rows` and K."""
    for i in range(0, UNIT, LANES):
        left = max(0, K - k - i)
        for row in range(LANES):
            valid = left if row < rows else 0
            vstore(square, row * LANES, convert(vload_first(x, row * stride + k + i, LANES, valid), F32))
        transpose_tile(columns + i * LANES, LANES, square, LANES, LANES)


@jit.inline
def round_int4(v, inverse):
    """v * inverse to the nearest whole number from -8 to 7, as the bits of that number + MAGIC."""
    bits = bitcast(muladd(v, inverse, MAGIC), I32)
    return vmin(vmax(bits, MAGIC_BITS - 8), MAGIC_BITS + 7)


@jit.inline
def int4_scale(columns, size):
    """The scale of each lane for `size` elements of it: see `STEPS`. Zero where all are zero."""
    peak = fill(0.0, F32, LANES)
    for k in range(size):
        v = vload(columns, k * LANES, LANES)
        peak = select(vabs(v) > vabs(peak), v, peak)
    none = vabs(peak) < 1e-30
    unit = select(none, 0.0, 1.0 / select(none, 1.0, peak))
    best, scale = fill(0.0, F32, LANES), fill(0.0, F32, LANES)
    for step in range(STEPS):
        products, squares = fill(0.0, F32, LANES), fill(0.0, F32, LANES)
        for k in range(size):
            v = vload(columns, k * LANES, LANES) * unit  # |v| <= 1, so that no square overflows
            q = bitcast(round_int4(v, F32(FIRST_STEP + STEP * step)), F32) - F32(MAGIC)
            products = muladd(v, q, products)
            squares = muladd(q, q, squares)
        own = products / select(squares > 0.0, squares, 1.0)
        gain = own * products
        better = gain > best
        best = select(better, gain, best)
        scale = select(better, own, scale)
    return scale * select(none, 0.0, peak)


@jit.inline
def int4(args, lo, hi, T):
    """q = round(w / scale) + 8 with a float16 scale for groups of args[7] units."""
    x, N, K, stride = ptr(load(args, 0), T), load(args, 2), load(args, 3), load(args, 4)
    panel_bytes, units, group = load(args, 5), load(args, 6), load(args, 7)
    unit_bytes = UNIT_BYTES // 2
    columns, square = ptr(stack(GROUP_BYTES), F32), ptr(stack(SQUARE_BYTES), F32)
    quads = ptr(stack(QUADS_BYTES), I32)
    for panel in range(lo, hi):
        out, rows = load(args, 1) + panel * panel_bytes, min(LANES, N - panel * LANES)
        base = x + panel * LANES * stride
        scales = ptr(out + units * unit_bytes, F16)
        for first in range(0, units, group):
            count = min(group, units - first)
            for u in range(count):
                load_columns(columns + u * UNIT * LANES, square, base, stride, rows, (first + u) * UNIT, K)
            peak = largest_bits(columns, count * UNIT * LANES)
            if peak >= INFINITE_BITS:
                return NOT_FINITE
            at = first // group * LANES
            vstore(scales, at, int4_scale(columns, count * UNIT))
            scale = vload(scales, at, LANES)  # rounded
            if reduce_max(magnitude_bits(scale)) >= INFINITE_BITS:
                return TOO_LARGE
            zero = vabs(scale) == 0.0
            inverse = select(zero, 0.0, 1.0 / select(zero, 1.0, scale))
            for u in range(count):
                source, k = columns + u * UNIT * LANES, (first + u) * UNIT
                for i in range(QUADS):
                    quad = fill(0, I32, LANES)
                    for j in range(4):
                        if k + 4 * i + j < K:
                            bits = round_int4(vload(source, (4 * i + j) * LANES, LANES), inverse)
                            quad = quad | ((bits - (MAGIC_BITS - 8)) << (8 * j))
                    vstore(quads, i * LANES, quad)
                write_quads(out + (first + u) * unit_bytes, quads, 4)
    return 0


# ---- back to floats ------------------------------------------------------------------------------


@jit.inline
def scale_and_min(p, row, group, PARAMETERS, GROUPS):
    """(scale, min) of group `group` of a row: w = scale * value + min; `p` is the address of the parameters.

    PARAMETERS numbers the kinds in the order of `formats.py`; GROUPS is how many groups a "super" record has.
    """
    if PARAMETERS == 0:
        return load(ptr(p + group * 2 * LANES, F16), row), F32(0.0)
    if PARAMETERS == 1:
        record = ptr(p + group * 4 * LANES, F16)
        return load(record, row), load(record, LANES + row)
    if PARAMETERS == 2:
        record = p + group * 3 * LANES
        scale = load(ptr(record, F16), row)
        return scale, -scale * F32(load(ptr(record + 2 * LANES, U8), row))
    if PARAMETERS == 3:
        return load(ptr(p + group * 4 * LANES, F32), row), F32(0.0)
    if PARAMETERS == 4:
        exponent = I32(load(ptr(p + group * LANES, U8), row))
        bits = 0x00400000 if exponent == 0 else 0x7FC00000 if exponent == 255 else exponent << 23
        return bitcast(I32(bits), F32) * F32(0.5), F32(0.0)  # the table has twice the values
    which, within = group // GROUPS, group % GROUPS
    if PARAMETERS == 5:
        record = p + which * (2 + GROUPS) * LANES
        small = load(ptr(record + 2 * LANES, I8), within * LANES + row)
        return load(ptr(record, F16), row) * F32(small), F32(0.0)
    record = p + which * (4 + 2 * GROUPS) * LANES
    halves, integers = ptr(record, F16), ptr(record + 4 * LANES, I8)
    scale = load(halves, row) * F32(load(integers, within * LANES + row))
    return scale, -load(halves, LANES + row) * F32(load(integers, (GROUPS + within) * LANES + row))


@jit.inline
def dequantize(args, lo, hi, T, Q, BITS, PARAMETERS, GROUPS, ZERO, TABLE):
    """w = scale * (value(q) - ZERO) + min, into rows of T. Q is uint8, or the float8 type whose bits q are.

    args beyond the shared ones: 7 how many elements of k share a scale, 8 address of `order` (0: none), and with
    TABLE from 9 on its 16 entries.
    """
    y, N, K, stride = ptr(load(args, 0), T), load(args, 2), load(args, 3), load(args, 4)
    panel_bytes, units, shared = load(args, 5), load(args, 6), load(args, 7)
    order, has_order = ptr(load(args, 8), I32), load(args, 8) != 0
    scratch, line = stack(UNIT_BYTES), ptr(stack(LINE_BYTES), F32)
    tile, values = ptr(scratch, U8), ptr(scratch, Q)
    unit_bytes = UNIT_BYTES * BITS // 8
    for panel in range(lo, hi):
        source = load(args, 1) + panel * panel_bytes
        parameters = source + units * unit_bytes
        for u in range(units):
            read_unit(tile, UNIT, source + u * unit_bytes, BITS)
            if TABLE:
                for i in range(UNIT_BYTES):
                    store(tile, i, U8(load(args, 9 + I64(load(tile, i)))))
            for row in range(min(LANES, N - panel * LANES)):
                for i in range(0, min(UNIT, K - u * UNIT), LANES):
                    k = u * UNIT + i
                    scale, low = scale_and_min(parameters, row, k // shared, PARAMETERS, GROUPS)
                    v = (convert(vload(values, row * UNIT + i, LANES), F32) - F32(ZERO)) * scale + low
                    at = (panel * LANES + row) * stride
                    if has_order:
                        vstore(line, 0, v)
                        for j in range(min(LANES, K - k)):
                            store(y, at + I64(load(order, k + j)), load(line, j))
                    else:
                        vstore_first(y, at + k, convert(v, T), K - k)
    return 0
