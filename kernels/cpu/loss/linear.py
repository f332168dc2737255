"""Cross entropy of a block of rows of logits, in place: the loss of each row, and the gradient of its logits.

`ops/linear_loss.py` computes the logits of some rows at a time, so they are never all in memory. A row is read three
times, by when it lies in the second-level cache (50,257 logits: 200 KB).
"""

from numba import types

from ...blocks.gemm import LOGITS, LOSS, TARGETS
from ...build import isa, jit
from ...lang import vmath
from ...lang.by_type import by_type
from ...lang.simd import (
    fill,
    load,
    ptr,
    ramp,
    reduce_add,
    reduce_max,
    select,
    store,
    vload,
    vload_first,
    vmax,
    vstore,
    vstore_first,
)
from ..gemm.microkernel import sum_type

LANES = isa.lanes()
BLOCK = 512  # vectors whose lanes are summed before they are set aside
BAD_TARGET = 1
I64, F64 = types.int64, types.float64


@jit.inline
def prepare(args, lo, hi, I):
    """Check the targets, and find by what the loss of each row is multiplied."""
    targets, count = ptr(load(args, TARGETS.target), I), 0
    for i in range(load(args, TARGETS.count)):
        target = I64(load(targets, i))
        if target != load(args, TARGETS.ignored):
            if target < 0 or target >= load(args, TARGETS.classes):
                return BAD_TARGET
            count += 1
    factor = ptr(load(args, TARGETS.factor), F64)
    store(factor, 0, 1.0)
    if load(args, TARGETS.mean) != 0:
        store(factor, 0, 1.0 / F64(count))
    return 0


@jit.inline
def total(args, lo, hi, O):
    """The sum of the losses of all rows times the factor."""
    losses, whole = ptr(load(args, LOSS.losses), F64), 0.0
    for i in range(load(args, LOSS.count)):
        whole += load(losses, i)
    store(ptr(load(args, LOSS.y), O), 0, whole * load(ptr(load(args, LOSS.factor), F64), 0))
    return 0


@jit.inline
def rows(args, lo, hi, T, I):
    """Losses of rows [lo, hi) of logits, which become their gradients, times the factor, if these are wanted."""
    classes, row, wanted = load(args, LOGITS.classes), load(args, LOGITS.row), load(args, LOGITS.gradients) != 0
    factor = 1.0
    if load(args, LOGITS.factor) != 0:
        factor = load(ptr(load(args, LOGITS.factor), F64), 0)
    losses, targets = ptr(load(args, LOGITS.losses), F64), ptr(load(args, LOGITS.target), I)
    for i in range(lo, hi):
        logits, target = ptr(load(args, LOGITS.logits), T) + i * row, I64(load(targets, i))
        if wanted:  # what lies between rows is multiplied, too
            scale_row(logits + classes, row - classes, 0.0, 0.0)
        if target == load(args, LOGITS.ignored):
            store(losses, i, 0.0)
            if wanted:
                scale_row(logits, classes, 0.0, 0.0)
            continue
        own = load(logits, target)
        highest = row_max(logits, classes)
        normaliser = row_sum(logits, classes, highest)
        log = vmath.log(F64(normaliser))
        store(losses, i, (log + highest) - own)
        if wanted:
            scale_row(logits, classes, highest, factor / normaliser)
            store(logits, target, (vmath.exp(F64(own) - highest) / normaliser - 1.0) * factor)
    return 0


@by_type
def row_max(x, size):
    """The largest of `size` elements; NaN if one is."""
    kind, count = sum_type(x.dtype), LANES

    def implementation(x, size):
        a, b = fill(-float("inf"), kind, count), fill(-float("inf"), kind, count)
        i = 0
        while i + 2 * count <= size:
            a, b = vmax(a, vload(x, i, count)), vmax(b, vload(x, i + count, count))
            i += 2 * count
        while i < size:
            left = size - i
            inside = ramp(0, I64, count) < left
            a = vmax(a, select(inside, vload_first(x, i, count, left), -float("inf")))
            i += count
        return reduce_max(vmax(a, b))

    return implementation


@by_type
def row_sum(x, size, highest):
    """The sum of exp(x - highest) over `size` elements."""
    kind, count = sum_type(x.dtype), LANES

    def implementation(x, size, highest):
        whole, i = fill(0.0, kind, count), 0
        while i + count <= size:
            part = fill(0.0, kind, count)
            stop = min(size - count, i + (BLOCK - 1) * count)
            while i <= stop:
                part = part + vmath.exp(vload(x, i, count) - highest)
                i += count
            whole = whole + part
        if i < size:
            left = size - i
            inside = ramp(0, I64, count) < left
            whole = whole + select(inside, vmath.exp(vload_first(x, i, count, left) - highest), 0.0)
        return reduce_add(whole)

    return implementation


@by_type
def scale_row(x, size, highest, factor):
    """x = exp(x - highest) * factor; zeros where the factor is 0."""
    kind, count = sum_type(x.dtype), LANES

    def implementation(x, size, highest, factor):
        if factor == 0.0:
            for i in range(0, size, count):
                vstore_first(x, i, fill(0.0, kind, count), size - i)
            return
        whole = size // count * count
        for i in range(0, whole, count):
            vstore(x, i, vmath.exp(vload(x, i, count) - highest) * factor)
        if whole < size:
            left = size - whole
            vstore_first(x, whole, vmath.exp(vload_first(x, whole, count, left) - highest) * factor, left)

    return implementation
