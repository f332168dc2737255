"""Elements whose number only their values say: what a mask chooses, the first ones of runs; a chunk for a block."""

from numba import types

from ...blocks.array import ALIKE, MASKED, RUNS, SELECTED
from ...build import jit
from ...cpu.array.chosen import TOO_FEW
from ...lang.ptx import barrier, count_bits, shared, thread, threads
from ...lang.shuffle import turned
from ...lang.simd import address, fill, load, ptr, ramp, reduce_or, select, store, vload_aligned
from ..block import across, block_sum, read, vector, width, write
from .create import as_bits, counts_before, not_zero, place_tile
from .sizes import LANES, TILE, TILE_BYTES

U8, U16, I32, I64 = types.uint8, types.uint16, types.int32, types.int64
LAST = LANES - 1


@jit.inline
def selected(args, chunk, hi, E):
    """The elements of a chunk where the mask is true."""
    x, mask, y = ptr(load(args, SELECTED.x), E), ptr(load(args, SELECTED.mask), U8), ptr(load(args, SELECTED.y), E)
    counts, size, step = ptr(load(args, SELECTED.counts), I64), load(args, SELECTED.numel), load(args, SELECTED.step)
    memory, first, stop = ptr(shared(TILE_BYTES), U16), chunk * step, min(size, (chunk + 1) * step)
    at = counts_before(counts, chunk)
    while first < stop:
        i = first + thread() * LANES
        _, total = place_tile(not_zero(mask, i, stop - i, U8), memory)
        for k in range(thread(), total, threads()):
            store(y, at + k, load(x, first + I64(load(memory, k))))
        at, first = at + total, first + TILE
    if size <= step and thread() == 0:
        store(counts, 0, at)
    return 0


@jit.inline
def scattered(args, chunk, hi, E):
    """A chunk of x, where the mask is true the next elements of the source, which are written over those of x."""
    x, mask, y = ptr(load(args, MASKED.x), E), ptr(load(args, MASKED.mask), U8), ptr(load(args, MASKED.y), E)
    counts, size, step = ptr(load(args, MASKED.counts), I64), load(args, MASKED.numel), load(args, MASKED.step)
    memory, first, stop = ptr(shared(TILE_BYTES), U16), chunk * step, min(size, (chunk + 1) * step)
    source, lanes, like = ptr(load(args, MASKED.source), E), width(y), vector(y, 0)
    if counts_before(counts, (size + step - 1) // step) > load(args, MASKED.count):
        return TOO_FEW
    at = counts_before(counts, chunk)
    while first < stop:
        i = first + thread() * LANES
        bits = not_zero(mask, i, stop - i, U8)
        for k in range(first + thread() * lanes, min(stop, first + TILE), threads() * lanes):
            write(y, k, read(x, k, stop - k, like), stop - k)
        barrier()
        _, total = place_tile(bits, memory)
        for k in range(thread(), total, threads()):
            store(y, first + I64(load(memory, k)), load(source, at + k))
        at, first = at + total, first + TILE
    return 0


@jit.inline
def alike(args, chunk, hi, T):
    """Whether two rows are equal: a chunk from `start` on, which begins at 0, with one chunk, and nothing known."""
    x, y, flag = ptr(load(args, ALIKE.x), T), ptr(load(args, ALIKE.y), T), ptr(load(args, ALIKE.alike), I64)
    step, lanes, like, equal = load(args, ALIKE.step), width(x), vector(x, 0), True
    first = load(args, ALIKE.start) + chunk * step
    stop = min(load(args, ALIKE.numel), first + step)
    if load(args, ALIKE.start) == 0:
        if thread() == 0:
            store(flag, 0, 1)
        barrier()
    for i in range(first + thread() * lanes, stop, threads() * lanes):
        if reduce_or(read(x, i, stop - i, like) != read(y, i, stop - i, like)):
            equal = False
    if not equal:
        store(flag, 0, 0)
    return 0


@jit.inline
def begins(x, i, stop, T):
    """Bits of those of LANES elements from `i` on where a run begins: the first one, and what differs from the one
    before.
    """
    if i > 0 and i + LANES <= stop and address(x + i) & 15 == 0:
        v = vload_aligned(x, i, LANES)
        first = select(ramp(0, I32, LANES) == 0, fill(load(x, i - 1), T, LANES), turned(v, LAST))
        return as_bits(v != first)
    bits = I64(0)
    for k in range(min(stop - i, LANES)):
        bits |= I64(i + k == 0 or load(x, i + k) != load(x, i + k - 1)) << k
    return bits


@jit.inline
def later(a, b):
    return max(a, b)


@jit.inline
def count_runs(args, chunk, hi, T, E):
    """How many runs of equal elements begin in a chunk, and where the last of them does."""
    x, size, step = ptr(load(args, RUNS.x), T), load(args, RUNS.numel), load(args, RUNS.step)
    counts, lasts = ptr(load(args, RUNS.counts), I64), ptr(load(args, RUNS.lasts), I64)
    stop, found, last = min(size, (chunk + 1) * step), I64(0), I64(-1)
    for i in range(chunk * step + thread() * LANES, stop, TILE):
        own = begins(x, i, stop, T)
        found += count_bits(own)
        if own != 0:
            k = LAST
            while (own >> k) & 1 == 0:
                k -= 1
            last = i + k
    total, last = block_sum(found), across(last, later, threads())
    if thread() == 0:
        store(counts, chunk, total)
        store(lasts, chunk, last)
    return 0


@jit.inline
def runs(args, chunk, hi, T, E):
    """The first elements of the runs that begin in a chunk, and what else is wanted of runs."""
    x, bits, y = ptr(load(args, RUNS.x), T), ptr(load(args, RUNS.x), E), ptr(load(args, RUNS.y), E)
    size, step = load(args, RUNS.numel), load(args, RUNS.step)
    counts, lasts = ptr(load(args, RUNS.counts), I64), ptr(load(args, RUNS.lasts), I64)
    inverse, lengths = ptr(load(args, RUNS.inverse), I64), ptr(load(args, RUNS.lengths), I64)
    numbered, measured = load(args, RUNS.inverse) != 0, load(args, RUNS.lengths) != 0
    memory, first, stop = ptr(shared(TILE_BYTES), U16), chunk * step, min(size, (chunk + 1) * step)
    run, begin, after = counts_before(counts, chunk), I64(-1), I64(0)
    if measured:  # where the run before the first one here began, and whether others begin behind this chunk
        for k in range(thread(), chunk, threads()):
            begin = max(begin, load(lasts, k))
        begin = across(begin, later, threads())
        for k in range(chunk + 1 + thread(), (size + step - 1) // step, threads()):
            after += load(counts, k)
        after = block_sum(after)
    while first < stop:
        i = first + thread() * LANES
        own = begins(x, i, stop, T)
        before, total = place_tile(own, memory)
        if numbered:
            number = run + before - 1
            for k in range(LANES):
                number += I64((own >> k) & 1)
                if i + k < stop:
                    store(inverse, i + k, number)
        for k in range(thread(), total, threads()):
            place = first + I64(load(memory, k))
            store(y, run + k, load(bits, place))
            if measured and run + k > 0:
                store(lengths, run + k - 1, place - (first + I64(load(memory, k - 1)) if k > 0 else begin))
        if total > 0:
            begin = first + I64(load(memory, total - 1))
        run, first = run + total, first + TILE
    if thread() == 0:
        if size <= step:
            store(counts, 0, run)
        if measured and run > 0 and after == 0:
            store(lengths, run - 1, size - begin)
    return 0
