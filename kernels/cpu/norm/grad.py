"""Backward passes of the norms: gradients of rows, and of weight and bias in chunks of rows.

Statistics are computed again from the row, which the passes over it find in L1: cheaper than reading saved ones.
For one row with x_hat = (x - mean) * scale, scale = 1 / sqrt(variance + eps) and h = g * weight:

    dx = scale * (h - mean(h) - x_hat * mean(h * x_hat)),   dweight = sum(g * x_hat),   dbias = sum(g),

the sums over rows (Ba et al., arXiv 1607.06450, section 3). An RMS norm is the same without the two means
(Zhang and Sennrich, arXiv 1910.07467). Chunks follow from the shape alone, so sums do not depend on threads.
"""

import math

from numba import types

from ...blocks.norm import BACKWARD
from ...build import isa, jit
from ...lang.rows import fill_row
from ...lang.simd import (
    bitcast,
    fill,
    load,
    muladd,
    ptr,
    ramp,
    reduce_add,
    select,
    stack,
    store,
    vload,
    vload_first,
    vstore,
    vstore_first,
)
from .rows import row_mean

LANES = isa.lanes()
PAIR = 2 * LANES  # three sums at once: six registers
F64, I64 = types.float64, types.int64
FACTORS_BYTES = 4 * 4 * 8  # of four rows


@jit.inline
def row_sums(g, x, w, size, mean, T, CENTER, WEIGHT):
    """(sum of d^2, sum of h, sum of h * d) over a row, with d = x - mean and h = g * w; the second if CENTER."""
    squares, totals, products = fill(0.0, T, PAIR), fill(0.0, T, PAIR), fill(0.0, T, PAIR)
    i = 0
    while i + PAIR <= size:
        d, h = vload(x, i, PAIR) - mean, vload(g, i, PAIR)
        if WEIGHT:
            h = h * vload(w, i, PAIR)
        squares = muladd(d, d, squares)
        products = muladd(h, d, products)
        if CENTER:
            totals = totals + h
        i += PAIR
    if i < size:
        left = size - i
        d, h = vload_first(x, i, PAIR, left) - mean, vload_first(g, i, PAIR, left)
        if CENTER:
            d = select(ramp(0, I64, PAIR) < left, d, 0.0)
        if WEIGHT:
            h = h * vload_first(w, i, PAIR, left)
        squares = muladd(d, d, squares)
        products = muladd(h, d, products)
        if CENTER:
            totals = totals + h
    return reduce_add(squares), reduce_add(totals), reduce_add(products)


@jit.inline
def get(p, i, left, FULL):
    """A vector, or the `left` first lanes of one."""
    return vload(p, i, LANES) if FULL else vload_first(p, i, LANES, left)


@jit.inline
def put(p, i, v, left, FULL):
    """Store a vector, or the `left` first lanes of one."""
    if FULL:
        vstore(p, i, v)
    else:
        vstore_first(p, i, v, left)


@jit.inline
def piece(row, i, left, w, sums, FULL, WEIGHT, ADD):
    """dx of LANES columns of a row; returns the sums (of g * x_hat, of g) with this row added.

    `row` are pointers (g, x, dx, residual) and factors (mean, scale, slope, shift).
    """
    (g, x, dx, residual), (mean, scale, slope, shift) = row
    grad = get(g, i, left, FULL)
    h = grad * w if WEIGHT else grad
    x_hat = (get(x, i, left, FULL) - mean) * scale
    v = h * scale - x_hat * slope - shift
    if ADD:
        v = v + get(residual, i, left, FULL)
    put(dx, i, v, left, FULL)
    return muladd(grad, x_hat, sums[0]), sums[1] + grad


@jit.inline
def columns(rows, i, left, w, dw, db, C, FOUR, FULL, WEIGHT, DW, DB, ADD):
    """LANES columns of four rows, or of the first: so the sums are loaded and stored once for four."""
    nothing = fill(0.0, C, LANES)
    weight = get(w, i, left, FULL) if WEIGHT else nothing
    sums = get(dw, i, left, FULL) if DW else nothing, get(db, i, left, FULL) if DB else nothing
    sums = piece(rows[0], i, left, weight, sums, FULL, WEIGHT, ADD)
    if FOUR:
        sums = piece(rows[1], i, left, weight, sums, FULL, WEIGHT, ADD)
        sums = piece(rows[2], i, left, weight, sums, FULL, WEIGHT, ADD)
        sums = piece(rows[3], i, left, weight, sums, FULL, WEIGHT, ADD)
    if DW:
        put(dw, i, sums[0], left, FULL)
    if DB:
        put(db, i, sums[1], left, FULL)


@jit.inline
def write_rows(rows, size, w, dw, db, C, FOUR, WEIGHT, DW, DB, ADD):
    """dx of four rows, or of the first."""
    i = 0
    while i + LANES <= size:
        columns(rows, i, LANES, w, dw, db, C, FOUR, True, WEIGHT, DW, DB, ADD)
        i += LANES
    if i < size:
        columns(rows, i, size - i, w, dw, db, C, FOUR, False, WEIGHT, DW, DB, ADD)


@jit.inline
def row_of_g(args, r, T):
    return ptr(load(args, BACKWARD.g), T) + r * load(args, BACKWARD.g_stride)


@jit.inline
def row_of_x(args, r, T):
    return ptr(load(args, BACKWARD.x), T) + r * load(args, BACKWARD.x_stride)


@jit.inline
def prepare(args, r, factors, T, W, C, CENTER, WEIGHT):
    """Write what `piece` needs of row r to four `factors`: mean, scale, slope, shift."""
    size, eps = load(args, BACKWARD.size), bitcast(load(args, BACKWARD.eps), F64)
    g, x = row_of_g(args, r, T), row_of_x(args, r, T)
    mean = C(row_mean(x, size, T)) if CENTER else C(0.0)
    squares, totals, products = row_sums(g, x, ptr(load(args, BACKWARD.w), W), size, mean, T, CENTER, WEIGHT)
    inverse = 1.0 / float(size)
    scale = 1.0 / math.sqrt(F64(squares) * inverse + eps)
    store(factors, 0, mean)
    store(factors, 1, scale)
    store(factors, 2, scale * scale * F64(products) * inverse)
    store(factors, 3, scale * F64(totals) * inverse if CENTER else 0.0)


@jit.inline
def prepared(args, r, factors, T):
    """Row r for `piece`: its pointers, and its factors as values."""
    dx = ptr(load(args, BACKWARD.dx), T) + r * load(args, BACKWARD.size)
    residual = ptr(load(args, BACKWARD.residual), T) + r * load(args, BACKWARD.residual_stride)
    return (row_of_g(args, r, T), row_of_x(args, r, T), dx, residual), (
        load(factors, 0),
        load(factors, 1),
        load(factors, 2),
        load(factors, 3),
    )


@jit.inline
def backward(args, lo, hi, T, W, C, CENTER, WEIGHT, DW, DB, ADD):
    """Chunks [lo, hi) of rows; C is the compute type of T.

    CENTER: layer norm, not RMS norm; WEIGHT, DW, DB, ADD: whether there are w, dw, db, a residual.
    """
    step, size = load(args, BACKWARD.step), load(args, BACKWARD.size)
    num_rows, chunk_rows = load(args, BACKWARD.rows), load(args, BACKWARD.chunk_rows)
    w, factors = ptr(load(args, BACKWARD.w), W), ptr(stack(FACTORS_BYTES), C)
    for chunk in range(lo, hi):
        dw, db = ptr(load(args, BACKWARD.dw), C) + chunk * step, ptr(load(args, BACKWARD.db), C) + chunk * step
        if DW:
            fill_row(dw, size, 0.0)
        if DB:
            fill_row(db, size, 0.0)
        r, end = chunk * chunk_rows, min(num_rows, (chunk + 1) * chunk_rows)
        while r < end:
            count = 4 if r + 4 <= end else 1
            for k in range(count):  # the statistics of four rows first: their chains of additions overlap
                prepare(args, r + k, factors + 4 * k, T, W, C, CENTER, WEIGHT)
            one = prepared(args, r, factors, T)
            if count == 4:
                two, three = prepared(args, r + 1, factors + 4, T), prepared(args, r + 2, factors + 8, T)
                four = prepared(args, r + 3, factors + 12, T)
                write_rows((one, two, three, four), size, w, dw, db, C, True, WEIGHT, DW, DB, ADD)
            else:
                write_rows((one, one, one, one), size, w, dw, db, C, False, WEIGHT, DW, DB, ADD)
            r += count
    return 0
