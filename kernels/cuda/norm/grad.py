"""Backward passes of the norms (formulas: `kernels/cpu/norm/grad.py`): a chunk of rows for a block, four at a time.

Each of the four warps finds the statistics of a row by itself; then all threads take the columns of the four rows,
which they find in the first-level cache, so the chunk's sums for weight and bias are read and written once for four.
Rows and chunks follow from the shape alone, so results are the same each time.
"""

import math

from numba import types

from ...blocks.norm import BACKWARD, JOIN
from ...build import jit
from ...lang.by_type import by_type
from ...lang.ptx import WARP, barrier, shared, thread, threads
from ...lang.simd import bitcast, fill, load, muladd, ptr, reduce_add, select, store, vload, vstore
from ..block import places, read, vector, warp_sum, width, write

F64 = types.float64
ROWS = 4  # at a time: as many as the block has warps
FACTORS_BYTES = 2 * ROWS * 4 * 8  # of two times so many rows


@jit.inline
def row_mean(x, size):
    """Mean of a row, found by a warp."""
    total = vector(x, 0.0)
    for i in range(thread() % WARP * width(x), size, WARP * width(x)):
        total = total + read(x, i, size - i, total)
    return warp_sum(reduce_add(total)) / float(size)


@jit.inline
def prepare(args, r, factors, T, W, C, CENTER, WEIGHT):
    """A warp writes what `piece` needs of row r to four `factors`: mean, scale, slope, shift."""
    size, eps = load(args, BACKWARD.size), bitcast(load(args, BACKWARD.eps), F64)
    g = ptr(load(args, BACKWARD.g), T) + r * load(args, BACKWARD.g_stride)
    x = ptr(load(args, BACKWARD.x), T) + r * load(args, BACKWARD.x_stride)
    w = ptr(load(args, BACKWARD.w), W)
    mean = C(row_mean(x, size)) if CENTER else C(0.0)
    squares, lanes = vector(x, 0.0), places(x)
    totals, products = squares, squares
    for i in range(thread() % WARP * width(x), size, WARP * width(x)):
        d, h = read(x, i, size - i, squares) - mean, read(g, i, size - i, squares)
        if CENTER:
            d = select(lanes < size - i, d, 0.0)
        if WEIGHT:
            h = h * read(w, i, size - i, squares)
        squares = muladd(d, d, squares)
        products = muladd(h, d, products)
        if CENTER:
            totals = totals + h
    inverse = 1.0 / float(size)
    scale = 1.0 / math.sqrt(F64(warp_sum(reduce_add(squares))) * inverse + eps)
    slope, shift = scale * scale * F64(warp_sum(reduce_add(products))) * inverse, 0.0
    if CENTER:
        shift = scale * F64(warp_sum(reduce_add(totals))) * inverse
    if thread() % WARP == 0:
        store(factors, 0, mean)
        store(factors, 1, scale)
        store(factors, 2, slope)
        store(factors, 3, shift)


@jit.inline
def piece(args, r, i, factors, w, sums, T, WEIGHT, ADD):
    """dx of a vector of columns of row r; returns the sums (of g * x_hat, of g) with this row added."""
    size = load(args, BACKWARD.size)
    left = size - i
    g = ptr(load(args, BACKWARD.g), T) + r * load(args, BACKWARD.g_stride)
    x = ptr(load(args, BACKWARD.x), T) + r * load(args, BACKWARD.x_stride)
    grad = read(g, i, left, w)
    h = grad * w if WEIGHT else grad
    x_hat = (read(x, i, left, w) - load(factors, 0)) * load(factors, 1)
    v = h * load(factors, 1) - x_hat * load(factors, 2) - load(factors, 3)
    if ADD:
        residual = ptr(load(args, BACKWARD.residual), T) + r * load(args, BACKWARD.residual_stride)
        v = v + read(residual, i, left, w)
    write(ptr(load(args, BACKWARD.dx), T) + r * size, i, v, left)
    return muladd(grad, x_hat, sums[0]), sums[1] + grad


@jit.inline
def backward(args, lo, hi, T, W, C, CENTER, WEIGHT, DW, DB, ADD):
    """Chunk `lo`; types and constants as on the CPU."""
    step, size, chunk_rows = load(args, BACKWARD.step), load(args, BACKWARD.size), load(args, BACKWARD.chunk_rows)
    dw, db = ptr(load(args, BACKWARD.dw), C) + lo * step, ptr(load(args, BACKWARD.db), C) + lo * step
    g, w = ptr(load(args, BACKWARD.g), T), ptr(load(args, BACKWARD.w), W)
    nothing, memory = vector(g, 0.0), ptr(shared(FACTORS_BYTES), C)
    first, turn = lo * chunk_rows, 0
    end = min(load(args, BACKWARD.rows), first + chunk_rows)
    for r in range(first, end, ROWS):
        own, factors = thread() // WARP, memory + turn * (4 * ROWS)
        if r + own < end:
            prepare(args, r + own, factors + 4 * own, T, W, C, CENTER, WEIGHT)
        barrier()  # one is enough: factors of the next rows go to the other place
        turn = 1 - turn
        for i in range(thread() * width(g), size, threads() * width(g)):
            left = size - i
            weight = read(w, i, left, nothing) if WEIGHT else nothing
            a, b = nothing, nothing
            if r > first:
                a = read(dw, i, left, nothing) if DW else nothing
                b = read(db, i, left, nothing) if DB else nothing
            sums = piece(args, r, i, factors, weight, (a, b), T, WEIGHT, ADD)
            if r + 1 < end:
                sums = piece(args, r + 1, i, factors + 4, weight, sums, T, WEIGHT, ADD)
            if r + 2 < end:
                sums = piece(args, r + 2, i, factors + 8, weight, sums, T, WEIGHT, ADD)
            if r + 3 < end:
                sums = piece(args, r + 3, i, factors + 12, weight, sums, T, WEIGHT, ADD)
            if DW:
                write(dw, i, sums[0], left)
            if DB:
                write(db, i, sums[1], left)
    return 0


COLUMNS, SLICES = 32, 8  # of a block that joins the sums of chunks: the chunks are shared out among slices
SUMS_BYTES = COLUMNS * SLICES * 8


@by_type
def add_chunks(parts, out, args, at):
    """Store out[at], the sum over chunks; a slice's threads have neighbouring columns, slices join in their order."""
    kind = parts.dtype

    def implementation(parts, out, args, at):
        step, chunks, columns = load(args, JOIN.step), load(args, JOIN.chunks), load(args, JOIN.columns)
        own, mine = ptr(shared(SUMS_BYTES), kind) + thread(), thread() // COLUMNS
        total = fill(0.0, kind, 1)
        if at < columns:
            for chunk in range(mine, min(chunks, (load(args, JOIN.whole) - at + step - 1) // step), SLICES):
                total = total + vload(parts, chunk * step + at, 1)
        vstore(own, 0, total)
        barrier()
        if mine == 0 and at < columns:
            for k in range(1, SLICES):
                total = total + vload(own, k * COLUMNS, 1)
            vstore(out, at, total)
        barrier()

    return implementation


@jit.inline
def join(args, lo, hi, C, W, B):
    """The sums of all chunks for block `lo` of COLUMNS columns; results are of types W and B."""
    at = lo * COLUMNS + thread() % COLUMNS
    if load(args, JOIN.first_w) != 0:
        add_chunks(ptr(load(args, JOIN.first_w), C), ptr(load(args, JOIN.w), W), args, at)
    if load(args, JOIN.first_b) != 0:
        add_chunks(ptr(load(args, JOIN.first_b), C), ptr(load(args, JOIN.b), B), args, at)
    return 0
