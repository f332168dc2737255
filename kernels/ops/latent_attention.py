"""Multi-head latent attention over a paged cache (DeepSeek-V2, arXiv 2405.04434): one latent a token for all heads."""

import operator

import numpy as np

from ..table.registry import alias, op
from ._attention import TOLERANCE, gather, reference
from ._layout import check

_DTYPES = ("float32", "float64", "bfloat16", "float16")


def _concat_ref(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype="auto", scale=None):
    cache = kv_cache.copy()
    rows = cache.reshape(-1, cache.shape[-1])
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            rows[slot] = np.concatenate([kv_c[token], k_pe[token]])
    return cache


def _concat_samples(rng):
    yield tuple(rng.standard_normal(s) for s in ((3, 8), (3, 4), (4, 5, 12))) + (np.array([7, -1, 0]),), {}


@op(dtypes=_DTYPES, ref=_concat_ref, samples=_concat_samples, outputs=(), gradient="missing")
def concat_and_cache_mla(call, kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype="auto", scale=None):
    """Store latents `kv_c` [T, L] and rotary keys `k_pe` [T, R] in `kv_cache` [blocks, block_size, L + R], in place.

    `slot_mapping` [T] (int32 or int64) is block * block_size + offset; negative slots are padding. `kv_cache_dtype`
    must be "auto", for which `scale` has no meaning. Returns `kv_cache`, which is row-major.
    """
    if kv_cache_dtype != "auto":
        raise NotImplementedError(
            f"`kv_cache_dtype` of `concat_and_cache_mla` must be 'auto', the dtype of the cache, got {kv_cache_dtype!r}"
        )
    for name, x, ndim in (("kv_c", kv_c, 2), ("k_pe", k_pe, 2), ("kv_cache", kv_cache, 3)):
        check(call, x, name)
        if len(x.shape_) != ndim or x.dtype is not kv_c.dtype:
            raise ValueError(
                f"`{name}` of `{call.op.name}` must have {ndim} dims and the dtype of `kv_c`, got {x.shape_}"
            )
    tokens, latent = kv_c.shape_
    width = kv_cache.shape_[2]
    if k_pe.shape_ != (tokens, width - latent) or not kv_cache.contiguous_:
        raise ValueError(
            f"`kv_c`, `k_pe` and the row-major `kv_cache` of `{call.op.name}` must be [T, L], [T, R] and [.., L + R], "
            f"got {kv_c.shape_}, {k_pe.shape_} and {kv_cache.shape_} with strides {kv_cache.strides_}"
        )
    rows = call.empty((tokens, width), kv_c.dtype)
    rows.narrow(1, 0, latent).copy_(kv_c)
    rows.narrow(1, latent, width - latent).copy_(k_pe)
    kv_cache.view(-1, width).put_states(rows, slot_mapping)
    return kv_cache


def _mla_ref(output, query, kv_cache, scale, block_tables, context_lens, max_context_len):
    rows = []
    for q, table, length in zip(query, block_tables, context_lens):
        keys = gather(kv_cache[:, None], table, length, 1)
        rows.append(reference(q[None], keys, keys[..., : output.shape[-1]], scale)[0])
    return np.stack(rows)


def _mla_samples(rng):
    table, lens = rng.permutation(6).reshape(2, 3).astype(np.int32), np.array([9, 4], np.int32)
    shapes = (2, 4, 32), (2, 4, 40), (6, 4, 40)
    output, query, cache = (rng.standard_normal(s) for s in shapes)
    yield (output, query, cache, 0.2, table, lens, 12), {}


@op(dtypes=_DTYPES, ref=_mla_ref, samples=_mla_samples, outputs=(), gradient="missing", tolerance=TOLERANCE)
def paged_attention_mla_(call, output, query, kv_cache, scale, block_tables, context_lens, max_context_len):
    """Attention of a query for each sequence over its latents, into `output` [T, H, L], which is returned.

    `query` [T, H, L + R], `kv_cache` [blocks, block_size, L + R], whose first L elements are the values, `block_tables`
    [T, blocks], `context_lens` [T], which count the current token. `max_context_len` is at least these lengths: a hint.
    """
    if operator.index(max_context_len) <= 0:
        raise ValueError(f"`max_context_len` of `{call.op.name}` must be positive, got {max_context_len}")
    for name, x in (("output", output), ("query", query), ("kv_cache", kv_cache)):
        check(call, x, name)
        if len(x.shape_) != 3 or x.dtype is not query.dtype:
            raise ValueError(f"`{name}` of `{call.op.name}` must have 3 dims and the dtype of `query`, got {x.shape_}")
    latent = output.shape_[2]
    if output.shape_[:2] != query.shape_[:2] or latent > kv_cache.shape_[2]:
        raise ValueError(f"`output` of `{call.op.name}` must be {query.shape_[:2]} and the latent, got {output.shape_}")
    keys = kv_cache.unsqueeze(1)
    values = keys.narrow(3, 0, latent)
    return output.copy_(query.paged_attention(keys, values, block_tables, context_lens, None, float(scale)))


alias(paged_attention_mla_, "paged_attention_mla_")
