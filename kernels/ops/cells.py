"""Gates of recurrent cells after their products: what a step of an LSTM or a GRU does besides, and its derivative.

B rows, H units. `nn.functional` (`recurrent.py`) puts them together.
"""

import numpy as np

from ..blocks.cells import GRU, GRU_BACKWARD, LSTM, LSTM_BACKWARD
from ..lang import scalar_math as m
from ..table.registry import op
from ._layout import check, rows


def _rows(call, gates, widths, **others):
    """(B, H, [rows and their stride of each tensor]): gates are `widths` * H wide, others as many H as they say."""
    check(call, gates, "gates")
    if len(gates.shape_) != 2 or gates.shape_[1] % widths:
        raise ValueError(f"`gates` of `{call.op.name}` must be [B, {widths} H], got shape {gates.shape_}")
    count, size = gates.shape_[0], gates.shape_[1] // widths
    found = []
    for name, (x, width) in {"gates": (gates, widths), **others}.items():
        check(call, x, name)
        if x.shape_ != (count, width * size) or x.dtype is not gates.dtype:
            raise ValueError(
                f"`{name}` of `{call.op.name}` must be {gates.dtype.name} of shape {(count, width * size)}, got "
                f"{x.dtype.name} of {x.shape_}"
            )
        x, _, _, stride = rows(x, 1)
        found.append((x, stride))
    return count, size, found


def _normal(rng, widths):
    for batch, size in ((1, 5), (3, 16), (2, 33)):
        yield tuple(rng.standard_normal((batch, width * size)) for width in widths), {}


def _lstm_ref(gates, cell):
    i, f, g, o = np.split(gates, 4, -1)
    i, f, g, o = m.sigmoid(i), m.sigmoid(f), np.tanh(g), m.sigmoid(o)
    new = f * cell + i * g
    return o * np.tanh(new), new, np.concatenate([i, f, g, o], -1)


@op(
    ref=_lstm_ref,
    samples=lambda rng: _normal(rng, (4, 1)),
    outputs=("out", "new_cell", "active"),
    gradient="missing",
)
def lstm_gates(call, gates, cell):
    """(h, new cell, active gates) of an LSTM (Hochreiter and Schmidhuber, 1997): o tanh(c'), c' = f c + i g.

    `gates` [B, 4 H] are those of input, forget, cell (tanh) and output before their functions, `cell` is [B, H].
    `nn.LSTM` has the derivative.
    """
    count, size, ((x, stride), (c, c_stride)) = _rows(call, gates, 4, cell=(cell, 1))
    h = call.out((count, size), gates.dtype)
    new = call.out((count, size), gates.dtype, key="new_cell")
    y = call.out((count, 4 * size), gates.dtype, key="active", overlap="same")
    block = LSTM(x=x, c=c, y=y, h=h, new=new, size=size, stride=stride, c_stride=c_stride)
    call.launch("array.cells.lstm", {"T": gates.dtype.name}, block, count, 8 * size)
    return h, new, y


def _lstm_backward_ref(active, cell, new_cell, grad, grad_cell):
    i, f, g, o = np.split(active, 4, -1)
    t = np.tanh(new_cell)
    dc = grad_cell + grad * o * (1 - t * t)
    parts = (dc * g * i * (1 - i), dc * cell * f * (1 - f), dc * i * (1 - g * g), grad * t * o * (1 - o))
    return np.concatenate(parts, -1), dc * f


@op(
    ref=_lstm_backward_ref,
    samples=lambda rng: _normal(rng, (4, 1, 1, 1, 1)),
    outputs=("out", "cell_gradient"),
    gradient=None,
)
def lstm_gates_backward(call, active, cell, new_cell, grad, grad_cell):
    """(gradient of the gates [B, 4 H], of `cell`) from those of h and the new cell, after `lstm_gates`."""
    given = {"cell": cell, "new_cell": new_cell, "grad": grad, "grad_cell": grad_cell}
    found = _rows(call, active, 4, **{name: (x, 1) for name, x in given.items()})
    count, size, ((y, _), (c, c_stride), (new, _), (g, g_stride), (gc, gc_stride)) = found
    dx = call.out((count, 4 * size), active.dtype)
    dc = call.out((count, size), active.dtype, key="cell_gradient")
    block = LSTM_BACKWARD(
        g=g, gc=gc, y=y.contiguous(), c=c, new=new.contiguous(), dx=dx, dc=dc,
        size=size, g_stride=g_stride, gc_stride=gc_stride, c_stride=c_stride,
    )  # fmt: skip
    call.launch("array.cells.lstm_backward", {"T": active.dtype.name}, block, count, 8 * size)
    return dx, dc


def _gru_ref(gates, from_state, state):
    (r, z, n), (ur, uz, un) = np.split(gates, 3, -1), np.split(from_state, 3, -1)
    r, z = m.sigmoid(r + ur), m.sigmoid(z + uz)
    n = np.tanh(n + r * un)
    return n + z * (state - n), np.concatenate([r, z, n], -1)


@op(ref=_gru_ref, samples=lambda rng: _normal(rng, (3, 3, 1)), outputs=("out", "active"), gradient="missing")
def gru_gates(call, gates, from_state, state):
    """(h, active gates) of a GRU (Cho et al., arXiv 1406.1078): h = n + z (state - n), n = tanh(n_x + r n_h).

    `gates` [B, 3 H] are the reset, update and new gates' parts from the input, `from_state` those from `state` [B, H].
    `nn.GRU` has the derivative.
    """
    found = _rows(call, gates, 3, from_state=(from_state, 3), state=(state, 1))
    count, size, ((x, x_stride), (u, u_stride), (h, h_stride)) = found
    new = call.out((count, size), gates.dtype)
    y = call.out((count, 3 * size), gates.dtype, key="active", overlap="same")
    block = GRU(x=x, u=u, h=h, y=y, new=new, size=size, x_stride=x_stride, u_stride=u_stride, h_stride=h_stride)
    call.launch("array.cells.gru", {"T": gates.dtype.name}, block, count, 8 * size)
    return new, y


def _gru_backward_ref(active, from_state, state, grad):
    (r, z, n), un = np.split(active, 3, -1), np.split(from_state, 3, -1)[2]
    dn = grad * (1 - z) * (1 - n * n)
    dr, dz = dn * un * r * (1 - r), grad * (state - n) * z * (1 - z)
    return np.concatenate([dr, dz, dn], -1), np.concatenate([dr, dz, dn * r], -1), grad * z


@op(
    ref=_gru_backward_ref,
    samples=lambda rng: _normal(rng, (3, 3, 1, 1)),
    outputs=("out", "state_gates", "state_gradient"),
    gradient=None,
)
def gru_gates_backward(call, active, from_state, state, grad):
    """(gradients [B, 3 H] of the gates, of `from_state`, and [B, H] of `state`) from that of h, after `gru_gates`."""
    found = _rows(call, active, 3, from_state=(from_state, 3), state=(state, 1), grad=(grad, 1))
    count, size, ((y, _), (u, u_stride), (h, h_stride), (g, g_stride)) = found
    dx = call.out((count, 3 * size), active.dtype)
    du = call.out((count, 3 * size), active.dtype, key="state_gates")
    dh = call.out((count, size), active.dtype, key="state_gradient")
    block = GRU_BACKWARD(
        g=g, y=y.contiguous(), u=u, h=h, dx=dx, du=du, dh=dh,
        size=size, g_stride=g_stride, u_stride=u_stride, h_stride=h_stride,
    )  # fmt: skip
    call.launch("array.cells.gru_backward", {"T": active.dtype.name}, block, count, 8 * size)
    return dx, du, dh
