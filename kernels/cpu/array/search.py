"""Places of elements in sorted sequences."""

from numba import types

from ...blocks.array import SEARCH
from ...build import jit
from ...lang.simd import load, ptr, store

I64 = types.int64


@jit.inline
def places(args, lo, hi, T):
    """Elements [lo, hi): how many of the sequence stand before each, by bisection. NaN stands behind all."""
    sequence, x, y = ptr(load(args, SEARCH.sequence), T), ptr(load(args, SEARCH.x), T), ptr(load(args, SEARCH.y), I64)
    size, count, right = load(args, SEARCH.size), load(args, SEARCH.count), load(args, SEARCH.right) != 0
    for i in range(lo, hi):
        own, value = sequence + (i // count) * size, load(x, i)
        first, last = 0, size
        while first < last:
            middle = (first + last) >> 1
            there = load(own, middle)
            if (there > value) if right else (there >= value):
                last = middle
            else:
                first = middle + 1
        store(y, i, first)
    return 0
