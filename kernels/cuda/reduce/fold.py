"""The loops of reductions on GPUs, rendered with a rule each (`kernels/cuda/render.py: reduction`).

The argument block is that of the CPU's loops (`blocks/reduce.py: FOLD`). `inner`: a block folds one result, whose
elements are contiguous, its threads taking vectors in turn; lanes, threads and warps are joined in a fixed order.
`outer`: a thread folds one result, neighbours lie side by side, so that a warp reads contiguous memory.
"""

from numba import types

from ...blocks.reduce import FOLD
from ...build import jit
from ...lang.ptx import WARP, barrier, shared, thread, threads
from ...lang.simd import bitcast, load, ptr

BLOCK = 64  # elements of a thread before a partial state is set aside: the error of a sum grows with its square root
F64 = types.float64


@jit.inline
def fold(x, start, stop, step, stride, plane, nothing, read, join):
    """The elements (or vectors) from `start` on, in steps, joined into a state; two at a time are on their way."""
    total, i = nothing, start
    while i < stop:
        part, other, end = nothing, nothing, min(stop, i + BLOCK * step)
        while i + step < end:
            part = join(part, read(x, i * stride, plane))
            other = join(other, read(x, (i + step) * stride, plane))
            i += 2 * step
        if i < end:
            part = join(part, read(x, i * stride, plane))
            i += step
        total = join(total, join(part, other))
    return total


@jit.inline
def inner(args, index, nothing, read, read_rest, join, lanes, exchange, keep, kept, write, T, O, N):
    """Result number `index`."""
    x, y = ptr(load(args, FOLD.x), T), ptr(load(args, FOLD.y), O)
    inside = load(args, FOLD.inner)
    length, plane = load(args, FOLD.length), load(args, FOLD.plane)
    a = index // inside
    at = x + (a * load(args, FOLD.outer_stride) + (index - a * inside) * load(args, FOLD.inner_stride))
    count = min(length, load(args, FOLD.whole) - a * length)
    total = nothing
    for row in range(load(args, FOLD.rows)):
        row_at, whole = at + row * load(args, FOLD.row_stride), count // N * N
        part = fold(row_at, thread() * N, whole, threads() * N, 1, plane, nothing, read, join)
        if whole < count and thread() == threads() - 1:
            part = join(part, read_rest(row_at, whole, count - whole, plane))
        total = join(total, part)
    state = lanes(total)
    for apart in (1, 2, 4, 8, 16):
        state = join(state, exchange(state, apart))
    memory, warps = shared(32 * 64), threads() // WARP
    if warps > 1:
        if thread() % WARP == 0:
            keep(memory, thread() // WARP, state)
        barrier()
        state = kept(memory, 0)
        for k in range(1, warps):
            state = join(state, kept(memory, k))
        barrier()
    if thread() == 0:
        write(y, index, state, bitcast(load(args, FOLD.count), F64), plane)
    return 0


@jit.inline
def outer(args, lo, hi, nothing, read, join, write, T, O):
    """Results [lo, hi); x has unit stride along the inner kept dim, or any stride."""
    x, y = ptr(load(args, FOLD.x), T), ptr(load(args, FOLD.y), O)
    inside, length, plane = load(args, FOLD.inner), load(args, FOLD.length), load(args, FOLD.plane)
    for index in range(lo, hi):
        a = index // inside
        at = x + (a * load(args, FOLD.outer_stride) + (index - a * inside) * load(args, FOLD.inner_stride))
        count = min(length, load(args, FOLD.whole) - a * length)
        total = nothing
        for row in range(load(args, FOLD.rows)):
            part = fold(
                at + row * load(args, FOLD.row_stride), 0, count, 1, load(args, FOLD.stride), plane, nothing, read, join
            )
            total = join(total, part)
        write(y, index, total, bitcast(load(args, FOLD.count), F64), plane)
    return 0
