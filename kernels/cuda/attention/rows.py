"""Attention, a query row and head for a block of 128 threads: any layout, mask, length and head size.

Keys come 128 at a time. A warp scores one key, its lanes the elements of a head; then a thread weighs one key; then a
thread sums up one element of the values. Sums are float32 (float64 for float64), scores natural logarithms.
"""

from numba import types

from ...blocks.attention import ATTENTION, BAD_BLOCK
from ...build import jit
from ...cpu.attention.prefill import find_run, row_slope, sequence, visible
from ...cpu.attention.tiles import offset_of
from ...lang.by_type import by_type
from ...lang.ptx import WARP, barrier, from_lane, shared, thread, threads
from ...lang.simd import bitcast, fill, lane, load, ptr, store
from ...lang.vmath import exp
from ..block import block_max, block_min, block_sum

I64, F32, F64 = types.int64, types.float32, types.float64
KEYS = 128  # threads of a block, and keys that they take at a time
MAX_SIZE = 1024  # elements of a head
HEAD_BYTES, KEY_BYTES, FACTOR_BYTES = 8 * MAX_SIZE, 8 * KEYS, 4 * KEYS
LN2 = 0.6931471805599453
INF = float("inf")


@by_type
def exp_of(value):
    """exp of a number."""
    dtype = value
    return lambda value: lane(exp(fill(value, dtype, 1)), 0)


@jit.inline
def dot(row, x, size, A):
    """The sum over a warp's lanes of row[d] * x[d]; every lane gets it."""
    total = A(0)
    for d in range(thread() % WARP, size, WARP):
        total += load(row, d) * A(load(x, d))
    for apart in (16, 8, 4, 2, 1):
        total += from_lane(total, apart)
    return total


@jit.inline
def softmax_step(scores, count, top, total, A):
    """Scores of `count` keys become weights; returns (their maximum so far, sum of weights, what earlier ones keep)."""
    score = load(scores, thread()) if thread() < count else A(-INF)
    highest = max(top, block_max(score))
    base = highest if highest > -INF else A(0)
    weight = exp_of(A(score - base))
    keep = exp_of(A(top - base))
    store(scores, thread(), weight)
    return highest, total * keep + block_sum(weight), keep


@jit.inline
def add_values(sums, scores, values, factors, count, size, keep, C, A):
    """sums = sums * keep + the weighted values of `count` keys, at the addresses `values`."""
    for d in range(thread(), size, threads()):
        total = load(sums, d) * keep
        for i in range(count):
            weight = load(scores, i)
            if factors != 0:
                weight = weight * A(load(ptr(factors, F32), i))
            total += weight * A(load(ptr(load(values, i), C), d))
        store(sums, d, total)


@jit.inline
def key_address(args, tensor, strides, seq, token, kv_head, nbytes):
    """The address of a token's key, value or factor; 0 where the table names no block."""
    block, place, run = find_run(args, seq, token)
    if run < 0:
        return 0
    return load(args, tensor) + offset_of(args, strides, block, place, kv_head) * nbytes


@jit.inline
def owner(args, token):
    """(sequence, first token, tokens, first key, keys, error) of the sequence that query token `token` belongs to."""
    if load(args, ATTENTION.starts) == 0:
        seq = token // max(1, load(args, ATTENTION.q_len))
        _, q_len, kv_start, kv_len, status = sequence(args, seq)
        return seq, seq * q_len, q_len, kv_start, kv_len, status
    count = load(args, ATTENTION.num_seqs)
    if count == 1:  # its token, or padding: the search would be all of the block's, and two waits
        one, others = sequence(args, 0), sequence(args, 1)
        wrong = max(one[4], others[4])
        if wrong != 0:
            return 0, token, 0, 0, 0, wrong
        if token < one[1]:
            return 0, one[0], one[1], one[2], one[3], 0
        return 1, others[0], others[1], others[2], others[3], 0
    found, wrong = count + 1, 0
    for seq in range(thread(), count + 1, threads()):  # by the threads side by side
        q_start, q_len, _, _, status = sequence(args, seq)
        if status != 0:
            wrong = status
        elif q_start <= token < q_start + q_len:
            found = seq
    found, wrong = block_min(found), -block_min(-wrong)
    if wrong != 0 or found > count:
        return 0, token, 0, 0, 0, wrong
    q_start, q_len, kv_start, kv_len, status = sequence(args, found)
    return found, q_start, q_len, kv_start, kv_len, status


@jit.inline
def attend(args, lo, hi, T, C, A, C_BYTES):
    """Row and head number `lo`: of the tokens of all sequences, their heads one after the other."""
    group = load(args, ATTENTION.group)
    heads = group * load(args, ATTENTION.kv_heads)
    size_qk, size_v = load(args, ATTENTION.size_qk), load(args, ATTENTION.size_v)
    at, head = lo // heads, lo % heads
    seq, q_start, q_len, kv_start, kv_len, status = owner(args, at)
    if status != 0:
        return status
    token, kv_head = at - q_start, head // group
    in_seq = token if load(args, ATTENTION.starts) == 0 else at
    position, first, end = visible(args, token, q_len, kv_len)
    query, sums = ptr(shared(HEAD_BYTES), A), ptr(shared(HEAD_BYTES), A)
    scores, keys, values = ptr(shared(KEY_BYTES), A), ptr(shared(KEY_BYTES), I64), ptr(shared(KEY_BYTES), I64)
    factors = shared(FACTOR_BYTES)
    source = ptr(load(args, ATTENTION.q), T) + offset_of(args, ATTENTION.q_strides, seq, in_seq, head)
    scale, slope = A(bitcast(load(args, ATTENTION.scale), F64)), A(row_slope(args, head) * LN2)
    for d in range(thread(), size_qk, KEYS):
        store(query, d, A(load(source, d)) * scale)
    for d in range(thread(), size_v, KEYS):
        store(sums, d, 0.0)
    top, total = A(-INF), A(0)
    scaled = load(args, ATTENTION.k_scales) != 0
    for j in range(first, end, KEYS):
        count, own, bad = min(KEYS, end - j), kv_start + j + thread(), A(0)
        if thread() < count:
            k_at = key_address(args, ATTENTION.k, ATTENTION.k_strides, seq, own, kv_head, C_BYTES)
            store(keys, thread(), k_at)
            store(values, thread(), key_address(args, ATTENTION.v, ATTENTION.v_strides, seq, own, kv_head, C_BYTES))
            if k_at == 0:
                bad = A(1)
            elif scaled:
                at_factor = key_address(args, ATTENTION.v_scales, ATTENTION.v_scale_strides, seq, own, kv_head, 4)
                store(ptr(factors, F32), thread(), load(ptr(at_factor, F32), 0))
        if block_max(bad) > 0:
            return BAD_BLOCK
        barrier()
        for i in range(thread() // WARP, count, KEYS // WARP):
            score = dot(query, ptr(load(keys, i), C), size_qk, A)
            if thread() % WARP == 0:
                if scaled:
                    own = kv_start + j + i
                    at_factor = key_address(args, ATTENTION.k_scales, ATTENTION.k_scale_strides, seq, own, kv_head, 4)
                    score *= A(load(ptr(at_factor, F32), 0))
                store(scores, i, score - slope * A(abs(j + i - position)))
        barrier()
        top, total, keep = softmax_step(scores, count, top, total, A)
        barrier()
        add_values(sums, scores, values, factors if scaled else 0, count, size_v, keep, C, A)
        barrier()
    out = ptr(load(args, ATTENTION.out), T) + offset_of(args, ATTENTION.out_strides, seq, in_seq, head)
    factor = A(1) / total if total != 0 else A(0)
    for d in range(thread(), size_v, KEYS):
        store(out, d, load(sums, d) * factor)
    barrier()
    return 0
