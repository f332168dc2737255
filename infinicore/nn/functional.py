"""Functions of tensors under PyTorch's names: `import infinicore.nn.functional as F`."""

import enum

import infinicore


class RopeAlgo(enum.IntEnum):
    """Which two elements of a head make a pair: neighbours (GPT_J) or element i and i + D/2 (GPT_NEOX)."""

    GPT_J = 0
    GPT_NEOX = 1


def linear(input, weight, bias=None, *, alpha=1.0, out=None):
    """`alpha * input @ weight.T + bias`: input [..., K], weight [N, K], bias [N] or None; [..., N]."""
    return infinicore.linear(input, weight, bias, alpha=alpha, out=out)


def _check_normalized(input, normalized_shape):
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if tuple(input.shape)[-len(shape) :] != shape:
        raise ValueError(
            f"`normalized_shape` {list(shape)} must be the last dims of `input`, which has shape {tuple(input.shape)}"
        )


def rms_norm(input, normalized_shape, weight, eps=1e-5, *, out=None):
    """`input / sqrt(mean(input^2) + eps) * weight` over the last dim."""
    _check_normalized(input, normalized_shape)
    return infinicore.rms_norm(input, weight, eps, out=out)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, *, out=None):
    """`(input - mean) / sqrt(variance + eps) * weight + bias` over the last dims `normalized_shape`."""
    _check_normalized(input, normalized_shape)
    return infinicore.layer_norm(input, normalized_shape, weight, bias, eps, out=out)


def silu(input, inplace=False, *, out=None):
    """`input * sigmoid(input)`."""
    return infinicore.silu(input, out=input if inplace else out)


def gelu(input, approximate="none", *, out=None):
    """`input * Phi(input)`; approximate="tanh" takes the formula with tanh."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"`approximate` must be 'none' or 'tanh', got {approximate!r}")
    return (infinicore.gelu if approximate == "none" else infinicore.gelu_tanh)(input, out=out)


def swiglu(input, other, *, out=None):
    """`input * silu(other)`: the gate is the second argument."""
    return infinicore.swiglu(input, other, out=out)


def silu_and_mul(input, out=None):
    """`silu(input[..., :d]) * input[..., d:]`: the gate is the first half of the last dim."""
    return infinicore.silu_and_mul(input, out=out)


def softmax(input, dim=-1, dtype=None, *, out=None):
    """Softmax along `dim`; `dtype` converts the input first."""
    if dtype is not None:
        input = input.to(dtype)
    return infinicore.softmax(input, dim, out=out)


def causal_softmax(input, out=None):
    """Softmax of [..., S, T] along T, where row i sees columns up to T - S + i and the rest is zero."""
    return infinicore.causal_softmax(input, out=out)


def embedding(
    input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False, *, out=None
):
    """Rows of `weight` [V, D] by integer ids: [...] to [..., D]. An id outside the table is a ValueError."""
    if max_norm is not None:
        raise NotImplementedError("`max_norm` of embedding is not supported, leave it out")
    return infinicore.embedding(input, weight, out=out)


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
