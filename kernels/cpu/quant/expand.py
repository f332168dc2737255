"""Packed weights to floats: for products of many rows whose activations are not rounded, and to be looked at.

For out[M, N] = x[M, K] W[N, K]^T + bias, a pair of panels is expanded to the floats that the blocked product multiplies
(`microkernel.py`: float32, or bfloat16 pairs), some 2000 of k at a time: half a megabyte at most, that stays in the
second-level cache for all rows of x.
"""

from numba import types
from numba.extending import intrinsic

from ...blocks.quant import PANELS, PRODUCT, REORDER, VALUES
from ...build import jit
from ...lang.convert import narrow
from ...lang.lowp import bfloat16
from ...lang.shuffle import transpose_tile
from ...lang.simd import convert, load, ptr, stack, store, vload, vstore, vstore_first
from ..gemm.blocking import LANES, ROWS, SHORT_ROWS, VECTORS
from ..gemm.microkernel import _constant, depth, is_pair, panel_ptr, panel_type, read, tile_product, write
from ..gemm.pack import pack_panels
from .panels import EXPANDED_UNITS, UNIT
from .products import PARAMETERS_BYTES, ROW, SCALED_UNITS, finish, read_parameters
from .tile import FLOATS, INTS, fma, unit_floats
from .traits import format_of, groups_of, panel_bytes, unit_bytes, units_of

F32, I32, I64 = types.float32, types.int32, types.int64
ACROSS = VECTORS * LANES  # columns of a pair of panels
TILE_BYTES = ROWS * ACROSS * 4
UNIT_PARAMETERS, UNIT_COLUMNS, UNIT_ROWS = 2 * ROW, 4 * UNIT * ACROSS, 4 * UNIT * LANES  # bytes of a unit's floats

element_bytes = _constant("element_bytes", lambda dtype: panel_type(dtype).bitwidth // 8)


@intrinsic
def expand_unit(typingctx, out, w, s, m, F, T):
    """Write unit `w` of a panel, as what `T` is multiplied as, to rows of `ACROSS` elements from address `out` on.

    All but the types are addresses; `s` and `m` have the scales and minimums of the unit.
    """
    if not isinstance(F, types.NumberClass) or not isinstance(T, types.NumberClass):
        return None
    form, dtype = format_of(F), T.instance_type
    row = ACROSS * panel_type(dtype).bitwidth // 8

    def codegen(context, builder, sig, args):
        out, w, s, m = args[:4]
        scale = [read(builder, s, FLOATS, 4, group * ROW) for group in range(form.groups)]
        least = [read(builder, m, FLOATS, 4, group * ROW) for group in range(form.groups) if form.has_min]
        waiting = {}
        for k, value in unit_floats(builder, form, w):
            group = k // form.group
            scaled = (
                fma(builder, value, scale[group], least[group]) if form.has_min else builder.fmul(value, scale[group])
            )
            if not is_pair(dtype):
                write(builder, scaled, out, 4, k * row)
                continue
            waiting[k] = builder.zext(narrow(builder, bfloat16, scaled), INTS)
            if {k | 1, k & ~1} <= waiting.keys():
                high = builder.shl(waiting[k | 1], INTS([16] * LANES))
                write(builder, builder.or_(waiting[k & ~1], high), out, 4, k // 2 * row)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4, F, T), codegen


@jit.inline
def reorder(args, lo, hi, T):
    """Rows [lo, hi) of y, whose elements are those of x in another order."""
    k_size, order = load(args, REORDER.k), ptr(load(args, REORDER.order), I32)
    for row in range(lo, hi):
        x, y = ptr(load(args, REORDER.x), T) + row * k_size, ptr(load(args, REORDER.y), T) + row * k_size
        for k in range(k_size):
            store(y, k, load(x, load(order, k)))
    return 0


@jit.inline
def pack_rows(args, lo, hi, T):
    """Tiles [lo, hi) of rows of x, each a panel [K, ROWS], for `expanded`."""
    stride, rows, K = load(args, PANELS.stride), load(args, PANELS.rows), load(args, PANELS.k)
    for tile in range(lo, hi):
        x = ptr(load(args, PANELS.x), T) + tile * ROWS * stride
        panel = panel_ptr(load(args, PANELS.panels) + tile * load(args, PANELS.panel_bytes), T)
        pack_panels(panel, 0, x, min(ROWS, rows - tile * ROWS), K, stride, 1, ROWS, T)
    return 0


@jit.inline
def expand_panels(args, item, first, many, at, F, T):
    """Units [first, first + many) of a pair of panels to one panel of the blocked product at the address `at`."""
    s_at, m_at = stack(PARAMETERS_BYTES), stack(PARAMETERS_BYTES)
    units, last = load(args, PRODUCT.units), (load(args, PRODUCT.columns) - 1) // LANES
    shift, row = load(args, PRODUCT.shift), ACROSS * element_bytes(T)
    unit_rows = UNIT // depth(T) * row
    for j in range(VECTORS):
        planes = load(args, PRODUCT.weight) + min(last, item * VECTORS + j) * load(args, PRODUCT.panel_bytes)
        records = planes + units * unit_bytes(F)
        for start in range(0, many, SCALED_UNITS):
            count = min(SCALED_UNITS, many - start)
            read_parameters(F, records, first + start, count, shift, ptr(s_at, F32), ptr(m_at, F32))
            for u in range(count):
                to = at + (start + u) * unit_rows + j * LANES * element_bytes(T)
                apart = u * groups_of(F) * ROW
                expand_unit(to, planes + (first + start + u) * unit_bytes(F), s_at + apart, m_at + apart, F, T)


@jit.inline
def add_tile(args, tile, totals, item, row, height, ends, T):
    """Sums of a tile, with those of earlier units added, to `totals`, or after the last unit to the result."""
    for i in range(0, height * ACROSS, LANES):
        value = vload(tile, i, LANES)
        if not ends[0]:
            value = value + vload(totals, i, LANES)
        vstore(totals, i, value)
    if ends[1]:
        for j in range(VECTORS):
            if (item * VECTORS + j) * LANES < load(args, PRODUCT.columns):
                finish(args, totals + j * LANES, ACROSS, item * VECTORS + j, row, height, T)


@jit.inline
def expanded(args, lo, hi, thread, F, T):
    """Pairs [lo, hi) of panels times all rows of x, which `pack_rows` packed."""
    rows, units, K, pair = load(args, PRODUCT.rows), load(args, PRODUCT.units), load(args, PRODUCT.k), depth(T)
    scratch = load(args, PRODUCT.scratch) + thread * load(args, PRODUCT.thread_bytes)
    panel, sums = panel_ptr(scratch, T), ptr(scratch + EXPANDED_UNITS * UNIT // pair * ACROSS * element_bytes(T), F32)
    tile = ptr(stack(TILE_BYTES), F32)
    for item in range(lo, hi):
        for first in range(0, units, EXPANDED_UNITS):
            many = min(EXPANDED_UNITS, units - first)
            expand_panels(args, item, first, many, scratch, F, T)
            steps = (min(many * UNIT, K - first * UNIT) + pair - 1) // pair
            ends = first == 0, first + many == units
            row = 0
            while row < rows:
                a = panel_ptr(load(args, PRODUCT.x) + row // ROWS * load(args, PRODUCT.x_bytes), T) + (
                    first * UNIT // pair * ROWS + row % ROWS
                )
                height = min(ROWS - row % ROWS, rows - row)
                if (height + SHORT_ROWS - 1) // SHORT_ROWS * SHORT_ROWS + row % ROWS < ROWS:
                    height = min(SHORT_ROWS, height)
                    tile_product(a, panel, None, 0, tile, ACROSS, steps, T, SHORT_ROWS, ROWS, VECTORS)
                else:
                    tile_product(a, panel, None, 0, tile, ACROSS, steps, T, ROWS, ROWS, VECTORS)
                add_tile(args, tile, sums + row * ACROSS, item, row, height, ends, T)
                row += height
    return 0


# ---- to look at ----------------------------------------------------------------------------------


@jit.inline
def write_row(y, at, order, k, values, valid, T):
    """Elements k, ... of the row of y at `at`: `valid` of LANES values, each where `order` says if that is not 0."""
    if order == 0:
        vstore_first(y, at + k, convert(vload(values, 0, LANES), T), valid)
        return
    for i in range(min(LANES, valid)):
        store(y, at + I64(load(ptr(order, I32), k + i)), load(values, i))


@jit.inline
def dequantize(args, lo, hi, F, T):
    """Panels [lo, hi) as rows of floats."""
    n, k_size, shift = load(args, VALUES.n), load(args, VALUES.k), load(args, VALUES.shift)
    y, order, units = ptr(load(args, VALUES.y), T), load(args, VALUES.order), units_of(k_size)
    s_at, m_at = stack(UNIT_PARAMETERS), stack(UNIT_PARAMETERS)
    columns_at, rows_at = stack(UNIT_COLUMNS), stack(UNIT_ROWS)
    columns, rows = ptr(columns_at, F32), ptr(rows_at, F32)
    for panel in range(lo, hi):
        planes = load(args, VALUES.weight) + panel * panel_bytes(F, k_size, shift)
        for u in range(units):
            read_parameters(F, planes + units * unit_bytes(F), u, 1, shift, ptr(s_at, F32), ptr(m_at, F32))
            expand_unit(columns_at, planes + u * unit_bytes(F), s_at, m_at, F, F32)
            for i in range(0, UNIT, LANES):
                transpose_tile(rows + i, UNIT, columns + i * ACROSS, ACROSS, LANES)
            for row in range(min(LANES, n - panel * LANES)):
                for i in range(0, min(UNIT, k_size - u * UNIT), LANES):
                    k, at = u * UNIT + i, (panel * LANES + row) * k_size
                    write_row(y, at, order, k, rows + (row * UNIT + i), k_size - k, T)
    return 0
