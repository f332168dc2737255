"""Constants of reductions that kernels and plans share; no Numba here."""

THREADS = 256  # of a block of scans
GROUP = THREADS  # parts of a row, of which the last one tells the state of all before it too
