"""Triangular systems, and factors of matrices by Gaussian elimination with rows exchanged."""

from numba import types

from ...blocks.linalg import CHOLESKY, DETERMINANTS, EXCHANGED, LU, OUT_OF_RANGE, SINGULAR, STEPS, STRIP, TRIANGULAR
from ...build import jit
from ...lang.shuffle import transpose_tile
from ...lang.simd import (
    fill,
    lane,
    load,
    muladd,
    ptr,
    reduce_max,
    stack,
    store,
    vabs,
    vload,
    vload_first,
    vmax,
    vsqrt,
    vstore,
    vstore_first,
)
from ...lang.vmath import log
from .rows import LANES, exchange

PAIR = 2 * LANES
BLOCK = 32  # columns that are eliminated before those behind them change
PACKED_BYTES = BLOCK * PAIR * 8
I32 = types.int32


@jit.inline
def less(x, stride, a, a_stride, b, count, height, left, T):
    """Four rows of x less the products of rows of a [height, count] and b [count, PAIR], in registers: each vector of b
    is loaded for four rows. Rows beyond `height` repeat the last one; `left` columns of x exist.
    """
    r1, r2, r3 = min(1, height - 1), min(2, height - 1), min(3, height - 1)
    a1, a2, a3 = a + r1 * a_stride, a + r2 * a_stride, a + r3 * a_stride
    s0, s1, s2, s3 = fill(0, T, PAIR), fill(0, T, PAIR), fill(0, T, PAIR), fill(0, T, PAIR)
    for k in range(count):  # sums are subtracted behind: negated factors would not come from memory in all lanes
        row = vload(b, k * PAIR, PAIR)
        s0, s1 = muladd(fill(load(a, k), T, PAIR), row, s0), muladd(fill(load(a1, k), T, PAIR), row, s1)
        s2, s3 = muladd(fill(load(a2, k), T, PAIR), row, s2), muladd(fill(load(a3, k), T, PAIR), row, s3)
    s0, s1 = vload_first(x, 0, PAIR, left) - s0, vload_first(x, r1 * stride, PAIR, left) - s1
    s2, s3 = vload_first(x, r2 * stride, PAIR, left) - s2, vload_first(x, r3 * stride, PAIR, left) - s3
    return s0, s1, s2, s3


@jit.inline
def subtract_products(x, stride, rows, a, a_stride, b, count, left, T):
    """Rows of x, of which `left` columns exist, less the products of rows of a [rows, count] and b [count, PAIR]."""
    for i in range(0, rows, 4):
        y, height = x + i * stride, min(4, rows - i)
        s0, s1, s2, s3 = less(y, stride, a + i * a_stride, a_stride, b, count, height, left, T)
        vstore_first(y, 0, s0, left)
        vstore_first(y, min(1, height - 1) * stride, s1, left)
        vstore_first(y, min(2, height - 1) * stride, s2, left)
        vstore_first(y, min(3, height - 1) * stride, s3, left)


@jit.inline
def take(found, by, other, T):
    return muladd(fill(-by, T, PAIR), other, found)


@jit.inline
def substitute(a, a_stride, x, size, upper, unit, T):
    """Solve a X = x [size, PAIR] in place, four rows at a time from the first (or last) one."""
    whole = size // 4 * 4
    for n in range(0, whole, 4):
        row = size - 4 - n if upper else n
        first = row + 4 if upper else 0
        y, c = x + row * PAIR, a + (row * a_stride + row)
        s0, s1, s2, s3 = less(y, PAIR, a + (row * a_stride + first), a_stride, x + first * PAIR, n, 4, PAIR, T)
        c1, c2, c3 = c + a_stride, c + 2 * a_stride, c + 3 * a_stride
        if upper:
            s3 = s3 if unit else s3 / load(c3, 3)
            s2 = take(s2, load(c2, 3), s3, T)
            s2 = s2 if unit else s2 / load(c2, 2)
            s1 = take(take(s1, load(c1, 3), s3, T), load(c1, 2), s2, T)
            s1 = s1 if unit else s1 / load(c1, 1)
            s0 = take(take(take(s0, load(c, 3), s3, T), load(c, 2), s2, T), load(c, 1), s1, T)
            s0 = s0 if unit else s0 / load(c, 0)
        else:
            s0 = s0 if unit else s0 / load(c, 0)
            s1 = take(s1, load(c1, 0), s0, T)
            s1 = s1 if unit else s1 / load(c1, 1)
            s2 = take(take(s2, load(c2, 0), s0, T), load(c2, 1), s1, T)
            s2 = s2 if unit else s2 / load(c2, 2)
            s3 = take(take(take(s3, load(c3, 0), s0, T), load(c3, 1), s1, T), load(c3, 2), s2, T)
            s3 = s3 if unit else s3 / load(c3, 3)
        vstore(y, 0, s0)
        vstore(y, PAIR, s1)
        vstore(y, 2 * PAIR, s2)
        vstore(y, 3 * PAIR, s3)
    for n in range(whole, size):
        row = size - 1 - n if upper else n
        found = vload(x, row * PAIR, PAIR)
        for j in range(row + 1 if upper else 0, size if upper else row):
            found = take(found, load(a, row * a_stride + j), vload(x, j * PAIR, PAIR), T)
        if not unit:
            found = found / load(a, row * a_stride + row)
        vstore(x, row * PAIR, found)


@jit.inline
def solve_block(a, a_stride, x, stride, count, left, upper, unit, T):
    """Solve a X = x in place for up to BLOCK rows of up to PAIR columns, and give them packed.

    They are laid side by side for it: lines of 256 floats apart push each other out of the first-level cache, and what
    was stored under a mask could not be loaded at once.
    """
    packed = ptr(stack(PACKED_BYTES), T)
    for k in range(count):
        vstore(packed, k * PAIR, vload_first(x, k * stride, PAIR, left))
    substitute(a, a_stride, packed, count, upper, unit, T)
    for k in range(count):
        vstore_first(x, k * stride, vload(packed, k * PAIR, PAIR), left)
    return packed


@jit.inline
def solve_triangular(args, lo, hi, T):
    """Units [lo, hi) of (matrix, PAIR columns): BLOCK rows, then what they leave of the others (256 x 256, 64 columns:
    26 us, row by row 45).
    """
    size, columns = load(args, TRIANGULAR.size), load(args, TRIANGULAR.columns)
    upper, unit = load(args, TRIANGULAR.upper) != 0, load(args, TRIANGULAR.unit) != 0
    blocks = (columns + PAIR - 1) // PAIR
    for item in range(lo, hi):
        matrix = item // blocks
        column = (item - matrix * blocks) * PAIR
        left = columns - column
        a = ptr(load(args, TRIANGULAR.a), T) + matrix * size * size
        x = ptr(load(args, TRIANGULAR.x), T) + (matrix * size * columns + column)
        for n in range(0, size, BLOCK):
            count = min(BLOCK, size - n)
            row = size - n - count if upper else n
            found = solve_block(a + (row * size + row), size, x + row * columns, columns, count, left, upper, unit, T)
            first, rows = (0, row) if upper else (row + count, size - row - count)
            subtract_products(x + first * columns, columns, rows, a + (first * size + row), size, found, count, left, T)
    return 0


@jit.inline
def subtract_row(row, factor, other, first, size, T):
    """row[first:size] -= factor * other[first:size]."""
    by = fill(-factor, T, LANES)
    for j in range(first, size, LANES):
        old = vload_first(row, j, LANES, size - j)
        vstore_first(row, j, muladd(by, vload_first(other, j, LANES, size - j), old), size - j)


@jit.inline
def take_panel(a, panel, height, width, columns):
    """The first `width` columns of rows of `columns`, one behind the other."""
    i = 0
    while width == STEPS and i + STEPS <= height:
        transpose_tile(panel + i, height, a + i * columns, columns, STEPS)
        i += STEPS
    for n in range(i, height):
        for c in range(width):
            store(panel, c * height + n, load(a, n * columns + c))


@jit.inline
def put_panel(a, panel, height, width, columns):
    i = 0
    while width == STEPS and i + STEPS <= height:
        transpose_tile(a + i * columns, columns, panel + i, height, STEPS)
        i += STEPS
    for n in range(i, height):
        for c in range(width):
            store(a, n * columns + c, load(panel, c * height + n))


@jit.inline
def largest(x, first, size, T):
    """Where the first largest magnitude of x[first:size] is; NaN is larger than all."""
    most = fill(0, T, LANES)
    for i in range(first, size, LANES):
        most = vmax(most, vabs(vload_first(x, i, LANES, size - i)))
    best = reduce_max(most)
    for i in range(first, size, LANES):
        here = vabs(vload_first(x, i, LANES, size - i))
        if reduce_max(here) == best or best != best:
            for k in range(i, min(i + LANES, size)):
                if not abs(load(x, k)) < best:
                    return k
    return first


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
            at = largest(column, s, height, T)
            best = abs(load(column, at))
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
def follow(a, columns, rows, first, last, end, T):
    """What steps [first, last) make of the columns behind them, up to `end`."""
    for j in range(last, end, PAIR):
        left, top = end - j, a + (first * columns + j)
        found = solve_block(a + (first * columns + first), columns, top, columns, last - first, left, False, True, T)
        x, below = a + (last * columns + j), a + (last * columns + first)
        subtract_products(x, columns, rows - last, below, columns, found, last - first, left, T)


@jit.inline
def factor(a, pivots, panel, rows, columns, exchanging, stopping, T):
    """L and U in the place of a matrix, BLOCK columns at a time, and of these STEPS: first their columns, then the rows
    beside them, then all that is left (256 x 256: 0.15 ms, step by step 0.5). False if it stopped at a failed step.
    """
    steps = min(rows, columns)
    for first in range(0, steps, BLOCK):
        end = min(first + BLOCK, steps)
        for at in range(first, end, STEPS):
            last = min(at + STEPS, end)
            if eliminate(a, pivots, panel, at, last, rows, columns, exchanging, T) and stopping:
                return False
            follow(a, columns, rows, at, last, end, T)
        follow(a, columns, rows, first, end, columns, T)
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
    """Units [lo, hi) of (matrix, STRIP columns) with the rows exchanged as elimination did, or undone; of `eye`, those
    of the identity."""
    size, columns, steps = load(args, EXCHANGED.size), load(args, EXCHANGED.columns), load(args, EXCHANGED.steps)
    eye, back = load(args, EXCHANGED.eye) != 0, load(args, EXCHANGED.back) != 0
    strips = (columns + STRIP - 1) // STRIP
    for unit in range(lo, hi):
        matrix = unit // strips
        begin = (unit - matrix * strips) * STRIP
        width = min(STRIP, columns - begin)
        x = ptr(load(args, EXCHANGED.x), T) + (matrix * size * columns + begin)
        pivots = ptr(load(args, EXCHANGED.pivots), I32) + matrix * steps
        if eye:
            for i in range(size):
                for j in range(width):
                    store(x, i * columns + j, 1 if i == begin + j else 0)
        for i in range(steps):
            k = steps - 1 - i if back else i
            other = load(pivots, k) - 1
            if other < 0 or other >= size:
                return OUT_OF_RANGE
            if other != k:
                exchange(x + k * columns, x + other * columns, width)
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
