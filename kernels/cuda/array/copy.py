"""Copies between layouts. Elements are unsigned integers of their size."""

from numba import types

from ...blocks.array import JOINED, PIECE
from ...blocks.cuda import COPY, ROW_COPY, STRIDED_COPY, TRANSPOSE
from ...build import jit
from ...lang.by_type import by_type
from ...lang.ptx import barrier, block, blocks, shared, thread, threads
from ...lang.shuffle import reverse
from ...lang.simd import (
    address,
    convert,
    fill,
    load,
    ptr,
    ramp,
    select,
    store,
    vload_aligned,
    vpick,
    vstore_aligned,
)
from ...lang.words import vload_words
from ..block import read, vector, write
from ..block import width as row_width
from ..gemm.wgmma import ratio
from ..plans.array import TILE

U32, U64, I32, I64 = types.uint32, types.uint64, types.int32, types.int64
SHORT = 1 << 32
TILE_BYTES = 8 * TILE * (TILE + 1)


def _contiguous(lanes):
    @jit.inline
    def copy(args, lo, hi, E):
        """Elements [lo, hi), at most 16 bytes."""
        x, y = ptr(load(args, COPY.x), E), ptr(load(args, COPY.y), E)
        write(y, lo, read(x, lo, hi - lo, fill(0, E, lanes)), hi - lo)
        return 0

    return copy


contiguous_1, contiguous_2, contiguous_4, contiguous_8 = (_contiguous(16 // size) for size in (1, 2, 4, 8))


@jit.inline
def place(args, index, at, ndim):
    """(offset in y, offset in x) of element number `index` of dims that stand in a block from `at` on."""
    rest, in_y, in_x = index, 0, 0
    for d in range(ndim - 1, 0, -1):
        size = load(args, at + d)
        if (rest | size) < SHORT:  # quotients of 64 bits take four times as long
            whole = ratio(rest, size)
        else:
            whole = I64(U64(rest) // U64(size))
        i, rest = rest - whole * size, whole
        in_y += i * load(args, at + ndim + d)
        in_x += i * load(args, at + 2 * ndim + d)
    if ndim > 0:
        in_y += rest * load(args, at + ndim)
        in_x += rest * load(args, at + 2 * ndim)
    return in_y, in_x


@jit.inline
def strided(args, lo, hi, E):
    """Elements [lo, hi)."""
    x, y = ptr(load(args, STRIDED_COPY.x), E), ptr(load(args, STRIDED_COPY.y), E)
    for index in range(lo, hi):
        in_y, in_x = place(args, index, STRIDED_COPY.dims, load(args, STRIDED_COPY.ndim))
        store(y, in_y, load(x, in_x))
    return 0


@jit.inline
def put_vector(args, index, E, step):
    """Vector number `index` of rows of y, counted from the one that a row begins in, where there is one more for it."""
    x, y, length = ptr(load(args, ROW_COPY.x), E), ptr(load(args, ROW_COPY.y), E), load(args, ROW_COPY.length)
    vectors, lanes = load(args, ROW_COPY.vectors), row_width(y)
    size = 16 // lanes
    row = ratio(index, vectors) if (index | vectors) < SHORT else index // vectors
    in_y, in_x = place(args, row, ROW_COPY.dims, load(args, ROW_COPY.ndim))
    i, target, source = (index - row * vectors) * lanes, y + in_y, x + in_x
    if vectors * lanes >= length + lanes - 1:
        i -= address(target) % 16 // size
    if i >= 0 and i + lanes <= length and address(target + i) & 15 == 0:
        vstore_aligned(target, i, _of_row(source, i, lanes, step, vector(y, 0)))
    else:
        for k in range(max(i, 0), min(i + lanes, length)):
            store(target, k, load(source, k * step))


def _rows(step):
    @jit.inline
    def copy(args, lo, hi, E):
        """Vectors [lo, hi) of rows of y."""
        for index in range(lo, hi):
            put_vector(args, index, E, step)
        return 0

    return copy


rows, reversed_rows = _rows(1), _rows(-1)


@jit.inline
def spread(args, lo, hi, E):
    """Rows of y that each are one element of x: four vectors a thread, since blocks begin too slowly for one."""
    for first in range(block() * (4 * threads()) + thread(), hi, blocks() * (4 * threads())):
        for k in range(4):
            if first + k * threads() < hi:
                put_vector(args, first + k * threads(), E, 0)
    return 0


@by_type
def _of_row(x, i, lanes, step, like):
    """The vector of elements i, i + 1, ... of a row whose elements are `step` apart: 1, 0 or -1."""
    count, E = like.lanes, like.dtype

    def implementation(x, i, lanes, step, like):
        if step == 0:
            return fill(load(x, 0), E, count)
        first = i if step > 0 else 1 - i - lanes
        v = vload_aligned(x, first, count) if address(x + first) & 15 == 0 else vload_words(x, first, count)
        return v if step > 0 else reverse(v)

    return implementation


@jit.inline
def gathered(args, lo, hi, E):
    """Elements [lo, hi), at most 16 bytes, of a row-major y."""
    x, y, ndim = ptr(load(args, STRIDED_COPY.x), E), ptr(load(args, STRIDED_COPY.y), E), load(args, STRIDED_COPY.ndim)
    sizes, lanes, like = args + STRIDED_COPY.dims, row_width(y), vector(y, 0)
    inner, step = load(sizes, ndim - 1), load(sizes, 3 * ndim - 1)
    outer, outer_step = (load(sizes, ndim - 2), load(sizes, 3 * ndim - 2)) if ndim > 1 else (1, 0)
    row = _quotient(lo, inner)
    i = lo - row * inner
    rest = _quotient(row, outer)
    j = row - rest * outer
    if hi - lo == lanes and address(y + lo) & 15 == 0 and j + _quotient(i + lanes - 1, inner) < outer:
        in_x = i * step + j * outer_step
        for d in range(ndim - 3, -1, -1):
            whole = _quotient(rest, load(sizes, d))
            in_x += (rest - whole * load(sizes, d)) * load(sizes, 2 * ndim + d)
            rest = whole
        vstore_aligned(y, lo, _neighbours(x + in_x, i, inner, step, outer_step, like))
    else:
        for index in range(lo, hi):
            _, in_x = place(args, index, STRIDED_COPY.dims, ndim)
            store(y, index, load(x, in_x))
    return 0


@jit.inline
def _quotient(x, y):
    return ratio(x, y) if (x | y) < SHORT else x // y


@by_type
def _neighbours(x, i, inner, step, outer_step, like):
    """Elements that follow number `i` of a row of `inner`, which x points to, and the first ones of rows behind it."""
    count = like.lanes

    def implementation(x, i, inner, step, outer_step, like):
        places = ramp(U32(i), U32, count)
        if inner >= count:
            rows = select(places >= U32(inner), fill(1, U32, count), U32(0))
        else:
            rows = places // U32(inner)
        along = convert(places - rows * U32(inner) - U32(i), I32)
        return vpick(x, along * I32(step) + convert(rows, I32) * I32(outer_step), places >= U32(0))

    return implementation


@jit.inline
def transpose(args, lo, hi, E):
    """Tile number `lo`, through shared memory, by 8 rows of 32 threads; rows of 33 elements meet other banks."""
    tiles, across, ndim = load(args, TRANSPOSE.tiles), load(args, TRANSPOSE.across), load(args, TRANSPOSE.ndim)
    rows, columns = load(args, TRANSPOSE.rows), load(args, TRANSPOSE.columns)
    outer = lo // tiles
    tile = lo - outer * tiles
    row, column = tile // across * TILE, tile % across * TILE
    in_y, in_x = place(args, outer, TRANSPOSE.dims, ndim)
    x, y = ptr(load(args, TRANSPOSE.x), E) + in_x, ptr(load(args, TRANSPOSE.y), E) + in_y
    memory = ptr(shared(TILE_BYTES), E)
    i, j = thread() % TILE, thread() // TILE
    for k in range(j, TILE, 8):
        if row + i < rows and column + k < columns:
            store(memory, i * (TILE + 1) + k, load(x, row + i + (column + k) * load(args, TRANSPOSE.x_stride)))
    barrier()
    for k in range(j, TILE, 8):
        if row + k < rows and column + i < columns:
            store(y, (row + k) * load(args, TRANSPOSE.y_stride) + column + i, load(memory, k * (TILE + 1) + i))
    barrier()
    return 0


@jit.inline
def joined(args, lo, hi, E):
    """Rows that consist of pieces, one from each of several contiguous sources: 16 bytes of the result for a thread."""
    y, total, width = ptr(load(args, JOINED.y), E), load(args, JOINED.numel), load(args, JOINED.width)
    lanes, like = row_width(y), vector(y, 0)
    for at in range((block() * threads() + thread()) * lanes, total, blocks() * threads() * lanes):
        row = at // width
        column, piece = at - row * width, args + JOINED.pieces
        while load(piece, PIECE.start) + load(piece, PIECE.length) <= column:
            piece = piece + PIECE.WIDTH
        length, within = load(piece, PIECE.length), column - load(piece, PIECE.start)
        column -= within
        x = ptr(load(piece, PIECE.x), E) + row * length
        if within + lanes <= length:
            write(y, at, read(x, within, lanes, like), lanes)
        else:  # the end of a piece lies within
            for i in range(at, min(total, at + lanes)):
                if within == length:
                    column, piece = column + length, piece + PIECE.WIDTH
                    if column == width:
                        row, column, piece = row + 1, 0, args + JOINED.pieces
                    while load(piece, PIECE.length) == 0:
                        piece = piece + PIECE.WIDTH
                    length, within = load(piece, PIECE.length), 0
                    x = ptr(load(piece, PIECE.x), E) + row * length
                store(y, i, load(x, within))
                within += 1
    return 0
