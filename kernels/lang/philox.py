"""Philox-4x32-10, a counter-based generator of random numbers: no state, so any place can be made again.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); constants from there.
"""

from numba import types

from ..build import jit

U64 = types.uint64
LOW = 0xFFFFFFFF


@jit.inline
def philox(place, index, seed):
    """Four vectors of 32 random bits (as uint64) for the counter (place, index), with `seed` as the key.

    `place` is a vector of uint64, `index` (below 2^32) and `seed` (64 bits) are integers. The lanes keep 64 bits
    all the way: `vpmuludq` reads the lower halves, so that a round of 16 lanes is 16 instructions.
    """
    key0, key1 = U64(seed) & U64(LOW), U64(seed) >> U64(32)
    a, b = place & U64(LOW), place >> U64(32)
    c, d = (place ^ place) | U64(index), place ^ place
    for _ in range(10):
        first, second = (a & U64(LOW)) * U64(0xD2511F53), (c & U64(LOW)) * U64(0xCD9E8D57)
        a, b = (second >> U64(32)) ^ b ^ key0, second & U64(LOW)
        c, d = (first >> U64(32)) ^ d ^ key1, first & U64(LOW)
        key0, key1 = (key0 + U64(0x9E3779B9)) & U64(LOW), (key1 + U64(0xBB67AE85)) & U64(LOW)
    return a, b, c, d
