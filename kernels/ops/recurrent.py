"""Recurrences over time: the delta rule and the selective scan, for models with states instead of caches.

These two are the kernels, on float32 and float64; what InfiniCore calls is written with them (`linear_attention.py`).
"""

import functools
import itertools

import numpy as np

from ..blocks.recurrent import (
    BAD_SLOT,
    BAD_START,
    DELTA,
    DELTA_GRAD,
    DELTA_ROOM,
    PUT_STATES,
    SELECTIVE,
    SELECTIVE_CHANNELS,
    SELECTIVE_GRAD,
)
from ..table.registry import FLOATS, op
from ._layout import check, check_index, product
from .recurrent_steps import delta_gradients, selective_gradients

_WIDE = ("float32", "float64")
_SUMS = {"float32": (2e-4, 2e-5), "float64": (1e-10, 1e-10)}


def _fit(call, shapes, **given):
    """Refuse tensors of another shape than `shapes` has under their names, or of another dtype than the first."""
    (_, first), *_ = given.items()
    for name, x in given.items():
        check(call, x, name)
        if x.shape_ != shapes[name]:
            raise ValueError(f"`{name}` of `{call.op.name}` must have shape {shapes[name]}, got {x.shape_}")
        if x.dtype is not first.dtype:
            raise TypeError(f"`{name}` of `{call.op.name}` must be {first.dtype.name}, got {x.dtype.name}: cast it")


def _integers(call, name, x, size):
    """An index tensor [size] as contiguous int64, or None."""
    if x is None:
        return None
    check_index(call, x, name)
    if x.shape_ != (size,):
        raise ValueError(f"`{name}` of `{call.op.name}` must have shape ({size},), got {x.shape_}")
    return x.to(dtype="int64").contiguous()


def _wanted(need, **gradients):
    return tuple(gradient if name in need else None for name, gradient in gradients.items())


# ---- delta rule --------------------------------------------------------------------------------


def _sequences(batch, length, starts, index):
    """(first token, last token, place in the batch, slot) of each sequence."""
    bounds = (
        [(0, length, b) for b in range(batch)] if starts is None else [(a, b, 0) for a, b in itertools.pairwise(starts)]
    )
    return [(*at, n if index is None else index[n]) for n, at in enumerate(bounds)]


def _delta_ref(q, k, v, decay, beta, state, cu_seqlens=None, index=None):
    sequences, out = _sequences(*v.shape[:2], cu_seqlens, index), np.zeros(v.shape)
    final = np.zeros((len(sequences), *state.shape[1:]))
    q, k = (np.repeat(x, v.shape[2] // x.shape[2], 2) for x in (q, k))
    for n, (first, last, b, slot) in enumerate(sequences):
        if slot < 0:
            continue
        s = state[slot].copy()
        for t in range(first, last):
            s = s * (decay[b, t, :, None] if decay.ndim == 4 else decay[b, t, :, None, None])
            error = v[b, t] - np.einsum("hvk,hk->hv", s, k[b, t])
            s = s + np.einsum("hv,hk->hvk", beta[b, t, :, None] * error, k[b, t])
            out[b, t] = np.einsum("hvk,hk->hv", s, q[b, t])
        final[n] = s
    return out, final


def _delta_inputs(rng, batch, length, key_heads, heads, size_k, size_v, slots, by_key=False):
    keys = [rng.standard_normal((batch, length, key_heads, size_k)) / size_k**0.5 for _ in range(2)]
    decay = rng.uniform(0.5, 1, (batch, length, heads, size_k) if by_key else (batch, length, heads))
    beta = rng.uniform(0.2, 1, (batch, length, heads))
    state = rng.standard_normal((slots, heads, size_v, size_k))
    return (*keys, rng.standard_normal((batch, length, heads, size_v)), decay, beta, state)


def _delta_samples(rng):
    yield _delta_inputs(rng, 2, 5, 2, 4, 8, 3, 2), {}
    yield _delta_inputs(rng, 1, 3, 1, 2, 33, 40, 1, by_key=True), {}
    packed = {"cu_seqlens": np.array([0, 2, 2, 7], np.int32), "index": np.array([3, -1, 0])}
    yield _delta_inputs(rng, 1, 7, 1, 2, 5, 17, 4), packed
    yield _delta_inputs(rng, 1, 0, 1, 1, 4, 4, 1), {}


def _delta_sizes(call, q, k, v, decay, beta, state, cu_seqlens, index):
    """(the tensors row-major, starts, index, the sizes of the block) after checks."""
    for name, x, ndim in (("q", q, 4), ("v", v, 4), ("state", state, 4)):
        check(call, x, name)
        if len(x.shape_) != ndim:
            raise ValueError(f"`{name}` of `{call.op.name}` must have {ndim} dims, got shape {x.shape_}")
    batch, length, key_heads, size_k = q.shape_
    heads, size_v, slots = v.shape_[2], v.shape_[3], state.shape_[0]
    if not key_heads or heads % key_heads:
        raise ValueError(f"`v` of `{call.op.name}` must have a multiple of the {key_heads} heads of `q`, got {heads}")
    gates = size_k if len(decay.shape_) == 4 else 1
    rows = (batch, length, heads)
    shapes = {
        "q": q.shape_,
        "k": q.shape_,
        "v": (*rows, size_v),
        "decay": (*rows, size_k) if gates > 1 else decay.shape_,
    }
    shapes |= {"beta": rows, "state": (slots, heads, size_v, size_k)}
    if gates == 1 and decay.shape_ not in (rows, (*rows, 1)):
        raise ValueError(f"`decay` of `{call.op.name}` must have shape {rows} or {(*rows, size_k)}, got {decay.shape_}")
    _fit(call, shapes, q=q, k=k, v=v, decay=decay, beta=beta, state=state)
    if cu_seqlens is not None and batch != 1:
        raise ValueError(f"`q` of `{call.op.name}` must have a batch of 1 beside `cu_seqlens`, got {batch}")
    count = batch if cu_seqlens is None else cu_seqlens.shape_[0] - 1 if len(cu_seqlens.shape_) == 1 else 0
    starts = _integers(call, "cu_seqlens", cu_seqlens, count + 1)
    index = _integers(call, "index", index, count)
    if index is None and slots < count:
        raise ValueError(f"`state` of `{call.op.name}` must have {count} states, one for each sequence, got {slots}")
    sizes = {"heads": heads, "key_heads": key_heads, "size_k": size_k, "size_v": size_v, "gates": gates}
    sizes |= {"sequences": count, "length": length, "tokens": batch * length, "slots": slots}
    return [x.contiguous() for x in (q, k, v, decay, beta, state)], starts, index, sizes


@op(dtypes=_WIDE, ref=_delta_ref, samples=_delta_samples, outputs=("out", "final"), tolerance=_SUMS)
def delta_rule(call, q, k, v, decay, beta, state, cu_seqlens=None, index=None):
    """The gated delta rule (Yang et al., arXiv 2412.06464): (out [B, T, H, Dv], final states [N, H, Dv, Dk]).

    For each head and token, S = decay S; S += beta (v - S k) k^T; out = S q, from the state S [Dv, Dk] of the sequence.
    `q`, `k` [B, T, Hk, Dk], each for H / Hk neighbouring heads; `v` [B, T, H, Dv]; `decay` [B, T, H], or
    [B, T, H, Dk] for a factor for each key; `beta` [B, T, H]; `state` [slots, H, Dv, Dk]. Sequences are those of the
    batch or, with a batch of 1, lie between `cu_seqlens` [N + 1]; sequence n begins with state n, or index[n]. A
    negative index is padding, with zeros for results. float32 and float64.
    """
    tensors, starts, index, sizes = _delta_sizes(call, q, k, v, decay, beta, state, cu_seqlens, index)
    count, heads, size_k, size_v = sizes["sequences"], sizes["heads"], sizes["size_k"], sizes["size_v"]
    out, final = call.out(v.shape_, v.dtype), call.out((count, heads, size_v, size_k), v.dtype, key="final")
    if cu_seqlens is not None:
        out.zero_()  # tokens behind the last sequence
    local = call.empty((heads * (size_v + DELTA_ROOM), size_k), v.dtype)
    names = ("q", "k", "v", "decay", "beta", "state")
    block = DELTA(**dict(zip(names, tensors)), starts=starts, index=index, out=out, final=final, local=local, **sizes)
    errors = {
        BAD_SLOT: f"`index` of `{call.op.name}` must be below {sizes['slots']}, the states that there are",
        BAD_START: f"`cu_seqlens` of `{call.op.name}` must rise from 0 to at most {sizes['tokens']}, the tokens",
    }
    work = 4 * size_k * max(1, sizes["tokens"])
    call.launch("recurrent.delta.delta_rule", {"T": v.dtype.name}, block, (heads, size_v), work, errors)
    return out, final


@delta_rule.grad("q", "k", "v", "decay", "beta", "state")
def _(f, g, g_final, q, k, v, decay, beta, state, cu_seqlens, index, need, create_graph):
    g = f.mul(v, 0.0) if g is None else g
    gradients = functools.partial(delta_gradients, f) if create_graph else f.delta_rule_backward
    found = gradients(g, q, k, v, decay, beta, state, cu_seqlens, index, g_final)
    return _wanted(need, **dict(zip(("q", "k", "v", "decay", "beta", "state"), found)))


@op(dtypes=_WIDE, outputs=(), gradient="missing")
def delta_rule_backward(call, g, q, k, v, decay, beta, state, cu_seqlens=None, index=None, g_final=None):
    """The gradients of q, k, v, decay, beta and state of `delta_rule`, from those of its results.

    Every state of a row is made again and kept while its sequence is walked back: Dk numbers for each token and head.
    """
    tensors, starts, index, sizes = _delta_sizes(call, q, k, v, decay, beta, state, cu_seqlens, index)
    batch, length, heads, size_v = v.shape_
    size_k, key_heads = sizes["size_k"], sizes["key_heads"]
    new = lambda *shape: call.empty(shape, v.dtype)
    dq, dk, dv, ddecay = new(*v.shape_[:3], size_k), new(*v.shape_[:3], size_k), new(*v.shape_), new(*decay.shape_)
    dbeta, dstate = new(*beta.shape_), new(sizes["sequences"], heads, size_v, size_k)
    names = ("q", "k", "v", "decay", "beta", "state")
    block = DELTA_GRAD(
        g=g.contiguous(), g_final=None if g_final is None else g_final.contiguous(), **dict(zip(names, tensors)),
        starts=starts, index=index, dq=dq, dk=dk, dv=dv, ddecay=ddecay, dbeta=dbeta, dstate=dstate,
        history=new(heads, length + 1, size_k), errors=new(heads, length + 1), longest=length, **sizes,
    )  # fmt: skip
    work = 16 * size_k * size_v * max(1, sizes["tokens"])
    call.launch("recurrent.delta.delta_rule_backward", {"T": v.dtype.name}, block, heads, work)
    if key_heads < heads:
        dq, dk = (x.reshape(batch, length, key_heads, heads // key_heads, size_k).sum(3) for x in (dq, dk))
    if index is not None:
        pool = new(*state.shape_).zero_()
        dstate = pool.index_add(0, index.clamp(0), dstate)
    elif sizes["slots"] > sizes["sequences"]:
        pool = new(*state.shape_).zero_()
        pool.narrow(0, 0, sizes["sequences"]).copy_(dstate)
        dstate = pool
    return dq, dk, dv, ddecay, dbeta, dstate


# ---- selective scan ----------------------------------------------------------------------------


def _selective_ref(x, dt, a, b, c, state):
    h, y = state.copy(), np.zeros(x.shape)
    for t in range(x.shape[1]):
        h = np.exp(dt[:, t, :, None] * a) * h + (dt[:, t] * x[:, t])[:, :, None] * b[:, t, None]
        y[:, t] = np.einsum("bcn,bn->bc", h, c[:, t])
    return y, h


def _selective_samples(rng):
    for batch, tokens, channels, size in ((2, 5, 3, 16), (1, 3, 40, 5), (1, 7, 2, 33), (2, 0, 3, 4)):
        x, dt = rng.standard_normal((batch, tokens, channels)), rng.uniform(0.1, 1, (batch, tokens, channels))
        b, c = (rng.standard_normal((batch, tokens, size)) for _ in range(2))
        yield (x, dt, -rng.uniform(0.2, 2, (channels, size)), b, c, rng.standard_normal((batch, channels, size))), {}


def _selective_tensors(call, x, dt, a, b, c, state):
    """The tensors row-major by name, and the sizes (B, T, C, N), after checks."""
    for name, t, ndim in (("x", x, 3), ("a", a, 2)):
        check(call, t, name)
        if len(t.shape_) != ndim:
            raise ValueError(f"`{name}` of `{call.op.name}` must have {ndim} dims, got shape {t.shape_}")
    (batch, tokens, channels), size = x.shape_, a.shape_[1]
    shapes = {"x": x.shape_, "dt": x.shape_, "a": (channels, size), "b": (batch, tokens, size)}
    shapes |= {"c": (batch, tokens, size), "state": (batch, channels, size)}
    given = {"x": x, "dt": dt, "a": a, "b": b, "c": c, "state": state}
    _fit(call, shapes, **given)
    return {name: t.contiguous() for name, t in given.items()}, (batch, tokens, channels, size)


@op(dtypes=_WIDE, ref=_selective_ref, samples=_selective_samples, outputs=("out", "final"), tolerance=_SUMS)
def selective_scan(call, x, dt, a, b, c, state):
    """The scan of a selective state space model (Gu and Dao, arXiv 2312.00752): (y [B, T, C], final [B, C, N]).

    For each channel, h = exp(dt a) h + dt x b; y = h . c, from the `state` h [B, C, N]. `x`, `dt` [B, T, C],
    `a` [C, N], `b`, `c` [B, T, N]; float32 and float64.
    """
    given, (batch, tokens, channels, size) = _selective_tensors(call, x, dt, a, b, c, state)
    y, final = call.out(x.shape_, x.dtype), call.out((batch, channels, size), x.dtype, key="final")
    block = SELECTIVE(**given, y=y, final=final, tokens=tokens, channels=channels, size=size)
    call.launch(
        "recurrent.selective.selective_scan", {"T": x.dtype.name}, block, batch * channels, 8 * tokens * size + 1
    )
    return y, final


@selective_scan.grad("x", "dt", "a", "b", "c", "state")
def _(f, g, g_final, x, dt, a, b, c, state, need, create_graph):
    g = f.mul(x, 0.0) if g is None else g
    if create_graph:
        found = selective_gradients(f, g, g_final, x, dt, a, b, c, state)
    else:
        found = f.selective_scan_backward(g, x, dt, a, b, c, state, g_final)
    return _wanted(need, **dict(zip(("x", "dt", "a", "b", "c", "state"), found)))


@op(dtypes=_WIDE, outputs=(), gradient="missing")
def selective_scan_backward(call, g, x, dt, a, b, c, state, g_final=None):
    """The gradients of x, dt, a, b, c and state of `selective_scan`, from those of its results."""
    given, (batch, tokens, channels, size) = _selective_tensors(call, x, dt, a, b, c, state)
    blocks = -(-channels // SELECTIVE_CHANNELS)
    new = lambda *shape: call.empty(shape, x.dtype)
    dx, ddt, da, dstate = new(*x.shape_), new(*x.shape_), new(batch, channels, size), new(batch, channels, size)
    db, dc = (new(batch, blocks, tokens, size) for _ in range(2))
    block = SELECTIVE_GRAD(
        g=g.contiguous(), g_final=None if g_final is None else g_final.contiguous(), **given, dx=dx, ddt=ddt, da=da,
        db=db, dc=dc, dstate=dstate, history=new(batch * blocks, tokens + 1, size), tokens=tokens, channels=channels,
        size=size,
    )  # fmt: skip
    work = 24 * tokens * size * SELECTIVE_CHANNELS + 1
    call.launch("recurrent.selective.selective_scan_backward", {"T": x.dtype.name}, block, batch * blocks, work)
    return dx, ddt, da.sum(0), db.sum(1), dc.sum(1), dstate


# ---- states in a pool --------------------------------------------------------------------------


def _put_ref(pool, states, index):
    pool = pool.copy()
    for n, slot in enumerate(index):
        if slot >= 0:
            pool[slot] = states[n]
    return pool


def _put_samples(rng):
    yield (rng.standard_normal((5, 3, 4)), rng.standard_normal((3, 3, 4)), np.array([4, -1, 0])), {}
    yield (rng.standard_normal((2, 700)), rng.standard_normal((2, 700)), np.array([1, 1], np.int32)), {}


@op(dtypes=FLOATS, ref=_put_ref, samples=_put_samples, outputs=(), gradient="missing")
def put_states(call, pool, states, index):
    """Overwrite pool[index[n]] by states[n], one after the other; negative indices are padding. Returns the pool.

    `pool` [slots, ...] is row-major, `states` [N, ...] of its dtype, `index` [N] int32 or int64.
    """
    check(call, pool, "pool")
    count = states.shape_[0] if states.shape_ else 0
    _fit(call, {"pool": pool.shape_, "states": (count, *pool.shape_[1:])}, pool=pool, states=states)
    if not pool.contiguous_:
        raise ValueError(f"`pool` of `{call.op.name}` must be row-major, got strides {pool.strides_}")
    index = _integers(call, "index", index, count)
    size = product(pool.shape_[1:]) * pool.dtype.itemsize
    states = states.contiguous()
    block = PUT_STATES(pool=pool, states=states, index=index, count=count, size=size, slots=pool.shape_[0])
    errors = {BAD_SLOT: f"`index` of `{call.op.name}` must be below {pool.shape_[0]}, the slots of `pool`"}
    call.launch("recurrent.selective.put_states", {}, block, size, count, errors)
    pool.storage.version += 1
    return pool
