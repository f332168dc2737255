"""The argument block of elementwise launches on any layout."""

from . import Block

# Addresses of the `count` operands, the output last; their item sizes; `ndim` sizes; the strides of each operand.
WALK = Block("| kernel count ndim operands*")
