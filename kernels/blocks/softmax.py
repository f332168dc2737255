"""Argument blocks of softmax and its derivative. Strides are those of rows or of outer dims, in elements."""

from . import Block

ROWS = Block("x y | size stride period=0")  # `period`: rows of a causal mask, or 0
COLUMNS = Block("x y | size columns stride logarithm")
BACKWARD = Block("g y dx | size columns g_stride y_stride")
LOGSUMEXP = Block("x y | size stride")
