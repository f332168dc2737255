"""Products of many rows with quantised weights, without rounding activations: out[M, N] = x[M, K] W[N, K]^T + bias.

A pair of panels is expanded to the floats that the blocked product multiplies (`microkernel.py`: float32, or bfloat16
pairs), some 2000 of k at a time: half a megabyte at most, that stays in the second-level cache for all rows of x.
"""

from numba import types
from numba.extending import intrinsic

from ...build import jit
from ...lang.lowp import bfloat16, narrow
from ...lang.simd import load, ptr, stack, vload, vstore
from ..gemm.blocking import LANES, ROWS, SHORT_ROWS, VECTORS
from ..gemm.microkernel import _constant, depth, is_pair, panel_ptr, panel_type, read, tile_product, write
from ..gemm.pack import pack_panels
from .formats import EXPANDED_UNITS, UNIT
from .products import PARAMETERS_BYTES, ROW, SCALED_UNITS, finish, groups_of, read_parameters, unit_bytes
from .tile import FLOATS, INTS, fma, format_of, unit_floats

F32 = types.float32
ACROSS = VECTORS * LANES  # columns of a pair of panels
TILE_BYTES = ROWS * ACROSS * 4

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
def pack_rows(args, lo, hi, T):
    """Tiles [lo, hi) of rows of x, each a panel [K, ROWS], for `expanded`."""
    stride, rows, K = load(args, 1), load(args, 2), load(args, 3)
    for tile in range(lo, hi):
        x = ptr(load(args, 0), T) + tile * ROWS * stride
        panel = panel_ptr(load(args, 4) + tile * load(args, 5), T)
        pack_panels(panel, 0, x, min(ROWS, rows - tile * ROWS), K, stride, 1, ROWS, T)
    return 0


@jit.inline
def expand_panels(args, item, first, many, at, F, T):
    """Units [first, first + many) of a pair of panels to one panel of the blocked product at the address `at`."""
    s_at, m_at = stack(PARAMETERS_BYTES), stack(PARAMETERS_BYTES)
    units, last = load(args, 8), (load(args, 7) - 1) // LANES
    row = ACROSS * element_bytes(T)
    unit_rows = UNIT // depth(T) * row
    for j in range(VECTORS):
        planes = load(args, 3) + min(last, item * VECTORS + j) * load(args, 9)
        records = planes + units * unit_bytes(F)
        for start in range(0, many, SCALED_UNITS):
            count = min(SCALED_UNITS, many - start)
            read_parameters(F, records, first + start, count, load(args, 10), ptr(s_at, F32), ptr(m_at, F32))
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
            if (item * VECTORS + j) * LANES < load(args, 7):
                finish(args, totals + j * LANES, ACROSS, item * VECTORS + j, row, height, T)


@jit.inline
def expanded(args, lo, hi, F, T):
    """Pairs [lo, hi) of panels times all rows of x, which `pack_rows` packed."""
    rows, units, K, pair = load(args, 6), load(args, 8), load(args, 2), depth(T)
    scratch = load(args, 12) + lo // load(args, 14) * load(args, 13)
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
                a = panel_ptr(load(args, 0) + row // ROWS * load(args, 1), T) + (
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
