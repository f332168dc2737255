"""Elements of several ranks made one, always in the order of the ranks: nothing depends on who comes first."""

from ...blocks.comm import AVG, MAX, MIN, PROD, ROWS
from ...build import isa, jit
from ...lang.by_type import by_type
from ...lang.simd import is_float, load, ptr, select, vload, vload_first, vstore, vstore_first

LANES = isa.lanes()
WIDE = 4 * LANES


@jit.inline
def two(a, b, HOW):
    """One step of a reduction; NaN stays NaN."""
    if HOW == PROD:
        return a * b
    if HOW == MIN:
        return select((b < a) | (b != b), b, a)
    if HOW == MAX:
        return select((b > a) | (b != b), b, a)
    return a + b


@by_type
def divided(total, size):
    """The mean, of a sum of floats; of integers there is none."""
    if is_float(total.dtype):
        return lambda total, size: total / size
    return lambda total, size: total


@jit.inline
def rows(args, lo, hi, T, HOW):
    """Elements [lo, hi) of what all ranks have. `HOW` is one of SUM, PROD, MIN, MAX, AVG."""
    size, rank, stride = load(args, ROWS.size), load(args, ROWS.rank), load(args, ROWS.stride)
    start, own, y = load(args, ROWS.rows), load(args, ROWS.own), ptr(load(args, ROWS.y), T)
    first, i = ptr(own if rank == 0 else start, T), lo
    while i + WIDE <= hi:
        total = vload(first, i, WIDE)
        for r in range(1, size):
            total = two(total, vload(ptr(own if r == rank else start + r * stride, T), i, WIDE), HOW)
        if HOW == AVG:
            total = divided(total, size)
        vstore(y, i, total)
        i += WIDE
    while i < hi:
        rest = hi - i
        total = vload_first(first, i, LANES, rest)
        for r in range(1, size):
            total = two(total, vload_first(ptr(own if r == rank else start + r * stride, T), i, LANES, rest), HOW)
        if HOW == AVG:
            total = divided(total, size)
        vstore_first(y, i, total, rest)
        i += LANES
    return 0
