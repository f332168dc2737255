"""Sizes of kernels that choose elements, which the launches know too."""

THREADS = 512  # of a block
LANES = 16  # neighbours of a thread
TILE = THREADS * LANES
TILE_BYTES = 2 * TILE  # places within a tile
FIRSTS_BYTES = 1 << 15  # of the largest tile in which a block looks for the first ones of runs
FIRSTS_BLOCKS = 3  # of a multiprocessor


def firsts_each(itemsize):
    """Elements of a thread of such a block: as many as it can hold in 40 registers, so that three blocks have room."""
    return 8 if itemsize == 8 else 12
