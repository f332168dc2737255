"""Backward passes of the norms for rows that registers hold: each is read once (formulas: `kernels/cpu/norm/grad.py`).

A warp has a short row, a block a longer one, with PIECES vectors for each thread; a team's sums for weight and bias
stay in registers over its chunk of rows. Rows in cache, read twice, took 3.3 times as long as memory needs for them
(16384 x 768 float32: 157 us).
"""

import math

from numba import types

from ...blocks.norm import BACKWARD
from ...build import jit
from ...lang.pieces import inside_pieces, vload_pieces, vstore_pieces
from ...lang.ptx import WARP, barrier, shared, thread, threads
from ...lang.simd import bitcast, load, muladd, ptr, reduce_add, select, store
from ..block import team_sum, warp_sum, width
from . import grad as in_cache

F64 = types.float64
WARPS = 4  # of a block
SUMS_BYTES = 3 * WARPS * 8


@jit.inline
def team_sums(a, b, c, team, C):
    """The sums of three numbers of each thread of a team."""
    a, b, c = warp_sum(a), warp_sum(b), warp_sum(c)
    if team[1] > WARP:
        parts = ptr(shared(SUMS_BYTES), C)
        if thread() % WARP == 0:
            own = parts + 3 * (thread() // WARP)
            store(own, 0, a)
            store(own, 1, b)
            store(own, 2, c)
        barrier()
        a, b, c = load(parts, 0), load(parts, 1), load(parts, 2)
        for k in range(1, WARPS):
            a, b, c = a + load(parts, 3 * k), b + load(parts, 3 * k + 1), c + load(parts, 3 * k + 2)
        barrier()
    return a, b, c


@jit.inline
def chunk(args, number, team, T, W, C, CENTER, WEIGHT, DW, DB, ADD, PIECES):
    """Chunk `number`, by the thread number team[0] of team[1]."""
    size, eps, rows = load(args, BACKWARD.size), bitcast(load(args, BACKWARD.eps), F64), load(args, BACKWARD.rows)
    g, x, w = ptr(load(args, BACKWARD.g), T), ptr(load(args, BACKWARD.x), T), ptr(load(args, BACKWARD.w), W)
    dx, lanes, inverse = ptr(load(args, BACKWARD.dx), T), width(g), 1.0 / float(size)
    first, apart = team[0] * lanes, team[1] * lanes
    inside = inside_pieces(first, apart, size, lanes, PIECES)
    nothing = vload_pieces(g, 0, 0, 0, lanes, PIECES)
    weight = vload_pieces(w, first, apart, size, lanes, PIECES) if WEIGHT else nothing
    sum_w, sum_b = nothing, nothing
    start = number * load(args, BACKWARD.chunk_rows)
    for r in range(start, min(rows, start + load(args, BACKWARD.chunk_rows))):
        d = vload_pieces(x + r * load(args, BACKWARD.x_stride), first, apart, size, lanes, PIECES)
        h = vload_pieces(g + r * load(args, BACKWARD.g_stride), first, apart, size, lanes, PIECES)
        if CENTER:
            d = select(inside, d - C(team_sum(reduce_add(d), team) * inverse), C(0.0))
        if DB:
            sum_b = sum_b + h
        own = h * weight if WEIGHT else h
        squares, products, totals = team_sums(
            reduce_add(d * d), reduce_add(own * d), reduce_add(own) if CENTER else C(0.0), team, C
        )
        exact = 1.0 / math.sqrt(F64(squares) * inverse + eps)
        scale, slope = C(exact), C(exact * exact * F64(products) * inverse)
        d = d * scale
        if DW:
            sum_w = muladd(h, d, sum_w)
        v = own * scale - d * slope
        if CENTER:
            v = v - C(exact * F64(totals) * inverse)
        if ADD:
            residual = ptr(load(args, BACKWARD.residual), T) + r * load(args, BACKWARD.residual_stride)
            v = v + vload_pieces(residual, first, apart, size, lanes, PIECES)
        vstore_pieces(dx + r * size, first, apart, size, v, PIECES)
    if DW:
        dw = ptr(load(args, BACKWARD.dw), C) + number * load(args, BACKWARD.step)
        vstore_pieces(dw, first, apart, size, sum_w, PIECES)
    if DB:
        db = ptr(load(args, BACKWARD.db), C) + number * load(args, BACKWARD.step)
        vstore_pieces(db, first, apart, size, sum_b, PIECES)


@jit.inline
def backward(args, lo, hi, T, W, C, CENTER, WEIGHT, DW, DB, ADD, PIECES, SHORT):
    """The chunks of block `lo`: one for each warp if rows are SHORT, else one. Rows are multiples of 16 bytes apart."""
    places = load(args, BACKWARD.g) | load(args, BACKWARD.x) | load(args, BACKWARD.dx) | load(args, BACKWARD.w)
    if (places | load(args, BACKWARD.residual) | load(args, BACKWARD.dw) | load(args, BACKWARD.db)) & 15 != 0:
        teams = WARPS if SHORT else 1
        for number in range(lo * teams, (lo + 1) * teams):
            in_cache.backward(args, number, number + 1, T, W, C, CENTER, WEIGHT, DW, DB, ADD)
    elif SHORT:
        team = thread() % WARP, WARP
        chunk(args, lo * WARPS + thread() // WARP, team, T, W, C, CENTER, WEIGHT, DW, DB, ADD, PIECES)
    else:
        chunk(args, lo, (thread(), threads()), T, W, C, CENTER, WEIGHT, DW, DB, ADD, PIECES)
    return 0
