"""Elements and rows written or read by index: gather, scatter, sums of rows with equal indices, index_put.

Sums are the same for any number of threads: each element of a result belongs to one thread, which adds in the order
of the indices.
"""

from numba import types

from ...blocks.array import ADD_ROWS, CHAIN, ELEMENTS, INDEX, OFFSETS, PUT_ROWS
from ...build import isa, jit
from ...lang.by_type import by_type
from ...lang.rows import fill_row
from ...lang.simd import (
    bitcast,
    fill,
    is_float,
    load,
    ptr,
    reduce_or,
    select,
    store,
    vload,
    vload_first,
    vstore,
    vstore_first,
)
from .copy import copy_row
from .sizes import COLUMNS

LANES = isa.lanes()
WIDE = 4 * LANES
I32, I64, F64 = types.int32, types.int64, types.float64
OUT_OF_RANGE = 1


# ---- single elements ---------------------------------------------------------------------------


@by_type
def number_of(args, index, A):
    """The number at a place of the block, of type A: a floating-point one stands there as its bits."""
    if is_float(A.instance_type):
        return lambda args, index, A: bitcast(load(args, index), F64)
    return lambda args, index, A: load(args, index)


@jit.inline
def read(t, t_at, v, v_at):
    store(v, v_at, load(t, t_at))


@jit.inline
def write(t, t_at, v, v_at):
    store(t, t_at, load(v, v_at))


@jit.inline
def add(t, t_at, v, v_at):
    store(t, t_at, load(t, t_at) + load(v, v_at))


@jit.inline
def multiply(t, t_at, v, v_at):
    store(t, t_at, load(t, t_at) * load(v, v_at))


@jit.inline
def larger(t, t_at, v, v_at):
    a, b = load(t, t_at), load(v, v_at)
    store(t, t_at, b if b > a or b != b else a)


@jit.inline
def smaller(t, t_at, v, v_at):
    a, b = load(t, t_at), load(v, v_at)
    store(t, t_at, b if b < a or b != b else a)


@jit.inline
def read_row(t, v, size):
    copy_row(v, t, size)


@jit.inline
def write_row(t, v, size):
    copy_row(t, v, size)


def row_of(move, join):
    """What `move` does to one element for `size` neighbours of t and v, where `join` is that of two vectors."""

    @by_type
    def move_row(t, v, size):
        if isinstance(t.dtype, types.Complex) or isinstance(v.dtype, types.Boolean):  # vectors do not have these sums

            def one_by_one(t, v, size):
                for j in range(size):
                    move(t, j, v, j)

            return one_by_one

        def vectors(t, v, size):
            for j in range(0, size, LANES):
                left = size - j
                vstore_first(t, j, join(vload_first(t, j, LANES, left), vload_first(v, j, LANES, left)), left)

        return vectors

    return move_row


@jit.inline
def sum_of(a, b):
    return a + b


@jit.inline
def product_of(a, b):
    return a * b


@jit.inline
def larger_of(a, b):
    return select((b > a) | (b != b), b, a)


@jit.inline
def smaller_of(a, b):
    return select((b < a) | (b != b), b, a)


add_row, multiply_row = row_of(add, sum_of), row_of(multiply, product_of)
larger_row, smaller_row = row_of(larger, larger_of), row_of(smaller, smaller_of)


@jit.inline
def index_at(index, place, bound, WRAP):
    """The index at a place; with `WRAP`, a negative one counts from the end."""
    at = I64(load(index, place))
    return at + bound if WRAP and at < 0 else at


@jit.inline
def elements(args, lo, hi, move, move_row, T, V, I, WRAP):
    """t[.., index[.., k, j], ..] and v[.., k, j] for units [lo, hi): blocks of j and of k for each kept index."""
    t, index, v = ptr(load(args, ELEMENTS.t), T), ptr(load(args, ELEMENTS.index), I), ptr(load(args, ELEMENTS.v), V)
    bound, count, t_k = load(args, ELEMENTS.bound), load(args, ELEMENTS.count), load(args, ELEMENTS.t_k)
    i_k, v_k, length = load(args, ELEMENTS.i_k), load(args, ELEMENTS.v_k), load(args, ELEMENTS.length)
    t_j, i_j, v_j = load(args, ELEMENTS.t_j), load(args, ELEMENTS.i_j), load(args, ELEMENTS.v_j)
    j_step, j_blocks = load(args, ELEMENTS.j_step), load(args, ELEMENTS.j_blocks)
    k_step, k_blocks = load(args, ELEMENTS.k_step), load(args, ELEMENTS.k_blocks)
    num_dims = load(args, ELEMENTS.num_dims)
    for unit in range(lo, hi):
        rest = unit // j_blocks
        j_first = (unit - rest * j_blocks) * j_step
        row = rest // k_blocks
        k_first = (rest - row * k_blocks) * k_step
        t_at, i_at, v_at = 0, 0, 0
        for n in range(num_dims):
            d = num_dims - 1 - n
            size = load(args, ELEMENTS.dims + d)
            rest = row // size
            digit = row - rest * size
            row = rest
            t_at += digit * load(args, ELEMENTS.dims + num_dims + d)
            i_at += digit * load(args, ELEMENTS.dims + 2 * num_dims + d)
            v_at += digit * load(args, ELEMENTS.dims + 3 * num_dims + d)
        k_last = min(count, k_first + k_step)
        if length == 1:
            k = k_first
            if t_k == 1 and i_k == 1 and v_k == 1 and not WRAP:  # one check for eight
                while k + 8 <= k_last:
                    found = vload(index, i_at + k, 8)
                    if reduce_or((found < 0) | (found >= bound)):
                        return OUT_OF_RANGE
                    for n in range(8):
                        move(t, t_at + I64(load(index, i_at + k + n)), v, v_at + k + n)
                    k += 8
            while k + 4 <= k_last:  # one check for four, whose loads do not wait for each other
                i, j = i_at + k * i_k, v_at + k * v_k
                a, b = index_at(index, i, bound, WRAP), index_at(index, i + i_k, bound, WRAP)
                c, d = index_at(index, i + 2 * i_k, bound, WRAP), index_at(index, i + 3 * i_k, bound, WRAP)
                if (a | b | c | d) < 0 or max(max(a, b), max(c, d)) >= bound:
                    return OUT_OF_RANGE
                move(t, t_at + a * t_k, v, j)
                move(t, t_at + b * t_k, v, j + v_k)
                move(t, t_at + c * t_k, v, j + 2 * v_k)
                move(t, t_at + d * t_k, v, j + 3 * v_k)
                k += 4
            while k < k_last:
                at = index_at(index, i_at + k * i_k, bound, WRAP)
                if at < 0 or at >= bound:
                    return OUT_OF_RANGE
                move(t, t_at + at * t_k, v, v_at + k * v_k)
                k += 1
            continue
        if i_j == 0 and t_j == 1 and v_j == 1:  # whole rows have one index
            for k in range(k_first, k_last):
                at = index_at(index, i_at + k * i_k, bound, WRAP)
                if at < 0 or at >= bound:
                    return OUT_OF_RANGE
                row = v + (v_at + k * v_k + j_first)
                move_row(t + (t_at + at * t_k + j_first), row, min(length - j_first, j_step))
            continue
        for k in range(k_first, k_last):
            for j in range(j_first, min(length, j_first + j_step)):
                at = index_at(index, i_at + k * i_k + j * i_j, bound, WRAP)
                if at < 0 or at >= bound:
                    return OUT_OF_RANGE
                move(t, t_at + at * t_k + j * t_j, v, v_at + k * v_k + j * v_j)
    return 0


@jit.inline
def gather(args, lo, hi, T, V, I, WRAP):
    return elements(args, lo, hi, read, read_row, T, V, I, WRAP)


@jit.inline
def scatter(args, lo, hi, T, V, I):
    return elements(args, lo, hi, write, write_row, T, V, I, False)


@jit.inline
def scatter_add(args, lo, hi, T, V, I):
    return elements(args, lo, hi, add, add_row, T, V, I, False)


@jit.inline
def scatter_multiply(args, lo, hi, T, V, I):
    return elements(args, lo, hi, multiply, multiply_row, T, V, I, False)


@jit.inline
def scatter_larger(args, lo, hi, T, V, I):
    return elements(args, lo, hi, larger, larger_row, T, V, I, False)


@jit.inline
def scatter_smaller(args, lo, hi, T, V, I):
    return elements(args, lo, hi, smaller, smaller_row, T, V, I, False)


# ---- rows that are added up --------------------------------------------------------------------


@jit.inline
def chain(args, lo, hi, I):
    """Link equal indices in their order: first[row] is the place of the first one, following[place] the next."""
    index, step = ptr(load(args, CHAIN.index), I), load(args, CHAIN.step)
    count, rows = load(args, CHAIN.indices), load(args, CHAIN.rows)
    first, following = ptr(load(args, CHAIN.first), I32), ptr(load(args, CHAIN.following), I32)
    for i in range(0, rows, LANES):
        vstore_first(first, i, fill(-1, I32, LANES), rows - i)
    for n in range(count):
        place = count - 1 - n
        row = I64(load(index, place * step))
        if row < 0 or row >= rows:
            return OUT_OF_RANGE
        store(following, place, load(first, row))
        store(first, row, place)
    return 0


@jit.inline
def add_rows(args, lo, hi, T, A, I):
    """t[o, index[n]] += scale * v[o, n] for units [lo, hi): blocks of COLUMNS columns for each o.

    Rows with equal indices are added up in registers, in the type A, and rounded once.
    """
    t, v = ptr(load(args, ADD_ROWS.t), T), ptr(load(args, ADD_ROWS.v), T)
    index, step, count = ptr(load(args, ADD_ROWS.index), I), load(args, ADD_ROWS.step), load(args, ADD_ROWS.indices)
    first, following = ptr(load(args, ADD_ROWS.first), I32), ptr(load(args, ADD_ROWS.following), I32)
    length, blocks, scale = load(args, ADD_ROWS.length), load(args, ADD_ROWS.blocks), number_of(args, ADD_ROWS.scale, A)
    t_outer, v_outer = load(args, ADD_ROWS.rows) * length, count * length
    if length == 1:  # vectors of which one lane counts take four times as long: 8.9 instead of 2.2 ms for a million
        for outer in range(lo, hi):
            target, source = t + outer * t_outer, v + outer * v_outer
            for n in range(count):
                row = I64(load(index, n * step))
                if load(first, row) == n:
                    one, place = A(load(target, row)), I64(n)
                    while place >= 0:
                        one += A(load(source, place)) * scale
                        place = I64(load(following, place))
                    store(target, row, one)
        return 0
    unit = lo
    while unit < hi:
        outer = unit // blocks
        block = unit - outer * blocks
        size = min(blocks - block, hi - unit)  # neighbouring blocks together: longer runs of memory
        begin, end = block * COLUMNS, min(length, (block + size) * COLUMNS)
        unit += size
        for n in range(count):
            row = I64(load(index, n * step))
            if load(first, row) == n:
                target, source = t + (outer * t_outer + row * length), v + outer * v_outer
                c = begin
                while c + WIDE <= end:
                    total, place = vload(target, c, WIDE), n
                    while place >= 0:
                        total = total + vload(source, place * length + c, WIDE) * scale
                        place = I64(load(following, place))
                    vstore(target, c, total)
                    c += WIDE
                while c < end:
                    left = end - c
                    rest, place = vload_first(target, c, LANES, left), n
                    while place >= 0:
                        rest = rest + vload_first(source, place * length + c, LANES, left) * scale
                        place = I64(load(following, place))
                    vstore_first(target, c, rest, left)
                    c += LANES
    return 0


# ---- several indices at once -------------------------------------------------------------------


@jit.inline
def offsets(args, lo, hi):
    """The rows that elements [lo, hi) of broadcast indices lead to: the sum of index times step over the tensors.

    Negative indices count from the end.
    """
    y, num_tensors = ptr(load(args, OFFSETS.y), I64), load(args, OFFSETS.num_tensors)
    num_dims, lengths = load(args, OFFSETS.num_dims), args + OFFSETS.sizes
    if num_tensors == 1 and num_dims == 1:  # no divisions: 1 ns instead of 12
        own = lengths + 1
        x, size, step = ptr(load(own, INDEX.x), I64), load(own, INDEX.size), load(own, INDEX.step)
        stride = load(own, INDEX.strides)
        for i in range(lo, hi):
            index = load(x, i * stride)
            if index < -size or index >= size:
                return OUT_OF_RANGE
            store(y, i, (index + size if index < 0 else index) * step)
        return 0
    for i in range(lo, hi):
        offset = 0
        for n in range(num_tensors):
            own = lengths + (num_dims + n * (INDEX.WIDTH + num_dims))
            size, rest, at = load(own, INDEX.size), i, 0
            for k in range(num_dims):
                d = num_dims - 1 - k
                length = load(lengths, d)
                digit = rest
                rest = rest // length
                at += (digit - rest * length) * load(own, INDEX.strides + d)
            index = load(ptr(load(own, INDEX.x), I64), at)
            if index < -size or index >= size:
                return OUT_OF_RANGE
            offset += (index + size if index < 0 else index) * load(own, INDEX.step)
        store(y, i, offset)
    return 0


@jit.inline
def put_rows(args, lo, hi, T, V, ADD):
    """t[o, index[n], column] = (or +=) v[o, n, column] for units [lo, hi): blocks of columns for each o."""
    t, v = ptr(load(args, PUT_ROWS.t), T), ptr(load(args, PUT_ROWS.v), V)
    places = ptr(load(args, PUT_ROWS.index), I64)
    count, length, t_outer = load(args, PUT_ROWS.count), load(args, PUT_ROWS.length), load(args, PUT_ROWS.t_outer)
    v_outer, v_row, v_step = load(args, PUT_ROWS.v_outer), load(args, PUT_ROWS.v_row), load(args, PUT_ROWS.v_step)
    columns, blocks = load(args, PUT_ROWS.columns), load(args, PUT_ROWS.blocks)
    for unit in range(lo, hi):
        outer = unit // blocks
        first = (unit - outer * blocks) * columns
        size = min(columns, length - first)
        for n in range(count):
            target = t + (outer * t_outer + load(places, n) * length + first)
            source = v + (outer * v_outer + n * v_row + first * v_step)
            if v_step == 1 and size >= LANES:
                if ADD:
                    for c in range(0, size, LANES):
                        left = size - c
                        total = vload_first(target, c, LANES, left) + vload_first(source, c, LANES, left)
                        vstore_first(target, c, total, left)
                else:
                    copy_row(target, source, size)
            elif ADD:
                for c in range(size):
                    store(target, c, load(target, c) + load(source, c * v_step))
            elif v_step == 0:
                fill_row(target, size, load(source, 0))
            else:
                for c in range(size):
                    store(target, c, load(source, c * v_step))
    return 0
