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
def combine(y, rows, step, own, rank, size, n, T, HOW):
    """y[:n] of what `size` ranks have: rank r at address `rows + r * step`, and `rank` itself at `own`."""
    first = ptr(own if rank == 0 else rows, T)
    i = 0
    while i + WIDE <= n:
        total = vload(first, i, WIDE)
        for r in range(1, size):
            total = two(total, vload(ptr(own if r == rank else rows + r * step, T), i, WIDE), HOW)
        if HOW == AVG:
            total = divided(total, size)
        vstore(y, i, total)
        i += WIDE
    while i < n:
        rest = n - i
        total = vload_first(first, i, LANES, rest)
        for r in range(1, size):
            total = two(total, vload_first(ptr(own if r == rank else rows + r * step, T), i, LANES, rest), HOW)
        if HOW == AVG:
            total = divided(total, size)
        vstore_first(y, i, total, rest)
        i += LANES


@jit.inline
def rows(args, lo, hi, T, HOW):
    """Elements [lo, hi) of the rows that other ranks sent, and of this rank's own."""
    item = load(args, ROWS.item)
    y = ptr(load(args, ROWS.y) + lo * item, T)
    combine(y, load(args, ROWS.rows) + lo * item, load(args, ROWS.stride), load(args, ROWS.own) + lo * item,
            load(args, ROWS.rank), load(args, ROWS.size), hi - lo, T, HOW)  # fmt: skip
    return 0
