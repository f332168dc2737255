"""Triangular systems: a block of threads for some columns of the right side, a warp for one or four, a lane for a row.

32 rows at a time: what is found already is subtracted, 64 of it at once, from tiles in shared memory, then each lane in
turn knows its element and tells it to the others. A warp in which lanes were columns, and which went from row to row
while seven others waited, took 212 us for 256 x 256 and 64 columns (PyTorch 52; H200).
"""

from ...blocks.linalg import TRIANGULAR
from ...build import jit
from ...lang.ptx import WARP, barrier, from_place, shared, thread, threads
from ...lang.simd import load, ptr, store

ROWS = WARP  # that are solved at a time
WARPS = 8  # of a block
STEPS = 64  # of what is found that are subtracted at once
LINE = STEPS + 1  # of a tile in shared memory, so that neither rows nor columns meet in a bank
MANY = 512  # columns from which a warp has four: the tiles are read for twice as many sums
MOST = 4 * WARPS  # columns of a block
TILE_BYTES, FOUND_BYTES = 8 * ROWS * LINE, 8 * STEPS * MOST


@jit.inline
def bring_tile(tile, a, size, row, count, column, width):
    """A part [count, width] of a to shared memory, a row for a warp."""
    lane, warp = thread() % WARP, thread() // WARP
    for i in range(warp, count, WARPS):
        if lane < width:
            store(tile, i * LINE + lane, load(a, (row + i) * size + column + lane))
        if lane + WARP < width:
            store(tile, i * LINE + lane + WARP, load(a, (row + i) * size + column + lane + WARP))


def _solver(each):
    """The solution of the columns of a block, `each` for a warp."""
    wide = each * WARPS

    @jit.inline
    def get(x, at, first, left, T):
        return load(x, at + first) if first < left else T(0)

    @jit.inline
    def subtract(tile, found, s, width):
        """What `width` elements that are found make of the sums s of a row for each lane."""
        s0, s1, s2, s3 = s
        at, own = thread() % WARP * LINE, thread() // WARP * each
        for begin in range(0, width, ROWS):
            for k in range(ROWS):
                j = begin + k
                by = load(tile, at + j)
                s0 -= by * load(found, j * wide + own)
                if each > 1:
                    s1 -= by * load(found, j * wide + own + 1)
                    s2 -= by * load(found, j * wide + own + 2)
                    s3 -= by * load(found, j * wide + own + 3)
        return s0, s1, s2, s3

    @jit.inline
    def known(s, by, own, j, later, unit):
        """The sum of a lane when element j is known: of lane j, the element, of `later` ones what it leaves."""
        if thread() % WARP == j and not unit:
            s /= own
        told = from_place(s, j)
        return s - by * told if later else s

    @jit.inline
    def solve_rows(tile, s, count, upper, unit):
        """The elements of `count` rows, of a triangle and their sums."""
        s0, s1, s2, s3 = s
        lane = thread() % WARP
        at = min(lane, count - 1) * LINE
        own = load(tile, at + min(lane, count - 1))
        for step in range(count):
            j = count - 1 - step if upper else step
            later, by = lane < j if upper else lane > j, load(tile, at + j)
            s0 = known(s0, by, own, j, later, unit)
            if each > 1:
                s1, s2 = known(s1, by, own, j, later, unit), known(s2, by, own, j, later, unit)
                s3 = known(s3, by, own, j, later, unit)
        return s0, s1, s2, s3

    @jit.inline
    def solve(a, x, size, columns, left, upper, unit, tile, found, T):
        """The first columns of x, `left` of them and a block's at most."""
        lane, own = thread() % WARP, thread() // WARP * each
        for n in range(0, size, ROWS):
            count = min(ROWS, size - n)
            row = size - n - count if upper else n
            mine = (row + min(lane, count - 1)) * columns
            s = (
                get(x, mine, own, left, T), get(x, mine, own + min(1, each - 1), left, T),
                get(x, mine, own + min(2, each - 1), left, T), get(x, mine, own + min(3, each - 1), left, T),
            )  # fmt: skip
            for begin in range(0, n, STEPS):
                width = min(STEPS, n - begin)
                column = size - begin - width if upper else begin
                bring_tile(tile, a, size, row, count, column, width)
                for i in range(thread(), width * wide, threads()):
                    j = i // wide
                    store(found, i, get(x, (column + j) * columns, i - j * wide, left, T))
                barrier()
                s = subtract(tile, found, s, width)
                barrier()
            bring_tile(tile, a, size, row, count, row, count)
            barrier()
            s = solve_rows(tile, s, count, upper, unit)
            if lane < count:
                if own < left:
                    store(x, mine + own, s[0])
                if each > 1:
                    if own + 1 < left:
                        store(x, mine + own + 1, s[1])
                    if own + 2 < left:
                        store(x, mine + own + 2, s[2])
                    if own + 3 < left:
                        store(x, mine + own + 3, s[3])
            barrier()

    return solve


solve_one, solve_four = _solver(1), _solver(4)


@jit.inline
def solve_triangular(args, lo, hi, T):
    """Item `lo` of (matrix, column): the first of a block's columns is its own for all, the others are nobody's."""
    size, columns = load(args, TRIANGULAR.size), load(args, TRIANGULAR.columns)
    upper, unit = load(args, TRIANGULAR.upper) != 0, load(args, TRIANGULAR.unit) != 0
    tile, found = ptr(shared(TILE_BYTES), T), ptr(shared(FOUND_BYTES), T)
    matrix = lo // columns
    column = lo - matrix * columns
    wide = MOST if columns >= MANY else WARPS
    if column % wide == 0:
        a, x = ptr(load(args, TRIANGULAR.a), T), ptr(load(args, TRIANGULAR.x), T)
        a, x, left = a + matrix * size * size, x + (matrix * size * columns + column), min(wide, columns - column)
        if columns >= MANY:
            solve_four(a, x, size, columns, left, upper, unit, tile, found, T)
        else:
            solve_one(a, x, size, columns, left, upper, unit, tile, found, T)
    return 0
