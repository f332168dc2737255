"""Quantised checkpoints of the Hugging Face kind to panels, and back; a matrix is never expanded.

Two shapes of source. Rows: bytes, or nibbles with the low one first, along k of each row of the weight. Columns: words
of 32 bits, whose neighbours are rows of the weight: GPTQ has 8 (or 4) neighbours of k in a word and N words side by
side, AWQ has 8 neighbours of N in a word.
"""

from numba import types

from ...blocks.quant import LAYOUT, UNPACK
from ...build import jit
from ...lang.lowp import float16 as F16
from ...lang.shuffle import interleave
from ...lang.simd import (
    convert,
    fill,
    load,
    ptr,
    ramp,
    reduce_max,
    select,
    stack,
    store,
    vload,
    vload_first,
    vstore,
    vstore_first,
)
from .pack import QUADS_BYTES, UNIT_BYTES, read_quads, read_unit, write_quads, write_unit
from .panels import AWQ_COLUMNS, LANES, QUADS, UNIT
from .quantize import INFINITE_BITS, INT4, INT8, magnitude_bits, zero_bytes
from .traits import (
    bits_of,
    has_exponents,
    has_zeros,
    panel_bytes,
    record_bytes,
    records_of,
    scale_type,
    unit_bytes,
    units_of,
)

F32, I32, I64, U8 = types.float32, types.int32, types.int64, types.uint8
NOT_FINITE, ZERO_RANGE = 1, 2
HALF_UNIT = UNIT // 2
SHIFTS_BYTES = 4 * (8 + LANES)


@jit.inline
def panel_of(args, panel, F):
    """The address of a panel of the result."""
    return load(args, LAYOUT.weight) + panel * panel_bytes(F, load(args, LAYOUT.k), load(args, LAYOUT.shift))


@jit.inline
def pack_scales(args, panel, parameters, F, SCALES):
    """Write the scales of a panel, the first field of its records; whether all are finite."""
    N, scales = load(args, LAYOUT.n), ptr(load(args, LAYOUT.scales), SCALES)
    row_step, record_step = load(args, LAYOUT.row_step), load(args, LAYOUT.record_step)
    rows_each, first, finite = load(args, LAYOUT.rows_each), panel * LANES, True
    for r in range(records_of(F, load(args, LAYOUT.k), load(args, LAYOUT.shift))):
        target = ptr(parameters + r * record_bytes(F), scale_type(F))
        for lane in range(LANES):
            store(target, lane, 0)
        for lane in range(min(LANES, N - first)):
            store(target, lane, load(scales, (first + lane) // rows_each * row_step + r * record_step))
        v = convert(vload(target, 0, LANES), F32)
        finite = finite and reduce_max(magnitude_bits(v)) < INFINITE_BITS
        if has_exponents(F):
            finite = finite and reduce_max(v) < 255.0  # the code of NaN
    return finite


@jit.inline
def unpack_bytes(tile, source, left, FLIP):
    """One unit of a row from 32 bytes, of which `left` count; bits of FLIP are turned over."""
    if left >= UNIT:
        vstore(tile, 0, vload(source, 0, UNIT) ^ FLIP)
    else:
        vstore_first(tile, 0, vload_first(source, 0, UNIT, left) ^ FLIP, left)


@jit.inline
def unpack_nibbles(tile, source, left):
    """One unit of a row from 16 bytes, the low nibble of each first."""
    if left >= UNIT:
        v = vload(source, 0, HALF_UNIT)
        vstore(tile, 0, interleave(v & 15, (v >> 4) & 15))
    else:
        v = vload_first(source, 0, HALF_UNIT, left // 2)
        vstore_first(tile, 0, interleave(v & 15, (v >> 4) & 15), left)


@jit.inline
def rows(args, lo, hi, F, SCALES, FLIP):
    """Panels [lo, hi) of rows of bytes, whose bits of FLIP are turned over, or of nibbles, one unit at a time."""
    source, N, K = ptr(load(args, LAYOUT.source), U8), load(args, LAYOUT.n), load(args, LAYOUT.k)
    scratch, units, bits = stack(UNIT_BYTES), units_of(K), bits_of(F)
    tile, stride, width = ptr(scratch, U8), K * bits // 8, UNIT * bits // 8
    for panel in range(lo, hi):
        out, valid = panel_of(args, panel, F), min(LANES, N - panel * LANES)
        if not pack_scales(args, panel, out + units * unit_bytes(F), F, SCALES):
            return NOT_FINITE
        zero_bytes(scratch, UNIT_BYTES)
        for u in range(units):
            left = K - u * UNIT
            if left < UNIT:
                zero_bytes(scratch, UNIT_BYTES)
            for row in range(valid):
                at = source + ((panel * LANES + row) * stride + u * width)
                if bits == 8:
                    unpack_bytes(tile + row * UNIT, at, left, FLIP)
                else:
                    unpack_nibbles(tile + row * UNIT, at, left)
            write_unit(out + u * unit_bytes(F), tile, UNIT, bits)
    return 0


@jit.inline
def pack_zeros(args, panel, parameters, F, AWQ):
    """Write the zeros of a panel behind its scales; whether all fit into a byte."""
    N, zeros = load(args, LAYOUT.n), ptr(load(args, LAYOUT.zeros), I32)
    added, bits, fit = load(args, LAYOUT.added), bits_of(F), True
    per, mask = 32 // bits, (1 << bits) - 1
    for r in range(records_of(F, load(args, LAYOUT.k), load(args, LAYOUT.shift))):
        target = ptr(parameters + r * record_bytes(F) + 2 * LANES, U8)
        for lane in range(LANES):
            column, zero = panel * LANES + lane, 0
            if column < N:
                place = column % per
                if AWQ:
                    place = (place >> 1) | ((place & 1) << 2)
                word = I64(load(zeros, r * (N // per) + column // per))
                zero = ((word >> (bits * place)) & mask) + added
            fit = fit and zero <= 255
            store(target, lane, U8(zero))
    return fit


@jit.inline
def pack_parameters(args, panel, parameters, F, SCALES, AWQ):
    """Scales, and zeros where the format has them, of a panel; an error code, or 0."""
    if not pack_scales(args, panel, parameters, F, SCALES):
        return NOT_FINITE
    if has_zeros(F) and not pack_zeros(args, panel, parameters, F, AWQ):
        return ZERO_RANGE
    return 0


@jit.inline
def gptq(args, lo, hi, F, SCALES):
    """Panels [lo, hi) of words [K / per, N]: element k of a row is in word k // per, from bit k % per * bits on."""
    words, N, K = ptr(load(args, LAYOUT.source), I32), load(args, LAYOUT.n), load(args, LAYOUT.k)
    order, has_order = ptr(load(args, LAYOUT.order), I32), load(args, LAYOUT.order) != 0
    quads, units, bits = ptr(stack(QUADS_BYTES), I32), units_of(K), bits_of(F)
    per, mask = 32 // bits, (1 << bits) - 1
    for panel in range(lo, hi):
        out, first = panel_of(args, panel, F), panel * LANES
        status = pack_parameters(args, panel, out + units * unit_bytes(F), F, SCALES, False)
        if status != 0:
            return status
        for u in range(units):
            for i in range(QUADS):
                quad = fill(0, I32, LANES)
                for j in range(4):
                    k = u * UNIT + 4 * i + j
                    if k < K:
                        k = I64(load(order, k)) if has_order else k
                        word = vload_first(words, k // per * N + first, LANES, N - first)
                        quad = quad | (((word >> (k % per * bits)) & mask) << (8 * j))
                vstore(quads, i * LANES, quad)
            write_quads(out + u * unit_bytes(F), quads, bits)
    return 0


@jit.inline
def awq_quads(quads, words, first, N, k, K, shifts):
    """The quads of one unit from words [K, N / 8] at row k for the panel that begins at column `first`."""
    shift, at = vload(shifts, first % 8, LANES), first // 8
    stride = N // 8
    other = min(at + 1, stride - 1)
    for i in range(QUADS):
        quad = fill(0, I32, LANES)
        for j in range(4):
            row = k + 4 * i + j
            if row < K:
                word = fill(load(words, row * stride + at), I32, LANES)
                if LANES > 8:
                    second = fill(load(words, row * stride + other), I32, LANES)
                    word = select(ramp(0, I32, LANES) < 8, word, second)
                quad = quad | (((word >> shift) & 15) << (8 * j))
        vstore(quads, i * LANES, quad)


@jit.inline
def awq(args, lo, hi, F, SCALES):
    """Items [lo, hi) of AWQ_COLUMNS columns of words [K, N / 8]: nibble i has column 0 2 4 6 1 3 5 7 [i] of its eight.

    Panels that share cache lines are packed together, unit by unit: alone, each would read all of K's lines again.
    """
    words, N, K = ptr(load(args, LAYOUT.source), I32), load(args, LAYOUT.n), load(args, LAYOUT.k)
    quads, shifts, units = ptr(stack(QUADS_BYTES), I32), ptr(stack(SHIFTS_BYTES), I32), units_of(K)
    for lane in range(8 + LANES):
        place = lane % 8
        store(shifts, lane, 4 * ((place >> 1) | ((place & 1) << 2)))
    for item in range(lo, hi):
        begin, end = item * (AWQ_COLUMNS // LANES), min((item + 1) * AWQ_COLUMNS, N + LANES - 1) // LANES
        for panel in range(begin, end):
            status = pack_parameters(args, panel, panel_of(args, panel, F) + units * unit_bytes(F), F, SCALES, True)
            if status != 0:
                return status
        for u in range(units):
            for panel in range(begin, end):
                awq_quads(quads, words, panel * LANES, N, u * UNIT, K, shifts)
                write_quads(panel_of(args, panel, F) + u * unit_bytes(F), quads, 4)
    return 0


# ---- and back, for checkpoints that are written ----------------------------------------------------


@jit.inline
def to_int8(args, lo, hi):
    """Panels [lo, hi) of `int8` as rows of int8, and their scales as float32."""
    y, scales = ptr(load(args, UNPACK.values), U8), ptr(load(args, UNPACK.scales), F32)
    N, K = load(args, UNPACK.n), load(args, UNPACK.k)
    tile, units = ptr(stack(UNIT_BYTES), U8), units_of(K)
    for panel in range(lo, hi):
        source = load(args, UNPACK.weight) + panel * panel_bytes(INT8, K, load(args, UNPACK.shift))
        own, valid = vload(ptr(source + units * UNIT_BYTES, F32), 0, LANES), min(LANES, N - panel * LANES)
        vstore_first(scales, panel * LANES, own, valid)
        for u in range(units):
            read_unit(tile, UNIT, source + u * UNIT_BYTES, 8)
            for row in range(valid):
                q = vload(tile, row * UNIT, UNIT) ^ 128
                vstore_first(y, (panel * LANES + row) * K + u * UNIT, q, K - u * UNIT)
    return 0


@jit.inline
def nibbles_of(quad):
    """The nibbles of the four bytes of each lane, side by side in 16 bits."""
    return (quad & 15) | ((quad >> 4) & 0xF0) | ((quad >> 8) & 0xF00) | ((quad >> 12) & 0xF000)


@jit.inline
def to_gptq(args, lo, hi):
    """Panels [lo, hi) of `int4` as words [K / 8, N] and scales float16 [groups, N]."""
    words, scales = ptr(load(args, UNPACK.values), I32), ptr(load(args, UNPACK.scales), F16)
    N, K, shift = load(args, UNPACK.n), load(args, UNPACK.k), load(args, UNPACK.shift)
    quads, units = ptr(stack(QUADS_BYTES), I32), units_of(K)
    for panel in range(lo, hi):
        source, first = load(args, UNPACK.weight) + panel * panel_bytes(INT4, K, shift), panel * LANES
        for r in range(records_of(INT4, K, shift)):
            own = vload(ptr(source + units * unit_bytes(INT4), F16), r * LANES, LANES)
            vstore_first(scales, r * N + first, own, N - first)
        for u in range(units):
            read_quads(quads, source + u * unit_bytes(INT4), 4)
            for i in range(min(4, (K - u * UNIT) // 8)):
                low, high = vload(quads, 2 * i * LANES, LANES), vload(quads, (2 * i + 1) * LANES, LANES)
                word = nibbles_of(low) | (nibbles_of(high) << 16)
                vstore_first(words, (4 * u + i) * N + first, word, N - first)
    return 0
