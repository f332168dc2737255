"""Sums over rows that kernels take in chunks, joined."""

from ...blocks.norm import JOIN
from ...build import jit
from ...lang.simd import fill, load, ptr, vload_first, vstore_first
from .sizes import PAIR


@jit.inline
def join(args, lo, hi, C, W, B):
    """The sums of all chunks, in their order, for blocks [lo, hi) of PAIR columns; results are of types W and B."""
    step, chunks, columns = load(args, JOIN.step), load(args, JOIN.chunks), load(args, JOIN.columns)
    first_w, first_b = load(args, JOIN.first_w), load(args, JOIN.first_b)
    out_w, out_b = ptr(load(args, JOIN.w), W), ptr(load(args, JOIN.b), B)
    for block in range(lo, hi):
        i = block * PAIR
        left = columns - i
        if first_w != 0:
            total = fill(0.0, C, PAIR)
            for chunk in range(chunks):
                total = total + vload_first(ptr(first_w, C), chunk * step + i, PAIR, left)
            vstore_first(out_w, i, total, left)
        if first_b != 0:
            total = fill(0.0, C, PAIR)
            for chunk in range(chunks):
                total = total + vload_first(ptr(first_b, C), chunk * step + i, PAIR, left)
            vstore_first(out_b, i, total, left)
    return 0
