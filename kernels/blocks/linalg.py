"""Argument blocks of linear algebra of our own; batches of row-major matrices."""

from . import Block

TRIANGULAR = Block("a x | size columns upper unit")  # x [size, columns] begins as the right side
# a becomes L and U, pivots int32 [min(rows, columns)] count from 1; `singular` matrices are an error, or not
LU = Block("a pivots panels | rows columns singular")
CHOLESKY = Block("a panels | size upper")  # a becomes L; panels: workspace, STEPS columns of each matrix
EXCHANGED = Block("x pivots | size columns steps back eye")  # rows of x [size, columns]
DETERMINANTS = Block("a pivots y logarithms | size logs")  # y of LU factors; with `logs`, signs and logarithms
STEPS = 8  # of elimination that are taken together: the kernel has as many factors in registers
SINGULAR = OUT_OF_RANGE = 1  # error codes, of different kernels
