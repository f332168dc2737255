"""Counts of few kinds: in shared memory, as many for each kind as it has room for, then added to memory."""

from numba import types

from ...blocks.array import BIN_COUNTS
from ...blocks.cuda import COUNTED
from ...build import jit
from ...cpu.array.bins import ends
from ...cpu.array.scatter import OUT_OF_RANGE
from ...lang.ptx import barrier, block, blocks, shared, thread, threads
from ...lang.simd import load, ptr, store
from ..atomics import add_to, add_word
from ..plans.indexed import ROOM

I32, I64 = types.int32, types.int64
ROOM_BYTES = 4 * ROOM


@jit.inline
def cleared(room):
    """The block's counts, `room` of them."""
    table = ptr(shared(ROOM_BYTES), I32)
    for i in range(thread(), room, threads()):
        store(table, i, I32(0))
    barrier()
    return table


@jit.inline
def total_of(table, cell, copies):
    """All counts of a kind."""
    total = 0
    for k in range(copies):
        total += I64(load(table, cell * copies + k))
    return total


@jit.inline
def index_at(index, place, step, cells):
    """(an index, or 0; whether it is one of a cell)."""
    at = I64(load(index, place * step))
    there = 0 <= at < cells
    return at if there else 0, there


@jit.inline
def count(args, lo, hi, T, V, I):
    """t[index * t_k] += v for all indices: v times how often there is each. Neighbours count in copies of their own."""
    t, index, v = ptr(load(args, COUNTED.t), T), ptr(load(args, COUNTED.index), I), ptr(load(args, COUNTED.v), V)
    cells, copies, step, each = (
        load(args, COUNTED.cells),
        load(args, COUNTED.copies),
        load(args, COUNTED.step),
        threads(),
    )
    table, own, status, step = cleared(cells * copies), thread() % copies, 0, load(args, COUNTED.step)
    for first in range(block() * (4 * each) + thread(), hi, blocks() * (4 * each)):
        k0, ok0 = index_at(index, first, step, cells)
        k1, ok1 = index_at(index, min(first + each, hi - 1), step, cells)
        k2, ok2 = index_at(index, min(first + 2 * each, hi - 1), step, cells)
        k3, ok3 = index_at(index, min(first + 3 * each, hi - 1), step, cells)
        if not (ok0 and ok1 and ok2 and ok3):
            status = OUT_OF_RANGE
        if ok0:
            add_word(table, k0 * copies + own, 1)
        if ok1 and first + each < hi:
            add_word(table, k1 * copies + own, 1)
        if ok2 and first + 2 * each < hi:
            add_word(table, k2 * copies + own, 1)
        if ok3 and first + 3 * each < hi:
            add_word(table, k3 * copies + own, 1)
    barrier()
    for cell in range(thread(), cells, each):
        total = total_of(table, cell, copies)
        if total > 0:
            add_to(t, cell * load(args, COUNTED.t_k), load(v, 0) * total)
    return status


@jit.inline
def bin_of(v, edges, bins):
    """The bin of an element, or -1."""
    low, width, many, high = edges
    if v >= low and v <= high:
        return min(I64((v - low) / width * many), bins - 1)
    return -1


@jit.inline
def counted(table, y, at, there, place, SHARED):
    """Count one more in a bin, if that is one."""
    if at >= 0 and there:
        if SHARED:
            add_word(table, at * place[0] + place[1], 1)
        else:
            add_word(y, at, 1)


@jit.inline
def bins(args, lo, hi, T, SHARED):
    """Elements in equal intervals; where the counts have no room in shared memory (not `SHARED`), they are in y."""
    x, y, each = ptr(load(args, BIN_COUNTS.x), T), ptr(load(args, BIN_COUNTS.y), I64), threads()
    number, copies, edges = load(args, BIN_COUNTS.bins), load(args, BIN_COUNTS.copies), ends(args, T)
    place = copies, thread() % copies
    table = cleared(number * copies) if SHARED else ptr(load(args, BIN_COUNTS.y), I32)
    for first in range(block() * (8 * each) + thread(), hi, blocks() * (8 * each)):
        v0, v1 = load(x, first), load(x, min(first + each, hi - 1))
        v2, v3 = load(x, min(first + 2 * each, hi - 1)), load(x, min(first + 3 * each, hi - 1))
        v4, v5 = load(x, min(first + 4 * each, hi - 1)), load(x, min(first + 5 * each, hi - 1))
        v6, v7 = load(x, min(first + 6 * each, hi - 1)), load(x, min(first + 7 * each, hi - 1))
        counted(table, y, bin_of(v0, edges, number), True, place, SHARED)
        counted(table, y, bin_of(v1, edges, number), first + each < hi, place, SHARED)
        counted(table, y, bin_of(v2, edges, number), first + 2 * each < hi, place, SHARED)
        counted(table, y, bin_of(v3, edges, number), first + 3 * each < hi, place, SHARED)
        counted(table, y, bin_of(v4, edges, number), first + 4 * each < hi, place, SHARED)
        counted(table, y, bin_of(v5, edges, number), first + 5 * each < hi, place, SHARED)
        counted(table, y, bin_of(v6, edges, number), first + 6 * each < hi, place, SHARED)
        counted(table, y, bin_of(v7, edges, number), first + 7 * each < hi, place, SHARED)
    if SHARED:
        barrier()
        for cell in range(thread(), number, each):
            total = total_of(table, cell, copies)
            if total > 0:
                add_word(y, cell, total)
    return 0
