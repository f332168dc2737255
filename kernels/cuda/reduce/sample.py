"""Choosing tokens from logits (definitions: `kernels/cpu/reduce/sample.py`): a row for a block.

Likely tokens are collected as on the CPU, in the order of their ids; the histogram is one over digits of keys, in
shared memory. Masses are integers, in units of 2^-40 of the most likely token's: sums of integers do not depend on the
order in which threads add, so the same numbers choose the same tokens each time.
"""

from numba import types

from ...blocks.reduce import GREEDY, SAMPLE
from ...build import jit
from ...cpu.reduce.sample import ABOVE, BY_COUNT, LARGEST, NO_TOKEN, choose, key_of, number, options_of
from ...cpu.reduce.sizes import SAMPLE_BYTES
from ...lang.ptx import atomic_add, barrier, shared, thread, threads
from ...lang.shuffle import largest
from ...lang.simd import address, load, ptr, reduce_min, select, store, vload_aligned
from ..block import block_max, block_min, block_running, block_sum, places, read, vector, width, write
from ..norm.softmax import exp_of

F32, F64, I32, I64 = types.float32, types.float64, types.int32, types.int64
INF, NAN = float("inf"), float("nan")
NOWHERE = 1 << 62
UNIT = 2.0**40  # of masses
DIGITS = 256
DIGITS_BYTES = 8 * DIGITS
LIKELY = 1e-3  # the weight of tokens that are collected at first


@jit.inline
def compared(state, v, i):
    """The state (largest element of a thread, the first vector that has it, whether one is NaN) with vector i."""
    best, where, bad = state
    top = largest(v)
    wins = top > best
    return (top if wins else best), (i if wins else where), bad or top != top


@jit.inline
def first_largest(x, size):
    """(the first place of the largest element of a row, whether none is NaN), for every thread.

    A thread has eight vectors on their way at once; where they would be beyond the row, it looks at the last one again.
    """
    nothing, lanes, apart = vector(x, -INF), width(x), threads() * width(x)
    whole = size // lanes * lanes if address(x) & 15 == 0 else 0
    state, i, last = (largest(nothing), thread() * lanes, False), thread() * lanes, whole - lanes
    while i < whole:
        j, k, l = min(i + apart, last), min(i + 2 * apart, last), min(i + 3 * apart, last)
        m, n, o, p = (
            min(i + 4 * apart, last), min(i + 5 * apart, last), min(i + 6 * apart, last), min(i + 7 * apart, last),
        )  # fmt: skip
        a, b = vload_aligned(x, i, lanes), vload_aligned(x, j, lanes)
        c, d = vload_aligned(x, k, lanes), vload_aligned(x, l, lanes)
        e, f = vload_aligned(x, m, lanes), vload_aligned(x, n, lanes)
        g, h = vload_aligned(x, o, lanes), vload_aligned(x, p, lanes)
        state = compared(compared(compared(compared(state, a, i), b, j), c, k), d, l)
        state = compared(compared(compared(compared(state, e, m), f, n), g, o), h, p)
        i += 8 * apart
    i = whole + thread() * lanes
    while i < size:
        v = read(x, i, size - i, nothing)
        state = compared(state, select(places(x) < size - i, v, -INF), i)
        i += apart
    best, where, bad = state
    top = block_max(best * F32(NAN) if bad else best)  # NaN, if one is
    where = block_min(where if best == top else NOWHERE)
    v = read(x, where, size - where, nothing)
    mine = select((v == top) & (places(x) < size - where), places(x) + where, places(x) + NOWHERE)
    return min(size - 1, reduce_min(mine)), top == top


@jit.inline
def greedy(args, lo, hi, T, O):
    """The most likely token of row `lo`, of type O."""
    x = ptr(load(args, GREEDY.x), T) + lo * load(args, GREEDY.stride)
    where, good = first_largest(x, load(args, GREEDY.size))
    if not good:
        return NO_TOKEN
    if thread() == 0:
        store(ptr(load(args, GREEDY.tokens), O), lo, where)
    return 0


# ---- draws -------------------------------------------------------------------------------------------


@jit.inline
def penalize(x, y, size, history, length, penalty, bias, last):
    """As on the CPU; a token that is named again is changed by its last place, which threads settle in `last`."""
    for i in range(thread(), length, threads()):
        token = load(history, i)
        if 0 <= token < size:
            store(last, token, -1)
    barrier()
    changed = 1
    while changed != 0:
        changed = 0
        for i in range(thread(), length, threads()):
            token = load(history, i)
            if 0 <= token < size and load(last, token) < i:
                store(last, token, I32(i))
                changed = 1
        changed = block_sum(changed)
    for i in range(thread(), length, threads()):
        token = load(history, i)
        if 0 <= token < size and load(last, token) == i:
            v = load(x, token)
            v = v / penalty if v > 0 else v * penalty
            store(y, token, F32(v + (load(ptr(bias, F32), i) if bias != 0 else 0.0) + 0.0))
    barrier()


@jit.inline
def mass_of(weight):
    """A weight up to 1 in units of masses."""
    return I64(F64(weight) * UNIT)


@jit.inline
def weight_of(v, top, scale):
    """The weight of a logit."""
    return F32(1.0) if v == top else exp_of(F32((v - top) * scale))


@jit.inline
def collect(x, size, top, scale, cutoff, tokens):
    """Tokens of weight above `cutoff` to the arrays of `tokens`; returns (how many, their mass, that of all tokens).

    Each thread has a piece of the row.
    """
    values, weights, ids = tokens
    each = (size + threads() - 1) // threads()
    first = min(size, thread() * each)
    last, count, mass, every = min(size, first + each), 0, 0, 0
    for i in range(first, last):
        w = weight_of(load(x, i), top, scale)
        every += mass_of(w)
        if w > cutoff:
            count += 1
            mass += mass_of(w)
    at, total = block_running(count)
    for i in range(first, last):
        w = weight_of(load(x, i), top, scale)
        if w > cutoff:
            store(values, at, load(x, i))
            store(weights, at, w)
            store(ids, at, I32(i))
            at += 1
    mass, every = block_sum(mass), block_sum(every)
    return total, F64(mass) / UNIT, F64(every) / UNIT


@jit.inline
def locate(state, n, target, mode):
    """As on the CPU; `members` are all that were collected."""
    (values, weights, _), counts, masses, chosen = state
    prefix, mass, count, ties, ties_mass, shift = 0, 0, 0, 0, 0, 24
    while shift >= 0:
        if thread() < DIGITS:
            store(counts, thread(), 0)
            store(masses, thread(), 0)
        barrier()
        for i in range(thread(), n, threads()):
            key = key_of(load(values, i))
            if key >> (shift + 8) == prefix:
                atomic_add(address(counts + ((key >> shift) & 0xFF)), 1)
                atomic_add(address(masses + ((key >> shift) & 0xFF)), mass_of(load(weights, i)))
        barrier()
        digit = DIGITS - 1 - thread()  # from the largest on
        here, mass_here = (load(counts, digit), load(masses, digit)) if digit >= 0 else (0, 0)
        count_before, _ = block_running(here)
        mass_before, _ = block_running(mass_here)
        reached = F64(mass + mass_before + mass_here) / UNIT
        if mode == BY_COUNT:
            reached = F64(count + count_before + here)
        crosses = here > 0 and (reached > target or (reached == target and mode != ABOVE))
        at = block_min(thread() if crosses else NOWHERE)
        if at == NOWHERE:  # nothing crosses: the smallest
            at = -block_min(-thread() if here > 0 else NOWHERE)
        if thread() == at:
            store(chosen, 0, count + count_before)
            store(chosen, 1, mass + mass_before)
            store(chosen, 2, here)
            store(chosen, 3, mass_here)
        barrier()
        count, mass, ties, ties_mass = load(chosen, 0), load(chosen, 1), load(chosen, 2), load(chosen, 3)
        barrier()
        prefix = prefix * DIGITS + DIGITS - 1 - at
        shift -= 8
    return prefix, F64(mass) / UNIT, count, ties, F64(ties_mass) / UNIT, n


@jit.inline
def token_at(state, num_members, key, position):
    """The token of the `position`-th (from 1) member whose key equals `key`."""
    (values, _, ids), _, _, chosen = state
    each = (num_members + threads() - 1) // threads()
    first = min(num_members, thread() * each)
    last, own = min(num_members, first + each), 0
    for i in range(first, last):
        own += I64(key_of(load(values, i)) == key)
    at, _ = block_running(own)
    for i in range(first, last):
        if key_of(load(values, i)) == key:
            at += 1
            if at == position:
                store(chosen, 0, I64(load(ids, i)))
    barrier()
    token = load(chosen, 0)
    barrier()
    return token


@jit.inline
def mass_above(state, n, least):
    """The mass of tokens whose weight is at least `least`."""
    weights, above, least = state[0][1], 0, F32(least)
    for i in range(thread(), n, threads()):
        if load(weights, i) >= least:
            above += mass_of(load(weights, i))
    return F64(block_sum(above)) / UNIT


@jit.inline
def sample_row(args, row, x, space):
    """The token of one row, or -1 where there is none; all threads get it."""
    size, contract = load(args, SAMPLE.size), load(args, SAMPLE.contract) != 0
    buffer, last = ptr(space, F32), ptr(space + 4 * size, I32)
    tokens = ptr(space + 8 * size, F32), ptr(space + 12 * size, F32), ptr(space + 16 * size, I32)
    nothing = vector(x, 0.0)
    for i in range(thread() * width(x), size, threads() * width(x)):
        v = read(x, i, size - i, nothing)
        write(buffer, i, select(v > LARGEST, LARGEST, v) + 0.0, size - i)
    barrier()
    penalty, bias = number(args, SAMPLE.penalty, row, 1.0), load(args, SAMPLE.bias)
    if (penalty != 1.0 or bias != 0) and load(args, SAMPLE.history) != 0:
        history = ptr(load(args, SAMPLE.history), I64) + row * load(args, SAMPLE.history_stride)
        bias += 4 * row * load(args, SAMPLE.bias_stride) if bias != 0 else 0
        penalize(x, buffer, size, history, load(args, SAMPLE.history_length), penalty, bias, last)
    where, good = first_largest(buffer, size)
    temperature, options = options_of(args, row)
    top = load(buffer, where)
    if not good or not (top > -INF or temperature <= 0.0):
        return -1
    if temperature <= 0.0:
        return where
    state = tokens, ptr(shared(DIGITS_BYTES), I64), ptr(shared(DIGITS_BYTES), I64), ptr(shared(32), I64)
    token, cutoff = -1, LIKELY
    while token < 0:
        n, mass, total = collect(buffer, size, top, F32(1.0 / temperature), F32(cutoff), tokens)
        barrier()
        token = choose(state, (n, total, cutoff, mass), size, options, contract, locate, token_at, mass_above)
        cutoff = cutoff * 0.01 if cutoff > 1e-7 else -0.5  # again with more tokens, at last with all
    return token


@jit.inline
def sample_tokens(args, lo, hi):
    """Slot number `lo` of rows, with its own workspace."""
    num_rows, size, slots = load(args, SAMPLE.rows), load(args, SAMPLE.size), load(args, SAMPLE.slots)
    x, tokens = ptr(load(args, SAMPLE.x), F32), load(args, SAMPLE.tokens)
    space = load(args, SAMPLE.workspace) + SAMPLE_BYTES * size * lo
    for row in range(lo * num_rows // slots, (lo + 1) * num_rows // slots):
        token = sample_row(args, row, x + row * load(args, SAMPLE.stride), space)
        if token < 0:
            return NO_TOKEN
        if thread() == 0:
            if load(args, SAMPLE.contract) != 0:
                store(ptr(tokens, I32), row, token)
            else:
                store(ptr(tokens, I64), row, token)
        barrier()
    return 0
