"""Numbers repeated: each as often as its count says."""

from numba import types

from ...blocks.array import REPEATED
from ...build import jit
from ...lang.rows import fill_row
from ...lang.simd import load, ptr

I64 = types.int64
NEGATIVE = 1


@jit.inline
def number_at(args, place, I):
    """(the number that stands at a place, where its elements end): the first that ends behind it, or there is none."""
    counts, ends = ptr(load(args, REPEATED.counts), I), ptr(load(args, REPEATED.ends), I64)
    first, last = 0, load(args, REPEATED.size)
    if load(args, REPEATED.ends) == 0:  # few counts, which are added up on the way
        end = I64(load(counts, 0)) if last > 0 else 0
        while first < last and end <= place:
            first += 1
            end += I64(load(counts, min(first, last - 1)))
        return first, end
    size = last
    while first < last:
        middle = (first + last) >> 1
        if load(ends, middle) > place:
            last = middle
        else:
            first = middle + 1
    return first, (load(ends, first) if first < size else place)


@jit.inline
def repeated(args, lo, hi, I):
    """Elements [lo, hi) of y, of `total`; who has the first one looks whether a count is negative."""
    counts, y, size = ptr(load(args, REPEATED.counts), I), ptr(load(args, REPEATED.y), I64), load(args, REPEATED.size)
    if lo == 0:
        for i in range(size):
            if load(counts, i) < 0:
                return NEGATIVE
    hi, at = min(hi, load(args, REPEATED.total)), lo
    number, end = number_at(args, lo, I)
    while at < hi and number < size:
        count = max(0, min(end, hi) - at)
        fill_row(y + at, count, number)
        at, number = at + count, number + 1
        end += I64(load(counts, min(number, size - 1)))
    return 0
