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
from .argmax import find, greater, larger, max_lanes, row_best
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
HISTOGRAM_BYTES = 8 * DIGITS + 8
CHUNK_BYTES = 4 * LANES
LIKELY = 1e-7  # weight from which a token is collected at first; about 16 nats below the top
BY_COUNT, AT_LEAST, ABOVE = 0, 1, 2
INF = math.inf
CONTRACT = 16  # where the arguments say whose rules hold
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
            store(y, token, (v / penalty if v > 0 else v * penalty) + 0.0)


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
    where nothing crosses. counts[DIGITS] is the width of a digit, 8: LLVM, if it knew the number of rounds,
    would unroll them, which takes a second.
    """
    prefix, base_mass, base_count, ties, ties_mass = 0, 0.0, 0, 0, 0.0
    shift = 24
    while shift >= 0:
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
        shift -= load(counts, DIGITS)
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
def mass_above(weights, n, least):
    """The mass of tokens whose weight is at least `least`."""
    above, least = 0.0, F32(least)
    for i in range(n):
        if load(weights, i) >= least:
            above += load(weights, i)
    return above


@jit.inline
def choose(found, size, options, contract, counts, masses):
    """One token, or -1 if the answer is not among the collected ones.

    Three stages narrow the running mass, each with one crossing: `top_k`, `top_p`, the draw. By the
    contract of `random_sample`, the mass of exactly `top_k` tokens and `top_p` times the whole mass are
    limits side by side; otherwise ties of the last token stay, and `top_p` is of the mass that is left
    and reaches to the token with which it is crossed.
    """
    keys, weights, ids, n, mass, total = found
    top_k, top_p, min_p, random = options
    limit = total
    for stage in range(3):
        mode, target = BY_COUNT, float(top_k)
        if stage == 0 and not 0 < top_k < size:
            continue
        if stage == 1:
            if contract:
                limit = min(limit, top_p * total)
            if contract or top_p >= 1.0:
                continue
            mode, target = AT_LEAST, top_p * limit
        if stage == 2:
            if min_p > 0.0:
                if min_p <= LIKELY and n < size:
                    return -1
                limit = min(limit, mass_above(weights, n, min(min_p, 1.0)))
            # without a contract below the limit, whatever the order of summation
            mode, target = (AT_LEAST, random * limit) if contract else (ABOVE, min(random, 1.0 - 1e-10) * limit)
        if n < size and target >= (float(n + 1) if mode == BY_COUNT else mass):
            return -1
        key, base_mass, base_count, ties, ties_mass = locate(keys, weights, n, target, mode, counts, masses)
        if stage == 2:
            return token_at(keys, ids, n, key, ties_needed(target, base_mass, ties, ties_mass, mode))
        needed = ties
        if stage == 1:
            needed = ties_needed(target, base_mass, ties, ties_mass, mode)
        elif contract:
            needed = top_k - base_count
        limit = min(limit, base_mass + needed * (ties_mass / ties))
    return -1


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
def number(args, index, row, default):
    """An option of a row: from its array, or `default` without one, or by the contract the value itself."""
    if load(args, CONTRACT) != 0:
        return bitcast(load(args, index), F64)
    return default if load(args, index) == 0 else load(ptr(load(args, index), F64), row)


@jit.inline
def whole_number(args, index, row):
    """As `number` for an int64 with default 0."""
    if load(args, CONTRACT) != 0 or load(args, index) == 0:
        return load(args, index)
    return load(ptr(load(args, index), I64), row)


@jit.inline
def sample_row(args, row, x, space):
    """The token of one row, or -1 where there is none."""
    size, contract = load(args, 3), load(args, CONTRACT) != 0
    buffer, keys = ptr(space, F32), ptr(space + 4 * size, I32)
    weights, ids = ptr(space + 8 * size, F32), ptr(space + 12 * size, I32)
    counts, masses = ptr(stack(HISTOGRAM_BYTES), I64), ptr(stack(HISTOGRAM_BYTES), F64)
    store(counts, DIGITS, 8)
    copy_row(x, buffer, size)
    penalty = number(args, 12, row, 1.0)
    if penalty != 1.0 and load(args, 13) != 0:
        history = ptr(load(args, 13), I64) + row * load(args, 14)
        penalize(x, buffer, size, history, load(args, 15), penalty)
    top = row_max(buffer, size, F32)
    temperature = number(args, 8, row, 0.0)
    if temperature <= 0.0 and top == top:
        return find(buffer, size, top)
    if not top > -INF:
        return -1
    options = (
        whole_number(args, 9, row),
        number(args, 10, row, 1.0),
        number(args, 11, row, 0.0),
        number(args, 7, row, 0.0),
    )
    token, cutoff = -1, LIKELY
    while token < 0:
        n, mass, total = collect(buffer, size, top, 1.0 / temperature, cutoff, keys, weights, ids)
        token = choose((keys, weights, ids, n, mass, total), size, options, contract, counts, masses)
        cutoff = -0.5  # once more, with all tokens
    return token


@jit.inline
def sample_tokens(args, lo, hi):
    """Slots [lo, hi); each has its part of the rows and its own workspace.

    args: 0 logits (float32), 1 row stride, 2 rows, 3 size, 4 tokens, 5 workspace (16 bytes times size per
    slot), 6 slots, then arrays with a value per row, or 0: 7 random, 8 temperature, 9 top_k (int64),
    10 top_p, 11 min_p, 12 penalty; 13 history (int64), 14 its row stride, 15 its length; 16 whether the
    contract of `random_sample` rules: then 7-12 are the values themselves, and tokens are int32, not int64.
    """
    num_rows, size, slots = load(args, 2), load(args, 3), load(args, 6)
    for slot in range(lo, hi):
        space = load(args, 5) + 16 * size * slot
        for row in range(slot * num_rows // slots, (slot + 1) * num_rows // slots):
            token = sample_row(args, row, ptr(load(args, 0), F32) + row * load(args, 1), space)
            if token < 0:
                return NO_TOKEN
            if load(args, CONTRACT) != 0:
                store(ptr(load(args, 4), I32), row, token)
            else:
                store(ptr(load(args, 4), I64), row, token)
    return 0
