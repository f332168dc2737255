"""Reductions: sum, sum of squares, mean, product, maximum, minimum, any, all.

The result's dims are merged to at most two (`kept`), the reduced ones to at most two (`reduced`).
`inner` kernels take the elements of one result from contiguous memory; `outer` kernels take WIDE
neighbouring results at a time. Sums run in blocks, so that a lane adds at most some hundred elements
before its sum is set aside: the error grows with the square root of that, not of the whole length.

Both kernels have the same arguments:
  0-1 x, y                    2-3 sizes of kept dims (outer, inner)     4-5 their strides in x
  6-7 sizes of reduced dims   8-9 their strides in x                    10 identity (bits)
  11 length of the innermost reduced dim over all chunks: where a long reduction is split, the outer
     kept dim counts chunks of size args[7], and the last one may be shorter
  12 divisor of a mean (bits of a float64)
"""

from numba import types
from numba.extending import overload

from ...build import isa, jit
from ...lang.shuffle import largest, smallest
from ...lang.simd import (
    bitcast,
    convert,
    fill,
    is_float,
    load,
    ptr,
    ramp,
    reduce_add,
    reduce_and,
    reduce_mul,
    reduce_or,
    select,
    store,
    vload,
    vload_first,
    vstore_first,
)

LANES = isa.lanes()
WIDE = 4 * LANES
BLOCK = 256  # additions per lane before a partial sum is set aside
F64, I64 = types.float64, types.int64


def identity(args, index, A):
    """The neutral element of a reduction, from the argument block, as a scalar."""
    raise NotImplementedError("`identity` is for jitted code")


@overload(identity)
def _identity(args, index, A):
    if is_float(A.instance_type):
        return lambda args, index, A: bitcast(load(args, index), F64)
    return lambda args, index, A: load(args, index)


@jit.inline
def fold_row(x, size, start, each, combine, absorb, T, A):
    """`size` contiguous elements, changed by `each`, combined into the lanes of a vector that begins as `start`."""
    total = fill(start, A, WIDE)
    i = 0
    while i + 2 * WIDE <= size:
        block = fill(start, A, WIDE)
        stop = min(size - 2 * WIDE, i + (BLOCK - 2) * WIDE)
        while i <= stop:
            a, b = convert(vload(x, i, WIDE), A), convert(vload(x, i + WIDE, WIDE), A)
            block = absorb(block, each(a), each(b))
            i += 2 * WIDE
        total = combine(total, block)
    if i + WIDE <= size:
        total = combine(total, each(convert(vload(x, i, WIDE), A)))
        i += WIDE
    if i < size:
        left = size - i
        v = each(convert(vload_first(x, i, WIDE, left), A))
        total = combine(total, select(ramp(0, I64, WIDE) < left, v, fill(start, A, WIDE)))
    return total


@jit.inline
def fold_columns(x, count, stride, left, start, each, combine, absorb, T, A):
    """`count` rows of WIDE neighbouring columns, of which `left` exist."""
    total = fill(start, A, WIDE)
    i = 0
    if left >= WIDE:
        while i + 2 <= count:
            block = fill(start, A, WIDE)
            stop = min(count - 2, i + BLOCK - 2)
            while i <= stop:
                a, b = vload(x, i * stride, WIDE), vload(x, (i + 1) * stride, WIDE)
                block = absorb(block, each(convert(a, A)), each(convert(b, A)))
                i += 2
            total = combine(total, block)
    while i < count:
        block = fill(start, A, WIDE)
        for k in range(i, min(count, i + BLOCK)):
            block = combine(block, each(convert(vload_first(x, k * stride, WIDE, left), A)))
        total = combine(total, block)
        i += BLOCK
    return total


@jit.inline
def inner(args, lo, hi, each, combine, absorb, across, finish, T, A, O):
    """Results [lo, hi), each from contiguous rows of x.

    `each` changes elements, `combine` joins two vectors, `absorb` a vector and two of x, `across` lanes.
    """
    x, y, start = ptr(load(args, 0), T), ptr(load(args, 1), O), identity(args, 10, A)
    kept, kept_outer, kept_inner = load(args, 3), load(args, 4), load(args, 5)
    rows, length, row_stride = load(args, 6), load(args, 7), load(args, 8)
    whole, divisor = load(args, 11), bitcast(load(args, 12), F64)
    for index in range(lo, hi):
        a = index // kept
        at = x + (a * kept_outer + (index - a * kept) * kept_inner)
        count = min(length, whole - a * length)
        total = fold_row(at, count, start, each, combine, absorb, T, A)
        for row in range(1, rows):
            part = fold_row(at + row * row_stride, count, start, each, combine, absorb, T, A)
            total = combine(total, part)
        store(y, index, finish(across(total), divisor))
    return 0


@jit.inline
def outer(args, lo, hi, each, combine, absorb, finish, T, A, O):
    """Blocks [lo, hi) of WIDE neighbouring results; x has unit stride along the inner kept dim."""
    x, y, start = ptr(load(args, 0), T), ptr(load(args, 1), O), identity(args, 10, A)
    kept, kept_outer = load(args, 3), load(args, 4)
    rows, length, row_stride, stride = load(args, 6), load(args, 7), load(args, 8), load(args, 9)
    whole, divisor = load(args, 11), bitcast(load(args, 12), F64)
    blocks = (kept + WIDE - 1) // WIDE
    for unit in range(lo, hi):
        a = unit // blocks
        column = (unit - a * blocks) * WIDE
        left = kept - column
        at = x + (a * kept_outer + column)
        count = min(length, whole - a * length)
        total = fill(start, A, WIDE)
        for row in range(rows):
            part = fold_columns(at + row * row_stride, count, stride, left, start, each, combine, absorb, T, A)
            total = combine(total, part)
        vstore_first(y, a * kept + column, convert(finish(total, divisor), O), left)
    return 0


# ---- what reductions differ in -----------------------------------------------------------------


@jit.inline
def plain(v):
    return v


@jit.inline
def squared(v):
    return v * v


@jit.inline
def add(a, b):
    return a + b


@jit.inline
def add_two(total, a, b):
    return total + a + b


@jit.inline
def multiply(a, b):
    return a * b


@jit.inline
def multiply_two(total, a, b):
    return total * a * b


@jit.inline
def larger(a, b):
    """The maximum, NaN if one is. `vmax` also orders -0 below 0, which doubles its instructions."""
    return select(a != a, a, select(a > b, a, b))


@jit.inline
def larger_two(top, a, b):
    """As `larger` of three, with one test for NaN: a comparison with a NaN in `top` leaves it there."""
    best = select(a > b, a, b)
    best = select(best > top, best, top)
    return select((a != a) | (b != b), a + b, best)


@jit.inline
def smaller(a, b):
    """The minimum, NaN if one is."""
    return select(a != a, a, select(a < b, a, b))


@jit.inline
def smaller_two(top, a, b):
    best = select(a < b, a, b)
    best = select(best < top, best, top)
    return select((a != a) | (b != b), a + b, best)


@jit.inline
def either(a, b):
    return a | b


@jit.inline
def either_two(total, a, b):
    return total | a | b


@jit.inline
def both(a, b):
    return a & b


@jit.inline
def both_two(total, a, b):
    return total & a & b


@jit.inline
def sum_lanes(v):
    return reduce_add(v)


@jit.inline
def multiply_lanes(v):
    return reduce_mul(v)


@jit.inline
def max_lanes(v):
    return largest(v)


@jit.inline
def min_lanes(v):
    return smallest(v)


@jit.inline
def any_lane(v):
    return reduce_or(v)


@jit.inline
def all_lanes(v):
    return reduce_and(v)


@jit.inline
def as_is(total, divisor):
    return total


@jit.inline
def divide(total, divisor):
    return total / divisor


@jit.inline
def sum_inner(args, lo, hi, T, A, O):
    return inner(args, lo, hi, plain, add, add_two, sum_lanes, as_is, T, A, O)


@jit.inline
def sum_outer(args, lo, hi, T, A, O):
    return outer(args, lo, hi, plain, add, add_two, as_is, T, A, O)


@jit.inline
def squares_inner(args, lo, hi, T, A, O):
    return inner(args, lo, hi, squared, add, add_two, sum_lanes, as_is, T, A, O)


@jit.inline
def squares_outer(args, lo, hi, T, A, O):
    return outer(args, lo, hi, squared, add, add_two, as_is, T, A, O)


@jit.inline
def mean_inner(args, lo, hi, T, A, O):
    return inner(args, lo, hi, plain, add, add_two, sum_lanes, divide, T, A, O)


@jit.inline
def mean_outer(args, lo, hi, T, A, O):
    return outer(args, lo, hi, plain, add, add_two, divide, T, A, O)


@jit.inline
def prod_inner(args, lo, hi, T, A, O):
    return inner(args, lo, hi, plain, multiply, multiply_two, multiply_lanes, as_is, T, A, O)


@jit.inline
def prod_outer(args, lo, hi, T, A, O):
    return outer(args, lo, hi, plain, multiply, multiply_two, as_is, T, A, O)


@jit.inline
def max_inner(args, lo, hi, T, A, O):
    return inner(args, lo, hi, plain, larger, larger_two, max_lanes, as_is, T, A, O)


@jit.inline
def max_outer(args, lo, hi, T, A, O):
    return outer(args, lo, hi, plain, larger, larger_two, as_is, T, A, O)


@jit.inline
def min_inner(args, lo, hi, T, A, O):
    return inner(args, lo, hi, plain, smaller, smaller_two, min_lanes, as_is, T, A, O)


@jit.inline
def min_outer(args, lo, hi, T, A, O):
    return outer(args, lo, hi, plain, smaller, smaller_two, as_is, T, A, O)


@jit.inline
def any_inner(args, lo, hi, T, A, O):
    return inner(args, lo, hi, plain, either, either_two, any_lane, as_is, T, A, O)


@jit.inline
def any_outer(args, lo, hi, T, A, O):
    return outer(args, lo, hi, plain, either, either_two, as_is, T, A, O)


@jit.inline
def all_inner(args, lo, hi, T, A, O):
    return inner(args, lo, hi, plain, both, both_two, all_lanes, as_is, T, A, O)


@jit.inline
def all_outer(args, lo, hi, T, A, O):
    return outer(args, lo, hi, plain, both, both_two, as_is, T, A, O)
