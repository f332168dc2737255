"""Convolutions: one launch over the elements of the result."""

from ...blocks.cuda import CONV, CONV_WEIGHT
from ...build.load import kernel
from ...plan import Plan, launch
from ...problems.conv import Convolution


def plan(problem):
    p, w = problem, problem.window
    numbers = {"images": p.n, "c": p.c, "m": p.m, "groups": p.groups}
    numbers |= {"x_h": p.x[0], "x_w": p.x[1], "y_h": p.y[0], "y_w": p.y[1]}
    for name, (h, width) in {"kernel": w.kernel, "stride": w.stride, "pad": w.padding, "gap": w.dilation}.items():
        numbers |= {f"{name}_h": h, f"{name}_w": width}
    name = {None: "forward", "input": "backward", "weight": "weight"}[p.gradient]
    items = {
        None: p.n * p.m * p.y[0] * p.y[1],
        "input": p.n * p.c * p.x[0] * p.x[1],
        "weight": p.m * (p.c // p.groups) * w.kernel[0] * w.kernel[1],
    }[p.gradient]
    handle = kernel(f"conv.direct.{name}", T=p.dtype, A="float64" if p.dtype == "float64" else "float32")
    return Plan((launch(handle, CONV_WEIGHT if p.gradient == "weight" else CONV, items, 1, **numbers),))


PLANNERS = {Convolution: plan}
