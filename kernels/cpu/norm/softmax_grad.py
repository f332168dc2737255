"""Backward passes of softmax and its logarithm, from their results.

With y = softmax(x): dx = y * (g - sum(g * y)); with y = log_softmax(x): dx = g - exp(y) * sum(g). The first pass
over a slice takes the sum, the second finds the slice in L1.
"""

from ...blocks.softmax import BACKWARD
from ...build import jit
from ...lang.simd import fill, load, muladd, ptr, reduce_add, vload, vload_first, vstore, vstore_first
from ...lang.vmath import exp
from ..reduce.sizes import LANES, PAIR, WIDE

BLOCK = 16  # vectors


@jit.inline
def row_dot(g, y, size, T, LOGARITHM):
    """sum of g * y, or of g if LOGARITHM, over `size` contiguous elements."""
    total, rest = fill(0.0, T, WIDE), fill(0.0, T, LANES)
    i = 0
    while i + WIDE <= size:
        # in blocks: one sum of 5,000 numbers in 8 lanes is off by 2e-5, which a large probability shows
        block, end = fill(0.0, T, WIDE), min(size, i + BLOCK * WIDE)
        while i + WIDE <= end:
            block = block + vload(g, i, WIDE) if LOGARITHM else muladd(vload(g, i, WIDE), vload(y, i, WIDE), block)
            i += WIDE
        total = total + block
    while i < size:
        left = size - i
        v = vload_first(g, i, LANES, left)
        rest = rest + v if LOGARITHM else muladd(v, vload_first(y, i, LANES, left), rest)
        i += LANES
    return reduce_add(total) + reduce_add(rest)


@jit.inline
def gradient(g, y, total, LOGARITHM):
    """dx of a vector."""
    return g - exp(y) * total if LOGARITHM else y * (g - total)


@jit.inline
def rows(args, lo, hi, T, LOGARITHM):
    """Rows [lo, hi)."""
    g, y, dx = ptr(load(args, BACKWARD.g), T), ptr(load(args, BACKWARD.y), T), ptr(load(args, BACKWARD.dx), T)
    size, g_stride, y_stride = load(args, BACKWARD.size), load(args, BACKWARD.g_stride), load(args, BACKWARD.y_stride)
    for row in range(lo, hi):
        g_row, y_row, dx_row = g + row * g_stride, y + row * y_stride, dx + row * size
        total = row_dot(g_row, y_row, size, T, LOGARITHM)
        i = 0
        while i + PAIR <= size:
            vstore(dx_row, i, gradient(vload(g_row, i, PAIR), vload(y_row, i, PAIR), total, LOGARITHM))
            i += PAIR
        if i < size:
            left = size - i
            v = gradient(vload_first(g_row, i, PAIR, left), vload_first(y_row, i, PAIR, left), total, LOGARITHM)
            vstore_first(dx_row, i, v, left)
    return 0


@jit.inline
def columns(args, lo, hi, T, LOGARITHM):
    """The same along a dim with `columns` elements behind it: blocks [lo, hi) of PAIR of them."""
    g, y, dx = ptr(load(args, BACKWARD.g), T), ptr(load(args, BACKWARD.y), T), ptr(load(args, BACKWARD.dx), T)
    size, inner = load(args, BACKWARD.size), load(args, BACKWARD.columns)
    g_outer, y_outer = load(args, BACKWARD.g_stride), load(args, BACKWARD.y_stride)
    blocks = (inner + PAIR - 1) // PAIR
    for unit in range(lo, hi):
        outer = unit // blocks
        column = (unit - outer * blocks) * PAIR
        left = inner - column
        g_at, y_at = g + (outer * g_outer + column), y + (outer * y_outer + column)
        dx_at = dx + (outer * size * inner + column)
        total = fill(0.0, T, PAIR)
        for i in range(size):
            v = vload_first(g_at, i * inner, PAIR, left)
            total = total + v if LOGARITHM else muladd(v, vload_first(y_at, i * inner, PAIR, left), total)
        for i in range(size):
            v, out = vload_first(g_at, i * inner, PAIR, left), vload_first(y_at, i * inner, PAIR, left)
            vstore_first(dx_at, i * inner, gradient(v, out, total, LOGARITHM), left)
    return 0
