"""Cross entropy of logits, and the negative log likelihood: rows of classes, forward and backward.

A row of logits is read once, in blocks, for a sum of exponentials that is scaled where the shift must grow (Milakov
and Gimelshein, arXiv 1805.02867). What the backward pass needs of a row is the pair (shift, sum): the softmax is
exp(x - shift) / sum, exact also for logits of 10,000, where shift + log(sum) in one float32 would be off by 5e-4. A
row that has no softmax (its maximum is NaN or infinite) has the sum NaN.
"""

from numba import types

from ...blocks.loss import BACKWARD, FORWARD
from ...build import isa, jit
from ...lang.rows import fill_row
from ...lang.shuffle import high, largest, low
from ...lang.simd import (
    bitcast,
    fill,
    lane,
    load,
    muladd,
    ptr,
    ramp,
    reduce_add,
    reduce_or,
    select,
    store,
    vload,
    vload_first,
    vstore,
    vstore_first,
)
from ...lang.vmath import exp, libm
from ..norm.softmax import exp_below, row_max

LANES = isa.lanes()
PAIR = 2 * LANES  # an exponential needs a dozen registers for its constants
INF, NAN = float("inf"), float("nan")
F64, I64 = types.float64, types.int64
BLOCK = 4096  # elements: half of a 32 KiB L1 in float32
SLACK = 60.0  # e^60 times any number of classes is a float32
BAD_CLASS = 1  # error: a class that is neither one of the row's nor the ignored one


@jit.inline
def exp_sum(x, size, shift, T):
    """(sum of exp(x[i] - shift), the largest x[i], whether one is NaN, which the other two do not tell)."""
    total, best = fill(0.0, T, PAIR), fill(-INF, T, PAIR)
    bad = best != best
    i = 0
    while i + PAIR <= size:
        v = vload(x, i, PAIR)
        total = total + exp_below(v - shift)
        best = select(v > best, v, best)
        bad = bad | (v != v)
        i += PAIR
    if i < size:
        left = size - i
        v = select(ramp(0, I64, PAIR) < left, vload_first(x, i, PAIR, left), -INF)
        total = total + exp_below(v - shift)
        best = select(v > best, v, best)
        bad = bad | (v != v)
    return F64(reduce_add(low(total) + high(total))), F64(largest(best)), reduce_or(bad)


@jit.inline
def row_statistics(x, size, T):
    """(shift, sum of exp(x - shift)) of a row, whose maximum is at most shift + SLACK; the sum may be NaN.

    The first elements give the shift, so that a block is read once even by the first-level cache; the rare block that
    has a larger maximum is read again. The sum is at least 1: the shift is one of the logits.
    """
    shift, total = F64(row_max(x, min(size, PAIR), T)), 0.0
    for start in range(0, size, BLOCK):
        count = min(BLOCK, size - start)
        if -INF < shift < INF:
            part, best, bad = exp_sum(x + start, count, shift, T)
            if best <= shift + SLACK and not bad:
                total += part
                continue
        best = F64(row_max(x + start, count, T))
        if best > shift or best != best:
            if shift > -INF:
                total *= F64(lane(exp(fill(shift - best, T, LANES)), 0))
            shift = best
        if shift > -INF:
            total += exp_sum(x + start, count, shift, T)[0]
    return shift, (total if -INF < shift < INF else NAN)


@jit.inline
def expected_loss(x, q, w, has_weight, size, factors, T, SOFT):
    """(sum of p * ((shift - x) + log_sum), sum of p) over a row, p = (q * keep + base) * w; without SOFT p = base * w.

    `factors` are (shift, log_sum, keep, base). A class of p = 0 adds nothing, be its logit -inf.
    """
    shift, log_sum, keep, base = factors
    total, mass = fill(0.0, T, LANES), fill(0.0, T, LANES)
    for i in range(0, size, LANES):
        left = size - i
        p = fill(base, T, LANES)
        if SOFT:
            p = vload_first(q, i, LANES, left) * keep + p
        if has_weight:
            p = p * vload_first(w, i, LANES, left)
        valid = ramp(0, I64, LANES) < left
        p = select(valid, p, 0.0)
        v = p * ((shift - vload_first(x, i, LANES, left)) + log_sum)
        total = total + select(p == 0.0, 0.0, v)
        mass = mass + p
    return reduce_add(total), reduce_add(mass)


@jit.inline
def weight_of(weight, row_class, has_weight):
    """The weight of a class, 1 without weights."""
    return F64(load(weight, row_class)) if has_weight else 1.0


@jit.inline
def class_weights(args, C):
    """(weights of the classes, whether there are any)."""
    weight = load(args, FORWARD.weight)
    return ptr(weight, C), weight != 0


@jit.inline
def reduce_rows(args, target, T, C, CLASSES):
    """The sum or mean of all losses, and the divisor of the mean: the weights of the classes that count."""
    losses, num_rows = ptr(load(args, FORWARD.losses), C), load(args, FORWARD.rows)
    (weight, has_weight), ignored = class_weights(args, C), load(args, FORWARD.ignored)
    total, divisor = 0.0, 0.0
    for row in range(num_rows):
        total += F64(load(losses, row))
    if load(args, FORWARD.mean) != 0:
        divisor = float(num_rows)
        if CLASSES:
            divisor = 0.0
            for row in range(num_rows):
                c = I64(load(target, row))
                if c != ignored:
                    divisor += weight_of(weight, c, has_weight)
        total = total / divisor
    store(ptr(load(args, FORWARD.y), T), 0, total)
    if load(args, FORWARD.divisor) != 0:
        store(ptr(load(args, FORWARD.divisor), C), 0, divisor)


@jit.inline
def reduction(args, lo, hi, T, C, I, CLASSES):
    """`reduce_rows` as a launch of its own."""
    reduce_rows(args, ptr(load(args, FORWARD.target), I), T, C, CLASSES)
    return 0


@jit.inline
def cross_entropy(args, lo, hi, T, C, I, Q, O, SOFT):
    """Losses of rows [lo, hi); C is the compute type of T, O the type of the losses.

    The target has class ids of type I, with SOFT probabilities of type Q.
    """
    x, x_stride, size = ptr(load(args, FORWARD.x), T), load(args, FORWARD.stride), load(args, FORWARD.classes)
    target, soft = ptr(load(args, FORWARD.target), I), ptr(load(args, FORWARD.target), Q)
    (weight, has_weight), ignored = class_weights(args, C), load(args, FORWARD.ignored)
    smoothing, statistics = bitcast(load(args, FORWARD.smoothing), F64), ptr(load(args, FORWARD.statistics), C)
    losses, base = ptr(load(args, FORWARD.losses), O), smoothing / float(size)
    for row in range(lo, hi):
        c, x_row = 0, x + row * x_stride
        if not SOFT:
            c = I64(load(target, row))
            if c == ignored:
                store(losses, row, 0.0)
                continue
            if c < 0 or c >= size:
                return BAD_CLASS
        shift, total = row_statistics(x_row, size, T)
        log_sum = libm("log", total)
        if load(args, FORWARD.statistics) != 0:
            store(statistics, 2 * row, shift)
            store(statistics, 2 * row + 1, total)
        loss = 0.0
        if not SOFT:
            loss = ((shift - F64(load(x_row, c))) + log_sum) * weight_of(weight, c, has_weight) * (1.0 - smoothing)
        if SOFT or smoothing > 0.0:
            factors = (shift, log_sum, 1.0 - smoothing, base)
            q = soft + row * size
            loss += F64(expected_loss(x_row, q, weight, has_weight, size, factors, T, SOFT)[0])
        store(losses, row, loss)
    if load(args, FORWARD.rows) != 0:
        reduce_rows(args, target, T, C, not SOFT)
    return 0


@jit.inline
def write_gradient(x, q, w, has_weight, dx, size, factors, T, SOFT):
    """dx = exp(x - shift) * a - p * scale, p = (q * keep + base) * w; without SOFT p = base * w.

    `factors` are (shift, a, scale, keep, base).
    """
    shift, a, scale, keep, base = factors
    uniform = base * scale
    plain = not SOFT and (not has_weight or base == 0.0)
    i = 0
    while i + PAIR <= size and plain:
        vstore(dx, i, muladd(exp_below(vload(x, i, PAIR) - shift), a, -uniform))
        i += PAIR
    while i < size:
        left = size - i
        v = exp_below(vload_first(x, i, LANES, left) - shift)
        p = fill(uniform, T, LANES)
        if SOFT:
            p = muladd(vload_first(q, i, LANES, left), keep * scale, p)
        if has_weight:
            p = p * vload_first(w, i, LANES, left)
        v = v * a - p
        vstore_first(dx, i, v, left)
        i += LANES


@jit.inline
def backward_arguments(args, T, C, I):
    """(classes, target, weight, whether there is one, ignored class, g, its step, divisor of the mean or 1, dx)."""
    weight, divisor = load(args, BACKWARD.weight), load(args, BACKWARD.divisor)
    return (
        load(args, BACKWARD.classes), ptr(load(args, BACKWARD.target), I), ptr(weight, C), weight != 0,
        load(args, BACKWARD.ignored), ptr(load(args, BACKWARD.g), T), load(args, BACKWARD.g_step),
        F64(load(ptr(divisor, C), 0)) if divisor != 0 else 1.0, ptr(load(args, BACKWARD.dx), T),
    )  # fmt: skip


@jit.inline
def cross_entropy_backward(args, lo, hi, T, C, I, Q, SOFT):
    """Gradients of the logits of rows [lo, hi), in one pass: softmax less target, scaled."""
    x, x_stride = ptr(load(args, BACKWARD.x), T), load(args, BACKWARD.stride)
    size, target, weight, has_weight, ignored, g, g_step, divisor, dx = backward_arguments(args, T, C, I)
    smoothing, statistics = bitcast(load(args, BACKWARD.smoothing), F64), ptr(load(args, BACKWARD.statistics), C)
    soft = ptr(load(args, BACKWARD.target), Q)
    keep, base, uniform = 1.0 - smoothing, smoothing / float(size), 0.0
    if not SOFT and smoothing > 0.0:
        zeros = (0.0, 0.0, keep, base)
        uniform = F64(expected_loss(x, soft, weight, has_weight, size, zeros, T, False)[1])
    for row in range(lo, hi):
        x_row, dx_row = x + row * x_stride, dx + row * size
        c = 0
        if not SOFT:
            c = I64(load(target, row))
            if c == ignored:
                fill_row(dx_row, size, 0.0)
                continue
            if c < 0 or c >= size:
                return BAD_CLASS
        scale = F64(load(g, row * g_step)) / divisor
        shift, total = F64(load(statistics, 2 * row)), F64(load(statistics, 2 * row + 1))
        if SOFT:
            q, zeros = soft + row * size, (0.0, 0.0, keep, base)
            a = scale * F64(expected_loss(x_row, q, weight, has_weight, size, zeros, T, True)[1]) / total
            write_gradient(x_row, q, weight, has_weight, dx_row, size, (shift, a, scale, keep, base), T, True)
            continue
        w = weight_of(weight, c, has_weight)
        a = scale * (w * keep + uniform) / total
        p = F64(lane(exp_below(fill(F64(load(x_row, c)) - shift, T, LANES)), 0))  # now: dx may be x
        write_gradient(x_row, soft, weight, has_weight, dx_row, size, (shift, a, scale, keep, base), T, False)
        store(dx_row, c, p * a - scale * w * (keep + base))
    return 0


@jit.inline
def nll(args, lo, hi, T, C, I, O):
    """Losses of rows [lo, hi) of log-probabilities."""
    x, x_stride, size = ptr(load(args, FORWARD.x), T), load(args, FORWARD.stride), load(args, FORWARD.classes)
    (weight, has_weight), ignored = class_weights(args, C), load(args, FORWARD.ignored)
    target, losses = ptr(load(args, FORWARD.target), I), ptr(load(args, FORWARD.losses), O)
    for row in range(lo, hi):
        c = I64(load(target, row))
        if c == ignored:
            store(losses, row, 0.0)
        elif c < 0 or c >= size:
            return BAD_CLASS
        else:
            store(losses, row, -F64(load(x, row * x_stride + c)) * weight_of(weight, c, has_weight))
    if load(args, FORWARD.rows) != 0:
        reduce_rows(args, target, T, C, True)
    return 0


@jit.inline
def nll_backward(args, lo, hi, T, C, I):
    """Gradients of the log-probabilities of rows [lo, hi). Types as in `cross_entropy`."""
    size, target, weight, has_weight, ignored, g, g_step, divisor, dx = backward_arguments(args, T, C, I)
    for row in range(lo, hi):
        c = I64(load(target, row))
        fill_row(dx + row * size, size, 0.0)
        if c != ignored:
            if c < 0 or c >= size:
                return BAD_CLASS
            store(dx, row * size + c, -F64(load(g, row * g_step)) / divisor * weight_of(weight, c, has_weight))
    return 0
