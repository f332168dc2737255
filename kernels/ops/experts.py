"""Mixtures of experts: routing, and feed-forward layers of which each token takes some (Shazeer et al., 1701.06538)."""

import itertools

import numpy as np

from ..table.composite import composite
from ._layout import check, check_index

_FLOAT32 = {"float32": (1e-5, 1e-6), "bfloat16": (1e-5, 1e-6), "float16": (1e-5, 1e-6), "float64": (1e-10, 1e-10)}
_PRODUCTS = {"float32": (1e-4, 1e-4), "bfloat16": (4e-2, 1e-1), "float16": (1e-2, 2e-2)}

# ---- routing -----------------------------------------------------------------------------------


def _topk_softmax_ref(x, topk, norm=0, bias=None, softcap=0.0):
    x = softcap * np.tanh(x / softcap) if softcap else x
    p = np.exp(x - x.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    chosen = np.argsort(-(p if bias is None else p + bias), -1, kind="stable")[:, :topk]
    weights = np.take_along_axis(p, chosen, -1)
    return weights / weights.sum(-1, keepdims=True) if norm else weights, chosen.astype(np.int32)


def _router_samples(rng):
    for shape, k, norm in (((1, 10), 7, 1), ((8, 20), 4, 1), ((4, 16), 3, 0), ((0, 8), 2, 1)):
        values = rng.permuted(np.arange(np.prod(shape)).reshape(shape) % 64, axis=-1) / 16 - 1.5  # no two alike in bf16
        yield (values, k, norm), {}


@composite(ref=_topk_softmax_ref, samples=_router_samples, tolerance=_FLOAT32)
def topksoftmax(f, x, topk, norm=0):
    """The `topk` largest of the softmax of each row of `x` [T, E]: (weights float32 [T, k], experts int32 [T, k]).

    `norm` divides the weights of a row by their sum. float64 stays float64.
    """
    return _routed(f, x, topk, norm, None, 0.0)


def _bias_samples(rng):
    for (x, k, norm), _ in _router_samples(rng):
        yield (x, k, norm), {"bias": np.linspace(0, 0.5, x.shape[1]), "softcap": 30.0}


@composite(ref=_topk_softmax_ref, samples=_bias_samples, tolerance=_FLOAT32)
def moe_topk_softmax(f, x, topk, norm=False, bias=None, softcap=0.0):
    """`topksoftmax` of softcap * tanh(x / softcap) (0: of `x`), where experts are chosen by weight + `bias` [E]."""
    return _routed(f, x, topk, norm, bias, softcap)


def _routed(f, x, topk, norm, bias, softcap):
    check(f, x, "x")
    if len(x.shape_) != 2 or not 0 < topk <= x.shape_[1]:
        raise ValueError(
            f"`topk` of `{f.op.name}` must be from 1 to the experts of `x` [T, E], got {topk} for {x.shape_}"
        )
    x = x if x.dtype.name == "float64" else x.to(dtype="float32")
    weights = f.softmax(f.tanh(x / softcap) * softcap if softcap else x, -1)
    if bias is None:
        weights, chosen = f.topk(weights, topk, -1)
    else:
        chosen = f.topk((weights + bias.to(dtype=weights.dtype)).detach(), topk, -1)[1]
        weights = f.gather(weights, -1, chosen)
    return weights / f.sum(weights, -1, True) if norm else weights, chosen.to(dtype="int32")


# ---- layers ------------------------------------------------------------------------------------


def _mixture(f, input, experts, scales, count, layer):
    """The sum over the experts [T, K] of a token of scale * layer(expert, its rows), in float32.

    The rows of an expert are brought together; numbers that name no expert add nothing.
    """
    check(f, input, "input")
    check_index(f, experts, "experts")
    if len(input.shape_) != 2 or len(experts.shape_) != 2 or experts.shape_[0] != input.shape_[0]:
        raise ValueError(
            f"`{f.op.name}` needs tokens [T, H] and experts [T, K], got {input.shape_} and {experts.shape_}"
        )
    if scales.shape_ != experts.shape_:
        raise ValueError(f"`{f.op.name}` needs a scale for each of the experts {experts.shape_}, got {scales.shape_}")
    ids = np.array(experts.tolist(), np.int64).reshape(-1)
    order = np.argsort(ids, kind="stable")
    starts = np.searchsorted(ids[order], np.arange(count + 1))
    wide = "float64" if input.dtype.name == "float64" else "float32"
    order = order[starts[0] : starts[-1]]
    rows = f.from_array(order // experts.shape_[1], input.device)
    x, starts = f.index_select(input, 0, rows), starts - starts[0]
    pieces = [layer(e, x[a:b]) for e, (a, b) in enumerate(itertools.pairwise(starts)) if b > a]
    own = f.index_select(scales.reshape(-1), 0, f.from_array(order, input.device))
    y = f.cat(pieces or [x], 0).to(dtype=wide) * own.to(dtype=wide).unsqueeze(-1)
    return f.index_add(y.new_zeros((input.shape_[0], y.shape_[1])), 0, rows, y).to(dtype=input.dtype)


def _layer_ref(x, w1, w2, b1, b2, gated):
    h = w1 @ x + (0 if b1 is None else b1)
    gate, up = (h[: len(h) // 2], h[len(h) // 2 :]) if gated else (h, 1)
    return w2 @ (gate / (1 + np.exp(-gate)) * up) + (0 if b2 is None else b2)


def _fused_ref(input, experts, scales, w1, w2, *, b1=None, b2=None, activation=1):
    out = np.zeros(input.shape)
    for t, k in np.ndindex(*experts.shape):
        e = experts[t, k]
        if 0 <= e < len(w1):
            biases = (b[e] if b is not None else None for b in (b1, b2))
            out[t] += scales[t, k] * _layer_ref(input[t], w1[e], w2[e], *biases, activation == 1)
    return out


def _fused_samples(rng):
    for activation, biased in ((1, True), (0, False)):
        x, w2 = rng.standard_normal((7, 6)), rng.standard_normal((4, 6, 5))
        w1 = rng.standard_normal((4, 5 * (1 + activation), 6))
        experts = rng.integers(-1, 5, (7, 2)).astype(np.int32)
        biases = {"b1": rng.standard_normal(w1.shape[:2]), "b2": rng.standard_normal((4, 6))} if biased else {}
        yield (x, experts, rng.uniform(0, 1, (7, 2)), w1, w2), {"activation": activation, **biases}
    yield (x, 0 * experts - 1, rng.uniform(0, 1, (7, 2)), w1, w2), {"activation": 0}


def _check_activation(f, activation):
    if activation not in (0, 1):
        raise ValueError(f"`activation` of `{f.op.name}` must be 0 (silu) or 1 (swiglu), got {activation!r}")


@composite(ref=_fused_ref, samples=_fused_samples, tolerance=_PRODUCTS)
def fused_moe(f, input, token_selected_experts, token_final_scales, w1, w2, *, b1=None, b2=None, activation=1):
    """Each token's sum over its experts e of scale * (w2[e] act(w1[e] x + b1[e]) + b2[e]): `input` [T, H] -> [T, H].

    `token_selected_experts` [T, K] int32 or int64 (others than 0 to E - 1 add nothing), `token_final_scales` [T, K],
    `w1` [E, 2 I, H] for `activation` 1 (silu of the first half times the second), [E, I, H] for 0 (silu), `w2`
    [E, H, I], `b1` and `b2` [E, rows]. Sums over experts are float32.
    """
    _check_activation(f, activation)
    count, hidden = w1.shape_[0], input.shape_[-1]
    inner = w1.shape_[1] // (1 + activation)
    if len(w1.shape_) != 3 or w1.shape_[2] != hidden or w2.shape_ != (count, hidden, inner):
        raise ValueError(
            f"`w1` and `w2` of `{f.op.name}` must be [E, {1 + activation} * I, {hidden}] and [E, {hidden}, I], got "
            f"{w1.shape_} and {w2.shape_}"
        )
    one, two = w1.unbind(0), w2.unbind(0)
    bias1, bias2 = ([None] * count if b is None else b.unbind(0) for b in (b1, b2))

    def layer(e, x):
        h = f.linear(x, one[e], bias1[e])
        return f.linear(f.silu_and_mul(h) if activation else f.silu(h), two[e], bias2[e])

    return _mixture(f, input, token_selected_experts, token_final_scales, count, layer)


def _dense_ref(hidden_states, w13, w2, topk_weights, topk_ids, *aligned):
    return _fused_ref(hidden_states, topk_ids, topk_weights, w13, w2)


def _dense_samples(rng):
    (x, experts, scales, w1, w2), _ = next(_fused_samples(rng))
    yield (x, w1, w2, scales, experts, np.zeros(28, np.int32), np.zeros(7, np.int32), np.array(28, np.int32)), {}


@composite(ref=_dense_ref, samples=_dense_samples, tolerance=_PRODUCTS)
def moe_fused_dense(
    f, hidden_states, w13, w2, topk_weights, topk_ids, sorted_token_ids, expert_ids, num_tokens_post_padded
):
    """`fused_moe` of swiglu experts, by InfiniCore's other name and order of arguments.

    The last three, which say how a GPU sorts the tokens into blocks of one expert, are not needed here.
    """
    for name, x in (("sorted_token_ids", sorted_token_ids), ("expert_ids", expert_ids)):
        check_index(f, x, name)
    return f.fused_moe(hidden_states, topk_ids, topk_weights, w13, w2)


def _e2m1(packed, scale):
    packed, table = packed.astype(np.uint8), np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)
    values = table[nibbles & 7] * np.where(nibbles & 8, -1, 1)
    return values * np.repeat(2.0 ** (scale.astype(np.float64) - 127), 32, -1)


def _mxfp4_ref(input, packed_weight, weight_scale, bias=None, alpha=1.0):
    return alpha * input @ _e2m1(packed_weight, weight_scale).T + (0 if bias is None else bias)


def _packed(rng, *shape, exponent=122):
    packed = rng.integers(0, 256, (*shape[:-1], shape[-1] // 2), np.uint8)
    return packed, rng.integers(exponent, exponent + 7, (*shape[:-1], shape[-1] // 32), np.uint8)


def _mxfp4_samples(rng):
    yield (rng.standard_normal((5, 64)), *_packed(rng, 33, 64)), {}
    yield (rng.standard_normal((2, 3, 32)), *_packed(rng, 7, 32), rng.standard_normal(7)), {"alpha": 0.5}


_NARROW = ("float32", "bfloat16", "float16")


@composite(dtypes=_NARROW, ref=_mxfp4_ref, samples=_mxfp4_samples, tolerance=_PRODUCTS)
def linear_mxfp4(f, input, packed_weight, weight_scale, bias=None, alpha=1.0):
    """`alpha * input @ W.T + bias` for a weight W [N, K] in MXFP4 (OCP Microscaling 1.0), [..., K] -> [..., N].

    `packed_weight` uint8 [N, K / 2] has two E2M1 numbers a byte, the low one first; `weight_scale` uint8 [N, K / 32]
    the exponents + 127 of 32 neighbours. The weight is packed anew in each call: for one that stays, use `pack_mxfp4`
    and `linear_quantized`. Backward through it is an error.
    """
    check(f, input, "input")
    y = f.linear_quantized(input * alpha, f.pack_mxfp4(packed_weight, weight_scale), activations="float")
    return y if bias is None else y + bias


def _fused_mxfp4_ref(input, experts, weights, w13, s13, w2, s2, activation=1):
    return _fused_ref(input, experts, weights, _e2m1(w13, s13), _e2m1(w2, s2), activation=activation)


def _fused_mxfp4_samples(rng):
    experts, weights = rng.integers(0, 3, (4, 2)), rng.uniform(0, 1, (4, 2))
    layers = (*_packed(rng, 3, 64, 32, exponent=117), *_packed(rng, 3, 32, 32, exponent=117))
    yield (rng.standard_normal((4, 32)), experts, weights, *layers), {}


@composite(dtypes=_NARROW, ref=_fused_mxfp4_ref, samples=_fused_mxfp4_samples, tolerance=_PRODUCTS)
def fused_moe_mxfp4(
    f, input, selected_experts, routing_weights, w13_packed, w13_scale, w2_packed, w2_scale, activation=1
):
    """`fused_moe` with experts in MXFP4, packed [E, N, K / 2] and scales [E, N, K / 32] as for `linear_mxfp4`."""
    _check_activation(f, activation)

    def layer(e, x):
        h = f.linear_mxfp4(x, w13_packed.select(0, e), w13_scale.select(0, e))
        return f.linear_mxfp4(
            f.silu_and_mul(h) if activation else f.silu(h), w2_packed.select(0, e), w2_scale.select(0, e)
        )

    return _mixture(f, input, selected_experts, routing_weights, w13_packed.shape_[0], layer)
