"""Rows added up by index, in the order of the indices: of few ones, a row for a block, which finds its own.

Others are sorted, and a chunk of equal ones is for a block: that of its first place. The sum of all chunks of an index
that has several is a second launch's, in their order. So results are the same each time.
"""

from numba import types

from ...blocks.cuda import ADD_SORTED as BLOCK
from ...build import jit
from ...cpu.array.scatter import OUT_OF_RANGE, number_of
from ...lang.atomic import lowest_bit
from ...lang.by_type import by_type
from ...lang.ptx import WARP, barrier, count_bits, shared, thread, threads, voted
from ...lang.simd import fill, load, ptr, store
from ..block import read, vector, width, write
from ..plans.indexed import FEW

I32, I64, U32 = types.int32, types.int64, types.uint32
CHUNK = 64  # rows
BITS = FEW // 8  # bytes: a bit for each of few indices


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
def of_row(args, v, place, i, left, like):
    """The elements of row `place` of v from `i` on, as many as `like` has."""
    source = v + place * load(args, BLOCK.v_row)
    if load(args, BLOCK.v_step) == 0:
        return spread_like(like, load(source, 0))
    return read(source, i, left, like)


@by_type
def spread_like(like, x):
    """A vector as `like` of one number."""
    dtype, lanes = like.dtype, like.lanes
    return lambda like, x: fill(x, dtype, lanes)


@jit.inline
def after_lowest(bits):
    """(the place of the lowest bit, the others)."""
    return lowest_bit(bits), bits & (bits - 1)


@jit.inline
def add_few(args, lo, hi, T, V, A, C, I):
    """A piece of row `index[n]` of t, if `n` is the first of its index: all of that are found by comparing.

    `windows` are the pieces of a row. Sorting 512 indices took six launches and three fourths of the time.
    """
    count, length, pieces = load(args, BLOCK.indices), load(args, BLOCK.length), load(args, BLOCK.windows)
    unit = lo // pieces
    outer, keys = unit // count, ptr(load(args, BLOCK.keys), I)
    n, step, same = unit - outer * count, load(args, BLOCK.step), ptr(shared(BITS), U32)
    row, warp, lane = I64(load(keys, n * step)), thread() // WARP, thread() % WARP
    if row < 0 or row >= load(args, BLOCK.rows):
        return OUT_OF_RANGE
    for word in range(warp, (count + WARP - 1) // WARP, threads() // WARP):
        k = word * WARP + lane
        bits = voted(k < count and I64(load(keys, min(k, count - 1) * step)) == row)
        if lane == 0:
            store(same, word, U32(bits))
    barrier()
    for word in range(n // WARP + 1):
        before = I64(load(same, word))
        if before & ((1 << min(WARP, n - word * WARP)) - 1) != 0:
            return 0
    t = ptr(load(args, BLOCK.t), T) + (outer * load(args, BLOCK.rows) + row) * length
    v = ptr(load(args, BLOCK.v), V) + outer * load(args, BLOCK.v_outer)
    nothing, lanes = vector(t, 0), width(t)
    scale, words = number_like(nothing, number_of(args, BLOCK.scale, A)), (count + WARP - 1) // WARP
    each = (length + pieces * lanes - 1) // (pieces * lanes) * lanes
    first = (lo - unit * pieces) * each
    for i in range(first + thread() * lanes, min(length, first + each), threads() * lanes):
        left = length - i
        total = read(t, i, left, nothing)
        for word in range(n // WARP, words):
            bits = I64(load(same, word))
            while count_bits(bits) >= 4:  # rows of an index that is frequent do not wait for one another
                at = word * WARP
                p0, bits = after_lowest(bits)
                p1, bits = after_lowest(bits)
                p2, bits = after_lowest(bits)
                p3, bits = after_lowest(bits)
                a, b = of_row(args, v, at + p0, i, left, nothing), of_row(args, v, at + p1, i, left, nothing)
                c, d = of_row(args, v, at + p2, i, left, nothing), of_row(args, v, at + p3, i, left, nothing)
                total = total + a * scale + b * scale + c * scale + d * scale
            while bits != 0:
                place, bits = after_lowest(bits)
                total = total + of_row(args, v, word * WARP + place, i, left, nothing) * scale
        write(t, i, total, left)
    return 0


@jit.inline
def add_sorted(args, lo, hi, T, V, A, C, I):
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
    v = ptr(load(args, BLOCK.v), V) + outer * load(args, BLOCK.v_outer)
    t = ptr(load(args, BLOCK.t), T) + (outer * rows + row) * length
    # of a window of CHUNK places, at most one chunk is the first of its index and has more to come, and one is not
    part = outer * load(args, BLOCK.windows) + 2 * (at // CHUNK) + (1 if at == first else 0)
    parts = ptr(load(args, BLOCK.parts), C) + part * length
    nothing, lanes = vector(t, 0), width(t)
    scale = number_like(nothing, number_of(args, BLOCK.scale, A))
    for i in range(thread() * lanes, length, threads() * lanes):
        left = length - i
        total = read(t, i, left, nothing) if alone else nothing
        for place in range(at, end):
            total = total + of_row(args, v, I64(load(order, place)), i, left, nothing) * scale
        if alone:
            write(t, i, total, left)
        else:
            write(parts, i, total, left)
    return 0


OUTERS = 8  # rows of v that a thread has


@jit.inline
def add_each(args, lo, hi, T, V, A, C, I):
    """Elements [lo, hi) of t, OUTERS outer ones at a time: a thread finds its index among the sorted ones once.

    For rows of few elements, of which an index has few.
    """
    indices, rows, length = load(args, BLOCK.indices), load(args, BLOCK.rows), load(args, BLOCK.length)
    outers, keys, order = load(args, BLOCK.outer), ptr(load(args, BLOCK.keys), I), ptr(load(args, BLOCK.order), I32)
    t, v = ptr(load(args, BLOCK.t), T), ptr(load(args, BLOCK.v), V)
    v_outer, v_row, v_step = load(args, BLOCK.v_outer), load(args, BLOCK.v_row), load(args, BLOCK.v_step)
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
                    in_v = outer * v_outer + I64(load(order, place)) * v_row + column * v_step
                    total += C(load(v, in_v)) * scale
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
