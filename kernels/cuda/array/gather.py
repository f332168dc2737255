"""Rows gathered by index: the threads of the whole launch share the vectors of all rows out among themselves."""

from numba import types

from ...blocks.array import GATHER_ROWS as BLOCK
from ...build import jit
from ...cpu.array.gather import OUT_OF_RANGE
from ...lang.ptx import block, blocks, thread, threads
from ...lang.simd import load, ptr
from ..block import read, vector, width, write

I64 = types.int64


@jit.inline
def gather_rows(args, lo, hi, E, I):
    """y[o, k] = x[o, index[k] - first] for all (outer, index) pairs, elements of type E."""
    y, x, index = ptr(load(args, BLOCK.y), E), ptr(load(args, BLOCK.x), E), ptr(load(args, BLOCK.index), I)
    step, count, length = load(args, BLOCK.step), load(args, BLOCK.indices), load(args, BLOCK.length)
    row_stride, outer_stride = load(args, BLOCK.row_stride), load(args, BLOCK.outer_stride)
    first, end, others_are_zero = load(args, BLOCK.first), load(args, BLOCK.end), load(args, BLOCK.zeros) != 0
    lanes, zeros, status = width(y), vector(y, 0), 0
    per_row = (length + lanes - 1) // lanes
    place, apart = block() * threads() + thread(), blocks() * threads()
    while place < hi * per_row:
        unit = place // per_row
        i = (place - unit * per_row) * lanes
        outer = unit // count
        row = I64(load(index, (unit - outer * count) * step))
        target = y + unit * length
        if first <= row < end:
            source = x + (outer * outer_stride + (row - first) * row_stride)
            write(target, i, read(source, i, length - i, zeros), length - i)
        elif others_are_zero:
            write(target, i, zeros, length - i)
        else:
            status = OUT_OF_RANGE
        place += apart
    return status
