"""The loops of reductions, rendered with a rule each (`build/render.py: reduction`).

The result's dims are merged to at most two (`kept`), the reduced ones to at most two (`reduced`). `inner` takes the
elements of one result from contiguous memory, `outer` takes WIDE neighbouring results at a time, also those of rows of
a few elements ("short"), of which it then reads one element each at a time, a `plane` apart. Both fold WIDE lanes in
blocks, so that a lane joins at most some hundred elements before its state is set aside: the error of a sum grows with
the square root of that, not of the whole length.

What a rule brings: `nothing` is the state of no elements, `read` gives that of WIDE elements, `read_first` where only
some exist, `read_rest` with `nothing` for the others; `join` makes one state of two, `absorb`, if any, of a state and
two of elements; `across` joins the lanes of a state, `write` and `write_first` store what becomes of it. A state is a
vector, or a tuple of them, and then the parts of states in memory are `plane` elements apart.
"""

from numba import types

from ...blocks.reduce import FOLD
from ...build import jit
from ...lang.by_type import by_type
from ...lang.simd import Vector, bitcast, convert, fill, load, ptr
from .sizes import WIDE

BLOCK = 256  # elements per lane before a partial state is set aside
I64, F64 = types.int64, types.float64


@by_type(prefer_literal=True)
def spread(v, A, lanes):
    """What a rule returned, as `lanes` elements of type A: rules may return plain numbers."""
    if isinstance(v, Vector):
        return lambda v, A, lanes: convert(v, A)
    return lambda v, A, lanes: fill(v, A, lanes)


@jit.inline
def fold_row(x, size, plane, nothing, read, read_rest, join, absorb):
    """`size` contiguous elements, joined into the lanes of a state."""
    total = nothing
    i = I64(0)  # no literal, for which `read` would be compiled a second time
    while i + 2 * WIDE <= size:
        block = nothing
        stop = min(size - 2 * WIDE, i + (BLOCK - 2) * WIDE)
        while i <= stop:
            if absorb is None:
                block = join(join(block, read(x, i, plane)), read(x, i + WIDE, plane))
            else:
                block = absorb(block, read(x, i, plane), read(x, i + WIDE, plane))
            i += 2 * WIDE
        total = join(total, block)
    if i + WIDE <= size:
        total = join(total, read(x, i, plane))
        i += WIDE
    if i < size:
        total = join(total, read_rest(x, i, size - i, plane))
    return total


@jit.inline
def fold_columns(x, count, stride, left, plane, nothing, read, read_first, join, absorb):
    """`count` rows of WIDE neighbouring columns, of which `left` exist."""
    total = nothing
    i = 0
    if left >= WIDE:
        while i + 2 <= count:
            block = nothing
            stop = min(count - 2, i + BLOCK - 2)
            while i <= stop:
                if absorb is None:
                    block = join(join(block, read(x, i * stride, plane)), read(x, (i + 1) * stride, plane))
                else:
                    block = absorb(block, read(x, i * stride, plane), read(x, (i + 1) * stride, plane))
                i += 2
            total = join(total, block)
        if i < count:
            total = join(total, read(x, i * stride, plane))
            i += 1
    while i < count:
        block = nothing
        for k in range(i, min(count, i + BLOCK)):
            block = join(block, read_first(x, k * stride, left, plane))
        total = join(total, block)
        i += BLOCK
    return total


@jit.inline
def inner(args, lo, hi, nothing, read, read_rest, join, absorb, across, write, T, O):
    """Results [lo, hi), each from contiguous rows of x."""
    x, y = ptr(load(args, FOLD.x), T), ptr(load(args, FOLD.y), O)
    kept, kept_outer, kept_inner = load(args, FOLD.inner), load(args, FOLD.outer_stride), load(args, FOLD.inner_stride)
    rows, length, row_stride = load(args, FOLD.rows), load(args, FOLD.length), load(args, FOLD.row_stride)
    whole, plane, elements = load(args, FOLD.whole), load(args, FOLD.plane), bitcast(load(args, FOLD.count), F64)
    a = lo // kept
    b = lo - a * kept
    for index in range(lo, hi):  # counted along: a division takes as long as some vectors
        at = x + (a * kept_outer + b * kept_inner)
        count = min(length, whole - a * length)
        b += 1
        if b == kept:
            a, b = a + 1, I64(0)
        total = nothing
        for row in range(rows):
            part = fold_row(at + row * row_stride, count, plane, nothing, read, read_rest, join, absorb)
            total = join(total, part)
        write(y, index, across(total), elements, plane)
    return 0


@jit.inline
def outer(args, lo, hi, nothing, read, read_first, join, absorb, write_first, T, O):
    """Blocks [lo, hi) of WIDE neighbouring results; x has unit stride along the inner kept dim, or is read as if so."""
    x, y = ptr(load(args, FOLD.x), T), ptr(load(args, FOLD.y), O)
    kept, kept_outer, kept_inner = load(args, FOLD.inner), load(args, FOLD.outer_stride), load(args, FOLD.inner_stride)
    rows, length = load(args, FOLD.rows), load(args, FOLD.length)
    row_stride, stride = load(args, FOLD.row_stride), load(args, FOLD.stride)
    whole, plane, elements = load(args, FOLD.whole), load(args, FOLD.plane), bitcast(load(args, FOLD.count), F64)
    blocks = (kept + WIDE - 1) // WIDE
    a = lo // blocks
    column = (lo - a * blocks) * WIDE
    for _ in range(lo, hi):
        left = kept - column
        at = x + (a * kept_outer + column * kept_inner)
        count = min(length, whole - a * length)
        total = nothing
        for row in range(rows):
            part = fold_columns(
                at + row * row_stride, count, stride, left, plane, nothing, read, read_first, join, absorb
            )
            total = join(total, part)
        write_first(y, a * kept + column, total, left, elements, plane)
        column += WIDE
        if column >= kept:
            a, column = a + 1, I64(0)
    return 0
