"""Fused steps whose step size adapts, by the rules of `kernels/cpu/optim/adaptive.py`; see `update.py`."""

from ...build import jit
from ...cpu.optim import adaptive as cpu
from .update import walk


@jit.inline
def adamax(args, lo, hi, W, C, G, S):
    return walk(args, hi, cpu.adamax_numbers, cpu.adamax_rule, W, C, G, S)


@jit.inline
def radam(args, lo, hi, W, C, G, S):
    return walk(args, hi, cpu.radam_numbers, cpu.radam_rule, W, C, G, S)


@jit.inline
def adadelta(args, lo, hi, W, C, G, S):
    return walk(args, hi, cpu.adadelta_numbers, cpu.adadelta_rule, W, C, G, S)


@jit.inline
def rprop(args, lo, hi, W, C, G, S):
    return walk(args, hi, cpu.rprop_numbers, cpu.rprop_rule, W, C, G, S)
