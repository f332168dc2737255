"""What the threads of a block do together: rows in accesses of 16 bytes, sums and extremes across the block.

A thread takes the vectors number `thread()`, `thread() + threads()`, ... of a row; `width` lanes make 16 bytes.
"""

from numba import types

from ..build import jit
from ..lang.by_type import by_type
from ..lang.ptx import WARP, barrier, from_below, from_lane, shared, thread, threads
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
    vmin,
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
def vector(p, value):
    """A vector of `width(p)` lanes, each `value`, in the type that elements are computed in."""
    dtype, lanes = compute_type(p.dtype), _lanes(p.dtype)
    return lambda p, value: fill(value, dtype, lanes)


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
def read_aligned(p, i, like):
    """As many elements from `i` on as `like` has lanes, from an address that is a multiple of 16 bytes.

    Of a `read` whose `left` is known to suffice, LLVM makes one load for both cases, element by element.
    """
    lanes = like.lanes
    return lambda p, i, like: vload_aligned(p, i, lanes)


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
def across(v, join):
    """A number (or vector of one lane) of each thread, joined over the block; every thread gets the result.

    The order is that of the threads' numbers, so the result is the same each time.
    """
    dtype = v.dtype if isinstance(v, Vector) else v

    def implementation(v, join):
        for apart in (1, 2, 4, 8, 16):
            v = join(v, from_lane(v, apart))
        parts = ptr(shared(32 * 8), dtype)
        warps = threads() // WARP
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


@jit.inline
def warp_sum(v):
    """The sum of a number of each thread of the warp, for all of them."""
    for apart in (16, 8, 4, 2, 1):
        v += from_lane(v, apart)
    return v


@jit.inline
def _add(a, b):
    return a + b


@jit.inline
def _larger(a, b):
    return vmax(a, b)


@jit.inline
def _smaller(a, b):
    return vmin(a, b)


@jit.inline
def block_sum(v):
    """The sum of a number of each thread of the block."""
    return across(v, _add)


@jit.inline
def block_max(v):
    """The largest number of the threads of the block; NaN if one is."""
    return across(v, _larger)


@jit.inline
def block_min(v):
    """The smallest number of the threads of the block; NaN if one is."""
    return across(v, _smaller)


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
