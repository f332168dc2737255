"""Argument blocks of the kernels that measure the machine's limits, and of first touch."""

from . import Block

# Addresses are numbers here: the memory is not that of tensors.
RATE = Block("| operands results rounds")  # registers: 12 starts, a factor, an addend; and one of results per unit
READ = Block("| data sums")  # an int64 of sums per unit
UPDATE = Block("| gradient first second value")

PAGES = Block("memory | page_bytes")
