"""Elements taken one after the other for the places where a mask is true."""

from numba import types

from ...blocks.array import MASKED
from ...build import jit
from ...lang.simd import load, ptr, store

U8, I64 = types.uint8, types.int64
TOO_FEW = 1


@jit.inline
def scattered(args, lo, hi, E):
    """Elements [lo, hi): of x, or where the mask is true the next one of the source."""
    x, y, source = ptr(load(args, MASKED.x), E), ptr(load(args, MASKED.y), E), ptr(load(args, MASKED.source), E)
    mask, ends = ptr(load(args, MASKED.mask), U8), ptr(load(args, MASKED.ends), I64)
    count = load(args, MASKED.count)
    if load(ends, load(args, MASKED.numel) - 1) > count:
        return TOO_FEW
    at = load(ends, lo) - I64(load(mask, lo) != 0)
    for i in range(lo, hi):
        taken = load(mask, i) != 0
        next_one, own = load(source, max(0, min(at, count - 1))), load(x, i)
        store(y, i, next_one if taken else own)
        at += I64(taken)
    return 0
