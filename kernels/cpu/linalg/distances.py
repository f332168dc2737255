"""Distances between each two rows of a matrix, by the norm of their difference."""

from numba import types

from ...blocks.linalg import DISTANCES, ROWS
from ...build import jit
from ...lang.simd import (
    bitcast,
    fill,
    lane,
    load,
    ptr,
    reduce_add,
    reduce_max,
    select,
    store,
    vabs,
    vload,
    vload_first,
    vmax,
    vsqrt,
)
from ...lang.vmath import pow
from .rows import LANES


@jit.inline
def pairs(args, lo, hi, join, finish, T):
    """Units [lo, hi): a row and ROWS others behind it. Rows come from both ends in turn, so that slices are as long."""
    x, y = ptr(load(args, DISTANCES.x), T), ptr(load(args, DISTANCES.y), T)
    rows, size = load(args, DISTANCES.rows), load(args, DISTANCES.size)
    power = fill(bitcast(load(args, DISTANCES.power), types.float64), T, LANES)
    blocks = (rows + ROWS - 1) // ROWS
    for unit in range(lo, hi):
        turn = unit // blocks
        row = turn // 2 if turn % 2 == 0 else rows - 1 - turn // 2
        first = max(row + 1, (unit - turn * blocks) * ROWS)
        last = min(rows, (unit - turn * blocks + 1) * ROWS)
        one, at = x + row * size, row * rows - row * (row + 3) // 2 - 1
        for other in range(first, last):
            two, total, k = x + other * size, fill(0, T, LANES), 0
            while k + LANES <= size:
                total = join(total, vload(one, k, LANES) - vload(two, k, LANES), power)
                k += LANES
            if k < size:
                rest = vload_first(one, k, LANES, size - k) - vload_first(two, k, LANES, size - k)
                total = join(total, rest, power)
            store(y, at + other, finish(total, power, T))
    return 0


@jit.inline
def add_square(total, x, power):
    return total + x * x


@jit.inline
def root_of_sum(total, power, T):
    return lane(vsqrt(fill(reduce_add(total), T, LANES)), 0)


@jit.inline
def add_size(total, x, power):
    return total + vabs(x)


@jit.inline
def sum_of(total, power, T):
    return reduce_add(total)


@jit.inline
def count(total, x, power):
    return select(x == x, select(x != 0, total + 1.0, total), total + x)


@jit.inline
def keep_largest(total, x, power):
    return vmax(total, vabs(x))


@jit.inline
def largest_of(total, power, T):
    return reduce_max(total)


@jit.inline
def add_power(total, x, power):
    return total + pow(vabs(x), power)


@jit.inline
def power_of_sum(total, power, T):
    return lane(pow(fill(reduce_add(total), T, LANES), 1.0 / power), 0)


@jit.inline
def euclidean(args, lo, hi, T):
    return pairs(args, lo, hi, add_square, root_of_sum, T)


@jit.inline
def sizes(args, lo, hi, T):
    return pairs(args, lo, hi, add_size, sum_of, T)


@jit.inline
def different(args, lo, hi, T):
    return pairs(args, lo, hi, count, sum_of, T)


@jit.inline
def largest(args, lo, hi, T):
    return pairs(args, lo, hi, keep_largest, largest_of, T)


@jit.inline
def powers(args, lo, hi, T):
    return pairs(args, lo, hi, add_power, power_of_sum, T)
