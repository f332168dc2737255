"""What may be among the first ones of a sorted row, found by two looks at each element.

Each thread knows the first of its own elements. As many of these, in each warp, as make up what is wanted are not
behind some key; so the wanted ones are not behind the last of these keys. What is not behind it is kept, some more
elements than are wanted (32 of 8192: 61), and each is compared with all others. Where elements are equal, or lie so
that more would be kept than threads can compare, nothing is found, and `first.py` goes through the digits.
"""

from numba import types

from ...blocks.cuda import RADIX
from ...build import jit
from ...lang.by_type import by_type
from ...lang.near import load_near, store_near
from ...lang.pieces import vload_span
from ...lang.ptx import WARP, atomic_place, barrier, from_lane, from_place, thread, threads
from ...lang.simd import lane, load, ptr
from ..block import width
from .keys import sorting_key
from .scan import offset

I32, I64, U64 = types.int32, types.int64, types.uint64
WARPS, KEPT = 8, 256  # of a block; elements, one for each thread
BYTES = 8 * WARPS + 4 * KEPT + 8 * KEPT + 4
PLACES, KEYS, COUNT = 8 * WARPS, 8 * WARPS + 4 * KEPT, 8 * WARPS + 12 * KEPT  # where they begin, behind ends of warps
WANTED, ELEMENTS = 64, 2048  # the most that may be wanted (which keeps some 110), and the least that it may be of


def _fold(v, inside):
    """A function that folds the lanes of a vector of four pieces; `inside`: which of them are elements, as a text."""
    each = v.lanes // 4
    lines = ["def made(state, v, begin, apart, low, high, one, keys):"]
    for k in range(v.lanes):
        at = f"begin + {k // each} * apart + {k % each}"
        lines.append(f"    state = one(state, lane(v, {k}), {at} - low, {inside.format(at=at)}, keys)")
    scope = {"lane": lane}
    exec("\n".join([*lines, "    return state"]), scope)
    return scope["made"]


@by_type
def fold_whole(state, v, begin, apart, low, high, one, keys):
    """`one(state, bits, place, True, keys)` for all lanes, of which each is an element."""
    return _fold(v, "True")


@by_type
def fold_within(state, v, begin, apart, low, high, one, keys):
    """The same, where lanes in [low, high) are elements."""
    return _fold(v, "low <= {at} < high")


@jit.inline
def fold_own(x, size, state, one, keys):
    """The state after all elements of this thread."""
    W = width(x)
    low = offset(x, W)
    high, apart, begin = low + size, threads() * W, thread() * W
    while begin < high:
        v = vload_span(x + -low, begin, apart, high, W, 4)
        if begin >= low and begin + 3 * apart + W <= high:
            state = fold_whole(state, v, begin, apart, low, high, one, keys)
        else:
            state = fold_within(state, v, begin, apart, low, high, one, keys)
        begin += 4 * apart
    return state


@jit.inline
def key_by(keys, bits):
    infinity, mask, E, KIND = keys
    return sorting_key(bits, infinity, mask, E, KIND)


@jit.inline
def earlier(state, bits, place, inside, keys):
    """The first key of those so far and of an element."""
    key = key_by(keys, bits)
    return key if inside and key < state else state


@jit.inline
def keep(state, bits, place, inside, keys):
    """Keep an element that is not behind the last key, if there is room."""
    memory, last = state
    key = key_by(keys, bits)
    if inside and key <= last:
        slot = atomic_place(memory + COUNT)
        if slot < KEPT:
            store_near(ptr(memory + PLACES, I32), slot, I32(place))
            store_near(ptr(memory + KEYS, U64), slot, U64(key))
    return state


@jit.inline
def last_of_warp(first, wanted):
    """The key that `wanted` of the warp's keys are not behind; few of them come before it."""
    before = I32(0)
    for k in range(WARP):
        before += I32(from_place(first, k) < first)
    last = first if before < wanted else first ^ first
    for apart in (16, 8, 4, 2, 1):
        last = max(last, from_lane(last, apart))
    return last


@jit.inline
def sieve(args, x, size, wanted, memory, E, KIND):
    """How many elements are kept, whose places and keys are in shared `memory` of BYTES; more than KEPT: nothing is."""
    keys = E(load(args, RADIX.infinity)), load(args, RADIX.mask), E, KIND
    key = key_by(keys, load(x, 0))
    first = fold_own(x, size, ends_like(key, ~U64(0)), earlier, keys)
    last = last_of_warp(first, (wanted + WARPS - 1) // WARPS)
    if thread() % WARP == 0:
        store_near(ptr(memory, U64), thread() // WARP, U64(last))
    if thread() == 0:
        store_near(ptr(memory + COUNT, I32), 0, I32(0))
    barrier()
    ends = U64(0)
    for k in range(WARPS):
        ends = max(ends, load_near(ptr(memory, U64), k))
    last = ends_like(last, ends)
    if first <= last:
        fold_own(x, size, (memory, last), keep, keys)
    barrier()
    return I64(load_near(ptr(memory + COUNT, I32), 0))


@by_type
def ends_like(key, number):
    """A number in a register of the size of a key."""
    dtype = key
    return lambda key, number: dtype(number)


@jit.inline
def rank_of_kept(memory, count):
    """(the place of the element that this thread has of those kept, how many come before it)."""
    places, keys, rank = ptr(memory + PLACES, I32), ptr(memory + KEYS, U64), I64(0)
    key, place = load_near(keys, thread()), load_near(places, thread())
    for k in range(count):
        other = load_near(keys, k)
        rank += I64(other < key or (other == key and load_near(places, k) < place))
    return I64(place), rank
