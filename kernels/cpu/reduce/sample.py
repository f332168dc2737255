"""Choosing tokens from logits without sorting the vocabulary.

The likely tokens of a row are collected with their weights exp((logit - top) / temperature): at first
those above 0.01, or all of a small vocabulary, and again with a lower bound as long as the answer is not
among them. Every limit, `top_k`, `top_p` and the draw itself, asks where a running count or mass, taken
from the most likely token downwards, crosses a target. `locate` answers that by a histogram over equal
steps of the logit, and within the bin where the target is crossed by a radix descent over the digits of
order-preserving keys, or, of a few tokens, by going through them. Equal logits are ordered by token id.
Masses are float64, weights float32.
"""

import math

from numba import types

from ...blocks.reduce import GREEDY, SAMPLE
from ...build import jit
from ...lang.rows import fill_row
from ...lang.shuffle import larger, largest
from ...lang.simd import (
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
from ..norm.softmax import exp_below, row_max
from .argmax import find, greater, row_best
from .sizes import LANES, SAMPLE_BYTES

F32, F64, I32, I64 = types.float32, types.float64, types.int32, types.int64
INF = math.inf
BINS = 1024  # of the histogram over logits
DIGITS = 256  # of the histograms over keys
BINS_BYTES, DIGITS_BYTES = 8 * (BINS + 1), 8 * (DIGITS + 1)
SMALL = 2048  # tokens: all of so small a vocabulary are collected at once, as a second time costs more
FEW = 16  # members of a bin that are gone through, where the four rounds of the descent take 1.5 us
LARGEST = 3.4028234663852886e38
CHUNK_BYTES = 4 * LANES
BY_COUNT, AT_LEAST, ABOVE = 0, 1, 2
NO_TOKEN = 1  # error: NaN among the logits, or all are -inf


@jit.inline
def copy_logits(x, y, size):
    """y = x, with 0 for -0, so that equal logits have equal keys, and a number for infinity."""
    for i in range(0, size, LANES):
        left = size - i
        v = vload_first(x, i, LANES, left)
        vstore_first(y, i, select(v > LARGEST, LARGEST, v) + 0.0, left)


@jit.inline
def penalize(x, y, size, history, length, penalty, bias):
    """The tokens of `history` made less likely (Keskar et al., arXiv 1909.05858); negative ids are padding.

    Then numbers from the address `bias` (0: none) are added.
    """
    for i in range(length):
        token = load(history, i)
        if 0 <= token < size:
            v = load(x, token)
            v = v / penalty if v > 0 else v * penalty
            store(y, token, v + (load(ptr(bias, F32), i) if bias != 0 else 0.0) + 0.0)


@jit.inline
def clear(histogram, size):
    counts, masses = histogram
    fill_row(counts, size, 0)
    fill_row(masses, size, 0.0)


@jit.inline
def put(histogram, at, weight):
    counts, masses = histogram
    store(counts, at, load(counts, at) + 1)
    store(masses, at, load(masses, at) + weight)


@jit.inline
def collect(x, size, top, scale, cutoff, tokens, histogram):
    """Tokens of weight above `cutoff` to the arrays of `tokens`, and to the histogram of their bins.

    Returns (how many, the mass of all tokens).
    """
    values, weights, ids, bins = tokens
    chunk_weights, chunk_values = ptr(stack(CHUNK_BYTES), F32), ptr(stack(CHUNK_BYTES), F32)
    chunk_bins = ptr(stack(CHUNK_BYTES), I32)
    total = fill(0.0, F64, LANES)
    # bins are equal steps of the exponent, down to that of the cutoff; beyond -87 weights are 0
    steps = (BINS - 1) / (-math.log(cutoff) if cutoff > 0.0 else 87.0)
    clear(histogram, BINS)
    n = 0
    for i in range(0, size, LANES):
        left = size - i
        v = vload_first(x, i, LANES, left)
        exponent = select(v == top, 0.0, (v - top) * scale)
        w = select(ramp(0, I64, LANES) < left, exp_below(exponent), -1.0)
        total = total + convert(select(w > 0.0, w, 0.0), F64)
        if reduce_or(w > cutoff):
            at = exponent * -steps
            vstore(chunk_bins, 0, convert(select(at < BINS - 1.0, at, BINS - 1.0), I32))
            vstore(chunk_values, 0, v)
            vstore(chunk_weights, 0, w)
            for j in range(min(LANES, left)):
                # without a branch, which would be mispredicted: what is too light is overwritten
                weight = load(chunk_weights, j)
                likely = weight > cutoff
                store(values, n, load(chunk_values, j))
                store(weights, n, weight)
                store(ids, n, i + j)
                store(bins, n, load(chunk_bins, j))
                put(histogram, I64(load(chunk_bins, j)) if likely else BINS, weight)
                n += I64(likely)
    return n, reduce_add(total)


@jit.inline
def crossing(histogram, first, step, size, base, target, mode):
    """Where the running count or mass, from entry `first` on, crosses `target`: the last entry if nowhere.

    Returns (entry, mass before it, count before it); `base` is what the running sums begin with.
    """
    counts, masses = histogram
    mass, count = base
    chosen, base_mass, base_count = first, mass, count
    at = first
    for _ in range(size):
        found = load(counts, at)
        if found > 0:
            chosen, base_mass, base_count = at, mass, count
            mass, count = mass + load(masses, at), count + found
            reached = float(count) if mode == BY_COUNT else mass
            if reached > target or (reached == target and mode != ABOVE):
                break
        at += step
    return chosen, base_mass, base_count


@jit.inline
def key_of(value):
    """An integer from 0 to 2^32 - 1 that orders as the float32 does."""
    bits = I64(bitcast(value, I32))
    return bits + 0x80000000 if bits >= 0 else -1 - bits


@jit.inline
def locate_few(tokens, members, num_members, base, target, mode):
    """As `locate` among a few members, from the largest on; `base` is the mass and the count before them.

    Returns (key, mass of larger keys, their count, members with this key, their mass).
    """
    values, weights, _, _ = tokens
    mass, count = base
    key, ties, ties_mass, seen, found = 0, 0, 0.0, 0, False
    while not found:
        below = key if seen > 0 else 1 << 32
        mass, count = mass + ties_mass, count + ties
        key, ties, ties_mass = -1, 0, 0.0
        for i in range(num_members):
            at = load(members, i)
            one, weight = key_of(load(values, at)), load(weights, at)
            if key < one < below:
                key, ties, ties_mass = one, 0, 0.0
            if one == key:
                ties, ties_mass = ties + 1, ties_mass + weight
        seen += ties
        reached = float(count + ties) if mode == BY_COUNT else mass + ties_mass
        found = reached > target or (reached == target and mode != ABOVE) or seen == num_members
    return key, mass, count, ties, ties_mass


@jit.inline
def locate(state, n, target, mode):
    """Where the running count or mass crosses `target`, from the largest logit downwards.

    Returns (key, mass of larger keys, their count, tokens with this key, their mass, how many tokens
    `members` lists: those of the crossed bin). The smallest key where nothing crosses. Element DIGITS of
    the digits' counts is the width of a digit, 8: LLVM, if it knew the number of rounds, would unroll
    them, which takes a second.
    """
    tokens, members, by_bin, by_digit = state
    values, weights, _, bins = tokens
    counts, masses = by_digit
    chosen, mass, count = crossing(by_bin, 0, 1, BINS, (0.0, 0), target, mode)
    num_members = 0
    for i in range(n):
        store(members, num_members, i)
        num_members += I64(load(bins, i) == chosen)
    if num_members <= FEW:
        key, mass, count, ties, ties_mass = locate_few(tokens, members, num_members, (mass, count), target, mode)
        return key, mass, count, ties, ties_mass, num_members
    prefix, ties, ties_mass = 0, 0, 0.0
    shift = 24
    while shift >= 0:
        clear(by_digit, DIGITS)
        for i in range(num_members):
            at = load(members, i)
            key = key_of(load(values, at))
            if key >> (shift + 8) == prefix:
                put(by_digit, (key >> shift) & 0xFF, load(weights, at))
        chosen, mass, count = crossing(by_digit, DIGITS - 1, -1, DIGITS, (mass, count), target, mode)
        ties, ties_mass = load(counts, chosen), load(masses, chosen)
        prefix = prefix * 256 + chosen
        shift -= load(counts, DIGITS)
    return prefix, mass, count, ties, ties_mass, num_members


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
def token_at(state, num_members, key, position):
    """The token of the `position`-th (from 1) member whose key equals `key`."""
    (values, _, ids, _), members, _, _ = state
    at = 0
    for i in range(num_members):
        at = load(members, i)
        if key_of(load(values, at)) == key:
            position -= 1
            if position == 0:
                break
    return I64(load(ids, at))


@jit.inline
def mass_above(state, n, least):
    """The mass of tokens whose weight is at least `least`."""
    above, least, weights = 0.0, F32(least), state[0][1]
    for i in range(n):
        if load(weights, i) >= least:
            above += load(weights, i)
    return above


@jit.inline
def total_mass(histogram):
    """The mass in all bins."""
    mass = 0.0
    for i in range(BINS):
        mass += load(histogram[1], i)
    return mass


@jit.inline
def choose(state, found, size, options, contract, locate, token_at, mass_above):
    """One token, or -1 if the answer is not among the collected ones: `found` has (their number, the mass of all
    tokens, the weight that they exceed, their mass). The functions read the `state` of the search.

    Three stages narrow the running mass, each with one crossing: `top_k`, `top_p`, the draw. By the
    contract of `random_sample`, the mass of exactly `top_k` tokens and `top_p` times the whole mass are
    limits side by side; otherwise ties of the last token stay, and `top_p` is of the mass that is left
    and reaches to the token with which it is crossed.
    """
    n, total, cutoff, mass = found
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
                if min_p <= cutoff and n < size:
                    return -1
                limit = min(limit, mass_above(state, n, min(min_p, 1.0)))
            # without a contract below the limit, whatever the order of summation
            mode, target = (AT_LEAST, random * limit) if contract else (ABOVE, min(random, 1.0 - 1e-10) * limit)
        if n < size and target >= (float(n + 1) if mode == BY_COUNT else mass):
            return -1
        key, base_mass, base_count, ties, ties_mass, num_members = locate(state, n, target, mode)
        needed = ties
        if stage > 0:
            needed = ties_needed(target, base_mass, ties, ties_mass, mode)
        elif contract:
            needed = top_k - base_count
        if stage == 2:
            return token_at(state, num_members, key, needed)
        limit = min(limit, base_mass + needed * (ties_mass / ties))
    return -1


@jit.inline
def greedy(args, lo, hi, T, O):
    """The most likely tokens of rows [lo, hi), of type O."""
    x, tokens = ptr(load(args, GREEDY.x), T), ptr(load(args, GREEDY.tokens), O)
    stride, size = load(args, GREEDY.stride), load(args, GREEDY.size)
    for row in range(lo, hi):
        best, where = row_best(x + row * stride, size, larger, largest, greater, T)
        if best != best:
            return NO_TOKEN
        store(tokens, row, where)
    return 0


@jit.inline
def number(args, field, row, default):
    """An option of a row: from its array, or `default` without one."""
    return default if load(args, field) == 0 else load(ptr(load(args, field), F64), row)


@jit.inline
def whole_number(args, field, row):
    """As `number` for an int64 with default 0."""
    return 0 if load(args, field) == 0 else load(ptr(load(args, field), I64), row)


@jit.inline
def options_of(args, row):
    """(temperature, (top_k, top_p, min_p, random)) of a row: those of `random_sample` are in the block."""
    if load(args, SAMPLE.contract) != 0:
        top_p, random = bitcast(load(args, SAMPLE.own_top_p), F64), bitcast(load(args, SAMPLE.own_random), F64)
        return bitcast(load(args, SAMPLE.own_temperature), F64), (load(args, SAMPLE.own_top_k), top_p, 0.0, random)
    options = (
        whole_number(args, SAMPLE.top_k, row),
        number(args, SAMPLE.top_p, row, 1.0),
        number(args, SAMPLE.min_p, row, 0.0),
        number(args, SAMPLE.random, row, 0.0),
    )
    return number(args, SAMPLE.temperature, row, 0.0), options


@jit.inline
def sample_row(args, row, x, space):
    """The token of one row, or -1 where there is none."""
    size, contract = load(args, SAMPLE.size), load(args, SAMPLE.contract) != 0
    buffer, members, bins = ptr(space, F32), ptr(space + 4 * size, I32), ptr(space + 8 * size, I32)
    tokens = (ptr(space + 12 * size, F32), ptr(space + 16 * size, F32), ptr(space + 20 * size, I32), bins)
    by_bin = (ptr(stack(BINS_BYTES), I64), ptr(stack(BINS_BYTES), F64))
    by_digit = (ptr(stack(DIGITS_BYTES), I64), ptr(stack(DIGITS_BYTES), F64))
    store(by_digit[0], DIGITS, 8)
    copy_logits(x, buffer, size)
    penalty = number(args, SAMPLE.penalty, row, 1.0)
    bias = load(args, SAMPLE.bias)
    if (penalty != 1.0 or bias != 0) and load(args, SAMPLE.history) != 0:
        history = ptr(load(args, SAMPLE.history), I64) + row * load(args, SAMPLE.history_stride)
        bias += 4 * row * load(args, SAMPLE.bias_stride)
        penalize(x, buffer, size, history, load(args, SAMPLE.history_length), penalty, bias)
    top = row_max(buffer, size, F32)
    temperature, options = options_of(args, row)
    if temperature <= 0.0 and top == top:
        return find(buffer, size, top)
    if not top > -INF:
        return -1
    state = tokens, members, by_bin, by_digit
    token, cutoff = -1, 0.01 if size > SMALL else -0.5
    while token < 0:
        n, total = collect(buffer, size, top, 1.0 / temperature, cutoff, tokens, by_bin)
        found = n, total, cutoff, total_mass(by_bin) if n < size else total
        token = choose(state, found, size, options, contract, locate, token_at, mass_above)
        cutoff = cutoff * 0.1 if cutoff > 1e-7 else -0.5  # again with more tokens, at last with all
    return token


@jit.inline
def sample_tokens(args, lo, hi):
    """Slots [lo, hi); each has its part of the rows and its own workspace."""
    num_rows, size, slots = load(args, SAMPLE.rows), load(args, SAMPLE.size), load(args, SAMPLE.slots)
    x, tokens = ptr(load(args, SAMPLE.x), F32), load(args, SAMPLE.tokens)
    for slot in range(lo, hi):
        space = load(args, SAMPLE.workspace) + SAMPLE_BYTES * size * slot
        for row in range(slot * num_rows // slots, (slot + 1) * num_rows // slots):
            token = sample_row(args, row, x + row * load(args, SAMPLE.stride), space)
            if token < 0:
                return NO_TOKEN
            if load(args, SAMPLE.contract) != 0:
                store(ptr(tokens, I32), row, token)
            else:
                store(ptr(tokens, I64), row, token)
    return 0
