"""Rows that registers hold: each is read once and written once, in accesses of 16 bytes.

A row is for TEAM threads, PIECES vectors for each (`policy.py: row_parts`): 4 or 8 threads of a warp, a warp, or all of
a block. Read a second time, from the caches, rows of 768 took a softmax 1.5 times as long as PyTorch's. With SPAN, rows
may begin anywhere: a thread's vectors begin at multiples of 16 bytes all the same, and what they have of the rows
beside is left out. Element by element, rows of 1001 took twice as long as those of 1000.
"""

from ...build import jit
from ...lang.by_type import by_type
from ...lang.memory import element_bytes
from ...lang.pieces import inside_held, vgather_held, vload_held, vstore_held
from ...lang.ptx import WARP, barrier, block, blocks, from_lane, shared, thread, threads
from ...lang.simd import address, fill, load, ptr, store
from ...lang.vector import literal_of
from ..block import across, add, larger, width

_PARTS_BYTES = 8 * 32  # of a number of each warp


def _sizes(dtype, like):
    """(elements of a type that make 16 bytes, how many times so many the vector `like` has)."""
    lanes = 16 // element_bytes(dtype)
    return lanes, like.lanes // lanes


@by_type
def offset(p):
    """How many elements p is behind the vector of 16 bytes that it points into."""
    nbytes = element_bytes(p.dtype)
    lanes = 16 // nbytes
    return lambda p: address(p) // nbytes % lanes


@jit.inline
def part_of(x, size, TEAM, SPAN):
    """A thread's part of a row: (its first element, those from a vector to the next one, where the row begins, ends).

    Elements are counted from the vector that the row begins in.
    """
    low = offset(x) if SPAN else 0
    return thread() % TEAM * width(x), TEAM * width(x), low, low + size


@jit.inline
def lined(x, y, x_stride, y_stride, SPAN):
    """Whether y has vectors where x has them, in all rows; without SPAN, both at the beginning of each."""
    if SPAN:
        return ((address(x) - address(y)) | (address(x + x_stride) - address(y + y_stride))) & 15 == 0
    return (address(x) | address(y) | address(x + x_stride) | address(y + y_stride)) & 15 == 0


@by_type
def read_part(p, part, like):
    """What this thread has of a row at p, and besides, anything."""
    lanes, count = _sizes(p.dtype, like)
    return lambda p, part, like: vload_held(p + -part[2], part[0], part[1], part[3], lanes, count)


@by_type
def read_along(p, x, part, like, SPAN):
    """What lies at p, one thing for all rows, for the elements of a thread's part of a row x."""
    lanes, count = _sizes(x.dtype, like)

    def implementation(p, x, part, like, SPAN):
        at = p + -part[2]
        if SPAN:
            return vgather_held(at, part[0], part[1], part[2], part[3], lanes, count)
        return vload_held(at, part[0], part[1], part[3], lanes, count)

    return implementation


@by_type
def inside_part(x, part, like):
    """Which lanes of such a part are elements of the row."""
    lanes, count = _sizes(x.dtype, like)
    return lambda x, part, like: inside_held(part[0], part[1], part[2], part[3], lanes, count)


@by_type
def write_part(p, part, value):
    """Store such a part."""
    _, count = _sizes(p.dtype, value)
    return lambda p, part, value: vstore_held(p + -part[2], part[0], part[1], part[2], part[3], value, count)


@by_type
def joined(v, join, TEAM):
    """A number of each thread of a team, joined in the order of the threads' numbers; all of them get the result."""
    dtype = v

    def implementation(v, join, TEAM):
        if TEAM < WARP:
            for apart in (1, 2, 4, 8, 16):
                if apart < TEAM:
                    v = join(v, from_lane(v, apart))
            return v
        v = across(v, join, WARP)
        if TEAM > WARP:
            parts, warps = ptr(shared(_PARTS_BYTES), dtype), TEAM // WARP
            if thread() % WARP == 0:
                store(parts, thread() // WARP, v)
            barrier()
            v = load(parts, thread() % warps)
            for apart in (1, 2, 4, 8, 16):
                if apart < warps:
                    v = join(v, from_lane(v, apart))
            barrier()
        return v

    return implementation


@jit.inline
def part_sum(v, TEAM):
    """The sum of a number of each thread of a team."""
    return joined(v, add, TEAM)


@jit.inline
def part_max(v, TEAM):
    """The largest number of the threads of a team; NaN if one is."""
    return joined(v, larger, TEAM)


@by_type(prefer_literal=True)
def each_row(args, rows, one, x, T, W, B, TEAM, PIECES, SPAN):
    """Call one(args, row, like, T, W, B, TEAM, SPAN) for the rows of this thread's team.

    `like` is a vector of as many lanes as a part of a row has, x a pointer to elements of rows. The last rows of all
    may be those of several teams of a warp.
    """
    lanes = 16 // element_bytes(x.dtype) * max(1, literal_of(PIECES))

    def implementation(args, rows, one, x, T, W, B, TEAM, PIECES, SPAN):
        teams, like = threads() // TEAM, fill(0.0, T, lanes)
        for some in range(block() * teams, rows, blocks() * teams):
            if TEAM < WARP:
                if some + thread() // WARP * (WARP // TEAM) < rows:
                    one(args, min(some + thread() // TEAM, rows - 1), like, T, W, B, TEAM, SPAN)
            elif some + thread() // TEAM < rows:
                one(args, some + thread() // TEAM, like, T, W, B, TEAM, SPAN)

    return implementation


@jit.inline
def own_rows(TEAM):
    """(first row, step to the next one, team) of this thread, where registers do not hold rows: at least a warp."""
    members = max(TEAM, WARP)
    teams = threads() // members
    return block() * teams + thread() // members, blocks() * teams, (thread() % members, members)
