"""Plans of GPUs: from a problem to launches (`kernels/plan.py`). Plain Python: no Numba here.

The planners of the problems in `kernels/problems/<family>.py` stand in the file of the same name here. Where there is
none, the CPU's plan serves, with a GPU's thread in place of each thread of the CPU.
"""

import importlib
import importlib.util

from ...cpu import plans as cpu_plans

SLOTS = 1024  # what takes slots of a workspace in a plan of the CPU gets so many


def plan(problem):
    """The `Plan` of a problem."""
    kind = type(problem)
    name = f"{__name__}.{kind.__module__.rpartition('.')[2]}"
    if importlib.util.find_spec(name) is not None:
        planner = importlib.import_module(name).PLANNERS.get(kind)
        if planner is not None:
            return planner(problem)
    return cpu_plans.plan(problem, SLOTS)
