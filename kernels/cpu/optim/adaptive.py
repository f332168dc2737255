"""Rules of fused steps whose step size adapts: Adamax, RAdam, Adadelta, Rprop; `update.py` says what a rule is."""

import math

from ...blocks.optim import ADADELTA, ADAMAX, RADAM, RPROP
from ...build import jit
from ...lang.simd import load, muladd, select, vabs, vmax, vmin, vsqrt
from .update import group_of, step_of, walk

# ---- Adamax ------------------------------------------------------------------------------------


@jit.inline
def adamax_numbers(row):
    h = group_of(row)
    beta1, beta2 = load(h, ADAMAX.beta1), load(h, ADAMAX.beta2)
    size = load(h, ADAMAX.lr) / (1.0 - beta1 ** step_of(row))
    return size, 1.0 - beta1, beta2, load(h, ADAMAX.eps), load(h, ADAMAX.weight_decay), load(h, ADAMAX.sign)


@jit.inline
def adamax_rule(numbers, p, g, u, v, w):
    size, taken, beta2, eps, decay, sign = numbers
    g = g * sign
    if decay != 0.0:
        g = muladd(p, decay, g)
    u = muladd(g - u, taken, u)
    v = vmax(v * beta2, vabs(g) + eps)
    return p - u * size / v, u, v, w


@jit.inline
def adamax(args, lo, hi, W, C, G, S):
    """States: mean of gradients, the largest of them with decay."""
    return walk(args, lo, hi, adamax_numbers, adamax_rule, W, C, G, S)


# ---- RAdam -------------------------------------------------------------------------------------


@jit.inline
def radam_numbers(row):
    h, step = group_of(row), step_of(row)
    lr, beta1, beta2, decay = load(h, RADAM.lr), load(h, RADAM.beta1), load(h, RADAM.beta2), load(h, RADAM.weight_decay)
    rest = 1.0 - beta2**step
    size, adaptive = lr / (1.0 - beta1**step), 0.0
    longest = 2.0 / (1.0 - beta2) - 1.0
    length = longest - 2.0 * step * beta2**step / rest
    if length > 5.0:
        adaptive = 1.0
        rectified = (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)
        size = size * math.sqrt(rest) * math.sqrt(rectified)
    keep = 1.0
    if load(h, RADAM.decoupled) != 0.0:
        keep, decay = 1.0 - lr * decay, 0.0
    return size, adaptive, 1.0 - beta1, beta2, 1.0 - beta2, load(h, RADAM.eps), keep, decay, load(h, RADAM.sign)


@jit.inline
def radam_rule(numbers, p, g, u, v, w):
    size, adaptive, taken, beta2, taken2, eps, keep, decay, sign = numbers
    g = g * sign
    p = p * keep
    if decay != 0.0:
        g = muladd(p, decay, g)
    u = muladd(g - u, taken, u)
    v = muladd(v, beta2, g * g * taken2)
    way = u * size
    if adaptive != 0.0:
        way = way / (vsqrt(v) + eps)
    return p - way, u, v, w


@jit.inline
def radam(args, lo, hi, W, C, G, S):
    """States: mean of gradients, mean of their squares."""
    return walk(args, lo, hi, radam_numbers, radam_rule, W, C, G, S)


# ---- Adadelta ----------------------------------------------------------------------------------


@jit.inline
def adadelta_numbers(row):
    h = group_of(row)
    rho, decay = load(h, ADADELTA.rho), load(h, ADADELTA.weight_decay)
    return load(h, ADADELTA.lr), rho, 1.0 - rho, load(h, ADADELTA.eps), decay, load(h, ADADELTA.sign)


@jit.inline
def adadelta_rule(numbers, p, g, u, v, w):
    lr, rho, taken, eps, decay, sign = numbers
    g = g * sign
    if decay != 0.0:
        g = muladd(p, decay, g)
    u = muladd(u, rho, g * g * taken)
    way = vsqrt(v + eps) / vsqrt(u + eps) * g
    v = muladd(v, rho, way * way * taken)
    return muladd(way, -lr, p), u, v, w


@jit.inline
def adadelta(args, lo, hi, W, C, G, S):
    """States: mean of squared gradients, mean of squared updates."""
    return walk(args, lo, hi, adadelta_numbers, adadelta_rule, W, C, G, S)


# ---- Rprop -------------------------------------------------------------------------------------


@jit.inline
def rprop_numbers(row):
    h = group_of(row)
    return load(h, RPROP.less), load(h, RPROP.more), load(h, RPROP.least), load(h, RPROP.most), load(h, RPROP.sign)


@jit.inline
def rprop_rule(numbers, p, g, u, v, w):
    less, more, least, most, sign = numbers
    g = g * sign
    turn = g * u
    factor = select(turn > 0.0, more, select(turn < 0.0, less, select(turn == 0.0, 1.0, turn)))
    v = vmin(vmax(v * factor, least), most)
    g = select(turn < 0.0, 0.0, g)
    way = select(g > 0.0, 1.0, select(g < 0.0, -1.0, g))
    return muladd(way, -v, p), g, v, w


@jit.inline
def rprop(args, lo, hi, W, C, G, S):
    """States: the gradient before (0 where its sign changed), the size of the step."""
    return walk(args, lo, hi, rprop_numbers, rprop_rule, W, C, G, S)
