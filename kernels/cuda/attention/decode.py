"""Attention of few query rows and many keys: the keys of a sequence are cut into parts, each for some warps.

A block has a query token, a key/value head and a part of the keys, which its warps share. Some lanes of a warp hold a
key, 16 bytes each, so that a warp scores several keys at once; four such steps are on their way, and up to four query
heads take them while they are in registers. What a warp has summed up for a head goes to a slot of the workspace, with
its largest score and its sum of weights; `join` adds up the slots of a row in their order.

Flash-Decoding: https://crfm.stanford.edu/2023/10/12/flashdecoding.html. Scores are in units of log2; sums are float32.
"""

import math

from numba import types

from ...blocks.attention import ATTENTION, BAD_BLOCK
from ...blocks.cuda import DECODE
from ...build import jit
from ...cpu.attention.prefill import find_run, visible
from ...cpu.attention.tiles import offset_of
from ...lang.by_type import by_type
from ...lang.ptx import WARP, barrier, exp2, from_lane, shared, thread, threads
from ...lang.simd import address, bitcast, fill, load, muladd, ptr, reduce_add, store, vload_aligned
from ..block import read, vector, width, write
from .rows import owner

F32, F64, I64 = types.float32, types.float64, types.int64
LOG2E = math.log2(math.e)
INF = float("inf")
AT_ONCE = 4  # keys that the lanes of one have on their way
SHARES_BYTES, PARTS_BYTES = 4 * 2 * WARP, 4 * 4 * 128  # what `join` keeps: a number of each slot, four of each thread


@by_type
def vector_like(v, number):
    """A number on every lane of a vector such as v."""
    dtype, lanes = v.dtype, v.lanes
    return lambda v, number: fill(number, dtype, lanes)


@jit.inline
def lanes_of(T, SIZE):
    """How many lanes of a warp hold a key."""
    return SIZE // width(ptr(0, T))


@jit.inline
def score(query, key, valid, lanes):
    """The score of a key, of which each of its lanes has a vector; -inf if it is not there."""
    total = reduce_add(query * key)
    for apart in (1, 2, 4, 8, 16):
        if apart < lanes:
            total += from_lane(total, apart)
    return total if valid else F32(-INF)


@jit.inline
def over_keys(v, lanes, join):
    """A number (or vector) of each key of a warp, joined; every lane gets it."""
    for apart in (16, 8, 4, 2, 1):
        if apart >= lanes:
            v = join(v, from_lane(v, apart))
    return v


@jit.inline
def larger(a, b):
    return max(a, b)


@jit.inline
def plus(a, b):
    return a + b


@jit.inline
def finite(top):
    """What scores are reduced by: their maximum, or 0 where there is none."""
    return top if top > -INF else F32(0.0)


@jit.inline
def four(row, stride):
    """Vectors of four keys (or values), this far apart, at multiples of 16 bytes."""
    n = width(row)
    return (
        vload_aligned(row, 0, n), vload_aligned(row, stride, n), vload_aligned(row, 2 * stride, n),
        vload_aligned(row, 3 * stride, n),
    )  # fmt: skip


@jit.inline
def four_at_most(row, stride, valid, like):
    """The same of those that are `valid`, wherever they are, and zeros."""
    n = width(row)
    return (
        read(row, 0, n if valid[0] else 0, like), read(row, stride, n if valid[1] else 0, like),
        read(row, 2 * stride, n if valid[2] else 0, like), read(row, 3 * stride, n if valid[3] else 0, like),
    )  # fmt: skip


@jit.inline
def add_four(state, query, keys, values, valid, lanes):
    """The state (sums, largest score, sum of weights) with four more keys of each group of lanes."""
    sums, top, total = state
    a, b = score(query, keys[0], valid[0], lanes), score(query, keys[1], valid[1], lanes)
    c, d = score(query, keys[2], valid[2], lanes), score(query, keys[3], valid[3], lanes)
    highest = max(top, over_keys(max(max(a, b), max(c, d)), lanes, larger))
    base = finite(highest)
    keep, a, b, c, d = exp2(top - base), exp2(a - base), exp2(b - base), exp2(c - base), exp2(d - base)
    sums = muladd(values[0], vector_like(query, a), sums * keep)
    sums = muladd(values[1], vector_like(query, b), sums)
    sums = muladd(values[2], vector_like(query, c), sums)
    sums = muladd(values[3], vector_like(query, d), sums)
    return sums, highest, total * keep + ((a + b) + (c + d))


@jit.inline
def add_heads(states, queries, keys, values, valid, lanes, HEADS):
    """The states of the heads of a warp with four more keys."""
    a, b, c, d = states
    a = add_four(a, queries[0], keys, values, valid, lanes)
    if HEADS > 1:
        b = add_four(b, queries[1], keys, values, valid, lanes)
    if HEADS > 2:
        c = add_four(c, queries[2], keys, values, valid, lanes)
        d = add_four(d, queries[3], keys, values, valid, lanes)
    return a, b, c, d


@jit.inline
def attend_part(args, queries, seq, kv_head, bounds, T, SIZE, HEADS):
    """(states of the heads, error) of a warp over the keys [start, stop) from `first` on.

    `bounds` are these three and where the sequence's keys begin.
    """
    start, stop, first, kv_start = bounds
    lanes, like = lanes_of(T, SIZE), queries[0]
    keys, own, at = WARP // lanes, thread() % WARP // lanes, thread() % lanes * width(ptr(0, T))
    nothing = vector(ptr(0, T), 0.0), F32(-INF), F32(0.0)
    states = nothing, nothing, nothing, nothing
    k_step, v_step = keys * load(args, ATTENTION.k_strides + 1), keys * load(args, ATTENTION.v_strides + 1)
    found = find_run(args, seq, kv_start + start) if start < stop else (0, 0, 0)
    for j in range(start, stop, AT_ONCE * keys):
        block, place, run = found
        if run < 0:
            return states, BAD_BLOCK
        if j + AT_ONCE * keys < stop:  # known before it is needed
            found = find_run(args, seq, kv_start + j + AT_ONCE * keys)
        place, key = place + own, j + own
        k = ptr(load(args, ATTENTION.k), T) + (offset_of(args, ATTENTION.k_strides, block, place, kv_head) + at)
        v = ptr(load(args, ATTENTION.v), T) + (offset_of(args, ATTENTION.v_strides, block, place, kv_head) + at)
        unaligned = address(k) | address(v) | address(k + k_step) | address(v + v_step)
        if j >= first and j + AT_ONCE * keys <= stop and unaligned & 15 == 0:
            k_four, v_four, valid = four(k, k_step), four(v, v_step), (True, True, True, True)
            states = add_heads(states, queries, k_four, v_four, valid, lanes, HEADS)
        else:
            valid = (
                first <= key < stop, first <= key + keys < stop, first <= key + 2 * keys < stop,
                first <= key + 3 * keys < stop,
            )  # fmt: skip
            k_four, v_four = four_at_most(k, k_step, valid, like), four_at_most(v, v_step, valid, like)
            states = add_heads(states, queries, k_four, v_four, valid, lanes, HEADS)
    return states, 0


@jit.inline
def query_of(args, seq, in_seq, head, at, T):
    """A lane's vector of a query, with the scale of scores; zeros of a head that is not there."""
    there = head < load(args, ATTENTION.group) * load(args, ATTENTION.kv_heads)
    q = ptr(load(args, ATTENTION.q), T) + offset_of(args, ATTENTION.q_strides, seq, in_seq, head)
    scale = F32(bitcast(load(args, ATTENTION.scale), F64) * LOG2E)
    return read(q, at, width(q) if there else 0, vector(q, 0.0)) * scale


@jit.inline
def keep(args, state, seq, in_seq, token, head, slot, T, SIZE):
    """Write the state of a head of a warp: to its slot, or, where there is one, to the result."""
    lanes, lane, slots = lanes_of(T, SIZE), thread() % WARP, load(args, DECODE.slots)
    sums, top, total = over_keys(state[0], lanes, plus), state[1], over_keys(state[2], lanes, plus)
    at = lane % lanes * width(ptr(0, T))
    if slots == 1:
        out = ptr(load(args, ATTENTION.out), T) + offset_of(args, ATTENTION.out_strides, seq, in_seq, head)
        if lane < lanes:
            write(out, at, sums * (F32(1.0) / total if total > 0.0 else F32(0.0)), width(out))
    else:
        place = (token * load(args, DECODE.heads) + head) * slots + slot
        scratch = ptr(load(args, ATTENTION.scratch), F32)
        if lane < lanes:
            write(scratch + place * SIZE, at, sums, width(ptr(0, T)))
        if lane == 0:
            store(scratch + load(args, DECODE.stats), 2 * place, top)
            store(scratch + load(args, DECODE.stats), 2 * place + 1, total)


@jit.inline
def attend(args, lo, hi, T, SIZE, HEADS):
    """Part number `lo`: of those of all key/value heads of all query tokens; a warp has HEADS query heads at once."""
    group, kv_heads, parts = load(args, ATTENTION.group), load(args, ATTENTION.kv_heads), load(args, DECODE.parts)
    warps, slots, index = threads() // WARP, load(args, DECODE.slots), lo // parts
    token = index // kv_heads
    kv_head = index - token * kv_heads
    seq, q_start, q_len, kv_start, kv_len, status = owner(args, token)
    if status != 0:
        return status
    in_seq = token - q_start if load(args, ATTENTION.starts) == 0 else token
    _, first, end = visible(args, token - q_start, q_len, kv_len)
    lanes, slot = lanes_of(T, SIZE), (lo - index * parts) * warps + thread() // WARP
    if slot >= slots:
        return 0
    step, at = AT_ONCE * (WARP // lanes), thread() % lanes * width(ptr(0, T))
    whole = first // step * step
    length = (max(0, end - whole) + slots * step - 1) // (slots * step) * step
    start = whole + slot * length
    bounds = start, min(end, start + length), first, kv_start
    for g in range(0, group, HEADS):
        head = kv_head * group + g
        a, b, c, d = (
            query_of(args, seq, in_seq, head, at, T), query_of(args, seq, in_seq, head + 1, at, T),
            query_of(args, seq, in_seq, head + 2, at, T), query_of(args, seq, in_seq, head + 3, at, T),
        )  # fmt: skip
        states, status = attend_part(args, (a, b, c, d), seq, kv_head, bounds, T, SIZE, HEADS)
        if status != 0:
            return status
        keep(args, states[0], seq, in_seq, token, head, slot, T, SIZE)
        if HEADS > 1 and g + 1 < group:
            keep(args, states[1], seq, in_seq, token, head + 1, slot, T, SIZE)
        if HEADS > 2 and g + 2 < group:
            keep(args, states[2], seq, in_seq, token, head + 2, slot, T, SIZE)
        if HEADS > 2 and g + 3 < group:
            keep(args, states[3], seq, in_seq, token, head + 3, slot, T, SIZE)
    return 0


@jit.inline
def join(args, lo, hi, T, SIZE):
    """The slots of row number `lo`, of the heads of all query tokens, added up: teams of threads take them in turn."""
    slots, heads, vectors = load(args, DECODE.slots), load(args, DECODE.heads), SIZE // 4
    token, teams, team = lo // heads, threads() // vectors, thread() // vectors
    seq, in_seq, at = 0, token, 4 * (thread() - team * vectors)
    if load(args, ATTENTION.starts) == 0:
        seq = token // load(args, ATTENTION.q_len)
        in_seq = token - seq * load(args, ATTENTION.q_len)
    scratch, shares = ptr(load(args, ATTENTION.scratch), F32), ptr(shared(SHARES_BYTES), F32)
    stats, sums = scratch + load(args, DECODE.stats) + 2 * lo * slots, scratch + lo * slots * SIZE
    slot = min(thread() % WARP, slots - 1)
    top, mass, other, other_mass = load(stats, 2 * slot), load(stats, 2 * slot + 1), F32(-INF), F32(0)
    if slot + WARP < slots:
        other, other_mass = load(stats, 2 * (slot + WARP)), load(stats, 2 * (slot + WARP) + 1)
    base = finite(over_keys(max(top, other), 1, larger))
    share, other = exp2(top - base), exp2(other - base)
    mass = share * mass if thread() % WARP < slots else F32(0)
    total = over_keys(mass + other * other_mass, 1, plus)
    if thread() < WARP:
        store(shares, thread(), share)
        store(shares, thread() + WARP, other)
    barrier()
    nothing = fill(0.0, F32, 4)
    value = nothing
    for slot in range(team, slots, AT_ONCE * teams):
        b, c, d = slot + teams, slot + 2 * teams, slot + 3 * teams
        valid = True, b < slots, c < slots, d < slots
        own = four_at_most(sums + (slot * SIZE + at), teams * SIZE, valid, nothing)
        value = muladd(own[0], fill(load(shares, slot), F32, 4), value)
        value = muladd(own[1], fill(load(shares, b if valid[1] else slot), F32, 4), value)
        value = muladd(own[2], fill(load(shares, c if valid[2] else slot), F32, 4), value)
        value = muladd(own[3], fill(load(shares, d if valid[3] else slot), F32, 4), value)
    parts = ptr(shared(PARTS_BYTES), F32)
    write(parts, 4 * thread(), value, 4)
    barrier()
    out = ptr(load(args, ATTENTION.out), T) + offset_of(args, ATTENTION.out_strides, seq, in_seq, lo - token * heads)
    for d in range(thread(), SIZE, threads()):
        value_of = F32(0)
        for i in range(teams):
            value_of += load(parts, i * SIZE + d)
        store(out, d, F32(0) if total == F32(0) else value_of / total)
    return 0
