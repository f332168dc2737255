"""Attention, rotary positions and sampling."""

import contextlib
import enum
import threading

import infinicore
from infinicore.core import layout

from .dropout import dropout, seed


class RopeAlgo(enum.IntEnum):
    """Which two elements of a head make a pair: neighbours (GPT_J) or element i and i + D/2 (GPT_NEOX)."""

    GPT_J = 0
    GPT_NEOX = 1


def rope(x, pos_ids, sin_table, cos_table, algo=RopeAlgo.GPT_NEOX, *, out=None):
    """Turn x [S, H, D] or [B, S, H, D] by positions [S] or [B, S]; tables [positions, D/2] of x's dtype."""
    return infinicore.rope(x, pos_ids, sin_table, cos_table, int(RopeAlgo(algo)), out=out)


def random_sample(logits, random_val, topp, topk, temperature, *, out=None):
    """One token id (0-dim int32) drawn from logits [V] by `random_val` in [0, 1); see `infinicore.random_sample`."""
    return infinicore.random_sample(logits, random_val, topp, topk, temperature, out=out)


def flash_attention(
    query, key, value, total_kv_len, attn_mask=None, dropout_p=0, is_causal=False, scale=None, enable_gqa=False
):
    """Attention of query [B, H, S, D] over the first `total_kv_len` [B] of key and value [B, H, L, D]."""
    return infinicore.flash_attention(
        query, key, value, total_kv_len, attn_mask, dropout_p, is_causal, scale, enable_gqa
    )


_instead = threading.local()  # `function`: what computes attention in this thread


@contextlib.contextmanager
def attention_by(function):
    """Within it, `function` computes this thread's `scaled_dot_product_attention`, from all its arguments in order.

    Within `function`, attention is as usual. None: as usual.
    """
    before = getattr(_instead, "function", None)
    _instead.function = function
    try:
        yield
    finally:
        _instead.function = before


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """softmax(query key^T scale + mask) value: [..., S, D] over [..., L, D] and [..., L, Dv].

    A bool mask says where to look, a float mask is added; both broadcast to [..., S, L], as the leading dims do among
    themselves. The S x L scores are never stored, unless a gradient of the mask is wanted. `dropout_p` is applied
    whenever it is positive, so pass 0 outside of training.
    """
    instead = getattr(_instead, "function", None)
    if instead is not None:
        with attention_by(None):
            return instead(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim < 2:
            raise ValueError(f"`{name}` must be [..., S, D] with 2 dims or more, got shape {x.shape_}")
    if getattr(attn_mask, "requires_grad", False) and infinicore.is_grad_enabled():
        return _stored_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    shapes = query.shape_, key.shape_, value.shape_
    lead = None
    if len(shapes[0]) != 4 or not (enable_gqa or shapes[0][:2] == shapes[1][:2] == shapes[2][:2]):
        if not (enable_gqa and len(shapes[0]) > 2 and all(s[:-3] == shapes[0][:-3] for s in shapes)):
            lead = layout.broadcast_shapes(layout.broadcast_shapes(*(s[:-2] for s in shapes[:2])), shapes[2][:-2])
            query, key, value = (x.expand(*lead, *x.shape_[-2:]) for x in (query, key, value))
        else:
            lead = shapes[0][:-2]
        if attn_mask is not None and attn_mask.ndim > 2:
            attn_mask = _four(attn_mask.expand(*lead, query.shape_[-2], key.shape_[-2]))
        query, key, value = map(_four, (query, key, value))
    drawn = seed() if dropout_p else 0
    options = (attn_mask, dropout_p, is_causal, scale, enable_gqa, drawn)
    out = infinicore.scaled_dot_product_attention(query, key, value, *options)
    return out if lead is None else out.reshape(*lead, *out.shape_[-2:])


def _four(x):
    """[..., H, S, D] as [B, H, S, D], [S, D] as [1, 1, S, D]."""
    if x.ndim < 4:
        return x.reshape((1,) * (4 - x.ndim) + x.shape_)
    return x.flatten(0, x.ndim - 4)


def _stored_attention(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa):
    """Attention by products and a softmax, whose derivatives include that of the mask."""
    if enable_gqa:
        times = query.shape_[-3] // key.shape_[-3]
        key, value = (infinicore.repeat_interleave(x, times, -3) for x in (key, value))
    scores = (query * (query.shape_[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1) + mask
    if is_causal:
        seen = infinicore.tril(infinicore.ones(scores.shape_[-2:], dtype=infinicore.bool, device=scores.device))
        scores = infinicore.where(seen, scores, float("-inf"))
    return dropout(infinicore.softmax(scores, -1), dropout_p, dropout_p > 0.0) @ value


def _added(mask, name, dtype, shape):
    """A mask of MultiheadAttention (bool: where not to look) as one of scaled_dot_product_attention, checked."""
    if mask is None:
        return None
    if tuple(mask.shape) not in shape:
        raise ValueError(f"`{name}` must have shape {' or '.join(map(str, shape))}, got {tuple(mask.shape)}")
    if mask.dtype is infinicore.bool:
        return mask.logical_not()
    if not mask.dtype.is_floating_point:
        raise TypeError(f"`{name}` must be of bool or floats, got {mask.dtype}")
    return mask.to(dtype)


def _joined(a, b, dtype):
    """Two masks as one."""
    if a is None or b is None:
        return b if a is None else a
    if a.dtype is b.dtype is infinicore.bool:
        return a.logical_and(b)
    a, b = (_as_floats(m, dtype) for m in (a, b))
    return a + b


def _as_floats(mask, dtype):
    if mask.dtype is not infinicore.bool:
        return mask
    return infinicore.where(mask, 0.0, float("-inf")).to(dtype)


def _heads(x, heads):
    """[B, S, H D] as [B, H, S, D]."""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def multi_head_attention(
    query,
    key,
    value,
    num_heads,
    weights,
    biases,
    out_weight,
    out_bias,
    *,
    bias_k=None,
    bias_v=None,
    add_zero_attn=False,
    dropout_p=0.0,
    key_padding_mask=None,
    attn_mask=None,
    is_causal=False,
    need_weights=False,
    average_attn_weights=True,
):
    """Attention with its projections, on query [B, S, E], key [B, L, K] and value [B, L, V].

    `weights` is the packed [3 E, E] or three of them, `biases` [3 E] or None. Bool masks say where not to look.
    Returns (output [B, S, E], weights [B, S, L] or [B, H, S, L] or None).
    """
    batch, rows, embed = query.shape
    dtype = query.dtype
    if isinstance(weights, tuple):
        thirds = (None,) * 3 if biases is None else biases.chunk(3)
        q, k, v = (infinicore.linear(x, w, b) for x, w, b in zip((query, key, value), weights, thirds))
    elif query is key is value:
        packed = infinicore.linear(query, weights, biases)
        q, k, v = packed.split(embed, -1)
    elif key is value:
        first = (None, None) if biases is None else biases.split([embed, 2 * embed])
        parts = weights.split([embed, 2 * embed])
        q = infinicore.linear(query, parts[0], first[0])
        k, v = infinicore.linear(key, parts[1], first[1]).split(embed, -1)
    else:
        thirds = (None,) * 3 if biases is None else biases.chunk(3)
        q, k, v = (infinicore.linear(x, w, b) for x, w, b in zip((query, key, value), weights.chunk(3), thirds))
    length = k.shape[1]
    mask = _added(attn_mask, "attn_mask", dtype, ((rows, length), (batch * num_heads, rows, length)))
    if mask is not None:
        mask = mask.view(1, 1, rows, length) if mask.ndim == 2 else mask.view(batch, num_heads, rows, length)
    padding = _added(key_padding_mask, "key_padding_mask", dtype, ((batch, length),))
    if padding is not None:
        padding = padding.view(batch, 1, 1, length)
    mask = _joined(mask, padding, dtype)
    for extra_k, extra_v in ((bias_k, bias_v), (0.0, 0.0) if add_zero_attn else (None, None)):
        if extra_k is not None:
            k, v = (_with_row(x, extra) for x, extra in ((k, extra_k), (v, extra_v)))
            mask = None if mask is None else _open_column(mask)
    q, k, v = (_heads(x, num_heads) for x in (q, k, v))
    if need_weights or (is_causal and mask is not None):
        if is_causal:
            ones = infinicore.ones(rows, k.shape[2], dtype=infinicore.bool, device=k.device)
            mask = _joined(mask, infinicore.tril(ones), dtype)
        probabilities = _probabilities(q, k, mask)
        probabilities = dropout(probabilities, dropout_p, dropout_p > 0.0)
        attended = probabilities @ v
    else:
        probabilities = None
        attended = scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)
    out = infinicore.linear(attended.transpose(1, 2).reshape(batch, rows, embed), out_weight, out_bias)
    if probabilities is not None and average_attn_weights:
        probabilities = probabilities.mean(1)
    return out, probabilities if need_weights else None


def multi_head_attention_forward(
    query,
    key,
    value,
    embed_dim_to_check,
    num_heads,
    in_proj_weight,
    in_proj_bias,
    bias_k,
    bias_v,
    add_zero_attn,
    dropout_p,
    out_proj_weight,
    out_proj_bias,
    training=True,
    key_padding_mask=None,
    need_weights=True,
    attn_mask=None,
    use_separate_proj_weight=False,
    q_proj_weight=None,
    k_proj_weight=None,
    v_proj_weight=None,
    static_k=None,
    static_v=None,
    average_attn_weights=True,
    is_causal=False,
):
    """`multi_head_attention` with PyTorch's arguments, on query [S, B, E] and key, value [L, B, *], or without B.

    Returns (output as `query`, weights [B, S, L] or None). `static_k` and `static_v` must be None.
    """
    if static_k is not None or static_v is not None:
        raise NotImplementedError("`static_k` and `static_v` must be None: project with `k_proj_weight` and others")
    if query.shape[-1] != embed_dim_to_check or embed_dim_to_check % num_heads:
        raise ValueError(
            f"`query` must have a last dim of `embed_dim_to_check` {embed_dim_to_check}, which `num_heads` {num_heads} "
            f"divides, got {query.shape[-1]}"
        )
    if is_causal and attn_mask is None:
        raise ValueError("`is_causal` is a hint about `attn_mask`, which must be given too")
    single = query.ndim == 2
    query, key, value = (x.unsqueeze(0) if single else x.transpose(0, 1) for x in (query, key, value))
    if single and key_padding_mask is not None:
        key_padding_mask = key_padding_mask.unsqueeze(0)
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    output, weights = multi_head_attention(
        query,
        key,
        value,
        num_heads,
        separate if use_separate_proj_weight else in_proj_weight,
        in_proj_bias,
        out_proj_weight,
        out_proj_bias,
        bias_k=bias_k,
        bias_v=bias_v,
        add_zero_attn=add_zero_attn,
        dropout_p=dropout_p if training else 0.0,
        key_padding_mask=key_padding_mask,
        attn_mask=attn_mask,
        need_weights=need_weights,
        average_attn_weights=average_attn_weights,
    )
    if single:
        return output.squeeze(0), None if weights is None else weights.squeeze(0)
    return output.transpose(0, 1), weights


def _probabilities(q, k, mask):
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores + _as_floats(mask, q.dtype)
    return infinicore.softmax(scores, -1)


def _with_row(x, extra):
    """[B, L, E] with one row more: `extra` [1, 1, E] or a number."""
    if isinstance(extra, float):
        row = infinicore.full((x.shape[0], 1, x.shape[2]), extra, dtype=x.dtype, device=x.device)
    else:
        row = extra.expand(x.shape[0], 1, x.shape[2])
    return infinicore.cat([x, row], 1)


def _open_column(mask):
    """A mask with one column more, which every row sees."""
    shape = (*mask.shape[:-1], 1)
    seen = infinicore.full(shape, mask.dtype is infinicore.bool, dtype=mask.dtype, device=mask.device)
    return infinicore.cat([mask, seen], -1)
