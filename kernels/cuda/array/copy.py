"""Copies between layouts. Elements are unsigned integers of their size."""

from numba import types

from ...blocks.array import JOINED, PIECE
from ...blocks.cuda import COPY, ROW_COPY, STRIDED_COPY, TRANSPOSE
from ...blocks.cuda import STEPPED_COPY as STEPPED
from ...build import jit
from ...lang.by_type import by_type
from ...lang.near import each, each_of
from ...lang.ptx import WARP, barrier, block, blocks, shared, thread, threads
from ...lang.shuffle import reverse
from ...lang.simd import (
    address,
    convert,
    fill,
    lane,
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
from ..block import read, size_of, vector, write
from ..block import width as row_width
from ..gemm.wgmma import ratio
from ..plans.array import EACH, ROW_BYTES, TILE
from ..policy import ROW_THREADS

U32, U64, I32, I64 = types.uint32, types.uint64, types.int32, types.int64
SHORT = 1 << 32
TILE_BYTES = TILE * ROW_BYTES


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
def _taken(state, k):
    """An element of a row, or of its end."""
    x, step, left = state
    return load(x, min(k * ROW_THREADS, left) * step)


@jit.inline
def _given(state, k, value):
    y, step, left = state
    if k * ROW_THREADS <= left:
        store(y, k * ROW_THREADS * step, value)
    return 0


@jit.inline
def stepped(args, lo, hi, E):
    """A part of a row whose elements lie some steps apart: neighbours are for neighbouring threads, eight for each."""
    parts, y_step, x_step = load(args, STEPPED.parts), load(args, STEPPED.y_step), load(args, STEPPED.x_step)
    row = _quotient(lo, parts)
    in_y, in_x = place(args, row, STEPPED.dims, load(args, STEPPED.ndim))
    first = (lo - row * parts) * (EACH * ROW_THREADS) + thread()
    left = load(args, STEPPED.length) - 1 - first
    if left >= 0:
        x, y = ptr(load(args, STEPPED.x), E) + in_x, ptr(load(args, STEPPED.y), E) + in_y
        values = each(EACH, _taken, (x + first * x_step, x_step, left))
        each_of(values, _given, (y + first * y_step, y_step, left))
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
        if step == 1 and i + lanes <= inner:
            vstore_aligned(y, lo, _of_row(x + in_x, 0, lanes, 1, like))
        else:
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


def _spill(kind, last):
    """The function that stores words up to number `last` of a vector, each to a row of its own."""
    before = _spill(kind, last - 1) if last else None

    @jit.inline
    def spill(at, words):
        if last:
            before(at, words)
        store(ptr(at + ROW_BYTES * last, kind), 0, lane(words, last))

    return spill


@by_type
def spill(at, words):
    """Store the words of a vector, each to a row of a tile of its own, from address `at` on."""
    store_all = _spill(words.dtype, words.lanes - 1)
    return lambda at, words: store_all(at, words)


@by_type
def sixteen(x, at):
    """The elements of 16 bytes."""
    count = 128 // x.dtype.bitwidth
    return lambda x, at: vload_aligned(x, at, count)


@by_type
def packed(x, at, step):
    """16 bytes of a column, and, of elements below 4 bytes, of those behind it, `step` apart: words of rows of y."""

    def whole(x, at, step):
        return sixteen(x, at)

    def two(x, at, step):
        return convert(sixteen(x, at), U32) | convert(sixteen(x, at + step), U32) << U32(16)

    def four(x, at, step):
        low = convert(sixteen(x, at), U32) | convert(sixteen(x, at + step), U32) << U32(8)
        at += 2 * step
        return low | (convert(sixteen(x, at), U32) | convert(sixteen(x, at + step), U32) << U32(8)) << U32(16)

    return {8: four, 16: two}.get(x.dtype.bitwidth, whole)


@jit.inline
def within(line, at, size):
    """Where byte `at` of a row of a tile lies: what a warp stores, or loads, at a time is in all banks."""
    turn = line // (16 // size) * (2 if size == 1 else 1)
    return line * ROW_BYTES + (((at >> 4) ^ (turn & 15)) << 4) + (at & 15)


@jit.inline
def turn_vectors(x, y, memory, down, along, x_stride, y_stride, E):
    """A tile of y, `down` rows of `along` elements: by vectors of columns, which are rows of x, and of rows."""
    size = size_of(x)
    lanes, each, word = 16 // size, max(1, 4 // size), max(4, size)
    beside = TILE // lanes
    wide = min(8, beside)  # vectors of a column that neighbours of a warp bring
    for u in range(thread(), ROW_BYTES // word * beside, ROW_THREADS):
        group = u // WARP
        i = group % (beside // wide) * wide + u % wide
        p = group // (beside // wide) * (WARP // wide) + u % WARP // wide
        if i * lanes < down and p * each < along:
            words = packed(x, i * lanes + p * each * x_stride, x_stride)
            spill(memory + within(i * lanes, p * word, size), words)
    barrier()
    for u in range(thread(), TILE * ROW_BYTES // 16, ROW_THREADS):
        row, at = u // (ROW_BYTES // 16), u % (ROW_BYTES // 16) * lanes
        if row < down and at < along:
            v = sixteen(ptr(memory + within(row, at * size, size), E), 0)
            vstore_aligned(y, row * y_stride + at, v)


@jit.inline
def turn_elements(x, y, memory, down, along, x_stride, y_stride, E):
    """The same at any addresses."""
    size = size_of(x)
    for u in range(thread(), down * along, ROW_THREADS):
        at = ratio(u, down)
        row = u - at * down
        store(ptr(memory + within(row, at * size, size), E), 0, load(x, row + at * x_stride))
    barrier()
    for u in range(thread(), down * along, ROW_THREADS):
        row = ratio(u, along)
        at = u - row * along
        store(y, row * y_stride + at, load(ptr(memory + within(row, at * size, size), E), 0))


@jit.inline
def transpose(args, lo, hi, E):
    """Tile number `lo`, through shared memory."""
    tiles, across, ndim = load(args, TRANSPOSE.tiles), load(args, TRANSPOSE.across), load(args, TRANSPOSE.ndim)
    x_stride, y_stride = load(args, TRANSPOSE.x_stride), load(args, TRANSPOSE.y_stride)
    outer = lo // tiles
    tile = lo - outer * tiles
    in_y, in_x = place(args, outer, TRANSPOSE.dims, ndim)
    x, y, memory = ptr(load(args, TRANSPOSE.x), E) + in_x, ptr(load(args, TRANSPOSE.y), E) + in_y, shared(TILE_BYTES)
    size = size_of(x)
    side = ROW_BYTES // size
    row, column = tile // across * TILE, tile % across * side
    down, along = min(load(args, TRANSPOSE.rows) - row, TILE), min(load(args, TRANSPOSE.columns) - column, side)
    x, y = x + row + column * x_stride, y + row * y_stride + column
    if (address(x) | address(y) | x_stride * size | y_stride * size | down * size | along * size) & 15 == 0:
        turn_vectors(x, y, memory, down, along, x_stride, y_stride, E)
    else:
        turn_elements(x, y, memory, down, along, x_stride, y_stride, E)
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
