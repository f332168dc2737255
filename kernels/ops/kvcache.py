"""Caches of keys and values: writing new tokens into them, and attention that does so first."""

import operator

import numpy as np

from ..blocks.attention import BAD_SLOT, CACHE
from ..table.registry import op
from ._attention import (
    BATCH_HEAD_TOKEN,
    HEAD_TOKEN,
    TOKEN_HEAD,
    TOLERANCE,
    attend,
    check,
    check_groups,
    factors,
    index,
    reference,
    same,
    scale_of,
    sizes_of,
    strides_of,
)

_CACHE_DTYPES = ("float32", "float64", "bfloat16", "float16")


def _write(call, k_cache, v_cache, cache_order, k, v, order, *, tokens, errors=None, index=None, past=0, scales=None):
    """Launch the copy of all tokens; orders as for `attend`, the other arguments as in the block."""
    num_seqs, length, heads = sizes_of(k, order)
    blocks, block_size, _ = sizes_of(k_cache, cache_order)
    options = {"index_bytes": index.dtype.itemsize, "index_stride": index.strides_[0]} if index is not None else {}
    kernel, types = "attention.kvcache.write", {"T": f"uint{8 * k.dtype.itemsize}"}
    if scales is not None:
        kernel, types = "attention.kvcache.write_int8", {"T": k.dtype.name}
        options |= zip(("k_scales", "v_scales"), scales)
        options |= zip(("k_scale_strides", "v_scale_strides"), (strides_of(x, cache_order) for x in scales))
    block = CACHE(
        k=k, v=v, k_cache=k_cache, v_cache=v_cache, index=index, k_strides=strides_of(k, order),
        v_strides=strides_of(v, order), k_cache_strides=strides_of(k_cache, cache_order),
        v_cache_strides=strides_of(v_cache, cache_order), k_element=k.strides_[-1], v_element=v.strides_[-1],
        k_cache_element=k_cache.strides_[-1], v_cache_element=v_cache.strides_[-1], blocks=blocks,
        block_size=block_size, heads=heads, size_k=k.shape_[-1], size_v=v.shape_[-1], tokens=tokens, past=past,
        **options,
    )  # fmt: skip
    nbytes = heads * (k.shape_[-1] + v.shape_[-1]) * k.dtype.itemsize
    call.launch(kernel, types, block, num_seqs * length, nbytes, errors)


def _check_write(call, k_cache, v_cache, k, v, ndim, k_scales=None, v_scales=None):
    """Dtypes, sizes of heads that agree, caches that can be written; returns the factors of int8 caches, or None."""
    scaled = k_scales is not None or v_scales is not None
    caches = ("int8",) if scaled else call.op.dtypes, "k_cache", k_cache
    new = call.op.dtypes, *(("k", k) if scaled else ("k_cache", k_cache))  # allowed dtypes, and whose they must be
    tensors = ("k_cache", k_cache, 4), ("v_cache", v_cache, 4), ("k", k, ndim), ("v", v, ndim)
    checks = [(*tensor, *rule) for tensor, rule in zip(tensors, (caches, caches, new, new))]
    for name, x, dims, allowed, first_name, first in checks:
        if not hasattr(x, "strides_") or x.dtype.name not in allowed:
            got = getattr(x, "dtype", type(x).__name__)
            beside = " beside `k_scales` and `v_scales`" if allowed == ("int8",) else ""
            raise TypeError(f"`{name}` of `{call.op.name}` must be a tensor of {', '.join(allowed)}{beside}, got {got}")
        if x.dtype is not first.dtype:
            raise TypeError(
                f"`{name}` of `{call.op.name}` has dtype {x.dtype.name}, `{first_name}` has {first.dtype.name}: "
                "convert it with `.to()`"
            )
        if len(x.shape_) != dims:
            raise ValueError(f"`{name}` of `{call.op.name}` must have {dims} dims, got shape {x.shape_}")
        if x is k_cache or x is v_cache:
            check_writable(call, name, x)
    same(call, "caches of one number of blocks, heads and tokens", k_cache.shape_[:3], v_cache.shape_[:3])
    same(call, "`k` and `v` of one number of tokens and heads", k.shape_[:-1], v.shape_[:-1])
    same(call, "`k_cache` and `k` of one number of heads", k_cache.shape_[1], k.shape_[1])
    same(call, "`k_cache` and `k` of one head size", k_cache.shape_[3], k.shape_[-1])
    same(call, "`v_cache` and `v` of one head size", v_cache.shape_[3], v.shape_[-1])
    scales = factors(call, k_cache, k_scales, v_scales)
    for name, x in zip(("k_scales", "v_scales"), scales or ()):
        check_writable(call, name, x)
    return scales


def check_writable(call, name, x):
    """Refuse a cache whose elements share memory."""
    if 0 in x.strides_ and any(stride == 0 and size > 1 for size, stride in zip(x.shape_, x.strides_)):
        raise ValueError(
            f"`{name}` of `{call.op.name}` has strides {x.strides_}: its elements share memory, "
            "so call `.clone()` on it first"
        )


def _kv_caching_ref(k_cache, v_cache, k, v, past_kv_lengths):
    k_cache, v_cache = k_cache.copy(), v_cache.copy()
    for b, past in enumerate(past_kv_lengths):
        k_cache[b, :, past : past + k.shape[2]] = k[b]
        v_cache[b, :, past : past + k.shape[2]] = v[b]
    return k_cache, v_cache


def _kv_caching_samples(rng):
    shapes = (2, 3, 20, 24), (2, 3, 20, 24), (2, 3, 5, 24), (2, 3, 5, 24)
    yield (*(rng.standard_normal(s) for s in shapes), np.array([0, 15])), {}


@op(dtypes=_CACHE_DTYPES, ref=_kv_caching_ref, samples=_kv_caching_samples, outputs=(), gradient="missing")
def kv_caching(call, k_cache, v_cache, k, v, past_kv_lengths, k_scales=None, v_scales=None):
    """Store k, v [B, Hkv, S, D] in caches [B, Hkv, max length, D], in place; returns (k_cache, v_cache).

    Sequence b goes to the places past_kv_lengths[b] (int32 or int64 [B]) and on; ValueError where it does not fit.
    int8 caches with `k_scales` and `v_scales` [B, Hkv, max length] as in `paged_caching`.
    """
    scales = _check_write(call, k_cache, v_cache, k, v, 4, k_scales, v_scales)
    same(call, "caches and `k` of one batch", k_cache.shape_[0], k.shape_[0])
    index(call, "past_kv_lengths", past_kv_lengths, k.shape_[0])
    tokens = k.shape_[2]
    room = k_cache.shape_[2]
    errors = {
        BAD_SLOT: f"`past_kv_lengths` of `kv_caching` must leave room for {tokens} tokens of {room}, and does not"
    }
    _write(
        call, k_cache, v_cache, BATCH_HEAD_TOKEN, k, v, BATCH_HEAD_TOKEN, tokens=tokens, index=past_kv_lengths,
        errors=errors, scales=scales,
    )  # fmt: skip
    return k_cache, v_cache


def _paged_caching_ref(k_cache, v_cache, k, v, slot_mapping):
    k_cache, v_cache = k_cache.copy(), v_cache.copy()
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            block, offset = divmod(int(slot), k_cache.shape[2])
            k_cache[block, :, offset], v_cache[block, :, offset] = k[token], v[token]
    return k_cache, v_cache


def _paged_caching_samples(rng):
    shapes = (6, 2, 8, 40), (6, 2, 8, 24), (5, 2, 40), (5, 2, 24)
    yield (*(rng.standard_normal(s) for s in shapes), np.array([47, -1, 0, 9, 33])), {}


@op(dtypes=_CACHE_DTYPES, ref=_paged_caching_ref, samples=_paged_caching_samples, outputs=(), gradient="missing")
def paged_caching(call, k_cache, v_cache, k, v, slot_mapping, k_scales=None, v_scales=None):
    """Store k [T, Hkv, D], v [T, Hkv, Dv] in paged caches, in place; returns (k_cache, v_cache).

    Caches are [num_blocks, Hkv, block_size, D] and [..., Dv] of any strides. slot_mapping [T] (int64 or int32)
    is block * block_size + offset; negative slots are padding and skipped. ValueError for a slot beyond the cache.
    With `k_scales` and `v_scales` (float32 [num_blocks, Hkv, block_size], written too) the caches are int8: the
    scale of a token and head is its largest magnitude / 127, and elements are multiples of it, off by half of it.
    """
    scales = _check_write(call, k_cache, v_cache, k, v, 3, k_scales, v_scales)
    index(call, "slot_mapping", slot_mapping, k.shape_[0])
    if k_cache.shape_[2] == 0:
        raise ValueError(f"`k_cache` of `paged_caching` needs blocks of at least one token, got shape {k_cache.shape_}")
    room = k_cache.shape_[0] * k_cache.shape_[2]
    errors = {
        BAD_SLOT: f"`slot_mapping` of `paged_caching` must stay below {room}, the slots of the cache, and does not"
    }
    _write(
        call, k_cache, v_cache, BATCH_HEAD_TOKEN, k, v, TOKEN_HEAD, tokens=0, index=slot_mapping, errors=errors,
        scales=scales,
    )  # fmt: skip
    return k_cache, v_cache


def _attention_ref(q, k, v, k_cache, v_cache, pos):
    keys, values = (np.concatenate([x[:, :pos], y], 1).swapaxes(0, 1) for x, y in ((k_cache, k), (v_cache, v)))
    return reference(q.swapaxes(0, 1), keys, values, q.shape[-1] ** -0.5, 1)


def _attention_samples(rng):
    for q_len, pos in ((7, 0), (1, 30), (20, 12)):
        shapes = (8, q_len, 64), (2, q_len, 64), (2, q_len, 64), (2, 40, 64), (2, 40, 64)
        yield (*(rng.standard_normal(s) for s in shapes), pos), {}


@op(dtypes=_CACHE_DTYPES, ref=_attention_ref, samples=_attention_samples, tolerance=TOLERANCE, gradient="missing")
def attention(call, q, k, v, k_cache, v_cache, pos):
    """Store k, v at places `pos` ... of the caches, then causal attention over all that they hold -> [S, H, D].

    q [H, S, D], k, v [Hkv, S, D], caches [Hkv, max length, D] (written in place). Scores are scaled by 1/sqrt(D);
    the last query sees the last key. ValueError where `pos` + S exceeds the caches.
    """
    q, k, v = check(call, (3, 3, 3), q=q, k=k, v=v)
    pos = operator.index(pos)
    heads, tokens, size = q.shape_
    kv_heads, room = k.shape_[0], k_cache.shape_[1] if len(k_cache.shape_) > 1 else 0
    check_groups(call, heads, kv_heads)
    cache = kv_heads, room, size
    for name, x, shape in (("v", v, k.shape_), ("k_cache", k_cache, cache), ("v_cache", v_cache, cache)):
        if x.dtype is not q.dtype or x.shape_ != shape:
            want, got = f"{q.dtype.name} of shape {shape}", f"{x.dtype.name} {x.shape_}"
            raise ValueError(f"`{name}` of `attention` must be {want}, got {got}")
    same(call, "`q` and `k` of one number of tokens and head size", (tokens, size), k.shape_[1:])
    check_writable(call, "k_cache", k_cache)
    check_writable(call, "v_cache", v_cache)
    if pos < 0 or pos + tokens > room:
        raise ValueError(
            f"`pos` of `attention` must leave room for {tokens} tokens in caches of {room}, got {pos}: "
            "use longer caches"
        )
    out = call.out((tokens, heads, size), q.dtype)
    _write(call, k_cache, v_cache, HEAD_TOKEN, k, v, HEAD_TOKEN, tokens=max(1, tokens), past=pos)
    _, k_cache, v_cache = check(call, (3, 3, 3), q=q, k_cache=k_cache, v_cache=v_cache)
    return attend(
        call, q, k_cache, v_cache, HEAD_TOKEN, HEAD_TOKEN, scale_of(None, size), 1, out=out, out_order=TOKEN_HEAD,
        kv_len=pos + tokens,
    )  # fmt: skip
