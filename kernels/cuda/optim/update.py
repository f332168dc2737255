"""Optimizer steps over many tensors in one launch: the rules are those of `kernels/cpu/optim`.

The launch's elements are divided among its blocks in neighbouring parts, so a block computes the numbers of few rows,
and its threads take vectors of 16 bytes of values one beside the other.
"""

from ...blocks.optim import UNIT
from ...build import jit
from ...cpu.optim import update as cpu
from ...lang.by_type import by_type
from ...lang.ptx import block, blocks, thread, threads
from ...lang.simd import convert, ptr, vload_aligned, vload_first, vstore_aligned, vstore_first

PIECE = 2048  # blocks begin at multiples of so many elements


def _updater(lanes):
    """`part` of a row for that many elements of a thread at a time."""

    @jit.inline
    def get(x, i, left, T, whole):
        if whole:
            return convert(vload_aligned(x, i, lanes), T)
        return convert(vload_first(x, i, lanes, left), T)

    @jit.inline
    def put(x, i, left, v, T, whole):
        if whole:
            vstore_aligned(x, i, convert(v, T))
        else:
            vstore_first(x, i, convert(v, T), left)

    @jit.inline
    def update(rule, numbers, places, i, left, factor, W, C, G, S, whole):
        """As on the CPU; `whole`: all `lanes` are there, at multiples of 16 bytes.

        The values stand in for a state that is missing: a test would have to wait for the loads before it.
        """
        values, gradient, copy, first, second, third = places
        p, g = get(ptr(values, W), i, left, S, whole), get(ptr(gradient, G), i, left, S, whole)
        u = get(ptr(first if first != 0 else values, S), i, left, S, whole)
        v = get(ptr(second if second != 0 else values, S), i, left, S, whole)
        w = get(ptr(third if third != 0 else values, S), i, left, S, whole)
        p, u, v, w = rule(numbers, p, g * factor, u, v, w)
        put(ptr(values, W), i, left, p, W, whole)
        if copy != 0:
            put(ptr(copy, C), i, left, p, C, whole)
        if first != 0:
            put(ptr(first, S), i, left, u, S, whole)
        if second != 0:
            put(ptr(second, S), i, left, v, S, whole)
        if third != 0:
            put(ptr(third, S), i, left, w, S, whole)

    @jit.inline
    def part(rule, numbers, places, start, stop, factor, W, C, G, S):
        values, gradient, copy, first, second, third = places
        i, apart = start + thread() * lanes, threads() * lanes
        if (values | gradient | copy | first | second | third) & 15 == 0:
            while i + lanes <= stop:
                update(rule, numbers, places, i, lanes, factor, W, C, G, S, True)
                i += apart
        while i < stop:
            update(rule, numbers, places, i, stop - i, factor, W, C, G, S, False)
            i += apart

    return part


_PARTS = {lanes: _updater(lanes) for lanes in (2, 4, 8)}


@by_type
def part_of(rule, numbers, places, start, stop, factor, W, C, G, S):
    """Elements [start, stop) of a row, by the threads of a block."""
    part = _PARTS[16 * 8 // W.instance_type.bitwidth]

    def implementation(rule, numbers, places, start, stop, factor, W, C, G, S):
        part(rule, numbers, places, start, stop, factor, W, C, G, S)

    return implementation


@jit.inline
def walk(args, units, prepare, rule, W, C, G, S):
    """Apply a rule to all units."""
    size = units * UNIT
    each = (size + blocks() * PIECE - 1) // (blocks() * PIECE) * PIECE
    start = block() * each
    if start < size:
        cpu.walk_rows(args, start, each, prepare, rule, part_of, W, C, G, S)
    return 0


@jit.inline
def sgd(args, lo, hi, W, C, G, S):
    return walk(args, hi, cpu.sgd_numbers, cpu.sgd_rule, W, C, G, S)


@jit.inline
def adam(args, lo, hi, W, C, G, S):
    return walk(args, hi, cpu.adam_numbers, cpu.adam_rule, W, C, G, S)


@jit.inline
def adagrad(args, lo, hi, W, C, G, S):
    return walk(args, hi, cpu.adagrad_numbers, cpu.adagrad_rule, W, C, G, S)


@jit.inline
def rmsprop(args, lo, hi, W, C, G, S):
    return walk(args, hi, cpu.rmsprop_numbers, cpu.rmsprop_rule, W, C, G, S)


@jit.inline
def lion(args, lo, hi, W, C, G, S):
    return walk(args, hi, cpu.lion_numbers, cpu.lion_rule, W, C, G, S)
