"""New elements: rows for a thread."""

from ...blocks.array import ONE_HOT, TRIANGLE
from ...build.load import kernel
from ...plan import Plan, launch
from ...problems.create import OneHot, Triangle
from .. import policy


def triangle(problem, threads):
    """Rows."""
    return _plan("array.create.triangle", problem.count, problem.columns * problem.itemsize, of_triangle(problem))


def of_triangle(problem):
    """(types of the kernel, its block, numbers of that)."""
    p = problem
    numbers = {"rows": p.rows, "columns": p.columns, "x_stride": p.x_stride, "diagonal": p.diagonal, "upper": p.upper}
    return {"E": f"uint{8 * p.itemsize}"}, TRIANGLE, numbers


def one_hot(problem, threads):
    """Rows."""
    p = problem
    of_kernel = {"I": p.index}, ONE_HOT, {"classes": p.classes}
    return _plan("array.create.one_hot", p.count, 8 * p.classes, of_kernel)


def _plan(name, count, nbytes, of_kernel):
    types, block, numbers = of_kernel
    n, grain = policy.split(name, count, nbytes)
    return Plan((launch(kernel(name, **types), block, n, grain, **numbers),))


PLANNERS = {Triangle: triangle, OneHot: one_hot}
