"""Sizes that kernels of this folder and their plans agree on. No Numba here."""

from ...build import isa

PAIR = 2 * isa.lanes()  # columns that `chunks.join` takes at a time
