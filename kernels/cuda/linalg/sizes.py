"""Constants of triangular systems that kernels and policy share; no Numba here."""

ROWS = 32  # that are solved together: a lane for each
WARPS = 8  # of a block
EACH = 4  # columns of a warp where there are many
TILE = ROWS * (ROWS + 4)  # elements of a tile in shared memory, with 16 bytes and more behind each row
SOLVE_SHARED = WARPS * 8 * (TILE + ROWS * EACH)  # bytes of tiles and what is found, of float64
EXCHANGE_SHARED = 40 << 10  # bytes of the rows that are exchanged, and where each comes from
