"""QR decompositions by Householder's reflections (Golub and Van Loan, "Matrix Computations", 5.2)."""

from ...blocks.linalg import HOUSEHOLDER
from ...build import jit
from ...lang.simd import load, ptr, store
from .jacobi import scaled, transpose_into
from .rows import add_scaled, dot, root, scale


@jit.inline
def reflect(w, scales, rows, columns, T):
    """Columns of a matrix, which are rows of w, become vectors of reflections with a 1 at their beginning, above which
    R stands. `scales` has the factor of each, and behind them R's diagonal, with LAPACK's signs.
    """
    steps = min(rows, columns)
    for k in range(steps):
        v, left = w + (k * rows + k), rows - k
        first, factor, size = load(v, 0), T(0), T(1)
        below = dot(v + 1, v + 1, left - 1, T)
        if first * first + below < 1e-16:  # what others have left of a column: its squares could vanish
            size = scaled(v, left, T)
            first, below = load(v, 0), dot(v + 1, v + 1, left - 1, T)
        if below != 0:
            length = root(first * first + below, T)
            pivot = -length if first >= 0 else length
            factor = (pivot - first) / pivot
            scale(v + 1, T(1) / (first - pivot), left - 1, T)
            first = pivot
        store(v, 0, 1)
        store(scales, k, factor)
        store(scales, steps + k, first * size)
        for j in range(k + 1, columns):
            x = w + (j * rows + k)
            add_scaled(x, v, -factor * dot(v, x, left, T), left, T)


@jit.inline
def householder(args, lo, hi, T):
    """Matrices [lo, hi): Q with as many columns as it has, and R."""
    rows, columns = load(args, HOUSEHOLDER.rows), load(args, HOUSEHOLDER.columns)
    wide, height = load(args, HOUSEHOLDER.wide), load(args, HOUSEHOLDER.height)
    steps = min(rows, columns)
    for matrix in range(lo, hi):
        x = ptr(load(args, HOUSEHOLDER.x), T) + matrix * rows * columns
        w = ptr(load(args, HOUSEHOLDER.turned), T) + matrix * rows * columns
        scales = ptr(load(args, HOUSEHOLDER.scales), T) + matrix * 2 * steps
        r = ptr(load(args, HOUSEHOLDER.r), T) + matrix * height * columns
        transpose_into(w, x, rows, columns)
        most = scaled(w, rows * columns, T)
        if most != most:  # NaN and infinity go on into the results
            most = T(1)
        reflect(w, scales, rows, columns, T)
        for i in range(height):
            for j in range(columns):
                value = load(w, j * rows + i) if i < j else (load(scales, steps + i) if i == j else T(0))
                store(r, i * columns + j, value * most if i <= j else T(0))
        basis = ptr(load(args, HOUSEHOLDER.basis), T) + matrix * wide * rows
        for i in range(wide):
            row = basis + i * rows
            for j in range(rows):
                store(row, j, 1 if j == i else 0)
            for step in range(min(i + 1, steps)):
                k = min(i + 1, steps) - 1 - step
                v, left = w + (k * rows + k), rows - k
                add_scaled(row + k, v, -load(scales, k) * dot(v, row + k, left, T), left, T)
        transpose_into(ptr(load(args, HOUSEHOLDER.q), T) + matrix * rows * wide, basis, wide, rows)
    return 0
