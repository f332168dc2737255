"""First touch: memory is placed on the NUMA node of the thread that writes a page of it first."""

from numba import types

from ...build import jit
from ...lang.simd import load, ptr, store

PAGE = 4096
U8 = types.uint8


@jit.inline
def pages(args, lo, hi):
    """Write a zero into pages [lo, hi) of fresh memory: args are its address and the bytes of a page."""
    start = load(args, 0)
    step = load(args, 1)
    for page in range(lo, hi):
        store(ptr(start + page * step, U8), 0, 0)
    return 0
