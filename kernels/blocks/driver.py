"""The records of a graph."""

from . import Block

RECORD = Block("| kernel args n parts")  # addresses of a compiled kernel and of its block, in `parts` slices of [0, n)
