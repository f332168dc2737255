"""Matrix products: which kernel, and in which tiles."""

from math import prod

from ...blocks import float_bits
from ...blocks.cuda import PANELS, PRODUCT
from ...build.load import kernel
from ...plan import Plan, launch
from ...problems.gemm import PackWeight, Product

TILE = 64


def _sums(dtype):
    """The type of the sums of products."""
    return "float64" if dtype == "float64" else "float32" if "float" in dtype else "int64"


def product(problem):
    """One launch over the tiles of all matrices."""
    p, x = problem, problem.matrices()
    b_k, b_stride = (1, x.k) if p.packed else (x.b_k, x.b_stride)
    across, batch = -(-x.n // TILE), x.batch
    tiles = -(-x.m // TILE) * across
    at = {field: None for field, given in (("bias", p.bias), ("residual", p.residual)) if not given}
    types = {"T": p.dtype, "R": p.result, "A": _sums(p.dtype), "ACT": p.activation}
    one = launch(
        kernel("gemm.tiled.product", **types), PRODUCT, tiles * prod(d[0] for d in batch), 1, at, rows=x.m,
        columns=x.n, k=x.k, a_stride=x.a_stride, a_k=x.a_k, b_k=b_k, b_stride=b_stride, across=across, tiles=tiles,
        alpha=float_bits(p.alpha) if "float" in p.dtype else int(p.alpha), ndim=len(batch),
        dims=[d[i] for i in range(4) for d in batch],
    )  # fmt: skip
    return Plan((one,))


def pack_weight(problem):
    """A row-major copy."""
    p, size = problem, 1 if problem.dtype == "bool" else int(problem.dtype.lstrip("bfloatuin")) // 8
    numbers = {"rows": p.n, "k": p.k, "stride": p.strides[0], "k_stride": p.strides[1]}
    one = launch(kernel("gemm.tiled.pack_weight", T=p.dtype), PANELS, p.n * p.k, 1, **numbers)
    return Plan((one,), (("panels", max(1, p.n * p.k * size)),))


PLANNERS = {Product: product, PackWeight: pack_weight}
