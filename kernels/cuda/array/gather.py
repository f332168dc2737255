"""Rows gathered by index: 16 bytes of a row for a thread, or an element where rows are shorter, four at once."""

from numba import types

from ...blocks.array import GATHER_ROWS as BLOCK
from ...build import jit
from ...cpu.array.gather import OUT_OF_RANGE
from ...lang.ptx import block, blocks, thread, threads
from ...lang.simd import load, ptr, store
from ..block import read, vector, width, write
from .elements import quotient, times

I64 = types.int64


@jit.inline
def place_of(args, number, per_row, lanes, several, WIDE):
    """(the row of y, its index, the outer dims' number, the column) of a piece of a row by its number."""
    unit, outer, count = quotient(number, per_row, WIDE) if per_row > 1 else number, 0, load(args, BLOCK.indices)
    if several:
        outer = quotient(unit, count, WIDE)
    return unit, unit - times(outer, count, WIDE), outer, (number - times(unit, per_row, WIDE)) * lanes


@jit.inline
def source(args, row, outer, several, WIDE):
    """(offset in x, 0 where the index is none of x; whether it is)."""
    row += load(args, BLOCK.wrap) if row < 0 else 0
    there = (row >= load(args, BLOCK.first)) & (row < load(args, BLOCK.end))
    at = times(row - load(args, BLOCK.first), load(args, BLOCK.row_stride), WIDE)
    if several:
        at += times(outer, load(args, BLOCK.outer_stride), WIDE)
    return at & -I64(there), there


@jit.inline
def gathered(args, hi, per_row, lanes, length, several, take, put, E, I, WIDE):
    """`take` of four pieces (or elements), whose loads do not wait for one another, then `put`.

    A row has so many pieces, and `length` elements; `several`: there are outer dims.
    """
    y, x, index = ptr(load(args, BLOCK.y), E), ptr(load(args, BLOCK.x), E), ptr(load(args, BLOCK.index), I)
    others_are_zero, status = load(args, BLOCK.zeros) != 0, 0
    if load(args, BLOCK.end) <= load(args, BLOCK.first):
        x = y  # nothing is taken of it, but it can be read
    each, step = threads(), load(args, BLOCK.step)
    for n in range(block() * (4 * each) + thread(), hi, blocks() * (4 * each)):
        y0, k0, o0, i0 = place_of(args, n, per_row, lanes, several, WIDE)
        y1, k1, o1, i1 = place_of(args, min(n + each, hi - 1), per_row, lanes, several, WIDE)
        y2, k2, o2, i2 = place_of(args, min(n + 2 * each, hi - 1), per_row, lanes, several, WIDE)
        y3, k3, o3, i3 = place_of(args, min(n + 3 * each, hi - 1), per_row, lanes, several, WIDE)
        r0, r1 = I64(load(index, times(k0, step, WIDE))), I64(load(index, times(k1, step, WIDE)))
        r2, r3 = I64(load(index, times(k2, step, WIDE))), I64(load(index, times(k3, step, WIDE)))
        (x0, ok0), (x1, ok1), (x2, ok2), (x3, ok3) = (
            source(args, r0, o0, several, WIDE), source(args, r1, o1, several, WIDE),
            source(args, r2, o2, several, WIDE), source(args, r3, o3, several, WIDE),
        )  # fmt: skip
        y0, y1 = times(y0, length, WIDE), times(y1, length, WIDE)
        y2, y3 = times(y2, length, WIDE), times(y3, length, WIDE)
        a, b = take(x + x0, i0, length - i0, ok0), take(x + x1, i1, length - i1, ok1)
        c, d = take(x + x2, i2, length - i2, ok2), take(x + x3, i3, length - i3, ok3)
        if not (ok0 and ok1 and ok2 and ok3) and not others_are_zero:
            status = OUT_OF_RANGE
        put(y + y0, i0, a, length - i0)
        if n + each < hi:
            put(y + y1, i1, b, length - i1)
        if n + 2 * each < hi:
            put(y + y2, i2, c, length - i2)
        if n + 3 * each < hi:
            put(y + y3, i3, d, length - i3)
    return status


@jit.inline
def take_piece(x, i, left, there):
    zeros = vector(x, 0)
    found = read(x, i, left, zeros)
    return found if there else zeros


@jit.inline
def take_element(x, i, left, there):
    found = load(x, i)
    return found if there else found ^ found


@jit.inline
def put_element(y, i, value, left):
    store(y, i, value)


@jit.inline
def gather_rows(args, lo, hi, E, I, WIDE):
    """y[o, k] = x[o, index[k] - first], pieces of 16 bytes of elements of type E."""
    lanes, length = width(ptr(load(args, BLOCK.y), E)), load(args, BLOCK.length)
    pieces = (length + lanes - 1) // lanes
    several = hi > load(args, BLOCK.indices) * pieces
    return gathered(args, hi, pieces, lanes, length, several, take_piece, write, E, I, WIDE)


@jit.inline
def gather_elements(args, lo, hi, E, I, WIDE):
    """The same element by element."""
    length = load(args, BLOCK.length)
    several = hi > load(args, BLOCK.indices) * length
    return gathered(args, hi, length, 1, length, several, take_element, put_element, E, I, WIDE)


@jit.inline
def gather_single(args, lo, hi, E, I, WIDE):
    """y[k] = x[index[k] - first], rows of one element, of which nothing has to be divided."""
    return gathered(args, hi, 1, 1, 1, False, take_element, put_element, E, I, WIDE)
