"""Quantised weights as rows of floats, for products of many rows: a thread has 32 elements of a row."""

from numba import types

from ...blocks.quant import VALUES
from ...build import jit
from ...cpu.gemm.blocking import LANES
from ...cpu.quant.traits import format_of, groups_of, has_min, panel_bytes, unit_bytes, units_of
from ...lang import lowp
from ...lang.by_type import by_type
from ...lang.formats import UNIT
from ...lang.simd import convert, fill, lane, load, ptr, ramp, select, store, vload
from ..block import write
from .parameters import parameters

F32, I32, I64, U32, U64 = types.float32, types.int32, types.int64, types.uint32, types.uint64
QUADS = UNIT // 4


@jit.inline
def plane(at, first, i, bits):
    """The four values of quad i in a plane of so many bits, which begins with vector `first` of a unit."""
    vectors = bits  # of a plane: quads 0, `vectors`, 2 * `vectors`, ... share one
    word = load(ptr(at + (first + i % vectors) * (4 * LANES), U32), 0)
    mask = U32(0x01010101 * ((1 << bits) - 1))
    return (word >> U32(i // vectors * bits)) & mask


@by_type
def quad(at, i, F):
    """The integers of quad i of the row at an address, a byte each."""
    bits = format_of(F).bits
    if bits in (6, 5):
        return lambda at, i, F: plane(at, 0, i, 4) | (plane(at, 4, i, bits - 4) << U32(4))
    if bits == 3:
        return lambda at, i, F: plane(at, 0, i, 2) | (plane(at, 2, i, 1) << U32(2))
    return lambda at, i, F: plane(at, 0, i, bits)


def _table_words(form):
    """Its 16 bytes in two words."""
    return tuple(int.from_bytes(bytes(form.table[8 * k : 8 * k + 8]), "little") for k in (0, 1))


@by_type
def floats(at, i, F):
    """The values of quad i, before scales."""
    form = format_of(F)
    zero = float(form.zero)
    if form.float8:
        kind = getattr(lowp, form.float8)
        return lambda at, i, F: vload(ptr(at + i * (4 * LANES), kind), 0, 4)
    if form.table is None:
        return lambda at, i, F: convert(bytes_of(quad(at, i, F)), F32) - F32(zero)
    low, high = (int.from_bytes(bytes(form.table[8 * k : 8 * k + 8]), "little") for k in (0, 1))

    def looked_up(at, i, F):
        q = convert(bytes_of(quad(at, i, F)), U64)
        half = select(q < U64(8), fill(U64(low), U64, 4), fill(U64(high), U64, 4))
        return convert((half >> ((q & U64(7)) * U64(8))) & U64(255), F32) - F32(zero)

    return looked_up


@jit.inline
def bytes_of(word):
    """The four bytes of a word."""
    return (fill(word, U32, 4) >> (ramp(0, U32, 4) * U32(8))) & U32(255)


@jit.inline
def expand(args, lo, hi, F, T):
    """Units [lo, hi), a unit of the rows of a panel after the other: to y, in the order that `order` says."""
    n, k, shift = load(args, VALUES.n), load(args, VALUES.k), load(args, VALUES.shift)
    units, order = units_of(k), load(args, VALUES.order)
    for index in range(lo, hi):
        rest = index // LANES
        panel = rest // units
        row, unit = index - rest * LANES, rest - panel * units
        if panel * LANES + row >= n:
            continue
        planes = load(args, VALUES.weight) + panel * panel_bytes(F, k, shift)
        at, records = planes + unit * unit_bytes(F) + 4 * row, planes + units * unit_bytes(F)
        y, left = ptr(load(args, VALUES.y), T) + (panel * LANES + row) * k, k - unit * UNIT
        for g in range(groups_of(F)):
            scale, least = parameters(F, records, unit * groups_of(F) + g, shift, row)
            for i in range(g * QUADS // groups_of(F), (g + 1) * QUADS // groups_of(F)):
                values = floats(at, i, F) * scale
                if has_min(F):
                    values = values + least
                if order == 0:
                    write(y, unit * UNIT + 4 * i, values, left - 4 * i)
                else:
                    place = ptr(order, I32) + (unit * UNIT + 4 * i)
                    if left > 4 * i:
                        store(y, I64(load(place, 0)), lane(values, 0))
                    if left > 4 * i + 1:
                        store(y, I64(load(place, 1)), lane(values, 1))
                    if left > 4 * i + 2:
                        store(y, I64(load(place, 2)), lane(values, 2))
                    if left > 4 * i + 3:
                        store(y, I64(load(place, 3)), lane(values, 3))
    return 0
