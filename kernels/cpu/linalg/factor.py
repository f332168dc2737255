"""Triangular systems, and factors of matrices by Gaussian elimination with rows exchanged."""

from numba import types

from ...blocks.linalg import LU, SINGULAR, TRIANGULAR
from ...build import isa, jit
from ...lang.simd import fill, load, muladd, ptr, store, vload_first, vstore_first

LANES = isa.lanes()
PAIR = 2 * LANES
I32 = types.int32


@jit.inline
def solve_triangular(args, lo, hi, T):
    """Units [lo, hi) of (matrix, PAIR columns), row by row from the first (or last) one."""
    size, columns = load(args, TRIANGULAR.size), load(args, TRIANGULAR.columns)
    upper, unit = load(args, TRIANGULAR.upper) != 0, load(args, TRIANGULAR.unit) != 0
    blocks = (columns + PAIR - 1) // PAIR
    for item in range(lo, hi):
        matrix = item // blocks
        column = (item - matrix * blocks) * PAIR
        left = columns - column
        a = ptr(load(args, TRIANGULAR.a), T) + matrix * size * size
        x = ptr(load(args, TRIANGULAR.x), T) + (matrix * size * columns + column)
        for i in range(size):
            row = size - 1 - i if upper else i
            found = vload_first(x, row * columns, PAIR, left)
            for j in range(row + 1 if upper else 0, size if upper else row):
                factor = fill(-load(a, row * size + j), T, PAIR)
                found = muladd(factor, vload_first(x, j * columns, PAIR, left), found)
            if not unit:
                found = found / load(a, row * size + row)
            vstore_first(x, row * columns, found, left)
    return 0


@jit.inline
def exchange(x, y, size):
    """Exchange two rows."""
    for i in range(0, size, LANES):
        a, b = vload_first(x, i, LANES, size - i), vload_first(y, i, LANES, size - i)
        vstore_first(x, i, b, size - i)
        vstore_first(y, i, a, size - i)


@jit.inline
def lu_factor(args, lo, hi, T):
    """Matrices [lo, hi): the largest element of a column becomes its pivot."""
    rows, columns = load(args, LU.rows), load(args, LU.columns)
    steps = min(rows, columns)
    for matrix in range(lo, hi):
        a, pivots = ptr(load(args, LU.a), T) + matrix * rows * columns, ptr(load(args, LU.pivots), I32) + matrix * steps
        for k in range(steps):
            best, at = abs(load(a, k * columns + k)), k
            for i in range(k + 1, rows):
                size = abs(load(a, i * columns + k))
                if size > best:
                    best, at = size, i
            store(pivots, k, at + 1)
            if best == 0:
                return SINGULAR
            if at != k:
                exchange(a + at * columns, a + k * columns, columns)
            pivot_row, first = a + k * columns, k + 1
            for i in range(k + 1, rows):
                row = a + i * columns
                factor = load(row, k) / load(pivot_row, k)
                store(row, k, factor)
                for j in range(first, columns, LANES):
                    left = columns - j
                    old = vload_first(row, j, LANES, left)
                    new = muladd(fill(-factor, T, LANES), vload_first(pivot_row, j, LANES, left), old)
                    vstore_first(row, j, new, left)
    return 0
