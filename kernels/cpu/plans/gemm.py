"""Matrix products: which kernel serves a layout, and with what tiles and blocks (`kernels/cpu/gemm/blocking.py`).

A product goes to the blocked kernel or, where A or B is skinny, to one that reads the other matrix exactly once.
"""

import itertools
import math

from ...blocks.gemm import (
    ACTIVATION_GRAD,
    ADD_ROWS,
    BLOCKED,
    BYTES,
    DOT_ROWS,
    INTEGER,
    LONG_DOT,
    PACK,
    PANELS,
    SCALED,
)
from ...build.load import kernel
from ...plan import Plan, launch
from ...problems.gemm import FEW, SKINNY, ActivationGrad, PackWeight, Product
from ..gemm import blocking
from ..gemm.dots import CHUNK
from .norm import join

_WIDE = 64  # rows of a weight from which it is worth packing x
# The same of 16-bit floats: what ranks have of a weight is multiplied as the whole would be, in the same order, since
# in 16 bits another order shows (`distributed.GatheringLinear` promises the same bits).
_WIDE_16 = 16
_GRAIN_BYTES = 1 << 19  # of a matrix: some 10 us of reading
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def product(problem, threads):
    """The plan of a `Product`."""
    if problem.scales is not None:
        return _scaled(problem, threads)
    p, x = problem, _fold(problem.matrices())
    matrices = math.prod(size for size, *_ in x.batch)
    if p.dtype == "int8" and p.result == "int32":
        return _bytes(p, x, matrices, threads)
    if "float" not in p.dtype:
        items, grain, numbers = x.m * matrices, 1 + (1 << 17) // (x.n * x.k + 1), _sizes(x)
        types = {"T": p.dtype}
        return Plan(
            (_launch("gemm.blocked.integer_rows", types, INTEGER, p, x, items, grain, alpha=int(p.alpha), **numbers),)
        )
    plain = not (p.bias or p.residual or p.activation)
    if x.m == x.n == matrices == 1 and x.k >= 2 * CHUNK and x.a_k == x.b_k == 1 and plain and p.alpha == 1.0:
        return _long_dot(p, x.k)
    length = blocking.split_length(x.m, x.n, x.k) if matrices == 1 and not p.packed else 0
    if length:
        return _split(p, x, length, threads)
    tiled = blocking.tiles(p.dtype)
    if tiled and not p.packed and p.result == p.dtype and x.b_k == 1 and x.k and x.n >= blocking.TILE_ROWS // 2:
        if blocking.LEAST_TILED <= x.m <= blocking.MOST_FEW:
            return _few_rows(p, x, matrices, threads)
    many = tiled and min(x.m, x.n) >= blocking.TILE_ROWS // 2
    if not p.packed and p.result == p.dtype and not many:
        if x.b_k == 1 and x.k and x.m > 1 and x.n >= (_WIDE_16 if p.dtype in ("bfloat16", "float16") else _WIDE):
            tile = blocking.lane_tile(x.m, p.dtype, x.a_k == 1, x.n * x.k)
            piece = blocking.lane_piece(x.m, x.k, p.dtype) if tile else 0
            shared = piece and matrices == 1 and blocking.shares(x.m, x.n, x.k, threads, p.dtype)
            if (tile and not shared) or (not tile and x.a_k == 1 and x.m <= blocking.MOST_DOTS):
                return _panels(p, x, tile, piece, matrices, threads)
        if x.a_k == 1 and x.b_k == 1:
            if x.m <= SKINNY:
                return _dot_rows(p, x, "b", (x.n, x.m, x.b_stride, x.a_stride, 1, x.n), matrices)
            if x.n <= SKINNY and plain:
                return _dot_rows(p, x, "a", (x.m, x.n, x.a_stride, x.b_stride, x.n, 1), matrices)
        if x.k and x.m <= FEW and x.b_stride == 1:
            return _add_rows(p, x, "a", (x.m, x.n, x.a_stride, x.a_k, x.b_k, 1, x.n), matrices, threads)
        if x.k and x.n <= FEW and x.a_stride == 1 and plain:
            return _add_rows(p, x, "b", (x.n, x.m, x.b_stride, x.b_k, x.a_k, x.n, 1), matrices, threads)
    own_sums = p.accumulate or p.result in ("float16", "bfloat16")
    as_it_lies = blocking.lies_in_tiles(x.m, x.k, x.a_stride, x.a_k, p.dtype)
    many = matrices == 1 and not p.packed and blocking.shares(x.m, x.n, x.k, threads, p.dtype)
    if many and not as_it_lies:
        return _shared(p, x, threads, own_sums)
    if many:
        cut = blocking.shared_blocks(x.m, x.n, x.k, threads, p.dtype, own_sums)
    else:
        cut = blocking.blocks(x.m, x.n, x.k, matrices, threads, p.dtype, p.packed, own_sums)
    numbers = {
        **_sizes(x), **_cut(cut), "panel": _panel(p.dtype, x.k) if p.packed else 0, "alpha": p.alpha,
        "a_group": -1 if as_it_lies else 0,
    }  # fmt: skip
    name, types = f"gemm.{_blocked(p.dtype)}.matmul", _types(p, thread=True, R=p.result, T=blocking.operand(p.dtype))
    first = _launch(name, types, BLOCKED, p, x, cut.items, cut.grain, **numbers)
    return Plan((first,), (("scratch", cut.scratch),))


def _shared(p, x, threads, own_sums):
    """A product whose A all threads pack first, as many of its rows at a time as make some MB."""
    kind, item, result, high = _blocked(p.dtype), _BYTES[p.dtype], _BYTES[p.result], blocking.rows_of(p.dtype)
    a_group = blocking.group(p.dtype, x.k)
    nbytes = a_group * blocking.panel_bytes(p.dtype)
    rows = min(-(-x.m // high), max(1, blocking.SHARED_BYTES // nbytes)) * high
    launches, scratch = [], 0
    for i in range(0, x.m, rows):
        m = min(rows, x.m - i)
        cut, groups, c = blocking.shared_blocks(m, x.n, x.k, threads, p.dtype, own_sums), -(-m // high), i * x.n
        launches.append(launch(
            kernel(f"gemm.{kind}.pack_a", T=blocking.operand(p.dtype)), PACK, groups, -(1 + (1 << 16) // (nbytes + 1)),
            {"w": ("a", item * i * x.a_stride), "panels": ("a_groups", 0)}, rows=m, k=x.k, stride=x.a_stride,
            k_stride=x.a_k,
        ))  # fmt: skip
        at = {"a": ("a_groups", 0), "c": ("c", result * c), "bias": ("bias", 0) if p.bias else None}
        at["residual"] = ("residual", result * c) if p.residual else None
        launches.append(launch(
            kernel(f"gemm.{kind}.matmul", thread=True, **_types(p, R=p.result, T=blocking.operand(p.dtype))), BLOCKED,
            cut.items, cut.grain, at,
            **{**_sizes(x), **_cut(cut), "rows": m}, panel=0, a_group=a_group, alpha=p.alpha,
        ))  # fmt: skip
        scratch = max(scratch, cut.scratch)
    return Plan(tuple(launches), (("a_groups", rows // high * nbytes), ("scratch", scratch)))


def _scaled(p, threads):
    """The sums, and a pass over them that multiplies with the scales."""
    sums = "int32" if p.dtype == "int8" else "float32"
    plain = product(p._replace(result=sums, alpha=1, bias=False, activation=None, scales=None), threads)
    launches = [
        one._replace(places=tuple((at, "sums" if name == "c" else name, offset) for at, name, offset in one.places))
        for one in plain.launches
    ]
    x = p.matrices()
    launches.append(launch(
        kernel("gemm.epilogue.scale", S=sums, R=p.result, ACT=p.activation), SCALED, x.m, 1 + (1 << 16) // x.n,
        {} if p.bias else {"bias": None}, columns=x.n, a_step=p.scales[0], b_step=p.scales[1], alpha=p.alpha,
    ))  # fmt: skip
    return Plan(tuple(launches), (*plain.scratch, ("sums", 4 * x.m * x.n)))


def _blocked(dtype):
    """The file of the kernel of blocked products: by tile registers or by vectors."""
    return "amx" if blocking.tiles(dtype) else "blocked"


def _fold(x):
    """The `Matrices` with dims that share one B turned into rows of A, and without dims of size 1."""
    m, a_stride, batch = x.m, x.a_stride, [dim for dim in x.batch if dim[0] != 1]
    while batch:
        size, a, b, _ = batch[-1]
        if b != 0 or (a != m * a_stride and m != 1):
            break
        a_stride = a if m == 1 else a_stride
        m *= size
        batch.pop()
    return x._replace(m=m, a_stride=a_stride, batch=tuple(batch))


def _launch(name, types, block, p, x, items, grain, first="a", **numbers):
    """A launch for `p` of matrices `x`; the operand `first` is the first tensor of the block, the other the second."""
    names = (first, "b" if first == "a" else "a", "c")
    at = {field: (name, 0) for (_, field), name in zip(block.places, names)}
    at |= {field: None for field, given in (("bias", p.bias), ("residual", p.residual)) if not given}
    batch = x.batch if first == "a" else [(size, b, a, c) for size, a, b, c in x.batch]
    numbers |= {"batch": len(batch), "dims": tuple(itertools.chain.from_iterable(batch))}
    return launch(kernel(name, **types), block, items, grain, at, **numbers)


def _types(p, **more):
    return {"T": p.dtype, "ACT": p.activation, **more}


def _sizes(x):
    return {
        "rows": x.m, "columns": x.n, "k": x.k, "a_stride": x.a_stride, "a_k": x.a_k, "b_k": x.b_k,
        "b_stride": x.b_stride, "c_stride": x.n,
    }  # fmt: skip


def _cut(cut):
    """The numbers of the block of `gemm.blocked` that say how a product is cut."""
    return {
        "grid_m": cut.grid[0], "grid_n": cut.grid[1], "tile_m": cut.tile[0], "tile_n": cut.tile[1],
        "mc": cut.mc, "kc": cut.kc, "nc": cut.nc, "b_offset": cut.b_offset, "part_offset": cut.part_offset,
        "thread_bytes": cut.thread_bytes,
    }  # fmt: skip


def _split(p, x, length, threads):
    """A small C with a long k, which is cut into parts; their sums are added up by a second launch."""
    splits = -(-x.k // length)
    cut = blocking.blocks(x.m, x.n, length, splits, threads, p.dtype)  # parts are to it what matrices of a batch are
    parts = cut.scratch
    numbers = {**_sizes(x), **_cut(cut), "splits": splits, "split_k": length, "parts": parts, "panel": 0}
    types = _types(p, R=p.result, T=blocking.operand(p.dtype))
    name = f"gemm.{_blocked(p.dtype)}.matmul"
    first = _launch(name, {"thread": True, **types}, BLOCKED, p, x, cut.items, cut.grain, alpha=p.alpha, **numbers)
    grain = 1 + (1 << 20) // (x.m * x.n)
    second = _launch("gemm.blocked.join_parts", types, BLOCKED, p, x, x.m, grain, alpha=p.alpha, **numbers)
    scratch = parts + splits * x.m * x.n * (8 if p.dtype == "float64" else 4) + 64
    return Plan((first, second), (("scratch", scratch),))


def _long_dot(p, k):
    """Two long vectors."""
    chunks, sums = -(-k // CHUNK), "float64" if p.dtype == "float64" else "float32"
    first = launch(kernel("gemm.dots.sums", T=p.dtype, A=sums), LONG_DOT, chunks, 4, k=k)
    second = launch(kernel("gemm.dots.total", R=p.result, A=sums), LONG_DOT, 1, 1, k=k)
    return Plan((first, second), (("parts", chunks * (8 if sums == "float64" else 4)),))


def _dot_rows(p, x, large, sizes, matrices):
    """Rows of the `large` matrix times a few rows."""
    rows, tokens, w_stride, x_stride, row_step, token_step = sizes
    grain = 1 + _GRAIN_BYTES // (x.k * (8 if p.dtype == "float64" else 4) * (8 + tokens) + 64)
    first = _launch(
        "gemm.gemv.dot_rows", _types(p), DOT_ROWS, p, x, -(-rows // blocking.GROUP) * matrices, -grain, large,
        rows=rows, tokens=tokens, k=x.k, w_stride=w_stride, x_stride=x_stride, row_step=row_step,
        token_step=token_step, alpha=p.alpha, item_bytes=_item_bytes(p, blocking.GROUP, w_stride, matrices),
    )  # fmt: skip
    return Plan((first,))


def _item_bytes(p, rows, stride, matrices):
    """Of a weight whose rows are read in order, so many at a time."""
    return rows * stride * _BYTES[p.dtype] if matrices == 1 else 0


def _panels(p, x, tile, piece, matrices, threads):
    """2 to 256 rows of A times the rows of a weight, in `tile`s of lanes (None: by dot products)."""
    pair, size, lanes = 2 if blocking.pairs(p.dtype) else 1, blocking.panel_bytes(p.dtype), blocking.lanes(p.dtype)
    if tile:
        rows, vectors, count, deep = tile
        width, name, types = vectors * count // deep, "lanes.lane_panels", {"ROWS": rows}
        pack, order = "lanes.pack_all", {"VECTORS": vectors, "COUNT": count, "DEEP": deep}
    else:
        width = 2 if x.m == 2 else 4
        rows = blocking.DOT_TILES[width]
        name, types, pack, order = "skinny.dot_panels", {"ROWS": rows}, "skinny.pack_dots", {"TOKENS": width}
    # panels end in whole lines (and whole vectors), and packing fills up the last vector behind them
    step = max(lanes, blocking.LINE // size * (2 if tile and tile[3] > 1 else 1))
    panels = -(-x.m // width) * -(-x.k // (pair * step)) * step * width * size
    work = 2 * x.m * rows * x.k * (2 if p.dtype == "float64" else 1) // pair
    grain = -(-blocking.PARALLEL_WORK // max(1, work))
    return _by_panels(p, x, matrices, threads, rows, grain, panels, (name, types), (pack, order), piece=piece)


def _by_panels(p, x, matrices, threads, rows, grain, panels, product, pack, **numbers):
    """A kernel over groups of so many rows of a weight times rows of x, which are packed into so many bytes, `panels`.

    Each thread packs them for itself, or many do it together, and then take groups in turn. `product` and `pack` are
    names and constants of kernels; both take those of `pack`, which say in what order x lies.
    """
    (name, types), (pack, order) = product, pack
    panels, items = -(-panels // 64) * 64 + 64, -(-x.n // rows) * matrices
    shared = blocking.shares_x(x.m, x.k, matrices, threads)
    numbers |= {
        "rows": x.n, "tokens": x.m, "k": x.k, "w_stride": x.b_stride, "x_stride": x.a_stride, "x_k": x.a_k,
        "out_stride": x.n, "thread_bytes": 0 if shared else panels, "alpha": p.alpha,
        "item_bytes": _item_bytes(p, rows, x.b_stride, matrices),
    }  # fmt: skip
    operand = blocking.operand(p.dtype) if name.startswith("amx.") else p.dtype
    types, name = _types(p, thread=True, **types, **order, T=operand), f"gemm.{name}"
    if not shared:
        one = _launch(name, types, PANELS, p, x, items, grain, "b", **numbers)
        return Plan((one,), (("scratch", min(threads, items) * panels),))
    pieces, each = -(-x.k // blocking.SHARED_K), 1 + blocking.SHARED_X // (2 * x.m * blocking.SHARED_K)
    first = _launch(f"gemm.{pack}", {"T": operand, **order}, PANELS, p, x, pieces, -each, "b", **numbers)
    grain = blocking.shared_grain(grain, items, panels, threads)
    return Plan((first, _launch(name, types, PANELS, p, x, items, -grain, "b", **numbers)), (("scratch", panels),))


def _few_rows(p, x, matrices, threads):
    """The rows of a weight, by tile registers, times 8 to 128 rows of A."""
    width = blocking.TILE_ROWS // (2 if x.m <= blocking.TILE_ROWS // 2 else 1)
    panels, order = -(-x.m // width) * -(-x.k // 2) * width * 4, {"ACROSS": 2 * width // blocking.TILE_ROWS}
    rows, grain = blocking.TILE_ROWS, 1 + _GRAIN_BYTES // (4 * 2 * x.k * blocking.TILE_ROWS)
    return _by_panels(p, x, matrices, threads, rows, grain, panels, ("amx.few_rows", {}), ("amx.pack_x", order))


def _add_rows(p, x, few, sizes, matrices, threads):
    """The `few` rows of one operand times the other, whose columns are neighbours, in chunks that come out even."""
    tokens, columns, x_stride, x_k, b_k, column_step, token_step = sizes
    item, widest = (8, 512) if p.dtype == "float64" else (4, 1024)
    even = 2 * threads
    chunk = min(widest, -(-columns // (even * -(-columns // (even * widest)))))
    chunk = max(64, -(-chunk // 64) * 64)
    grain = 1 + _GRAIN_BYTES // (x.k * chunk * item * (1 + tokens) // 2 + 64)
    first = _launch(
        "gemm.gemv.add_rows", _types(p), ADD_ROWS, p, x, -(-columns // chunk) * matrices, -grain, few,
        tokens=tokens, columns=columns, k=x.k, x_stride=x_stride, x_k=x_k, b_k=b_k, column_step=column_step,
        token_step=token_step, chunk=chunk, alpha=p.alpha,
    )  # fmt: skip
    return Plan((first,))


def _bytes(p, x, matrices, threads):
    """Exact products of int8 matrices."""
    across, steps = blocking.across("float32"), -(-x.k // 4)
    most = max(1, (1 << 20) // (4 * steps * across + 1)) * across  # columns whose panels stay in a cache
    tiles = -(-x.n // min(most, -(-x.n // (threads * across)) * across)) if matrices < threads else -(-x.n // most)
    tiles = -(-tiles // threads) * threads if matrices < threads else tiles
    columns = -(-x.n // (tiles * across)) * across
    rows = min(-(-x.m // blocking.ROWS), max(1, (1 << 18) // (4 * steps * blocking.ROWS + 1))) * blocking.ROWS
    thread_bytes = -(-4 * (steps * (columns + rows) + columns + blocking.LANES) // 64) * 64
    items = -(-x.n // columns) * matrices
    grain = -(-4 * blocking.PARALLEL_WORK // (2 * x.m * columns * x.k + 1))
    numbers = {"width": columns, "height": rows, "thread_bytes": thread_bytes}
    first = _launch("gemm.int8.matmul", {"thread": True}, BYTES, p, x, items, -grain, **_sizes(x), **numbers)
    return Plan((first,), (("scratch", min(threads, items) * thread_bytes),))


# ---- packed weights ------------------------------------------------------------------------------


def _panel(dtype, k):
    """Elements of a panel of a packed weight."""
    return -(-k // blocking.depth(dtype)) * blocking.across(dtype)


def pack_weight(problem, threads):
    """One launch over the panels."""
    p, panel = problem, _panel(problem.dtype, problem.k)
    panels, (stride, k_stride) = -(-p.n // blocking.across(p.dtype)), p.strides
    numbers = {"rows": p.n, "k": p.k, "stride": stride, "k_stride": k_stride}
    first = launch(
        kernel("gemm.pack.pack_weight", T=blocking.operand(p.dtype)),
        PACK,
        panels,
        1 + (1 << 18) // (panel + 1),
        **numbers,
    )
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
