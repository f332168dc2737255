"""Losses that are a scalar rule, and a mean or a sum."""

from .registry import FLOATS, declare

REDUCTIONS = ("none", "mean", "sum")


def loss(*, ref, domain=(-4.0, 4.0), tolerance=None, step=False):
    """Declare a loss by what one element adds to it: `rule(input, target, ...)`, as an elementwise op.

    The public function takes `reduction` besides, "mean" by default; "none" gives the loss of each element. The
    derivative is that of the rule. `ref` computes the losses of the elements in float64 NumPy.
    """
    return declare("loss", dtypes=FLOATS, ref=ref, domain=domain, tolerance=tolerance or {}, amp="float32", step=step)
