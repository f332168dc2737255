"""Plans of the CPU: from a problem to launches (`kernels/plan.py`). Plain Python: no Numba here.

The planners of the problems in `kernels/problems/<family>.py` stand in the file of the same name here.
"""

import importlib


def plan(problem, threads):
    """The `Plan` of a problem for launches on up to `threads` threads."""
    kind = type(problem)
    family = importlib.import_module(f"{__name__}.{kind.__module__.rpartition('.')[2]}")  # loaded when first needed
    return family.PLANNERS[kind](problem, threads)
