"""Cross entropy and the negative log likelihood (formulas: `kernels/cpu/loss/classes.py`): a row for a block.

A row of logits is read once for its statistics (`norm/softmax.py: row_statistics`).
"""

from numba import types

from ...blocks.loss import BACKWARD, FORWARD
from ...build import jit
from ...cpu.loss.classes import BAD_CLASS, backward_arguments, class_weights, weight_of
from ...lang.ptx import barrier, thread, threads
from ...lang.simd import bitcast, load, muladd, ptr, reduce_add, select, store
from ...lang.vmath import exp, libm
from ..block import block_sum, places, read, vector, width, write
from ..norm.held import offset
from ..norm.softmax import CHUNK, chunk, exp_below, exp_of, row_statistics, write_chunk

INF, NAN = float("inf"), float("nan")
F64, I64 = types.float64, types.int64


@jit.inline
def expected_loss(x, q, w, has_weight, size, factors, SOFT):
    """(sum of p * ((shift - x) + log_sum), sum of p) over a row, p = (q * keep + base) * w; without SOFT p = base * w.

    `factors` are (shift, log_sum, keep, base). A class of p = 0 adds nothing, be its logit -inf.
    """
    shift, log_sum, keep, base = factors
    nothing, lanes = vector(x, 0.0), places(x)
    total, mass = nothing, nothing
    for i in range(thread() * width(x), size, threads() * width(x)):
        left = size - i
        p = nothing + base
        if SOFT:
            p = read(q, i, left, nothing) * keep + p
        if has_weight:
            p = p * read(w, i, left, nothing)
        p = select(lanes < left, p, 0.0)
        total = total + select(p == 0.0, 0.0, p * ((shift - read(x, i, left, nothing)) + log_sum))
        mass = mass + p
    return block_sum(reduce_add(total)), block_sum(reduce_add(mass))


@jit.inline
def reduction(args, lo, hi, T, C, I, CLASSES):
    """The sum or mean of all losses, and the divisor of the mean: the weights of the classes that count."""
    losses, num_rows = ptr(load(args, FORWARD.losses), C), load(args, FORWARD.rows)
    target, ignored = ptr(load(args, FORWARD.target), I), load(args, FORWARD.ignored)
    weight, has_weight = class_weights(args, C)
    total, divisor = 0.0, 0.0
    for row in range(thread(), num_rows, threads()):
        total += F64(load(losses, row))
        if CLASSES and load(args, FORWARD.mean) != 0:
            c = I64(load(target, row))
            if c != ignored:
                divisor += weight_of(weight, c, has_weight)
    divisor = block_sum(divisor) if CLASSES else float(num_rows)
    store_reduced(args, block_sum(total), divisor, T, C)
    return 0


@jit.inline
def store_reduced(args, total, divisor, T, C):
    """The result, of the sum of all losses."""
    if thread() == 0:
        store(ptr(load(args, FORWARD.y), T), 0, total / divisor if load(args, FORWARD.mean) != 0 else total)
        if load(args, FORWARD.divisor) != 0:
            store(ptr(load(args, FORWARD.divisor), C), 0, divisor)


@jit.inline
def nll_of_all(args, lo, hi, T, C, I):
    """The sum or mean of the losses of all rows."""
    x, x_stride, size = ptr(load(args, FORWARD.x), T), load(args, FORWARD.stride), load(args, FORWARD.classes)
    (weight, has_weight), ignored = class_weights(args, C), load(args, FORWARD.ignored)
    target, total, divisor, code = ptr(load(args, FORWARD.target), I), 0.0, 0.0, 0
    for row in range(thread(), load(args, FORWARD.rows), threads()):
        c = I64(load(target, row))
        if c != ignored:
            if c < 0 or c >= size:
                code = BAD_CLASS
            else:
                w = weight_of(weight, c, has_weight)
                total -= F64(load(x, row * x_stride + c)) * w
                divisor += w
    store_reduced(args, block_sum(total), block_sum(divisor), T, C)
    return code


@jit.inline
def cross_entropy(args, lo, hi, T, C, I, Q, O, SOFT):
    """The loss of row `lo`; types as on the CPU."""
    size, losses = load(args, FORWARD.classes), ptr(load(args, FORWARD.losses), O)
    x, c = ptr(load(args, FORWARD.x), T) + lo * load(args, FORWARD.stride), 0
    weight, has_weight = class_weights(args, C)
    smoothing, statistics = bitcast(load(args, FORWARD.smoothing), F64), ptr(load(args, FORWARD.statistics), C)
    if not SOFT:
        c = I64(load(ptr(load(args, FORWARD.target), I), lo))
        if c == load(args, FORWARD.ignored):
            if thread() == 0:
                store(losses, lo, 0.0)
            return 0
        if c < 0 or c >= size:
            return BAD_CLASS
    shift, total = row_statistics(x, size, (thread(), threads()), CHUNK)
    shift, total = F64(shift), F64(total)
    log_sum, loss = libm("log", total), 0.0
    if not SOFT:
        loss = ((shift - F64(load(x, c))) + log_sum) * weight_of(weight, c, has_weight) * (1.0 - smoothing)
    if SOFT or smoothing > 0.0:
        factors = (shift, log_sum, 1.0 - smoothing, smoothing / float(size))
        q = ptr(load(args, FORWARD.target), Q) + lo * size
        loss += F64(expected_loss(x, q, weight, has_weight, size, factors, SOFT)[0])
    if thread() == 0:
        store(losses, lo, loss)
        if load(args, FORWARD.statistics) != 0:
            store(statistics, 2 * lo, shift)
            store(statistics, 2 * lo + 1, total)
    return 0


@jit.inline
def fill_row(x, size, value):
    """x[i] = value."""
    v = vector(x, value)
    for i in range(thread() * width(x), size, threads() * width(x)):
        write(x, i, v, size - i)


@jit.inline
def cross_entropy_backward(args, lo, hi, T, C, I, Q, SOFT):
    """Gradients of the logits of row `lo`: softmax less target, scaled."""
    size, target, weight, has_weight, ignored, g, g_step, divisor, dx = backward_arguments(args, T, C, I)
    x, dx, c = ptr(load(args, BACKWARD.x), T) + lo * load(args, BACKWARD.stride), dx + lo * size, 0
    q = ptr(load(args, BACKWARD.target), Q) + lo * size
    smoothing, statistics = bitcast(load(args, BACKWARD.smoothing), F64), ptr(load(args, BACKWARD.statistics), C)
    keep, base = 1.0 - smoothing, smoothing / float(size)
    if not SOFT:
        c = I64(load(target, lo))
        if c == ignored:
            fill_row(dx, size, 0.0)
            return 0
        if c < 0 or c >= size:
            return BAD_CLASS
    scale = F64(load(g, lo * g_step)) / divisor
    shift, total = F64(load(statistics, 2 * lo)), F64(load(statistics, 2 * lo + 1))
    own, p, mass = 0.0, 0.0, 0.0
    if SOFT or smoothing > 0.0:
        mass = F64(expected_loss(x, q, weight, has_weight, size, (0.0, 0.0, keep, base), SOFT)[1])
    if not SOFT:
        own = weight_of(weight, c, has_weight)
        p = F64(exp_of(load(x, c) - C(shift)))
        mass += own * keep
    a, nothing = scale * mass / total, vector(x, 0.0)
    barrier()  # all have read x[c]: dx may be x
    if not SOFT and not has_weight:
        low, apart = offset(x), threads() * width(x)
        for begin in range(thread() * width(x), low + size, CHUNK * apart):
            v, _ = chunk(x, begin, apart, low, low + size, CHUNK)
            write_chunk(dx, exp_below(x, v - shift) * a - base * scale, begin, apart, low, low + size)
        size = 0
    for i in range(thread() * width(x), size, threads() * width(x)):
        left = size - i
        v, part = exp(read(x, i, left, nothing) - shift), nothing + base * scale
        if SOFT:
            part = muladd(read(q, i, left, nothing), keep * scale, part)
        if has_weight:
            part = part * read(weight, i, left, nothing)
        write(dx, i, v * a - part, left)
    if not SOFT:
        barrier()
        if thread() == 0:
            store(dx, c, p * a - scale * own * (keep + base))
    return 0


@jit.inline
def nll_backward(args, lo, hi, T, C, I):
    """Gradients of the log-probabilities of row `lo`."""
    size, target, weight, has_weight, ignored, g, g_step, divisor, dx = backward_arguments(args, T, C, I)
    c = I64(load(target, lo))
    fill_row(dx + lo * size, size, 0.0)
    if c == ignored:
        return 0
    if c < 0 or c >= size:
        return BAD_CLASS
    barrier()
    if thread() == 0:
        store(dx, lo * size + c, -F64(load(g, lo * g_step)) / divisor * weight_of(weight, c, has_weight))
    return 0
