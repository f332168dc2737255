"""Rows gathered by index: embeddings and `index_select`."""

from numba import types

from ...build import isa, jit
from ...lang.simd import fill, load, ptr, store, vstore_first
from .copy import copy_row

LANES = isa.lanes()
I64 = types.int64
OUT_OF_RANGE = 1


@jit.inline
def zero_row(y, size, E):
    """`size` elements set to zero."""
    for i in range(0, size, LANES):
        vstore_first(y, i, fill(0, E, LANES), size - i)


@jit.inline
def gather_rows(args, lo, hi, E, I):
    """y[o, k] = x[o, index[k] - first]: units [lo, hi) of (outer, index) pairs, elements of type E.

    args: y, x, index, stride of index, number of indices, row length, row stride of x, outer stride of
    x, first and last + 1 of the valid indices, whether the others give zeros.
    """
    y, x, index, step = ptr(load(args, 0), E), ptr(load(args, 1), E), ptr(load(args, 2), I), load(args, 3)
    count, length, row_stride, outer_stride = load(args, 4), load(args, 5), load(args, 6), load(args, 7)
    first, end, others_are_zero = load(args, 8), load(args, 9), load(args, 10) != 0
    if length == 1:  # a call per element would cost more than the element
        for unit in range(lo, hi):
            outer = unit // count
            row = I64(load(index, (unit - outer * count) * step))
            if first <= row < end:
                store(y, unit, load(x, outer * outer_stride + (row - first) * row_stride))
            elif others_are_zero:
                store(y, unit, E(0))
            else:
                return OUT_OF_RANGE
        return 0
    for unit in range(lo, hi):
        outer = unit // count
        row = I64(load(index, (unit - outer * count) * step))
        if first <= row < end:
            copy_row(y + unit * length, x + (outer * outer_stride + (row - first) * row_stride), length)
        elif others_are_zero:
            zero_row(y + unit * length, length, E)
        else:
            return OUT_OF_RANGE
    return 0
