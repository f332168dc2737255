"""Elements and pieces of rows by index: an element, or 16 bytes of a row, for a thread, four of them at once.

What is written to one place by several threads is one of them; sums, products and extremes are those of all.
"""

from numba import types

from ...blocks.cuda import PLACED
from ...build import jit
from ...cpu.array.scatter import OUT_OF_RANGE
from ...lang.by_type import by_type
from ...lang.ptx import block, blocks, thread, threads
from ...lang.simd import fill, load, ptr, store
from ...lang.vector import compute_type
from ..atomics import add_to, larger_of, lower_to, raise_to, smaller_of, update, update_four
from ..block import read, vector, width, write

I32, I64, U32 = types.int32, types.int64, types.uint32


@jit.inline
def quotient(x, size, WIDE):
    """x // size; of numbers of 32 bits unless `WIDE`, which takes a fourth of the time."""
    return x // size if WIDE else I64(U32(x) // U32(size))


@jit.inline
def times(x, stride, WIDE):
    """x * stride, likewise: one instruction."""
    return x * stride if WIDE else I32(x) * I32(stride)


@jit.inline
def spot(args, number, DIMS, WIDE):
    """(offset in t without the index, in the index, in v) of an element (or row) by its number."""
    in_t, in_index, in_v = 0, 0, 0
    for k in range(DIMS):
        d = DIMS - 1 - k
        digit = number
        if d > 0:
            size = load(args, PLACED.dims + d)
            number = quotient(number, size, WIDE)
            digit -= times(number, size, WIDE)
        in_t += times(digit, load(args, PLACED.dims + DIMS + d), WIDE)
        in_index += times(digit, load(args, PLACED.dims + 2 * DIMS + d), WIDE)
        in_v += times(digit, load(args, PLACED.dims + 3 * DIMS + d), WIDE)
    return in_t, in_index, in_v


@jit.inline
def found(args, index, in_index):
    """(the index at a place, or 0; whether it is within the dim)."""
    at = I64(load(index, in_index))
    at += load(args, PLACED.wrap) if at < 0 else 0
    there = 0 <= at < load(args, PLACED.bound)
    return at if there else 0, there


@jit.inline
def elements(args, hi, take, put, T, V, I, DIMS, WIDE):
    """`take` of four elements, whose loads do not wait for one another, then `put`."""
    t, index, v = ptr(load(args, PLACED.t), T), ptr(load(args, PLACED.index), I), ptr(load(args, PLACED.v), V)
    t_k, each, status = load(args, PLACED.t_k), threads(), 0
    if load(args, PLACED.bound) <= 0:
        return OUT_OF_RANGE
    for first in range(block() * (4 * each) + thread(), hi, blocks() * (4 * each)):
        t0, i0, v0 = spot(args, first, DIMS, WIDE)
        t1, i1, v1 = spot(args, min(first + each, hi - 1), DIMS, WIDE)
        t2, i2, v2 = spot(args, min(first + 2 * each, hi - 1), DIMS, WIDE)
        t3, i3, v3 = spot(args, min(first + 3 * each, hi - 1), DIMS, WIDE)
        (k0, ok0), (k1, ok1) = found(args, index, i0), found(args, index, i1)
        (k2, ok2), (k3, ok3) = found(args, index, i2), found(args, index, i3)
        t0, t1, t2, t3 = t0 + k0 * t_k, t1 + k1 * t_k, t2 + k2 * t_k, t3 + k3 * t_k
        x0, x1, x2, x3 = take(t, t0, v, v0), take(t, t1, v, v1), take(t, t2, v, v2), take(t, t3, v, v3)
        if not (ok0 and ok1 and ok2 and ok3):
            status = OUT_OF_RANGE
        if ok0:
            put(t, t0, v, v0, x0)
        if ok1 and first + each < hi:
            put(t, t1, v, v1, x1)
        if ok2 and first + 2 * each < hi:
            put(t, t2, v, v2, x2)
        if ok3 and first + 3 * each < hi:
            put(t, t3, v, v3, x3)
    return status


@jit.inline
def of_t(t, t_at, v, v_at):
    return load(t, t_at)


@jit.inline
def of_v(t, t_at, v, v_at):
    return load(v, v_at)


@by_type
def four_of_v(t, t_at, v, v_at):
    kind = compute_type(v.dtype)
    return lambda t, t_at, v, v_at: read(v, v_at, 4, fill(0, kind, 4))


@jit.inline
def to_v(t, t_at, v, v_at, x):
    store(v, v_at, x)


@jit.inline
def to_t(t, t_at, v, v_at, x):
    store(t, t_at, x)


@jit.inline
def added(t, t_at, v, v_at, x):
    add_to(t, t_at, x)


@jit.inline
def product_of(a, b):
    return a * b


@jit.inline
def multiplied(t, t_at, v, v_at, x):
    update(t, t_at, x, product_of)


@jit.inline
def larger(t, t_at, v, v_at, x):
    raise_to(t, t_at, x)


@jit.inline
def smaller(t, t_at, v, v_at, x):
    lower_to(t, t_at, x)


def _kernel(take, put):
    """The kernel that takes elements so, and puts them so."""

    @jit.inline
    def kernel(args, lo, hi, T, V, I, DIMS, WIDE):
        return elements(args, hi, take, put, T, V, I, DIMS, WIDE)

    return kernel


gather, scatter = _kernel(of_t, to_v), _kernel(of_v, to_t)
scatter_add, scatter_multiply = _kernel(of_v, added), _kernel(of_v, multiplied)
scatter_larger, scatter_smaller = _kernel(of_v, larger), _kernel(of_v, smaller)


def _kernel_of_four(join):
    """The kernel that joins four neighbours of 16 bits at once: neighbours in a word would keep one another from it."""

    @jit.inline
    def put(t, t_at, v, v_at, x):
        update_four(t, t_at, x, join)

    @jit.inline
    def kernel(args, lo, hi, T, V, I, DIMS, WIDE):
        return elements(args, hi, four_of_v, put, T, V, I, DIMS, WIDE)

    return kernel


scatter_larger_four, scatter_smaller_four = _kernel_of_four(larger_of), _kernel_of_four(smaller_of)


# ---- pieces of rows ------------------------------------------------------------------------------


@jit.inline
def piece(args, number, pieces, lanes, DIMS, WIDE):
    """(offset in t, in the index, in v, the first column) of a piece of a row by its number."""
    row = quotient(number, pieces, WIDE)
    in_t, in_index, in_v = spot(args, row, DIMS, WIDE)
    return in_t, in_index, in_v, (number - row * pieces) * lanes


@jit.inline
def rows(args, hi, FROM_T, T, I, DIMS, WIDE):
    """Pieces of rows of v from t, or of t from v."""
    t, index, v = ptr(load(args, PLACED.t), T), ptr(load(args, PLACED.index), I), ptr(load(args, PLACED.v), T)
    t_k, each, length, status = load(args, PLACED.t_k), threads(), load(args, PLACED.length), 0
    lanes, like = width(t), vector(t, 0)
    pieces = (length + lanes - 1) // lanes
    if load(args, PLACED.bound) <= 0:
        return OUT_OF_RANGE
    x, y = (t, v) if FROM_T else (v, t)
    for first in range(block() * (4 * each) + thread(), hi, blocks() * (4 * each)):
        t0, i0, v0, c0 = piece(args, first, pieces, lanes, DIMS, WIDE)
        t1, i1, v1, c1 = piece(args, min(first + each, hi - 1), pieces, lanes, DIMS, WIDE)
        t2, i2, v2, c2 = piece(args, min(first + 2 * each, hi - 1), pieces, lanes, DIMS, WIDE)
        t3, i3, v3, c3 = piece(args, min(first + 3 * each, hi - 1), pieces, lanes, DIMS, WIDE)
        (k0, ok0), (k1, ok1) = found(args, index, i0), found(args, index, i1)
        (k2, ok2), (k3, ok3) = found(args, index, i2), found(args, index, i3)
        t0, t1, t2, t3 = t0 + k0 * t_k, t1 + k1 * t_k, t2 + k2 * t_k, t3 + k3 * t_k
        if FROM_T:
            (f0, f1, f2, f3), (g0, g1, g2, g3) = (t0, t1, t2, t3), (v0, v1, v2, v3)
        else:
            (f0, f1, f2, f3), (g0, g1, g2, g3) = (v0, v1, v2, v3), (t0, t1, t2, t3)
        x0, x1 = read(x + f0, c0, length - c0, like), read(x + f1, c1, length - c1, like)
        x2, x3 = read(x + f2, c2, length - c2, like), read(x + f3, c3, length - c3, like)
        if not (ok0 and ok1 and ok2 and ok3):
            status = OUT_OF_RANGE
        if ok0:
            write(y + g0, c0, x0, length - c0)
        if ok1 and first + each < hi:
            write(y + g1, c1, x1, length - c1)
        if ok2 and first + 2 * each < hi:
            write(y + g2, c2, x2, length - c2)
        if ok3 and first + 3 * each < hi:
            write(y + g3, c3, x3, length - c3)
    return status


@jit.inline
def gather_rows(args, lo, hi, T, I, DIMS, WIDE):
    return rows(args, hi, True, T, I, DIMS, WIDE)


@jit.inline
def scatter_rows(args, lo, hi, T, I, DIMS, WIDE):
    return rows(args, hi, False, T, I, DIMS, WIDE)
