"""Positions of the maximum and minimum. The first of equal elements wins; NaN beats everything.

A row is searched block by block: each block's maximum is one vector reduction, and only the winning
block is searched for the position, so the row is read once and a step is two instructions.
"""

from numba import types

from ...blocks.reduce import POSITION
from ...build import jit
from ...lang.shuffle import larger, largest, smaller, smallest
from ...lang.simd import fill, load, ptr, ramp, reduce_or, select, store, vload, vload_first, vstore_first
from .sizes import LANES, PAIR, WIDE

BLOCK = 16 * WIDE  # 1024 elements with AVX-512: 4 KB of float32
I64 = types.int64


@jit.inline
def block_best(x, size, combine, across, T):
    """The best of `size` > 0 contiguous elements."""
    best = fill(load(x, 0), T, WIDE)
    i = 0
    while i + WIDE <= size:
        best = combine(best, vload(x, i, WIDE))
        i += WIDE
    if i < size:
        left = size - i
        v = select(ramp(0, I64, WIDE) < left, vload_first(x, i, WIDE, left), best)
        best = combine(best, v)
    return across(best)


@jit.inline
def find(x, size, best):
    """The first position whose element equals `best`, or is NaN."""
    i = 0
    while i + WIDE <= size:
        v = vload(x, i, WIDE)
        if reduce_or((v == best) | (v != v)):
            break
        i += WIDE
    while i < size:
        left = size - i
        v = vload_first(x, i, LANES, left)
        if reduce_or(((v == best) | (v != v)) & (ramp(0, I64, LANES) < left)):
            for k in range(i, min(size, i + LANES)):
                s = load(x, k)
                if s == best or s != s:
                    return k
        i += LANES
    return 0


@jit.inline
def row_best(x, size, combine, across, better, T):
    """(best element, its first position) of `size` > 0 contiguous elements."""
    best = load(x, 0)
    where, start = 0, 0
    while start < size and best == best:
        found = block_best(x + start, min(size - start, BLOCK), combine, across, T)
        if better(found, best) or found != found:
            best, where = found, start
        start += BLOCK
    return best, where + find(x + where, min(size - where, BLOCK), best)


@jit.inline
def inner(args, lo, hi, combine, across, better, T):
    """Results [lo, hi), each from a contiguous row of x."""
    x, values = ptr(load(args, POSITION.x), T), ptr(load(args, POSITION.values), T)
    indices, chunk_indices = ptr(load(args, POSITION.indices), I64), load(args, POSITION.chunk_indices)
    kept, kept_outer = load(args, POSITION.inner), load(args, POSITION.outer_stride)
    kept_inner, length = load(args, POSITION.inner_stride), load(args, POSITION.length)
    whole, chunk = load(args, POSITION.whole), load(args, POSITION.chunk)
    for index in range(lo, hi):
        a = index // kept
        at = x + (a * kept_outer + (index - a * kept) * kept_inner)
        best, where = row_best(at, min(length, whole - a * length), combine, across, better, T)
        if chunk_indices != 0:
            where = where * chunk + load(ptr(chunk_indices, I64), where)
        if load(args, POSITION.values) != 0:
            store(values, index, best)
        store(indices, index, where)
    return 0


@jit.inline
def outer(args, lo, hi, better, T):
    """Blocks [lo, hi) of PAIR neighbouring results; x has unit stride along the inner kept dim."""
    x, values = ptr(load(args, POSITION.x), T), ptr(load(args, POSITION.values), T)
    indices = ptr(load(args, POSITION.indices), I64)
    kept, kept_outer = load(args, POSITION.inner), load(args, POSITION.outer_stride)
    length, stride = load(args, POSITION.length), load(args, POSITION.stride)
    blocks = (kept + PAIR - 1) // PAIR
    for unit in range(lo, hi):
        a = unit // blocks
        column = (unit - a * blocks) * PAIR
        left = kept - column
        at = x + (a * kept_outer + column)
        best, where = vload_first(at, 0, PAIR, left), fill(0, I64, PAIR)
        for i in range(1, length):
            v = vload_first(at, i * stride, PAIR, left)
            wins = better(v, best) | ((v != v) & (best == best))
            best, where = select(wins, v, best), select(wins, i, where)
        if load(args, POSITION.values) != 0:
            vstore_first(values, a * kept + column, best, left)
        vstore_first(indices, a * kept + column, where, left)
    return 0


@jit.inline
def greater(a, b):
    return a > b


@jit.inline
def less(a, b):
    return a < b


@jit.inline
def argmax_inner(args, lo, hi, T):
    return inner(args, lo, hi, larger, largest, greater, T)


@jit.inline
def argmin_inner(args, lo, hi, T):
    return inner(args, lo, hi, smaller, smallest, less, T)


@jit.inline
def argmax_outer(args, lo, hi, T):
    return outer(args, lo, hi, greater, T)


@jit.inline
def argmin_outer(args, lo, hi, T):
    return outer(args, lo, hi, less, T)
