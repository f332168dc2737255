"""Elements and rows written or read by index: gather, scatter, sums of rows with equal indices, index_put.

Sums are the same for any number of threads: each element of a result belongs to one thread, which adds in the order
of the indices.
"""

from numba import types

from ...build import isa, jit
from ...lang.simd import fill, load, ptr, store, vload, vload_first, vstore, vstore_first
from ..reduce.fold import identity
from .copy import copy_row

LANES = isa.lanes()
WIDE = 4 * LANES
COLUMNS = 4 * LANES  # of a unit of `add_rows`: a cache line or two of each row
I32, I64 = types.int32, types.int64
OUT_OF_RANGE = 1
DIMS = 17  # where the kept dims begin in the arguments of `elements`


# ---- single elements ---------------------------------------------------------------------------


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
def elements(args, lo, hi, move, T, V, I):
    """t[.., index[.., k, j], ..] and v[.., k, j] for units [lo, hi): blocks of j and of k for each kept index.

    args: t, index, v, size of the indexed dim of t; size of that dim of the index and its strides (t, index, v); size
    of the innermost kept dim and its strides; elements of a block of j, blocks of j, of a block of k, blocks of k; the
    number of other kept dims (argument 16), their sizes, strides in t, in the index, in v.
    """
    t, index, v, bound = ptr(load(args, 0), T), ptr(load(args, 1), I), ptr(load(args, 2), V), load(args, 3)
    count, t_k, i_k, v_k = load(args, 4), load(args, 5), load(args, 6), load(args, 7)
    length, t_j, i_j, v_j = load(args, 8), load(args, 9), load(args, 10), load(args, 11)
    j_step, j_blocks, k_step, k_blocks = load(args, 12), load(args, 13), load(args, 14), load(args, 15)
    num_dims = load(args, DIMS - 1)
    for unit in range(lo, hi):
        rest = unit // j_blocks
        j_first = (unit - rest * j_blocks) * j_step
        row = rest // k_blocks
        k_first = (rest - row * k_blocks) * k_step
        t_at, i_at, v_at = 0, 0, 0
        for n in range(num_dims):
            d = num_dims - 1 - n
            size = load(args, DIMS + d)
            rest = row // size
            digit = row - rest * size
            row = rest
            t_at += digit * load(args, DIMS + num_dims + d)
            i_at += digit * load(args, DIMS + 2 * num_dims + d)
            v_at += digit * load(args, DIMS + 3 * num_dims + d)
        k_last = min(count, k_first + k_step)
        if length == 1:
            for k in range(k_first, k_last):
                at = I64(load(index, i_at + k * i_k))
                if at < 0 or at >= bound:
                    return OUT_OF_RANGE
                move(t, t_at + at * t_k, v, v_at + k * v_k)
            continue
        for k in range(k_first, k_last):
            for j in range(j_first, min(length, j_first + j_step)):
                at = I64(load(index, i_at + k * i_k + j * i_j))
                if at < 0 or at >= bound:
                    return OUT_OF_RANGE
                move(t, t_at + at * t_k + j * t_j, v, v_at + k * v_k + j * v_j)
    return 0


@jit.inline
def gather(args, lo, hi, E, I):
    return elements(args, lo, hi, read, E, E, I)


@jit.inline
def scatter(args, lo, hi, E, I):
    return elements(args, lo, hi, write, E, E, I)


@jit.inline
def scatter_add(args, lo, hi, T, V, I):
    return elements(args, lo, hi, add, T, V, I)


# ---- rows that are added up --------------------------------------------------------------------


@jit.inline
def chain(args, lo, hi, I):
    """Link equal indices in their order: first[row] is the place of the first one, following[place] the next.

    args: index, its stride, how many, rows, first (int32 [rows]), following (int32 [how many]); -1 ends.
    """
    index, step, count, rows = ptr(load(args, 0), I), load(args, 1), load(args, 2), load(args, 3)
    first, following = ptr(load(args, 4), I32), ptr(load(args, 5), I32)
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
    args: t, v, index, its stride, how many, first, following (of `chain`), row length, row stride and outer
    stride of t, of v, blocks of a row, scale (bits).
    """
    t, v, index, step = ptr(load(args, 0), T), ptr(load(args, 1), T), ptr(load(args, 2), I), load(args, 3)
    count, first, following = load(args, 4), ptr(load(args, 5), I32), ptr(load(args, 6), I32)
    length, t_row, t_outer, v_row, v_outer = load(args, 7), load(args, 8), load(args, 9), load(args, 10), load(args, 11)
    blocks, scale = load(args, 12), identity(args, 13, A)
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
                target, source = t + (outer * t_outer + row * t_row), v + outer * v_outer
                c = begin
                while c + WIDE <= end:
                    total, place = vload(target, c, WIDE), n
                    while place >= 0:
                        total = total + vload(source, place * v_row + c, WIDE) * scale
                        place = I64(load(following, place))
                    vstore(target, c, total)
                    c += WIDE
                while c < end:
                    left = end - c
                    rest, place = vload_first(target, c, LANES, left), n
                    while place >= 0:
                        rest = rest + vload_first(source, place * v_row + c, LANES, left) * scale
                        place = I64(load(following, place))
                    vstore_first(target, c, rest, left)
                    c += LANES
    return 0


# ---- several indices at once -------------------------------------------------------------------


@jit.inline
def offsets(args, lo, hi):
    """Where elements [lo, hi) of broadcast index tensors lie: the sum of index times stride over the tensors.

    args: y (int64), tensors, dims, sizes of the dims; for each tensor (int64) its address, the size and stride of
    the dim it indexes, and its own strides. Negative indices count from the end.
    """
    y, num_tensors, num_dims = ptr(load(args, 0), I64), load(args, 1), load(args, 2)
    for i in range(lo, hi):
        offset = 0
        for n in range(num_tensors):
            own = args + (3 + num_dims + n * (3 + num_dims))
            size, rest, at = load(own, 1), i, 0
            for k in range(num_dims):
                d = num_dims - 1 - k
                length = load(args, 3 + d)
                digit = rest
                rest = rest // length
                at += (digit - rest * length) * load(own, 3 + d)
            index = load(ptr(load(own, 0), I64), at)
            if index < -size or index >= size:
                return OUT_OF_RANGE
            offset += (index + size if index < 0 else index) * load(own, 2)
        store(y, i, offset)
    return 0


@jit.inline
def put_rows(args, lo, hi, T, V, ADD):
    """t[o + offsets[n] + column] = (or +=) v[o, n, column] for units [lo, hi): blocks of columns for each o.

    args: t, v, offsets, how many, row length, outer stride of t, strides of v (outer, n, column), columns of a
    block, blocks.
    """
    t, v, places, count = ptr(load(args, 0), T), ptr(load(args, 1), V), ptr(load(args, 2), I64), load(args, 3)
    length, t_outer, v_outer, v_row, v_step = load(args, 4), load(args, 5), load(args, 6), load(args, 7), load(args, 8)
    columns, blocks = load(args, 9), load(args, 10)
    for unit in range(lo, hi):
        outer = unit // blocks
        first = (unit - outer * blocks) * columns
        size = min(columns, length - first)
        for n in range(count):
            target = t + (outer * t_outer + load(places, n) + first)
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
            else:
                for c in range(size):
                    store(target, c, load(source, c * v_step))
    return 0
