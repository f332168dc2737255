"""Singular values and eigenvalues of small matrices by rotations of two rows at a time (Jacobi).

Rows lie in the first-level cache, and a rotation is a pass over two of them, so 8 x 8 takes a few microseconds where
LAPACK's bidiagonal and tridiagonal forms take ten. Singular values: Hestenes, "Inversion of matrices by
biorthogonalization and related results", 1958; eigenvalues: Golub and Van Loan, "Matrix Computations", 8.5.
"""

from numba import types

from ...blocks.linalg import NOT_FINITE, PSEUDO, RANKS, SINGULAR_VALUES, SYMMETRIC
from ...build import jit
from ...lang.shuffle import transpose_tile
from ...lang.simd import bitcast, fill, load, ptr, reduce_max, store, vabs, vload_first, vmax, vstore_first
from .rows import LANES, add_scaled, dot, exchange, identity, root, rotate, scale

F64, I64 = types.float64, types.int64
SWEEPS = 40  # over all pairs of rows; 5 to 9 are enough of what has been seen, of 32 rows as well


@jit.inline
def tangent(gap, twice, T):
    """The smaller tangent of the rotation that takes `twice` / 2 away between two values `gap` apart."""
    zeta = gap / twice
    t = T(1) / (abs(zeta) + root(T(1) + zeta * zeta, T))
    return t if zeta >= 0 else -t


@jit.inline
def scaled(x, count, T):
    """Divide `count` elements by their largest magnitude, so that squares neither overflow nor vanish; that magnitude,
    1 of zeros, NaN where one is not finite.
    """
    most = fill(0, T, LANES)
    for i in range(0, count, LANES):
        most = vmax(most, vabs(vload_first(x, i, LANES, count - i)))
    most = reduce_max(most)
    if most - most != 0:
        return most - most
    if most == 0:
        return T(1)
    for i in range(0, count, LANES):
        vstore_first(x, i, vload_first(x, i, LANES, count - i) / most, count - i)
    return most


@jit.inline
def orthogonalise(w, turned, squares, least, longer, vectors, eps, T):
    """Rotate the `least` rows of w until they are orthogonal, and with `vectors` the rows of `turned` as well.

    Rows that rounding alone has left, shorter than an epsilon of the largest element, stay as they are. Pairs come as
    in a tournament, so that a rotation does not wait for the one before it (128 rows: 2 ms, one row after the other 6).
    """
    void = eps * eps / 4096
    bound = eps * eps * longer  # of squared cosines: what rounding makes of a product of two rows
    others = least - 1 + least % 2
    for _ in range(SWEEPS):
        done = True
        for p in range(least):
            store(squares, p, dot(w + p * longer, w + p * longer, longer, T))
        for turn in range(others):
            for k in range((others + 1) // 2):
                p = turn + k if turn + k < others else turn + k - others
                q = turn - k if turn >= k else turn - k + others
                q = others if k == 0 else q
                if max(p, q) < least:
                    p, q = min(p, q), max(p, q)
                    x, y = w + p * longer, w + q * longer
                    inner, one, other = dot(x, y, longer, T), load(squares, p), load(squares, q)
                    if inner * inner > bound * one * other and one > void and other > void:
                        done = False
                        t = tangent(other - one, 2 * inner, T)
                        c = T(1) / root(T(1) + t * t, T)
                        store(squares, p, one - t * inner)
                        store(squares, q, other + t * inner)
                        rotate(x, y, c, t * c, longer, T)
                        if vectors:
                            rotate(turned + p * least, turned + q * least, c, t * c, least, T)
        if done:
            break


@jit.inline
def complete(w, k, size, T):
    """Make row k of w a unit vector that is orthogonal to the k rows before it."""
    row = w + k * size
    for j in range(0, size, LANES):
        total = fill(0, T, LANES)
        for i in range(k):
            x = vload_first(w, i * size + j, LANES, size - j)
            total = total + x * x
        vstore_first(row, j, total, size - j)
    at = 0
    for j in range(1, size):  # the unit vector that is the farthest from those rows
        if load(row, j) < load(row, at):
            at = j
    for j in range(size):
        store(row, j, 1 if j == at else 0)
    for _ in range(2):  # once would leave the rounding of a difference
        for i in range(k):
            add_scaled(row, w + i * size, -dot(row, w + i * size, size, T), size, T)
    scale(row, T(1) / root(dot(row, row, size, T), T), size, T)


@jit.inline
def transpose_into(y, x, rows, columns):
    """y [columns, rows] from x [rows, columns]."""
    i = 0
    while i + 8 <= rows:
        j = 0
        while j + 8 <= columns:
            transpose_tile(y + (j * rows + i), rows, x + (i * columns + j), columns, 8)
            j += 8
        for k in range(j, columns):
            for n in range(i, i + 8):
                store(y, k * rows + n, load(x, n * columns + k))
        i += 8
    for n in range(i, rows):
        for k in range(columns):
            store(y, k * rows + n, load(x, n * columns + k))


@jit.inline
def copy_into(y, x, count):
    for i in range(0, count, LANES):
        vstore_first(y, i, vload_first(x, i, LANES, count - i), count - i)


@jit.inline
def singular_values(args, lo, hi, T):
    """Matrices [lo, hi): singular values in falling order, and both sides' vectors.

    The columns of a tall matrix, or the rows of a wide one, are turned until they are orthogonal: what turned them
    are the vectors of the shorter side, their lengths the values, their directions the vectors of the longer side.
    """
    rows, columns = load(args, SINGULAR_VALUES.rows), load(args, SINGULAR_VALUES.columns)
    full, vectors = load(args, SINGULAR_VALUES.full), load(args, SINGULAR_VALUES.vectors) != 0
    eps = T(bitcast(load(args, SINGULAR_VALUES.eps), F64))
    least, longer, tall = min(rows, columns), max(rows, columns), rows >= columns
    for matrix in range(lo, hi):
        a = ptr(load(args, SINGULAR_VALUES.a), T) + matrix * rows * columns
        w = ptr(load(args, SINGULAR_VALUES.moved), T) + matrix * full * longer
        turned = ptr(load(args, SINGULAR_VALUES.turned), T) + matrix * least * least
        s = ptr(load(args, SINGULAR_VALUES.s), T) + matrix * least
        if tall:
            transpose_into(w, a, rows, columns)
        else:
            copy_into(w, a, rows * columns)
        most = scaled(w, rows * columns, T)
        if most != most:
            return NOT_FINITE
        if vectors:
            identity(turned, least, T)
        orthogonalise(w, turned, s, least, longer, vectors, eps, T)
        for k in range(least):
            store(s, k, root(dot(w + k * longer, w + k * longer, longer, T), T))
        for k in range(least):
            at = k
            for i in range(k + 1, least):
                if load(s, i) > load(s, at):
                    at = i
            if at != k:
                value = load(s, k)
                store(s, k, load(s, at))
                store(s, at, value)
                if vectors:
                    exchange(w + k * longer, w + at * longer, longer)
                    exchange(turned + k * least, turned + at * least, least)
        if vectors:
            for k in range(full):
                if k < least and load(s, k) > eps / 64:
                    scale(w + k * longer, T(1) / load(s, k), longer, T)
                else:
                    complete(w, k, longer, T)
            y, z = ptr(load(args, SINGULAR_VALUES.y), T), ptr(load(args, SINGULAR_VALUES.z), T)
            if tall:
                transpose_into(y + matrix * rows * full, w, full, rows)
                copy_into(z + matrix * least * columns, turned, least * columns)
            else:
                transpose_into(y + matrix * rows * least, turned, least, rows)
                copy_into(z + matrix * full * columns, w, full * columns)
        scale(s, most, least, T)
    return 0


@jit.inline
def diagonalise(w, turned, size, vectors, eps, T):
    """Rotate rows and columns of a symmetric matrix until its diagonal is all that is left."""
    for _ in range(SWEEPS):
        done = True
        for p in range(size - 1):
            for q in range(p + 1, size):
                side = load(w, p * size + q)
                if abs(side) > eps / 8:
                    done = False
                    one, other = load(w, p * size + p), load(w, q * size + q)
                    t = tangent(other - one, 2 * side, T)
                    c = T(1) / root(T(1) + t * t, T)
                    rotate(w + p * size, w + q * size, c, t * c, size, T)
                    for k in range(size):
                        store(w, k * size + p, load(w, p * size + k))
                        store(w, k * size + q, load(w, q * size + k))
                    store(w, p * size + p, one - t * side)
                    store(w, q * size + q, other + t * side)
                    store(w, p * size + q, 0)
                    store(w, q * size + p, 0)
                    if vectors:
                        rotate(turned + p * size, turned + q * size, c, t * c, size, T)
        if done:
            break


@jit.inline
def symmetric(args, lo, hi, T):
    """Symmetric matrices [lo, hi), of which the lower (or `upper`) triangle is read: eigenvalues in rising order, and
    vectors.
    """
    size, upper = load(args, SYMMETRIC.size), load(args, SYMMETRIC.upper) != 0
    vectors, eps = load(args, SYMMETRIC.vectors) != 0, T(bitcast(load(args, SYMMETRIC.eps), F64))
    for matrix in range(lo, hi):
        a = ptr(load(args, SYMMETRIC.a), T) + matrix * size * size
        w = ptr(load(args, SYMMETRIC.moved), T) + matrix * size * size
        turned = ptr(load(args, SYMMETRIC.turned), T) + matrix * size * size
        s = ptr(load(args, SYMMETRIC.s), T) + matrix * size
        for i in range(size):
            for j in range(i + 1):
                value = load(a, j * size + i) if upper else load(a, i * size + j)
                store(w, i * size + j, value)
                store(w, j * size + i, value)
        most = scaled(w, size * size, T)
        if most != most:
            return NOT_FINITE
        if vectors:
            identity(turned, size, T)
        diagonalise(w, turned, size, vectors, eps, T)
        for k in range(size):
            store(s, k, load(w, k * size + k))
        for k in range(size):
            at = k
            for i in range(k + 1, size):
                if load(s, i) < load(s, at):
                    at = i
            if at != k:
                value = load(s, k)
                store(s, k, load(s, at))
                store(s, at, value)
                if vectors:
                    exchange(turned + k * size, turned + at * size, size)
        if vectors:
            transpose_into(ptr(load(args, SYMMETRIC.y), T) + matrix * size * size, turned, size, size)
        scale(s, most, size, T)
    return 0


@jit.inline
def pseudo_inverse(args, lo, hi, T):
    """Of decompositions [lo, hi): pseudo-inverses [columns, rows]; values up to the bound count as 0."""
    rows, columns, least = load(args, PSEUDO.rows), load(args, PSEUDO.columns), load(args, PSEUDO.least)
    rtol, atol = bitcast(load(args, PSEUDO.rtol), F64), bitcast(load(args, PSEUDO.atol), F64)
    for matrix in range(lo, hi):
        y = ptr(load(args, PSEUDO.y), T) + matrix * rows * least
        s = ptr(load(args, PSEUDO.s), T) + matrix * least
        z = ptr(load(args, PSEUDO.z), T) + matrix * least * columns
        out = ptr(load(args, PSEUDO.out), T) + matrix * rows * columns
        share = ptr(load(args, PSEUDO.shares), T) + matrix * least
        bound = max(atol, rtol * load(s, 0))
        for c in range(columns):
            for k in range(least):
                value = load(s, k)
                store(share, k, load(z, k * columns + c) / value if value > bound else 0)
            for r in range(rows):
                store(out, c * rows + r, dot(share, y + r * least, least, T))
    return 0


@jit.inline
def ranks(args, lo, hi, T):
    """How many of the singular values of matrices [lo, hi) exceed the bound."""
    least = load(args, RANKS.least)
    rtol, atol = bitcast(load(args, RANKS.rtol), F64), bitcast(load(args, RANKS.atol), F64)
    for matrix in range(lo, hi):
        s = ptr(load(args, RANKS.s), T) + matrix * least
        bound, found = max(atol, rtol * load(s, 0)), 0
        for k in range(least):
            found += 1 if load(s, k) > bound else 0
        store(ptr(load(args, RANKS.out), I64), matrix, found)
    return 0
