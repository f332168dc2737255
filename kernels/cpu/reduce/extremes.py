"""Running extremes along a dim and their positions: the largest (or smallest) so far, of equal ones the last."""

from numba import types

from ...blocks.reduce import EXTREMES
from ...build import jit
from ...lang.simd import load, ptr, store

I64 = types.int64


@jit.inline
def running(args, lo, hi, T, LARGEST):
    """Columns [lo, hi) of a row-major tensor [outer, size, columns]. NaN counts as the largest and the smallest."""
    x, values = ptr(load(args, EXTREMES.x), T), ptr(load(args, EXTREMES.values), T)
    indices = ptr(load(args, EXTREMES.indices), I64)
    size, columns = load(args, EXTREMES.size), load(args, EXTREMES.columns)
    for unit in range(lo, hi):
        outer = unit // columns
        first = outer * size * columns + (unit - outer * columns)
        k = 0
        while k < size:  # a new extreme is rare, and a branch to it free where it is foreseen: 11 ns without
            best, at = load(x, first + k * columns), k
            store(values, first + k * columns, best)
            store(indices, first + k * columns, at)
            k += 1
            while k < size:
                value = load(x, first + k * columns)
                better = value >= best if LARGEST else value <= best
                if better or value != value:
                    break
                store(values, first + k * columns, best)
                store(indices, first + k * columns, at)
                k += 1
    return 0
