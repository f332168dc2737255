"""Losses over rows of classes: a block for a row, and one that reduces their losses."""

from ...blocks.loss import FORWARD
from ...build.load import kernel
from ...cpu.plans import loss
from ...plan import Plan, launch
from ...problems.loss import ClassLoss

_FEW = 32768  # likelihoods, a number each, of which a thread of one block sums up to 32


def forward(problem):
    """Two launches, where losses are reduced; one of few likelihoods, whose second launch takes longer than they do."""
    p = problem
    if p.kernel != "nll" or p.reduction == "none" or p.rows > _FEW:
        return loss.launches(p, p.rows, 1, False)
    compute, size = ("float64", 8) if p.dtype == "float64" else ("float32", 4)
    return Plan((launch(
        kernel("loss.classes.nll_of_all", T=p.dtype, C=compute, I=p.target), FORWARD, 1, 1,
        {"losses": None, "divisor": ("statistics", p.rows * 2 * size)}, stride=p.stride, classes=p.classes,
        ignored=p.ignored, rows=p.rows, mean=int(p.reduction == "mean"),
    ),))  # fmt: skip


PLANNERS = {ClassLoss: forward}
