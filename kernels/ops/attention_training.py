"""Attention with a derivative, masks and dropout, as PyTorch's `scaled_dot_product_attention`.

Without a gradient, mask and dropout, calls are the problem of `attention.py`.

Shapes: B sequences, S query rows, L keys, H query heads, Hkv key/value heads, D head size, Dv that of the values.
"""

import numpy as np

from ..problems.attention import AttentionBackward, AttentionForward
from ..table.registry import FLOATS, op
from ._attention import (
    BATCH_HEAD_TOKEN,
    TOLERANCE,
    attend,
    check,
    check_groups,
    check_heads,
    formula,
    reference,
    same,
    scale_of,
)


def _sdpa_ref(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, seed=0):
    if attn_mask is not None:
        bias = np.where(attn_mask, 0, -np.inf) if attn_mask.dtype == bool else attn_mask
        bias = np.broadcast_to(bias, (*query.shape[:3], key.shape[2]))
        return _biased_ref(query, key, value, bias, scale_of(scale, query.shape[-1]))
    rows = zip(*(x.swapaxes(1, 2) for x in (query, key, value)))
    out = [reference(*row, scale_of(scale, query.shape[-1]), 2 * int(is_causal)) for row in rows]
    return np.stack(out).swapaxes(1, 2)


def _biased_ref(query, key, value, bias, scale):
    group = query.shape[1] // key.shape[1]
    key, value = (np.repeat(x, group, 1) for x in (key, value))
    scores = query @ key.swapaxes(-1, -2) * scale + bias
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    return weights @ value / np.where(total == 0, 1, total)


def _sdpa_samples(rng):
    def normal(*shape):
        return rng.standard_normal(shape)

    yield (normal(2, 4, 20, 40), normal(2, 2, 33, 40), normal(2, 2, 33, 24)), {"is_causal": True, "enable_gqa": True}
    hidden = rng.random((2, 1, 70, 90)) < 0.8
    yield (normal(2, 2, 70, 16), normal(2, 2, 90, 16), normal(2, 2, 90, 16), hidden), {"scale": 0.5}
    yield (normal(1, 3, 9, 8), normal(1, 3, 7, 8), normal(1, 3, 7, 8), normal(9, 7)), {}


def _sdpa_grad_samples(rng):
    def normal(*shape):
        return rng.standard_normal(shape)

    yield (normal(1, 2, 5, 3), normal(1, 1, 4, 3), normal(1, 1, 4, 2)), {"is_causal": True, "enable_gqa": True}
    hidden = np.array([[True, False, True], [False, False, False], [True, True, True]])
    yield (normal(1, 1, 3, 4), normal(1, 1, 3, 4), normal(1, 1, 3, 4), hidden), {"scale": 0.7}


@op(ref=_sdpa_ref, samples=_sdpa_samples, grad_samples=_sdpa_grad_samples, tolerance=TOLERANCE, amp="lower")
def scaled_dot_product_attention(
    call, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, seed=0
):
    """softmax(scale * query key^T + mask) value: [B, H, S, D], [B, Hkv, L, D], [B, Hkv, L, Dv] -> [B, H, S, Dv].

    `is_causal` hides key j from row i < j (PyTorch's alignment, also when S != L); `attn_mask`, broadcast to
    [B, H, S, L], is of bool (True: visible) or of floats that are added to the scores; both may be given. Rows that
    see no key give zeros, and gradients of zero, as PyTorch's do. `dropout_p` sets probabilities to zero and divides
    the others by 1 - dropout_p, by numbers that depend on `seed` (64 bits) and the place alone. `scale` is 1/sqrt(D)
    by default; more query than key/value heads need `enable_gqa`. Any strides, such as views of a packed projection,
    are read in place, and the result lies in memory as [B, S, H, Dv], so that
    `.transpose(1, 2).reshape(B, S, H * Dv)` is a view. The scores [S, L] never exist in memory (Dao, arXiv
    2307.08691). Query, key and value have gradients; `attn_mask` has none.
    """
    q, k, v = _checked(call, query, key, value, dropout_p, enable_gqa)
    batch, heads, num_rows, size = q.shape_
    if call.training and getattr(attn_mask, "requires_grad", False):
        raise NotImplementedError(
            f"`attn_mask` of `{call.op.name}` requires grad, and has none: use `.detach()`, or matmul and softmax"
        )
    out = _result(call, (batch, heads, num_rows, v.shape_[3]), q.dtype)
    if not (call.training or attn_mask is not None or dropout_p):
        causal = 2 * int(bool(is_causal))
        return attend(call, q, k, v, BATCH_HEAD_TOKEN, BATCH_HEAD_TOKEN, scale_of(scale, size), causal, out=out)
    lse = call.empty((batch, heads, num_rows), _sum_dtype(q)) if call.training else None
    call.save(lse=lse)
    mask, problem = _problem(call, q, k, v, out, attn_mask, dropout_p, is_causal, scale, call.training)
    call.run(problem, numbers=_numbers(dropout_p, seed), q=q, k=k, v=v, out=out, lse=lse, mask=mask)
    return out


@scaled_dot_product_attention.grad("query", "key", "value")
def _(f, g, query, key, value, attn_mask, dropout_p, is_causal, scale, seed, out, lse, create_graph):
    if create_graph:
        if dropout_p:
            raise NotImplementedError(
                "`scaled_dot_product_attention` with `dropout_p` has no second derivative: use matmul, softmax, dropout"
            )
        return formula(f, g, query, key, value, attn_mask, is_causal, scale_of(scale, query.shape_[3]))
    return f.scaled_dot_product_attention_backward(
        g, query, key, value, out, lse, attn_mask, dropout_p, is_causal, scale, seed
    )


def _lse_ref(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **options):
    out = _sdpa_ref(query, key, value, attn_mask, dropout_p, is_causal, scale)
    key = np.repeat(key, query.shape[1] // key.shape[1], 1)
    scores = query @ key.swapaxes(-1, -2) * scale_of(scale, query.shape[-1]) / np.log(2)
    if attn_mask is not None:
        scores = scores + (np.where(attn_mask, 0, -np.inf) if attn_mask.dtype == bool else attn_mask / np.log(2))
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    lse = np.logaddexp2.reduce(scores, -1, initial=-np.inf)
    return out, np.where(lse == -np.inf, np.inf, lse)


@op(
    ref=_lse_ref, samples=_sdpa_samples, tolerance=TOLERANCE, gradient="missing", outputs=("out", "lse"), amp="lower"
)  # fmt: skip
def scaled_dot_product_attention_with_lse(
    call, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, seed=0
):
    """`scaled_dot_product_attention`, and each row's log-sum-exp: [B, H, S, Dv] and [B, H, S].

    `lse` is float32 (float64 for float64), the logarithm to base 2 of the row's sum of 2^score, with scores in units
    of log2: infinity where a row sees no key. With it, results over parts of the keys can be joined, and
    `scaled_dot_product_attention_backward` takes the joined result and lse with each part of the keys in turn
    (Liu et al., arXiv 2310.01889). For that it has no derivative of its own.
    """
    q, k, v = _checked(call, query, key, value, dropout_p, enable_gqa)
    batch, heads, num_rows, _ = q.shape_
    out = _result(call, (batch, heads, num_rows, v.shape_[3]), q.dtype)
    lse = call.out((batch, heads, num_rows), _sum_dtype(q), "lse")
    mask, problem = _problem(call, q, k, v, out, attn_mask, dropout_p, is_causal, scale, True)
    call.run(problem, numbers=_numbers(dropout_p, seed), q=q, k=k, v=v, out=out, lse=lse, mask=mask)
    return out, lse


@op(outputs=("grad_query", "grad_key", "grad_value"), gradient=None, amp="lower")
def scaled_dot_product_attention_backward(
    call, g, query, key, value, result, lse=None, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, seed=0
):
    """The gradients of query, key and value from `g`, that of the `result` of `scaled_dot_product_attention`.

    `lse` [B, H, S] float32 (float64 for float64) is the logarithm to base 2 of each row's sum of 2^score, with scores
    in units of log2: infinity where a row sees no key. Without it, it is computed again. Where query, key and value
    are views of one packed projection [B, S, H + 2 Hkv, D], the gradients are the same views of one new tensor;
    others lie in memory as their tensors.
    """
    q, k, v, g, result = check(call, (4,) * 5, query=query, key=key, value=value, g=g, result=result)
    batch, heads, num_rows, size = q.shape_
    same(call, "`key` and `value` of one batch, length and heads", k.shape_[:3], v.shape_[:3])
    same(call, "`query` and `key` of one batch and head size", (batch, size), (k.shape_[0], k.shape_[3]))
    for name, x in (("g", g), ("result", result)):
        same(call, f"`{name}` [B, H, S, Dv]", x.shape_, (batch, heads, num_rows, v.shape_[3]))
    dq, dk, dv = _gradients(call, query, key, value)
    mask, problem = _problem(call, q, k, v, result, attn_mask, dropout_p, is_causal, scale, True)
    numbers = _numbers(dropout_p, seed)
    want = _sum_dtype(q)
    if lse is None:
        lse = call.empty(q.shape_[:3], want)
        again = call.empty(result.shape_, q.dtype)
        before = problem._replace(out=again.strides_[:3])
        call.run(before, numbers=numbers, q=q, k=k, v=v, out=again, lse=lse, mask=mask)
    elif lse.shape_ != q.shape_[:3] or lse.dtype.name != want:
        got = f"{lse.dtype.name} {lse.shape_}"
        raise ValueError(f"`lse` of `{call.op.name}` must be {want} of shape {q.shape_[:3]}, got {got}")
    problem = AttentionBackward(problem, *(x.strides_[:3] for x in (g, dq, dk, dv)))
    lse = lse.contiguous()
    call.run(problem, numbers=numbers, q=q, k=k, v=v, out=result, g=g, dq=dq, dk=dk, dv=dv, lse=lse, mask=mask)
    return dq, dk, dv


def _checked(call, query, key, value, dropout_p, enable_gqa):
    """Query, key and value of sizes that go together."""
    q, k, v = check_heads(call, query, key, value, enable_gqa)
    if not 0 <= dropout_p < 1:
        raise ValueError(f"`dropout_p` of `{call.op.name}` must be from 0 to below 1, got {dropout_p}")
    return q, k, v


# ---- layouts -----------------------------------------------------------------------------------


def _sum_dtype(x):
    return "float64" if x.dtype.name == "float64" else "float32"


def _row_major(batch, heads, rows, size):
    """Strides of [B, H, S, D] that lies in memory as [B, S, H, D]."""
    return rows * heads * size, size, heads * size, 1


def _result(call, shape, dtype, key="out"):
    """The caller's output, or a new one that lies in memory as [B, S, H, Dv]."""
    if call.given.get(key) is not None:
        return call.out(shape, dtype, key)
    return call.empty(shape, dtype, _row_major(*shape))


def _gradients(call, query, key, value):
    """New gradients of three tensors: views of one tensor where they are views of one packed projection."""
    inputs = {"grad_query": query, "grad_key": key, "grad_value": value}
    if all(call.given.get(name) is None for name in inputs) and _are_packed(query, key, value):
        batch, heads, rows, size = query.shape_
        kv_heads = key.shape_[1]
        packed = call.empty((batch, rows, heads + 2 * kv_heads, size), query.dtype)
        offsets = 0, heads * size, (heads + kv_heads) * size
        parts = zip(inputs.values(), offsets)
        return tuple(call.view(packed, x.shape_, query.strides_, offset) for x, offset in parts)
    found = []
    for name, x in inputs.items():
        if call.given.get(name) is None and x.strides_[2] < x.strides_[1]:
            found.append(call.empty(x.shape_, x.dtype))
        else:
            found.append(_result(call, x.shape_, x.dtype, name))
    return tuple(found)


def _are_packed(query, key, value):
    """Whether three tensors [B, H, S, D] are neighbours in memory of [B, S, H + 2 Hkv, D]."""
    batch, heads, rows, size = query.shape_
    kv_heads = key.shape_[1]
    step = (heads + 2 * kv_heads) * size
    strides = rows * step, size, step, 1
    item = query.dtype.itemsize
    return (
        key.shape_ == value.shape_ == (batch, kv_heads, rows, size)
        and query.strides_ == key.strides_ == value.strides_ == strides
        and key.address - query.address == heads * size * item
        and value.address - key.address == kv_heads * size * item
    )


def _mask_layout(call, mask, shape, dtype):
    """(mask of bool or `dtype` with contiguous keys, its strides of batch, head and row), for scores of `shape`."""
    if mask is None:
        return None, (0, 0, 0)
    if not hasattr(mask, "strides_") or mask.dtype.name not in ("bool", *FLOATS):
        got = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"`attn_mask` of `{call.op.name}` must be a tensor of bool or floats, got {got}")
    if mask.dtype.name != "bool":
        mask = mask.to(dtype=dtype)
    given = mask.shape_
    if len(given) > 4 or any(a not in (1, b) for a, b in zip(given[::-1], shape[::-1])):
        raise ValueError(f"`attn_mask` of `{call.op.name}` must broadcast to {shape}, got shape {given}")
    if not given or given[-1] != shape[-1]:
        mask = mask.expand((*given[:-1], shape[-1])).contiguous()
    elif mask.strides_[-1] != 1 and shape[-1] > 1:
        mask = mask.contiguous()
    missing = 4 - len(mask.shape_)
    strides = [0] * missing + [0 if n == 1 else step for n, step in zip(mask.shape_, mask.strides_)]
    return mask, tuple(strides[:3])


# ---- the problem -------------------------------------------------------------------------------


def _numbers(dropout_p, seed):
    """What differs between calls of one problem: the seed of dropout, as a signed integer."""
    seed = int(seed) & ((1 << 64) - 1) if dropout_p else 0
    return {"seed": seed - (1 << 64) if seed >> 63 else seed}


def _problem(call, q, k, v, out, mask, dropout_p, is_causal, scale, lse):
    """(mask as the kernels read it, the problem of the forward pass)."""
    batch, heads, num_rows, size = q.shape_
    _, kv_heads, num_keys, size_v = v.shape_
    check_groups(call, heads, kv_heads)
    mask, mask_strides = _mask_layout(call, mask, (batch, heads, num_rows, num_keys), _sum_dtype(q))
    return mask, AttentionForward(
        q.dtype.name, q.strides_[:3], k.strides_[:3], v.strides_[:3], out.strides_[:3],
        None if mask is None else (mask_strides, mask.dtype.itemsize), batch, heads, kv_heads, num_rows, num_keys,
        size, size_v, scale_of(scale, size), bool(is_causal), dropout_p, lse,
    )  # fmt: skip
