"""Triangular systems and exchanged rows.

Of triangular systems, a lane for a row, a warp for 32 of them, up to eight warps for the rows of some columns.

Rows are numbered in the order in which they become known, so that from here on all systems are lower ones. A warp
brings tiles of 32 x 32 of its rows to shared memory, while it waits for the elements before them, and subtracts what
these make of its sums. When it is its turn, its lanes tell one another four sums at a time, and each solves these four
for itself: an exchange, which takes as long as six multiply-adds, for four rows, not for each. A block that told 32
rows one by one, behind tiles that all warps waited for twice, took 76 us for 256 x 256 and 64 columns, this one takes
12 (PyTorch 50; H200). Systems of up to 32, 64 and 128 rows have 8, 4 and 2 in a block.
"""

from numba import types

from ...blocks.linalg import EXCHANGED, OUT_OF_RANGE, STRIP, TRIANGULAR
from ...build import jit
from ...lang.by_type import by_type
from ...lang.memory import behind
from ...lang.mma import commit_copies, copy_4, copy_8, row_product, some_lanes, wait_copies
from ...lang.ptx import (
    WARP,
    barrier,
    block,
    blocks,
    dynamic_memory,
    dynamic_shared,
    from_place,
    thread,
    voted,
    warp_barrier,
)
from ...lang.simd import (
    address,
    fill,
    lane,
    load,
    muladd,
    ptr,
    store,
    vload_aligned,
    vload_first,
    vstore,
    vstore_first,
)
from ..block import size_of, width
from .sizes import EACH, EXCHANGE_SHARED, ROWS, TILE, WARPS

I32 = types.int32
MANY = 512 * WARPS  # warps' columns from which a warp has EACH: four blocks of a multiprocessor
ALL = (1 << WARP) - 1


@by_type
def copy_one(to, p, valid):
    """Start to copy the element at p to a shared address."""
    copy = copy_4 if p.dtype.bitwidth == 32 else copy_8
    return lambda to, p, valid: copy(to, address(p), valid)


@by_type
def is_usual(d):
    """Whether the reciprocal of d is as near to 1 / d as other quotients are: no 0, NaN or infinity, nor close to."""
    most = 2.0**100 if d.bitwidth == 32 else 2.0**1000
    return lambda d: ((d > 1 / most) & (d < most)) | ((d < -1 / most) & (d > -most))


@jit.inline
def pitch(p):
    return ROWS + width(p)


@jit.inline
def bring(to, a, step, size, rows, columns):
    """Start to copy a tile from a on, of which so many rows and columns exist, to a shared address; zeros elsewhere."""
    own, line = thread() % WARP, pitch(a) * size_of(a)
    there, a, apart = ((1 << rows) - 1 if own < columns else 0), a + step * own, step * size
    for i in range(ROWS):
        copy_one(to + i * line + own * size_of(a), a + i * apart, there & (1 << i))
    commit_copies()


def _solver(each):
    """What a warp does for `each` columns."""
    part = 8 * each

    @jit.inline
    def told(s, tile, row, exact, T):
        """The element of a row of the tile from its sum."""
        by = fill(load(tile, row * pitch(tile) + ROWS), T, each)
        return s / by if exact else s * by

    @jit.inline
    def less(s, tile, row, column, other, T):
        return muladd(fill(-load(tile, row * pitch(tile) + column), T, each), other, s)

    @jit.inline
    def solve_four(tile, s, found, j, exact, T):
        """Elements j to j + 3, which all lanes find for themselves, and what they leave of the sums of later rows.

        Sums of earlier rows become anything: what they made has been `found`.
        """
        own = thread() % WARP
        a = vload_aligned(tile, own * pitch(tile) + j, 4)
        s0, s1, s2, s3 = from_place(s, j), from_place(s, j + 1), from_place(s, j + 2), from_place(s, j + 3)
        x0 = told(s0, tile, j, exact, T)
        s1, s2, s3 = less(s1, tile, j + 1, j, x0, T), less(s2, tile, j + 2, j, x0, T), less(s3, tile, j + 3, j, x0, T)
        x1 = told(s1, tile, j + 1, exact, T)
        s2, s3 = less(s2, tile, j + 2, j + 1, x1, T), less(s3, tile, j + 3, j + 1, x1, T)
        x2 = told(s2, tile, j + 2, exact, T)
        x3 = told(less(s3, tile, j + 3, j + 2, x2, T), tile, j + 3, exact, T)
        s = muladd(fill(-lane(a, 0), T, each), x0, s)
        s = muladd(fill(-lane(a, 1), T, each), x1, s)
        s = muladd(fill(-lane(a, 2), T, each), x2, s)
        s = muladd(fill(-lane(a, 3), T, each), x3, s)
        first, last = (x1 if own & 1 else x0), (x3 if own & 1 else x2)
        mine = last if own & 2 else first
        return s, (mine if own >> 2 == j >> 2 else found)

    @jit.inline
    def solve_tile(tile, s, count, exact, T):
        """The element of each lane, of a triangle and their sums."""
        found = s
        for j in range(0, count, 4):
            s, found = solve_four(tile, s, found, j, exact, T)
        return found

    @jit.inline
    def without(s, row, found, at):
        """The sums without the products of a row of a tile and the elements that are found."""
        p = row_product(some_lanes(row, 0, 8), vload_aligned(found, at, part))
        q = row_product(some_lanes(row, 1, 8), vload_aligned(found, at + part, part))
        r = row_product(some_lanes(row, 2, 8), vload_aligned(found, at + 2 * part, part))
        return s - ((p + q) + (r + row_product(some_lanes(row, 3, 8), vload_aligned(found, at + 3 * part, part))))

    @jit.inline
    def solve_rows(a, x, size, columns, left, upper, unit, begin, groups, group, tile, to, found, T):
        """Rows from `begin` on, 32 for each of the `groups` of warps of these columns."""
        own, step, top = thread() % WARP, (-1 if upper else 1), (size - 1 if upper else 0)
        row, first = begin + group * ROWS + own, begin + group * ROWS
        at = top + step * min(row, size - 1)
        s = vload_first(x, at * columns, each, left if row < size else 0)
        diagonal = load(a, at * size + at) if not unit and row < size else T(1)
        exact = voted(is_usual(diagonal)) != ALL
        store(tile, own * pitch(tile) + ROWS, diagonal if exact else T(1) / diagonal)
        stages, count = min(groups, (size - begin + ROWS - 1) // ROWS), min(size - first, ROWS)
        start = a + (top * size + top + step * first * size)
        if count > 0:
            bring(to, start, step, size, count, size)
        for panel in range(0, begin + 1, groups * ROWS):
            here = panel == begin
            if not here:
                place = group * ROWS + own
                vstore(found, place * each, vload_first(x, (top + step * (panel + place)) * columns, each, left))
                barrier()
            for n in range(stages if here else groups):
                if count > 0 and (not here or n < group):
                    wait_copies(0)
                    warp_barrier()
                    coefficients, behind_them = vload_aligned(tile, own * pitch(tile), ROWS), panel + (n + 1) * ROWS
                    warp_barrier()
                    bring(to, start + step * behind_them, step, size, count, size - behind_them)
                    if here:
                        barrier()
                    s = without(s, coefficients, found, n * ROWS * each)
                else:
                    if here and n == group:
                        wait_copies(0)
                        warp_barrier()
                        s = solve_tile(tile, s, count, True, T) if exact else solve_tile(tile, s, count, False, T)
                        vstore(found, (n * ROWS + own) * each, s)
                        if row < size:
                            vstore_first(x, at * columns, s, left)
                    if here:
                        barrier()
            barrier()

    @jit.inline
    def solve(args, lo, hi, T):
        """All units of (matrix, `each` columns), as many of a block as its warps are for."""
        size, columns = load(args, TRIANGULAR.size), load(args, TRIANGULAR.columns)
        upper, unit = load(args, TRIANGULAR.upper) != 0, load(args, TRIANGULAR.unit) != 0
        groups = groups_of(size)
        chunks, warp, together = (columns + each - 1) // each, from_place(thread() // WARP, 0), WARPS // groups
        group, team = warp % groups, warp // groups
        tiles = ptr(dynamic_memory(), T)
        tile, found = behind(tiles, warp * TILE), behind(tiles, WARPS * TILE + team * groups * ROWS * each)
        to = dynamic_shared() + warp * TILE * size_of(tiles)
        units = hi if each == 1 else hi // columns * chunks
        for unit_of_block in range(block() * together, units, blocks() * together):
            number = min(unit_of_block + team, units - 1)
            matrix = number // chunks
            column = (number - matrix * chunks) * each
            left = min(each, columns - column) if unit_of_block + team < units else 0
            a = ptr(load(args, TRIANGULAR.a), T) + matrix * size * size
            x = ptr(load(args, TRIANGULAR.x), T) + (matrix * size * columns + column)
            for begin in range(0, size, groups * ROWS):
                solve_rows(a, x, size, columns, left, upper, unit, begin, groups, group, tile, to, found, T)

    return solve


@jit.inline
def groups_of(size):
    """How many warps the rows of a system are for."""
    return 1 if size <= ROWS else 2 if size <= 2 * ROWS else 4 if size <= 4 * ROWS else WARPS


solve_one, solve_some = _solver(1), _solver(EACH)


@jit.inline
def solve_triangular(args, lo, hi, T):
    """All items of (matrix, column)."""
    columns = load(args, TRIANGULAR.columns)
    if columns >= EACH and hi * groups_of(load(args, TRIANGULAR.size)) >= MANY:
        solve_some(args, lo, hi, T)
    else:
        solve_one(args, lo, hi, T)
    return 0


# ---- rows that are exchanged ---------------------------------------------------------------------------
# A thread follows a row back through all exchanges, then rows move through shared memory. A team of (number of this
# thread, threads, bytes of shared memory) has STRIP columns: a warp where lanes have a row each, else a block.


@jit.inline
def meet(team):
    if team[1] == WARP:
        warp_barrier()
    else:
        barrier()


@jit.inline
def before(row, k, other):
    """Where a row was before rows k and `other` were exchanged."""
    return other if row == k else (k if row == other else row)


@jit.inline
def follow(sources, staged, pivots, size, steps, back, team):
    """Fill in where each row comes from; whether a pivot is wrong, which this thread has read."""
    own, members, _ = team
    wrong = False
    for i in range(own, size, members):
        store(sources, i, i)
    for first in range(0, steps, members):
        k = first + own if back else steps - 1 - first - own
        other = load(pivots, k) - 1 if first + own < steps else k
        if first + own < steps and (other < 0 or other >= size):
            wrong, other = True, k
        store(staged, own, other)
        meet(team)
        for i in range(own, size, members):
            row, k, by = load(sources, i), I32(first if back else steps - 1 - first), I32(1 if back else -1)
            for n in range(0, min(members, steps - first), 4):
                others = vload_aligned(staged, n, 4)
                row = before(row, k, lane(others, 0))
                row = before(row, I32(k + by), lane(others, 1))
                row = before(row, I32(k + 2 * by), lane(others, 2))
                row = before(row, I32(k + 3 * by), lane(others, 3))
                k = I32(k + 4 * by)
            store(sources, i, row)
        meet(team)
    return wrong


@jit.inline
def move(x, sources, held, to, size, columns, width, team):
    """Bring the rows of `width` columns of x to where they belong, as many columns at a time as there is room for."""
    own, members, room = team
    lanes = min(width, room // (size * size_of(x)))
    at, row = own % WARP, own // WARP
    for begin in range(0, width, lanes):
        if at < min(lanes, width - begin):
            for i in range(row, size, members // WARP):
                source = x + (load(sources, i) * columns + begin + at)
                copy_one(to + (i * lanes + at) * size_of(x), source, 1)
        commit_copies()
        wait_copies(0)
        meet(team)
        if at < min(lanes, width - begin):
            for i in range(row, size, members // WARP):
                store(x, i * columns + begin + at, load(held, i * lanes + at))
        meet(team)


@jit.inline
def move_in_turn(x, pivots, size, columns, width, steps, back):
    """The same for so many rows that shared memory does not hold one column: each exchange waits for those before."""
    for i in range(steps):
        k = steps - 1 - i if back else i
        other = load(pivots, k) - 1
        if thread() < width and 0 <= other < size and other != k:
            one, two = load(x, k * columns + thread()), load(x, other * columns + thread())
            store(x, k * columns + thread(), two)
            store(x, other * columns + thread(), one)


@jit.inline
def exchange_unit(args, x, pivots, size, columns, begin, staged, to, team, T):
    """The exchanged rows of STRIP columns from `begin` on, of which x is the first; whether a pivot is wrong."""
    own, members, nbytes = team
    steps, back, eye = load(args, EXCHANGED.steps), load(args, EXCHANGED.back) != 0, load(args, EXCHANGED.eye) != 0
    width, line = min(STRIP, columns - begin), own % WARP
    head = 4 * members + (4 * size + 15 & -16)
    room = nbytes - head
    if room < size * size_of(x):
        wrong = False
        for k in range(own, steps, members):
            wrong |= load(pivots, k) < 1 or load(pivots, k) > size
        if eye and line < width:
            for i in range(own // WARP, size, members // WARP):
                store(x, i * columns + line, T(1) if i == begin + line else T(0))
        meet(team)
        move_in_turn(x, pivots, size, columns, width, steps, back)
        return wrong
    sources, held = behind(staged, members), ptr(address(behind(staged, head // 4)), T)
    wrong = follow(sources, staged, pivots, size, steps, back, team)
    if not eye:
        move(x, sources, held, to + head, size, columns, width, (own, members, room))
    elif line < width:
        for i in range(own // WARP, size, members // WARP):
            store(x, i * columns + line, T(1) if load(sources, i) == begin + line else T(0))
    return wrong


@jit.inline
def exchanged(args, lo, hi, T):
    """All units of (matrix, STRIP columns) with the rows exchanged as elimination did, or undone."""
    size, columns, steps = load(args, EXCHANGED.size), load(args, EXCHANGED.columns), load(args, EXCHANGED.steps)
    strips, wrong = (columns + STRIP - 1) // STRIP, False
    teams = WARPS if size <= WARP else 1
    members, nbytes = WARPS * WARP // teams, EXCHANGE_SHARED // teams
    own = thread() // members
    team = thread() - own * members, members, nbytes
    for unit in range(block() * teams + own, hi, blocks() * teams):
        matrix = unit // strips
        begin = (unit - matrix * strips) * STRIP
        x = ptr(load(args, EXCHANGED.x), T) + (matrix * size * columns + begin)
        pivots = ptr(load(args, EXCHANGED.pivots), I32) + matrix * steps
        staged, to = behind(ptr(dynamic_memory(), I32), own * nbytes // 4), dynamic_shared() + own * nbytes
        wrong |= exchange_unit(args, x, pivots, size, columns, begin, staged, to, team, T)
        meet(team)
    return OUT_OF_RANGE if wrong else 0
