"""Rotary position embedding (Su et al., arXiv 2104.09864)."""

import numpy as np

from ..blocks.rope import BAD_POSITION, ROPE
from ..table.registry import op
from ._layout import check, check_factor, check_index

_NAMES = {0: "interleaved", 1: "halves"}


def _rope_ref(x, pos_ids, sin_table, cos_table, algo=1):
    half = sin_table.shape[-1]
    sin, cos = sin_table[pos_ids][..., None, :], cos_table[pos_ids][..., None, :]
    step = 2 if algo == 0 else 1
    first = slice(0, half * step, step)
    second = slice(1, 2 * half, 2) if algo == 0 else slice(half, 2 * half)
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return y


def _tables(rng, num_rows, half):
    angles = rng.uniform(0, 7, (num_rows, half))
    return np.sin(angles), np.cos(angles)


def _rope_samples(rng):
    for algo in (0, 1):
        for tokens, heads, size, half in ((3, 2, 64, 32), (1, 3, 34, 17), (5, 1, 2, 1), (17, 2, 80, 16)):
            x, ids = rng.standard_normal((tokens, heads, size)), rng.integers(0, 31, tokens)
            yield (x, ids, *_tables(rng, 31, half)), {"algo": algo}
        x, ids = rng.standard_normal((2, 3, 2, 128)), rng.integers(0, 9, (2, 3)).astype(np.int32)
        yield (x, ids, *_tables(rng, 9, 64)), {"algo": algo}
        yield (x, ids[0], *_tables(rng, 9, 64)), {"algo": algo}


def _unit_heads(x):
    """`x` with contiguous head elements."""
    return x if x.strides_[-1] == 1 or x.shape_[-1] <= 1 else x.contiguous()


def _strides(x):
    """Strides of [batch, token, head]; 0 for a batch dim that is not there."""
    return x.strides_[:-1] if len(x.shape_) == 4 else (0, *x.strides_[:-1])


def _check(call, x, name, pos_ids, sin_table, cos_table, algo):
    check(call, x, name)
    shape = x.shape_
    if len(shape) not in (3, 4):
        raise ValueError(f"`{name}` of `{call.op.name}` must be [S, H, D] or [B, S, H, D], got shape {shape}")
    tokens = shape[:-2]
    if pos_ids.shape_ != tokens and pos_ids.shape_ != tokens[-1:]:
        raise ValueError(
            f"`pos_ids` of `{call.op.name}` must have one position per token, shape {tokens}, got {pos_ids.shape_}"
        )
    if not hasattr(sin_table, "strides_") or len(sin_table.shape_) != 2 or 2 * sin_table.shape_[1] > shape[-1]:
        raise ValueError(
            f"`sin_table` of `{call.op.name}` must be a tensor [positions, R/2] with R at most the head size "
            f"{shape[-1]}, got {getattr(sin_table, 'shape_', type(sin_table).__name__)}"
        )
    check_factor(call, sin_table, "sin_table", x, sin_table.shape_)
    check_factor(call, cos_table, "cos_table", x, sin_table.shape_)
    if sin_table.dtype is not cos_table.dtype:
        raise TypeError(
            f"`sin_table` and `cos_table` of `{call.op.name}` must have one dtype, got {sin_table.dtype.name} and "
            f"{cos_table.dtype.name}"
        )
    if algo not in _NAMES:
        raise ValueError(f"`algo` of `{call.op.name}` must be 0 (GPT_J, pairs) or 1 (GPT_NEOX, halves), got {algo!r}")


def _launch(call, x, y, pos_ids, sin_table, cos_table, algo, sign=1, second=None):
    """Rotate `x` into `y`, and `second` in place, by the negative angles if `sign` is -1."""
    size = x.shape_[-1]
    batches, tokens, heads = x.shape_[0] if len(x.shape_) == 4 else 1, x.shape_[-3], x.shape_[-2]
    sin, cos = _unit_heads(sin_table), _unit_heads(cos_table)
    num_rows, half = sin.shape_
    pos_batch, pos_token = pos_ids.strides_ if len(pos_ids.shape_) == 2 else (0, pos_ids.strides_[0])
    more, heads2 = {}, 0
    if second is not None:
        heads2, strides = second.shape_[-2], _strides(second)
        more = {"x2": second, "y2": second, "heads2": heads2, "x2_strides": strides, "y2_strides": strides}
    block = ROPE(
        positions=pos_ids, sin=sin, cos=cos, x=x, y=y, tokens=tokens, size=size, half=half, position_batch=pos_batch,
        position_token=pos_token, rows=num_rows, sin_stride=sin.strides_[0], cos_stride=cos.strides_[0], sign=sign,
        heads=heads, x_strides=_strides(x), y_strides=_strides(y), **more,
    )  # fmt: skip
    types = {"T": x.dtype.name, "C": sin.dtype.name, "P": pos_ids.dtype.name}
    sentence = f"`pos_ids` must be from 0 to {num_rows - 1}, the rows of `sin_table`: make the tables longer"
    units, unit_size = batches * tokens, (heads + heads2) * size
    call.launch(f"attention.rope.rope_{_NAMES[algo]}", types, block, units, unit_size, {BAD_POSITION: sentence})


@op(ref=_rope_ref, samples=_rope_samples)
def rope(call, x, pos_ids, sin_table, cos_table, algo=1):
    """`x` with each head's pairs of elements turned by the angles of its token's position.

    `x` [S, H, D] or [B, S, H, D]; `pos_ids` [S] or [B, S], int32 or int64; the tables [positions, R/2]
    of the dtype of `x`, or float32 beside a 16-bit `x`. (y0, y1) = (x0 cos - x1 sin, x0 sin + x1 cos) for
    pairs (2i, 2i + 1) with `algo` 0 (GPT_J), or (i, i + R/2) with 1 (GPT_NEOX); elements from R on are
    copied. `out` may be `x`. Raises ValueError for a position outside of the tables.
    """
    check_index(call, pos_ids, "pos_ids")
    _check(call, x, "x", pos_ids, sin_table, cos_table, algo)
    source = _unit_heads(x)
    y = call.out(x.shape_, x.dtype, overlap="same")
    _launch(call, source, y, pos_ids, sin_table, cos_table, algo)
    return y


@rope.grad("x")
def _(f, g, pos_ids, sin_table, cos_table, algo):
    return f.rope_backward(g, pos_ids, sin_table, cos_table, algo)


def _rope_backward_ref(grad, pos_ids, sin_table, cos_table, algo=1):
    return _rope_ref(grad, pos_ids, -sin_table, cos_table, algo)


@op(ref=_rope_backward_ref, samples=_rope_samples)
def rope_backward(call, grad, pos_ids, sin_table, cos_table, algo=1):
    """The gradient of `rope`: pairs turned back, by the negative angles; `out` may be `grad`."""
    check_index(call, pos_ids, "pos_ids")
    _check(call, grad, "grad", pos_ids, sin_table, cos_table, algo)
    source = _unit_heads(grad)
    y = call.out(grad.shape_, grad.dtype, overlap="same")
    _launch(call, source, y, pos_ids, sin_table, cos_table, algo, -1)
    return y


@rope_backward.grad("grad")
def _(f, g, pos_ids, sin_table, cos_table, algo):
    return f.rope(g, pos_ids, sin_table, cos_table, algo)


def _rope_qk_ref(q, k, pos_ids, sin_table, cos_table, algo=1):
    return tuple(_rope_ref(x, pos_ids, sin_table, cos_table, algo) for x in (q, k))


def _rope_qk_samples(rng):
    for algo in (0, 1):
        ids = rng.integers(0, 31, 5)
        q, k = rng.standard_normal((5, 4, 64)), rng.standard_normal((5, 2, 64))
        yield (q, k, ids, *_tables(rng, 31, 32)), {"algo": algo}


@op(ref=_rope_qk_ref, samples=_rope_qk_samples, outputs=(), gradient="missing")
def rope_qk(call, q, k, pos_ids, sin_table, cos_table, algo=1):
    """`rope` of queries and keys in place, in one launch; returns (q, k).

    `q` [S, H, D] and `k` [S, Hkv, D] (or both with a batch dim) of one dtype, with contiguous heads; the
    rest as for `rope`, which programs that want gradients call instead.
    """
    check_index(call, pos_ids, "pos_ids")
    for name, x in (("q", q), ("k", k)):
        _check(call, x, name, pos_ids, sin_table, cos_table, algo)
        if (x.shape_[-1] > 1 and x.strides_[-1] != 1) or any(s == 0 for n, s in zip(x.shape_, x.strides_) if n > 1):
            raise ValueError(
                f"`{name}` of `rope_qk` is changed in place and needs contiguous heads of its own memory, got strides "
                f"{x.strides_}: call `.contiguous()` on it first"
            )
    if q.dtype is not k.dtype or q.shape_[:-2] != k.shape_[:-2] or q.shape_[-1] != k.shape_[-1]:
        raise ValueError(
            f"`q` and `k` of `rope_qk` may differ in the number of heads only, got {q.shape_} {q.dtype.name} and "
            f"{k.shape_} {k.dtype.name}"
        )
    _launch(call, q, q, pos_ids, sin_table, cos_table, algo, second=k)
    return q, k
