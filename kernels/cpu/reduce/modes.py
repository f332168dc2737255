"""The most frequent elements of sorted rows: the longest runs of equal ones, of several the first."""

from numba import types

from ...blocks.reduce import MODES
from ...build import jit
from ...lang.simd import load, ptr, store

I64 = types.int64


@jit.inline
def take(args, row, at, E):
    """The result of a row, whose longest run ends at element `at`."""
    at += row * load(args, MODES.size)
    store(ptr(load(args, MODES.values), E), row, load(ptr(load(args, MODES.ordered), E), at))
    store(ptr(load(args, MODES.indices), I64), row, load(ptr(load(args, MODES.order), I64), at))


@jit.inline
def modes(args, lo, hi, T, E):
    """Rows [lo, hi) of elements T, of which E has the bits."""
    x, size = ptr(load(args, MODES.ordered), T), load(args, MODES.size)
    for row in range(lo, hi):
        begin, length, at = row * size, 0, 0
        before = load(x, begin)
        for i in range(row * size + 1, (row + 1) * size):
            value = load(x, i)
            if value != before:
                begin = i
            if i - begin > length:
                length, at = i - begin, i - row * size
            before = value
        take(args, row, at, E)
    return 0
