"""Rows that registers hold: each is read once and written once, in accesses of 16 bytes.

A row of up to 128 elements is for 4 or 8 threads of a warp, one of up to 1024 a warp's, one of up to 4096 that of four
warps, one of up to 8192 a block's: a thread has at most 32 elements, so that a multiprocessor has room for 24 warps.
Read a second time, from the caches, rows of 768 took a softmax 1.5 times as long as PyTorch's.
"""

from ...build import jit
from ...lang.by_type import by_type
from ...lang.memory import element_bytes
from ...lang.pieces import inside_pieces, vload_pieces, vstore_pieces
from ...lang.ptx import WARP, barrier, barrier_of, block, blocks, from_lane, shared, thread, threads
from ...lang.simd import fill, load, ptr, store
from ..block import across, add, larger, width

FEW = 4  # warps that have a row which is too long for one
_BLOCK = 8  # warps of a block (`policy.py`)
_PARTS_BYTES = 8 * _BLOCK


def _sizes(dtype, like):
    """(elements of a type that make 16 bytes, how many times so many the vector `like` has)."""
    lanes = 16 // element_bytes(dtype)
    return lanes, like.lanes // lanes


@by_type
def read_part(p, x, team, size, like):
    """What this thread has of the `size` elements at p, which lie in threads as those of x do; zeros behind them."""
    lanes, count = _sizes(x.dtype, like)

    def implementation(p, x, team, size, like):
        return vload_pieces(p, team[0] * lanes, team[1] * lanes, size, lanes, count)

    return implementation


@by_type
def inside_part(x, team, size, like):
    """Which lanes of such a part are elements of the row."""
    lanes, count = _sizes(x.dtype, like)

    def implementation(x, team, size, like):
        return inside_pieces(team[0] * lanes, team[1] * lanes, size, lanes, count)

    return implementation


@by_type
def write_part(p, team, size, value):
    """Store such a part."""
    lanes, count = _sizes(p.dtype, value)

    def implementation(p, team, size, value):
        vstore_pieces(p, team[0] * lanes, team[1] * lanes, size, value, count)

    return implementation


@jit.inline
def wait(number, team):
    """Wait for the threads of the team of this number in the block; literal barriers are counted one by one."""
    if team[1] == threads():
        barrier()
    elif number == 0:
        barrier_of(1, FEW * WARP)
    else:
        barrier_of(2, FEW * WARP)


@by_type
def joined(v, join, team):
    """A number of each thread of a team, joined in the order of the threads' numbers; all of them get the result."""
    dtype = v

    def implementation(v, join, team):
        if team[1] < WARP:
            for apart in (1, 2, 4, 8, 16):
                if apart < team[1]:
                    v = join(v, from_lane(v, apart))
            return v
        v = across(v, join, WARP)
        if team[1] > WARP:
            parts, number, warps = ptr(shared(_PARTS_BYTES), dtype), thread() // team[1], team[1] // WARP
            if thread() % WARP == 0:
                store(parts, thread() // WARP, v)
            wait(number, team)
            v = load(parts, number * warps)
            for k in range(1, warps):
                v = join(v, load(parts, number * warps + k))
            wait(number, team)
        return v

    return implementation


@jit.inline
def part_sum(v, team):
    """The sum of a number of each thread of a team."""
    return joined(v, add, team)


@jit.inline
def part_max(v, team):
    """The largest number of the threads of a team; NaN if one is."""
    return joined(v, larger, team)


@jit.inline
def each_row(args, rows, members, size, one, like, T, W, B):
    """Call one(...) for the rows of this thread's team of so many members."""
    team = thread() % members, members
    for row in range(block() + blocks() * (thread() // members), rows, blocks() * (threads() // members)):
        one(args, row, team, size, like, T, W, B)


@jit.inline
def each_short_row(args, rows, members, size, one, like, T, W, B):
    """The same for teams that are parts of a warp; the last rows of all may be those of several teams."""
    team, together = (thread() % members, members), WARP // members
    warp, warps = block() + blocks() * (thread() // WARP), blocks() * (threads() // WARP)
    for row in range(warp * together, rows, warps * together):
        one(args, min(row + thread() % WARP // members, rows - 1), team, size, like, T, W, B)


@by_type
def over_rows(args, rows, size, strides, places, one, x, T, W, B):
    """Call one(args, row, team, size, like, T, W, B) for the rows of this thread's team; whether threads can hold them.

    `strides` (of rows) and `places` (addresses) are or-ed; `like` is a vector of as many lanes as a part of a row has.
    Where the size is a constant that fills the parts, no piece of one is asked whether it is there: that took registers
    that parts need.
    """
    if element_bytes(x.dtype) == 8:
        return lambda args, rows, size, strides, places, one, x, T, W, B: False

    def implementation(args, rows, size, strides, places, one, x, T, W, B):
        if (size > 4096 and size != 8192) or (size | strides) % width(x) != 0 or places & 15 != 0:
            return False
        if size == 768:
            each_row(args, rows, 32, 768, one, fill(0.0, T, 24), T, W, B)
        elif size == 1024:
            each_row(args, rows, 32, 1024, one, fill(0.0, T, 32), T, W, B)
        elif size == 2048:
            each_row(args, rows, 128, 2048, one, fill(0.0, T, 16), T, W, B)
        elif size == 4096:
            each_row(args, rows, 128, 4096, one, fill(0.0, T, 32), T, W, B)
        elif size == 8192:
            each_row(args, rows, 256, 8192, one, fill(0.0, T, 32), T, W, B)
        elif size == 1000:
            each_row(args, rows, 32, 1000, one, fill(0.0, T, 32), T, W, B)
        elif size == 64:
            each_short_row(args, rows, 4, 64, one, fill(0.0, T, 16), T, W, B)
        elif size <= 32:
            each_short_row(args, rows, 4, size, one, fill(0.0, T, 8), T, W, B)
        elif size <= 64:
            each_short_row(args, rows, 4, size, one, fill(0.0, T, 16), T, W, B)
        elif size <= 128:
            each_short_row(args, rows, 8, size, one, fill(0.0, T, 16), T, W, B)
        elif size <= 256:
            each_row(args, rows, 32, size, one, fill(0.0, T, 8), T, W, B)
        elif size <= 512:
            each_row(args, rows, 32, size, one, fill(0.0, T, 16), T, W, B)
        elif size <= 2048:
            each_row(args, rows, 128, size, one, fill(0.0, T, 16), T, W, B)
        else:
            each_row(args, rows, 256, size, one, fill(0.0, T, 16), T, W, B)
        return True

    return implementation
