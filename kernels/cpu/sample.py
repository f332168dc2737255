"""Choosing tokens from logits without sorting the vocabulary.

A row's likely tokens (probability above 1e-7 of the most likely one; all of them where that does not
suffice) are collected with their weights exp((logit - top) / temperature). Every limit, `top_k`,
`top_p` and the draw itself, asks where a running count or mass, taken from the most likely token
downwards, crosses a target. `locate` answers that by a radix descent: four histograms over the 8-bit
digits of order-preserving keys of the logits, the later ones over ever fewer tokens, so nothing is
sorted. Equal logits are ordered by token id. Masses are float64, weights float32.
"""

import math

from numba import types

from .. import isa, jit
from .argmax import greater, larger, max_lanes, row_best
from .simd import (
    bitcast,
    convert,
    fill,
    load,
    ptr,
    ramp,
    reduce_add,
    reduce_or,
    select,
    stack,
    store,
    vload_first,
    vstore,
    vstore_first,
)
from .softmax import exp_below, row_max

LANES = isa.lanes()
F32, F64, I32, I64 = types.float32, types.float64, types.int32, types.int64
DIGITS = 256
HISTOGRAM_BYTES = 8 * DIGITS
CHUNK_BYTES = 4 * LANES
LIKELY = 1e-7  # weight from which a token is collected at first; about 16 nats below the top
BY_COUNT, AT_LEAST, ABOVE = 0, 1, 2
NO_TOKEN = 1  # error: NaN among the logits, or all are -inf


@jit.inline
def copy_row(x, y, size):
    """y = x, and 0 for -0, so that equal logits have equal keys."""
    for i in range(0, size, LANES):
        left = size - i
        vstore_first(y, i, vload_first(x, i, LANES, left) + 0.0, left)


@jit.inline
def penalize(x, y, size, history, length, penalty):
    """The tokens of `history` made less likely (Keskar et al., arXiv 1909.05858); negative ids are padding."""
    for i in range(length):
        token = load(history, i)
        if 0 <= token < size:
            v = load(x, token)
            store(y, token, v / penalty if v > 0 else v * penalty)


@jit.inline
def collect(x, size, top, scale, cutoff, keys, weights, ids):
    """Tokens of weight above `cutoff`: (how many, their mass, the mass of all tokens)."""
    chunk_weights, chunk_keys = ptr(stack(CHUNK_BYTES), F32), ptr(stack(CHUNK_BYTES), I32)
    total = fill(0.0, F64, LANES)
    n, mass = 0, 0.0
    for i in range(0, size, LANES):
        left = size - i
        v = vload_first(x, i, LANES, left)
        w = select(v == top, 1.0, exp_below((v - top) * scale))
        w = select(ramp(0, I64, LANES) < left, w, -1.0)
        total = total + convert(select(w > 0.0, w, 0.0), F64)
        if reduce_or(w > cutoff):
            bits = bitcast(v, I32)
            vstore(chunk_keys, 0, bits ^ ((bits >> 31) & 0x7FFFFFFF))
            vstore(chunk_weights, 0, w)
            for j in range(min(LANES, left)):
                weight = load(chunk_weights, j)
                if weight > cutoff:
                    store(keys, n, load(chunk_keys, j))
                    store(weights, n, weight)
                    store(ids, n, i + j)
                    mass += weight
                    n += 1
    return n, mass, reduce_add(total)


@jit.inline
def locate(keys, weights, n, target, mode, counts, masses):
    """Where the running count or mass crosses `target`, from the largest key downwards.

    Returns (key, mass of larger keys, their count, tokens with this key, their mass); the smallest key
    where nothing crosses.
    """
    prefix, base_mass, base_count, ties, ties_mass = 0, 0.0, 0, 0, 0.0
    for level in range(4):
        shift = 24 - 8 * level
        for digit in range(DIGITS):
            store(counts, digit, 0)
            store(masses, digit, 0.0)
        for i in range(n):
            key = I64(load(keys, i)) + 0x80000000
            if key >> (shift + 8) == prefix:
                digit = (key >> shift) & 0xFF
                store(counts, digit, load(counts, digit) + 1)
                store(masses, digit, load(masses, digit) + load(weights, i))
        chosen, mass, count = 0, base_mass, base_count
        digit = DIGITS - 1
        while digit >= 0:
            found = load(counts, digit)
            if found > 0:
                chosen, ties, ties_mass = digit, found, load(masses, digit)
                base_mass, base_count = mass, count
                mass, count = mass + ties_mass, count + found
                reached = float(count) if mode == BY_COUNT else mass
                if reached > target or (reached == target and mode != ABOVE):
                    break
            digit -= 1
        prefix = prefix * 256 + chosen
    return prefix - 0x80000000, base_mass, base_count, ties, ties_mass


@jit.inline
def ties_needed(target, base_mass, ties, ties_mass, mode):
    """How many of the tokens with one key it takes to cross `target`."""
    weight = ties_mass / ties
    if not weight > 0.0:
        return 1
    steps = (target - base_mass) / weight
    needed = math.floor(steps) + 1.0 if mode == ABOVE else math.ceil(steps)
    return I64(min(max(needed, 1.0), float(ties)))


@jit.inline
def token_at(keys, ids, n, key, position):
    """The token of the `position`-th (from 1) key that equals `key`."""
    for i in range(n):
        if load(keys, i) == key:
            position -= 1
            if position == 0:
                return I64(load(ids, i))
    return I64(load(ids, n - 1))


@jit.inline
def draw(keys, weights, ids, n, target, mode, counts, masses):
    """The token at which the running mass crosses `target`."""
    key, base_mass, _, ties, ties_mass = locate(keys, weights, n, target, mode, counts, masses)
    return token_at(keys, ids, n, key, ties_needed(target, base_mass, ties, ties_mass, mode))


@jit.inline
def choose_by_contract(keys, weights, ids, n, mass, total, size, top_k, top_p, random, counts, masses):
    """The first token, from the most likely one, with running mass >= random * min(top_k's, top_p * total).

    -1 if the answer is not among the collected tokens.
    """
    limit = total
    if 0 < top_k < size:
        if top_k > n:
            return -1
        _, base_mass, base_count, ties, ties_mass = locate(keys, weights, n, float(top_k), BY_COUNT, counts, masses)
        limit = base_mass + (top_k - base_count) * (ties_mass / ties)
    target = random * min(limit, top_p * total)
    if target > mass and n < size:
        return -1
    return draw(keys, weights, ids, n, target, AT_LEAST, counts, masses)


@jit.inline
def choose(keys, weights, ids, n, mass, total, size, top_k, top_p, min_p, random, counts, masses):
    """One token by `top_k` (ties of the last one stay), `top_p` (with the token that crosses it) and `min_p`.

    -1 if the answer is not among the collected tokens.
    """
    kept = total
    if 0 < top_k < size:
        if top_k > n:
            return -1
        _, base_mass, _, _, ties_mass = locate(keys, weights, n, float(top_k), BY_COUNT, counts, masses)
        kept = base_mass + ties_mass
    limit = kept
    if top_p < 1.0:
        target = top_p * kept
        if target > mass and n < size:
            return -1
        _, base_mass, _, ties, ties_mass = locate(keys, weights, n, target, AT_LEAST, counts, masses)
        needed = ties_needed(target, base_mass, ties, ties_mass, AT_LEAST)
        limit = min(kept, base_mass + needed * (ties_mass / ties))
    if min_p > 0.0:
        if min_p <= LIKELY and n < size:
            return -1
        above = 0.0
        for i in range(n):
            if load(weights, i) >= F32(min(min_p, 1.0)):
                above += load(weights, i)
        limit = min(limit, above)
    target = min(random, 1.0 - 1e-10) * limit  # below the limit, whatever the order of summation
    if target >= mass and n < size:
        return -1
    return draw(keys, weights, ids, n, target, ABOVE, counts, masses)


@jit.inline
def number(args, index, row, default):
    """Element `row` of the float64 array at an argument, or `default` where the argument is 0."""
    return default if load(args, index) == 0 else load(ptr(load(args, index), F64), row)


@jit.inline
def greedy(args, lo, hi, T, O):
    """args: logits, row stride, size, tokens (of type O); [lo, hi) counts rows."""
    x, stride, size, tokens = ptr(load(args, 0), T), load(args, 1), load(args, 2), ptr(load(args, 3), O)
    for row in range(lo, hi):
        best, where = row_best(x + row * stride, size, larger, max_lanes, greater, T)
        if best != best:
            return NO_TOKEN
        store(tokens, row, where)
    return 0


@jit.inline
def workspace(address, size):
    """(float32 logits, keys, weights, ids): four arrays of `size` one behind the other."""
    return (
        ptr(address, F32),
        ptr(address + 4 * size, I32),
        ptr(address + 8 * size, F32),
        ptr(address + 12 * size, I32),
    )


@jit.inline
def sample_tokens(args, lo, hi):
    """Slots [lo, hi); each has its part of the rows and its own workspace.

    args: 0 logits (float32), 1 row stride, 2 rows, 3 size, 4 tokens (int64), 5 workspace, 6 slots, then
    arrays with a value per row, or 0: 7 random, 8 temperature, 9 top_k (int64), 10 top_p, 11 min_p, 12
    penalty; 13 history (int64), 14 its row stride, 15 its length.
    """
    num_rows, size, slots = load(args, 2), load(args, 3), load(args, 6)
    tokens = ptr(load(args, 4), I64)
    counts, masses = ptr(stack(HISTOGRAM_BYTES), I64), ptr(stack(HISTOGRAM_BYTES), F64)
    for slot in range(lo, hi):
        buffer, keys, weights, ids = workspace(load(args, 5) + 16 * size * slot, size)
        for row in range(slot * num_rows // slots, (slot + 1) * num_rows // slots):
            x = ptr(load(args, 0), F32) + row * load(args, 1)
            copy_row(x, buffer, size)
            penalty = number(args, 12, row, 1.0)
            if penalty != 1.0 and load(args, 13) != 0:
                history = ptr(load(args, 13), I64) + row * load(args, 14)
                penalize(x, buffer, size, history, load(args, 15), penalty)
            temperature = number(args, 8, row, 0.0)
            if temperature <= 0.0:
                top, token = row_best(buffer, size, larger, max_lanes, greater, F32)
                if top != top:
                    return NO_TOKEN
                store(tokens, row, token)
                continue
            top = row_max(buffer, size, F32)
            if not top > -math.inf:
                return NO_TOKEN
            top_k = 0 if load(args, 9) == 0 else load(ptr(load(args, 9), I64), row)
            top_p, min_p, random = number(args, 10, row, 1.0), number(args, 11, row, 0.0), number(args, 7, row, 0.0)
            token, cutoff = -1, LIKELY
            while token < 0:
                n, mass, total = collect(buffer, size, top, 1.0 / temperature, cutoff, keys, weights, ids)
                token = choose(keys, weights, ids, n, mass, total, size, top_k, top_p, min_p, random, counts, masses)
                cutoff = -0.5  # once more, with all tokens
            store(tokens, row, token)
    return 0


@jit.inline
def random_sample(args, lo, hi):
    """args: logits (float32), result (int32), size, workspace, top_k, bits of random, top_p, temperature."""
    x, result, size = ptr(load(args, 0), F32), ptr(load(args, 1), I32), load(args, 2)
    buffer, keys, weights, ids = workspace(load(args, 3), size)
    top_k, random, top_p = load(args, 4), bitcast(load(args, 5), F64), bitcast(load(args, 6), F64)
    temperature = bitcast(load(args, 7), F64)
    counts, masses = ptr(stack(HISTOGRAM_BYTES), I64), ptr(stack(HISTOGRAM_BYTES), F64)
    copy_row(x, buffer, size)
    top = row_max(buffer, size, F32)
    if not top > -math.inf:
        return NO_TOKEN
    token, cutoff = -1, LIKELY
    while token < 0:
        n, mass, total = collect(buffer, size, top, 1.0 / temperature, cutoff, keys, weights, ids)
        token = choose_by_contract(keys, weights, ids, n, mass, total, size, top_k, top_p, random, counts, masses)
        cutoff = -0.5
    store(result, 0, token)
    return 0
