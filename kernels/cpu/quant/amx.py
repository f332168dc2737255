"""Products of many rows with quantised weights by the tile registers of Intel's AMX, bytes times bytes into int32.

A unit of a panel, 8 vectors of quads, is what a tile of B of 8 rows wants (`panels.py`), and two units of bytes are a
tile of 16 rows. Activations are those of `tiled_rows.py`, each row by itself: tiles of A as they lie.
Where a weight has a scale for every group, the sums of each unit leave the tile and are scaled in vectors.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ...blocks.quant import PRODUCT
from ...build import jit
from ...lang.rows import clear
from ...lang.simd import address, convert, load, ptr, stack, store, vload, vstore
from ...lang.tile_registers import CONFIG_BYTES, ROW, call_tiles, full_shapes, load_shapes, pointer, release
from ...lang.vector import I8, I64, literal_of
from ..gemm.blocking import LANES
from ..gemm.microkernel import read, sum_loop, write
from .panels import QUADS, SPAN, TILED_ROWS, UNIT, tiled_units
from .products import PARAMETERS_BYTES, SCALED_UNITS, finish, read_parameters
from .tile import F32 as FLOAT
from .tile import FLOATS, INTS, fma, splat_at, unit_quads
from .traits import format_of, has_min, unit_bytes

F32, I32 = types.float32, types.int32
UNIT_SUMS = TILED_ROWS * ROW  # bytes of the sums of a tile
EXPANDED = QUADS * ROW  # bytes of a unit
EXPANDED_BYTES = SCALED_UNITS * EXPANDED
TOTALS_BYTES = SPAN * ROW
X_BYTES = 1 << 20  # of rows that stay in the second-level cache while panels pass
_tiled_units = jit.inline(tiled_units)


@jit.inline
def begin(flat):
    """Shapes: tiles 0 to 3 are whole. Of a flat format so are 4 and 5, of rows and weights, and 6 and 7 are theirs of
    one unit; else 4 and 5 are rows of one unit, 6 and 7 units of weights."""
    config = ptr(stack(CONFIG_BYTES), types.uint8)
    full_shapes(config)
    store(config, 16 + 2 * (6 if flat else 4), UNIT)
    store(config, 16 + 2 * (6 if flat else 5), UNIT)
    store(config, 48 + (7 if flat else 6), QUADS)
    store(config, 48 + 7, QUADS)
    load_shapes(address(config))


@intrinsic
def expand_bytes(typingctx, to, w, F):
    """The bytes of a unit of weights from its planes, less the zero of the format."""
    if not isinstance(F, types.NumberClass):
        return None
    form = format_of(F)

    def codegen(context, builder, sig, args):
        bytes_ = ir.VectorType(I8, ROW)
        zero = ir.Constant(bytes_, [form.zero - 256 if form.zero > 127 else form.zero] * ROW)
        for i, quad in enumerate(unit_quads(builder, form, args[1])):
            quad = builder.sub(builder.bitcast(quad, bytes_), zero)
            write(builder, builder.bitcast(quad, INTS), args[0], 4, i * ROW)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, F), codegen


@intrinsic
def scaled_tile(typingctx, x, x_stride, scales, fixes, w, s, m, totals, units, F):
    """totals[16, LANES] += 16 rows of activations times units of weights that are bytes, each unit scaled.

    A unit is multiplied, and the sums of the next one are stored, while those of a third are scaled: a product takes
    some 50 cycles to its end, and what a tile stores cannot be read before it is in the cache.
    """
    if not isinstance(F, types.NumberClass):
        return None
    form = format_of(F)
    product = "tdpbssd" if form.zero else "tdpbsud"  # what has no zero may be unsigned bytes above 127

    def codegen(context, builder, sig, args):
        x, x_stride, scales, fixes, w, s, m, totals, units = args[:9]
        sums_at = builder.ptrtoint(cgutils.alloca_once(builder, INTS, size=2 * TILED_ROWS), I64)
        row, one = ir.Constant(I64, ROW), ir.Constant(I64, 1)

        def start(x, w, tile):
            call_tiles(builder, "tilezero", tile)
            call_tiles(builder, "tileloadd64", 6 + tile, pointer(builder, w), row)
            call_tiles(builder, "tileloadd64", 4 + tile, pointer(builder, x), x_stride)
            call_tiles(builder, product, tile, 4 + tile, 6 + tile)

        def keep(tile):
            call_tiles(builder, "tilestored64", tile, pointer(builder, sums_at, tile * UNIT_SUMS), row)

        def finish(at, tile, sums):
            """The totals with the sums of unit `tile` of a pair."""
            place = tile * UNIT_SUMS
            scale, least = read(builder, at[2], FLOATS, 4, tile * ROW), None
            if form.has_min:
                least = read(builder, at[3], FLOATS, 4, tile * ROW)
            new = []
            for i, total in enumerate(sums):
                part = builder.sitofp(read(builder, sums_at, INTS, 4, place + i * ROW), FLOATS)
                own = 4 * (tile * TILED_ROWS + i)
                total = fma(builder, part, builder.fmul(scale, splat_at(builder, at[0], FLOAT, own)), total)
                if form.has_min:
                    total = fma(builder, least, splat_at(builder, at[1], FLOAT, own), total)
                new.append(total)
            return new

        def following(at, step, last):
            """The address a step further, but not beyond the last."""
            at = builder.add(at, ir.Constant(I64, step))
            return builder.select(builder.icmp_unsigned("<", at, last), at, last)

        end = builder.sub(units, one)
        x_last = builder.add(x, builder.mul(end, ir.Constant(I64, UNIT)))
        w_last = builder.add(w, builder.mul(end, ir.Constant(I64, EXPANDED)))

        def body(at, sums):
            for tile in (0, 1):
                step = 2 + tile
                keep(1 - tile)
                start(following(at[0], step * UNIT, x_last), following(at[1], step * EXPANDED, w_last), tile)
                sums = finish(at[2:], tile, sums)
            return sums

        starts = [read(builder, totals, FLOATS, 4, i * ROW) for i in range(TILED_ROWS)]
        start(x, w, 0)
        start(following(x, UNIT, x_last), following(w, EXPANDED, w_last), 1)
        keep(0)
        strides = [2 * UNIT, 2 * EXPANDED] + [2 * 4 * TILED_ROWS] * 2 + [2 * ROW] * 2
        pairs = builder.lshr(units, one)
        at, sums = sum_loop(builder, pairs, [x, w, scales, fixes, s, m], strides, starts, body)
        for i, value in enumerate(sums):
            write(builder, value, totals, 4, i * ROW)
        with builder.if_then(builder.icmp_signed("!=", builder.and_(units, one), ir.Constant(I64, 0))):
            for i, value in enumerate(finish(at[2:], 0, sums)):
                write(builder, value, totals, 4, i * ROW)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 9, F), codegen


@intrinsic(prefer_literal=True)
def flat_tiles(typingctx, x, x_stride, w, to, units, tiles):
    """to[16 tiles, LANES] (int32) = rows of activations times a panel of unsigned bytes, two units at a time."""
    count = literal_of(tiles)
    if count is None:
        return None

    def codegen(context, builder, sig, args):
        x, x_stride, w, to, units = args[:5]
        row = ir.Constant(I64, ROW)
        below = builder.mul(x_stride, ir.Constant(I64, TILED_ROWS))

        def step(x, w, rows, weights):
            call_tiles(builder, "tileloadd64", weights, pointer(builder, w), row)
            for tile in range(count):
                call_tiles(builder, "tileloadd64", rows, pointer(builder, x), x_stride)
                call_tiles(builder, "tdpbsud", tile, rows, weights)
                x = builder.add(x, below)

        def body(at, sums):
            step(*at, 4, 5)
            return sums

        for tile in range(count):
            call_tiles(builder, "tilezero", tile)
        pairs = builder.lshr(units, ir.Constant(I64, 1))
        at, _ = sum_loop(builder, pairs, [x, w], [2 * UNIT, 2 * EXPANDED], [], body)
        odd = builder.and_(units, ir.Constant(I64, 1))
        with builder.if_then(builder.icmp_signed("!=", odd, ir.Constant(I64, 0))):
            step(*at, 6, 7)
        for tile in range(count):
            call_tiles(builder, "tilestored64", tile, pointer(builder, to, tile * UNIT_SUMS), row)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5, tiles), codegen


@jit.inline
def tall_rows(units):
    """Rows of x that panels are multiplied with, one panel after another."""
    return max(1, X_BYTES // (_tiled_units(units) * UNIT * SPAN)) * SPAN


@jit.inline
def stream(args, lo, hi, F, T):
    """As `products.stream`: panels [lo, hi) times all rows, each unit with its own scales."""
    rows, units, shift = load(args, PRODUCT.rows), load(args, PRODUCT.units), load(args, PRODUCT.shift)
    s_at, m_at, bytes_at, totals_at = (
        stack(PARAMETERS_BYTES), stack(PARAMETERS_BYTES), stack(EXPANDED_BYTES), stack(TOTALS_BYTES),
    )  # fmt: skip
    s, m, totals = ptr(s_at, F32), ptr(m_at, F32), ptr(totals_at, F32)
    room, tall = _tiled_units(units), tall_rows(units)
    begin(False)
    for top in range(0, rows, tall):
        for panel in range(lo, hi):
            planes = load(args, PRODUCT.weight) + panel * load(args, PRODUCT.panel_bytes)
            for row in range(top, min(rows, top + tall), SPAN):
                some = min(SPAN, rows - row)
                clear(totals, SPAN * LANES)
                for first in range(0, units, SCALED_UNITS):
                    many = min(SCALED_UNITS, units - first)
                    read_parameters(F, planes + units * unit_bytes(F), first, many, shift, s, m)
                    for u in range(many):
                        expand_bytes(bytes_at + u * EXPANDED, planes + (first + u) * unit_bytes(F), F)
                    for i in range(0, some, TILED_ROWS):
                        done = (row + i) * room + first * TILED_ROWS
                        x = load(args, PRODUCT.x) + ((row + i) * room + first) * UNIT
                        scales = load(args, PRODUCT.scales) + 4 * done
                        fixes = load(args, PRODUCT.fixes) + 4 * done if has_min(F) else scales
                        to = totals_at + i * ROW
                        scaled_tile(x, room * UNIT, scales, fixes, bytes_at, s_at, m_at, to, many, F)
                finish(args, totals, LANES, panel, row, some, T)
    release()
    return 0


@jit.inline
def stream_flat(args, lo, hi, F, T):
    """As `products.stream_flat`: bytes with one scale per row."""
    rows, units = load(args, PRODUCT.rows), load(args, PRODUCT.units)
    at = stack(TOTALS_BYTES)
    totals, integers = ptr(at, F32), ptr(at, I32)
    room, tall = _tiled_units(units), tall_rows(units)
    begin(True)
    for top in range(0, rows, tall):
        for panel in range(lo, hi):
            w = load(args, PRODUCT.weight) + panel * load(args, PRODUCT.panel_bytes)
            weights = vload(ptr(w + units * EXPANDED, F32), 0, LANES)
            for row in range(top, min(rows, top + tall), SPAN):
                some = min(SPAN, rows - row)
                fixes, scales = ptr(load(args, PRODUCT.fixes), I32) + row, ptr(load(args, PRODUCT.scales), F32) + row
                x = load(args, PRODUCT.x) + row * room * UNIT
                if some > 2 * TILED_ROWS:
                    flat_tiles(x, room * UNIT, w, at, units, 4)
                else:
                    flat_tiles(x, room * UNIT, w, at, units, 2)
                for i in range(some):
                    whole = vload(integers, i * LANES, LANES) + load(fixes, i)
                    vstore(totals, i * LANES, convert(whole, F32) * (weights * load(scales, i)))
                finish(args, totals, LANES, panel, row, some, T)
    release()
    return 0
