"""Attention for training, a row for a block: the forward pass with its log-sum-exp, and the gradients.

With S = scale * Q K^T, P = exp(S - lse) and D = rowsum(dO * O) (FlashAttention-2, Dao, arXiv 2307.08691):

    dV = P^T dO    dP = dO V^T    dS = scale * P * (dP - D)    dQ = dS K    dK = dS^T Q

Gradients of queries are sums over keys, in one launch; those of keys and values sums over queries, in a second. The
log-sum-exp is that of the CPU's kernels: log2 of the sum of 2^score, with scores in units of log2.
"""

from numba import types

from ...blocks.attention import GRAD
from ...build import jit
from ...cpu.attention.tiles import offset_of
from ...lang.philox import philox
from ...lang.ptx import WARP, barrier, shared, thread
from ...lang.simd import bitcast, fill, lane, load, ptr, ramp, store
from ...lang.vmath import log
from ..block import block_sum
from .rows import HEAD_BYTES, INF, KEY_BYTES, KEYS, LN2, dot, exp_of, softmax_step

F64, U64, BOOL = types.float64, types.uint64, types.boolean


@jit.inline
def row_at(args, tensor, strides, batch, head, row, T):
    """The pointer to a row of a tensor."""
    return ptr(load(args, tensor), T) + offset_of(args, strides, batch, head, row)


@jit.inline
def masked(args, score, batch, head, row, key, A):
    """A score with what the mask adds; -inf where the key is hidden."""
    if load(args, GRAD.causal) != 0 and key > row:
        return A(-INF)
    if load(args, GRAD.mask) != 0:
        at = offset_of(args, GRAD.mask_strides, batch, head, row) + key
        if load(args, GRAD.mask_bytes) == 1:
            return score if load(ptr(load(args, GRAD.mask), BOOL), at) else A(-INF)
        return score + load(ptr(load(args, GRAD.mask), A), at)
    return score


@jit.inline
def dropped(args, place, key, A):
    """0 with the probability of dropout, else 1 / (1 - probability); `place` is the row of [B * H * S]."""
    probability = bitcast(load(args, GRAD.dropout), F64)
    if probability == 0.0:
        return A(1)
    words = philox(ramp(place, U64, 1), key // 4, load(args, GRAD.seed))
    word = words[0]
    if key % 4 == 1:
        word = words[1]
    elif key % 4 == 2:
        word = words[2]
    elif key % 4 == 3:
        word = words[3]
    return A(0) if lane(word, 0) < U64(probability * 4294967296.0) else A(1.0 / (1.0 - probability))


@jit.inline
def forward(args, lo, hi, T, A):
    """Row number `lo` of [B, H, S]."""
    num_rows, num_keys = load(args, GRAD.num_rows), load(args, GRAD.num_keys)
    size_qk, size_v, group = load(args, GRAD.size_qk), load(args, GRAD.size_v), load(args, GRAD.group)
    heads = group * load(args, GRAD.kv_heads)
    row, head, batch = lo % num_rows, lo // num_rows % heads, lo // num_rows // heads
    query, sums, scores = ptr(shared(HEAD_BYTES), A), ptr(shared(HEAD_BYTES), A), ptr(shared(KEY_BYTES), A)
    source, scale = row_at(args, GRAD.q, GRAD.q_strides, batch, head, row, T), bitcast(load(args, GRAD.scale), F64)
    for d in range(thread(), size_qk, KEYS):
        store(query, d, A(load(source, d)) * A(scale))
    for d in range(thread(), size_v, KEYS):
        store(sums, d, 0.0)
    barrier()
    top, total, end = A(-INF), A(0), num_keys
    if load(args, GRAD.causal) != 0:
        end = min(num_keys, row + 1)
    for j in range(0, end, KEYS):
        count = min(KEYS, end - j)
        for i in range(thread() // WARP, count, KEYS // WARP):
            score = dot(query, row_at(args, GRAD.k, GRAD.k_strides, batch, head // group, j + i, T), size_qk, A)
            if thread() % WARP == 0:
                store(scores, i, masked(args, score, batch, head, row, j + i, A))
        barrier()
        top, total, keep = softmax_step(scores, count, top, total, A)
        if thread() < count:
            store(scores, thread(), load(scores, thread()) * dropped(args, lo, j + thread(), A))
        barrier()
        for d in range(thread(), size_v, KEYS):
            part = load(sums, d) * keep
            for i in range(count):
                value = row_at(args, GRAD.v, GRAD.v_strides, batch, head // group, j + i, T)
                part += load(scores, i) * A(load(value, d))
            store(sums, d, part)
        barrier()
    out = row_at(args, GRAD.out, GRAD.out_strides, batch, head, row, T)
    factor = A(1) / total if total != 0 else A(0)
    for d in range(thread(), size_v, KEYS):
        store(out, d, load(sums, d) * factor)
    if load(args, GRAD.lse) != 0 and thread() == 0:
        lse = A(INF)
        if total != 0:
            lse = (lane(log(fill(total, A, 1)), 0) + top) / A(LN2)
        store(ptr(load(args, GRAD.lse), A), lo, lse)
    barrier()
    return 0


@jit.inline
def weight_and_slope(args, score, product, delta, lse, batch, head, row, key, place, A):
    """(weight of a value, gradient of the score) of a query row and a key; `product` is dO V^T."""
    score = masked(args, score, batch, head, row, key, A)
    if score == -INF or lse == INF:
        return A(0), A(0)
    weight, factor = exp_of(A(score - lse * A(LN2))), dropped(args, place, key, A)
    return weight * factor, weight * (product * factor - delta)


@jit.inline
def row_delta(args, batch, head, row, T, A):
    """The sum over a row of dO * O, over the block."""
    g = row_at(args, GRAD.g, GRAD.g_strides, batch, head, row, T)
    out = row_at(args, GRAD.out, GRAD.out_strides, batch, head, row, T)
    total = A(0)
    for d in range(thread(), load(args, GRAD.size_v), KEYS):
        total += A(load(g, d)) * A(load(out, d))
    return block_sum(total)


@jit.inline
def queries(args, lo, hi, T, A):
    """The gradient of query row number `lo` of [B, H, S]; D is left in `scratch`."""
    num_rows, num_keys = load(args, GRAD.num_rows), load(args, GRAD.num_keys)
    size_qk, size_v, group = load(args, GRAD.size_qk), load(args, GRAD.size_v), load(args, GRAD.group)
    heads = group * load(args, GRAD.kv_heads)
    row, head, batch = lo % num_rows, lo // num_rows % heads, lo // num_rows // heads
    query, grad, sums = ptr(shared(HEAD_BYTES), A), ptr(shared(HEAD_BYTES), A), ptr(shared(HEAD_BYTES), A)
    slopes, scale = ptr(shared(KEY_BYTES), A), A(bitcast(load(args, GRAD.scale), F64))
    source = row_at(args, GRAD.q, GRAD.q_strides, batch, head, row, T)
    g = row_at(args, GRAD.g, GRAD.g_strides, batch, head, row, T)
    for d in range(thread(), size_qk, KEYS):
        store(query, d, A(load(source, d)) * scale)
        store(sums, d, 0.0)
    for d in range(thread(), size_v, KEYS):
        store(grad, d, A(load(g, d)))
    delta, lse = row_delta(args, batch, head, row, T, A), load(ptr(load(args, GRAD.lse), A), lo)
    if thread() == 0:
        store(ptr(load(args, GRAD.scratch), A), lo, delta)
    barrier()
    end = min(num_keys, row + 1) if load(args, GRAD.causal) != 0 else num_keys
    for j in range(0, end, KEYS):
        count = min(KEYS, end - j)
        for i in range(thread() // WARP, count, KEYS // WARP):
            score = dot(query, row_at(args, GRAD.k, GRAD.k_strides, batch, head // group, j + i, T), size_qk, A)
            product = dot(grad, row_at(args, GRAD.v, GRAD.v_strides, batch, head // group, j + i, T), size_v, A)
            _, slope = weight_and_slope(args, score, product, delta, lse, batch, head, row, j + i, lo, A)
            if thread() % WARP == 0:
                store(slopes, i, slope)
        barrier()
        for d in range(thread(), size_qk, KEYS):
            total = load(sums, d)
            for i in range(count):
                key = row_at(args, GRAD.k, GRAD.k_strides, batch, head // group, j + i, T)
                total += load(slopes, i) * A(load(key, d))
            store(sums, d, total)
        barrier()
    dq = row_at(args, GRAD.dq, GRAD.dq_strides, batch, head, row, T)
    for d in range(thread(), size_qk, KEYS):
        store(dq, d, load(sums, d) * scale)
    barrier()
    return 0


@jit.inline
def keys(args, lo, hi, T, A):
    """The gradients of key and value number `lo` of [B, Hkv, L], over all query heads that share them."""
    num_rows, num_keys = load(args, GRAD.num_rows), load(args, GRAD.num_keys)
    size_qk, size_v, group = load(args, GRAD.size_qk), load(args, GRAD.size_v), load(args, GRAD.group)
    kv_heads = load(args, GRAD.kv_heads)
    j, kv_head, batch = lo % num_keys, lo // num_keys % kv_heads, lo // num_keys // kv_heads
    key, value = ptr(shared(HEAD_BYTES), A), ptr(shared(HEAD_BYTES), A)
    key_sums, value_sums = ptr(shared(HEAD_BYTES), A), ptr(shared(HEAD_BYTES), A)
    weights, slopes = ptr(shared(KEY_BYTES), A), ptr(shared(KEY_BYTES), A)
    scale = A(bitcast(load(args, GRAD.scale), F64))
    k = row_at(args, GRAD.k, GRAD.k_strides, batch, kv_head, j, T)
    v = row_at(args, GRAD.v, GRAD.v_strides, batch, kv_head, j, T)
    for d in range(thread(), size_qk, KEYS):
        store(key, d, A(load(k, d)) * scale)
        store(key_sums, d, 0.0)
    for d in range(thread(), size_v, KEYS):
        store(value, d, A(load(v, d)))
        store(value_sums, d, 0.0)
    barrier()
    for h in range(group):
        head = kv_head * group + h
        for r in range(j if load(args, GRAD.causal) != 0 else 0, num_rows, KEYS):
            count = min(KEYS, num_rows - r)
            for i in range(thread() // WARP, count, KEYS // WARP):
                place = (batch * kv_heads * group + head) * num_rows + r + i
                score = dot(key, row_at(args, GRAD.q, GRAD.q_strides, batch, head, r + i, T), size_qk, A)
                product = dot(value, row_at(args, GRAD.g, GRAD.g_strides, batch, head, r + i, T), size_v, A)
                delta, lse = load(ptr(load(args, GRAD.scratch), A), place), load(ptr(load(args, GRAD.lse), A), place)
                weight, slope = weight_and_slope(args, score, product, delta, lse, batch, head, r + i, j, place, A)
                if thread() % WARP == 0:
                    store(weights, i, weight)
                    store(slopes, i, slope)
            barrier()
            for d in range(thread(), size_qk, KEYS):
                total = load(key_sums, d)
                for i in range(count):
                    query = row_at(args, GRAD.q, GRAD.q_strides, batch, head, r + i, T)
                    total += load(slopes, i) * A(load(query, d))
                store(key_sums, d, total)
            for d in range(thread(), size_v, KEYS):
                total = load(value_sums, d)
                for i in range(count):
                    g = row_at(args, GRAD.g, GRAD.g_strides, batch, head, r + i, T)
                    total += load(weights, i) * A(load(g, d))
                store(value_sums, d, total)
            barrier()
    dk = row_at(args, GRAD.dk, GRAD.dk_strides, batch, kv_head, j, T)
    dv = row_at(args, GRAD.dv, GRAD.dv_strides, batch, kv_head, j, T)
    for d in range(thread(), size_qk, KEYS):
        store(dk, d, load(key_sums, d) * scale)
    for d in range(thread(), size_v, KEYS):
        store(dv, d, load(value_sums, d))
    barrier()
    return 0
