"""Backward passes of softmax and its logarithm, from their results: a row for a block.

With y = softmax(x): dx = y * (g - sum(g * y)); with y = log_softmax(x): dx = g - exp(y) * sum(g).
"""

from ...blocks.softmax import BACKWARD
from ...build import jit
from ...lang.ptx import thread, threads
from ...lang.simd import load, muladd, ptr, reduce_add
from ...lang.vmath import exp
from ..block import block_sum, read, vector, width, write


@jit.inline
def rows(args, lo, hi, T, LOGARITHM):
    """Row `lo`."""
    size = load(args, BACKWARD.size)
    g = ptr(load(args, BACKWARD.g), T) + lo * load(args, BACKWARD.g_stride)
    y = ptr(load(args, BACKWARD.y), T) + lo * load(args, BACKWARD.y_stride)
    dx, total = ptr(load(args, BACKWARD.dx), T) + lo * size, vector(g, 0.0)
    for i in range(thread() * width(g), size, threads() * width(g)):
        v = read(g, i, size - i, total)
        total = total + v if LOGARITHM else muladd(v, read(y, i, size - i, total), total)
    whole = block_sum(reduce_add(total))
    for i in range(thread() * width(g), size, threads() * width(g)):
        v, out = read(g, i, size - i, total), read(y, i, size - i, total)
        write(dx, i, v - exp(out) * whole if LOGARITHM else out * (v - whole), size - i)
    return 0
