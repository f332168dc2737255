"""The records of a graph."""

from . import Block

# Addresses of a compiled kernel and of its block, in `parts` slices of [0, n). What the next launch that streams reads
# begins at `ahead`, has `ahead_step` bytes for each thread, and ends at `ahead_end` (0, 0, 0: there is none).
RECORD = Block("| kernel args n parts ahead=0 ahead_step=0 ahead_end=0")
