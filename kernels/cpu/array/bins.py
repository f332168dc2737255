"""How many elements lie in each of equal intervals: each part counts for itself, then the counts are added up."""

from numba import types

from ...blocks.array import BIN_COUNTS, SUM_OF_BINS
from ...build import isa, jit
from ...lang.simd import bitcast, convert, fill, load, ptr, select, stack, store, vload_first, vstore

F64, I64 = types.float64, types.int64
LANES = isa.lanes()
PLACES = 8 * LANES  # bytes


@jit.inline
def ends(args, T):
    """(the first end, the distance to the last one, how many bins) as numbers of type T, and the last end."""
    low, high = bitcast(load(args, BIN_COUNTS.low), F64), bitcast(load(args, BIN_COUNTS.high), F64)
    return T(low), T(high - low), T(load(args, BIN_COUNTS.bins)), T(high)


@jit.inline
def counts(args, lo, hi, T):
    """Parts [lo, hi). What lies outside, NaN too, is left out."""
    x, size, step = ptr(load(args, BIN_COUNTS.x), T), load(args, BIN_COUNTS.size), load(args, BIN_COUNTS.step)
    bins, (low, width, many, high) = load(args, BIN_COUNTS.bins), ends(args, T)
    places = ptr(stack(PLACES), I64)
    for part in range(lo, hi):
        y = ptr(load(args, BIN_COUNTS.y), I64) + part * bins
        for k in range(bins):
            store(y, k, 0)
        last = min(size, (part + 1) * step)
        for i in range(part * step, last, LANES):
            v = vload_first(x, i, LANES, last - i)
            inside = (v >= low) & (v <= high)
            place = convert((select(inside, v, fill(low, T, LANES)) - low) / width * many, I64)
            vstore(places, 0, select(inside, place, fill(-1, I64, LANES)))
            for k in range(min(LANES, last - i)):
                at = min(load(places, k), bins - 1)
                if at >= 0:
                    store(y, at, load(y, at) + 1)
    return 0


@jit.inline
def sums(args, lo, hi):
    """The sums over all parts for bins [lo, hi)."""
    parts, y = ptr(load(args, SUM_OF_BINS.parts), I64), ptr(load(args, SUM_OF_BINS.y), I64)
    count, bins = load(args, SUM_OF_BINS.count), load(args, SUM_OF_BINS.bins)
    for k in range(lo, hi):
        total = 0
        for part in range(count):
            total += load(parts, part * bins + k)
        store(y, k, total)
    return 0
