"""Rows gathered by index: embeddings and `index_select`."""

from numba import types

from ...blocks.array import GATHER_ROWS as BLOCK
from ...build import jit
from ...lang.rows import fill_row
from ...lang.simd import load, ptr, store
from .copy import copy_row

I64 = types.int64
OUT_OF_RANGE = 1


@jit.inline
def gather_rows(args, lo, hi, E, I):
    """y[o, k] = x[o, index[k] - first]: units [lo, hi) of (outer, index) pairs, elements of type E."""
    y, x, index = ptr(load(args, BLOCK.y), E), ptr(load(args, BLOCK.x), E), ptr(load(args, BLOCK.index), I)
    step, count, length = load(args, BLOCK.step), load(args, BLOCK.indices), load(args, BLOCK.length)
    row_stride, outer_stride = load(args, BLOCK.row_stride), load(args, BLOCK.outer_stride)
    first, end, others_are_zero = load(args, BLOCK.first), load(args, BLOCK.end), load(args, BLOCK.zeros) != 0
    wrap = load(args, BLOCK.wrap)
    if length == 1:  # a call per element would cost more than the element
        unit = lo
        while unit < hi:  # and so would a division: 8 ns instead of 1
            outer = unit // count
            source, at = x + (outer * outer_stride - first * row_stride), unit - outer * count
            stop = min(count, at + hi - unit)
            for k in range(at, stop):
                row = I64(load(index, k * step))
                row += wrap if row < 0 else 0
                if first <= row < end:
                    store(y, outer * count + k, load(source, row * row_stride))
                elif others_are_zero:
                    store(y, outer * count + k, E(0))
                else:
                    return OUT_OF_RANGE
            unit += stop - at
        return 0
    for unit in range(lo, hi):
        outer = unit // count
        row = I64(load(index, (unit - outer * count) * step))
        row += wrap if row < 0 else 0
        if first <= row < end:
            copy_row(y + unit * length, x + (outer * outer_stride + (row - first) * row_stride), length)
        elif others_are_zero:
            fill_row(y + unit * length, length, 0)
        else:
            return OUT_OF_RANGE
    return 0
