"""Units of quantised weights: 32 elements along k of the rows of a panel, to and from planes.

`panels.py` says how planes lie. A *quad* is 4 neighbours along k of each row: LANES int32. Packers that have rows of
bytes use `write_unit` and `read_unit`; those whose source has rows in lanes already make quads themselves and use
`write_quads`.
"""

from numba import types

from ...build import jit
from ...lang.shuffle import transpose_tile
from ...lang.simd import address, ptr, stack, vload, vstore
from .panels import LANES, QUADS, UNIT

I32 = types.int32
TILE = min(LANES, QUADS)  # side of the square tiles that bytes are transposed in
QUADS_BYTES = 4 * LANES * QUADS
UNIT_BYTES = LANES * UNIT


@jit.inline
def load_quad(quads, i, mask, shift):
    """Quad i, of each byte the bits of `mask` (the same in all four) after a shift to the right."""
    return (vload(quads, i * LANES, LANES) >> shift) & mask


@jit.inline
def write_quads(planes, quads, BITS):
    """Write the planes (an int64 address) of one unit from its 8 quads, LANES int32 each, one after another."""
    out = ptr(planes, I32)
    if BITS == 8:
        for i in range(8):
            vstore(out, i * LANES, vload(quads, i * LANES, LANES))
    if BITS >= 4 and BITS < 8:
        for i in range(4):
            v = load_quad(quads, i, 0x0F0F0F0F, 0) | (load_quad(quads, i + 4, 0x0F0F0F0F, 0) << 4)
            vstore(out, i * LANES, v)
        out = out + 4 * LANES
    if BITS == 6 or BITS == 3 or BITS == 2:
        low = 4 if BITS == 6 else 0
        for i in range(2):
            v = load_quad(quads, i, 0x03030303, low)
            for s in range(1, 4):
                v = v | (load_quad(quads, i + 2 * s, 0x03030303, low) << (2 * s))
            vstore(out, i * LANES, v)
        out = out + 2 * LANES
    if BITS == 5 or BITS == 3:
        low = 4 if BITS == 5 else 2
        v = load_quad(quads, 0, 0x01010101, low)
        for s in range(1, 8):
            v = v | (load_quad(quads, s, 0x01010101, low) << s)
        vstore(out, 0, v)


@jit.inline
def read_quads(quads, planes, BITS):
    """The inverse of `write_quads`: bytes of q, LANES int32 for each of the 8 quads."""
    source = ptr(planes, I32)
    if BITS == 8:
        for i in range(8):
            vstore(quads, i * LANES, vload(source, i * LANES, LANES))
    if BITS >= 4 and BITS < 8:
        for i in range(4):
            vstore(quads, i * LANES, load_quad(source, i, 0x0F0F0F0F, 0))
            vstore(quads, (i + 4) * LANES, load_quad(source, i, 0x0F0F0F0F, 4))
        source = source + 4 * LANES
    if BITS == 6 or BITS == 3 or BITS == 2:
        for i in range(2):
            for s in range(4):
                v = load_quad(source, i, 0x03030303, 2 * s)
                if BITS == 6:
                    v = (v << 4) | vload(quads, (i + 2 * s) * LANES, LANES)
                vstore(quads, (i + 2 * s) * LANES, v)
        source = source + 2 * LANES
    if BITS == 5 or BITS == 3:
        low = 4 if BITS == 5 else 2
        for s in range(8):
            v = load_quad(source, 0, 0x01010101, s) << low
            vstore(quads, s * LANES, v | vload(quads, s * LANES, LANES))


@jit.inline
def write_unit(planes, q, stride, BITS):
    """Write the planes of one unit at the int64 address `planes` from the bytes q[row * stride + k] < 2^BITS.

    `q` is a Pointer(uint8) to LANES rows of 32 bytes; `stride` (bytes) and its address are multiples of 4.
    """
    quads, source = ptr(stack(QUADS_BYTES), I32), ptr(address(q), I32)
    for row in range(0, LANES, TILE):
        for i in range(0, QUADS, TILE):
            transpose_tile(quads + (i * LANES + row), LANES, source + (row * (stride >> 2) + i), stride >> 2, TILE)
    write_quads(planes, quads, BITS)


@jit.inline
def read_unit(q, stride, planes, BITS):
    """The inverse of `write_unit`: the bytes q[row * stride + k] of the unit whose planes are at `planes`."""
    quads, target = ptr(stack(QUADS_BYTES), I32), ptr(address(q), I32)
    read_quads(quads, planes, BITS)
    for row in range(0, LANES, TILE):
        for i in range(0, QUADS, TILE):
            transpose_tile(target + (row * (stride >> 2) + i), stride >> 2, quads + (i * LANES + row), LANES, TILE)
