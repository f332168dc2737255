"""Rotary position embedding of one or two tensors with common positions (queries and keys).

Pairs are (i, i + R/2) for `rope_halves` and (2i, 2i + 1) for `rope_interleaved`, with R rotated
elements per head; (y0, y1) = (x0 cos - x1 sin, x0 sin + x1 cos). Both members of a pair are read
before either is written, so a tensor may be rotated in place.
"""

from numba import types

from ...blocks.rope import BAD_POSITION, ROPE
from ...build import isa, jit
from ...lang.shuffle import even, interleave, odd
from ...lang.simd import load, ptr, vload, vload_first, vstore, vstore_first
from ..array.copy import copy_row
from .tiles import offset_of

LANES = isa.lanes()
PAIR = 2 * LANES
I64 = types.int64


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
def rope(args, lo, hi, rotate, T, C, P):
    """Rotate every head of tokens [lo, hi)."""
    tokens, size, half = load(args, ROPE.tokens), load(args, ROPE.size), load(args, ROPE.half)
    positions, pos_batch = ptr(load(args, ROPE.positions), P), load(args, ROPE.position_batch)
    pos_token, num_rows = load(args, ROPE.position_token), load(args, ROPE.rows)
    sin, cos, sign = ptr(load(args, ROPE.sin), C), ptr(load(args, ROPE.cos), C), float(load(args, ROPE.sign))
    sin_stride, cos_stride = load(args, ROPE.sin_stride), load(args, ROPE.cos_stride)
    num_tensors = 1 if load(args, ROPE.x2) == 0 else 2
    for unit in range(lo, hi):
        batch = unit // tokens
        token = unit - batch * tokens
        position = I64(load(positions, batch * pos_batch + token * pos_token))
        if position < 0 or position >= num_rows:
            return BAD_POSITION
        sin_row, cos_row = sin + position * sin_stride, cos + position * cos_stride
        for t in range(num_tensors):
            x_address, y_address = load(args, ROPE.x2 if t else ROPE.x), load(args, ROPE.y2 if t else ROPE.y)
            x_strides, y_strides = ROPE.x2_strides if t else ROPE.x_strides, ROPE.y2_strides if t else ROPE.y_strides
            x_head = ptr(x_address, T) + offset_of(args, x_strides, batch, token, 0)
            y_head = ptr(y_address, T) + offset_of(args, y_strides, batch, token, 0)
            x_step, y_step = offset_of(args, x_strides, 0, 0, 1), offset_of(args, y_strides, 0, 0, 1)
            for _ in range(load(args, ROPE.heads2 if t else ROPE.heads)):
                rotate(x_head, y_head, sin_row, cos_row, half, sign)
                if x_address != y_address and 2 * half < size:
                    copy_row(y_head + 2 * half, x_head + 2 * half, size - 2 * half)
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
