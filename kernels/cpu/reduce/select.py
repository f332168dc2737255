"""Elements of sorted rows by their ranks."""

from numba import types

from ...blocks.reduce import PICK
from ...build import jit
from ...lang.simd import load, ptr, store

I64 = types.int64


@jit.inline
def pick(args, lo, hi, E):
    """Ranks [lo, hi) of all rows; 1 where there is no such element."""
    ranks, size, count = ptr(load(args, PICK.ranks), I64), load(args, PICK.size), load(args, PICK.count)
    for item in range(lo, hi):
        rank = load(ranks, item)
        if rank < 0 or rank >= size:
            return 1
        at = item // count * size + rank
        store(ptr(load(args, PICK.values), E), item, load(ptr(load(args, PICK.ordered), E), at))
        store(ptr(load(args, PICK.indices), I64), item, load(ptr(load(args, PICK.order), I64), at))
    return 0
