"""QR decompositions by Householder's reflections (Golub and Van Loan, "Matrix Computations", 5.2)."""

from ...blocks.linalg import HOUSEHOLDER
from ...build import jit
from ...lang.rows import fill_row
from ...lang.simd import fill, load, muladd, ptr, reduce_add, store, vload, vload_first, vstore, vstore_first
from .rows import LANES, add_scaled, dot, root, scale, scaled, transpose_into


@jit.inline
def turn(x, stride, count, v, factor, size, T):
    """Reflect `count` rows of `size` elements."""
    for j in range(count):
        row = x + j * stride
        add_scaled(row, v, -factor * dot(v, row, size, T), size, T)


@jit.inline
def shares(x, by_v, by_u, f, g, between, backwards):
    """How often v and u are to be added to a row x, whose first element only v has."""
    if backwards:
        b = -g * by_u
        return -f * (load(x, 0) + by_v + b * between), b
    a = -f * (load(x, 0) + by_v)
    return a, -g * (by_u + a * between)


@jit.inline
def turn_twice(x, stride, count, v, u, f, g, size, backwards, T):
    """Reflect rows by v [size] with factor f and then by u [size - 1], the elements but the first, with g, or
    `backwards` first by u: four rows at a time, by both at once (256 x 128 of float32: 0.13 ms, one by one 0.5).
    """
    between, last, j = dot(v + 1, u, size - 1, T), size - 1, 0
    while j + 4 <= count:
        x0, i = x + j * stride, 0
        x1, x2, x3 = x0 + stride, x0 + 2 * stride, x0 + 3 * stride
        v0, v1, v2, v3 = fill(0, T, LANES), fill(0, T, LANES), fill(0, T, LANES), fill(0, T, LANES)
        u0, u1, u2, u3 = fill(0, T, LANES), fill(0, T, LANES), fill(0, T, LANES), fill(0, T, LANES)
        while i + LANES <= last:
            one, two = vload(v, i + 1, LANES), vload(u, i, LANES)
            row0, row1 = vload(x0, i + 1, LANES), vload(x1, i + 1, LANES)
            row2, row3 = vload(x2, i + 1, LANES), vload(x3, i + 1, LANES)
            v0, v1, v2, v3 = muladd(one, row0, v0), muladd(one, row1, v1), muladd(one, row2, v2), muladd(one, row3, v3)
            u0, u1, u2, u3 = muladd(two, row0, u0), muladd(two, row1, u1), muladd(two, row2, u2), muladd(two, row3, u3)
            i += LANES
        if i < last:
            left = last - i
            one, two = vload_first(v, i + 1, LANES, left), vload_first(u, i, LANES, left)
            row0, row1 = vload_first(x0, i + 1, LANES, left), vload_first(x1, i + 1, LANES, left)
            row2, row3 = vload_first(x2, i + 1, LANES, left), vload_first(x3, i + 1, LANES, left)
            v0, v1, v2, v3 = muladd(one, row0, v0), muladd(one, row1, v1), muladd(one, row2, v2), muladd(one, row3, v3)
            u0, u1, u2, u3 = muladd(two, row0, u0), muladd(two, row1, u1), muladd(two, row2, u2), muladd(two, row3, u3)
        a0, b0 = shares(x0, reduce_add(v0), reduce_add(u0), f, g, between, backwards)
        a1, b1 = shares(x1, reduce_add(v1), reduce_add(u1), f, g, between, backwards)
        a2, b2 = shares(x2, reduce_add(v2), reduce_add(u2), f, g, between, backwards)
        a3, b3 = shares(x3, reduce_add(v3), reduce_add(u3), f, g, between, backwards)
        add_two(x0, v, u, a0, b0, last, T)
        add_two(x1, v, u, a1, b1, last, T)
        add_two(x2, v, u, a2, b2, last, T)
        add_two(x3, v, u, a3, b3, last, T)
        j += 4
    if backwards:
        turn(x + (j * stride + 1), stride, count - j, u, g, last, T)
    turn(x + j * stride, stride, count - j, v, f, size, T)
    if not backwards:
        turn(x + (j * stride + 1), stride, count - j, u, g, last, T)


@jit.inline
def add_two(x, v, u, a, b, last, T):
    """A row x with a v and b u added, whose elements but the first are `last` ones."""
    one, two, i = fill(a, T, LANES), fill(b, T, LANES), 0
    store(x, 0, load(x, 0) + a)
    while i + LANES <= last:
        found = muladd(one, vload(v, i + 1, LANES), vload(x, i + 1, LANES))
        vstore(x, i + 1, muladd(two, vload(u, i, LANES), found))
        i += LANES
    if i < last:
        left = last - i
        found = muladd(one, vload_first(v, i + 1, LANES, left), vload_first(x, i + 1, LANES, left))
        vstore_first(x, i + 1, muladd(two, vload_first(u, i, LANES, left), found), left)


@jit.inline
def reflector(v, count, T):
    """Elements become the vector of a reflection that leaves only the first, with a 1 at its beginning: (its factor,
    what is left of them, with LAPACK's sign).
    """
    first, factor, size = load(v, 0), T(0), T(1)
    below = dot(v + 1, v + 1, count - 1, T)
    if first * first + below < 1e-16:  # what others have left of a column: its squares could vanish
        size = scaled(v, count, T)
        first, below = load(v, 0), dot(v + 1, v + 1, count - 1, T)
    if below != 0:
        length = root(first * first + below, T)
        pivot = -length if first >= 0 else length
        factor = (pivot - first) / pivot
        scale(v + 1, T(1) / (first - pivot), count - 1, T)
        first = pivot
    store(v, 0, 1)
    return factor, first * size


@jit.inline
def reflect(w, scales, rows, columns, T):
    """Columns of a matrix, which are rows of w, become vectors of reflections with a 1 at their beginning, above which
    R stands. `scales` has the factor of each, and behind them R's diagonal, with LAPACK's signs.
    """
    steps, k = min(rows, columns), 0
    while k < steps:
        v, left = w + (k * rows + k), rows - k
        factor, pivot = reflector(v, left, T)
        store(scales, k, factor)
        store(scales, steps + k, pivot)
        if k % 2 == 0:  # the next one's column, and all others together with that
            turn(w + ((k + 1) * rows + k), rows, columns - k - 1 if k + 1 == steps else 1, v, factor, left, T)
        else:
            before = w + ((k - 1) * rows + k - 1)
            others = w + ((k + 1) * rows + k - 1)
            turn_twice(others, rows, columns - k - 1, before, v, load(scales, k - 1), factor, left + 1, False, T)
        k += 1


@jit.inline
def basis_of(basis, wide, w, factors, stride, rows, at, steps, T):
    """The first `wide` columns of the product of reflections, as rows of `basis` [wide, rows]: their vectors begin at
    the diagonal of w, `at` places behind it.
    """
    for i in range(wide):
        fill_row(basis + i * rows, rows, 0)
        store(basis, i * rows + i, 1)
    k, basis, w = min(wide - at, steps) - 1, basis + at * rows + at, w + at
    wide, long = wide - at, rows - at
    if k >= 0 and k % 2 == 0:  # rows of the identity before the first element of v stay as they are
        turn(basis + (k * rows + k), rows, wide - k, w + (k * stride + k), load(factors, k), long - k, T)
        k -= 1
    while k > 0:
        v, u = w + ((k - 1) * stride + k - 1), w + (k * stride + k)
        f, g = load(factors, k - 1), load(factors, k)
        turn_twice(basis + ((k - 1) * rows + k - 1), rows, wide - k + 1, v, u, f, g, long - k + 1, True, T)
        k -= 2


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
        basis_of(basis, wide, w, scales, rows, rows, 0, steps, T)
        transpose_into(ptr(load(args, HOUSEHOLDER.q), T) + matrix * rows * wide, basis, wide, rows)
    return 0
