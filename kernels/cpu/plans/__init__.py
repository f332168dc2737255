"""Plans of the CPU: from a problem to launches (`kernels/plan.py`). Plain Python: no Numba here."""

from . import norm, quant

PLANNERS = {
    **norm.PLANNERS,
    **quant.PLANNERS,
}  # type of the problem -> function(problem, threads) that makes its `Plan`


def plan(problem, threads):
    """The `Plan` of a problem for launches on up to `threads` threads."""
    return PLANNERS[type(problem)](problem, threads)
