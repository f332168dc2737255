"""Pooling: which kernel, and the sums that gradients need for each thread."""

from ...blocks.pooling import POOL
from ...build.load import kernel
from ...plan import Plan, launch
from ...problems.pooling import Pool
from ...problems.window import Window
from .. import policy

_AXES = ("d", "h", "w")
_ONE = Window((1,), (1,), (0,), (1,))  # of a plane that is shared out


def _kernel(p):
    """The name of the kernel of a problem."""
    if p.what.startswith("mean"):
        return p.what.replace("mean", "mean_pool")
    if p.what == "positions_backward":
        return p.what
    if p.what == "positions":
        return "max_positions"
    if p.window is None:
        return "adaptive_max"
    tiled = p.window == Window((2, 2), (2, 2), (0, 0), (1, 1)) and all(2 * y <= x for x, y in zip(p.x, p.y))
    return p.what.replace("max", "max_pool_2" if tiled else "max_pool")


def _product(sizes):
    return sizes[0] * _product(sizes[1:]) if sizes else 1


def pool(p, threads):
    """One launch, a unit of which is a plane."""
    name = _kernel(p)
    window = p.window or Window(*(field * len(p.x) for field in _ONE))
    numbers = {}
    for field, values, rest in (
        ("{}", p.x, 1), ("out_{}", p.y, 1), ("kernel_{}", window.kernel, 1), ("stride_{}", window.stride, 1),
        ("pad_{}", window.padding, 0), ("dilation_{}", window.dilation, 1),
    ):  # fmt: skip
        values = (rest,) * (3 - len(values)) + values
        numbers |= {field.format(axis): value for axis, value in zip(_AXES, values)}
    types = {"T": p.dtype}
    if p.places is not None:
        types["I"] = p.places
    if name.startswith("mean"):
        types["ADAPTIVE"] = p.window is None
    if name not in ("max_pool_2", "max_pool_2_backward", "positions_backward"):
        types["VOLUME"] = len(p.x) == 3
    size, scratch = _product(p.x), ()
    if "backward" in name and name != "max_pool_2_backward":
        slice_bytes = -(-size * (8 if p.dtype == "float64" else 4) // 64) * 64 + 64
        slice_planes = max(1, -(-p.planes // threads))
        scratch = (("scratch", -(-p.planes // slice_planes) * slice_bytes),)
        numbers |= {"slice_bytes": slice_bytes, "slice_planes": slice_planes}
    n, grain = policy.split(f"conv.pooling.{name}", p.planes, size + _product(p.y) * _product(window.kernel))
    used = {"x": p.what != "positions", "chosen": p.places, "scratch": scratch}
    at = {field: None for field, wanted in used.items() if not wanted}
    numbers |= {"counted": int(p.counted), "divisor": p.divisor}
    return Plan((launch(kernel(f"conv.pooling.{name}", **types), POOL, n, grain, at, **numbers),), scratch)


PLANNERS = {Pool: pool}
