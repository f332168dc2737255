"""Choosing tokens from logits (definitions: `kernels/cpu/reduce/sample.py`): a row for a block."""

from numba import types

from ...blocks.reduce import GREEDY
from ...build import jit
from ...cpu.reduce.sample import NO_TOKEN
from ...lang.ptx import thread, threads
from ...lang.shuffle import largest
from ...lang.simd import load, ptr, reduce_min, reduce_or, select, store
from ..block import block_max, block_min, block_sum, places, read, vector, width

I64 = types.int64
INF = float("inf")
NOWHERE = 1 << 62


@jit.inline
def first_largest(x, size):
    """(the first place of the largest element of a row, whether none is NaN), for every thread."""
    best, lanes = vector(x, -INF), places(x)
    where, bad = lanes, False
    for i in range(thread() * width(x), size, threads() * width(x)):
        v = read(x, i, size - i, best)
        if size - i < width(x):
            v = select(lanes < size - i, v, -INF)
        bad = bad or reduce_or(v != v)
        wins = v > best
        best, where = select(wins, v, best), select(wins, lanes + i, where)
    top = block_max(largest(best))
    mine = reduce_min(select(best == top, where, lanes + NOWHERE))
    return block_min(mine), block_sum(I64(bad)) == 0


@jit.inline
def greedy(args, lo, hi, T, O):
    """The most likely token of row `lo`, of type O."""
    x = ptr(load(args, GREEDY.x), T) + lo * load(args, GREEDY.stride)
    where, good = first_largest(x, load(args, GREEDY.size))
    if not good:
        return NO_TOKEN
    if thread() == 0:
        store(ptr(load(args, GREEDY.tokens), O), lo, where)
    return 0
