"""The scan of a selective state space model (Gu and Dao, arXiv 2312.00752), and states written to a pool.

For one channel with state h [N]: h = exp(dt a) h + dt x b; y = h . c. Backward makes the states of a channel again and
walks back; the gradients of b and c, which channels share, are added up by blocks of channels that the shape gives.
"""

from numba import types

from ...blocks.recurrent import BAD_SLOT, PUT_STATES, SELECTIVE, SELECTIVE_CHANNELS, SELECTIVE_GRAD
from ...build import isa, jit
from ...lang.rows import fill_row
from ...lang.simd import fill, load, muladd, ptr, reduce_add, store, vload_first, vstore_first
from ...lang.vmath import exp
from ..array.copy import copy_row

LANES = isa.lanes()
I64, U8 = types.int64, types.uint8


@jit.inline
def step(before, after, a, b, dt, x, size, T):
    """The state after a token from the one before it."""
    for j in range(0, size, LANES):
        left = size - j
        kept = exp(vload_first(a, j, LANES, left) * dt) * vload_first(before, j, LANES, left)
        vstore_first(after, j, muladd(vload_first(b, j, LANES, left), fill(dt * x, T, LANES), kept), left)


@jit.inline
def selective_scan(args, lo, hi, T):
    """Units [lo, hi) of (sequence, channel)."""
    B = SELECTIVE
    x, dt, a, b = ptr(load(args, B.x), T), ptr(load(args, B.dt), T), ptr(load(args, B.a), T), ptr(load(args, B.b), T)
    c, state, y = ptr(load(args, B.c), T), ptr(load(args, B.state), T), ptr(load(args, B.y), T)
    tokens, channels, size = load(args, B.tokens), load(args, B.channels), load(args, B.size)
    for unit in range(lo, hi):
        batch = unit // channels
        channel = unit - batch * channels
        h = ptr(load(args, B.final), T) + unit * size
        for j in range(size):
            store(h, j, load(state, unit * size + j))
        for i in range(tokens):
            token = batch * tokens + i
            at = token * channels + channel
            step(h, h, a + channel * size, b + token * size, load(dt, at), load(x, at), size, T)
            total = fill(0.0, T, LANES)
            for j in range(0, size, LANES):
                left = size - j
                total = muladd(vload_first(h, j, LANES, left), vload_first(c, token * size + j, LANES, left), total)
            store(y, at, reduce_add(total))
    return 0


@jit.inline
def selective_scan_backward(args, lo, hi, T):
    """Units [lo, hi) of (sequence, block of channels)."""
    B = SELECTIVE_GRAD
    x, dt, a, b = ptr(load(args, B.x), T), ptr(load(args, B.dt), T), ptr(load(args, B.a), T), ptr(load(args, B.b), T)
    c, state, g, g_final = (
        ptr(load(args, B.c), T),
        ptr(load(args, B.state), T),
        ptr(load(args, B.g), T),
        load(args, B.g_final),
    )
    dx, ddt, da = ptr(load(args, B.dx), T), ptr(load(args, B.ddt), T), ptr(load(args, B.da), T)
    tokens, channels, size = load(args, B.tokens), load(args, B.channels), load(args, B.size)
    blocks = (channels + SELECTIVE_CHANNELS - 1) // SELECTIVE_CHANNELS
    for unit in range(lo, hi):
        batch = unit // blocks
        first = (unit - batch * blocks) * SELECTIVE_CHANNELS
        history = ptr(load(args, B.history), T) + unit * (tokens + 1) * size
        db, dc = ptr(load(args, B.db), T) + unit * tokens * size, ptr(load(args, B.dc), T) + unit * tokens * size
        fill_row(db, tokens * size, 0)
        fill_row(dc, tokens * size, 0)
        for channel in range(first, min(channels, first + SELECTIVE_CHANNELS)):
            own = (batch * channels + channel) * size
            dh, da_row, rates = ptr(load(args, B.dstate), T) + own, da + own, a + channel * size
            fill_row(da_row, size, 0)
            for j in range(size):
                store(history, j, load(state, own + j))
                store(dh, j, load(ptr(g_final, T), own + j) if g_final != 0 else T(0))
            for i in range(tokens):
                at, h = (batch * tokens + i) * channels + channel, history + i * size
                step(h, h + size, rates, b + (batch * tokens + i) * size, load(dt, at), load(x, at), size, T)
            for k in range(tokens):
                i = tokens - 1 - k
                row = (batch * tokens + i) * size
                at, h = (batch * tokens + i) * channels + channel, history + i * size
                dt_here, x_here, g_here = load(dt, at), load(x, at), load(g, at)
                into, rate = fill(0.0, T, LANES), fill(0.0, T, LANES)
                for j in range(0, size, LANES):
                    left = size - j
                    d = muladd(
                        vload_first(c, row + j, LANES, left), fill(g_here, T, LANES), vload_first(dh, j, LANES, left)
                    )
                    s = i * size + j
                    after = vload_first(h, size + j, LANES, left)
                    vstore_first(dc, s, muladd(after, fill(g_here, T, LANES), vload_first(dc, s, LANES, left)), left)
                    vstore_first(
                        db, s, muladd(d, fill(dt_here * x_here, T, LANES), vload_first(db, s, LANES, left)), left
                    )
                    into = muladd(d, vload_first(b, row + j, LANES, left), into)
                    r = vload_first(rates, j, LANES, left)
                    kept = d * exp(r * dt_here)
                    slope = kept * vload_first(h, j, LANES, left)
                    rate = muladd(slope, r, rate)
                    vstore_first(
                        da_row, j, muladd(slope, fill(dt_here, T, LANES), vload_first(da_row, j, LANES, left)), left
                    )
                    vstore_first(dh, j, kept, left)
                through = reduce_add(into)
                store(dx, at, through * dt_here)
                store(ddt, at, through * x_here + reduce_add(rate))
    return 0


@jit.inline
def put_states(args, lo, hi):
    """Bytes [lo, hi) of each state to its slot, one state after the other; negative slots are padding."""
    pool, states = ptr(load(args, PUT_STATES.pool), U8), ptr(load(args, PUT_STATES.states), U8)
    index, size = ptr(load(args, PUT_STATES.index), I64), load(args, PUT_STATES.size)
    for n in range(load(args, PUT_STATES.count)):
        slot = load(index, n)
        if slot >= load(args, PUT_STATES.slots):
            return BAD_SLOT
        if slot >= 0:
            copy_row(pool + (slot * size + lo), states + (n * size + lo), hi - lo)
    return 0
