"""Matrix products: which kernel serves a layout, and with what tiles and blocks (`kernels/cpu/gemm/blocking.py`).

A product goes to the blocked kernel or, where A or B is skinny, to one that reads the other matrix exactly once.
"""

import itertools
import math

from ...blocks.gemm import ACTIVATION_GRAD, ADD_ROWS, BLOCKED, BYTES, DOT_ROWS, INTEGER, PACK, PANELS
from ...build.load import kernel
from ...plan import Plan, launch
from ...problems.gemm import FEW, SKINNY, ActivationGrad, PackWeight, Product
from ..gemm import blocking
from .norm import join

_WIDE = 64  # rows of a weight from which it is worth packing x
_GRAIN_BYTES = 1 << 19  # of a matrix: some 10 us of reading


def product(problem, threads):
    """The plan of a `Product`."""
    p = _fold(problem)
    matrices = math.prod(size for size, *_ in p.batch)
    if p.dtype == "int8" and p.result == "int32":
        return _bytes(p, matrices, threads)
    if "float" not in p.dtype:
        numbers = {**_sizes(p), "alpha": int(p.alpha)}
        grain = 1 + (1 << 17) // (p.n * p.k + 1)
        return Plan(
            (_launch("gemm.blocked.integer_rows", {"T": p.dtype}, INTEGER, p, p.m * matrices, grain, **numbers),)
        )
    length = blocking.split_length(p.m, p.n, p.k) if matrices == 1 and not p.packed else 0
    if length:
        return _split(p, length, threads)
    plain = not (p.bias or p.residual or p.activation)
    if not p.packed and p.result == p.dtype:
        (a_stride, a_k), (b_k, b_stride) = p.a_strides, p.b_strides
        if b_k == 1 and p.k and p.m > 1 and p.n >= _WIDE:
            width = blocking.lane_width(p.m, p.dtype)
            if width or (a_k == 1 and p.m <= blocking.MOST_DOTS):
                return _panels(p, width, matrices, threads)
        if a_k == 1 and b_k == 1:
            if p.m <= SKINNY:
                return _dot_rows(p, "b", (p.n, p.m, b_stride, a_stride, 1, p.n), matrices)
            if p.n <= SKINNY and plain:
                return _dot_rows(p, "a", (p.m, p.n, a_stride, b_stride, p.n, 1), matrices)
        if p.k and p.m <= FEW and b_stride == 1:
            return _add_rows(p, "a", (p.m, p.n, a_stride, a_k, b_k, 1, p.n), matrices, threads)
        if p.k and p.n <= FEW and a_stride == 1 and plain:
            return _add_rows(p, "b", (p.n, p.m, b_stride, b_k, a_k, p.n, 1), matrices, threads)
    own_sums = p.accumulate or p.result in ("float16", "bfloat16")
    cut = blocking.blocks(p.m, p.n, p.k, matrices, threads, p.dtype, p.packed, own_sums)
    panel = _panel(p.dtype, p.k) if p.packed else 0
    numbers = {**_sizes(p), **_cut(cut), "panel": panel, "alpha": p.alpha}
    first = _launch("gemm.blocked.matmul", _types(p, R=p.result), BLOCKED, p, cut.items, cut.grain, **numbers)
    return Plan((first,), (("scratch", cut.slices * cut.slice_bytes),))


def _fold(p):
    """The problem with dims that share one B turned into rows of A, and without dims of size 1."""
    if not p.batch:
        return p
    m, (a_stride, a_k), batch = p.m, p.a_strides, [dim for dim in p.batch if dim[0] != 1]
    while batch:
        size, a, b, _ = batch[-1]
        if b != 0 or (a != m * a_stride and m != 1):
            break
        a_stride = a if m == 1 else a_stride
        m *= size
        batch.pop()
    return p._replace(m=m, a_strides=(a_stride, a_k), batch=tuple(batch))


def _launch(name, types, block, p, items, grain, first="a", **numbers):
    """A launch for the product `p`, whose operand `first` is the first tensor of the block, and the other the second."""
    names = (first, "b" if first == "a" else "a", "c")
    at = {field: (name, 0) for (_, field), name in zip(block.places, names)}
    at |= {field: None for field, given in (("bias", p.bias), ("residual", p.residual)) if not given}
    batch = p.batch if first == "a" else [(size, b, a, c) for size, a, b, c in p.batch]
    numbers |= {"batch": len(batch), "dims": tuple(itertools.chain.from_iterable(batch))}
    return launch(kernel(name, **types), block, items, grain, at, **numbers)


def _types(p, **more):
    return {"T": p.dtype, "ACT": p.activation, **more}


def _sizes(p):
    (a_stride, a_k), (b_k, b_stride) = p.a_strides, p.b_strides
    strides = {"a_stride": a_stride, "a_k": a_k, "b_k": b_k, "b_stride": b_stride, "c_stride": p.n}
    return {"rows": p.m, "columns": p.n, "k": p.k, **strides}


def _cut(cut):
    """The numbers of the block of `gemm.blocked` that say how a product is cut."""
    return {
        "grid_m": cut.grid[0], "grid_n": cut.grid[1], "tile_m": cut.tile[0], "tile_n": cut.tile[1],
        "mc": cut.mc, "kc": cut.kc, "nc": cut.nc, "b_offset": cut.b_offset, "part_offset": cut.part_offset,
        "slice_bytes": cut.slice_bytes, "slice_items": cut.items_per_slice,
    }  # fmt: skip


def _split(p, length, threads):
    """A small C with a long k, which is cut into parts; their sums are added up by a second launch."""
    splits = -(-p.k // length)
    cut = blocking.blocks(p.m, p.n, length, splits, threads, p.dtype)  # parts are to it what matrices of a batch are
    parts = cut.slices * cut.slice_bytes
    numbers = {**_sizes(p), **_cut(cut), "splits": splits, "split_k": length, "parts": parts, "panel": 0}
    types = _types(p, R=p.result)
    first = _launch("gemm.blocked.matmul", types, BLOCKED, p, cut.items, cut.grain, alpha=p.alpha, **numbers)
    grain = 1 + (1 << 20) // (p.m * p.n)
    second = _launch("gemm.blocked.join_parts", types, BLOCKED, p, p.m, grain, alpha=p.alpha, **numbers)
    scratch = parts + splits * p.m * p.n * (8 if p.dtype == "float64" else 4) + 64
    return Plan((first, second), (("scratch", scratch),))


def _dot_rows(p, large, sizes, matrices):
    """Rows of the `large` matrix times a few rows."""
    rows, tokens, w_stride, x_stride, row_step, token_step = sizes
    grain = 1 + _GRAIN_BYTES // (p.k * (8 if p.dtype == "float64" else 4) * (8 + tokens) + 64)
    first = _launch(
        "gemm.gemv.dot_rows", _types(p), DOT_ROWS, p, -(-rows // blocking.GROUP) * matrices, grain, large,
        rows=rows, tokens=tokens, k=p.k, w_stride=w_stride, x_stride=x_stride, row_step=row_step,
        token_step=token_step, alpha=p.alpha,
    )  # fmt: skip
    return Plan((first,))


def _panels(p, width, matrices, threads):
    """2 to 128 rows of A times the rows of a weight; `width` of them are a panel of lanes (0: dot products)."""
    pair, size, lanes = 2 if blocking.pairs(p.dtype) else 1, blocking.panel_bytes(p.dtype), blocking.lanes(p.dtype)
    if width:
        name, rows = "gemm.skinny.lane_panels", blocking.ROWS
        types = _types(p, ROWS=rows, VECTORS=blocking.VECTORS, COUNT=width // blocking.VECTORS)
    else:
        width = 2 if p.m == 2 else 4
        name, rows = "gemm.skinny.dot_panels", blocking.DOT_TILES[width]
        types = _types(p, ROWS=rows, TOKENS=width)
    # panels end in whole lines (and whole vectors), and packing fills up the last vector behind them
    step = max(lanes, blocking.LINE // size)
    panel = -(-p.k // (pair * step)) * step * width * size
    slice_bytes = -(-(-(-p.m // width) * panel) // 64) * 64 + 64
    items = -(-p.n // rows) * matrices
    work = 2 * p.m * rows * p.k * (2 if p.dtype == "float64" else 1) // pair
    first = _launch(
        name, types, PANELS, p, items, -(-blocking.PARALLEL_WORK // max(1, work)), "b",
        rows=p.n, tokens=p.m, k=p.k, w_stride=p.b_strides[1], x_stride=p.a_strides[0], x_k=p.a_strides[1],
        out_stride=p.n, slice_bytes=slice_bytes, slice_items=-(-items // threads), alpha=p.alpha,
    )  # fmt: skip
    return Plan((first,), (("scratch", min(threads, items) * slice_bytes),))


def _add_rows(p, few, sizes, matrices, threads):
    """The `few` rows of one operand times the other, whose columns are neighbours, in chunks that come out even."""
    tokens, columns, x_stride, x_k, b_k, column_step, token_step = sizes
    item, widest = (8, 512) if p.dtype == "float64" else (4, 1024)
    even = 2 * threads
    chunk = min(widest, -(-columns // (even * -(-columns // (even * widest)))))
    chunk = max(64, -(-chunk // 64) * 64)
    grain = 1 + _GRAIN_BYTES // (p.k * chunk * item * (1 + tokens) // 2 + 64)
    first = _launch(
        "gemm.gemv.add_rows", _types(p), ADD_ROWS, p, -(-columns // chunk) * matrices, grain, few,
        tokens=tokens, columns=columns, k=p.k, x_stride=x_stride, x_k=x_k, b_k=b_k, column_step=column_step,
        token_step=token_step, chunk=chunk, alpha=p.alpha,
    )  # fmt: skip
    return Plan((first,))


def _bytes(p, matrices, threads):
    """Exact products of int8 matrices."""
    across, steps = blocking.across("float32"), -(-p.k // 4)
    most = max(1, (1 << 20) // (4 * steps * across + 1)) * across  # columns whose panels stay in a cache
    tiles = -(-p.n // min(most, -(-p.n // (threads * across)) * across)) if matrices < threads else -(-p.n // most)
    tiles = -(-tiles // threads) * threads if matrices < threads else tiles
    columns = -(-p.n // (tiles * across)) * across
    rows = min(-(-p.m // blocking.ROWS), max(1, (1 << 18) // (4 * steps * blocking.ROWS + 1))) * blocking.ROWS
    slice_bytes = -(-4 * (steps * (columns + rows) + columns + blocking.LANES) // 64) * 64
    items = -(-p.n // columns) * matrices
    grain = -(-4 * blocking.PARALLEL_WORK // (2 * p.m * columns * p.k + 1))
    numbers = {"width": columns, "height": rows, "slice_bytes": slice_bytes, "slice_items": -(-items // threads)}
    first = _launch("gemm.int8.matmul", {}, BYTES, p, items, grain, **_sizes(p), **numbers)
    return Plan((first,), (("scratch", min(threads, items) * slice_bytes),))


# ---- packed weights ------------------------------------------------------------------------------


def _panel(dtype, k):
    """Elements of a panel of a packed weight."""
    return -(-k // (2 if blocking.pairs(dtype) else 1)) * blocking.across(dtype)


def pack_weight(problem, threads):
    """One launch over the panels."""
    p, panel = problem, _panel(problem.dtype, problem.k)
    panels, (stride, k_stride) = -(-p.n // blocking.across(p.dtype)), p.strides
    numbers = {"rows": p.n, "k": p.k, "stride": stride, "k_stride": k_stride}
    first = launch(kernel("gemm.pack.pack_weight", T=p.dtype), PACK, panels, 1 + (1 << 18) // (panel + 1), **numbers)
    return Plan((first,), (("panels", max(1, panels * panel * blocking.panel_bytes(p.dtype))),))


# ---- derivatives of activations ------------------------------------------------------------------

_CHUNKS, _CHUNK = 32, 16384  # chunks of rows at most, elements of a chunk at least


def activation_grad(problem, threads):
    """One pass over chunks of rows, which follow from the shape alone; a second launch joins their sums."""
    p = problem
    chunk = max(-(-p.rows // _CHUNKS), -(-_CHUNK // p.columns))
    chunks, step = -(-p.rows // chunk), -(-p.columns // blocking.LANES) * blocking.LANES
    first = launch(
        kernel("gemm.epilogue.backward", T=p.dtype, SLOPE=p.activation),
        ACTIVATION_GRAD, chunks, 1 + _CHUNK // (chunk * p.columns),
        rows=p.rows, columns=p.columns, stride=p.stride, chunk_rows=chunk, step=step,
    )  # fmt: skip
    compute = "float64" if p.dtype == "float64" else "float32"
    launches = (first,)
    if p.bias:
        launches += (join(compute, {"db": ("sums", 0)}, {"db": p.dtype}, step, chunks, p.columns),)
    return Plan(launches, (("sums", chunks * step * (8 if compute == "float64" else 4)),))


PLANNERS = {Product: product, PackWeight: pack_weight, ActivationGrad: activation_grad}
