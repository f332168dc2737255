"""Filled memory, triangles, one-hot rows by vectors of 16 bytes; positions of elements that are not zero, by chunks.

Positions are collected in shared memory, tile by tile of a chunk, so that neighbouring threads store neighbours.
"""

from numba import types

from ...blocks.array import COUNT_NONZERO, FILLED, NONZERO, ONE_HOT, TRIANGLE
from ...blocks.cuda import COPY
from ...build import jit
from ...cpu.array.create import OUT_OF_RANGE
from ...lang.ptx import barrier, block, blocks, count_bits, shared, thread, threads
from ...lang.simd import address, fill, load, ptr, ramp, reduce_or, select, store, vload_aligned, vstore_aligned
from ..block import block_running, block_sum, read, vector, width, write
from ..gemm.wgmma import ratio
from .sizes import LANES, TILE, TILE_BYTES

U16, I32, I64 = types.uint16, types.int32, types.int64
SHORT = 1 << 32


@jit.inline
def quotient(x, y):
    """x // y, neither negative: of numbers of 64 bits it takes four times as long."""
    return ratio(x, y) if (x | y) < SHORT else x // y


@jit.inline
def fill_with(y, v, hi):
    """All elements set to those of v: four vectors a thread (with one, blocks began too slowly: 84 us, now 61)."""
    each = threads() * width(y)
    for first in range(block() * (4 * each) + thread() * width(y), hi, blocks() * (4 * each)):
        for k in range(4):
            at = first + k * each
            if at < hi:
                write(y, at, v, hi - at)
    return 0


@jit.inline
def filled(args, lo, hi, E):
    """All elements set to one value."""
    y = ptr(load(args, FILLED.y), E)
    return fill_with(y, vector(y, load(args, FILLED.value)), hi)


@jit.inline
def repeated(args, lo, hi, E):
    """All elements set to the one that x has."""
    y = ptr(load(args, COPY.y), E)
    return fill_with(y, vector(y, load(ptr(load(args, COPY.x), E), 0)), hi)


@jit.inline
def triangle(args, lo, hi, E):
    """Elements [lo, hi), at most 16 bytes, of matrices of which one side of a diagonal is kept and the other is zero.

    They may be of several rows. What is not kept is not read, where that is all of them.
    """
    x, y = ptr(load(args, TRIANGLE.x), E), ptr(load(args, TRIANGLE.y), E)
    rows, columns, stride = load(args, TRIANGLE.rows), load(args, TRIANGLE.columns), load(args, TRIANGLE.x_stride)
    diagonal, upper = load(args, TRIANGLE.diagonal), load(args, TRIANGLE.upper) != 0
    lanes, zeros = width(y), vector(y, 0)
    row = quotient(lo, columns)
    column, own = lo - row * columns, row - quotient(row, rows) * rows
    if columns < lanes or (stride != columns and column + lanes > columns):  # one by one
        for i in range(lo, hi):
            from_diagonal = column - own - diagonal
            kept = from_diagonal >= 0 if upper else from_diagonal <= 0
            store(y, i, load(x, row * stride + column) if kept else E(0))
            column += 1
            if column == columns:
                column, row, own = 0, row + 1, (own + 1 if own + 1 < rows else 0)
        return 0
    following = own + 1 if own + 1 < rows else 0
    places = ramp(column, I64, lanes)
    here = select(places < columns, places - (own + diagonal), places - (columns + following + diagonal))
    kept = here >= 0 if upper else here <= 0
    v = zeros
    if reduce_or(kept):
        v = select(kept, read(x, row * stride + column, hi - lo, zeros), zeros)
    write(y, lo, v, hi - lo)
    return 0


@jit.inline
def one_hot(args, lo, hi, I):
    """Elements [lo, hi), at most two, of rows of zeros and a one."""
    index, y, classes = ptr(load(args, ONE_HOT.index), I), ptr(load(args, ONE_HOT.y), I64), load(args, ONE_HOT.classes)
    row = quotient(lo, classes)
    column, place, status = lo - row * classes, I64(load(index, row)), 0
    if place < 0 or place >= classes:
        status = OUT_OF_RANGE
    first, second = I64(place == column), I64(place == column + 1)
    if column + 1 == classes and hi - lo > 1:
        place = I64(load(index, row + 1))
        if place < 0 or place >= classes:
            status = OUT_OF_RANGE
        second = I64(place == 0)
    write(y, lo, select(ramp(0, I64, 2) == 0, first, fill(second, I64, 2)), hi - lo)
    return status


# ---- elements that are chosen, by chunks -----------------------------------------------------------


@jit.inline
def counts_before(counts, chunk):
    """How many elements the chunks before this one have, added up by the threads of the block."""
    mine = I64(0)
    for k in range(thread(), chunk, threads()):
        mine += load(counts, k)
    return block_sum(mine)


@jit.inline
def place_tile(bits, memory):
    """Put the places in the tile of the elements that the threads have chosen into shared memory, one after another.

    Each thread has LANES neighbours, and `bits` of those that it chose. Returns (how many lie before its own, of all).
    """
    before, total = block_running(count_bits(bits))
    at = before
    for k in range(LANES):
        if (bits >> k) & 1 != 0:
            store(memory, at, U16(thread() * LANES + k))
            at += 1
    barrier()  # the next tile waits for those who read this one in `block_running`
    return before, total


@jit.inline
def as_bits(chosen):
    """The lanes that are chosen as bits of a number."""
    return I64(reduce_or(select(chosen, fill(1, I32, LANES) << ramp(0, I32, LANES), 0)))


@jit.inline
def not_zero(x, i, left, T):
    """Bits of those of LANES elements from `i` on, of which `left` are there, that are not zero."""
    if left >= LANES and address(x + i) & 15 == 0:
        return as_bits(vload_aligned(x, i, LANES) != 0)
    bits = I64(0)
    for k in range(min(left, LANES)):
        bits |= I64(load(x, i + k) != 0) << k
    return bits


@jit.inline
def count_nonzero(args, chunk, hi, T):
    """How many elements of a chunk are not zero."""
    x, counts = ptr(load(args, COUNT_NONZERO.x), T), ptr(load(args, COUNT_NONZERO.counts), I64)
    size, step = load(args, COUNT_NONZERO.numel), load(args, COUNT_NONZERO.step)
    stop, found = min(size, (chunk + 1) * step), I64(0)
    for i in range(chunk * step + thread() * LANES, stop, TILE):
        found += count_bits(not_zero(x, i, stop - i, T))
    total = block_sum(found)
    if thread() == 0:
        store(counts, chunk, total)
    return 0


@jit.inline
def nonzero(args, chunk, hi, T):
    """Indices of the elements of a chunk that are not zero."""
    x, y = ptr(load(args, NONZERO.x), T), ptr(load(args, NONZERO.y), I64)
    size, step, ndim = load(args, NONZERO.numel), load(args, NONZERO.step), load(args, NONZERO.ndim)
    sizes, counts = args + NONZERO.sizes, ptr(load(args, NONZERO.counts), I64)
    memory, first, stop = ptr(shared(TILE_BYTES), U16), chunk * step, min(size, (chunk + 1) * step)
    at = counts_before(counts, chunk)
    pairs = ndim == 2 and address(y) & 15 == 0
    while first < stop:
        i = first + thread() * LANES
        _, total = place_tile(not_zero(x, i, stop - i, T), memory)
        for k in range(thread(), total, threads()):
            place, target = first + I64(load(memory, k)), (at + k) * ndim
            if pairs:
                row = quotient(place, load(sizes, 1))
                own = select(ramp(0, I64, 2) == 0, row, fill(place - row * load(sizes, 1), I64, 2))
                vstore_aligned(y, target, own)
            else:
                for d in range(ndim - 1, -1, -1):
                    whole = quotient(place, load(sizes, d))
                    store(y, target + d, place - whole * load(sizes, d))
                    place = whole
        at, first = at + total, first + TILE
    if size <= step and thread() == 0:
        store(counts, 0, at)
    return 0
