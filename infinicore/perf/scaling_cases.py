"""The cases of the suite `scaling`: the same work in many sizes, as points of the curves that `plots.py` draws."""

from . import model_cases
from .cases import BOTH, TORCH, Case, Input


def _products(quick):
    """GFLOP/s of square products against N."""
    lengths = (32, 64) if quick else (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
    for dtype in ("float32", "bfloat16"):
        for n in lengths:
            shape = Input(shape=(n, n))
            yield Case(
                suite="scaling", name=f"matmul {n}", op="matmul", dtype=dtype, unit="GFLOP/s", work=2 * n**3,
                inputs={"a": shape, "b": shape}, peers=BOTH if dtype == "float32" else TORCH, limit="fma",
                limit_work=2 * n**3, rounds=3, series=f"matmul {dtype}", x=n,
            )  # fmt: skip


def _elements(quick):
    """The time of one addition against the number of elements."""
    for n in (1, 100, 10_000) if quick else (1, 10, 100, 1000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 10_000_000):
        vector = Input(shape=(n,))
        limit = {"limit": "read", "limit_work": 12 * n, "limit_bytes": 12 * n} if n >= 10_000 else {}
        yield Case(
            suite="scaling", name=f"add {n}", op="add", dtype="float32", unit="us", inputs={"x": vector, "y": vector},
            rounds=5, series="elements", x=n, **limit,
        )  # fmt: skip


SCALING = (_products, _elements, model_cases.contexts)
