"""Operators of truth values and integers: logic, bits, shifts, and division with remainder (of floats too)."""

import numpy as np

from ..lang import scalar_math as m
from ..table.registry import ANY, FLOATS, INTEGERS, elementwise

BITS = (*INTEGERS, "bool")
NUMBERS = (*FLOATS, *INTEGERS)


@elementwise(ref=np.logical_and, dtypes=ANY, result="bool")
def logical_and(input, other):
    """Where both elements are true, i.e. not 0."""
    return (input != 0) & (other != 0)


@elementwise(ref=np.logical_or, dtypes=ANY, result="bool")
def logical_or(input, other):
    """Where either element is true, i.e. not 0."""
    return (input != 0) | (other != 0)


@elementwise(ref=np.logical_xor, dtypes=ANY, result="bool")
def logical_xor(input, other):
    """Where one element is true, i.e. not 0, and the other is not."""
    return (input != 0) ^ (other != 0)


@elementwise(ref=np.logical_not, dtypes=ANY, result="bool")
def logical_not(input):
    """Where the element is false, i.e. 0."""
    return input == 0


@elementwise(ref=np.bitwise_and, dtypes=BITS, gradient=None)
def bitwise_and(input, other):
    """The bits that both integers have; of bools, `logical_and`."""
    return input & other


@elementwise(ref=np.bitwise_or, dtypes=BITS, gradient=None)
def bitwise_or(input, other):
    """The bits that either integer has; of bools, `logical_or`."""
    return input | other


@elementwise(ref=np.bitwise_xor, dtypes=BITS, gradient=None)
def bitwise_xor(input, other):
    """The bits that one integer has and the other has not; of bools, `logical_xor`."""
    return input ^ other


@elementwise(ref=np.bitwise_not, dtypes=BITS, gradient=None)
def bitwise_not(input):
    """The bits that the integer has not; of bools, `logical_not`."""
    return ~input


@elementwise(ref=np.left_shift, dtypes=INTEGERS, gradient=None)
def bitwise_left_shift(input, other):
    """input * 2^other without what does not fit; 0 where `other` is negative or not below the number of bits."""
    return m.left_shift(input, other)


@elementwise(ref=np.right_shift, dtypes=INTEGERS, gradient=None)
def bitwise_right_shift(input, other):
    """input / 2^other rounded down; 0 or -1 where `other` is negative or not below the number of bits."""
    return m.right_shift(input, other)


@elementwise(ref=np.floor_divide, dtypes=NUMBERS, domain=(0.5, 4), divisor="other")
def floor_divide(input, other):
    """input / other rounded down; the gradient is 0. Raises ValueError where integers are divided by 0."""
    return m.floor_divide(input, other)


@elementwise(ref=m.trunc_divide, dtypes=NUMBERS, domain=(0.5, 4), divisor="other", step=True)
def trunc_divide(input, other):
    """input / other rounded towards 0; the gradient is 0. Raises ValueError where integers are divided by 0."""
    return m.trunc_divide(input, other)


for _row in (floor_divide, trunc_divide):

    @_row.grad("input", "other")
    def _(g):
        return 0.0 * g


@elementwise(ref=np.remainder, dtypes=NUMBERS, domain=(0.5, 4), divisor="other")
def remainder(input, other):
    """input - other * floor(input / other), with the sign of `other`. Raises ValueError where it is an integer 0."""
    return m.remainder(input, other)


@remainder.grad("input")
def _(g):
    return g


@remainder.grad("other")
def _(g, input, other):
    return -g * m.floor_divide(input, other)


@elementwise(ref=np.fmod, dtypes=NUMBERS, domain=(0.5, 4), divisor="other")
def fmod(input, other):
    """input - other * trunc(input / other), with the sign of `input`. Raises ValueError where other is an integer 0."""
    return m.fmod(input, other)


@fmod.grad("input")
def _(g):
    return g


@fmod.grad("other")
def _(g, input, other):
    return -g * m.trunc_divide(input, other)
