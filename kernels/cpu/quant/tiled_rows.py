"""Activations as integers for tile registers (`amx.py`): tiles of 16 rows, each of which lies by itself.

Scales and corrections are those of `products.quantize_rows`, in tiles of 16. Largest magnitudes and sums of a unit are
found for the 16 rows together, so that nothing is added across lanes one row at a time.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...blocks.quant import TILES
from ...build import jit
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
    vmax,
    vstore,
)
from ...lang.vector import I32, literal_of
from ..gemm.blocking import LANES
from ..gemm.microkernel import read, write
from .panels import TILED_ROWS, UNIT
from .products import PART_BYTES, SMALLEST, nearest_bytes, read_unit_of_row
from .traits import has_min, is_flat, zero_of

F32, INT32, I8 = types.float32, types.int32, types.int8
PARTS_BYTES = PART_BYTES * TILED_ROWS  # a unit of the rows as float32
LINE_BYTES = 4 * LANES
VECTORS_BYTES = LINE_BYTES * TILED_ROWS  # a vector of each row


@intrinsic(prefer_literal=True)
def fold_rows(typingctx, vectors, largest):
    """vectors[0, i] = the largest, or the sum, of the int32 lanes of vector i, for as many vectors as there are lanes.

    Halves are folded pair by pair, 30 shuffles in all; one vector alone takes 4.
    """
    most = literal_of(largest)
    if most is None:
        return None

    def codegen(context, builder, sig, args):
        kind = ir.VectorType(I32, LANES)
        rows = [read(builder, args[0], kind, 4, 4 * LANES * i) for i in range(LANES)]

        def chosen(a, b, first):
            lanes = ir.Constant(ir.VectorType(I32, LANES), list(range(first, 2 * LANES, 2)))
            return builder.shuffle_vector(a, b, lanes)

        while len(rows) > 1:  # neighbours are folded, and the lanes of two vectors lie side by side then
            folded = []
            for a, b in zip(rows[::2], rows[1::2]):
                even, odd = chosen(a, b, 0), chosen(a, b, 1)
                if most:
                    folded.append(builder.select(builder.icmp_signed(">", even, odd), even, odd))
                else:
                    folded.append(builder.add(even, odd))
            rows = folded
        write(builder, rows[0], args[0], 4)
        return context.get_dummy_value()

    return types.void(types.int64, largest), codegen


@jit.inline
def magnitudes(part):
    """The bits of the larger magnitudes of two halves of a unit; those of NaN are largest of all."""
    top = fill(0, INT32, LANES)
    for i in range(0, UNIT, LANES):
        top = vmax(top, bitcast(vload(part, i, LANES), INT32) & 0x7FFFFFFF)
    return top


@jit.inline
def round_unit(part, inverse, to):
    """to[32] = round(part * inverse); returns sums of its lanes."""
    total = fill(0, INT32, LANES)
    for i in range(0, UNIT, LANES):
        q = nearest_bytes(vload(part, i, LANES) * inverse)
        vstore(to, i, convert(q, I8))
        total = total + q
    return total


@jit.inline
def scaled_units(x, stride, k, order, valid, units, quads, scales, fixes, F, T):
    """A tile of rows, whose units each have a scale; `valid` rows exist, and the last one is repeated."""
    parts, vectors_at, factors_at = (
        ptr(stack(PARTS_BYTES), F32),
        stack(VECTORS_BYTES),
        stack(LINE_BYTES),
    )
    vectors, factors = ptr(vectors_at, INT32), ptr(factors_at, F32)
    for unit in range(units):
        for i in range(TILED_ROWS):
            row = ptr(x, T) + min(i, valid - 1) * stride
            read_unit_of_row(row, unit * UNIT, k - unit * UNIT, order, parts + i * UNIT)
            vstore(vectors, i * LANES, magnitudes(parts + i * UNIT))
        fold_rows(vectors_at, 1)
        top = bitcast(vload(vectors, 0, LANES), F32)
        vstore(factors, 0, select(top > F32(SMALLEST), fill(127.0, F32, LANES) / top, fill(0.0, F32, LANES)))
        scale = select(top <= F32(SMALLEST), fill(0.0, F32, LANES), top * F32(1 / 127))
        vstore(ptr(scales, F32), unit * TILED_ROWS, scale)
        for i in range(TILED_ROWS):
            total = round_unit(parts + i * UNIT, load(factors, i), ptr(quads, I8) + (i * units + unit) * UNIT)
            if has_min(F):
                vstore(vectors, i * LANES, total)
        if has_min(F):  # other formats are signed bytes, which need no correction
            fold_rows(vectors_at, 0)
            vstore(ptr(fixes, F32), unit * TILED_ROWS, scale * convert(vload(vectors, 0, LANES), F32))


@jit.inline
def flat_row(x, k, order, units, to, scale_at, fix_at, F, T):
    """A row with one scale."""
    part, top = ptr(stack(PART_BYTES), F32), fill(0, INT32, LANES)
    for unit in range(units):
        read_unit_of_row(ptr(x, T), unit * UNIT, k - unit * UNIT, order, part)
        top = vmax(top, magnitudes(part))
    most = bitcast(reduce_max(top), F32)
    inverse = F32(127.0) / most if most > SMALLEST else F32(0.0)
    total = fill(0, INT32, LANES)
    for unit in range(units):
        read_unit_of_row(ptr(x, T), unit * UNIT, k - unit * UNIT, order, part)
        total = total + round_unit(part, inverse, ptr(to, I8) + unit * UNIT)
    store(ptr(scale_at, F32), 0, F32(0.0) if most <= SMALLEST else most * F32(1 / 127))
    store(ptr(fix_at, INT32), 0, INT32(-zero_of(F) * reduce_add(total)))


@jit.inline
def quantize_rows(args, lo, hi, F, T):
    """Tiles [lo, hi) of 16 rows of x as integers, always whole."""
    stride, rows, order = load(args, TILES.stride), load(args, TILES.rows), load(args, TILES.order)
    k, units = load(args, TILES.k), load(args, TILES.units)
    for tile in range(lo, hi):
        first = tile * TILED_ROWS
        valid, quads = min(TILED_ROWS, rows - first), load(args, TILES.tiles) + first * units * UNIT
        x = load(args, TILES.x)
        if is_flat(F):
            for i in range(TILED_ROWS):
                at = 4 * (first + i)
                row = address_of(x, (first + min(i, valid - 1)) * stride, T)
                to, scale, fix = quads + i * units * UNIT, load(args, TILES.scales) + at, load(args, TILES.fixes) + at
                flat_row(row, k, order, units, to, scale, fix, F, T)
        else:
            done = 4 * first * units
            scales, fixes = load(args, TILES.scales) + done, load(args, TILES.fixes) + done
            row = address_of(x, first * stride, T)
            scaled_units(row, stride, k, order, valid, units, quads, scales, fixes, F, T)
    return 0


@jit.inline
def address_of(x, elements, T):
    """The address some elements behind another one."""
    return address(ptr(x, T) + elements)
