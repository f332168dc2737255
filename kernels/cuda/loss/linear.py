"""Cross entropy of rows of logits, in place (`kernels/cpu/loss/linear.py`): a row for a block."""

from numba import types

from ...blocks.gemm import LOGITS, LOSS, TARGETS
from ...build import jit
from ...cpu.loss.linear import BAD_TARGET
from ...lang.ptx import barrier, thread, threads
from ...lang.simd import load, ptr, store
from ...lang.vmath import libm
from ..block import block_sum, width
from ..norm.held import offset
from ..norm.softmax import CHUNK, chunk, exp_below, exp_of, row_statistics, write_chunk
from .classes import fill_row

I64, F64 = types.int64, types.float64


@jit.inline
def prepare(args, lo, hi, I):
    """Check the targets, and find by what the loss of each row is multiplied."""
    targets, ignored, count, wrong = ptr(load(args, TARGETS.target), I), load(args, TARGETS.ignored), 0, 0
    for i in range(thread(), load(args, TARGETS.count), threads()):
        target = I64(load(targets, i))
        if target != ignored:
            count += 1
            if target < 0 or target >= load(args, TARGETS.classes):
                wrong = BAD_TARGET
    count = block_sum(count)
    if thread() == 0:
        store(ptr(load(args, TARGETS.factor), F64), 0, 1.0 / F64(count) if load(args, TARGETS.mean) != 0 else 1.0)
    return wrong


@jit.inline
def total(args, lo, hi, O):
    """The sum of the losses of all rows times the factor."""
    losses, whole = ptr(load(args, LOSS.losses), F64), 0.0
    for i in range(thread(), load(args, LOSS.count), threads()):
        whole += load(losses, i)
    whole = block_sum(whole)
    if thread() == 0:
        store(ptr(load(args, LOSS.y), O), 0, whole * load(ptr(load(args, LOSS.factor), F64), 0))
    return 0


@jit.inline
def rows(args, lo, hi, T, I):
    """The loss of row `lo` of logits, which become their gradients, times the factor, if these are wanted."""
    classes, row, wanted = load(args, LOGITS.classes), load(args, LOGITS.row), load(args, LOGITS.gradients) != 0
    factor = 1.0
    if load(args, LOGITS.factor) != 0:
        factor = load(ptr(load(args, LOGITS.factor), F64), 0)
    losses, target = ptr(load(args, LOGITS.losses), F64), I64(load(ptr(load(args, LOGITS.target), I), lo))
    logits = ptr(load(args, LOGITS.logits), T) + lo * row
    if wanted:  # what lies between rows is multiplied, too
        for i in range(classes + thread(), row, threads()):
            store(logits, i, 0.0)
    if target == load(args, LOGITS.ignored) or target < 0 or target >= classes:  # `prepare` tells of these
        if thread() == 0:
            store(losses, lo, 0.0)
        if wanted:
            fill_row(logits, classes, 0.0)
        return 0
    own = load(logits, target)
    shift, normaliser = row_statistics(logits, classes, (thread(), threads()), CHUNK)
    shift, normaliser = F64(shift), F64(normaliser)
    if thread() == 0:
        store(losses, lo, (libm("log", normaliser) + shift) - F64(own))
    if wanted:
        barrier()  # all have read their target's logit
        scale, low, apart = factor / normaliser, offset(logits), threads() * width(logits)
        for begin in range(thread() * width(logits), low + classes, CHUNK * apart):
            v, _ = chunk(logits, begin, apart, low, low + classes, CHUNK)
            write_chunk(logits, exp_below(logits, v - shift) * scale, begin, apart, low, low + classes)
        barrier()
        if thread() == 0:
            store(logits, target, F64(exp_of(F64(own) - shift)) * scale - factor)
    return 0
