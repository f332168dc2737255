"""Random numbers that follow from a seed, those of the CPU's kernels: the threads of the launch share all tiles."""

from numba import types

from ...blocks.array import DRAWS, DROPOUT_GROUP
from ...build import jit
from ...cpu.array.draws import normals, uniforms
from ...lang.philox import philox
from ...lang.ptx import block, blocks, thread, threads
from ...lang.simd import load, ptr
from ..block import width, write
from .dropout import BLOCKS, numbers_from

F32, U64 = types.float32, types.uint64


def _filling(numbers):
    """The kernel that fills with `numbers(words, args)`, four vectors of float32 for neighbouring blocks of Philox."""

    @jit.inline
    def fill(args, lo, hi):
        y, size, seed = ptr(load(args, DRAWS.y), F32), load(args, DRAWS.numel), U64(load(args, DRAWS.seed))
        place, apart, each = block() * threads() + thread(), blocks() * threads(), BLOCKS // width(y)
        tiles = (size + DROPOUT_GROUP - 1) // DROPOUT_GROUP
        while place < tiles * each:
            tile = place // each
            column = (place - tile * each) * width(y)
            found = numbers(philox(numbers_from(y, tile * BLOCKS + column), 0, seed), args)
            at = tile * DROPOUT_GROUP + column
            write(y, at, found[0], size - at)
            write(y, at + BLOCKS, found[1], size - at - BLOCKS)
            write(y, at + 2 * BLOCKS, found[2], size - at - 2 * BLOCKS)
            write(y, at + 3 * BLOCKS, found[3], size - at - 3 * BLOCKS)
            place += apart
        return 0

    return fill


uniform, normal = _filling(uniforms), _filling(normals)
