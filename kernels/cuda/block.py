"""What the threads of a block do together: rows in accesses of 16 bytes, sums and extremes across the block.

A thread takes the vectors number `thread()`, `thread() + threads()`, ... of a row; `width` lanes make 16 bytes.
"""

from numba import types

from ..build import jit
from ..lang.by_type import by_type
from ..lang.ptx import WARP, barrier, block, blocks, from_below, from_lane, shared, thread, threads
from ..lang.simd import (
    Vector,
    address,
    fill,
    load,
    ptr,
    ramp,
    store,
    vload_aligned,
    vload_first,
    vmax,
    vstore_aligned,
    vstore_first,
)
from ..lang.vector import compute_type

I64 = types.int64


def _lanes(dtype):
    return 16 // max(1, getattr(dtype, "bitwidth", 8) // 8)


@by_type
def width(p):
    """How many elements of a pointer's type make 16 bytes."""
    lanes = _lanes(p.dtype)
    return lambda p: lanes


@by_type
def size_of(p):
    """Bytes of an element of a pointer's type."""
    size = p.dtype.bitwidth // 8
    return lambda p: size


@by_type
def vector(p, value):
    """A vector of `width(p)` lanes, each `value`, in the type that elements are computed in."""
    dtype, lanes = compute_type(p.dtype), _lanes(p.dtype)
    return lambda p, value: fill(value, dtype, lanes)


@by_type
def number(p, value):
    """A vector of one lane in that type."""
    dtype = compute_type(p.dtype)
    return lambda p, value: fill(value, dtype, 1)


@by_type
def places(p):
    """0, 1, ... over the lanes of such a vector."""
    lanes = _lanes(p.dtype)
    return lambda p: ramp(0, I64, lanes)


@by_type
def read(p, i, left, like):
    """As many elements from `i` on as the vector `like` has lanes; zeros behind the `left` first ones."""
    lanes = like.lanes
    bits = min(16, lanes * max(1, p.dtype.bitwidth // 8)) - 1

    def implementation(p, i, left, like):
        if left >= lanes and address(p + i) & bits == 0:
            return vload_aligned(p, i, lanes)
        return vload_first(p, i, lanes, left)

    return implementation


@by_type
def write(p, i, value, left):
    """Store the `left` first lanes of a vector."""
    lanes = value.lanes
    bits = min(16, lanes * max(1, p.dtype.bitwidth // 8)) - 1

    def implementation(p, i, value, left):
        if left >= lanes and address(p + i) & bits == 0:
            vstore_aligned(p, i, value)
        else:
            vstore_first(p, i, value, left)

    return implementation


@by_type
def across(v, join, members):
    """A number (or vector of one lane) of each thread, joined over the block; every thread gets the result.

    Or over the warp alone, where `members`, how many threads work together, are no more. The order is that of the
    threads' numbers, so the result is the same each time.
    """
    dtype = v.dtype if isinstance(v, Vector) else v

    def implementation(v, join, members):
        for apart in (1, 2, 4, 8, 16):
            v = join(v, from_lane(v, apart))
        parts = ptr(shared(32 * 8), dtype)
        warps = members // WARP
        if warps > 1:
            if thread() % WARP == 0:
                store(parts, thread() // WARP, v)
            barrier()
            v = load(parts, 0)
            for k in range(1, warps):
                v = join(v, load(parts, k))
            barrier()
        return v

    return implementation


@by_type
def extreme(v, join):
    """The same over the block where the order does not matter: a lane has the number of a warp, and none waits for 31
    loads, one after the other."""
    dtype = v.dtype if isinstance(v, Vector) else v

    def implementation(v, join):
        for apart in (1, 2, 4, 8, 16):
            v = join(v, from_lane(v, apart))
        parts, lane, warps = ptr(shared(32 * 8), dtype), thread() % WARP, threads() // WARP
        if warps > 1:
            if lane == 0:
                store(parts, thread() // WARP, v)
            barrier()
            v = load(parts, lane if lane < warps else 0)
            for apart in (1, 2, 4, 8, 16):
                v = join(v, from_lane(v, apart))
            barrier()
        return v

    return implementation


@jit.inline
def warp_sum(v):
    """The sum of a number of each thread of the warp, for all of them."""
    for apart in (16, 8, 4, 2, 1):
        v += from_lane(v, apart)
    return v


@jit.inline
def add(a, b):
    return a + b


@jit.inline
def larger(a, b):
    return vmax(a, b)


@jit.inline
def block_sum(v):
    """The sum of a number of each thread of the block."""
    return across(v, add, threads())


@jit.inline
def block_max(v):
    """The largest number of the threads of the block; NaN if one is."""
    return extreme(v, larger)


@jit.inline
def _smaller(a, b):
    return min(a, b)


@jit.inline
def block_min(v):
    """The smallest integer of the threads of the block."""
    return extreme(v, _smaller)


@jit.inline
def block_running(v):
    """(the sum of a number of the threads before this one, that of all threads of the block)."""
    whole = v
    for apart in (1, 2, 4, 8, 16):
        below = from_below(whole, apart)
        if thread() % WARP >= apart:
            whole += below
    parts = ptr(shared(256), I64)
    if thread() % WARP == WARP - 1:
        store(parts, thread() // WARP, whole)
    barrier()
    before, total = whole - v, v - v
    for k in range(threads() // WARP):
        part = load(parts, k)
        if k < thread() // WARP:
            before += part
        total += part
    barrier()
    return before, total


# ---- rows that a warp or a block has, as they are long -------------------------------------------------

SHORT = 1024  # elements of a row that is a warp's: a block would wait for its warps more than it works


@jit.inline
def share_rows(x, size):
    """(first row, step to the next one, team) of this thread, in a launch of the grid over rows of `size` like x.

    A team, (the number of this thread in it, how many it has), is a warp for short rows, else a block: one row of 2048
    takes a warp three times as long.
    """
    if size <= SHORT:
        first = block() + blocks() * (thread() // WARP)  # so that few rows are for many multiprocessors
        return first, blocks() * (threads() // WARP), (thread() % WARP, WARP)
    return block(), blocks(), (thread(), threads())


@jit.inline
def team_sum(v, team):
    """The sum of a number of each thread of a team."""
    return across(v, add, team[1])


@jit.inline
def team_max(v, team):
    """The largest number of the threads of a team; NaN if one is."""
    return across(v, larger, team[1])


@jit.inline
def fold_row(x, size, team, state, add, like):
    """`state` after `add(state, v, left)` for the vectors v of this thread, of which the `left` first lanes count.

    Four are on their way at once where the row begins at a multiple of 16 bytes.
    """
    i, lanes, apart = team[0] * width(x), width(x), team[1] * width(x)
    if address(x) & 15 == 0:
        while i + 3 * apart + lanes <= size:
            a, b = vload_aligned(x, i, lanes), vload_aligned(x, i + apart, lanes)
            c, d = vload_aligned(x, i + 2 * apart, lanes), vload_aligned(x, i + 3 * apart, lanes)
            state = add(add(add(add(state, a, lanes), b, lanes), c, lanes), d, lanes)
            i += 4 * apart
    while i < size:
        state = add(state, read(x, i, size - i, like), size - i)
        i += apart
    return state
