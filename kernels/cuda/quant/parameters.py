"""Scales and minimums of quantised weights, a group at a time (`cpu/quant/panels.py` says how they lie)."""

from numba import types

from ...cpu.gemm.blocking import LANES
from ...cpu.quant.traits import format_of, record_bytes
from ...lang import lowp
from ...lang.by_type import by_type
from ...lang.formats import SUPER
from ...lang.simd import bitcast, load, ptr

F16, F32, I8, I32, U8 = lowp.float16, types.float32, types.int8, types.int32, types.uint8


@by_type
def parameters(F, records, group, shift, row):
    """(scale, minimum) of a group of a row of a panel, whose records begin at an address.

    A group is a unit, but where records are those of `SUPER` elements, which have more.
    """
    form = format_of(F)
    kind, in_super = form.parameters, SUPER // form.group

    def half(F, records, group, shift, row):
        return load(ptr(records + (group >> shift) * record_bytes(F), F16), row), F32(0)

    def half_min(F, records, group, shift, row):
        record = ptr(records + (group >> shift) * record_bytes(F), F16)
        return load(record, row), load(record, LANES + row)

    def half_zero(F, records, group, shift, row):
        record = records + (group >> shift) * record_bytes(F)
        scale = load(ptr(record, F16), row)
        return scale, -scale * F32(load(ptr(record + 2 * LANES, U8), row))

    def single(F, records, group, shift, row):
        return load(ptr(records + (group >> shift) * record_bytes(F), F32), row), F32(0)

    def exponent(F, records, group, shift, row):  # 2^(e - 127), of twice the values; 255 is NaN, and 0 a subnormal
        e = I32(load(ptr(records + (group >> shift) * record_bytes(F), U8), row))
        bits = I32(0x7FC00000) if e == 255 else I32(0x400000) if e == 0 else I32(e << 23)
        return bitcast(bits, F32) * F32(0.5), F32(0)

    def super_(F, records, group, shift, row):
        record = records + group // in_super * record_bytes(F)
        scale = load(ptr(record + 2 * LANES, I8), group % in_super * LANES + row)
        return load(ptr(record, F16), row) * F32(scale), F32(0)

    def super_min(F, records, group, shift, row):
        record, at = records + group // in_super * record_bytes(F), group % in_super * LANES + row
        scales = ptr(record + 4 * LANES, I8)
        scale = load(ptr(record, F16), row) * F32(load(scales, at))
        return scale, -load(ptr(record, F16), LANES + row) * F32(load(scales, in_super * LANES + at))

    kinds = (half, half_min, half_zero, single, exponent, super_, super_min)
    return next(function for function in kinds if function.__name__.rstrip("_") == kind)
