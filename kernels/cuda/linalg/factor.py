"""Triangular systems: a block of threads for some columns of the right side, a lane for each, 32 rows at a time."""

from ...blocks.linalg import TRIANGULAR
from ...build import jit
from ...lang.ptx import WARP, barrier, shared, thread, threads
from ...lang.simd import load, ptr, store

ROWS = WARP  # that are solved at a time
LINE = ROWS + 1  # of the triangle in shared memory, so that neither rows nor columns meet in a bank
TRIANGLE_BYTES, FOUND_BYTES = 8 * ROWS * LINE, 8 * ROWS * WARP


@jit.inline
def solve_rows(triangle, found, count, upper, unit):
    """One warp solves `count` rows, a column for a lane: `found` has the right side, and what is found afterwards."""
    lane = thread() % WARP
    for step in range(count):
        i = count - 1 - step if upper else step
        value = load(found, i * WARP + lane)
        for before in range(step):
            j = count - 1 - before if upper else before
            value -= load(triangle, i * LINE + j) * load(found, j * WARP + lane)
        if not unit:
            value /= load(triangle, i * LINE + i)
        store(found, i * WARP + lane, value)


@jit.inline
def solve_columns(a, x, size, columns, left, upper, unit, triangle, found):
    """The first columns of x, `left` of them and a warp's at most: 32 rows, then what they leave of the others."""
    lane, warp, warps = thread() % WARP, thread() // WARP, threads() // WARP
    for n in range(0, size, ROWS):
        count = min(ROWS, size - n)
        row = size - n - count if upper else n
        for i in range(warp, count, warps):
            if lane < count:
                store(triangle, i * LINE + lane, load(a, (row + i) * size + row + lane))
            store(found, i * WARP + lane, load(x, (row + i) * columns + lane) if lane < left else 0)
        barrier()
        if warp == 0:
            solve_rows(triangle, found, count, upper, unit)
        barrier()
        first, rows = (0, row) if upper else (row + count, size - row - count)
        if lane < left:
            for i in range(warp, count, warps):
                store(x, (row + i) * columns + lane, load(found, i * WARP + lane))
            for i in range(first + warp, first + rows, warps):
                value = load(x, i * columns + lane)
                for j in range(count):
                    value -= load(a, i * size + row + j) * load(found, j * WARP + lane)
                store(x, i * columns + lane, value)
        barrier()


@jit.inline
def solve_triangular(args, lo, hi, T):
    """Item `lo` of (matrix, column): the first of a warp's columns is a block's for all, the others are nobody's."""
    size, columns = load(args, TRIANGULAR.size), load(args, TRIANGULAR.columns)
    upper, unit = load(args, TRIANGULAR.upper) != 0, load(args, TRIANGULAR.unit) != 0
    triangle, found = ptr(shared(TRIANGLE_BYTES), T), ptr(shared(FOUND_BYTES), T)
    matrix = lo // columns
    column = lo - matrix * columns
    if column % WARP == 0:
        a, x = ptr(load(args, TRIANGULAR.a), T), ptr(load(args, TRIANGULAR.x), T)
        a, x = a + matrix * size * size, x + (matrix * size * columns + column)
        solve_columns(a, x, size, columns, min(WARP, columns - column), upper, unit, triangle, found)
    return 0
