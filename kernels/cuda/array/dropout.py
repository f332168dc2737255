"""Dropout, with the numbers of the CPU's (`kernels/cpu/array/dropout.py`): the threads of the launch share all tiles.

A thread makes neighbouring blocks of Philox, as many as elements have room in 16 bytes; their four words belong to
four vectors of a tile.
"""

from numba import types

from ...blocks.array import DROPOUT, DROPOUT_GROUP
from ...build import jit
from ...lang.by_type import by_type
from ...lang.philox import philox
from ...lang.ptx import block, blocks, thread, threads
from ...lang.simd import bitcast, load, ptr, ramp, select
from ..block import read, vector, width, write

F64, U64 = types.float64, types.uint64
BLOCKS = DROPOUT_GROUP // 4  # of Philox in a tile


@by_type
def numbers_from(x, at):
    """at, at + 1, ... over the lanes of 16 bytes."""
    lanes = 16 // max(1, x.dtype.bitwidth // 8)
    return lambda x, at: ramp(at, U64, lanes)


@jit.inline
def drop(x, y, at, size, word, options):
    """A vector of y from `at` on; `options` are (limit, scale): what lies below the limit is dropped."""
    limit, scale = options
    write(y, at, select(word >= limit, read(x, at, size - at, vector(x, 0.0)) * scale, 0.0), size - at)


@jit.inline
def dropout(args, lo, hi, T):
    """All tiles."""
    x, y, size = ptr(load(args, DROPOUT.x), T), ptr(load(args, DROPOUT.y), T), load(args, DROPOUT.numel)
    seed, limit = U64(load(args, DROPOUT.seed)), U64(load(args, DROPOUT.limit))
    options, lanes = (limit, bitcast(load(args, DROPOUT.scale), F64)), width(x)
    place, apart, each = block() * threads() + thread(), blocks() * threads(), BLOCKS // width(x)
    tiles = (size + DROPOUT_GROUP - 1) // DROPOUT_GROUP
    while place < tiles * each:
        tile = place // each
        column = (place - tile * each) * lanes
        first, second, third, fourth = philox(numbers_from(x, tile * BLOCKS + column), 0, seed)
        at = tile * DROPOUT_GROUP + column
        drop(x, y, at, size, first, options)
        drop(x, y, at + BLOCKS, size, second, options)
        drop(x, y, at + 2 * BLOCKS, size, third, options)
        drop(x, y, at + 3 * BLOCKS, size, fourth, options)
        place += apart
    return 0
