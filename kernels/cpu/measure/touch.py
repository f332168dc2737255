"""First touch: memory is placed on the NUMA node of the thread that writes a page of it first."""

from numba import types

from ...blocks.measure import PAGES
from ...build import jit
from ...lang.simd import load, ptr, store

U8 = types.uint8


@jit.inline
def pages(args, lo, hi):
    """Write a zero into pages [lo, hi) of fresh memory."""
    start = load(args, PAGES.memory)
    step = load(args, PAGES.page_bytes)
    for page in range(lo, hi):
        store(ptr(start + page * step, U8), 0, 0)
    return 0
