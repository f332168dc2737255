"""Cross entropy of a block of rows of logits, in place: the loss of each row, and the gradient of its logits.

`ops/linear_loss.py` computes the logits of some rows at a time, so they are never all in memory. A row is read three
times, by when it lies in the second-level cache (50,257 logits: 200 KB).
"""

from numba import types
from numba.extending import overload

from ...build import isa, jit
from ...lang import vmath
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
    """Check the targets, and find by what the loss of each row is multiplied.

    0: targets, 1: their number, 2: classes, 3: target to leave out, 4: whether to divide by the number of the others,
    5: address of a float64 for the factor.
    """
    targets, count = ptr(load(args, 0), I), 0
    for i in range(load(args, 1)):
        target = I64(load(targets, i))
        if target != load(args, 3):
            if target < 0 or target >= load(args, 2):
                return BAD_TARGET
            count += 1
    factor = ptr(load(args, 5), F64)
    store(factor, 0, 1.0)
    if load(args, 4) != 0:
        store(factor, 0, 1.0 / F64(count))
    return 0


@jit.inline
def total(args, lo, hi, O):
    """The sum of the losses of all rows times the factor. 0: losses, 1: their number, 2: the factor, 3: result."""
    losses, whole = ptr(load(args, 0), F64), 0.0
    for i in range(load(args, 1)):
        whole += load(losses, i)
    store(ptr(load(args, 3), O), 0, whole * load(ptr(load(args, 2), F64), 0))
    return 0


@jit.inline
def rows(args, lo, hi, T, I):
    """Losses of rows [lo, hi) of logits, which become their gradients.

    0: logits, 1: targets, 2: losses (float64), 3: classes, 4: target to leave out, 5: whether gradients are wanted,
    6: address of a float64 that these are multiplied by (0: 1).
    """
    classes, wanted, factor = load(args, 3), load(args, 5) != 0, 1.0
    if load(args, 6) != 0:
        factor = load(ptr(load(args, 6), F64), 0)
    losses, targets = ptr(load(args, 2), F64), ptr(load(args, 1), I)
    for i in range(lo, hi):
        logits, target = ptr(load(args, 0), T) + i * classes, I64(load(targets, i))
        if target == load(args, 4):
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


def row_max(x, size):
    """The largest of `size` elements; NaN if one is."""
    raise NotImplementedError("`row_max` is for jitted code")


@overload(row_max)
def _row_max(x, size):
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


def row_sum(x, size, highest):
    """The sum of exp(x - highest) over `size` elements."""
    raise NotImplementedError("`row_sum` is for jitted code")


@overload(row_sum)
def _row_sum(x, size, highest):
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


def scale_row(x, size, highest, factor):
    """x = exp(x - highest) * factor; zeros where the factor is 0."""
    raise NotImplementedError("`scale_row` is for jitted code")


@overload(scale_row)
def _scale_row(x, size, highest, factor):
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
