"""What the paragraphs of attention share: checks, the problem that they describe, and the reference.

Lengths, starts and block tables are read by the kernels, so a recorded call follows their new contents.
"""

import math
import operator

import numpy as np

from ..blocks.attention import BAD_BLOCK, BAD_KV_STARTS, BAD_LENGTH, BAD_Q_STARTS
from ..problems.attention import Attention

TOLERANCE = {"float32": (1e-5, 1e-5), "float64": (1e-12, 1e-12), "bfloat16": (2e-2, 2e-2), "float16": (2e-3, 2e-3)}
_INDEX_DTYPES = ("int32", "int64", "uint32")

# Where (sequence or block, token, head) stand in a shape or in strides, of which the last entry is for a missing dim.
BATCH_TOKEN_HEAD = operator.itemgetter(0, 1, 2)
BATCH_HEAD_TOKEN = operator.itemgetter(0, 2, 1)
BATCH_HEAD = operator.itemgetter(0, -1, 1)
TOKEN_HEAD = operator.itemgetter(-1, 0, 1)
HEAD_TOKEN = operator.itemgetter(-1, 1, 0)


# ---- checks ------------------------------------------------------------------------------------


def check(call, dims, scales=None, **tensors):
    """One floating dtype, the given dims; returns the tensors with a contiguous last dim.

    With `scales`, all but the first tensor are caches of int8.
    """
    dtype, checked = None, []
    for (name, x), ndim in zip(tensors.items(), dims):
        allowed = ("int8",) if scales is not None and dtype is not None else call.op.dtypes
        if not hasattr(x, "strides_") or x.dtype.name not in allowed:
            got = getattr(x, "dtype", type(x).__name__)
            beside = " beside `k_scales` and `v_scales`" if allowed == ("int8",) else ""
            raise TypeError(f"`{name}` of `{call.op.name}` must be a tensor of {', '.join(allowed)}{beside}, got {got}")
        dtype = dtype or x.dtype
        if x.dtype is not dtype and scales is None:
            raise TypeError(
                f"`{name}` of `{call.op.name}` has dtype {x.dtype.name}, the tensors before it {dtype.name}: "
                "convert it with `.to()`"
            )
        strides = x.strides_
        if len(strides) != ndim:
            raise ValueError(f"`{name}` of `{call.op.name}` must have {ndim} dims, got shape {x.shape_}")
        checked.append(x if strides[-1] == 1 or x.shape_[-1] == 1 else x.contiguous())
    return checked


def factors(call, k_cache, k_scales, v_scales):
    """The factors of int8 caches, checked: float32, one for each token and head; None without."""
    if k_scales is None and v_scales is None:
        return None
    for name, x in (("k_scales", k_scales), ("v_scales", v_scales)):
        want = tuple(k_cache.shape_[:3])
        if not hasattr(x, "strides_") or x.dtype.name != "float32" or x.shape_ != want:
            got = f"{x.dtype.name} {x.shape_}" if hasattr(x, "strides_") else type(x).__name__
            raise ValueError(
                f"`{name}` of `{call.op.name}` must be float32 of shape {want}, a factor for each block, head and "
                f"token of the cache, got {got}"
            )
    return k_scales, v_scales


def same(call, what, a, b):
    """Refuse sizes that differ."""
    if a != b:
        raise ValueError(f"`{call.op.name}` needs {what}, got {a} and {b}")


def index(call, name, x, *shape):
    """Check an index tensor; a size of None may be anything."""
    if not hasattr(x, "strides_") or x.dtype.name not in _INDEX_DTYPES:
        got = getattr(x, "dtype", type(x).__name__)
        raise TypeError(f"`{name}` of `{call.op.name}` must be an int32 or int64 tensor, got {got}")
    found = x.shape_
    if len(found) != len(shape) or (shape[0] not in (None, found[0])):
        want = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"`{name}` of `{call.op.name}` must have shape ({want}), got {found}")
    return x


def check_heads(call, query, key, value, enable_gqa):
    """Query, key and value [B, H, S, D] of sizes that go together."""
    q, k, v = check(call, (4, 4, 4), query=query, key=key, value=value)
    batch, heads, _, size = q.shape_
    same(call, "`key` and `value` of one batch, length and heads", k.shape_[:3], v.shape_[:3])
    same(call, "`query` and `key` of one batch and head size", (batch, size), (k.shape_[0], k.shape_[3]))
    if heads != k.shape_[1] and not enable_gqa:
        raise ValueError(f"`query` has {heads} heads and `key` {k.shape_[1]}: pass `enable_gqa=True` to share them")
    return q, k, v


def check_groups(call, heads, kv_heads):
    """Refuse heads that do not share key/value heads in equal groups."""
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"`{call.op.name}` needs a multiple of the {kv_heads} key/value heads in `q`, got {heads}")


def _slopes(call, slopes, heads):
    """The stride of ALiBi slopes."""
    if not hasattr(slopes, "dtype") or slopes.dtype.name != "float32" or slopes.shape_ != (heads,):
        got = f"{slopes.dtype.name} {slopes.shape_}" if hasattr(slopes, "dtype") else type(slopes).__name__
        raise ValueError(f"`alibi_slopes` of `{call.op.name}` must be float32 of shape ({heads},), got {got}")
    return slopes.strides_[0]


# ---- the problem -------------------------------------------------------------------------------


def sizes_of(x, order):
    """The sizes of a tensor in an order such as `BATCH_HEAD_TOKEN`."""
    return order((*x.shape_, 1))


def strides_of(x, order):
    """The strides of a tensor in an order."""
    return order((*x.strides_, 0))


def attend(
    call, q, k, v, order, kv_order, scale, causal=0, *, out=None, out_order=None, kv_len=None, window=0, table=None,
    starts=None, lens=None, lens_are_starts=False, slopes=None, scales=None, longest_q=None, longest_kv=None,
    names=("", "", ""),
):  # fmt: skip
    """Attention of checked tensors, into `out` or the output of the call, which is returned.

    `order` is that of the dims of queries and result, `kv_order` that of keys and values. Sequences are those of `q`,
    or lie between `starts`; each has `kv_len` keys (None: all that there are), or as many as `lens` says. `scales` are
    the factors of int8 keys and values. `names` are those of starts, lens and table, for messages.
    """
    num_seqs, q_len, heads = sizes_of(q, order)
    blocks, block_size, kv_heads = sizes_of(k, kv_order)
    check_groups(call, heads, kv_heads)
    size_v = v.shape_[-1]
    if out is None:
        out = call.out((*q.shape_[:-1], size_v), q.dtype)
    if starts is not None:
        num_seqs = starts.shape_[0] - 1
    if kv_len is None:
        kv_len = block_size if lens is None else 0
    k_scales, v_scales = scales or (None, None)
    problem = Attention(
        q.dtype.name, k.dtype.name, strides_of(q, order), strides_of(out, out_order or order),
        strides_of(k, kv_order), strides_of(v, kv_order), num_seqs, q_len, heads, blocks, block_size, kv_heads,
        q.shape_[-1], size_v, kv_len, scale, causal, window,
        None if table is None else (table.dtype.itemsize, *table.strides_, table.shape_[1]),
        None if starts is None else (starts.dtype.itemsize, starts.strides_[0]),
        None if lens is None else (lens.dtype.itemsize, lens.strides_[0]),
        lens_are_starts, None if slopes is None else _slopes(call, slopes, heads),
        None if scales is None else (strides_of(k_scales, kv_order), strides_of(v_scales, kv_order)),
        longest_q, longest_kv,
    )  # fmt: skip
    errors = None if starts is None and lens is None else _Errors(call.op.name, names, problem)
    call.run(
        problem, errors, q=q, out=out, k=k, v=v, table=table, starts=starts, lens=lens, slopes=slopes,
        k_scales=k_scales, v_scales=v_scales,
    )  # fmt: skip
    return out


class _Errors:
    """The sentences of error codes, written when one is needed."""

    __slots__ = ("words",)

    def __init__(self, *words):
        self.words = words

    def get(self, code):
        op, (starts, lens, table), p = self.words
        room = p.block_size * (1 if p.table is None else p.table[3])
        return {
            BAD_LENGTH: f"`{lens}` of `{op}` must hold lengths from 0 to {room}, the keys that fit, and does not",
            BAD_BLOCK: f"`{table}` of `{op}` must name blocks from 0 to {p.blocks - 1} for all keys, and does not",
            BAD_Q_STARTS: f"`{starts}` of `{op}` must rise from 0 to at most {p.q_len}, the tokens, and does not",
            BAD_KV_STARTS: f"`{lens}` of `{op}` must rise from 0, and does not",
        }.get(code)


def scale_of(scale, size):
    return 1.0 / math.sqrt(size) if scale is None else float(scale)


# ---- gradients of gradients --------------------------------------------------------------------


def formula(f, g, query, key, value, attn_mask, is_causal, scale):
    """The gradients of query, key and value by differentiable ops; arguments of `scaled_dot_product_attention`."""
    batch, heads, num_rows, size = query.shape_
    _, kv_heads, num_keys, size_v = value.shape_
    shape = batch, kv_heads, heads // kv_heads, num_rows
    q, grad, k, v = query.reshape(*shape, size), g.reshape(*shape, size_v), key.unsqueeze(2), value.unsqueeze(2)
    scores = f.matmul(q, k.transpose(-1, -2)) * scale
    visible = None
    if is_causal:
        visible = f.tril(f.logical_not(f.gt(scores, scores)))  # nothing is greater than itself, NaN neither
    if attn_mask is not None:
        mask = attn_mask.expand(batch, heads, num_rows, num_keys).reshape(*shape, num_keys)
        if attn_mask.dtype.name != "bool":
            scores, mask = scores + mask, mask != float("-inf")
        visible = mask if visible is None else f.where(visible, mask, False)
    if visible is not None:
        scores = f.where(visible, scores, -3e4 if query.dtype.name == "float16" else -1e30)
    probs = f.softmax(scores, -1)
    if visible is not None:
        probs = f.where(visible, probs, 0.0)
    products = f.matmul(grad, v.transpose(-1, -2))
    ds = probs * (products - f.sum(probs * products, -1, True)) * scale
    dk, dv = f.matmul(ds.transpose(-1, -2), q), f.matmul(probs.transpose(-1, -2), grad)
    return f.matmul(ds, k).reshape(query.shape_), f.sum(dk, 2), f.sum(dv, 2)


# ---- references for tests ----------------------------------------------------------------------


def reference(q, k, v, scale, causal=0, window=0, slopes=None):
    """float64 attention of q [S, H, D] over k [L, Hkv, D] and v [L, Hkv, Dv]; `causal` as in the block."""
    q_len, heads, _ = q.shape
    keys, kv_heads, _ = k.shape
    if keys == 0:
        return np.zeros((q_len, heads, v.shape[-1]))
    k, v = (np.repeat(x, heads // kv_heads, 1) for x in (k, v))
    position = np.arange(q_len)[:, None] + (keys - q_len if causal != 2 else 0)
    key = np.arange(keys)[None]
    scores = np.einsum("shd,lhd->hsl", q, k) * scale
    if slopes is not None:
        scores = scores - slopes[:, None, None] * np.abs(key - position)
    hidden = np.zeros((q_len, keys), bool)
    if causal:
        hidden |= key > position
    if window:
        hidden |= key <= position - window
    scores = np.where(hidden, -np.inf, scores)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    return np.einsum("hsl,lhd->shd", weights / np.where(total == 0, 1, total), v)


def gather(cache, table, length, axis):
    """The first `length` tokens [L, Hkv, D] of a sequence; tokens lie along `axis` of a block."""
    blocks = np.moveaxis(cache[np.asarray(table)], axis + 1, 1)
    return blocks.reshape(-1, *blocks.shape[2:])[:length]
