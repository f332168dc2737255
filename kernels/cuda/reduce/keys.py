"""Keys of elements (those of `kernels/cpu/reduce/sort.py`) in registers of 32 or 64 bits, which GPUs have."""

from numba import types

from ...cpu.reduce.sort import FLOAT, key_of
from ...lang.by_type import by_type
from ...lang.near import of_sign
from ...lang.simd import bitcast

F32, U32, U64 = types.float32, types.uint32, types.uint64


@by_type
def key_at(bits, infinity, E, KIND):
    """The key of an element in an ascending order, as of `key_of`, in registers of 32 or 64 bits.

    Of 16 bits, it is in the upper ones; a float is a float32 that is there too, and plus 0 no -0: of float32, 5
    instructions instead of 8, of 16 bits 7 instead of 16.
    """
    if bits == types.uint64:
        return lambda bits, infinity, E, KIND: key_of(bits, infinity, E(0), E, KIND)
    above, sign = 16 if bits == types.uint16 else 0, 1 << 31

    def implementation(bits, infinity, E, KIND):
        if KIND != FLOAT:
            return U32(U32(key_of(bits, infinity, E(0), E, KIND)) << U32(above))
        wide = U32(U32(bits) << U32(above))
        number = bitcast(bitcast(wide, F32) + F32(0.0), U32)
        key = U32(number ^ (of_sign(number) | U32(sign)))
        return key if U32(wide & U32(sign - 1)) <= U32(U32(infinity) << U32(above)) else U32(0xFFFFFFFF)

    return implementation


@by_type
def above_key(E):
    """How many bits `key_at` has below a key of this type."""
    bits = 16 if E.instance_type == types.uint16 else 0
    return lambda E: bits


@by_type
def sorting_key(bits, infinity, mask, E, KIND):
    """A number of 32 or 64 bits that orders as elements do; `mask`: all ones for a descending order."""
    register = U64 if bits == types.uint64 else U32
    return lambda bits, infinity, mask, E, KIND: register(register(key_at(bits, infinity, E, KIND)) ^ register(mask))
