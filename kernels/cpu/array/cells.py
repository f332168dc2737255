"""Gates of recurrent cells and their derivatives: a row of all gates at once."""

from ...blocks.cells import GRU, GRU_BACKWARD, LSTM, LSTM_BACKWARD
from ...build import isa, jit
from ...lang.simd import load, ptr, vload_first, vstore_first
from ...lang.vmath import sigmoid, tanh

LANES = isa.lanes()


@jit.inline
def lstm(args, lo, hi, T):
    """Rows [lo, hi) of an LSTM's input, forget, cell and output gates, which are replaced by what they let through."""
    x, c = ptr(load(args, LSTM.x), T), ptr(load(args, LSTM.c), T)
    y, h, new = ptr(load(args, LSTM.y), T), ptr(load(args, LSTM.h), T), ptr(load(args, LSTM.new), T)
    size, stride, c_stride = load(args, LSTM.size), load(args, LSTM.stride), load(args, LSTM.c_stride)
    for row in range(lo, hi):
        x_row, y_row, c_row = x + row * stride, y + row * 4 * size, c + row * c_stride
        h_row, new_row = h + row * size, new + row * size
        for i in range(0, size, LANES):
            left = min(LANES, size - i)
            one = sigmoid(vload_first(x_row, i, LANES, left))
            keep = sigmoid(vload_first(x_row + size, i, LANES, left))
            value = tanh(vload_first(x_row + 2 * size, i, LANES, left))
            show = sigmoid(vload_first(x_row + 3 * size, i, LANES, left))
            cell = keep * vload_first(c_row, i, LANES, left) + one * value
            vstore_first(y_row, i, one, left)
            vstore_first(y_row + size, i, keep, left)
            vstore_first(y_row + 2 * size, i, value, left)
            vstore_first(y_row + 3 * size, i, show, left)
            vstore_first(new_row, i, cell, left)
            vstore_first(h_row, i, show * tanh(cell), left)
    return 0


@jit.inline
def lstm_backward(args, lo, hi, T):
    """Rows [lo, hi): from the gradients of h and of the new c, those of the gates and of c."""
    block = LSTM_BACKWARD
    g, gc = ptr(load(args, block.g), T), ptr(load(args, block.gc), T)
    y, c, new = ptr(load(args, block.y), T), ptr(load(args, block.c), T), ptr(load(args, block.new), T)
    dx, dc = ptr(load(args, block.dx), T), ptr(load(args, block.dc), T)
    size = load(args, block.size)
    g_stride, gc_stride, c_stride = load(args, block.g_stride), load(args, block.gc_stride), load(args, block.c_stride)
    for row in range(lo, hi):
        y_row, dx_row, new_row = y + row * 4 * size, dx + row * 4 * size, new + row * size
        g_row, gc_row, c_row, dc_row = g + row * g_stride, gc + row * gc_stride, c + row * c_stride, dc + row * size
        for i in range(0, size, LANES):
            left = min(LANES, size - i)
            one, keep = vload_first(y_row, i, LANES, left), vload_first(y_row + size, i, LANES, left)
            value, show = vload_first(y_row + 2 * size, i, LANES, left), vload_first(y_row + 3 * size, i, LANES, left)
            dh, shown = vload_first(g_row, i, LANES, left), tanh(vload_first(new_row, i, LANES, left))
            dcell = vload_first(gc_row, i, LANES, left) + dh * show * (1.0 - shown * shown)
            before = vload_first(c_row, i, LANES, left)
            vstore_first(dx_row, i, dcell * value * one * (1.0 - one), left)
            vstore_first(dx_row + size, i, dcell * before * keep * (1.0 - keep), left)
            vstore_first(dx_row + 2 * size, i, dcell * one * (1.0 - value * value), left)
            vstore_first(dx_row + 3 * size, i, dh * shown * show * (1.0 - show), left)
            vstore_first(dc_row, i, dcell * keep, left)
    return 0


@jit.inline
def gru(args, lo, hi, T):
    """Rows [lo, hi) of a GRU's reset, update and new gates: `x` from the input, `u` from the state."""
    x, u, h = ptr(load(args, GRU.x), T), ptr(load(args, GRU.u), T), ptr(load(args, GRU.h), T)
    y, new = ptr(load(args, GRU.y), T), ptr(load(args, GRU.new), T)
    size, x_stride = load(args, GRU.size), load(args, GRU.x_stride)
    u_stride, h_stride = load(args, GRU.u_stride), load(args, GRU.h_stride)
    for row in range(lo, hi):
        x_row, u_row, y_row = x + row * x_stride, u + row * u_stride, y + row * 3 * size
        h_row, new_row = h + row * h_stride, new + row * size
        for i in range(0, size, LANES):
            left = min(LANES, size - i)
            reset = sigmoid(vload_first(x_row, i, LANES, left) + vload_first(u_row, i, LANES, left))
            keep = sigmoid(vload_first(x_row + size, i, LANES, left) + vload_first(u_row + size, i, LANES, left))
            state = vload_first(u_row + 2 * size, i, LANES, left)
            value = tanh(vload_first(x_row + 2 * size, i, LANES, left) + reset * state)
            before = vload_first(h_row, i, LANES, left)
            vstore_first(y_row, i, reset, left)
            vstore_first(y_row + size, i, keep, left)
            vstore_first(y_row + 2 * size, i, value, left)
            vstore_first(new_row, i, value + keep * (before - value), left)
    return 0


@jit.inline
def gru_backward(args, lo, hi, T):
    """Rows [lo, hi): from the gradient of the new h, those of both sides' gates, and of h where it is kept."""
    block = GRU_BACKWARD
    g, y, u = ptr(load(args, block.g), T), ptr(load(args, block.y), T), ptr(load(args, block.u), T)
    h, dx = ptr(load(args, block.h), T), ptr(load(args, block.dx), T)
    du, dh = ptr(load(args, block.du), T), ptr(load(args, block.dh), T)
    size, g_stride = load(args, block.size), load(args, block.g_stride)
    u_stride, h_stride = load(args, block.u_stride), load(args, block.h_stride)
    for row in range(lo, hi):
        g_row, y_row, u_row = g + row * g_stride, y + row * 3 * size, u + row * u_stride + 2 * size
        h_row, dx_row = h + row * h_stride, dx + row * 3 * size
        du_row, dh_row = du + row * 3 * size, dh + row * size
        for i in range(0, size, LANES):
            left = min(LANES, size - i)
            reset, keep = vload_first(y_row, i, LANES, left), vload_first(y_row + size, i, LANES, left)
            value, state = vload_first(y_row + 2 * size, i, LANES, left), vload_first(u_row, i, LANES, left)
            after, before = vload_first(g_row, i, LANES, left), vload_first(h_row, i, LANES, left)
            dvalue = after * (1.0 - keep) * (1.0 - value * value)
            dreset = dvalue * state * reset * (1.0 - reset)
            dkeep = after * (before - value) * keep * (1.0 - keep)
            vstore_first(dx_row, i, dreset, left)
            vstore_first(dx_row + size, i, dkeep, left)
            vstore_first(dx_row + 2 * size, i, dvalue, left)
            vstore_first(du_row, i, dreset, left)
            vstore_first(du_row + size, i, dkeep, left)
            vstore_first(du_row + 2 * size, i, dvalue * reset, left)
            vstore_first(dh_row, i, after * keep, left)
    return 0
