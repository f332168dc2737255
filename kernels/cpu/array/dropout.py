"""Dropout: elements set to zero at random places that follow from a seed and the element's position.

The mask is nowhere in memory: forward and backward pass make it again. Elements go in tiles of 64; element
16 w + c of tile t asks for word w of Philox's block 16 t + c, on every machine, so that words come out of the
generator's lanes in the order in which they are used.
"""

from numba import types

from ...blocks.array import DROPOUT, DROPOUT_GROUP
from ...build import isa, jit
from ...lang.philox import philox
from ...lang.simd import bitcast, load, ptr, ramp, select, vload, vload_first, vstore, vstore_first

LANES = isa.lanes()
BLOCKS = DROPOUT_GROUP // 4  # of four words each
F64, U64 = types.float64, types.uint64


@jit.inline
def drop(x, y, at, size, word, options):
    """LANES elements of y from `at` on; `options` are (limit, scale): what lies below the limit is dropped."""
    limit, scale = options
    keep = word >= limit
    if at + LANES <= size:
        vstore(y, at, select(keep, vload(x, at, LANES) * scale, 0.0))
    elif at < size:
        vstore_first(y, at, select(keep, vload_first(x, at, LANES, size - at) * scale, 0.0), size - at)


@jit.inline
def dropout(args, lo, hi, T):
    """Tiles [lo, hi)."""
    x, y, size = ptr(load(args, DROPOUT.x), T), ptr(load(args, DROPOUT.y), T), load(args, DROPOUT.numel)
    seed, limit, scale = U64(load(args, DROPOUT.seed)), U64(load(args, DROPOUT.limit)), load(args, DROPOUT.scale)
    options = (limit, bitcast(scale, F64))
    for tile in range(lo, hi):
        for column in range(0, BLOCKS, LANES):
            first, second, third, fourth = philox(ramp(tile * BLOCKS + column, U64, LANES), 0, seed)
            at = tile * DROPOUT_GROUP + column
            drop(x, y, at, size, first, options)
            drop(x, y, at + BLOCKS, size, second, options)
            drop(x, y, at + 2 * BLOCKS, size, third, options)
            drop(x, y, at + 3 * BLOCKS, size, fourth, options)
    return 0
