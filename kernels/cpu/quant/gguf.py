"""Weights of GGUF files: raw blocks to values, and to panels.

Layouts of the blocks: https://github.com/ggml-org/ggml, `ggml-common.h` and `ggml-quants.c`. A row is a sequence of
blocks of 32 elements, or of 256 for the kinds named K; each has the bits of its elements and its parameters. `unpack`
takes a block apart into q, one byte an element as `lang/formats.py` means it, and a record of the parameters as stored:
    byte 0  scale (d) float16, or an exponent uint8;  byte 2  min float16;  bytes 4, 20  int8 scales and mins of groups
Values and panels are both made of these two, so they agree. Values are those of the reference to the last bit: a scale
times the scale of a group is rounded before it meets an element, and nothing is fused.
"""

from numba import types

from ...blocks.quant import GGUF_PACK, GGUF_VALUES
from ...build import jit
from ...lang.formats import FORMATS, KINDS, SUPER, UNIT
from ...lang.lowp import float16
from ...lang.rows import fill_row
from ...lang.simd import address, bitcast, convert, load, ptr, ramp, stack, store, vload, vstore
from .pack import write_unit
from .panels import LANES
from .traits import bits_of, has_min, panel_bytes, record_bytes, unit_bytes, zero_of

F32, I8, I32, I64 = types.float32, types.int8, types.int32, types.int64
U8, U16, U32, U64 = types.uint8, types.uint16, types.uint32, types.uint64

# Kinds by number. GROUPS: scales of a block of 256, 0 for blocks of 32.
Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K = (
    KINDS[name].number for name in "Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL MXFP4 Q2_K Q3_K Q4_K Q5_K Q6_K".split()
)

BYTES = 16  # of a vector
RECORD = 36  # bytes of the parameters of a block
SCALES, MINS = 4, 20
LONGEST = SUPER  # elements of a block
ROWS_BYTES, RECORDS_BYTES, STARTS_BYTES = LANES * LONGEST, LANES * RECORD, LANES * 8
OUT_OF_RANGE = 1

_TABLES = {name: int.from_bytes(bytes(FORMATS[name].table), "little") for name in ("iq4_nl", "mxfp4")}
IQ4_LOW, IQ4_HIGH = _TABLES["iq4_nl"] & (2**64 - 1), _TABLES["iq4_nl"] >> 64
E2M1_LOW, E2M1_HIGH = _TABLES["mxfp4"] & (2**64 - 1), _TABLES["mxfp4"] >> 64


# ---- elements: q of a block -------------------------------------------------------------------


@jit.inline
def nibbles(q, x):
    """q of 32 elements from 16 bytes: the low nibbles first."""
    v = vload(x, 0, BYTES)
    vstore(q, 0, v & 15)
    vstore(q, BYTES, v >> 4)


@jit.inline
def fifth_bits(q, x):
    """Put bit i of the 4 bytes at x into bit 4 of q[i]."""
    bits = U32(load(x, 0)) | (U32(load(x, 1)) << 8) | (U32(load(x, 2)) << 16) | (U32(load(x, 3)) << 24)
    for i in range(0, UNIT, BYTES):
        spread = ((ramp(i, U32, BYTES) * 0 + bits) >> ramp(i, U32, BYTES)) & 1
        vstore(q, i, vload(q, i, BYTES) | (convert(spread, U8) << 4))


@jit.inline
def pairs_of_bits(q, x, place):
    """Put the 4 pairs of bits of 2 times 32 bytes into bits `place` and `place` + 1 of 256 q."""
    for i in range(0, 2 * UNIT, BYTES):
        v = vload(x, i, BYTES)
        at = i if i < UNIT else i + 3 * UNIT
        for s in range(4):
            part = ((v >> (2 * s)) & 3) << place
            to = at + s * UNIT
            vstore(q, to, part if place == 0 else vload(q, to, BYTES) | part)


@jit.inline
def single_bits(q, x, place):
    """Put the 8 bits of 32 bytes into bit `place` of 256 q: bit s belongs to the unit s."""
    for i in range(0, UNIT, BYTES):
        v = vload(x, i, BYTES)
        for s in range(8):
            vstore(q, s * UNIT + i, vload(q, s * UNIT + i, BYTES) | (((v >> s) & 1) << place))


@jit.inline
def runs_of_nibbles(q, x, run):
    """q of 256 elements from 128 bytes: of each `run` bytes the low nibbles, then the high ones."""
    for i in range(0, 128, BYTES):
        v = vload(x, i, BYTES)
        to = i // run * (2 * run) + i % run
        vstore(q, to, v & 15)
        vstore(q, to + run, v >> 4)


# ---- parameters: the record of a block --------------------------------------------------------


@jit.inline
def two_bytes(record, at, x):
    """Copy a float16 into a record."""
    store(record, at, load(x, 0))
    store(record, at + 1, load(x, 1))


@jit.inline
def scales_of_q3(record, x):
    """16 scales of 6 bits, less 32: low nibbles in 8 bytes, pairs of high bits in 4."""
    for g in range(16):
        low = (load(x, g & 7) >> (4 * (g >> 3))) & 15
        high = (load(x, 8 + (g & 3)) >> (2 * (g >> 2))) & 3
        store(record, SCALES + g, U8(low + (high << 4) - 32))


@jit.inline
def scales_and_mins(record, x):
    """8 scales and 8 mins of 6 bits from 12 bytes, of Q4_K and Q5_K."""
    for g in range(4):
        a, b, c = I64(load(x, g)), I64(load(x, g + 4)), I64(load(x, g + 8))
        store(record, SCALES + g, U8(a & 63))
        store(record, MINS + g, U8(b & 63))
        store(record, SCALES + 4 + g, U8((c & 15) | ((a >> 6) << 4)))
        store(record, MINS + 4 + g, U8((c >> 4) | ((b >> 6) << 4)))


# ---- blocks -----------------------------------------------------------------------------------


@jit.inline
def unpack_small(q, record, x, KIND):
    """The block of 32 at x into q and `record`."""
    two_bytes(record, 0, x)  # of MXFP4 the first byte counts
    if KIND == Q8_0:
        for i in range(0, UNIT, BYTES):
            vstore(q, i, vload(x, 2 + i, BYTES) + 128)
    if KIND == Q4_0 or KIND == IQ4_NL:
        nibbles(q, x + 2)
    if KIND == MXFP4:
        nibbles(q, x + 1)
    if KIND == Q4_1 or KIND == Q5_1:
        two_bytes(record, 2, x + 2)
    if KIND == Q4_1:
        nibbles(q, x + 4)
    if KIND == Q5_0:
        nibbles(q, x + 6)
        fifth_bits(q, x + 2)
    if KIND == Q5_1:
        nibbles(q, x + 8)
        fifth_bits(q, x + 4)


@jit.inline
def unpack_super(q, record, x, KIND):
    """The block of 256 at x into q and `record`."""
    if KIND == Q2_K:
        pairs_of_bits(q, x + 16, 0)
        v = vload(x, 0, BYTES)
        vstore(record, SCALES, v & 15)
        vstore(record, MINS, v >> 4)
        two_bytes(record, 0, x + 80)
        two_bytes(record, 2, x + 82)
    if KIND == Q3_K:
        pairs_of_bits(q, x + 32, 0)
        single_bits(q, x, 2)
        scales_of_q3(record, x + 96)
        two_bytes(record, 0, x + 108)
    if KIND == Q4_K or KIND == Q5_K:
        two_bytes(record, 0, x)
        two_bytes(record, 2, x + 2)
        scales_and_mins(record, x + 4)
        runs_of_nibbles(q, x + (16 if KIND == Q4_K else 48), UNIT)
    if KIND == Q5_K:
        single_bits(q, x + 16, 4)
    if KIND == Q6_K:
        runs_of_nibbles(q, x, 64)
        pairs_of_bits(q, x + 128, 4)
        vstore(record, SCALES, vload(x, 192, BYTES))
        two_bytes(record, 0, x + 208)


@jit.inline
def unpack(q, record, x, KIND, GROUPS):
    """The block at x into q (bytes) and `record`."""
    if GROUPS == 0:
        unpack_small(q, record, x, KIND)
    else:
        unpack_super(q, record, x, KIND)


# ---- values -----------------------------------------------------------------------------------


@jit.inline
def write_table(table, KIND):
    """The table of a kind that has one: 16 bytes, each 128 more than the value."""
    words = ptr(table, U64)
    store(words, 0, U64(IQ4_LOW) if KIND == IQ4_NL else U64(E2M1_LOW))
    store(words, 1, U64(IQ4_HIGH) if KIND == IQ4_NL else U64(E2M1_HIGH))


@jit.inline
def scale_of(record, g, KIND, GROUPS):
    """The scale of group g, float32."""
    if KIND == MXFP4:  # 2^(e - 128), of table entries that are twice the values
        e = I64(load(record, 0))
        return bitcast(U32(0x00200000 << e) if e < 2 else U32((e - 1) << 23), F32)
    d = load(ptr(address(record), float16), 0)
    if GROUPS == 0:
        return d
    return d * F32(load(ptr(address(record), I8), SCALES + g))


@jit.inline
def min_of(record, g, GROUPS):
    """What is added to the elements of group g, float32."""
    m = load(ptr(address(record), float16), 1)
    if GROUPS == 0:
        return m
    return -(m * F32(load(ptr(address(record), I8), MINS + g)))


@jit.inline
def write_values(y, q, record, table, F, KIND, GROUPS):
    """The values of one block, from q and its record, as elements of y."""
    size = UNIT if GROUPS == 0 else LONGEST // GROUPS
    for g in range(1 if GROUPS == 0 else GROUPS):
        scale = scale_of(record, g, KIND, GROUPS)
        for i in range(g * size, (g + 1) * size, BYTES):
            if KIND == IQ4_NL or KIND == MXFP4:
                for j in range(i, i + BYTES):
                    store(q, j, load(table, I64(load(q, j))))
            value = (convert(vload(q, i, BYTES), F32) - F32(zero_of(F))) * scale
            if has_min(F):
                value = value + min_of(record, g, GROUPS)
            vstore(y, i, value)


@jit.inline
def dequantize(args, lo, hi, F, T, I, KIND, GROUPS):
    """y[i] = the values of row index[i] of raw blocks (row i without an index), rows [lo, hi), elements of type T."""
    raw, index = ptr(load(args, GGUF_VALUES.raw), U8), ptr(load(args, GGUF_VALUES.index), I)
    length, block_bytes = load(args, GGUF_VALUES.length), load(args, GGUF_VALUES.block_bytes)
    block = UNIT if GROUPS == 0 else LONGEST
    q, record, table = ptr(stack(LONGEST), U8), ptr(stack(RECORD), U8), stack(BYTES)
    write_table(table, KIND)
    for i in range(lo, hi):
        row = i
        if load(args, GGUF_VALUES.index) != 0:
            row = I64(load(index, i))
            if row < 0 or row >= load(args, GGUF_VALUES.count):
                return OUT_OF_RANGE
        y, source = ptr(load(args, GGUF_VALUES.y), T) + i * length, raw + row * (length // block * block_bytes)
        for k in range(length // block):
            unpack(q, record, source + k * block_bytes, KIND, GROUPS)
            write_values(y + k * block, q, record, ptr(table, U8), F, KIND, GROUPS)
    return 0


# ---- panels -----------------------------------------------------------------------------------


@jit.inline
def write_parameters(to, records, F, KIND, GROUPS):
    """One record of a panel at the address `to`, from those of its rows."""
    if KIND == MXFP4:
        for r in range(LANES):
            store(ptr(to, U8), r, load(records, r * RECORD))
        return
    halves = ptr(address(records), U16)
    for r in range(LANES):
        store(ptr(to, U16), r, load(halves, r * (RECORD // 2)))
    to = to + 2 * LANES
    if has_min(F):
        for r in range(LANES):
            store(ptr(to, U16), r, load(halves, r * (RECORD // 2) + 1))
        to = to + 2 * LANES
    for g in range(GROUPS):
        for r in range(LANES):
            store(ptr(to, U8), g * LANES + r, load(records, r * RECORD + SCALES + g))
    if has_min(F):
        to = to + GROUPS * LANES
        for g in range(GROUPS):
            for r in range(LANES):
                store(ptr(to, U8), g * LANES + r, load(records, r * RECORD + MINS + g))


@jit.inline
def pack(args, lo, hi, F, KIND, GROUPS):
    """Panels [lo, hi) of the packed weight from rows of raw blocks; row r is row index[r] (r without an index)."""
    raw, index, rows = ptr(load(args, GGUF_PACK.raw), U8), load(args, GGUF_PACK.index), load(args, GGUF_PACK.count)
    length, block_bytes = load(args, GGUF_PACK.length), load(args, GGUF_PACK.block_bytes)
    units = 1 if GROUPS == 0 else LONGEST // UNIT
    blocks, nbytes = length // (units * UNIT), panel_bytes(F, length, 0)
    q, records, starts = ptr(stack(ROWS_BYTES), U8), ptr(stack(RECORDS_BYTES), U8), ptr(stack(STARTS_BYTES), I64)
    for panel in range(lo, hi):
        to = load(args, GGUF_PACK.weight) + panel * nbytes
        to_parameters = to + blocks * units * unit_bytes(F)
        valid = min(LANES, rows - panel * LANES)
        if valid < LANES:  # rows beyond the last one have scale 0
            fill_row(q, ROWS_BYTES, 0)
            fill_row(records, RECORDS_BYTES, 0)
        for r in range(valid):
            row = panel * LANES + r
            row = load(ptr(index, I64), row) if index != 0 else row
            store(starts, r, row * (blocks * block_bytes))
        for k in range(blocks):
            for r in range(valid):
                source = raw + (load(starts, r) + k * block_bytes)
                unpack(q + r * LONGEST, records + r * RECORD, source, KIND, GROUPS)
            for u in range(units):
                write_unit(to + (k * units + u) * unit_bytes(F), q + u * UNIT, LONGEST, bits_of(F))
            write_parameters(to_parameters + k * record_bytes(F), records, F, KIND, GROUPS)
        end = to_parameters + blocks * record_bytes(F)
        fill_row(ptr(end, U8), to + nbytes - end, 0)
    return 0
