"""Random numbers that follow from a seed and the place of an element, in tiles of 64 as in `dropout.py`.

A tile has 16 blocks of Philox: element 16 w + c is made of word w of block c, or normal numbers in pairs of words 0 and
1, and 2 and 3.
"""

from numba import types

from ...blocks.array import DRAWS, DROPOUT_GROUP
from ...build import isa, jit
from ...lang import draws
from ...lang.philox import philox
from ...lang.simd import bitcast, load, ptr, ramp, select, vstore, vstore_first

LANES = isa.lanes()
BLOCKS = DROPOUT_GROUP // 4
F32, F64, U64 = types.float32, types.float64, types.uint64


@jit.inline
def put(y, at, size, value):
    """Store LANES elements of y from `at` on."""
    if at + LANES <= size:
        vstore(y, at, value)
    elif at < size:
        vstore_first(y, at, value, size - at)


def _filling(numbers):
    """The kernel that fills with `numbers(words, args)`, four vectors of float32."""

    @jit.inline
    def fill(args, lo, hi):
        y, size, seed = ptr(load(args, DRAWS.y), F32), load(args, DRAWS.numel), U64(load(args, DRAWS.seed))
        for tile in range(lo, hi):
            for column in range(0, BLOCKS, LANES):
                found = numbers(philox(ramp(tile * BLOCKS + column, U64, LANES), 0, seed), args)
                at = tile * DROPOUT_GROUP + column
                put(y, at, size, found[0])
                put(y, at + BLOCKS, size, found[1])
                put(y, at + 2 * BLOCKS, size, found[2])
                put(y, at + 3 * BLOCKS, size, found[3])
        return 0

    return fill


@jit.inline
def one_uniform(word, args):
    """Numbers from [first, second): `first` where rounding would make them `second`."""
    low, high = bitcast(load(args, DRAWS.first), F64), bitcast(load(args, DRAWS.second), F64)
    found = draws.placed(draws.uniform(word), F32(high - low), F32(low))
    return select(found >= F32(high), F32(low), found)


@jit.inline
def uniforms(words, args):
    a, b, c, d = words
    return one_uniform(a, args), one_uniform(b, args), one_uniform(c, args), one_uniform(d, args)


@jit.inline
def two_normals(one, other, args):
    mean, std = F32(bitcast(load(args, DRAWS.first), F64)), F32(bitcast(load(args, DRAWS.second), F64))
    a, b = draws.normals(one, other)
    return draws.placed(a, std, mean), draws.placed(b, std, mean)


@jit.inline
def normals(words, args):
    a, b = two_normals(words[0], words[1], args)
    c, d = two_normals(words[2], words[3], args)
    return a, b, c, d


uniform, normal = _filling(uniforms), _filling(normals)
