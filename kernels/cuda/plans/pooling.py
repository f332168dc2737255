"""Pooling: a thread for a few results, or for elements of a gradient, which add up the windows that meet them."""

from math import prod

from ...blocks.pooling import POOL
from ...build.load import kernel
from ...cpu.plans import pooling as cpu
from ...plan import Plan, launch
from ...problems.pooling import Pool
from ...problems.window import Window

_ASKED = 512  # positions of a plane that each of its elements is compared with; more are added up by a thread a plane
_TAPS = 128  # of a window whose loops are unrolled; larger ones are for a thread a plane
_LONG, _THREADS = 32, 256  # elements of a cell for whose maximum lanes of a warp are worth it; threads of a block
_OF_LANE = 8  # elements of such a lane: a warp for 64 elements, which told one another for longer, took 23 us, torch 18
_PLACES = 4  # neighbours that a thread takes
_KERNELS = {"max": "adaptive_max", "mean": "cell_means", "mean_backward": "cell_means_backward"}


def _even(p):
    """Means of cells that are all alike as those of windows, whose loops are unrolled (137 us by loops, torch 17)."""
    if p.what != "mean" or p.window is not None or any(n % m for n, m in zip(p.x, p.y)):
        return p
    cell, n = tuple(n // m for n, m in zip(p.x, p.y)), len(p.x)
    return p._replace(window=Window(cell, cell, (0,) * n, (1,) * n)) if prod(cell) <= _TAPS else p


def pool(p):
    """One launch."""
    p = _even(p)
    size = prod(p.x if "backward" in p.what else p.y)
    windows = p.window is not None and p.what != "positions"
    large = prod(p.window.kernel) > _TAPS if windows else p.what == "positions_backward" and prod(p.y) > _ASKED
    if large or max(prod(p.x), prod(p.y)) >= 1 << 31:
        return cpu.pool(p, p.planes)
    numbers, types = cpu.numbers_of(p), {"T": p.dtype}
    if p.places is not None:
        types["I"] = p.places
    if p.what != "positions_backward":
        types["VOLUME"] = len(p.x) == 3
    if "positions" not in p.what and p.what != "max":
        types["A"] = "float64" if p.dtype == "float64" else "float32"
    name, vectors = _KERNELS.get(p.what), size
    if p.what.startswith("positions"):
        name = "max_positions" if p.what == "positions" else "positions_asked"
    elif windows:
        name, vectors = p.what.replace("max", "max_pool").replace("mean", "mean_pool"), -(-size // _PLACES)
        types["N"] = _PLACES
        for letter, field in (("K", "window"), ("S", "stride"), ("G", "dilation")):
            types |= {f"{letter}_{d}": value for d, value in zip("DHW", numbers[field])}
    n = p.planes * vectors
    if name == "adaptive_max" and prod(p.x) >= _LONG * size:
        team = min(32, 1 << (prod(p.x) // (_OF_LANE * size)).bit_length() - 1)
        name, vectors, n = "adaptive_max_long", n, -(-n * team // _THREADS)
        types["TEAM"] = team
    used = {"x": p.what != "positions", "chosen": p.places, "scratch": False}
    at = {field: None for field, wanted in used.items() if not wanted}
    one = launch(kernel(f"conv.windows.{name}", **types), POOL, n, 1, at, vectors=vectors, **numbers)
    return Plan((one,))


PLANNERS = {Pool: pool}
