"""Elements whose number only their values say: those that a mask chooses, the first ones of runs; and comparisons that
end at the first difference.
"""

from numba import types

from ...blocks.array import ALIKE, MASKED, RUNS, SELECTED
from ...build import isa, jit
from ...lang.rows import fill_row
from ...lang.simd import fill, load, ptr, ramp, reduce_add, reduce_and, reduce_or, select, stack, store, vload, vstore
from .copy import copy_row
from .create import FOUND, FOUND_BYTES, before

LANES = isa.lanes()
WIDE = 4 * LANES
I32, I64, U8 = types.int32, types.int64, types.uint8
ELEMENTS_BYTES = 16 * FOUND
TOO_FEW = 1


@jit.inline
def selected(args, lo, hi, E):
    """The elements of chunks [lo, hi) where the mask is true, collected without a branch."""
    x, mask, y = ptr(load(args, SELECTED.x), E), ptr(load(args, SELECTED.mask), U8), ptr(load(args, SELECTED.y), E)
    counts, size, step = ptr(load(args, SELECTED.counts), I64), load(args, SELECTED.numel), load(args, SELECTED.step)
    found = ptr(stack(ELEMENTS_BYTES), E)
    for chunk in range(lo, hi):
        target, total, stop = y + before(counts, chunk), 0, min(size, (chunk + 1) * step)
        for first in range(chunk * step, stop, FOUND):
            n = 0
            for i in range(first, min(stop, first + FOUND)):
                store(found, n, load(x, i))
                n += I64(load(mask, i) != 0)
            copy_row(target + total, found, n)
            total += n
        if size <= step:
            store(counts, 0, total)
    return 0


@jit.inline
def scattered(args, lo, hi, E):
    """Chunks [lo, hi) of x, where the mask is true the next elements of the source."""
    x, mask, y = ptr(load(args, MASKED.x), E), ptr(load(args, MASKED.mask), U8), ptr(load(args, MASKED.y), E)
    counts, size, step = ptr(load(args, MASKED.counts), I64), load(args, MASKED.numel), load(args, MASKED.step)
    source, last = ptr(load(args, MASKED.source), E), load(args, MASKED.count) - 1
    if before(counts, (size + step - 1) // step) > last + 1:
        return TOO_FEW
    for chunk in range(lo, hi):
        at = before(counts, chunk)
        for i in range(chunk * step, min(size, (chunk + 1) * step)):
            taken = load(mask, i) != 0
            following, own = load(source, max(0, min(at, last))), load(x, i)
            store(y, i, following if taken else own)
            at += I64(taken)
    return 0


@jit.inline
def count_runs(args, lo, hi, T, E):
    """How many runs of equal elements begin in chunks [lo, hi), and where the last of each does."""
    x, size, step = ptr(load(args, RUNS.x), T), load(args, RUNS.numel), load(args, RUNS.step)
    counts, lasts = ptr(load(args, RUNS.counts), I64), ptr(load(args, RUNS.lasts), I64)
    for chunk in range(lo, hi):
        first, stop = chunk * step, min(size, (chunk + 1) * step)
        total, i, begins = 1 if first == 0 else 0, max(1, first), fill(0, I32, LANES)
        while i + LANES <= stop:
            begins = select(vload(x, i, LANES) != vload(x, i - 1, LANES), begins + 1, begins)
            i += LANES
        total += reduce_add(begins)
        for k in range(i, stop):
            total += I64(load(x, k) != load(x, k - 1))
        last = stop - 1
        while last > 0 and last >= first and load(x, last) == load(x, last - 1):
            last -= 1
        store(counts, chunk, total)
        store(lasts, chunk, last if last >= first else -1)
    return 0


@jit.inline
def runs(args, lo, hi, T, E):
    """The first elements of the runs that begin in chunks [lo, hi), and what else is wanted of runs."""
    x, bits, y = ptr(load(args, RUNS.x), T), ptr(load(args, RUNS.x), E), ptr(load(args, RUNS.y), E)
    size, step = load(args, RUNS.numel), load(args, RUNS.step)
    counts, lasts = ptr(load(args, RUNS.counts), I64), ptr(load(args, RUNS.lasts), I64)
    inverse, lengths = ptr(load(args, RUNS.inverse), I64), ptr(load(args, RUNS.lengths), I64)
    numbered, measured = load(args, RUNS.inverse) != 0, load(args, RUNS.lengths) != 0
    chunks, found = (size + step - 1) // step, ptr(stack(FOUND_BYTES), I64)
    for chunk in range(lo, hi):
        run, begin, stop = before(counts, chunk), -1, min(size, (chunk + 1) * step)
        for k in range(chunk):
            begin = max(begin, load(lasts, k))
        for first in range(chunk * step, stop, FOUND):
            n, last = 0, min(stop, first + FOUND)
            if first == 0:
                store(found, 0, 0)
                n = 1
                if numbered:
                    store(inverse, 0, 0)
            i = max(1, first)
            while i < last:
                end = min(last, i + LANES)
                if end == i + LANES:  # all of one run, or each of its own, are quick
                    differ = vload(x, i, LANES) != vload(x, i - 1, LANES)
                    if not reduce_or(differ):
                        if numbered:
                            fill_row(inverse + i, LANES, run + n - 1)
                        i = end
                    elif reduce_and(differ):
                        vstore(found, n, ramp(i, I64, LANES))
                        if numbered:
                            vstore(inverse, i, ramp(run + n, I64, LANES))
                        n += LANES
                        i = end
                while i < end:
                    store(found, n, i)
                    n += I64(load(x, i) != load(x, i - 1))
                    if numbered:
                        store(inverse, i, run + n - 1)
                    i += 1
            for k in range(n):
                at = load(found, k)
                store(y, run, load(bits, at))
                if measured and run > 0:
                    store(lengths, run - 1, at - begin)
                begin, run = at, run + 1
        if size <= step:
            store(counts, 0, run)
        if measured and run > 0:
            later = 0
            for k in range(chunk + 1, chunks):
                later += load(counts, k)
            if later == 0:
                store(lengths, run - 1, size - begin)
    return 0


@jit.inline
def alike(args, lo, hi, T):
    """Whether two rows are equal: chunks [lo, hi) from `start` on, which begins at 0 with nothing known."""
    x, y, flag = ptr(load(args, ALIKE.x), T), ptr(load(args, ALIKE.y), T), ptr(load(args, ALIKE.alike), I64)
    size, step, start = load(args, ALIKE.numel), load(args, ALIKE.step), load(args, ALIKE.start)
    if start == 0:
        store(flag, 0, 1)
    for chunk in range(lo, hi):
        i, stop = start + chunk * step, min(size, start + (chunk + 1) * step)
        if load(flag, 0) == 0:
            return 0
        while i + WIDE <= stop:
            if reduce_or(vload(x, i, WIDE) != vload(y, i, WIDE)):
                store(flag, 0, 0)
                return 0
            i += WIDE
        while i < stop:
            if load(x, i) != load(y, i):
                store(flag, 0, 0)
                return 0
            i += 1
    return 0
