"""What rendered elementwise kernels are made of.

An elementwise kernel walks a collapsed iteration space row by row. A row whose operands are all
contiguous is one vector loop over memory. Otherwise it goes tile by tile: strided operands are
gathered into a tile of 256 elements on the stack, scalars (stride 0) fill theirs once per row, and the
one vector loop runs on tiles, so each kernel holds its arithmetic once, and broadcasting costs an L1 hit.
"""

from numba import types

from .. import isa, jit
from .simd import load, ptr, store

LANES = isa.lanes()
TILE = 256
TILE_BYTES = TILE * 8
OFFSETS = 8  # the index scratch: 8 offsets of operands, then up to 24 indices of dims


@jit.inline
def fill_tile(tile, source, n):
    """Fill a tile with one element."""
    value = load(source, 0)
    for i in range(n):
        store(tile, i, value)


@jit.inline
def gather(tile, source, step, n):
    """Copy `n` elements that lie `step` apart into a tile."""
    for i in range(n):
        store(tile, i, load(source, i * step))


@jit.inline
def scatter(tile, target, step, n):
    """Copy a tile to elements that lie `step` apart."""
    for i in range(n):
        store(target, i * step, load(tile, i))


@jit.inline
def unravel(args, base, last, row, index):
    """Set indices and operand offsets for row number `row` of the outer dims."""
    ndim = last + 1
    operands = base - 1
    at = ptr(index, types.int64)
    for j in range(operands):
        store(at, j, 0)
    for d in range(last - 1, -1, -1):
        size = load(args, base + d)
        i = row % size
        row = row // size
        store(at, OFFSETS + d, i)
        for j in range(operands):
            stride = load(args, base + ndim * (j + 1) + d)
            store(at, j, load(at, j) + i * stride)


@jit.inline
def advance(args, base, last, index):
    """Step to the next row, as an odometer does: no division."""
    ndim = last + 1
    operands = base - 1
    at = ptr(index, types.int64)
    d = last - 1
    while d >= 0:
        i = load(at, OFFSETS + d) + 1
        size = load(args, base + d)
        turn = i == size
        store(at, OFFSETS + d, 0 if turn else i)
        for j in range(operands):
            stride = load(args, base + ndim * (j + 1) + d)
            store(at, j, load(at, j) + (stride * (1 - size) if turn else stride))
        if not turn:
            return
        d -= 1
