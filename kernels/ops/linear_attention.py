"""Layers with states as InfiniCore calls them: short convolutions, gated delta rules, Mamba.

Written with other ops, so their derivatives follow. Computed in float32 (float64 for float64), rounded once at the end.
"""

import itertools

import numpy as np

from ..table.composite import composite
from ._layout import check, check_index
from .recurrent import _delta_inputs, _delta_ref, _selective_ref, _selective_samples

_SUMS = {"float32": (2e-4, 1e-4), "bfloat16": (4e-2, 6e-2), "float16": (1e-2, 1e-2)}


def _wide(*tensors):
    """The tensors as float32, or as they are where the first is float64."""
    dtype = "float64" if tensors[0].dtype.name == "float64" else "float32"
    return [None if x is None else x.to(dtype=dtype) for x in tensors]


def _keep_states(f, pool, states, index):
    """Write final states to their slots of the pool, where the caller names these."""
    if index is not None:
        f.put_states(pool, states.detach().to(dtype=pool.dtype), index)


# ---- short convolution -------------------------------------------------------------------------


def _conv_ref(qkv, conv_state, weight, bias=None, *, cu_seqlens=None, initial_state_indices=None):
    starts = [i * qkv.shape[1] for i in range(qkv.shape[0] + 1)] if cu_seqlens is None else cu_seqlens
    tokens, out = qkv.reshape(-1, qkv.shape[-1]), np.zeros(qkv.shape)
    flat = out.reshape(tokens.shape)
    for n in range(len(starts) - 1):
        slot = n if initial_state_indices is None else initial_state_indices[n]
        history = np.concatenate([conv_state[slot].T, tokens[starts[n] : starts[n + 1]]])
        for i in range(starts[n + 1] - starts[n]):
            flat[starts[n] + i] = (history[i : i + 4] * weight[:, 0].T).sum(0) + (0 if bias is None else bias)
    return out


def _conv_samples(rng):
    for batch, length, channels in ((2, 5, 4), (1, 1, 17), (3, 2, 9)):
        sizes = (batch, length, channels), (batch, channels, 3), (channels, 1, 4), (channels,)
        yield tuple(rng.standard_normal(s) for s in sizes), {}
    sizes = (1, 7, 6), (4, 6, 3), (6, 1, 4)
    packed = {"cu_seqlens": np.array([0, 2, 2, 7], np.int32), "initial_state_indices": np.array([3, 0, 3])}
    yield tuple(rng.standard_normal(s) for s in sizes), packed


@composite(ref=_conv_ref, samples=_conv_samples, tolerance=_SUMS)
def causal_conv1d(
    f, qkv, conv_state, weight, bias=None, *, cu_seqlens=None, initial_state_indices=None, final_state_indices=None
):
    """Each channel convolved with the last 4 tokens: `qkv` [B, T, C], or packed [1, T, C] with `cu_seqlens` [N + 1].

    `weight` [C, 1, 4], the newest token last, `bias` [C] or None. `conv_state` [N or slots, C, 3] has what came before
    each sequence: state n, or `initial_state_indices[n]`. With `final_state_indices` [N] the last 3 tokens are written
    to these slots (none for negative ones). The result has the shape and dtype of `qkv`.
    """
    check(f, qkv, "qkv")
    if len(qkv.shape_) != 3:
        raise ValueError(f"`qkv` of `causal_conv1d` must be [B, T, C], got shape {qkv.shape_}")
    batch, length, channels = qkv.shape_
    for name, x, shape in (("weight", weight, (channels, 1, 4)), ("bias", bias, (channels,))):
        if x is not None and x.shape_ != shape:
            raise ValueError(f"`{name}` of `causal_conv1d` must have shape {shape}, got {x.shape_}")
    if len(conv_state.shape_) != 3 or conv_state.shape_[1:] != (channels, 3):
        raise ValueError(f"`conv_state` of `causal_conv1d` must be [slots, {channels}, 3], got {conv_state.shape_}")
    x, state, weight, bias = _wide(qkv, conv_state, weight, bias)
    if initial_state_indices is not None:
        check_index(f, initial_state_indices, "initial_state_indices")
        state = f.index_select(state, 0, initial_state_indices)
    if cu_seqlens is None:
        if state.shape_[0] < batch:
            raise ValueError(f"`conv_state` of `causal_conv1d` must have {batch} states, got {state.shape_[0]}")
        history = f.cat([state.narrow(0, 0, batch).transpose(1, 2), x], 1)
        taps = [history.narrow(1, j, length) for j in range(4)]
        last = history.narrow(1, length, 3)
    else:
        first, ends = _packed_taps(f, cu_seqlens, batch, length, state.shape_[0], x.device)
        rows = f.cat([state.narrow(0, 0, len(ends)).transpose(1, 2).reshape(-1, channels), x.reshape(-1, channels)], 0)
        taps = [f.index_select(rows, 0, f.from_array(places, x.device)).reshape(x.shape_) for places in first]
        last = f.index_select(rows, 0, f.from_array(ends.reshape(-1), x.device)).reshape(len(ends), 3, channels)
    y = sum(tap * weight.select(2, j).reshape(channels) for j, tap in enumerate(taps))
    y = y if bias is None else y + bias
    _keep_states(f, conv_state, last.transpose(1, 2).contiguous(), final_state_indices)
    return y.to(dtype=qkv.dtype)


def _packed_taps(f, cu_seqlens, batch, length, slots, device):
    """Rows that each token reads (four arrays), and the last three of each sequence, behind 3 rows of each state."""
    check_index(f, cu_seqlens, "cu_seqlens")
    starts = cu_seqlens.tolist()
    rises = all(a <= b for a, b in itertools.pairwise(starts))
    if batch != 1 or len(starts) < 1 or starts[0] != 0 or starts[-1] != length or not rises:
        raise ValueError(f"`cu_seqlens` of `causal_conv1d` must rise from 0 to the {length} tokens of one batch")
    count = len(starts) - 1
    if slots < count:
        raise ValueError(f"`conv_state` of `causal_conv1d` must have {count} states, got {slots}")
    row = lambda n, i: 3 * n + i if i < 3 else 3 * count + starts[n] + i - 3  # i counts from the state's first
    tokens = [(n, i) for n in range(count) for i in range(starts[n + 1] - starts[n])]
    taps = [np.array([row(n, i + j) for n, i in tokens], np.int64) for j in range(4)]
    ends = [[row(n, starts[n + 1] - starts[n] + j) for j in range(3)] for n in range(count)]
    return taps, np.array(ends, np.int64).reshape(count, 3)


# ---- delta rules -------------------------------------------------------------------------------


def _unit(f, x, is_wanted):
    """Rows of length 1, as models of this kind have their keys."""
    return x * f.rsqrt(f.sum(x * x, -1, True) + 1e-6) if is_wanted else x


def _unit_ref(x, is_wanted):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) if is_wanted else x


def _read_slots(f, initial, final):
    """The slot of each sequence; -1 where either index is negative."""
    for name, index in (("initial_state_indices", initial), ("final_state_indices", final)):
        if index is not None:
            check_index(f, index, name)
    if initial is None or final is None:
        return initial
    initial, final = initial.to(dtype="int64"), final.to(dtype="int64")
    return f.where(f.lt(final, 0), -1, initial)


def _rule(f, q, k, v, decay, beta, state, cu_seqlens, initial, final):
    """`delta_rule` in wide floats; final states go to their slots, the result has the dtype of `q`."""
    wide = _wide(q, k, v, decay, beta, state)
    out, states = f.delta_rule(*wide, cu_seqlens, _read_slots(f, initial, final))
    _keep_states(f, state, states, final)
    return out


def _gated_ref(q, k, v, g, beta, initial_state, *, use_qk_l2norm=False, **options):
    index = options.get("initial_state_indices")
    q, k = _unit_ref(q, use_qk_l2norm) / q.shape[-1] ** 0.5, _unit_ref(k, use_qk_l2norm)
    return _delta_ref(q, k, v, np.exp(g), beta, initial_state, options.get("cu_seqlens"), index)[0]


def _recurrent_samples(rng):
    for norm in (False, True):
        q, k, v, decay, beta, state = _delta_inputs(rng, 2, 5, 2, 4, 16, 7, 2)
        yield (q, k, v, np.log(decay), beta, state), {"use_qk_l2norm": norm}


def _chunk_samples(rng):
    yield from _recurrent_samples(rng)
    q, k, v, decay, beta, state = _delta_inputs(rng, 1, 7, 1, 2, 8, 5, 4)
    packed = {"cu_seqlens": np.array([0, 3, 7], np.int32), "initial_state_indices": np.array([3, 0], np.int32)}
    yield (q, k, v, np.log(decay), beta, state), packed


def _gated(f, q, k, v, g, beta, state, cu_seqlens, initial, final, norm):
    check(f, q, "q")
    dtype = q.dtype
    q, k, v, g, beta = _wide(q, k, v, g, beta)
    q, k = _unit(f, q, norm) * (q.shape_[-1] ** -0.5), _unit(f, k, norm)
    return _rule(f, q, k, v, f.exp(g), beta, state, cu_seqlens, initial, final).to(dtype=dtype)


@composite(ref=_gated_ref, samples=_recurrent_samples, tolerance=_SUMS)
def recurrent_gated_delta_rule(
    f, q, k, v, g, beta, initial_state, *, initial_state_indices=None, final_state_indices=None, use_qk_l2norm=False
):
    """The gated delta rule (arXiv 2412.06464): q, k [B, T, Hk, Dk], v [B, T, Hv, Dv] -> [B, T, Hv, Dv] in q's dtype.

    The state decays by exp(g) and learns by `beta` (both [B, T, Hv]); queries are scaled by 1/sqrt(Dk), and with
    `use_qk_l2norm` queries and keys have length 1. `initial_state` [B, Hv, Dv, Dk], or a pool from which
    `initial_state_indices` [B] choose; final states are written to the slots `final_state_indices` [B], if given,
    once all are read. Sequences with a negative index are padding: zeros.
    """
    indices = (initial_state_indices, final_state_indices)
    return _gated(f, q, k, v, g, beta, initial_state, None, *indices, use_qk_l2norm)


@composite(ref=_gated_ref, samples=_chunk_samples, tolerance=_SUMS)
def chunk_gated_delta_rule(
    f, q, k, v, g, beta, initial_state, *, cu_seqlens=None, initial_state_indices=None, final_state_indices=None,
    use_qk_l2norm=False, chunk_size=64,
):  # fmt: skip
    """`recurrent_gated_delta_rule` for prompts, also packed: with `cu_seqlens` [N + 1], the batch is 1.

    `chunk_size` says how others cut the time; here it changes nothing.
    """
    if not isinstance(chunk_size, int) or chunk_size < 1:
        raise ValueError(f"`chunk_size` of `chunk_gated_delta_rule` must be at least 1, got {chunk_size!r}")
    indices = (initial_state_indices, final_state_indices)
    return _gated(f, q, k, v, g, beta, initial_state, cu_seqlens, *indices, use_qk_l2norm)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _kimi_ref(q, k, v, g, beta, A_log, dt_bias, state, *, scale=1.0, lower_bound=-5.0, use_qk_l2norm=True, **options):
    decay = np.exp(lower_bound * _sigmoid(np.exp(A_log)[:, None] * (g + dt_bias)))
    q, k = _unit_ref(q, use_qk_l2norm) * scale, _unit_ref(k, use_qk_l2norm)
    index = options.get("initial_state_indices")
    return _delta_ref(q, k, v, decay, _sigmoid(beta), state, options.get("cu_seqlens"), index)[0]


def _kimi_samples(rng):
    for shape, options in (((2, 3, 2, 8), {}), ((1, 5, 2, 8), {"cu_seqlens": np.array([0, 2, 5])})):
        rows = [rng.standard_normal(shape) for _ in range(4)]
        rest = (rng.standard_normal(s) for s in (shape[:3], (2,), (2, 8), (2, 2, 8, 8)))
        yield (*rows, *rest), {"scale": 0.3, **options}


@composite(ref=_kimi_ref, samples=_kimi_samples, tolerance=_SUMS)
def kimi_delta_attention(
    f, q, k, v, g, beta, A_log, dt_bias, initial_state, *, cu_seqlens=None, initial_state_indices=None,
    final_state_indices=None, scale=1.0, lower_bound=-5.0, use_qk_l2norm=True,
):  # fmt: skip
    """The delta rule with a decay for each key (Kimi Linear, arXiv 2510.26692): q, k, g [B, T, H, D], v [B, T, H, Dv].

    The state decays by exp(lower_bound sigmoid(exp(A_log) (g + dt_bias))), with `A_log` [H] and `dt_bias` [H, D], and
    learns by sigmoid(beta), `beta` [B, T, H]. Queries are scaled by `scale`. States, indices, `cu_seqlens` and
    `use_qk_l2norm` as for `chunk_gated_delta_rule`.
    """
    check(f, q, "q")
    dtype, heads = q.dtype, q.shape_[2] if len(q.shape_) == 4 else 0
    if A_log.shape_ != (heads,) or dt_bias.shape_ != (heads, *q.shape_[3:]):
        raise ValueError(
            f"`A_log` and `dt_bias` of `kimi_delta_attention` must be [H] and [H, D] beside `q` {q.shape_}, got "
            f"{A_log.shape_} and {dt_bias.shape_}"
        )
    q, k, v, g, beta, rate, shift = _wide(q, k, v, g, beta, A_log, dt_bias)
    decay = f.exp(f.sigmoid(f.exp(rate).reshape(heads, 1) * (g + shift)) * float(lower_bound))
    q, k = _unit(f, q, use_qk_l2norm) * float(scale), _unit(f, k, use_qk_l2norm)
    states = (initial_state, cu_seqlens, initial_state_indices, final_state_indices)
    return _rule(f, q, k, v, decay, f.sigmoid(beta), *states).to(dtype=dtype)


def _softplus(x, beta=1.0, threshold=20.0):
    return np.where(beta * x > threshold, x, np.log1p(np.exp(np.minimum(beta * x, threshold))) / beta)


def _gating_ref(A_log, a, b, dt_bias, beta=1.0, threshold=20.0):
    return -np.exp(A_log) * _softplus(a + dt_bias, beta, threshold), _sigmoid(b)


def _gating_samples(rng):
    for shape in ((2, 1, 8), (2, 3, 17)):
        hidden = shape[-1:]
        yield tuple(rng.standard_normal(s) for s in (hidden, shape, shape, hidden)), {}
    yield tuple(3 * rng.standard_normal(s) for s in ((5,), (4, 5), (4, 5), (5,))), {"beta": 2.0, "threshold": 3.0}


@composite(ref=_gating_ref, samples=_gating_samples, tolerance={"bfloat16": (1e-5, 1e-5), "float16": (1e-5, 1e-5)})
def fused_gated_delta_net_gating(f, A_log, a, b, dt_bias, beta=1.0, threshold=20.0):
    """(g, beta) for a gated delta rule: -exp(A_log) softplus(a + dt_bias), and sigmoid(b), in float32.

    `a`, `b` [..., H], `A_log`, `dt_bias` [H]; `beta` and `threshold` are those of softplus. float64 stays float64.
    """
    for name, x in (("A_log", A_log), ("a", a), ("b", b), ("dt_bias", dt_bias)):
        check(f, x, name)
    a, b, A_log, dt_bias = _wide(a, b, A_log, dt_bias)
    return f.neg(f.exp(A_log)) * f.softplus(a + dt_bias, beta, threshold), f.sigmoid(b)


# ---- Mamba -------------------------------------------------------------------------------------


def _mamba_ref(x, dt, b, c, a_log, d, gate, dt_bias, state):
    y, _ = _selective_ref(x, _softplus(dt + dt_bias), -np.exp(a_log), b, c, state)
    return (y + d * x) * gate * _sigmoid(gate)


def _mamba_samples(rng):
    for (x, dt, a, b, c, state), _ in _selective_samples(rng):
        channels = x.shape[-1:]
        more = rng.standard_normal(channels), rng.standard_normal(x.shape), rng.standard_normal(channels)
        yield (x, dt, b, c, np.log(-a), *more, state), {}


@composite(ref=_mamba_ref, samples=_mamba_samples, tolerance=_SUMS)
def mamba_selective_scan(f, x, dt, b, c, a_log, d, gate, dt_bias, state):
    """The selective scan of Mamba (arXiv 2312.00752) and its gate: (scan + d x) silu(gate), [B, T, C] as `x`.

    `x`, `dt`, `gate` [B, T, C], `b`, `c` [B, T, N], `a_log` [C, N], `d`, `dt_bias` [C]; the steps are
    softplus(dt + dt_bias), the rates -exp(a_log). `state` [B, C, N] (float32) is the state at the beginning, and is
    overwritten by that at the end, unless a gradient of it is wanted.
    """
    check(f, x, "x")
    wide = _wide(x, dt, b, c, a_log, d, gate, dt_bias, state)
    x32, dt, b, c, a_log, d, gate, dt_bias, h = wide
    y, final = f.selective_scan(x32, f.softplus(dt + dt_bias), f.neg(f.exp(a_log)), b, c, h)
    if not state.tracked:
        state.copy_(final.detach().to(dtype=state.dtype))
    return ((y + d * x32) * f.silu(gate)).to(dtype=x.dtype)


# ---- RWKV --------------------------------------------------------------------------------------


def _rwkv5_ref(receptance, key, value, time_decay, time_faaaa, state):
    batch, length, _ = key.shape
    heads, size = time_decay.shape
    r, k, v = (x.reshape(batch, length, heads, size) for x in (receptance, key, value))
    h, w, y = state[:batch].copy(), np.exp(-np.exp(time_decay))[..., None], np.zeros(r.shape)
    for t in range(length):
        pair = k[:, t, :, :, None] * v[:, t, :, None]
        y[:, t] = np.einsum("bhi,bhij->bhj", r[:, t], time_faaaa[..., None] * pair + h)
        h = pair + w * h
    return y.reshape(key.shape)


def _rwkv5_samples(rng):
    for batch, length, heads, size in ((1, 5, 2, 4), (2, 1, 1, 8)):
        tokens = tuple(rng.standard_normal((batch, length, heads * size)) for _ in range(3))
        of_heads = tuple(rng.standard_normal((heads, size)) for _ in range(2))
        yield (*tokens, *of_heads, rng.standard_normal((batch, heads, size, size))), {}


@composite(ref=_rwkv5_ref, samples=_rwkv5_samples, tolerance=_SUMS)
def rwkv5_wkv(f, receptance, key, value, time_decay, time_faaaa, state):
    """The time mixing of RWKV-5 (arXiv 2404.05892): y_t = r_t (u k_t^T v_t + S), then S = k_t^T v_t + w S, [B, T, H D].

    `receptance`, `key`, `value` [B, T, H D]; `time_faaaa` [H, D] is u, and w = exp(-exp(`time_decay`)) [H, D]. `state`
    [B or more, H, D, D] (float32) is S at the beginning, and is overwritten by that at the end, unless a gradient of it
    is wanted.
    """
    for name, x in (("receptance", receptance), ("key", key), ("value", value)):
        check(f, x, name)
        if x.shape_ != key.shape_ or len(x.shape_) != 3:
            raise ValueError(f"`{name}` of `rwkv5_wkv` must be [B, T, H D] as `key` {key.shape_}, got {x.shape_}")
    (batch, length, hidden), shape = key.shape_, time_decay.shape_
    square = state.shape_[1:] == (*shape, shape[-1]) and state.shape_[0] >= batch
    if len(shape) != 2 or time_faaaa.shape_ != shape or shape[0] * shape[1] != hidden or not square:
        raise ValueError(
            f"`time_decay`, `time_faaaa` [H, D] and `state` [B, H, D, D] of `rwkv5_wkv` must fit `key` {key.shape_}, "
            f"got {shape}, {time_faaaa.shape_} and {state.shape_}"
        )
    r, k, v, decay, first, h = _wide(receptance, key, value, time_decay, time_faaaa, state.narrow(0, 0, batch))
    r, k, v = (x.reshape(batch, length, *shape) for x in (r, k, v))
    keep, first, outs = f.exp(f.neg(f.exp(decay))).unsqueeze(-1), first.unsqueeze(-1), []
    for t in range(length):
        pair = k.select(1, t).unsqueeze(-1) * v.select(1, t).unsqueeze(-2)
        outs.append(f.matmul(r.select(1, t).unsqueeze(-2), first * pair + h).reshape(batch, hidden))
        h = pair + keep * h
    if not state.tracked:
        state.narrow(0, 0, batch).copy_(h.detach().to(dtype=state.dtype))
    return (f.stack(outs, 1) if outs else f.mul(key, 1.0)).to(dtype=key.dtype)
