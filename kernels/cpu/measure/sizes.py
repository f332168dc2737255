"""What the kernels that measure, and those who call them, agree on. Plain Python: no Numba here."""

# Twelve chains hide a latency of 4 to 6 cycles at two multiply-adds per cycle, and leave room for
# the two operands in the 16 registers of AVX2.
CHAINS = 12

BLOCK_BYTES = 1024  # what one unit of `read` or `update` covers
