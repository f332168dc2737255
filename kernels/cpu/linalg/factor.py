"""Triangular systems, and factors of matrices by Gaussian elimination with rows exchanged."""

from numba import types

from ...blocks.linalg import CHOLESKY, DETERMINANTS, EXCHANGED, LU, OUT_OF_RANGE, SINGULAR, STEPS, TRIANGULAR
from ...build import jit
from ...lang.simd import fill, lane, load, muladd, ptr, store, vload_first, vsqrt, vstore_first
from ...lang.vmath import log
from .rows import LANES, exchange

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
            found, more = vload_first(x, row * columns, PAIR, left), fill(0, T, PAIR)
            j, last = row + 1 if upper else 0, size if upper else row
            while j + 2 <= last:  # two sums: one waits for its own result (256 x 256, 64 columns: 75 us, now 45)
                one, two = fill(-load(a, row * size + j), T, PAIR), fill(-load(a, row * size + j + 1), T, PAIR)
                found = muladd(one, vload_first(x, j * columns, PAIR, left), found)
                more = muladd(two, vload_first(x, (j + 1) * columns, PAIR, left), more)
                j += 2
            if j < last:
                factor = fill(-load(a, row * size + j), T, PAIR)
                found = muladd(factor, vload_first(x, j * columns, PAIR, left), found)
            found = found + more
            if not unit:
                found = found / load(a, row * size + row)
            vstore_first(x, row * columns, found, left)
    return 0


@jit.inline
def subtract_row(row, factor, other, first, size, T):
    """row[first:size] -= factor * other[first:size]."""
    by = fill(-factor, T, LANES)
    for j in range(first, size, LANES):
        old = vload_first(row, j, LANES, size - j)
        vstore_first(row, j, muladd(by, vload_first(other, j, LANES, size - j), old), size - j)


@jit.inline
def subtract_rows(row, factors, x, first, size, T):
    """row[first:size] -= the sum of STEPS factors times as many rows x of `size` elements."""
    f0, f1 = fill(-load(factors, 0), T, LANES), fill(-load(factors, 1), T, LANES)
    f2, f3 = fill(-load(factors, 2), T, LANES), fill(-load(factors, 3), T, LANES)
    f4, f5 = fill(-load(factors, 4), T, LANES), fill(-load(factors, 5), T, LANES)
    f6, f7 = fill(-load(factors, 6), T, LANES), fill(-load(factors, 7), T, LANES)
    for j in range(first, size, LANES):
        left = size - j
        found = muladd(f0, vload_first(x, j, LANES, left), vload_first(row, j, LANES, left))
        found = muladd(f1, vload_first(x, size + j, LANES, left), found)
        found = muladd(f2, vload_first(x, 2 * size + j, LANES, left), found)
        found = muladd(f3, vload_first(x, 3 * size + j, LANES, left), found)
        found = muladd(f4, vload_first(x, 4 * size + j, LANES, left), found)
        found = muladd(f5, vload_first(x, 5 * size + j, LANES, left), found)
        found = muladd(f6, vload_first(x, 6 * size + j, LANES, left), found)
        found = muladd(f7, vload_first(x, 7 * size + j, LANES, left), found)
        vstore_first(row, j, found, left)


@jit.inline
def take_panel(a, panel, height, width, columns):
    """The first `width` columns of rows of `columns`, one behind the other."""
    for i in range(height):
        for c in range(width):
            store(panel, c * height + i, load(a, i * columns + c))


@jit.inline
def put_panel(a, panel, height, width, columns):
    for i in range(height):
        for c in range(width):
            store(a, i * columns + c, load(panel, c * height + i))


@jit.inline
def eliminate(a, pivots, panel, first, last, rows, columns, exchanging, T):
    """Steps [first, last) within their own columns, below which they leave factors; whether one was all zeros.

    Without `exchanging`, whether a pivot was not positive.
    """
    height, width, failed = rows - first, last - first, False
    take_panel(a + (first * columns + first), panel, height, width, columns)
    for s in range(width):
        column = panel + s * height
        best, at = load(column, s), s
        if exchanging:
            best = abs(best)
            for i in range(s + 1, height):
                size = abs(load(column, i))
                if not size <= best:  # also NaN
                    best, at = size, i
            store(pivots, first + s, first + at + 1)
        if not (best > 0 or (exchanging and best != 0)):
            failed = True
            continue
        if at != s:
            exchange(a + (first + at) * columns, a + (first + s) * columns, columns)
            for c in range(width):
                one, other = load(panel, c * height + s), load(panel, c * height + at)
                store(panel, c * height + s, other)
                store(panel, c * height + at, one)
        pivot = load(column, s)
        for i in range(s + 1, height, LANES):
            vstore_first(column, i, vload_first(column, i, LANES, height - i) / pivot, height - i)
        for c in range(s + 1, width):
            subtract_row(panel + c * height, load(panel, c * height + s), column, s + 1, height, T)
    put_panel(a + (first * columns + first), panel, height, width, columns)
    return failed


@jit.inline
def factor(a, pivots, panel, rows, columns, exchanging, stopping, T):
    """L and U in the place of a matrix, STEPS at a time: first their columns, then their rows, then all that is left,
    which reads each row once (256 x 256: 0.13 ms, step by step 0.5). False if it stopped at a step that failed.
    """
    steps = min(rows, columns)
    for first in range(0, steps, STEPS):
        last = min(first + STEPS, steps)
        if eliminate(a, pivots, panel, first, last, rows, columns, exchanging, T) and stopping:
            return False
        top = a + first * columns
        for i in range(first + 1, last):
            row = a + i * columns
            for k in range(first, i):
                subtract_row(row, load(row, k), a + k * columns, last, columns, T)
        for i in range(last, rows):
            row = a + i * columns
            if last - first == STEPS:
                subtract_rows(row, row + first, top, last, columns, T)
            else:
                for k in range(first, last):
                    subtract_row(row, load(row, k), a + k * columns, last, columns, T)
    return True


@jit.inline
def lu_factor(args, lo, hi, T):
    """Matrices [lo, hi): the largest element of a column becomes its pivot."""
    rows, columns, stopping = load(args, LU.rows), load(args, LU.columns), load(args, LU.singular) == 0
    for matrix in range(lo, hi):
        a = ptr(load(args, LU.a), T) + matrix * rows * columns
        pivots = ptr(load(args, LU.pivots), I32) + matrix * min(rows, columns)
        panel = ptr(load(args, LU.panels), T) + matrix * rows * STEPS
        if not factor(a, pivots, panel, rows, columns, True, stopping, T):
            return SINGULAR
    return 0


@jit.inline
def cholesky(args, lo, hi, T):
    """Symmetric matrices [lo, hi), of which the lower (or `upper`) triangle is read, become their factors L."""
    size, upper = load(args, CHOLESKY.size), load(args, CHOLESKY.upper) != 0
    for matrix in range(lo, hi):
        a = ptr(load(args, CHOLESKY.a), T) + matrix * size * size
        panel = ptr(load(args, CHOLESKY.panels), T) + matrix * size * STEPS
        for i in range(size):
            for j in range(i):
                if upper:
                    store(a, i * size + j, load(a, j * size + i))
                else:
                    store(a, j * size + i, load(a, i * size + j))
        if not factor(a, ptr(0, I32), panel, size, size, False, True, T):
            return SINGULAR
        for i in range(size):
            store(panel, i, vsqrt(load(a, i * size + i)))  # of the pivots
        for i in range(size):
            row = a + i * size
            for j in range(0, i, LANES):
                vstore_first(row, j, vload_first(row, j, LANES, i - j) * vload_first(panel, j, LANES, i - j), i - j)
            store(row, i, load(panel, i))
            for j in range(i + 1, size, LANES):
                vstore_first(row, j, fill(0, T, LANES), size - j)
    return 0


@jit.inline
def exchanged(args, lo, hi, T):
    """Matrices [lo, hi) with the rows exchanged as elimination did, or undone; of `eye`, those of the identity."""
    size, columns, steps = load(args, EXCHANGED.size), load(args, EXCHANGED.columns), load(args, EXCHANGED.steps)
    eye, back = load(args, EXCHANGED.eye) != 0, load(args, EXCHANGED.back) != 0
    for matrix in range(lo, hi):
        x = ptr(load(args, EXCHANGED.x), T) + matrix * size * columns
        pivots = ptr(load(args, EXCHANGED.pivots), I32) + matrix * steps
        if eye:
            for i in range(size * columns):
                store(x, i, 0)
            for i in range(size):
                store(x, i * columns + i, 1)
        for i in range(steps):
            k = steps - 1 - i if back else i
            other = load(pivots, k) - 1
            if other < 0 or other >= size:
                return OUT_OF_RANGE
            if other != k:
                exchange(x + k * columns, x + other * columns, columns)
    return 0


@jit.inline
def determinants(args, lo, hi, T):
    """Of factors [lo, hi): the determinants, or their signs and the logarithms of their magnitudes."""
    size, logs = load(args, DETERMINANTS.size), load(args, DETERMINANTS.logs) != 0
    for matrix in range(lo, hi):
        a = ptr(load(args, DETERMINANTS.a), T) + matrix * size * size
        pivots = ptr(load(args, DETERMINANTS.pivots), I32) + matrix * size
        found, total = T(1), fill(0, T, LANES)
        for k in range(size):
            value = load(a, k * size + k)
            if load(pivots, k) != k + 1:
                found = -found
            if logs:
                found = found * (1 if value > 0 else (-1 if value < 0 else value))  # 0 and NaN as they are
                total = total + log(fill(abs(value), T, LANES))
            else:
                found = found * value
        store(ptr(load(args, DETERMINANTS.y), T), matrix, found)
        if logs:
            store(ptr(load(args, DETERMINANTS.logarithms), T), matrix, lane(total, 0))
    return 0
