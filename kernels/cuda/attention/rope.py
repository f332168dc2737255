"""Rotary position embedding (formulas: `kernels/cpu/attention/rope.py`): a token for a block.

The threads share the vectors of all its heads, those of queries first, then those of keys.
"""

from numba import types

from ...blocks.rope import BAD_POSITION, ROPE
from ...build import jit
from ...cpu.attention.tiles import offset_of
from ...lang.by_type import by_type
from ...lang.ptx import barrier, thread, threads
from ...lang.shuffle import even, interleave, odd
from ...lang.simd import fill, load, ptr, store
from ...lang.vector import compute_type
from ..block import read, vector, width, write
from .kvcache import write as write_cache
from .sizes import SECOND

I64, U32 = types.int64, types.uint32


@by_type
def half_vector(x):
    """A vector of half as many lanes as 16 bytes of x have, at least one."""
    dtype, lanes = compute_type(x.dtype), max(1, 8 // (x.dtype.bitwidth // 8))
    return lambda x: fill(0.0, dtype, lanes)


@jit.inline
def rotate_halves(x, y, at, sin, cos, half, sign):
    """Piece number `at` of a head with pairs (i, i + half)."""
    i = at * width(x)
    left, like = half - i, vector(x, 0.0)
    c, s = read(cos, i, left, like), read(sin, i, left, like) * sign
    a, b = read(x, i, left, like), read(x, half + i, left, like)
    write(y, i, a * c - b * s, left)
    write(y, half + i, a * s + b * c, left)


@jit.inline
def rotate_interleaved(x, y, at, sin, cos, half, sign):
    """Piece number `at` of a head with pairs (2i, 2i + 1): half as many pairs."""
    like = half_vector(x)
    i = at * (width(x) // 2)
    left = half - i
    c, s = read(cos, i, left, like), read(sin, i, left, like) * sign
    v = read(x, 2 * i, 2 * left, vector(x, 0.0))
    a, b = even(v), odd(v)
    write(y, 2 * i, interleave(a * c - b * s, a * s + b * c), 2 * left)


@jit.inline
def rotate_heads(args, batch, token, fields, rotate, pieces, tables, T):
    """All heads of the tensor with these fields of the block (constants), for a token; a head has so many `pieces`."""
    x_field, y_field, x_strides, y_strides, count = fields
    x_address, y_address, heads = load(args, x_field), load(args, y_field), load(args, count)
    x = ptr(x_address, T) + offset_of(args, x_strides, batch, token, 0)
    y = ptr(y_address, T) + offset_of(args, y_strides, batch, token, 0)
    x_step, y_step = load(args, x_strides + 2), load(args, y_strides + 2)
    half, size = load(args, ROPE.half), load(args, ROPE.size)
    sin, cos = tables
    sign = float(load(args, ROPE.sign))
    for item in range(thread(), heads * pieces, threads()):
        head = I64(U32(item) // U32(pieces))
        rotate(x + head * x_step, y + head * y_step, item - head * pieces, sin, cos, half, sign)
    rest = size - 2 * half
    if x_address != y_address and rest > 0:
        for item in range(thread(), heads * rest, threads()):
            head = I64(U32(item) // U32(rest))
            at = 2 * half + item - head * rest
            store(y + head * y_step, at, load(x + head * x_step, at))


@jit.inline
def rope(args, unit, rotate, of_piece, T, C, P):
    """Rotate every head of a token; a piece of a head has `of_piece` pairs."""
    tokens = load(args, ROPE.tokens)
    batch = unit // tokens
    token = unit - batch * tokens
    at = batch * load(args, ROPE.position_batch) + token * load(args, ROPE.position_token)
    position = I64(load(ptr(load(args, ROPE.positions), P), at))
    if position < 0 or position >= load(args, ROPE.rows):
        return BAD_POSITION
    sin = ptr(load(args, ROPE.sin), C) + position * load(args, ROPE.sin_stride)
    cos = ptr(load(args, ROPE.cos), C) + position * load(args, ROPE.cos_stride)
    pieces = (load(args, ROPE.half) + of_piece - 1) // of_piece
    first = ROPE.x, ROPE.y, ROPE.x_strides, ROPE.y_strides, ROPE.heads
    rotate_heads(args, batch, token, first, rotate, pieces, (sin, cos), T)
    if load(args, ROPE.x2) != 0:
        second = ROPE.x2, ROPE.y2, ROPE.x2_strides, ROPE.y2_strides, ROPE.heads2
        rotate_heads(args, batch, token, second, rotate, pieces, (sin, cos), T)
    return 0


@jit.inline
def rope_halves(args, lo, hi, T, C, P):
    """Pairs (i, i + R/2): GPT-NeoX, Llama."""
    return rope(args, lo, rotate_halves, width(ptr(load(args, ROPE.x), T)), T, C, P)


@jit.inline
def rope_interleaved(args, lo, hi, T, C, P):
    """Pairs (2i, 2i + 1): GPT-J."""
    return rope(args, lo, rotate_interleaved, width(ptr(load(args, ROPE.x), T)) // 2, T, C, P)


@jit.inline
def turn_and_write(args, lo, hi, rope_of, T, C, P, U):
    """A rotary embedding of queries and keys, then `kvcache.write` of the same tokens, whose block follows."""
    code = rope_of(args, lo, hi, T, C, P)
    barrier()
    if code == 0:
        code = write_cache(args + ROPE.WIDTH, lo, hi, U)
        if code != 0:
            code += SECOND
    return code


@jit.inline
def rope_halves_write(args, lo, hi, T, C, P, U):
    """`rope_halves`, then the cache."""
    return turn_and_write(args, lo, hi, rope_halves, T, C, P, U)


@jit.inline
def rope_interleaved_write(args, lo, hi, T, C, P, U):
    """`rope_interleaved`, then the cache."""
    return turn_and_write(args, lo, hi, rope_interleaved, T, C, P, U)
