"""Symmetric matrices reduced to three diagonals and others to two, by Householder's reflections (Golub and Van Loan,
"Matrix Computations", 5.4.8 and 8.3.1).

A reflection changes the whole matrix, and the next one needs a product with what it leaves. Both are one pass over the
rows here, the change of the last step and the sum of the next (128 x 128 of float32 lie in the second-level cache:
two diagonals take 0.12 ms). Rows and vectors are as long as whole registers, with zeros behind the matrix and before
the place that a step has come to, so nothing is masked.
"""

from ...blocks.linalg import PAD
from ...build import jit
from ...lang.simd import fill, load, muladd, reduce_add, store, vload, vstore
from .reflections import reflector
from .rows import LANES, add_scaled, dot

BESIDE = 4  # rows that are changed together, of which the vectors are loaded once


@jit.inline
def padded(size):
    return (size + PAD - 1) // PAD * PAD


@jit.inline
def zeros(x, count, T):
    """Zeros in `count` elements, whole registers of them."""
    for i in range(0, count, LANES):
        vstore(x, i, fill(0, T, LANES))


@jit.inline
def subtract_and_sum(w, stride, at, rows, columns, v, y, x, u, c, total, T):
    """w -= v y^T + x u^T, and total = c^T w of the result, from row and column `at` on."""
    first = at // LANES * LANES
    zeros(total, columns, T)
    for i in range(at // BESIDE * BESIDE, rows, BESIDE):
        r0 = w + i * stride
        r1, r2, r3 = r0 + stride, r0 + 2 * stride, r0 + 3 * stride
        v0, v1 = fill(-load(v, i), T, LANES), fill(-load(v, i + 1), T, LANES)
        v2, v3 = fill(-load(v, i + 2), T, LANES), fill(-load(v, i + 3), T, LANES)
        x0, x1 = fill(-load(x, i), T, LANES), fill(-load(x, i + 1), T, LANES)
        x2, x3 = fill(-load(x, i + 2), T, LANES), fill(-load(x, i + 3), T, LANES)
        c0, c1 = fill(load(c, i), T, LANES), fill(load(c, i + 1), T, LANES)
        c2, c3 = fill(load(c, i + 2), T, LANES), fill(load(c, i + 3), T, LANES)
        for j in range(first, columns, LANES):
            one, two, found = vload(y, j, LANES), vload(u, j, LANES), vload(total, j, LANES)
            row = muladd(x0, two, muladd(v0, one, vload(r0, j, LANES)))
            vstore(r0, j, row)
            found = muladd(c0, row, found)
            row = muladd(x1, two, muladd(v1, one, vload(r1, j, LANES)))
            vstore(r1, j, row)
            found = muladd(c1, row, found)
            row = muladd(x2, two, muladd(v2, one, vload(r2, j, LANES)))
            vstore(r2, j, row)
            found = muladd(c2, row, found)
            row = muladd(x3, two, muladd(v3, one, vload(r3, j, LANES)))
            vstore(r3, j, row)
            vstore(total, j, muladd(c3, row, found))


@jit.inline
def products(w, stride, at, rows, columns, u, x, T):
    """x = w u, from row and column `at` on."""
    first = at // LANES * LANES
    for i in range(at // BESIDE * BESIDE, rows, BESIDE):
        r0 = w + i * stride
        r1, r2, r3 = r0 + stride, r0 + 2 * stride, r0 + 3 * stride
        s0, s1, s2, s3 = fill(0, T, LANES), fill(0, T, LANES), fill(0, T, LANES), fill(0, T, LANES)
        for j in range(first, columns, LANES):
            by = vload(u, j, LANES)
            s0, s1 = muladd(vload(r0, j, LANES), by, s0), muladd(vload(r1, j, LANES), by, s1)
            s2, s3 = muladd(vload(r2, j, LANES), by, s2), muladd(vload(r3, j, LANES), by, s3)
        store(x, i, reduce_add(s0))
        store(x, i + 1, reduce_add(s1))
        store(x, i + 2, reduce_add(s2))
        store(x, i + 3, reduce_add(s3))


@jit.inline
def put(x, row, first, size, wide, T):
    """A row of `size` elements from `first` on as a vector x of `wide`, with zeros around."""
    zeros(x, wide, T)
    for j in range(first, size):
        store(x, j, load(row, j))


@jit.inline
def tridiagonal(w, factors, work, d, e, size, T):
    """A symmetric matrix w [padded, padded] becomes vectors of reflections, row k's from k + 1 on, with `factors`;
    its diagonal goes to d and what is beside that to e. `work`: 4 vectors.
    """
    wide = padded(size)
    v, q, c, p = work, work + wide, work + 2 * wide, work + 3 * wide
    zeros(work, 4 * wide, T)
    for k in range(size):
        row = w + k * wide
        add_scaled(row + k, q + k, -load(v, k), size - k, T)
        add_scaled(row + k, v + k, -load(q, k), size - k, T)
        store(d, k, load(row, k))
        store(v, k, 0)
        store(q, k, 0)
        if k + 1 < size:
            factor, beside = reflector(row + (k + 1), size - k - 1, T)
            store(factors, k, factor)
            store(e, k, beside)
            put(c, row, k + 1, size, wide, T)
            subtract_and_sum(w, wide, k + 1, wide, wide, v, q, q, v, c, p, T)
            share = dot(p + (k + 1), c + (k + 1), size - k - 1, T) * factor / 2
            for j in range(0, wide, LANES):
                one = vload(c, j, LANES)
                vstore(v, j, one)
                vstore(q, j, factor * (vload(p, j, LANES) - share * one))
            for j in range(k + 1):
                store(q, j, 0)
    store(e, size - 1, 0)


@jit.inline
def bidiagonal(w, lefts, factors, work, d, e, rows, columns, T):
    """A matrix w [padded, padded] with at least as many rows as columns: its two diagonals go to d and e. Vectors of
    reflections are left in rows of `lefts` [columns, rows], from k on, and in those of w, from k + 1 on, with two rows
    of `factors` [columns]. `work`: 6 vectors, of which 3 are as long as a column.
    """
    tall, wide = padded(rows), padded(columns)
    v, x, c = work, work + tall, work + 2 * tall
    y, u, total = work + 3 * tall, work + (3 * tall + wide), work + (3 * tall + 2 * wide)
    zeros(work, 3 * tall + 3 * wide, T)
    for k in range(columns):
        row, left = w + k * wide, lefts + k * rows
        yk, uk = load(y, k), load(u, k)
        for i in range(k, rows):
            store(left, i, load(w, i * wide + k) - load(v, i) * yk - load(x, i) * uk)
        factor, on = reflector(left + k, rows - k, T)
        store(factors, k, factor)
        store(d, k, on)
        put(c, left, k, rows, tall, T)
        store(y, k, 0)  # that column is done
        store(u, k, 0)
        subtract_and_sum(w, wide, k, tall, wide, v, y, x, u, c, total, T)
        beside, by = T(0), T(0)
        if k + 1 < columns:
            for j in range(0, wide, LANES):
                vstore(y, j, factor * vload(total, j, LANES))
            for j in range(k + 1):
                store(y, j, 0)
            add_scaled(row + (k + 1), y + (k + 1), T(-1), columns - k - 1, T)
            by, beside = reflector(row + (k + 1), columns - k - 1, T)
            put(u, row, k + 1, columns, wide, T)
            products(w, wide, k + 1, tall, wide, u, x, T)
            between = dot(y + (k + 1), u + (k + 1), columns - k - 1, T)
            for i in range(0, tall, LANES):
                one = vload(c, i, LANES)
                vstore(v, i, one)
                vstore(x, i, by * (vload(x, i, LANES) - between * one))
            for i in range(k + 1):
                store(v, i, 0)
                store(x, i, 0)
        store(factors, columns + k, by)
        store(e, k, beside)
