"""Attention with a derivative, masks and dropout, as PyTorch's `scaled_dot_product_attention`.

`cpu/attention_grad.py` has the kernels. Without a gradient, mask and dropout, calls go to the kernels of
`attention.py`, which also stream keys for few query rows.

Shapes: B sequences, S query rows, L keys, H query heads, Hkv key/value heads, D head size, Dv that of the values.
"""

import numpy as np

from ..cpu.attention import grad_block as block
from ..cpu.gemm import blocking
from ..table.registry import FLOATS, op
from ._attention import TOLERANCE, attend, check, formula, groups, pick, reference, same, scale_of

_GRAIN_NS = 30000
_NS = {"float64": 0.045, "bfloat16": 0.012}  # of a product of two elements; others 0.022


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
    q, k, v = check(call, (4, 4, 4), query=query, key=key, value=value)
    batch, heads, num_rows, size = q.shape_
    same(call, "`key` and `value` of one batch, length and heads", k.shape_[:3], v.shape_[:3])
    same(call, "`query` and `key` of one batch and head size", (batch, size), (k.shape_[0], k.shape_[3]))
    kv_heads, num_keys, size_v = k.shape_[1], k.shape_[2], v.shape_[3]
    if heads != kv_heads and not enable_gqa:
        raise ValueError(f"`query` has {heads} heads and `key` {kv_heads}: pass `enable_gqa=True` to share them")
    if not 0 <= dropout_p < 1:
        raise ValueError(f"`dropout_p` of `{call.op.name}` must be from 0 to below 1, got {dropout_p}")
    if call.training and getattr(attn_mask, "requires_grad", False):
        raise NotImplementedError(
            f"`attn_mask` of `{call.op.name}` requires grad, and has none: use `.detach()`, or matmul and softmax"
        )
    out = _result(call, (batch, heads, num_rows, size_v), q.dtype)
    if not (call.training or attn_mask is not None or dropout_p):
        attend(
            call, q, pick(q, 0, 2, 1), out, pick(out, 0, 2, 1), k, pick(k, 0, 2, 1), v, pick(v, 0, 2, 1),
            blocks=batch, block_size=num_keys, heads=heads, kv_heads=kv_heads, num_seqs=batch, q_len=num_rows,
            kv_len=num_keys, scale=scale_of(scale, size), causal=2 * int(bool(is_causal)),
        )  # fmt: skip
        return out
    lse = call.empty((batch, heads, num_rows), _sum_dtype(q)) if call.training else None
    call.save(lse=lse)
    _Problem(call, q, k, v, attn_mask, dropout_p, is_causal, scale, seed).forward(call, out, lse)
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
    problem = _Problem(call, q, k, v, attn_mask, dropout_p, is_causal, scale, seed)
    want = _sum_dtype(q)
    if lse is None:
        lse = call.empty(q.shape_[:3], want)
        problem.forward(call, call.empty(result.shape_, q.dtype), lse)
    elif lse.shape_ != q.shape_[:3] or lse.dtype.name != want:
        got = f"{lse.dtype.name} {lse.shape_}"
        raise ValueError(f"`lse` of `{call.op.name}` must be {want} of shape {q.shape_[:3]}, got {got}")
    problem.backward(call, g, result, lse.contiguous(), dq, dk, dv)
    return dq, dk, dv


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


# ---- launches ----------------------------------------------------------------------------------


class _Problem:
    """What the two passes share: sizes, mask, dropout and the argument block."""

    def __init__(self, call, q, k, v, mask, dropout_p, is_causal, scale, seed):
        batch, heads, num_rows, size = q.shape_
        _, kv_heads, num_keys, size_v = v.shape_
        self.group = groups(call, heads, kv_heads)
        self.dtype = q.dtype.name
        self.pair = 2 if blocking.pairs(self.dtype) else 1
        self.word = blocking.panel_bytes(self.dtype)
        mask, mask_strides = _mask_layout(call, mask, (batch, heads, num_rows, num_keys), _sum_dtype(q))
        self.units = batch * kv_heads
        self.heads, self.num_rows, self.num_keys = batch * heads, num_rows, num_keys
        self.size, self.size_v = size, size_v
        self.work = self.group * num_rows * num_keys * (0.55 if is_causal else 1)
        self.tensors = {block.Q: q, block.K: k, block.V: v}
        self.args = [0] * block.KEY_WORDS
        if mask is not None:
            self.args[block.MASK : block.MASK + 5] = mask.address, *mask_strides, mask.dtype.itemsize
        self.keep = (mask,)
        seed = int(seed) & ((1 << 64) - 1)
        self.args[block.BATCH : block.SEED + 1] = (
            batch, kv_heads, self.group, num_rows, num_keys, size, size_v, call.float_bits(scale_of(scale, size)),
            int(bool(is_causal)), call.float_bits(dropout_p), seed - (1 << 64) if seed >> 63 else seed,
        )  # fmt: skip

    def forward(self, call, out, lse):
        """The result, and the log-sum-exp unless `lse` is None."""
        items = -(-self.num_rows // block.TILE) * self.group
        chunks = max(1, min(items, -(-4 * call.threads // max(1, self.units))))
        areas = block.forward_areas(self.num_keys, self.size, self.size_v, self.word, self.pair)
        tensors = {block.OUT: out, block.LSE: lse}
        self.launch(call, "attention.grad.forward", tensors, chunks, areas, self.size + self.size_v)

    def backward(self, call, g, out, lse, dq, dk, dv):
        """The gradients of queries, keys and values."""
        chunks = block.backward_chunks(self.units, self.num_keys)
        areas = block.backward_areas(
            self.num_rows, self.num_keys, self.group, self.size, self.size_v, self.word, self.pair
        )
        tensors = {block.OUT: out, block.GRAD: g, block.DQ: dq, block.DK: dk, block.DV: dv, block.LSE: lse}
        self.launch(call, "attention.grad.backward", tensors, chunks, areas, 3 * self.size + 2 * self.size_v)

    def launch(self, call, kernel, tensors, chunks, areas, products):
        """Run a pass over `chunks` units for each key/value head; `products` are those of one score."""
        offsets, nbytes = areas
        args, units = [*self.args, *offsets], self.units * chunks
        tensors = {**self.tensors, **tensors}
        for at, x in tensors.items():
            if x is not None:
                args[at] = x.address
                if at != block.LSE:
                    args[at + 1 : at + 4] = x.strides_[:3]
        per_slice = max(1, -(-units // call.threads))
        scratch = call.scratch(-(-units // per_slice) * nbytes)
        args[block.CHUNKS : block.SLICE_ITEMS + 1] = chunks, scratch.address, nbytes, per_slice
        keep = (*self.keep, *tensors.values(), scratch)
        parts = None
        if chunks > 1 and block.DQ in tensors:
            parts = call.scratch(chunks * self.heads * block.part_elements(self.num_rows, self.size) * self.word)
            args[block.PARTS], keep = parts.address, (*keep, parts)
        cost = 1000 + self.work * products * _NS.get(self.dtype, 0.022) / chunks
        call.launch_at(kernel, {"T": self.dtype}, args, units, max(1, int(_GRAIN_NS / cost)), keep)
        if parts is not None:
            grain = max(1, 16 * _GRAIN_NS // max(1, chunks * self.num_rows * self.size))
            call.launch_at("attention.grad.join_parts", {"T": self.dtype}, args, self.heads, grain, keep)
