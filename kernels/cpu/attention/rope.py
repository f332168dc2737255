"""Rotary position embedding of one or two tensors with common positions (queries and keys).

Pairs are (i, i + R/2) for `rope_halves` and (2i, 2i + 1) for `rope_interleaved`, with R rotated
elements per head; (y0, y1) = (x0 cos - x1 sin, x0 sin + x1 cos). Both members of a pair are read
before either is written, so a tensor may be rotated in place.
"""

from numba import types

from ...build import isa, jit
from ...lang.shuffle import even, interleave, odd
from ...lang.simd import load, ptr, vload, vload_first, vstore, vstore_first

LANES = isa.lanes()
PAIR = 2 * LANES
I64 = types.int64
HEADER = 13  # arguments before the first tensor
FIELDS = 9  # arguments per tensor
OUT_OF_RANGE = 1


@jit.inline
def rotate_halves(x, y, sin, cos, half, sign):
    """One head with pairs (i, i + half)."""
    i = 0
    while i + LANES <= half:
        c, s = vload(cos, i, LANES), vload(sin, i, LANES) * sign
        a, b = vload(x, i, LANES), vload(x, half + i, LANES)
        vstore(y, i, a * c - b * s)
        vstore(y, half + i, a * s + b * c)
        i += LANES
    if i < half:
        left = half - i
        c, s = vload_first(cos, i, LANES, left), vload_first(sin, i, LANES, left) * sign
        a, b = vload_first(x, i, LANES, left), vload_first(x, half + i, LANES, left)
        vstore_first(y, i, a * c - b * s, left)
        vstore_first(y, half + i, a * s + b * c, left)


@jit.inline
def rotate_interleaved(x, y, sin, cos, half, sign):
    """One head with pairs (2i, 2i + 1)."""
    i = 0
    while i + LANES <= half:
        c, s = vload(cos, i, LANES), vload(sin, i, LANES) * sign
        v = vload(x, 2 * i, PAIR)
        a, b = even(v), odd(v)
        vstore(y, 2 * i, interleave(a * c - b * s, a * s + b * c))
        i += LANES
    if i < half:
        left = half - i
        c, s = vload_first(cos, i, LANES, left), vload_first(sin, i, LANES, left) * sign
        v = vload_first(x, 2 * i, PAIR, 2 * left)
        a, b = even(v), odd(v)
        vstore_first(y, 2 * i, interleave(a * c - b * s, a * s + b * c), 2 * left)


@jit.inline
def copy_rest(x, y, start, size):
    """y[start:size] = x[start:size]."""
    for i in range(start, size, LANES):
        vstore_first(y, i, vload_first(x, i, LANES, size - i), size - i)


@jit.inline
def rope(args, lo, hi, rotate, T, C, P):
    """Rotate every head of tokens [lo, hi).

    args: number of tensors, tokens per batch, head size, half of the rotated size, positions and their
    batch and token strides, sin, cos, rows of the tables, row stride of sin and of cos, 1 or -1 to turn
    forth or back; then per tensor: x, y, heads, strides of x (batch, token, head), strides of y.
    """
    num_tensors, tokens, size, half = load(args, 0), load(args, 1), load(args, 2), load(args, 3)
    positions, pos_batch, pos_token = ptr(load(args, 4), P), load(args, 5), load(args, 6)
    sin, cos, num_rows = ptr(load(args, 7), C), ptr(load(args, 8), C), load(args, 9)
    sin_stride, cos_stride, sign = load(args, 10), load(args, 11), float(load(args, 12))
    for unit in range(lo, hi):
        batch = unit // tokens
        token = unit - batch * tokens
        position = I64(load(positions, batch * pos_batch + token * pos_token))
        if position < 0 or position >= num_rows:
            return OUT_OF_RANGE
        sin_row, cos_row = sin + position * sin_stride, cos + position * cos_stride
        for t in range(num_tensors):
            own = args + (HEADER + FIELDS * t)
            x_head = ptr(load(own, 0), T) + (batch * load(own, 3) + token * load(own, 4))
            y_head = ptr(load(own, 1), T) + (batch * load(own, 6) + token * load(own, 7))
            x_step, y_step = load(own, 5), load(own, 8)
            in_place = load(own, 0) == load(own, 1)
            for _ in range(load(own, 2)):
                rotate(x_head, y_head, sin_row, cos_row, half, sign)
                if not in_place and 2 * half < size:
                    copy_rest(x_head, y_head, 2 * half, size)
                x_head, y_head = x_head + x_step, y_head + y_step
    return 0


@jit.inline
def rope_halves(args, lo, hi, T, C, P):
    """Pairs (i, i + R/2): GPT-NeoX, Llama."""
    return rope(args, lo, hi, rotate_halves, T, C, P)


@jit.inline
def rope_interleaved(args, lo, hi, T, C, P):
    """Pairs (2i, 2i + 1): GPT-J."""
    return rope(args, lo, hi, rotate_interleaved, T, C, P)
