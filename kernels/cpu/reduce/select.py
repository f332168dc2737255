"""Elements of sorted rows by their ranks."""

from numba import types

from ...blocks.reduce import PICK
from ...build import jit
from ...lang.simd import load, ptr, store
from ...problems.reduce import MEDIAN
from .sort import sign_of

I64 = types.int64


@jit.inline
def median_rank(rank, numbers, size):
    """The rank of a median (MEDIAN or NANMEDIAN) where so many elements are no NaN."""
    if rank == MEDIAN:
        return (size - 1) // 2 if numbers == size else numbers
    return max(numbers - 1, 0) // 2


@jit.inline
def numbers_of(x, size, infinity, E):
    """How many elements of a sorted row of floats are no NaN, which are the last ones."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if E(load(x, middle) & E(~sign_of(E))) > E(infinity):
            high = middle
        else:
            low = middle + 1
    return low


@jit.inline
def pick(args, lo, hi, E):
    """Ranks [lo, hi) of all rows; 1 where there is no such element."""
    ranks, size, count = load(args, PICK.ranks), load(args, PICK.size), load(args, PICK.count)
    for item in range(lo, hi):
        row = ptr(load(args, PICK.ordered), E) + item // count * size
        rank = load(ptr(ranks, I64), item) if ranks != 0 else load(args, PICK.rank)
        if ranks == 0 and rank < 0:
            rank = median_rank(rank, numbers_of(row, size, load(args, PICK.infinity), E), size)
        if rank < 0 or rank >= size:
            return 1
        store(ptr(load(args, PICK.values), E), item, load(row, rank))
        at = item // count * size + rank
        store(ptr(load(args, PICK.indices), I64), item, load(ptr(load(args, PICK.order), I64), at))
    return 0
