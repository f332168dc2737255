"""Backward passes of gated activations: both halves of a row at once."""

from ...blocks.array import SILU_AND_MUL_BACKWARD as BLOCK
from ...build import isa, jit
from ...lang.simd import load, ptr, vload, vload_first, vstore, vstore_first
from ...lang.vmath import sigmoid

LANES = isa.lanes()


@jit.inline
def halves(g, gate, value):
    """(gradient of the gate, gradient of the value) of silu(gate) * value."""
    s = sigmoid(gate)
    silu = gate * s
    return g * value * (s + silu * (1.0 - s)), g * silu


@jit.inline
def silu_and_mul(args, lo, hi, T):
    """Rows [lo, hi); the gate is the first half."""
    g, x, dx = ptr(load(args, BLOCK.g), T), ptr(load(args, BLOCK.x), T), ptr(load(args, BLOCK.dx), T)
    size, g_stride, x_stride = load(args, BLOCK.size), load(args, BLOCK.g_stride), load(args, BLOCK.x_stride)
    for row in range(lo, hi):
        g_row, gate, dgate = g + row * g_stride, x + row * x_stride, dx + row * 2 * size
        value, dvalue = gate + size, dgate + size
        i = 0
        while i + LANES <= size:
            one, two = halves(vload(g_row, i, LANES), vload(gate, i, LANES), vload(value, i, LANES))
            vstore(dgate, i, one)
            vstore(dvalue, i, two)
            i += LANES
        if i < size:
            left = size - i
            v, u = vload_first(gate, i, LANES, left), vload_first(value, i, LANES, left)
            one, two = halves(vload_first(g_row, i, LANES, left), v, u)
            vstore_first(dgate, i, one, left)
            vstore_first(dvalue, i, two, left)
    return 0
