"""Numbers repeated: each element of the result finds its own."""

from numba import types

from ...blocks.array import REPEATED
from ...build import jit
from ...cpu.array.repeats import NEGATIVE, number_at
from ...lang.ptx import block, blocks, thread, threads
from ...lang.simd import load, ptr, store

I64 = types.int64


@jit.inline
def repeated(args, lo, hi, I):
    """All elements of y, and whether a count is negative."""
    counts, y, size = ptr(load(args, REPEATED.counts), I), ptr(load(args, REPEATED.y), I64), load(args, REPEATED.size)
    total, status = load(args, REPEATED.total), 0
    place, apart = block() * threads() + thread(), blocks() * threads()
    for i in range(place, size, apart):
        if load(counts, i) < 0:
            status = NEGATIVE
    for i in range(place, total, apart):
        store(y, i, min(number_at(args, i, I)[0], size - 1))
    return status
