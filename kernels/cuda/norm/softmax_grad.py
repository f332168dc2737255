"""Backward passes of softmax and its logarithm, from their results: rows as in `softmax.py`.

With y = softmax(x): dx = y * (g - sum(g * y)); with y = log_softmax(x): dx = g - exp(y) * sum(g).
"""

from ...blocks.softmax import BACKWARD
from ...build import jit
from ...lang import lowp
from ...lang.by_type import by_type
from ...lang.ptx import exp2_small
from ...lang.simd import load, muladd, ptr, reduce_add, select
from ...lang.vmath import LOG2E, exp
from ..block import read, team_sum, vector, width, write
from .held import each_row, inside_part, lined, own_rows, part_of, part_sum, read_part, write_part


@by_type
def exp_of_result(y, value):
    """exp of a vector, right to 1e-5 where memory has 16-bit floats as at y: in two instructions, which 18 are not."""
    if isinstance(y.dtype, lowp.StorageFloat):
        return lambda y, value: exp2_small(value * LOG2E)
    return lambda y, value: exp(value)


@jit.inline
def held(args, row, like, T, LOGARITHM, B, TEAM, SPAN):
    """One row."""
    size = load(args, BACKWARD.size)
    g = ptr(load(args, BACKWARD.g), T) + row * load(args, BACKWARD.g_stride)
    y, part = ptr(load(args, BACKWARD.y), T) + row * load(args, BACKWARD.y_stride), part_of(g, size, TEAM, SPAN)
    v, out = read_part(g, part, like), read_part(y, part, like)
    product = v if LOGARITHM else v * out
    whole = part_sum(reduce_add(select(inside_part(g, part, like), product, 0.0)), TEAM)
    dx = ptr(load(args, BACKWARD.dx), T) + row * size
    write_part(dx, part, v - exp_of_result(y, out) * whole if LOGARITHM else out * (v - whole))


@jit.inline
def rows(args, lo, hi, T, LOGARITHM, TEAM, PIECES, SPAN):
    """All rows."""
    g, stride = ptr(load(args, BACKWARD.g), T), load(args, BACKWARD.g_stride)
    even = lined(g, ptr(load(args, BACKWARD.y), T), stride, load(args, BACKWARD.y_stride), SPAN)
    even = even and lined(g, ptr(load(args, BACKWARD.dx), T), stride, load(args, BACKWARD.size), SPAN)
    if PIECES > 0 and even:
        each_row(args, hi, held, g, T, LOGARITHM, T, TEAM, PIECES, SPAN)
        return 0
    size = load(args, BACKWARD.size)
    first, step, team = own_rows(TEAM)
    for row in range(first, hi, step):
        g = ptr(load(args, BACKWARD.g), T) + row * load(args, BACKWARD.g_stride)
        y = ptr(load(args, BACKWARD.y), T) + row * load(args, BACKWARD.y_stride)
        dx, total = ptr(load(args, BACKWARD.dx), T) + row * size, vector(g, 0.0)
        for i in range(team[0] * width(g), size, team[1] * width(g)):
            v = read(g, i, size - i, total)
            total = total + v if LOGARITHM else muladd(v, read(y, i, size - i, total), total)
        whole = team_sum(reduce_add(total), team)
        for i in range(team[0] * width(g), size, team[1] * width(g)):
            v, out = read(g, i, size - i, total), read(y, i, size - i, total)
            write(dx, i, v - exp_of_result(y, out) * whole if LOGARITHM else out * (v - whole), size - i)
    return 0
