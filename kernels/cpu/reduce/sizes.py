"""Sizes that kernels of this folder and their plans agree on. No Numba here."""

from ...build import isa

LANES = isa.lanes()
PAIR = 2 * LANES  # columns that `chunks.join`, `argmax` and softmax take at a time
WIDE = 4 * LANES  # elements or results that a reduction takes at a time: independent chains hide the latency of adding
# elements of a row up to which WIDE rows are taken at a time, a lane each
SHORT = 16 if LANES == 16 else WIDE - 1

LIST = 128  # the largest k for which `topk` keeps a list
SORT_BYTES = 32  # of workspace for each element of a row that is sorted: keys and places, twice
SAMPLE_BYTES = 24  # of workspace for each token of a row: six arrays of 4-byte elements
