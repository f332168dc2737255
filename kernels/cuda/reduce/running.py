"""Running extremes on GPUs, and where they are: scans (`scan.py`) of (value, place), of equal values the last one."""

from numba import types

from ...build import jit
from ...lang.by_type import by_type
from ...lang.simd import fill, select
from . import scan

I32 = types.int32


@jit.inline
def later_largest(a, b):
    """Of two states, the later one where it is no smaller, or NaN."""
    better = (b[0] >= a[0]) | (b[0] != b[0])
    return select(better, b[0], a[0]), select(better, b[1], a[1])


@jit.inline
def later_smallest(a, b):
    """Of two states, the later one where it is no larger, or NaN."""
    better = (b[0] <= a[0]) | (b[0] != b[0])
    return select(better, b[0], a[0]), select(better, b[1], a[1])


def _end(T, largest):
    """What every number of a type is at least (for the largest), or at most."""
    dtype = T.instance_type
    if isinstance(dtype, types.Float):
        return float("-inf") if largest else float("inf")
    return dtype.minval if largest else dtype.maxval


@by_type
def least(T):
    value = _end(T, True)
    return lambda T: value


@by_type
def greatest(T):
    value = _end(T, False)
    return lambda T: value


def _kernel(loop, join, end):
    def kernel(args, lo, hi, T, STATE, TEAM, P):
        start = fill(end(STATE), STATE, 1), fill(-1, I32, 1)
        return loop(args, lo, join, start, end(STATE), T, STATE, T, TEAM, P, False)

    return jit.inline(kernel)


max_rows, min_rows = _kernel(scan.rows, later_largest, least), _kernel(scan.rows, later_smallest, greatest)
max_blocks, min_blocks = _kernel(scan.blocks, later_largest, least), _kernel(scan.blocks, later_smallest, greatest)
max_chunks, min_chunks = _kernel(scan.chunks, later_largest, least), _kernel(scan.chunks, later_smallest, greatest)
max_columns, min_columns = _kernel(scan.columns, later_largest, least), _kernel(scan.columns, later_smallest, greatest)
