"""Pooling: which kernel, and the sums that gradients need for each thread."""

from math import prod

from ...blocks.pooling import POOL
from ...build.load import kernel
from ...plan import Plan, launch
from ...problems.pooling import Pool
from ...problems.window import Window
from .. import policy

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


def numbers_of(p):
    """The fields of the block that are sizes and options, in three dims."""
    window = p.window or Window(*(field * len(p.x) for field in _ONE))
    fields = {"size": p.x, "out": p.y, "window": window.kernel, "stride": window.stride}
    fields |= {"padding": window.padding, "dilation": window.dilation}
    numbers = {k: (0 if k == "padding" else 1,) * (3 - len(v)) + v for k, v in fields.items()}
    return numbers | {"counted": int(p.counted), "divisor": p.divisor}


def pool(p, threads):
    """One launch, a unit of which is a plane."""
    name, numbers = _kernel(p), numbers_of(p)
    types = {"T": p.dtype}
    if p.places is not None:
        types["I"] = p.places
    if name.startswith("mean"):
        types["ADAPTIVE"] = p.window is None
    if name not in ("max_pool_2", "max_pool_2_backward", "positions_backward"):
        types["VOLUME"] = len(p.x) == 3
    size, scratch = prod(p.x), ()
    if "backward" in name and name != "max_pool_2_backward":
        thread_bytes = -(-size * (8 if p.dtype == "float64" else 4) // 64) * 64 + 64
        scratch = (("scratch", min(threads, p.planes) * thread_bytes),)
        numbers["thread_bytes"] = thread_bytes
    n, grain = policy.split(f"conv.pooling.{name}", p.planes, size + prod(p.y) * prod(numbers["window"]))
    used = {"x": p.what != "positions", "chosen": p.places, "scratch": scratch}
    at = {field: None for field, wanted in used.items() if not wanted}
    handle = kernel(f"conv.pooling.{name}", thread=bool(scratch), **types)
    return Plan((launch(handle, POOL, n, grain, at, **numbers),), scratch)


PLANNERS = {Pool: pool}
