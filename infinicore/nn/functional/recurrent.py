"""Layers of recurrent networks: one product for the inputs of all steps, then a product and the gates of each step.

Rows of all steps lie one after the other, those of step t are `sizes[t]` sequences, as in a `PackedSequence`. B is the
number of sequences, H of units, P of the results of a step (H, or the size of the projection).
"""

import functools

import infinicore

from ...amp import autocast
from ...autograd import Function, enable_grad, grad

GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


def _bias(mode, b_ih, b_hh):
    """What the product of the inputs adds: both biases, but for a GRU, whose new gate multiplies one of them."""
    return b_ih if mode == "GRU" or b_ih is None else b_ih + b_hh


class _Steps:
    """In which order the steps go, and which rows each begins with."""

    def __init__(self, sizes, reverse):
        self.sizes, self.offsets, total = sizes, [], 0
        for n in sizes:
            self.offsets.append(total)
            total += n
        self.order = range(len(sizes) - 1, -1, -1) if reverse else range(len(sizes))
        self.last = [0] * max(sizes)  # the row of each sequence's last step
        for t in self.order:
            first, n = self.offsets[t], sizes[t]
            self.last[:n] = range(first, first + n)

    def rows(self, t):
        return slice(self.offsets[t], self.offsets[t] + self.sizes[t])

    def before(self, states, start):
        """For each step: t, and the states of its sequences before it, of `states` [rows, *] of all steps."""
        m, first = 0, 0
        for t in self.order:
            n = self.sizes[t]
            if m >= n:
                yield t, states[first : first + n]
            elif m:
                yield t, infinicore.cat([states[first : first + m], start[m:n]])
            else:
                yield t, start[:n]
            m, first = n, self.offsets[t]


class _Layer(Function):
    """(results [rows, P], last h [B, P], last c [B, H] or None) of one direction of a layer."""

    @staticmethod
    def forward(ctx, x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, mode, steps):
        gates = infinicore.linear(x, w_ih, _bias(mode, b_ih, b_hh))
        total, units = x.shape_[0], w_hh.shape_[0] // GATES[mode]
        empty = lambda *shape: infinicore.empty(shape, dtype=x.dtype, device=x.device)
        out = empty(total, w_hh.shape_[1])
        raw = out if w_hr is None else empty(total, units)
        cells = empty(total, units) if mode == "LSTM" else None
        from_state = empty(total, 3 * units) if mode == "GRU" else None
        states, memories = steps.before(out, h), None if cells is None else steps.before(cells, c)
        for t, before in states:
            rows = steps.rows(t)
            own = gates[rows]
            if mode == "LSTM":
                _, memory = next(memories)
                infinicore.linear(before, w_hh, residual=own, out=own)
                infinicore.lstm_gates(own, memory, out=raw[rows], new_cell=cells[rows], active=own)
                if w_hr is not None:
                    infinicore.linear(raw[rows], w_hr, out=out[rows])
            elif mode == "GRU":
                other = from_state[rows]
                infinicore.linear(before, w_hh, b_hh, out=other)
                infinicore.gru_gates(own, other, before, out=out[rows], active=own)
            else:
                infinicore.linear(before, w_hh, residual=own, out=own)
                (infinicore.tanh if mode == "RNN_TANH" else infinicore.relu)(own, out=out[rows])
        last = infinicore.tensor(steps.last, dtype=infinicore.int64, device=x.device)
        ctx.save_for_backward(x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr)
        ctx.own = gates, from_state, cells, raw, out  # made here, and nobody else's but `out`, which may not change
        ctx.version, ctx.mode, ctx.steps = out.storage.version, mode, steps
        return out, out[last], None if cells is None else cells[last]

    @staticmethod
    def backward(ctx, g, g_last, gc_last):
        mode, steps = ctx.mode, ctx.steps
        inputs = ctx.saved_tensors
        if infinicore.is_grad_enabled():
            return _again(inputs, mode, steps, (g, g_last, gc_last))
        x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr = inputs
        gates, from_state, cells, raw, out = ctx.own
        if not x.shape_[0]:  # no sequences
            return *(None if v is None else infinicore.zeros_like(v) for v in inputs), None, None
        if out.storage.version != ctx.version:
            raise ValueError(f"the result of {mode} was changed in place, and its derivative needs it: clone it first")
        empty = functools.partial(infinicore.empty, dtype=x.dtype, device=x.device)
        g = infinicore.index_add(g, 0, infinicore.tensor(steps.last, dtype=infinicore.int64, device=x.device), g_last)
        dx = empty(gates.shape_)  # of the gates; their derivatives from the state:
        du = empty(gates.shape_) if mode == "GRU" else dx
        dh, dc = empty(h.shape_), None if c is None else infinicore.empty_like(c)
        states = list(steps.before(out, h))
        memories = None if c is None else [memory for _, memory in steps.before(cells, c)]
        total = g if w_hr is None else empty(g.shape_)  # gradients of h with all that follows
        turned, back, back_cell, m = w_hh.T, None, None, 0
        for k in range(len(states) - 1, -1, -1):
            t, before = states[k]
            rows, n = steps.rows(t), steps.sizes[t]
            if m > n:  # some sequences begin behind this step
                dh[n:m] = back[n:]
                if c is not None:
                    dc[n:m] = back_cell[n:]
                back, back_cell = back[:n], None if c is None else back_cell[:n]
            elif m < n and c is not None:  # some end here
                back_cell = gc_last[:n] if not m else infinicore.cat([back_cell, gc_last[m:n]])
            own = g[rows]
            if back is not None:
                own = own + back if m >= n else infinicore.cat([own[:m] + back, own[m:]])
            if w_hr is not None:
                total[rows] = own
                own = infinicore.matmul(own, w_hr)
            gate = dx[rows]
            if mode == "LSTM":
                _, back_cell = infinicore.lstm_gates_backward(
                    gates[rows], memories[k], cells[rows], own, back_cell, out=gate
                )
                back = infinicore.linear(gate, turned)
            elif mode == "GRU":
                options = {"out": gate, "state_gates": du[rows]}
                *_, kept = infinicore.gru_gates_backward(gates[rows], from_state[rows], before, own, **options)
                back = infinicore.linear(du[rows], turned, residual=kept)
            else:
                y = out[rows]
                slope = 1.0 - y * y if mode == "RNN_TANH" else (y > 0.0).to(y.dtype)
                infinicore.mul(own, slope, out=gate)
                back = infinicore.linear(gate, turned)
            m = n
        dh[:m] = back
        if c is not None:
            dc[:m] = back_cell
        need = ctx.needs_input_grad
        in_order = states if steps.order[0] == 0 else states[::-1]
        befores = infinicore.cat([before for _, before in in_order])
        db = dx.sum(0) if b_ih is not None else None
        return (
            infinicore.linear(dx, w_ih.T) if need[0] else None,
            dh,
            dc,
            infinicore.matmul(dx.T, x) if need[3] else None,
            infinicore.matmul(du.T, befores) if need[4] else None,
            db,
            db if b_hh is None or mode != "GRU" else du.sum(0),
            None if w_hr is None else infinicore.matmul(total.T, raw),
            None,
            None,
        )


def _again(inputs, mode, steps, gradients):
    """The gradients of a layer by ops that have derivatives themselves."""
    with enable_grad():
        results = _plain(*inputs, mode, steps)
        pairs = [(y, g) for y, g in zip(results, gradients) if y is not None]
        wanted = [x for x in inputs if x is not None and x.requires_grad]
        found = iter(grad([y for y, _ in pairs], wanted, [g for _, g in pairs], create_graph=True))
    return (*(next(found) if x is not None and x.requires_grad else None for x in inputs), None, None)


def _plain(x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, mode, steps):
    """What `_Layer` computes, by recorded ops."""
    gates = infinicore.linear(x, w_ih, _bias(mode, b_ih, b_hh))
    results, ends, ends_c = {}, {}, {}
    now, cell, m = None, None, 0
    for t in steps.order:
        n, own = steps.sizes[t], gates[steps.rows(t)]
        if m < n:
            now = h[m:n] if not m else infinicore.cat([now, h[m:n]])
            cell = None if c is None else c[m:n] if not m else infinicore.cat([cell, c[m:n]])
        elif n < m:
            now, cell = now[:n], None if c is None else cell[:n]
        now, cell = step(own, infinicore.linear(now, w_hh, b_hh if mode == "GRU" else None), now, cell, mode)
        now = now if w_hr is None else infinicore.linear(now, w_hr)
        results[t], m = now, n
        for b in range(n):
            ends[b], ends_c[b] = now[b], None if c is None else cell[b]
    out = infinicore.cat([results[t] for t in sorted(results)])
    stacked = infinicore.stack([ends[b] for b in sorted(ends)])
    return out, stacked, None if c is None else infinicore.stack([ends_c[b] for b in sorted(ends_c)])


def step(own, other, h, c, mode):
    """(h, c) after a step by recorded ops, of the gates' parts from the input (`own`) and from the state (`other`)."""
    if mode == "LSTM":
        i, f, g, o = (own + other).chunk(4, -1)
        c = infinicore.sigmoid(f) * c + infinicore.sigmoid(i) * infinicore.tanh(g)
        return infinicore.sigmoid(o) * infinicore.tanh(c), c
    if mode == "GRU":
        (r, z, n), (ur, uz, un) = own.chunk(3, -1), other.chunk(3, -1)
        n = infinicore.tanh(n + infinicore.sigmoid(r + ur) * un)
        return n + infinicore.sigmoid(z + uz) * (h - n), None
    return (infinicore.tanh if mode == "RNN_TANH" else infinicore.relu)(own + other), None


def layer(x, h, c, weights, mode, sizes, reverse):
    """One direction of a layer: `x` [rows, I] of steps of `sizes` sequences, `h` [B, P], `c` [B, H] of an LSTM.

    `weights` are (w_ih [G H, I], w_hh [G H, P], b_ih, b_hh [G H] or None, w_hr [P, H] or None). Returns (results
    [rows, P], last h, last c). Mixed precision leaves it alone.
    """
    with autocast(enabled=False):
        return _Layer.apply(x.contiguous(), h, c, *weights, mode, _Steps(sizes, reverse))
