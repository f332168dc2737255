"""Filled memory, triangles, one-hot rows, positions of elements that are not zero, and counts made into indices."""

from numba import types

from ...build import isa, jit
from ...lang.simd import fill, load, ptr, stack, store, vstore, vstore_first
from .copy import copy_row

LANES = isa.lanes()
WIDE = 4 * LANES
I64 = types.int64
OUT_OF_RANGE = 1
FOUND = 256  # positions collected at a time
FOUND_BYTES, DIGITS_BYTES = 8 * FOUND, 8 * 64


@jit.inline
def fill_row(y, size, value, E):
    """`size` contiguous elements set to `value`."""
    wide, i = fill(value, E, WIDE), 0
    while i + WIDE <= size:
        vstore(y, i, wide)
        i += WIDE
    while i < size:
        vstore_first(y, i, fill(value, E, LANES), size - i)
        i += LANES


@jit.inline
def filled(args, lo, hi, E):
    """Elements [lo, hi) set to one value. args: y, the element's bits."""
    fill_row(ptr(load(args, 0), E) + lo, hi - lo, load(args, 1), E)
    return 0


@jit.inline
def triangle(args, lo, hi, E):
    """Rows [lo, hi) of matrices, of which one side of a diagonal is kept and the other is zero.

    args: x, y, rows of a matrix, columns, row stride of x, diagonal, whether the upper side is kept.
    """
    x, y, rows, columns = ptr(load(args, 0), E), ptr(load(args, 1), E), load(args, 2), load(args, 3)
    stride, diagonal, upper = load(args, 4), load(args, 5), load(args, 6) != 0
    for row in range(lo, hi):
        source, target = x + row * stride, y + row * columns
        if upper:
            cut = min(max(row % rows + diagonal, 0), columns)
            fill_row(target, cut, 0, E)
            copy_row(target + cut, source + cut, columns - cut)
        else:
            cut = min(max(row % rows + diagonal + 1, 0), columns)
            copy_row(target, source, cut)
            fill_row(target + cut, columns - cut, 0, E)
    return 0


@jit.inline
def one_hot(args, lo, hi, I):
    """Rows [lo, hi): zeros and a one. args: index, y (int64), classes."""
    index, y, classes = ptr(load(args, 0), I), ptr(load(args, 1), I64), load(args, 2)
    for row in range(lo, hi):
        at = I64(load(index, row))
        if at < 0 or at >= classes:
            return OUT_OF_RANGE
        fill_row(y + row * classes, classes, 0, I64)
        store(y, row * classes + at, 1)
    return 0


@jit.inline
def count_nonzero(args, lo, hi, T):
    """How many elements of chunks [lo, hi) are not zero. args: x, elements, of a chunk, counts."""
    x, size, step, counts = ptr(load(args, 0), T), load(args, 1), load(args, 2), ptr(load(args, 3), I64)
    for chunk in range(lo, hi):
        found = 0
        for i in range(chunk * step, min(size, (chunk + 1) * step)):
            found += I64(load(x, i) != 0)
        store(counts, chunk, found)
    return 0


@jit.inline
def nonzero(args, lo, hi, T):
    """Indices of the elements of chunks [lo, hi) that are not zero.

    Positions are collected without a branch, which would be mispredicted (1.0 instead of 3.6 ns an element, a third of
    them not zero), and the indices of the outer dims are computed once for a row.
    args: x, elements, of a chunk, y [K, dims], dims; the sizes of the dims; where each chunk's rows of y begin.
    """
    x, size, step = ptr(load(args, 0), T), load(args, 1), load(args, 2)
    y, ndim = ptr(load(args, 3), I64), load(args, 4)
    length = load(args, 4 + ndim)
    found, digits = ptr(stack(FOUND_BYTES), I64), ptr(stack(DIGITS_BYTES), I64)
    for chunk in range(lo, hi):
        target = y + load(args, 5 + ndim + chunk) * ndim
        at, stop = chunk * step, min(size, (chunk + 1) * step)
        while at < stop:
            row = at // length
            column = at - row * length
            end = min(length, column + stop - at)
            at += end - column
            for k in range(1, ndim):
                d = ndim - 1 - k
                rest = row // load(args, 5 + d)
                store(digits, d, row - rest * load(args, 5 + d))
                row = rest
            source = x + (at - end)
            while column < end:
                last, n = min(end, column + FOUND), 0
                for i in range(column, last):
                    store(found, n, i)
                    n += I64(load(source, i) != 0)
                for i in range(n):
                    for d in range(ndim - 1):
                        store(target, d, load(digits, d))
                    store(target, ndim - 1, load(found, i))
                    target = target + ndim
                column = last
    return 0


@jit.inline
def sum_of_counts(args, lo, hi, I):
    """The sum of counts, none of which may be negative. args: counts, how many, total."""
    counts, total = ptr(load(args, 0), I), 0
    for i in range(load(args, 1)):
        count = I64(load(counts, i))
        if count < 0:
            return OUT_OF_RANGE
        total += count
    store(ptr(load(args, 2), I64), 0, total)
    return 0


@jit.inline
def repeated(args, lo, hi, I):
    """Each index as often as its count says. args: counts, how many, y, elements of y."""
    counts, y, at = ptr(load(args, 0), I), ptr(load(args, 2), I64), 0
    for i in range(load(args, 1)):
        count = min(I64(load(counts, i)), load(args, 3) - at)
        fill_row(y + at, count, i, I64)
        at += count
    return 0
