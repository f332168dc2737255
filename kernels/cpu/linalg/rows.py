"""What decompositions do with rows of a matrix that lie in the first-level cache."""

from ...build import isa, jit
from ...lang.simd import fill, lane, muladd, reduce_add, store, vload, vload_first, vsqrt, vstore, vstore_first

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
def identity(x, size, T):
    for i in range(size):
        for j in range(0, size, LANES):
            vstore_first(x + i * size, j, fill(0, T, LANES), size - j)
        store(x, i * size + i, 1)


@jit.inline
def exchange(x, y, size):
    """Exchange two rows."""
    for i in range(0, size, LANES):
        a, b = vload_first(x, i, LANES, size - i), vload_first(y, i, LANES, size - i)
        vstore_first(x, i, b, size - i)
        vstore_first(y, i, a, size - i)
