"""Fused steps whose step size adapts, as `update.py` takes them."""

from ...cpu.optim import adaptive as cpu
from .update import step

adamax = step(cpu.adamax_numbers, cpu.adamax_rule)
radam = step(cpu.radam_numbers, cpu.radam_rule)
adadelta = step(cpu.adadelta_numbers, cpu.adadelta_rule)
rprop = step(cpu.rprop_numbers, cpu.rprop_rule)
