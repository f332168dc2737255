"""What the kernels that measure, and those who call them, agree on. Plain Python: no Numba here."""

# Twelve chains hide a latency of 4 to 6 cycles at two multiply-adds per cycle, and leave room for
# the two operands in the 16 registers of AVX2.
CHAINS = 12

TILE_BYTES = 4096  # of the sums of a block in tile registers, and of its operands
WIDENED_BYTES = 8192  # of bfloat16, which the first-level cache keeps
BLOCK_BYTES = 1024  # what one unit of `read` or `update` covers
