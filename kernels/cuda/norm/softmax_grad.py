"""Backward passes of softmax and its logarithm, from their results: rows as in `softmax.py`.

With y = softmax(x): dx = y * (g - sum(g * y)); with y = log_softmax(x): dx = g - exp(y) * sum(g).
"""

from ...blocks.softmax import BACKWARD
from ...build import jit
from ...lang.simd import load, muladd, ptr, reduce_add
from ...lang.vmath import exp
from ..block import read, share_rows, team_sum, vector, width, write


@jit.inline
def rows(args, lo, hi, T, LOGARITHM):
    """All rows."""
    size = load(args, BACKWARD.size)
    first, step, team = share_rows(ptr(load(args, BACKWARD.g), T), size)
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
            write(dx, i, v - exp(out) * whole if LOGARITHM else out * (v - whole), size - i)
    return 0
