"""Float weights to panels of `int8` and `int4`: panels [lo, hi) behind that of the row `first`."""

from numba import types

from ...blocks.quant import PACK
from ...build import jit
from ...lang.lowp import float16 as F16
from ...lang.lowp import quantized
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
from .pack import QUADS_BYTES, UNIT_BYTES, write_quads, write_unit
from .panels import LANES, QUADS, UNIT
from .traits import panel_bytes, units_of

F32, I32, U8 = types.float32, types.int32, types.uint8
INT8, INT4 = quantized("int8"), quantized("int4")
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
def panel_of(args, panel, F):
    """The address of a panel of the result."""
    nbytes = panel_bytes(F, load(args, PACK.k), load(args, PACK.shift))
    return load(args, PACK.weight) + (load(args, PACK.first) // LANES + panel) * nbytes


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
    x, stride = ptr(load(args, PACK.x), T), load(args, PACK.stride)
    N, K = load(args, PACK.n), load(args, PACK.k)
    units, scratch = units_of(K), stack(UNIT_BYTES)
    tile, scales = ptr(scratch, U8), ptr(stack(LINE_BYTES), F32)
    for panel in range(lo, hi):
        out, rows = panel_of(args, panel, INT8), min(LANES, N - panel * LANES)
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
    """q = round(w / scale) + 8 with a float16 scale for groups of 1 << `shift` units."""
    x, stride = ptr(load(args, PACK.x), T), load(args, PACK.stride)
    N, K = load(args, PACK.n), load(args, PACK.k)
    units, group, unit_bytes = units_of(K), 1 << load(args, PACK.shift), UNIT_BYTES // 2
    columns, square = ptr(stack(GROUP_BYTES), F32), ptr(stack(SQUARE_BYTES), F32)
    quads = ptr(stack(QUADS_BYTES), I32)
    for panel in range(lo, hi):
        out, rows = panel_of(args, panel, INT4), min(LANES, N - panel * LANES)
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
