"""Numbers repeated: each as often as its count says."""

from numba import types

from ...blocks.array import REPEATED
from ...build import jit
from ...lang.rows import fill_row
from ...lang.simd import load, ptr

I64 = types.int64
NEGATIVE = 1


@jit.inline
def number_at(ends, size, place):
    """The number that stands at a place: the first whose end, the sum of the counts up to its own, is behind it."""
    first, last = 0, size
    while first < last:
        middle = (first + last) >> 1
        if load(ends, middle) > place:
            last = middle
        else:
            first = middle + 1
    return first


@jit.inline
def repeated(args, lo, hi, I):
    """Elements [lo, hi) of y, of `total`; who has the first one looks whether a count is negative."""
    counts, ends = ptr(load(args, REPEATED.counts), I), ptr(load(args, REPEATED.ends), I64)
    y, size, at = ptr(load(args, REPEATED.y), I64), load(args, REPEATED.size), lo
    if lo == 0:
        for i in range(size):
            if load(counts, i) < 0:
                return NEGATIVE
    hi, number = min(hi, load(args, REPEATED.total)), number_at(ends, size, lo)
    while at < hi and number < size:
        count = max(0, min(load(ends, number), hi) - at)
        fill_row(y + at, count, number)
        at, number = at + count, number + 1
    return 0
