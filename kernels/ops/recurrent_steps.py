"""Gradients of the recurrences step by step, with ops that have derivatives: for derivatives of derivatives.

The kernels of `recurrent.py` compute the same many times as fast, and are what first derivatives take.
"""

import itertools


def selective_gradients(f, g, g_final, x, dt, a, b, c, state):
    """The gradients of x, dt, a, b, c and state of `selective_scan`, from those of its results."""
    tokens, back = x.shape_[1], f.mul(state, 0.0) if g_final is None else g_final
    if not tokens:
        return *(f.mul(t, 0.0) for t in (x, dt, a, b, c)), back
    keep = f.exp(dt.unsqueeze(-1) * a)  # [B, T, C, N], as what follows
    added, states, backs = (dt * x).unsqueeze(-1) * b.unsqueeze(2), [state], []
    for t in range(tokens):
        states.append(keep.select(1, t) * states[-1] + added.select(1, t))
    for t in reversed(range(tokens)):
        backs.append(back + g.select(1, t).unsqueeze(-1) * c.select(1, t).unsqueeze(1))
        back = backs[-1] * keep.select(1, t)
    to_added = f.stack(backs[::-1], 1)
    to_power = to_added * f.stack(states[:-1], 1) * keep
    to_product = (to_added * b.unsqueeze(2)).sum(-1)
    return (
        to_product * dt,
        (to_power * a).sum(-1) + to_product * x,
        (to_power * dt.unsqueeze(-1)).sum((0, 1)),
        (to_added * (dt * x).unsqueeze(-1)).sum(2),
        (g.unsqueeze(-1) * f.stack(states[1:], 1)).sum(2),
        back,
    )


def delta_gradients(f, g, q, k, v, decay, beta, state, cu_seqlens, index, g_final):
    """The gradients of q, k, v, decay, beta and state of `delta_rule`, from those of its results."""
    (batch, length), slots = v.shape_[:2], state.shape_[0]
    packed = cu_seqlens is not None
    bounds = list(itertools.pairwise(cu_seqlens.tolist())) if packed else [(0, length)] * batch
    chosen = list(range(len(bounds))) if index is None else index.tolist()
    gates = decay if len(decay.shape_) == 4 else decay.unsqueeze(-1)
    found, pool = [], [f.mul(state.select(0, s), 0.0) for s in range(slots)]
    for n, (first, last) in enumerate(bounds):
        rows = [x.select(0, 0 if packed else n).narrow(0, first, last - first) for x in (g, q, k, v, gates, beta)]
        if chosen[n] < 0:
            found.append([f.mul(x, 0.0) for x in rows[1:]])
            continue
        own = state.select(0, chosen[n])
        back = f.mul(own, 0.0) if g_final is None else g_final.select(0, n)
        *parts, to_state = _one_sequence(f, *rows, own, back)
        found.append(parts)
        pool[chosen[n]] = pool[chosen[n]] + to_state
    end = bounds[-1][1] if packed else length
    if packed and end < length:  # tokens behind the last sequence
        found.append([f.mul(x.select(0, 0).narrow(0, end, length - end), 0.0) for x in (q, k, v, gates, beta)])
    joined = [f.cat(list(x), 0).unsqueeze(0) if packed else f.stack(list(x), 0) for x in zip(*found)]
    joined[3] = joined[3].reshape(decay.shape_)
    return *joined, f.stack(pool, 0)


def _one_sequence(f, g, q, k, v, gates, beta, state, back):
    """Of one sequence: g, v [T, H, Dv], q, k [T, Hk, Dk], gates [T, H, 1 or Dk], beta [T, H], state [H, Dv, Dk]."""
    tokens, key_heads, size = q.shape_
    heads = v.shape_[1]
    if not tokens:
        return *(f.mul(x, 0.0) for x in (q, k, v, gates, beta)), back
    wide = [x.unsqueeze(2).expand(tokens, key_heads, heads // key_heads, size) for x in (q, k)]
    q, k = (x.reshape(tokens, heads, 1, size) for x in wide)
    g, v, gates, beta = g.unsqueeze(-1), v.unsqueeze(-1), gates.unsqueeze(2), beta.unsqueeze(-1).unsqueeze(-1)
    steps = []  # (state before, kept, error, after) of each token
    for t in range(tokens):
        kept = state * gates.select(0, t)
        error = v.select(0, t) - (kept * k.select(0, t)).sum(-1, True)
        after = kept + beta.select(0, t) * error * k.select(0, t)
        steps.append((state, kept, error, after))
        state = after
    found = []
    for t in reversed(range(tokens)):
        (before, kept, error, after), kt, bt = steps[t], k.select(0, t), beta.select(0, t)
        back = back + g.select(0, t) * q.select(0, t)
        to_step = (back * kt).sum(-1, True)  # of beta * error
        to_error = to_step * bt
        to_kept = back - to_error * kt
        to_key = (back * bt * error - kept * to_error).sum(-2)
        to_gates = (to_kept * before).sum(-2)
        to_gates = to_gates if gates.shape_[-1] > 1 else to_gates.sum(-1, True)
        to_query = (g.select(0, t) * after).sum(-2)
        found.append((to_query, to_key, to_error.squeeze(-1), to_gates, (to_step * error).sum((-2, -1))))
        back = to_kept * gates.select(0, t)
    joined = [f.stack(list(x), 0) for x in zip(*reversed(found))]
    joined[:2] = (x.reshape(tokens, key_heads, heads // key_heads, size).sum(2) for x in joined[:2])
    return *joined, back
