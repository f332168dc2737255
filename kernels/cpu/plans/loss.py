"""Losses over rows of classes: a launch over the rows, and one that reduces their losses."""

from ...blocks.loss import FORWARD
from ...build.load import kernel
from ...plan import Plan, launch
from ...problems.loss import ClassLoss
from .. import policy


def forward(problem, threads):
    """Where there is no work for two threads, the launch over the rows reduces their losses as well."""
    p = problem
    size = p.classes if p.kernel == "cross_entropy" else 0  # the likelihood reads one
    n, grain = policy.split(f"loss.classes.{p.kernel}", p.rows, size)
    return launches(p, n, grain, 0 < p.rows < -2 * grain)


def launches(p, n, grain, together):
    """The plan of n items; `together`: one launch for the rows and for reducing their losses."""
    nothing, name = None, f"loss.classes.{p.kernel}"
    compute = "float64" if p.dtype == "float64" else "float32"
    size = 8 if compute == "float64" else 4
    reduces = p.reduction != "none"
    alone = reduces and together
    types = {"T": p.dtype, "C": compute, "I": "int64" if p.soft else p.target}
    ending = {"rows": p.rows, "mean": int(p.reduction == "mean"), "ignored": p.ignored}
    ends_at = {"divisor": ("statistics", p.rows * 2 * size)}
    given = {"Q": p.target if p.soft else p.dtype} if p.kernel == "cross_entropy" else {}
    soft = {"SOFT": p.soft} if given else {}
    at = ends_at if alone else {"y": nothing, "divisor": nothing}
    if not reduces:
        at |= {"losses": ("y", 0)}
    first = launch(
        kernel(name, **types, **given, O=compute if reduces else p.dtype, **soft), FORWARD, n,
        0 if alone else grain, at, stride=p.stride, classes=p.classes, smoothing=p.smoothing,
        **(ending if alone else {"ignored": p.ignored}),
    )  # fmt: skip
    if not reduces:
        return Plan((first,))
    scratch = (("losses", p.rows * size),)
    if alone:
        return Plan((first,), scratch)
    join = kernel("loss.classes.reduction", **types, CLASSES=not p.soft)
    return Plan((first, launch(join, FORWARD, 1, 1, {"x": nothing, **ends_at}, **ending)), scratch)


PLANNERS = {ClassLoss: forward}
