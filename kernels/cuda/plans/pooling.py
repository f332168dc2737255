"""Pooling: a thread for each result, or for each element of a gradient, which adds up the windows that meet it."""

from math import prod

from ...blocks.pooling import POOL
from ...build.load import kernel
from ...cpu.plans import pooling as cpu
from ...plan import Plan, launch
from ...problems.pooling import Pool

_ASKED = 512  # positions of a plane that each of its elements is compared with; more are added up by a thread a plane
_KERNELS = {
    "max": "max_pool", "mean": "mean_pool", "positions": "max_positions", "max_backward": "max_pool_backward",
    "mean_backward": "mean_pool_backward", "positions_backward": "positions_asked",
}  # fmt: skip


def pool(p):
    """One launch."""
    if p.what == "positions_backward" and prod(p.y) > _ASKED:
        return cpu.pool(p, 1024)
    name = "adaptive_max" if p.what == "max" and p.window is None else _KERNELS[p.what]
    types = {"T": p.dtype}
    if p.places is not None:
        types["I"] = p.places
    if "mean" in p.what:
        types["ADAPTIVE"] = p.window is None
    if p.what != "positions_backward":
        types["VOLUME"] = len(p.x) == 3
    if "positions" not in p.what and p.what != "max":
        types["A"] = "float64" if p.dtype == "float64" else "float32"
    used = {"x": p.what != "positions", "chosen": p.places, "scratch": False}
    at = {field: None for field, wanted in used.items() if not wanted}
    n = p.planes * prod(p.x if "backward" in p.what else p.y)
    return Plan((launch(kernel(f"conv.pooling.{name}", **types), POOL, n, 1, at, **cpu.numbers_of(p)),))


PLANNERS = {Pool: pool}
