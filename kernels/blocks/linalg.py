"""Argument blocks of linear algebra of our own; batches of row-major matrices."""

from . import Block

TRIANGULAR = Block("a x | size columns upper unit")  # x [size, columns] begins as the right side
LU = Block("a pivots | rows columns")  # a becomes L and U, pivots int32 [min(rows, columns)] count from 1
SINGULAR = 1  # error code
