"""Sums over rows that kernels take in chunks, joined."""

from ...build import isa, jit
from ...lang.simd import fill, load, ptr, vload_first, vstore_first

PAIR = 2 * isa.lanes()


@jit.inline
def join(args, lo, hi, C, W, B):
    """The sums of all chunks, in their order, for blocks [lo, hi) of PAIR columns.

    args: dw and db of the first chunk (0: not wanted), step to the next chunk, chunks, columns, results (types W, B).
    """
    step, chunks, columns = load(args, 2), load(args, 3), load(args, 4)
    out_w, out_b = ptr(load(args, 5), W), ptr(load(args, 6), B)
    for block in range(lo, hi):
        i = block * PAIR
        left = columns - i
        if load(args, 0) != 0:
            total = fill(0.0, C, PAIR)
            for chunk in range(chunks):
                total = total + vload_first(ptr(load(args, 0), C), chunk * step + i, PAIR, left)
            vstore_first(out_w, i, total, left)
        if load(args, 1) != 0:
            total = fill(0.0, C, PAIR)
            for chunk in range(chunks):
                total = total + vload_first(ptr(load(args, 1), C), chunk * step + i, PAIR, left)
            vstore_first(out_b, i, total, left)
    return 0
