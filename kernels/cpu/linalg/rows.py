"""What decompositions do with rows of a matrix that lie in the first-level cache."""

from ...build import isa, jit
from ...lang.shuffle import transpose_tile
from ...lang.simd import (
    fill,
    lane,
    load,
    muladd,
    reduce_add,
    reduce_max,
    store,
    vabs,
    vload,
    vload_first,
    vmax,
    vsqrt,
    vstore,
    vstore_first,
)

LANES = isa.lanes()


@jit.inline
def root(value, T):
    return lane(vsqrt(fill(value, T, LANES)), 0)


@jit.inline
def dot(x, y, size, T):
    total, more, i = fill(0, T, LANES), fill(0, T, LANES), 0
    while i + 2 * LANES <= size:  # two sums: one waits for its own result
        total = muladd(vload(x, i, LANES), vload(y, i, LANES), total)
        more = muladd(vload(x, i + LANES, LANES), vload(y, i + LANES, LANES), more)
        i += 2 * LANES
    while i < size:
        total = muladd(vload_first(x, i, LANES, size - i), vload_first(y, i, LANES, size - i), total)
        i += LANES
    return reduce_add(total + more)


@jit.inline
def add_scaled(x, y, factor, size, T):
    """x += factor * y."""
    by = fill(factor, T, LANES)
    for i in range(0, size, LANES):
        found = muladd(by, vload_first(y, i, LANES, size - i), vload_first(x, i, LANES, size - i))
        vstore_first(x, i, found, size - i)


@jit.inline
def scale(x, factor, size, T):
    for i in range(0, size, LANES):
        vstore_first(x, i, vload_first(x, i, LANES, size - i) * factor, size - i)


@jit.inline
def rotate(x, y, c, s, size, T):
    """Rows x and y become c x - s y and s x + c y."""
    cs, sn, i = fill(c, T, LANES), fill(s, T, LANES), 0
    while i + LANES <= size:
        a, b = vload(x, i, LANES), vload(y, i, LANES)
        vstore(x, i, muladd(cs, a, -(sn * b)))
        vstore(y, i, muladd(sn, a, cs * b))
        i += LANES
    if i < size:
        a, b = vload_first(x, i, LANES, size - i), vload_first(y, i, LANES, size - i)
        vstore_first(x, i, muladd(cs, a, -(sn * b)), size - i)
        vstore_first(y, i, muladd(sn, a, cs * b), size - i)


@jit.inline
def exchange(x, y, size):
    """Exchange two rows."""
    for i in range(0, size, LANES):
        a, b = vload_first(x, i, LANES, size - i), vload_first(y, i, LANES, size - i)
        vstore_first(x, i, b, size - i)
        vstore_first(y, i, a, size - i)


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
