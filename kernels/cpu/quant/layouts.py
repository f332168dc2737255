"""Quantised checkpoints of the Hugging Face kind to panels; a matrix is never expanded.

Two shapes of source. Rows: bytes, or nibbles with the low one first, along k of each row of the weight. Columns: words
of 32 bits, whose neighbours are rows of the weight: GPTQ has 8 (or 4) neighbours of k in a word and N words side by
side, AWQ has 8 neighbours of N in a word.

All kernels share the head of their argument block: 0 address of the source, 1 of the first panel, 2 N, 3 K, 4 distance
of source rows (bytes for rows, words for columns), 5 bytes of a panel, 6 units, 7 records of parameters of a panel,
8 address of the scales, 9 and 10 their strides along rows and along records, 11 how many rows share a scale; for
columns 12 the address of the zeros (words), 13 their distance, 14 what is added to them, 15 the address of `order`.
"""

from numba import types

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
from .formats import LANES, QUADS, UNIT
from .pack import QUADS_BYTES, UNIT_BYTES, read_quads, read_unit, write_quads, write_unit
from .quantize import INFINITE_BITS, magnitude_bits, zero_bytes

F32, I32, I64, U8 = types.float32, types.int32, types.int64, types.uint8
NOT_FINITE, ZERO_RANGE = 1, 2
HALF_UNIT = UNIT // 2
COLUMNS = 128  # of AWQ that are read together: words of 64 bytes
SHIFTS_BYTES = 4 * (8 + LANES)


@jit.inline
def pack_scales(args, panel, parameters, record, SCALES, OUT, EXPONENTS):
    """Write the scales of a panel as OUT, the first field of records of `record` bytes; whether all are finite."""
    N, records, scales = load(args, 2), load(args, 7), ptr(load(args, 8), SCALES)
    row_stride, record_stride, shared = load(args, 9), load(args, 10), load(args, 11)
    first, finite = panel * LANES, True
    for r in range(records):
        target = ptr(parameters + r * record, OUT)
        for lane in range(LANES):
            store(target, lane, 0)
        for lane in range(min(LANES, N - first)):
            store(target, lane, load(scales, (first + lane) // shared * row_stride + r * record_stride))
        v = convert(vload(target, 0, LANES), F32)
        finite = finite and reduce_max(magnitude_bits(v)) < INFINITE_BITS
        if EXPONENTS:
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
def unpack_nibbles(tile, source, left, FLIP):
    """One unit of a row from 16 bytes, the low nibble of each first."""
    if left >= UNIT:
        v = vload(source, 0, HALF_UNIT) ^ FLIP
        vstore(tile, 0, interleave(v & 15, (v >> 4) & 15))
    else:
        v = vload_first(source, 0, HALF_UNIT, left // 2) ^ FLIP
        vstore_first(tile, 0, interleave(v & 15, (v >> 4) & 15), left)


@jit.inline
def pack_rows(args, lo, hi, unpack, BITS, FLIP, SCALES, OUT, SCALE_BYTES):
    """Panels [lo, hi) of rows that `unpack` turns into bytes, one unit at a time."""
    source, N, K, stride = ptr(load(args, 0), U8), load(args, 2), load(args, 3), load(args, 4)
    panel_bytes, units = load(args, 5), load(args, 6)
    scratch = stack(UNIT_BYTES)
    tile, unit_bytes, width = ptr(scratch, U8), UNIT_BYTES * BITS // 8, UNIT * BITS // 8
    for panel in range(lo, hi):
        out, valid = load(args, 1) + panel * panel_bytes, min(LANES, N - panel * LANES)
        record = LANES * SCALE_BYTES
        if not pack_scales(args, panel, out + units * unit_bytes, record, SCALES, OUT, SCALE_BYTES == 1):
            return NOT_FINITE
        zero_bytes(scratch, UNIT_BYTES)
        for u in range(units):
            left = K - u * UNIT
            if left < UNIT:
                zero_bytes(scratch, UNIT_BYTES)
            for row in range(valid):
                unpack(tile + row * UNIT, source + ((panel * LANES + row) * stride + u * width), left, FLIP)
            write_unit(out + u * unit_bytes, tile, UNIT, BITS)
    return 0


@jit.inline
def byte_rows(args, lo, hi, FLIP, SCALES, OUT, SCALE_BYTES):
    """Panels [lo, hi) of rows of bytes."""
    return pack_rows(args, lo, hi, unpack_bytes, 8, FLIP, SCALES, OUT, SCALE_BYTES)


@jit.inline
def nibble_rows(args, lo, hi, FLIP, SCALES, OUT, SCALE_BYTES):
    """Panels [lo, hi) of rows of nibbles."""
    return pack_rows(args, lo, hi, unpack_nibbles, 4, FLIP, SCALES, OUT, SCALE_BYTES)


@jit.inline
def pack_zeros(args, panel, parameters, record, BITS, AWQ):
    """Write the zeros of a panel behind its scales; whether all fit into a byte."""
    N, records, zeros = load(args, 2), load(args, 7), ptr(load(args, 12), I32)
    stride, added, fit = load(args, 13), load(args, 14), True
    per, mask = 32 // BITS, (1 << BITS) - 1
    for r in range(records):
        target = ptr(parameters + r * record + 2 * LANES, U8)
        for lane in range(LANES):
            column, zero = panel * LANES + lane, 0
            if column < N:
                place = column % per
                if AWQ:
                    place = (place >> 1) | ((place & 1) << 2)
                word = I64(load(zeros, r * stride + column // per))
                zero = ((word >> (BITS * place)) & mask) + added
            fit = fit and zero <= 255
            store(target, lane, U8(zero))
    return fit


@jit.inline
def pack_parameters(args, panel, parameters, BITS, AWQ, ZEROS, SCALES):
    """Scales, and with ZEROS zeros, of a panel; an error code, or 0."""
    record = (3 if ZEROS else 2) * LANES
    if not pack_scales(args, panel, parameters, record, SCALES, F16, False):
        return NOT_FINITE
    if ZEROS and not pack_zeros(args, panel, parameters, record, BITS, AWQ):
        return ZERO_RANGE
    return 0


@jit.inline
def gptq(args, lo, hi, BITS, ZEROS, SCALES):
    """Panels [lo, hi) of words [K / per, N]: element k of a row in bits BITS * (k % per) and up of word k // per."""
    words, N, K, stride = ptr(load(args, 0), I32), load(args, 2), load(args, 3), load(args, 4)
    panel_bytes, units = load(args, 5), load(args, 6)
    order, has_order = ptr(load(args, 15), I32), load(args, 15) != 0
    quads = ptr(stack(QUADS_BYTES), I32)
    per, mask, unit_bytes = 32 // BITS, (1 << BITS) - 1, UNIT_BYTES * BITS // 8
    for panel in range(lo, hi):
        out, first = load(args, 1) + panel * panel_bytes, panel * LANES
        status = pack_parameters(args, panel, out + units * unit_bytes, BITS, False, ZEROS, SCALES)
        if status != 0:
            return status
        for u in range(units):
            for i in range(QUADS):
                quad = fill(0, I32, LANES)
                for j in range(4):
                    k = u * UNIT + 4 * i + j
                    if k < K:
                        k = I64(load(order, k)) if has_order else k
                        word = vload_first(words, k // per * stride + first, LANES, N - first)
                        quad = quad | (((word >> (k % per * BITS)) & mask) << (8 * j))
                vstore(quads, i * LANES, quad)
            write_quads(out + u * unit_bytes, quads, BITS)
    return 0


@jit.inline
def awq_quads(quads, words, stride, first, N, k, K, shifts):
    """The quads of one unit from words [K, N / 8] at row k for the panel that begins at column `first`."""
    shift, at = vload(shifts, first % 8, LANES), first // 8
    other = min(at + 1, N // 8 - 1)
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
def awq(args, lo, hi, ZEROS, SCALES):
    """Columns [COLUMNS * lo, COLUMNS * hi) of words [K, N / 8]: nibble i has column 0 2 4 6 1 3 5 7 [i] of its eight.

    Panels that share cache lines are packed together, unit by unit: alone, each would read all of K's lines again.
    """
    words, N, K, stride = ptr(load(args, 0), I32), load(args, 2), load(args, 3), load(args, 4)
    panel_bytes, units = load(args, 5), load(args, 6)
    quads, shifts = ptr(stack(QUADS_BYTES), I32), ptr(stack(SHIFTS_BYTES), I32)
    unit_bytes = UNIT_BYTES // 2
    for lane in range(8 + LANES):
        place = lane % 8
        store(shifts, lane, 4 * ((place >> 1) | ((place & 1) << 2)))
    for block in range(lo, hi):
        begin, end = block * (COLUMNS // LANES), min((block + 1) * COLUMNS, N + LANES - 1) // LANES
        for panel in range(begin, end):
            out = load(args, 1) + panel * panel_bytes + units * unit_bytes
            status = pack_parameters(args, panel, out, 4, True, ZEROS, SCALES)
            if status != 0:
                return status
        for u in range(units):
            for panel in range(begin, end):
                awq_quads(quads, words, stride, panel * LANES, N, u * UNIT, K, shifts)
                write_quads(load(args, 1) + panel * panel_bytes + u * unit_bytes, quads, 4)
    return 0


# ---- and back, for checkpoints that are written ----------------------------------------------------


@jit.inline
def to_int8(args, lo, hi):
    """Panels [lo, hi) of `int8` as rows of int8, and their scales as float32.

    args: addresses of the rows, of the first panel and of the scales, N, K, bytes of a panel, units.
    """
    y, scales, N, K = ptr(load(args, 0), U8), ptr(load(args, 2), F32), load(args, 3), load(args, 4)
    panel_bytes, units = load(args, 5), load(args, 6)
    tile = ptr(stack(UNIT_BYTES), U8)
    for panel in range(lo, hi):
        source, valid = load(args, 1) + panel * panel_bytes, min(LANES, N - panel * LANES)
        own = vload(ptr(source + units * UNIT_BYTES, F32), 0, LANES)
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
    """Panels [lo, hi) of `int4` as words [K / 8, N] and scales float16 [groups, N].

    args: addresses of the words, of the first panel and of the scales, N, K, bytes of a panel, units, records.
    """
    words, scales, N, K = ptr(load(args, 0), I32), ptr(load(args, 2), F16), load(args, 3), load(args, 4)
    panel_bytes, units, records = load(args, 5), load(args, 6), load(args, 7)
    quads, unit_bytes = ptr(stack(QUADS_BYTES), I32), UNIT_BYTES // 2
    for panel in range(lo, hi):
        source, first = load(args, 1) + panel * panel_bytes, panel * LANES
        for r in range(records):
            own = vload(ptr(source + units * unit_bytes, F16), r * LANES, LANES)
            vstore_first(scales, r * N + first, own, N - first)
        for u in range(units):
            read_quads(quads, source + u * unit_bytes, 4)
            for i in range(min(4, (K - u * UNIT) // 8)):
                low, high = vload(quads, 2 * i * LANES, LANES), vload(quads, (2 * i + 1) * LANES, LANES)
                word = nibbles_of(low) | (nibbles_of(high) << 16)
                vstore_first(words, (4 * u + i) * N + first, word, N - first)
    return 0
