"""Rows added up by index, in the order in which the sorted indices have them: a chunk of equal ones for a block.

The block of a chunk's first place adds up its rows; the sum of all of an index that has more is a second launch's, in
the order of its chunks. So results are the same each time.
"""

from numba import types

from ...blocks.cuda import ADD_SORTED as BLOCK
from ...build import jit
from ...cpu.array.scatter import OUT_OF_RANGE, number_of
from ...lang.by_type import by_type
from ...lang.ptx import thread, threads
from ...lang.simd import load, ptr, store
from ..block import read, vector, width, write

I32, I64 = types.int32, types.int64
CHUNK = 64  # rows


@jit.inline
def first_of(keys, at, key):
    """Where the sorted `keys` up to place `at` begin to be `key`."""
    low, high = 0, at
    while low < high:
        middle = (low + high) // 2
        if load(keys, middle) == key:
            high = middle
        else:
            low = middle + 1
    return low


@jit.inline
def end_of(keys, at, key, last):
    """Where `keys` from `at` on are no longer `key`, at most `last`."""
    while at < last and load(keys, at) == key:
        at += 1
    return at


@by_type
def number_like(v, scale):
    """A number as the lanes of a vector are."""
    dtype = v.dtype
    return lambda v, scale: dtype(scale)


@jit.inline
def add_sorted(args, lo, hi, T, A, C, I):
    """The chunk that begins at place `lo` of the sorted indices, if one does, for each outer t and v.

    C is the type that sums are made in; those of a chunk among several go to `parts`.
    """
    indices, rows, length = load(args, BLOCK.indices), load(args, BLOCK.rows), load(args, BLOCK.length)
    outer = lo // indices
    at, keys, order = lo - outer * indices, ptr(load(args, BLOCK.keys), I), ptr(load(args, BLOCK.order), I32)
    key = load(keys, at)
    row = I64(key)
    if row < 0 or row >= rows:
        return OUT_OF_RANGE
    first = first_of(keys, at, key)
    if (at - first) % CHUNK != 0:
        return 0
    end = end_of(keys, at, key, min(indices, at + CHUNK))
    alone = at == first and (end == indices or end < at + CHUNK or load(keys, end) != key)
    v = ptr(load(args, BLOCK.v), T) + outer * indices * length
    t = ptr(load(args, BLOCK.t), T) + (outer * rows + row) * length
    # of a window of CHUNK places, at most one chunk is the first of its index and has more to come, and one is not
    part = outer * load(args, BLOCK.windows) + 2 * (at // CHUNK) + (1 if at == first else 0)
    parts = ptr(load(args, BLOCK.parts), C) + part * length
    nothing, lanes = vector(v, 0), width(v)
    scale = number_like(nothing, number_of(args, BLOCK.scale, A))
    for i in range(thread() * lanes, length, threads() * lanes):
        left = length - i
        total = read(t, i, left, nothing) if alone else nothing
        for place in range(at, end):
            total = total + read(v, I64(load(order, place)) * length + i, left, nothing) * scale
        if alone:
            write(t, i, total, left)
        else:
            write(parts, i, total, left)
    return 0


OUTERS = 8  # rows of v that a thread has


@jit.inline
def add_each(args, lo, hi, T, A, C, I):
    """Elements [lo, hi) of t, OUTERS outer ones at a time: a thread finds its index among the sorted ones once.

    For rows of few elements, of which an index has few.
    """
    indices, rows, length = load(args, BLOCK.indices), load(args, BLOCK.rows), load(args, BLOCK.length)
    outers, keys, order = load(args, BLOCK.outer), ptr(load(args, BLOCK.keys), I), ptr(load(args, BLOCK.order), I32)
    t, v = ptr(load(args, BLOCK.t), T), ptr(load(args, BLOCK.v), T)
    scale, size = C(number_of(args, BLOCK.scale, A)), rows * length
    for item in range(lo, hi):
        for k in range(item, indices, size * ((outers + OUTERS - 1) // OUTERS)):
            if load(keys, k) < 0 or load(keys, k) >= rows:
                return OUT_OF_RANGE
        group = item // size
        row = (item - group * size) // length
        column, first, end = item - group * size - row * length, 0, indices
        while first < end:
            middle = (first + end) // 2
            if load(keys, middle) < row:
                first = middle + 1
            else:
                end = middle
        end = end_of(keys, first, row, indices)
        if end > first:
            for outer in range(group * OUTERS, min(outers, group * OUTERS + OUTERS)):
                at, total = (outer * rows + row) * length + column, C(0)
                for place in range(first, end):
                    total += C(load(v, (outer * indices + I64(load(order, place))) * length + column)) * scale
                store(t, at, C(load(t, at)) + total)
    return 0


@jit.inline
def add_parts(args, lo, hi, T, C, I):
    """The chunks of the index that begins at place `lo`, if it has several."""
    indices, rows, length = load(args, BLOCK.indices), load(args, BLOCK.rows), load(args, BLOCK.length)
    outer = lo // indices
    at, keys = lo - outer * indices, ptr(load(args, BLOCK.keys), I)
    key = load(keys, at)
    row = I64(key)
    if row < 0 or row >= rows or at + CHUNK >= indices or load(keys, at + CHUNK) != key:
        return 0
    if at > 0 and load(keys, at - 1) == key:
        return 0
    t = ptr(load(args, BLOCK.t), T) + (outer * rows + row) * length
    parts = ptr(load(args, BLOCK.parts), C) + outer * load(args, BLOCK.windows) * length
    nothing, lanes = vector(t, 0), width(t)
    for i in range(thread() * lanes, length, threads() * lanes):
        left, place = length - i, at
        total = read(t, i, left, nothing)
        while place < indices and load(keys, place) == key:
            part = 2 * (place // CHUNK) + (1 if place == at else 0)
            total = total + read(parts, part * length + i, left, nothing)
            place += CHUNK
        write(t, i, total, left)
    return 0
