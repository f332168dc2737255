"""Sizes that kernels of this folder and their plans agree on. No Numba here."""

from ...build import isa

UNIT = 32768  # bytes of a unit of work of copies
SHORT = 8  # elements of a row of which copies make no inner loop, where another dim is longer
MASKED = isa.vector_bytes() == 64  # but one access, where any element of a register can be masked: AVX-512
COLUMNS = 4 * isa.lanes()  # of a unit of `scatter.add_rows`: a cache line or two of each row
PUT_COLUMNS = 1024  # of a unit of `scatter.put_rows`
ELEMENTS = 4096  # of a unit of `scatter.elements`
WRITTEN = 512  # of the columns of one that writes, and takes all rows
BINNED = 65536  # elements that are worth counts of their own, by `bins.counts`
