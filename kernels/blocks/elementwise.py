"""The argument block of elementwise launches on any layout."""

from . import Block

# Addresses of the `count` operands, the output last; their item sizes; `ndim` sizes; the strides of each operand. The
# bits of `single` say which operands are one number for a row, that the kernel takes by its address.
WALK = Block("| kernel count ndim single operands*")
