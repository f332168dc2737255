"""Attention: dense batches, packed sequences, static and paged caches, all as one problem of a device.

Query heads share key/value heads in equal groups: head h reads key/value head h // (H / Hkv). Scores are
multiplied by `scale`. Rows that see no key are zero. Lengths and tables are read when the kernel runs: a
recorded call follows their new contents.

Shapes: B sequences, S query tokens each or T in all, L keys, H query heads, Hkv key/value heads, D head size,
Dv head size of the values. Index tensors are int32 or int64.
"""

import numpy as np

from ..table.registry import op
from ._attention import (
    BATCH_HEAD,
    BATCH_HEAD_TOKEN,
    BATCH_TOKEN_HEAD,
    TOKEN_HEAD,
    TOLERANCE,
    attend,
    check,
    check_heads,
    factors,
    formula,
    gather,
    index,
    reference,
    same,
    scale_of,
)

# ---- dense -------------------------------------------------------------------------------------


def _mha_ref(q, k, v, alibi_slopes=None, scale=1.0, is_causal=False):
    rows = zip(q, k, v)
    return np.stack([reference(*row, scale, int(is_causal), slopes=alibi_slopes) for row in rows])


def _mha_samples(rng):
    sizes = (17, 17, 2, 1, 8, 8), (3, 257, 4, 2, 64, 64), (40, 70, 3, 3, 33, 65)
    for q_len, keys, heads, kv_heads, size, size_v in sizes:
        shapes = (2, q_len, heads, size), (2, keys, kv_heads, size), (2, keys, kv_heads, size_v)
        yield tuple(rng.standard_normal(s) for s in shapes), {"scale": size**-0.5, "is_causal": True}
    yield tuple(rng.standard_normal((1, 100, 2, 80)) for _ in range(3)), {"scale": 0.1}


def _mha_grad_samples(rng):
    yield tuple(rng.standard_normal(s) for s in ((2, 5, 4, 3), (2, 5, 2, 3), (2, 5, 2, 2))), {"is_causal": True}
    yield tuple(rng.standard_normal(s) for s in ((1, 3, 2, 4), (1, 6, 2, 4), (1, 6, 2, 5))), {"scale": 0.6}


@op(ref=_mha_ref, samples=_mha_samples, grad_samples=_mha_grad_samples, tolerance=TOLERANCE, amp="lower")
def mha(call, q, k, v, alibi_slopes=None, scale=1.0, is_causal=False):
    """Attention of q [B, S, H, D] over k [B, L, Hkv, D] and v [B, L, Hkv, Dv] -> [B, S, H, Dv].

    Any strides: views of a packed QKV projection are read in place. `is_causal`: the last query sees the last
    key. `alibi_slopes` [H] float32 subtracts slope * |key position - query position| from the scores.
    """
    q, k, v = check(call, (4, 4, 4), q=q, k=k, v=v)
    same(call, "`k` [B, L, Hkv, D] and `v` [B, L, Hkv, Dv] of one batch, length and heads", k.shape_[:3], v.shape_[:3])
    same(call, "`q` and `k` of one batch and head size", q.shape_[::3], k.shape_[::3])
    return attend(
        call, q, k, v, BATCH_TOKEN_HEAD, BATCH_TOKEN_HEAD, scale, int(bool(is_causal)), slopes=alibi_slopes
    )  # fmt: skip


@mha.grad("q", "k", "v")
def _(f, g, q, k, v, alibi_slopes, scale, is_causal, out, create_graph):
    if alibi_slopes is not None or (is_causal and q.shape_[1] != k.shape_[1]):
        raise NotImplementedError(
            f"`mha` with `alibi_slopes`, or `is_causal` with {q.shape_[1]} queries and {k.shape_[1]} keys, has no "
            "derivative: use `scaled_dot_product_attention` with `attn_mask`"
        )
    turned = [x.transpose(1, 2) for x in (g, q, k, v, out)]
    return tuple(x.transpose(1, 2) for x in _gradients(f, *turned, None, is_causal, scale, create_graph))


def _gradients(f, g, query, key, value, out, mask, is_causal, scale, create_graph):
    """The gradients of tensors [B, H, S, D], of results whose log-sum-exp was not kept."""
    if create_graph:
        return formula(f, g, query, key, value, mask, is_causal, scale)
    return f.scaled_dot_product_attention_backward(
        g, query, key, value, out, attn_mask=mask, is_causal=is_causal, scale=scale
    )


def _flash_ref(query, key, value, total_kv_len, is_causal=False, scale=None, **options):
    rows = []
    for q, k, v, n in zip(query, key, value, total_kv_len):
        q, k, v = (x.swapaxes(0, 1) for x in (q, k, v))
        rows.append(reference(q, k[:n], v[:n], scale_of(scale, q.shape[-1]), 2 * int(is_causal)).swapaxes(0, 1))
    return np.stack(rows)


def _flash_samples(rng):
    for causal in (False, True):
        shapes = (2, 4, 20, 64), (2, 2, 50, 64), (2, 2, 50, 64)
        yield (*(rng.standard_normal(s) for s in shapes), np.array([50, 23])), {"is_causal": causal, "enable_gqa": True}


@op(ref=_flash_ref, samples=_flash_samples, tolerance=TOLERANCE, amp="lower")
def flash_attention(
    call, query, key, value, total_kv_len, attn_mask=None, dropout_p=0, is_causal=False, scale=None, enable_gqa=False
):
    """Attention of query [B, H, S, D] over the first total_kv_len[b] keys of key, value [B, Hkv, L, D] -> [B, H, S, D].

    `is_causal` hides key j from query i < j (PyTorch's alignment, also when S != L); `scale` is 1/sqrt(D) by
    default. `attn_mask` and dropout are not supported; more query than key/value heads need `enable_gqa`.
    """
    if attn_mask is not None or dropout_p:
        raise NotImplementedError("`attn_mask` and `dropout_p` of `flash_attention` are not supported, leave them out")
    q, k, v = check_heads(call, query, key, value, enable_gqa)
    index(call, "total_kv_len", total_kv_len, q.shape_[0])
    return attend(
        call, q, k, v, BATCH_HEAD_TOKEN, BATCH_HEAD_TOKEN, scale_of(scale, q.shape_[3]), 2 * int(bool(is_causal)),
        lens=total_kv_len, names=("", "total_kv_len", ""),
    )  # fmt: skip


@flash_attention.grad("query", "key", "value")
def _(f, g, query, key, value, total_kv_len, is_causal, scale, out, create_graph):
    column = key[:, :1, :, :1]
    number = f.cumsum(f.logical_not(f.gt(column, column)), 2)  # 1, 2, ..., as nothing is greater than itself
    visible = f.le(number, total_kv_len.reshape(-1, 1, 1, 1)).transpose(2, 3)
    scale = scale_of(scale, query.shape_[3])
    return _gradients(f, g, query, key, value, out, visible, is_causal, scale, create_graph)


# ---- packed sequences --------------------------------------------------------------------------


def _varlen_ref(q, k, v, starts_q, starts_k, table, *_, alibi_slopes=None, scale=1.0):
    out = np.zeros((*q.shape[:2], v.shape[-1]))
    for i in range(len(starts_q) - 1):
        rows, first, last = slice(starts_q[i], starts_q[i + 1]), starts_k[i], starts_k[i + 1]
        if table is None:
            keys, values = k[first:last], v[first:last]
        else:
            keys, values = (gather(x, table[i], last - first, 0) for x in (k, v))
        out[rows] = reference(q[rows], keys, values, scale, 1, slopes=alibi_slopes)
    return out


def _varlen_samples(rng):
    starts_q, starts_k = np.array([0, 5, 6, 36], np.int32), np.array([0, 9, 30, 80], np.int32)
    dense = tuple(rng.standard_normal(s) for s in ((36, 4, 64), (80, 2, 64), (80, 2, 64)))
    yield (*dense, starts_q, starts_k, None, 30, 50), {"scale": 0.125}
    paged = tuple(rng.standard_normal(s) for s in ((36, 4, 64), (12, 16, 2, 64), (12, 16, 2, 64)))
    table = rng.permutation(12).reshape(3, 4).astype(np.int32)
    yield (*paged, starts_q, starts_k, table, 30, 50), {"scale": 0.125}


@op(ref=_varlen_ref, samples=_varlen_samples, tolerance=TOLERANCE, gradient="missing", amp="lower")
def mha_varlen(
    call, q, k, v, cum_seqlens_q, cum_seqlens_k, block_table, max_seqlen_q, max_seqlen_k, alibi_slopes=None, scale=1.0
):
    """Causal attention of packed sequences: q [T, H, D] -> [T, H, Dv].

    Sequence i has the query tokens cum_seqlens_q[i] ... cum_seqlens_q[i + 1] and as many keys as cum_seqlens_k
    [B + 1] rises by. Without a `block_table`, k [Tk, Hkv, D] and v [Tk, Hkv, Dv] are packed in the same way; with
    one [B, blocks], they are caches [num_blocks, block_size, Hkv, D] of any strides. The last query sees the
    last key. `max_seqlen_q` and `max_seqlen_k` only help to choose a kernel.
    """
    paged = block_table is not None
    q, k, v = check(call, (3, 4, 4) if paged else (3, 3, 3), q=q, k=k, v=v)
    same(call, "`k` and `v` of one length and heads", k.shape_[:-1], v.shape_[:-1])
    same(call, "`q` and `k` of one head size", q.shape_[-1], k.shape_[-1])
    starts = index(call, "cum_seqlens_q", cum_seqlens_q, None)
    num_seqs = starts.shape_[0] - 1
    if num_seqs < 0:
        raise ValueError("`cum_seqlens_q` of `mha_varlen` needs at least one entry, got none")
    lens = index(call, "cum_seqlens_k", cum_seqlens_k, num_seqs + 1)
    if paged:
        index(call, "block_table", block_table, num_seqs, None)
    return attend(
        call, q, k, v, TOKEN_HEAD, BATCH_TOKEN_HEAD if paged else TOKEN_HEAD, scale, 1,
        starts=starts, lens=lens, lens_are_starts=True, table=block_table, slopes=alibi_slopes,
        longest_q=max_seqlen_q, longest_kv=max_seqlen_k, names=("cum_seqlens_q", "cum_seqlens_k", "block_table"),
    )  # fmt: skip


# ---- caches ------------------------------------------------------------------------------------


def _paged_ref(q, k_cache, v_cache, block_tables, cache_lens, alibi_slopes=None, scale=1.0):
    rows = []
    for row, table, length in zip(q, block_tables, cache_lens):
        keys, values = (gather(x, table, length, 1) for x in (k_cache, v_cache))
        rows.append(reference(row[None], keys, values, scale, 1, slopes=alibi_slopes)[0])
    return np.stack(rows)


def _paged_samples(rng):
    for heads, kv_heads, size, size_v, block_size in ((8, 2, 64, 64, 16), (2, 2, 40, 24, 5)):
        q, *caches = (
            rng.standard_normal(s)
            for s in ((3, heads, size), (24, kv_heads, block_size, size), (24, kv_heads, block_size, size_v))
        )
        table, lens = rng.permutation(24).reshape(3, 8), np.array([1, 8 * block_size, 3 * block_size + 2])
        yield (q, *caches, table, lens), {"scale": 0.15}


@op(ref=_paged_ref, samples=_paged_samples, tolerance=TOLERANCE, gradient="missing")
def paged_attention(
    call, q, k_cache, v_cache, block_tables, cache_lens, alibi_slopes=None, scale=1.0, k_scales=None, v_scales=None
):
    """One query token per sequence over a paged cache: q [B, H, D] -> [B, H, Dv].

    Caches [num_blocks, Hkv, block_size, D] and [..., Dv] of any strides, block_tables [B, blocks] and
    cache_lens [B], which counts the current token (its key is in the cache already). `alibi_slopes` [H]
    float32 adds slope * (key position - query position). A length of 0 gives zeros. int8 caches need `k_scales`
    and `v_scales`, see `cached_attention`.
    """
    scales = factors(call, k_cache, k_scales, v_scales)
    q, k, v = check(call, (3, 4, 4), scales, q=q, k_cache=k_cache, v_cache=v_cache)
    _check_caches(call, q, k, v, 2)
    index(call, "block_tables", block_tables, q.shape_[0], None)
    index(call, "cache_lens", cache_lens, q.shape_[0])
    return attend(
        call, q, k, v, BATCH_HEAD, BATCH_HEAD_TOKEN, scale, 1, table=block_tables, lens=cache_lens,
        slopes=alibi_slopes, scales=scales, names=("", "cache_lens", "block_tables"),
    )  # fmt: skip


def _check_caches(call, q, k, v, token_dim):
    same(call, "caches of one number of blocks, block size and heads", k.shape_[:3], v.shape_[:3])
    same(call, "`q` and the key cache of one head size", q.shape_[-1], k.shape_[3])
    if k.shape_[token_dim] == 0:
        raise ValueError(f"the caches of `{call.op.name}` need blocks of at least one token, got shape {k.shape_}")


def _prefill_ref(q, k_cache, v_cache, tables, history_lens, starts, alibi_slopes=None, scale=1.0, window=0, causal=1):
    out = np.zeros((*q.shape[:2], v_cache.shape[-1]))
    for i in range(len(starts) - 1):
        rows = slice(starts[i], starts[i + 1])
        table = [i] if tables is None else tables[i]
        keys, values = (gather(x, table, history_lens[i], 1) for x in (k_cache, v_cache))
        out[rows] = reference(q[rows], keys, values, scale, causal, window, alibi_slopes)
    return out


def _prefill_samples(rng):
    caches = tuple(rng.standard_normal((12, 2, 16, 64)) for _ in range(2))
    table, starts = rng.permutation(12).reshape(3, 4), np.array([0, 5, 6, 36])
    yield (rng.standard_normal((36, 4, 64)), *caches, table, np.array([5, 60, 33]), starts), {"scale": 0.125}


@op(ref=_prefill_ref, samples=_prefill_samples, tolerance=TOLERANCE, gradient="missing")
def paged_attention_prefill(
    call, q, k_cache, v_cache, block_tables, history_lens, cu_seqlens_q, alibi_slopes=None, scale=1.0, k_scales=None,
    v_scales=None,
):  # fmt: skip
    """Causal attention of packed query tokens over a paged cache: q [T, H, D] -> [T, H, Dv].

    Caches as in `paged_attention`; they hold the keys of these tokens already. `history_lens` [B] is the total
    length of each sequence (history and these tokens), cu_seqlens_q [B + 1] its query tokens: token i of a
    sequence sees the keys up to total - query tokens + i.
    """
    return _cached(
        call, q, k_cache, v_cache, cu_seqlens_q, history_lens, block_tables, scale, True, None, alibi_slopes,
        None, None, k_scales, v_scales, ("cu_seqlens_q", "history_lens", "block_tables"),
    )  # fmt: skip


def _cached_ref(q, k, v, starts, lens, tables=None, scale=None, causal=True, window=None, alibi_slopes=None, **hints):
    scale = scale_of(scale, q.shape[-1])
    return _prefill_ref(q, k, v, tables, lens, starts, alibi_slopes, scale, window or 0, int(causal))


def _cached_samples(rng):
    starts, lens = np.array([0, 1, 1, 30]), np.array([40, 0, 61])
    caches = tuple(rng.standard_normal((3, 2, 64, 32)) for _ in range(2))
    yield (rng.standard_normal((30, 6, 32)), *caches, starts, lens), {"window": 20}
    yield (rng.standard_normal((30, 6, 32)), *caches, starts, lens), {"causal": False, "scale": 0.3}


@op(ref=_cached_ref, samples=_cached_samples, tolerance=TOLERANCE, gradient="missing")
def cached_attention(
    call, q, k_cache, v_cache, cu_seqlens_q, kv_lens, block_tables=None, scale=None, causal=True, window=None,
    alibi_slopes=None, max_seqlen_q=None, max_kv_len=None, k_scales=None, v_scales=None,
):  # fmt: skip
    """Attention of packed query tokens over caches, for models: q [T, H, D] -> [T, H, Dv].

    Caches [blocks, Hkv, block_size, D] and [..., Dv] of any strides; sequence i lies in the blocks that
    block_tables[i] names, or, without tables, in block i (a static cache). kv_lens [B] counts its keys in all,
    cu_seqlens_q [B + 1] bounds its query tokens; tokens after the last bound are padding and give zeros. The
    last query sees the last key (`causal`), and with a `window` only the last `window` keys up to its own.
    `scale` is 1/sqrt(D) by default. Caches of int8, as `paged_caching` fills them, hold multiples of `k_scales` and
    `v_scales` (float32 [blocks, Hkv, block_size]). `max_seqlen_q` and `max_kv_len` are hints (which kernel, how
    many threads); results do not depend on them, except for rounding.
    """
    return _cached(
        call, q, k_cache, v_cache, cu_seqlens_q, kv_lens, block_tables, scale, causal, window, alibi_slopes,
        max_seqlen_q, max_kv_len, k_scales, v_scales, ("cu_seqlens_q", "kv_lens", "block_tables"),
    )  # fmt: skip


def _cached(
    call, q, k_cache, v_cache, starts, lens, tables, scale, causal, window, slopes, longest_q, longest_kv, k_scales,
    v_scales, names,
):  # fmt: skip
    scales = factors(call, k_cache, k_scales, v_scales)
    q, k, v = check(call, (3, 4, 4), scales, q=q, k_cache=k_cache, v_cache=v_cache)
    _check_caches(call, q, k, v, 2)
    index(call, names[1], lens, None)
    batch = lens.shape_[0]
    index(call, names[0], starts, batch + 1)
    if tables is not None:
        index(call, names[2], tables, batch, None)
    elif batch > k.shape_[0]:
        raise ValueError(
            f"`k_cache` of `{call.op.name}` needs a block for each of the {batch} sequences, got {k.shape_[0]} blocks: "
            "pass `block_tables`, or a larger cache"
        )
    if window is not None and window < 1:
        raise ValueError(f"`window` of `{call.op.name}` must be at least 1 or None, got {window}")
    return attend(
        call, q, k, v, TOKEN_HEAD, BATCH_HEAD_TOKEN, scale_of(scale, q.shape_[-1]), int(bool(causal)),
        window=min(window or 0, 1 << 30), starts=starts, lens=lens, table=tables, slopes=slopes, scales=scales,
        longest_q=longest_q, longest_kv=longest_kv, names=names,
    )  # fmt: skip


def _kvcache_ref(q, k_cache, v_cache, seqlens_k, block_table, alibi_slopes=None, scale=1.0):
    rows = []
    for row, table, length in zip(q, block_table, seqlens_k):
        keys, values = (gather(x, table, length, 0) for x in (k_cache, v_cache))
        rows.append(reference(row, keys, values, scale, 1, slopes=alibi_slopes))
    return np.stack(rows)


def _kvcache_samples(rng):
    for q_len in (1, 3, 20):
        caches = tuple(rng.standard_normal((8, 16, 2, 64)) for _ in range(2))
        lens, table = np.array([64, 21], np.int32), rng.permutation(8).reshape(2, 4).astype(np.int32)
        yield (rng.standard_normal((2, q_len, 8, 64)), *caches, lens, table), {"scale": 0.125}


@op(ref=_kvcache_ref, samples=_kvcache_samples, tolerance=TOLERANCE, gradient="missing")
def mha_kvcache(call, q, k_cache, v_cache, seqlens_k, block_table, alibi_slopes=None, scale=1.0):
    """Causal attention of q [B, S, H, D] over a paged cache -> [B, S, H, Dv].

    Caches [num_blocks, block_size, Hkv, D] and [..., Dv] of any strides, block_table [B, blocks]; seqlens_k [B]
    counts the keys with those of q, which are in the cache already. The last query sees the last key.
    """
    q, k, v = check(call, (4, 4, 4), q=q, k_cache=k_cache, v_cache=v_cache)
    _check_caches(call, q, k, v, 1)
    index(call, "seqlens_k", seqlens_k, q.shape_[0])
    index(call, "block_table", block_table, q.shape_[0], None)
    return attend(
        call, q, k, v, BATCH_TOKEN_HEAD, BATCH_TOKEN_HEAD, scale, 1, table=block_table, lens=seqlens_k,
        slopes=alibi_slopes, names=("", "seqlens_k", "block_table"),
    )  # fmt: skip
