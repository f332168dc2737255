"""The gated delta rule over time (Yang et al., arXiv 2412.06464), with one factor of the state or one for each key.

For one head with state S [Dv, Dk], token by token: S = decay * S; S += beta (v - S k) k^T; out = S q. Rows of S know
nothing of each other, so a unit is a head and PAIR rows, one row in each lane: nothing is added across lanes. A unit
does all sequences in turn.

Backward goes row by row with the keys in the lanes. It makes the states of a row again, keeps them (`history`), and
walks back: with x the gradient of S after a token, e = v - S k and S' = decay * S before it,

    x += g q,  dq += g S,  d = x . k,  dbeta += d e,  dv = beta d,
    y = x - beta d k,  dk += beta e x - beta d S',  ddecay += y S,  x = decay y.
"""

from numba import types

from ...blocks.recurrent import BAD_SLOT, BAD_START, DELTA, DELTA_GRAD, DELTA_ROOM
from ...build import isa, jit
from ...lang.rows import fill_row
from ...lang.simd import fill, load, muladd, ptr, reduce_add, store, vload, vload_first, vstore, vstore_first

LANES = isa.lanes()
PAIR = 2 * LANES  # two registers of float32: a sum waits for one operation in four cycles
I64 = types.int64


@jit.inline
def bounds(starts, n, length):
    """Where the tokens of sequence n begin and end."""
    if starts == 0:
        return n * length, (n + 1) * length
    return load(ptr(starts, I64), n), load(ptr(starts, I64), n + 1)


@jit.inline
def slot_of(index, n):
    """The state that sequence n begins with."""
    return n if index == 0 else load(ptr(index, I64), n)


@jit.inline
def advance(s, q, k, v, decay, beta, gates, size_k, left, T):
    """One token of PAIR rows: the state [size_k, PAIR] at `s` changed, and the result."""
    seen, out = fill(0.0, T, PAIR), fill(0.0, T, PAIR)
    if gates == 1:
        factor = load(decay, 0)
        for j in range(size_k):
            seen = muladd(vload(s, j * PAIR, PAIR), fill(load(k, j), T, PAIR), seen)
        change = (vload_first(v, 0, PAIR, left) - seen * factor) * beta
        for j in range(size_k):
            x = muladd(change, fill(load(k, j), T, PAIR), vload(s, j * PAIR, PAIR) * factor)
            vstore(s, j * PAIR, x)
            out = muladd(x, fill(load(q, j), T, PAIR), out)
        return out
    for j in range(size_k):
        seen = muladd(vload(s, j * PAIR, PAIR), fill(load(k, j) * load(decay, j), T, PAIR), seen)
    change = (vload_first(v, 0, PAIR, left) - seen) * beta
    for j in range(size_k):
        x = muladd(change, fill(load(k, j), T, PAIR), vload(s, j * PAIR, PAIR) * load(decay, j))
        vstore(s, j * PAIR, x)
        out = muladd(x, fill(load(q, j), T, PAIR), out)
    return out


@jit.inline
def delta_rule(args, lo, hi, T):
    """Units [lo, hi) of (head, PAIR rows of its state)."""
    q, k, v = ptr(load(args, DELTA.q), T), ptr(load(args, DELTA.k), T), ptr(load(args, DELTA.v), T)
    decay, beta = ptr(load(args, DELTA.decay), T), ptr(load(args, DELTA.beta), T)
    out, local = ptr(load(args, DELTA.out), T), ptr(load(args, DELTA.local), T)
    heads, size_k, size_v = load(args, DELTA.heads), load(args, DELTA.size_k), load(args, DELTA.size_v)
    key_heads, gates, tokens = load(args, DELTA.key_heads), load(args, DELTA.gates), load(args, DELTA.tokens)
    group, blocks = heads // key_heads, (size_v + PAIR - 1) // PAIR
    for unit in range(lo, hi):
        head = unit // blocks
        row = (unit - head * blocks) * PAIR
        left = min(size_v - row, PAIR)
        s = local + (head * (size_v + DELTA_ROOM) + row) * size_k
        for n in range(load(args, DELTA.sequences)):
            first, last = bounds(load(args, DELTA.starts), n, load(args, DELTA.length))
            if first < 0 or last < first or last > tokens:
                return BAD_START
            slot = slot_of(load(args, DELTA.index), n)
            if slot >= load(args, DELTA.slots):
                return BAD_SLOT
            final = ptr(load(args, DELTA.final), T) + ((n * heads + head) * size_v + row) * size_k
            if slot < 0:
                fill_row(final, left * size_k, 0)
                for t in range(first, last):
                    fill_row(out + ((t * heads + head) * size_v + row), left, 0)
                continue
            source = ptr(load(args, DELTA.state), T) + ((slot * heads + head) * size_v + row) * size_k
            for j in range(size_k):
                vstore(s, j * PAIR, fill(0.0, T, PAIR))
            for r in range(left):
                for j in range(size_k):
                    store(s, j * PAIR + r, load(source, r * size_k + j))
            for t in range(first, last):
                at, key = t * heads + head, (t * key_heads + head // group) * size_k
                source, factor = v + (at * size_v + row), load(beta, at)
                y = advance(s, q + key, k + key, source, decay + at * gates, factor, gates, size_k, left, T)
                vstore_first(out, at * size_v + row, y, left)
            for r in range(left):
                for j in range(size_k):
                    store(final, r * size_k + j, load(s, j * PAIR + r))
    return 0


@jit.inline
def factors(decay, gates, j, left, T):
    """The factors of the state at keys from j on."""
    return fill(load(decay, 0), T, PAIR) if gates == 1 else vload_first(decay, j, PAIR, left)


@jit.inline
def forth(history, k, decay, v, beta, gates, size, T):
    """The state of a row after a token, behind the one before it; returns v - S k."""
    seen, j = fill(0.0, T, PAIR), 0
    while j < size:
        x = vload_first(history, j, PAIR, size - j) * factors(decay, gates, j, size - j, T)
        seen = muladd(x, vload_first(k, j, PAIR, size - j), seen)
        j += PAIR
    error, j = v - reduce_add(seen), 0
    change = fill(error * beta, T, PAIR)
    while j < size:
        x = vload_first(history, j, PAIR, size - j) * factors(decay, gates, j, size - j, T)
        vstore_first(history, size + j, muladd(change, vload_first(k, j, PAIR, size - j), x), size - j)
        j += PAIR
    return error


@jit.inline
def back(history, x, g, q, k, decay, beta, error, dq, dk, ddecay, gates, size, T):
    """One token of a row backwards: `x` becomes the gradient of the state before it; returns x . k."""
    found, change, j = fill(0.0, T, PAIR), fill(beta * error, T, PAIR), 0
    while j < size:
        left = size - j
        at = muladd(fill(g, T, PAIR), vload_first(q, j, PAIR, left), vload_first(x, j, PAIR, left))
        vstore_first(x, j, at, left)
        after = vload_first(history, size + j, PAIR, left)
        vstore_first(dq, j, muladd(fill(g, T, PAIR), after, vload_first(dq, j, PAIR, left)), left)
        found = muladd(at, vload_first(k, j, PAIR, left), found)
        vstore_first(dk, j, muladd(change, at, vload_first(dk, j, PAIR, left)), left)
        j += PAIR
    d = reduce_add(found)
    back_by, total, j = fill(-beta * d, T, PAIR), fill(0.0, T, PAIR), 0
    while j < size:
        left = size - j
        before, factor = vload_first(history, j, PAIR, left), factors(decay, gates, j, left, T)
        y = muladd(back_by, vload_first(k, j, PAIR, left), vload_first(x, j, PAIR, left))
        vstore_first(dk, j, muladd(back_by, before * factor, vload_first(dk, j, PAIR, left)), left)
        if gates == 1:
            total = muladd(y, before, total)
        else:
            vstore_first(ddecay, j, muladd(y, before, vload_first(ddecay, j, PAIR, left)), left)
        vstore_first(x, j, y * factor, left)
        j += PAIR
    if gates == 1:
        store(ddecay, 0, load(ddecay, 0) + reduce_add(total))
    return d


@jit.inline
def delta_rule_backward(args, lo, hi, T):
    """Heads [lo, hi)."""
    B = DELTA_GRAD
    g, q, k, v = ptr(load(args, B.g), T), ptr(load(args, B.q), T), ptr(load(args, B.k), T), ptr(load(args, B.v), T)
    decay, beta, state = ptr(load(args, B.decay), T), ptr(load(args, B.beta), T), ptr(load(args, B.state), T)
    dq, dk, dv = ptr(load(args, B.dq), T), ptr(load(args, B.dk), T), ptr(load(args, B.dv), T)
    ddecay, dbeta, dstate = ptr(load(args, B.ddecay), T), ptr(load(args, B.dbeta), T), ptr(load(args, B.dstate), T)
    heads, size_k, size_v = load(args, B.heads), load(args, B.size_k), load(args, B.size_v)
    key_heads, gates, longest = load(args, B.key_heads), load(args, B.gates), load(args, B.longest)
    group, g_final = heads // key_heads, load(args, B.g_final)
    for head in range(lo, hi):
        history = ptr(load(args, B.history), T) + head * (longest + 1) * size_k
        errors = ptr(load(args, B.errors), T) + head * (longest + 1)
        for t in range(load(args, B.tokens)):
            at = t * heads + head
            fill_row(dq + at * size_k, size_k, 0)
            fill_row(dk + at * size_k, size_k, 0)
            fill_row(dv + at * size_v, size_v, 0)
            fill_row(ddecay + at * gates, gates, 0)
            store(dbeta, at, 0)
        for n in range(load(args, B.sequences)):
            first, last = bounds(load(args, B.starts), n, load(args, B.length))
            slot, whole = slot_of(load(args, B.index), n), (n * heads + head) * size_v * size_k
            if slot < 0:
                fill_row(dstate + whole, size_v * size_k, 0)
                continue
            for row in range(size_v):
                source, x = state + ((slot * heads + head) * size_v + row) * size_k, dstate + (whole + row * size_k)
                for j in range(size_k):
                    store(history, j, load(source, j))
                for t in range(first, last):
                    at, key = t * heads + head, (t * key_heads + head // group) * size_k
                    error = forth(
                        history + (t - first) * size_k, k + key, decay + at * gates, load(v, at * size_v + row),
                        load(beta, at), gates, size_k, T
                    )  # fmt: skip
                    store(errors, t - first, error)
                if g_final == 0:
                    fill_row(x, size_k, 0)
                else:
                    given = ptr(g_final, T) + (whole + row * size_k)
                    for j in range(size_k):
                        store(x, j, load(given, j))
                for i in range(last - first):
                    t = last - 1 - i
                    at, key = t * heads + head, (t * key_heads + head // group) * size_k
                    error, factor = load(errors, t - first), load(beta, at)
                    d = back(
                        history + (t - first) * size_k, x, load(g, at * size_v + row), q + key, k + key,
                        decay + at * gates, factor, error, dq + at * size_k, dk + at * size_k, ddecay + at * gates,
                        gates, size_k, T,
                    )  # fmt: skip
                    store(dbeta, at, load(dbeta, at) + d * error)
                    store(dv, at * size_v + row, factor * d)
    return 0
