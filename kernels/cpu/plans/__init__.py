"""Plans of the CPU: from a problem to launches (`kernels/plan.py`). Plain Python: no Numba here."""

from . import array, attention, conv, gemm, loss, norm, pooling, quant, reduce

# type of the problem -> function(problem, threads) that makes its `Plan`
PLANNERS = {
    **array.PLANNERS,
    **attention.PLANNERS,
    **conv.PLANNERS,
    **gemm.PLANNERS,
    **loss.PLANNERS,
    **norm.PLANNERS,
    **pooling.PLANNERS,
    **quant.PLANNERS,
    **reduce.PLANNERS,
}


def plan(problem, threads):
    """The `Plan` of a problem for launches on up to `threads` threads."""
    return PLANNERS[type(problem)](problem, threads)
