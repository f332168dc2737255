"""Eigenvalues of symmetric matrices and singular values, with and without vectors: `bands.py` leaves two or three
diagonals of a matrix, `diagonals.py` one.

Rows of vectors are what is turned, so those of the reduction are made first and go through all steps. Rotations of all
pairs of rows (Jacobi) were here for small matrices: 8 x 8 took 8 us, now 4.6, and 32 x 32 with vectors 81, now 51.
"""

from numba import types

from ...blocks.linalg import NOT_FINITE, PSEUDO, RANKS, SINGULAR_VALUES, SYMMETRIC
from ...build import jit
from ...lang.simd import bitcast, load, ptr, store, vsqrt
from .bands import bidiagonal, padded, tridiagonal, zeros
from .diagonals import singular, values
from .reflections import basis_of
from .rows import copy_into, dot, exchange, scale, scaled, transpose_into

F64, I64 = types.float64, types.int64


@jit.inline
def put_next(d, k, size, falling):
    """Exchange d[k] with the smallest (or largest) number from there on, and say where that was."""
    at = k
    for i in range(k + 1, size):
        if (load(d, i) > load(d, at)) if falling else (load(d, i) < load(d, at)):
            at = i
    value = load(d, k)
    store(d, k, load(d, at))
    store(d, at, value)
    return at


@jit.inline
def symmetric(args, lo, hi, T):
    """Symmetric matrices [lo, hi), of which the lower (or `upper`) triangle is read: eigenvalues in rising order, and
    vectors.
    """
    size, upper = load(args, SYMMETRIC.size), load(args, SYMMETRIC.upper) != 0
    vectors, least = load(args, SYMMETRIC.vectors) != 0, bitcast(load(args, SYMMETRIC.least), F64)
    wide = padded(size)
    for matrix in range(lo, hi):
        a = ptr(load(args, SYMMETRIC.a), T) + matrix * size * size
        w = ptr(load(args, SYMMETRIC.moved), T) + matrix * (wide + 5) * wide
        basis = ptr(load(args, SYMMETRIC.basis), T) + matrix * size * size
        d = ptr(load(args, SYMMETRIC.bands), F64) + matrix * 2 * size
        s, e = ptr(load(args, SYMMETRIC.s), T) + matrix * size, d + size
        work, factors = w + wide * wide, w + (wide + 4) * wide
        zeros(w, wide * wide, T)
        for i in range(size):
            for j in range(i + 1):
                value = load(a, j * size + i) if upper else load(a, i * size + j)
                store(w, i * wide + j, value)
                store(w, j * wide + i, value)
        most = scaled(w, wide * wide, T)
        if most != most:
            return NOT_FINITE
        tridiagonal(w, factors, work, d, e, size, T)
        if vectors:
            basis_of(basis, size, w, factors, wide, size, 1, size - 1, T)
        for k in range(size):
            beside = load(e, k)
            if vectors and beside < 0:  # a row more with the other sign, for what is beside the diagonal to be positive
                scale(basis + (k + 1) * size, T(-1), size, T)
                store(e, k + 1, -load(e, k + 1))
            store(e, k, beside * beside)
        values(d, e, size, basis, size, work, work + wide, vectors, least, T)
        for k in range(size):
            at = put_next(d, k, size, False)
            if vectors and at != k:
                exchange(basis + k * size, basis + at * size, size)
            store(s, k, load(d, k))
        if vectors:
            transpose_into(ptr(load(args, SYMMETRIC.y), T) + matrix * size * size, basis, size, size)
        scale(s, most, size, T)
    return 0


@jit.inline
def squared(d, e, size):
    """Two diagonals B become the diagonal of B^T B, and the squares of what is beside it."""
    before = 0.0
    for k in range(size):
        on, beside = load(d, k), load(e, k)
        store(d, k, on * on + before)
        before = beside * beside
        store(e, k, on * on * before)


@jit.inline
def singular_values(args, lo, hi, T):
    """Matrices [lo, hi): singular values in falling order, and both sides' vectors.

    Without vectors, and with `squares`, they are the roots of the eigenvalues of B^T B, for B of two diagonals: in
    float64 that leaves 1e-8 of the largest one, which is a sixth of float32's epsilon, at a third of the time.
    """
    rows, columns = load(args, SINGULAR_VALUES.rows), load(args, SINGULAR_VALUES.columns)
    full = load(args, SINGULAR_VALUES.full)
    vectors, squares = load(args, SINGULAR_VALUES.vectors) != 0, load(args, SINGULAR_VALUES.squares) != 0
    least = bitcast(load(args, SINGULAR_VALUES.least), F64)
    longer, size, tall = max(rows, columns), min(rows, columns), rows >= columns
    high, wide = padded(longer), padded(size)
    for matrix in range(lo, hi):
        a = ptr(load(args, SINGULAR_VALUES.a), T) + matrix * rows * columns
        w = ptr(load(args, SINGULAR_VALUES.moved), T) + matrix * (high + 5) * (wide + 3)
        work, lefts = w + high * wide, ptr(load(args, SINGULAR_VALUES.lefts), T) + matrix * size * longer
        factors = work + 3 * (high + wide)
        x = ptr(load(args, SINGULAR_VALUES.short), T) + matrix * size * size
        y = ptr(load(args, SINGULAR_VALUES.long), T) + matrix * full * longer
        d = ptr(load(args, SINGULAR_VALUES.bands), F64) + matrix * 2 * size
        s, e = ptr(load(args, SINGULAR_VALUES.s), T) + matrix * size, d + size
        zeros(w, high * wide, T)
        if tall:
            for i in range(longer):
                copy_into(w + i * wide, a + i * size, size)
        else:
            for i in range(longer):
                for j in range(size):
                    store(w, i * wide + j, load(a, j * longer + i))
        most = scaled(w, high * wide, T)
        if most != most:
            return NOT_FINITE
        bidiagonal(w, lefts, factors, work, d, e, longer, size, T)
        if vectors:
            basis_of(y, full, lefts, factors, longer, longer, 0, size, T)
            basis_of(x, size, w, factors + size, wide, size, 1, size - 1, T)
        if squares:
            squared(d, e, size)
            values(d, e, size, x, 0, work, work, False, least, T)
        else:
            singular(d, e, x, size, y, longer, size, vectors, least, T)
        for k in range(size):
            value = load(d, k)
            if squares:
                store(d, k, vsqrt(value) if value > 0 else 0.0)
            elif value < 0:
                store(d, k, -value)
                if vectors:
                    scale(x + k * size, T(-1), size, T)
        for k in range(size):
            at = put_next(d, k, size, True)
            if vectors and at != k:
                exchange(x + k * size, x + at * size, size)
                exchange(y + k * longer, y + at * longer, longer)
            store(s, k, load(d, k))
        if vectors:
            left, right = ptr(load(args, SINGULAR_VALUES.y), T), ptr(load(args, SINGULAR_VALUES.z), T)
            if tall:
                transpose_into(left + matrix * rows * full, y, full, rows)
                copy_into(right + matrix * size * columns, x, size * columns)
            else:
                transpose_into(left + matrix * rows * size, x, size, rows)
                copy_into(right + matrix * full * columns, y, full * columns)
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
