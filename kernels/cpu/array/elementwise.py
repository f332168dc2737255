"""Walking any layout for elementwise kernels.

A rendered elementwise kernel only knows contiguous operands: one vector loop over memory. `walk` brings
every other layout to it. It goes through the collapsed iteration space row by row; where an operand of a
row is not contiguous, tile by tile: strided elements are gathered into a tile of 1024 on the stack, scalars
(stride 0) fill theirs once per row, and the kernel is called on tiles. So the arithmetic of an op is
compiled once, in 0.1 s, for all layouts, and broadcasting costs an L1 hit. Of long rows, a kernel rendered for it
takes scalars from where they lie.
"""

from numba import types

from ...blocks.elementwise import WALK
from ...build import isa, jit
from ...lang.simd import load, ptr, stack, store
from ..driver import call_kernel

LANES = isa.lanes()
TILE = 1024  # 4 KB of float32: a few operands fit into the first-level cache
MAX_OPERANDS = 8
MAX_DIMS = 24
MOST_BYTES = 16  # of an element: complex128
TILES_BYTES = MAX_OPERANDS * TILE * MOST_BYTES
INT64 = types.int64
U8, U16, U32, C128 = types.uint8, types.uint16, types.uint32, types.complex128


@jit.inline
def _copy_as(target, source, target_step, source_step, n, T):
    to, of = ptr(target, T), ptr(source, T)
    for i in range(n):
        store(to, i * target_step, load(of, i * source_step))


@jit.inline
def copy_steps(target, source, target_step, source_step, n, itemsize):
    """Copy `n` elements of `itemsize` bytes between addresses; steps in elements (0 repeats one)."""
    if itemsize == 4:
        _copy_as(target, source, target_step, source_step, n, U32)
    elif itemsize == 2:
        _copy_as(target, source, target_step, source_step, n, U16)
    elif itemsize == 8:
        _copy_as(target, source, target_step, source_step, n, INT64)
    elif itemsize == 16:
        _copy_as(target, source, target_step, source_step, n, C128)
    else:
        _copy_as(target, source, target_step, source_step, n, U8)


@jit.inline
def _unravel(args, row, count, ndim, indices, at):
    """Indices of row number `row` of the outer dims, and the operands' addresses there."""
    shape = WALK.operands + 2 * count
    for j in range(count):
        store(at, j, load(args, WALK.operands + j))
    for d in range(ndim - 2, -1, -1):
        size = load(args, shape + d)
        i = row % size
        row = row // size
        store(indices, d, i)
        for j in range(count):
            stride = load(args, shape + ndim * (j + 1) + d) * load(args, WALK.operands + count + j)
            store(at, j, load(at, j) + i * stride)


@jit.inline
def _advance(args, count, ndim, indices, at):
    """Step to the next row, as an odometer does: no division."""
    shape = WALK.operands + 2 * count
    for d in range(ndim - 2, -1, -1):
        size = load(args, shape + d)
        i = load(indices, d) + 1
        turn = i == size
        store(indices, d, 0 if turn else i)
        for j in range(count):
            stride = load(args, shape + ndim * (j + 1) + d) * load(args, WALK.operands + count + j)
            store(at, j, load(at, j) + (stride * (1 - size) if turn else stride))
        if not turn:
            return


@jit.inline
def walk(args, lo, hi):
    """Elements [lo, hi) of an elementwise launch on any layout."""
    kernel = load(args, WALK.kernel)
    count = load(args, WALK.count)
    ndim = load(args, WALK.ndim)
    shape = WALK.operands + 2 * count
    length = load(args, shape + ndim - 1)
    indices = ptr(stack(192), INT64)
    at = ptr(stack(64), INT64)
    block_address = stack(64)
    block = ptr(block_address, INT64)
    tiles = stack(TILES_BYTES)
    row = lo // length
    column = lo - row * length
    _unravel(args, row, count, ndim, indices, at)
    dense = True
    single = load(args, WALK.single)
    for j in range(count):
        dense = dense and (load(args, shape + ndim * (j + 2) - 1) == 1 or (single >> j) & 1 == 1)
    status, todo = 0, hi - lo
    while todo > 0:
        run = min(length - column, todo)
        for j in range(count - 1):
            if load(args, shape + ndim * (j + 2) - 1) == 0 and (single >> j) & 1 == 0:
                itemsize = load(args, WALK.operands + count + j)
                copy_steps(tiles + j * TILE * MOST_BYTES, load(at, j), 1, 0, min(TILE, run), itemsize)
        start = 0
        while start < run:
            n = run if dense else min(TILE, run - start)
            for j in range(count):
                step = load(args, shape + ndim * (j + 2) - 1)
                itemsize = load(args, WALK.operands + count + j)
                source = load(at, j) + (column + start) * step * itemsize
                tile = tiles + j * TILE * MOST_BYTES
                if step == 1 or (single >> j) & 1 == 1:
                    tile = source
                elif step != 0 and j < count - 1:
                    copy_steps(tile, source, 1, step, n, itemsize)
                store(block, j, tile)
            status |= call_kernel(kernel, block_address, 0, n, 0)
            last = count - 1
            step = load(args, shape + ndim * (last + 2) - 1)
            if step != 1:
                itemsize = load(args, WALK.operands + count + last)
                target = load(at, last) + (column + start) * step * itemsize
                copy_steps(target, tiles + last * TILE * MOST_BYTES, step, 1, n, itemsize)
            start += n
        column = 0
        todo -= run
        if todo > 0:
            _advance(args, count, ndim, indices, at)
    return status
