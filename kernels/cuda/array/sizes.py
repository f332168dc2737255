"""Sizes of kernels that choose elements, which the launches know too."""

THREADS = 512  # of a block
LANES = 16  # neighbours of a thread
TILE = THREADS * LANES
TILE_BYTES = 2 * TILE  # places within a tile
FIRSTS_THREADS, FIRSTS_BLOCKS = 256, 3  # of a block that looks for the first ones of runs; blocks of a multiprocessor
