"""Optimizer steps over many tensors in one launch: parameters, gradients and states read once, written once.

A table (`kernels/blocks/optim.py`) has one row for each parameter. Its tensors are thought of as laid end to
end, each rounded up to a multiple of ALIGN elements, and a launch counts in units of UNIT elements of that: slices
are equal work however sizes differ, and begin on a cache line. Numbers of a parameter group (learning rate, betas,
...) lie in a block of float64 that rows point to, so groups share a launch as well.

Types: W of the values that are updated (the parameter, or its float32 master copy), C of the copy that is rounded
from them where a row has one, G of gradients, S of states. Everything is computed in float32, or float64 if S is.
"""

import math

from numba import types

from ...blocks.optim import ADAGRAD, ADAM, ALIGN, LION, PARAMETER, RMSPROP, SGD, STEP, UNIT
from ...build import isa, jit
from ...lang.simd import (
    bitcast,
    convert,
    fill,
    load,
    muladd,
    ptr,
    select,
    vload,
    vload_first,
    vmax,
    vsqrt,
    vstore,
    vstore_first,
)

LANES = isa.lanes()
F64, I64, F32 = types.float64, types.int64, types.float32


# Registers that a row advances by: tests of which states exist cost as much as the arithmetic of one (SGD in cache, 100
# thousand elements, 1 thread: 22 us with one, 13 with four). AVX-512 has the 32 registers that four take.
WIDE = 4 * LANES if LANES == 16 else 2 * LANES


def _updater(lanes):
    """`update` for that many elements at a time."""

    @jit.inline
    def get(x, i, left, T):
        if left >= lanes:
            return convert(vload(x, i, lanes), T)
        return convert(vload_first(x, i, lanes, left), T)

    @jit.inline
    def put(x, i, left, v, T):
        if left >= lanes:
            vstore(x, i, convert(v, T))
        else:
            vstore_first(x, i, convert(v, T), left)

    @jit.inline
    def update(rule, numbers, places, i, left, factor, W, C, G, S):
        """Elements from i on of a row: `rule(numbers, value, gradient, three states)` gives the new value and states.

        Only the first `left` are read and written, if there are fewer than `lanes`.
        """
        values, gradient, copy, first, second, third = places
        zero = fill(0.0, S, lanes)
        u, v, w = zero, zero, zero
        if first != 0:
            u = get(ptr(first, S), i, left, S)
        if second != 0:
            v = get(ptr(second, S), i, left, S)
        if third != 0:
            w = get(ptr(third, S), i, left, S)
        g = get(ptr(gradient, G), i, left, S) * factor
        p, u, v, w = rule(numbers, get(ptr(values, W), i, left, S), g, u, v, w)
        put(ptr(values, W), i, left, p, W)
        if copy != 0:
            put(ptr(copy, C), i, left, p, C)
        if first != 0:
            put(ptr(first, S), i, left, u, S)
        if second != 0:
            put(ptr(second, S), i, left, v, S)
        if third != 0:
            put(ptr(third, S), i, left, w, S)

    return update


update_wide, update_one = _updater(WIDE), _updater(LANES)


@jit.inline
def places_of(row):
    """The addresses of a row; in registers, since a store might change the table for all that LLVM knows."""
    return (
        load(row, PARAMETER.values), load(row, PARAMETER.gradient), load(row, PARAMETER.copy),
        load(row, PARAMETER.first), load(row, PARAMETER.second), load(row, PARAMETER.third),
    )  # fmt: skip


@jit.inline
def walk_rows(args, start, left, prepare, rule, part, W, C, G, S):
    """Apply a rule to `left` elements from `start` on, as the table counts them, a part of a row at a time.

    `prepare(row)` gives the numbers of a row, once; `part` does elements [start, stop) of one.
    """
    table, rows, factor = ptr(load(args, STEP.table), I64), load(args, STEP.rows), bitcast(load(args, STEP.factor), F64)
    for index in range(rows):
        row = table + index * PARAMETER.WIDTH
        count = load(row, PARAMETER.numel)
        padded = (count + ALIGN - 1) // ALIGN * ALIGN
        if start >= padded:
            start -= padded
            continue
        stop = min(count, start + left)
        left -= min(left, padded - start)
        if load(row, PARAMETER.gradient) != 0:
            part(rule, prepare(row), places_of(row), start, stop, factor, W, C, G, S)
        start = 0
        if left <= 0:
            break


@jit.inline
def row_part(rule, numbers, places, start, stop, factor, W, C, G, S):
    """Elements [start, stop) of a row."""
    i = start
    while i + WIDE <= stop:
        update_wide(rule, numbers, places, i, WIDE, factor, W, C, G, S)
        i += WIDE
    while i < stop:
        update_one(rule, numbers, places, i, stop - i, factor, W, C, G, S)
        i += LANES


@jit.inline
def walk(args, lo, hi, prepare, rule, W, C, G, S):
    """Apply a rule to units [lo, hi)."""
    walk_rows(args, lo * UNIT, (hi - lo) * UNIT, prepare, rule, row_part, W, C, G, S)
    return 0


@jit.inline
def group_of(row):
    """The numbers of a row's group."""
    return ptr(load(row, PARAMETER.group), F64)


@jit.inline
def step_of(row):
    """The step count of a row."""
    return float(load(ptr(load(row, PARAMETER.step), F32), 0))


# ---- SGD ---------------------------------------------------------------------------------------


@jit.inline
def sgd_numbers(row):
    h = group_of(row)
    momentum, taken = load(h, SGD.momentum), 1.0 - load(h, SGD.dampening)
    keep = momentum
    if load(row, PARAMETER.fresh) != 0:  # the buffer begins as the gradient, whatever the dampening
        keep, taken = 0.0, 1.0
    return load(h, SGD.lr), keep, taken, load(h, SGD.weight_decay), momentum, load(h, SGD.nesterov), load(h, SGD.sign)


@jit.inline
def sgd_rule(numbers, p, g, u, v, w):
    lr, keep, taken, decay, momentum, nesterov, sign = numbers
    g = g * sign
    if decay != 0.0:
        g = muladd(p, decay, g)
    if momentum != 0.0:
        u = muladd(u, keep, g * taken)
        if nesterov != 0.0:
            g = muladd(u, momentum, g)
        else:
            g = u
    return muladd(g, -lr, p), u, v, w


@jit.inline
def sgd(args, lo, hi, W, C, G, S):
    """State: the momentum buffer."""
    return walk(args, lo, hi, sgd_numbers, sgd_rule, W, C, G, S)


# ---- Adam and AdamW ----------------------------------------------------------------------------


@jit.inline
def adam_numbers(row):
    h, step = group_of(row), step_of(row)
    lr, beta1, beta2, decay = load(h, ADAM.lr), load(h, ADAM.beta1), load(h, ADAM.beta2), load(h, ADAM.weight_decay)
    size = lr / (1.0 - beta1**step)
    inverse = 1.0 / math.sqrt(1.0 - beta2**step)
    keep = 1.0
    if load(h, ADAM.decoupled) != 0.0:
        keep, decay = 1.0 - lr * decay, 0.0
    eps, amsgrad, sign = load(h, ADAM.eps), load(h, ADAM.amsgrad), load(h, ADAM.sign)
    return size, inverse, 1.0 - beta1, beta2, 1.0 - beta2, eps, keep, decay, amsgrad, sign


@jit.inline
def adam_rule(numbers, p, g, u, v, w):
    size, inverse, taken, beta2, taken2, eps, keep, decay, amsgrad, sign = numbers
    g = g * sign
    p = p * keep
    if decay != 0.0:
        g = muladd(p, decay, g)
    u = muladd(g - u, taken, u)
    v = muladd(v, beta2, g * g * taken2)
    largest = v
    if amsgrad != 0.0:
        w = vmax(w, v)
        largest = w
    return p - u * size / muladd(vsqrt(largest), inverse, eps), u, v, w


@jit.inline
def adam(args, lo, hi, W, C, G, S):
    """States: mean of gradients, mean of their squares, the largest of those."""
    return walk(args, lo, hi, adam_numbers, adam_rule, W, C, G, S)


# ---- Adagrad -----------------------------------------------------------------------------------


@jit.inline
def adagrad_numbers(row):
    h = group_of(row)
    lr = load(h, ADAGRAD.lr) / (1.0 + (step_of(row) - 1.0) * load(h, ADAGRAD.lr_decay))
    return lr, load(h, ADAGRAD.weight_decay), load(h, ADAGRAD.eps), load(h, ADAGRAD.sign)


@jit.inline
def adagrad_rule(numbers, p, g, u, v, w):
    lr, decay, eps, sign = numbers
    g = g * sign
    if decay != 0.0:
        g = muladd(p, decay, g)
    u = muladd(g, g, u)
    return p - g * lr / (vsqrt(u) + eps), u, v, w


@jit.inline
def adagrad(args, lo, hi, W, C, G, S):
    """State: the sum of squared gradients."""
    return walk(args, lo, hi, adagrad_numbers, adagrad_rule, W, C, G, S)


# ---- RMSprop -----------------------------------------------------------------------------------


@jit.inline
def rmsprop_numbers(row):
    h = group_of(row)
    alpha = load(h, RMSPROP.alpha)
    lr, eps, decay = load(h, RMSPROP.lr), load(h, RMSPROP.eps), load(h, RMSPROP.weight_decay)
    momentum, centered, sign = load(h, RMSPROP.momentum), load(h, RMSPROP.centered), load(h, RMSPROP.sign)
    return lr, alpha, 1.0 - alpha, eps, decay, momentum, centered, sign


@jit.inline
def rmsprop_rule(numbers, p, g, u, v, w):
    lr, alpha, taken, eps, decay, momentum, centered, sign = numbers
    g = g * sign
    if decay != 0.0:
        g = muladd(p, decay, g)
    u = muladd(u, alpha, g * g * taken)
    variance = u
    if centered != 0.0:
        w = muladd(g - w, taken, w)
        variance = vmax(muladd(-w, w, u), 0.0)  # rounding may take it below zero, and its root is taken
    g = g / (vsqrt(variance) + eps)
    if momentum != 0.0:
        v = muladd(v, momentum, g)
        g = v
    return muladd(g, -lr, p), u, v, w


@jit.inline
def rmsprop(args, lo, hi, W, C, G, S):
    """States: mean of squared gradients, momentum buffer, mean of gradients."""
    return walk(args, lo, hi, rmsprop_numbers, rmsprop_rule, W, C, G, S)


# ---- Lion --------------------------------------------------------------------------------------


@jit.inline
def lion_numbers(row):
    h = group_of(row)
    beta1, beta2 = load(h, LION.beta1), load(h, LION.beta2)
    lr, keep = load(h, LION.lr), 1.0 - load(h, LION.lr) * load(h, LION.weight_decay)
    return lr, beta1, 1.0 - beta1, beta2, 1.0 - beta2, keep, load(h, LION.sign)


@jit.inline
def lion_rule(numbers, p, g, u, v, w):
    lr, beta1, taken1, beta2, taken2, keep, sign = numbers
    g = g * sign
    way = muladd(u, beta1, g * taken1)
    way = select(way > 0.0, 1.0, select(way < 0.0, -1.0, way))
    return muladd(way, -lr, p * keep), muladd(u, beta2, g * taken2), v, w


@jit.inline
def lion(args, lo, hi, W, C, G, S):
    """State: mean of gradients."""
    return walk(args, lo, hi, lion_numbers, lion_rule, W, C, G, S)
