"""Constants of reductions that kernels and plans share; no Numba here."""

THREADS = 256  # of a block of scans
GROUP = THREADS  # parts of a row, of which the last one tells the state of all before it too
SWEEP_THREADS = 512  # of a block that sorts a tile of a long row
SWEEP_BYTES = 1 << 15  # of the elements of the largest tile, and of where they were
SWEEP_SHARED = 2 * SWEEP_BYTES + 4 * 256 * (SWEEP_THREADS // 32 + 1) + 64
