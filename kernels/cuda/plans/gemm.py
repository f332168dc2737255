"""Matrix products: which kernel, and in which tiles."""

from math import prod
from typing import NamedTuple

from ...blocks import float_bits
from ...blocks.cuda import JOIN, PANELS, PRODUCT, STREAM, WGMMA
from ...blocks.cuda import ROWS as FEW_ROWS
from ...blocks.gemm import ACTIVATION_GRAD
from ...build.load import elsewhere, kernel
from ...plan import Plan, launch
from ...problems.array import Copy
from ...problems.gemm import ActivationGrad, PackWeight, Product
from ..gemm import sizes
from ..gemm.sizes import AHEAD, STREAM_BANDS, stream_head, stream_ring, whole_bytes
from ..policy import ROW_THREADS
from ..policy import shape as shape_of
from .array import copy
from .norm import join

TILE = 64
ROWS, DEPTH = 128, 128  # of a tile of the matrix units: rows, and bytes of k at a time


class _Tiles(NamedTuple):
    """Tiles of c that a kernel has: `blocks` for `rows` x `columns`; `resident` of them fit into a multiprocessor.

    `step` is the time that a step of k of one of them takes of a multiprocessor with as many as fit, in that of the
    widest tile on matrix units (0.56 us); `least` the time of a step where there are fewer, and `around` that of what
    comes before and after the steps.
    """

    rows: int
    columns: int
    step: float
    blocks: int = 1
    resident: int = 1
    least: float = 0.0
    around: float = 5.0


UNITS = (_Tiles(2 * ROWS, 256, 1.0, 2), _Tiles(ROWS, 128, 0.56), _Tiles(ROWS, 64, 0.36))
# Of float8, whose sums are added up for each step, in two halves of the widest tile.
FLOAT8_UNITS = (
    _Tiles(2 * ROWS, 256, 1.55, 2),
    _Tiles(2 * ROWS, 192, 1.11, 2),
    _Tiles(ROWS, 128, 0.8),
    _Tiles(ROWS, 64, 0.5),
)
MOST_FEW = 16  # rows or columns of c that are multiplied as the matrix comes from memory
FMA_DEPTH = 16  # of k: whole steps of all these kernels
FMA = {
    "float32": (
        _Tiles(128, 128, 2.45, resident=2, least=2.95, around=10.0),
        _Tiles(64, 64, 0.76, resident=4, least=1.0),
        _Tiles(MOST_FEW, 64, 0.35, resident=12, least=2.5),
    ),
    "float64": (_Tiles(128, 128, 2.7), _Tiles(64, 64, 0.67, resident=3, least=2.0)),
}
JOINED = 6  # such times for a second launch, which joins parts of k
JOINED_BYTES = 1 << 21  # of parts, which it takes as long as a step for
MOST_SPLITS = 64
FEW = ("bfloat16", "float16", "float32")
FEW_BAND = 16  # rows of the matrix for a block then, of 16-bit floats
AT_A_TIME = 4
_SMALL = 1 << 24  # elements of float32, each as often as it is read, that are read so and not in tiles
_DOT, _DOTS = 8192, 1056  # elements of a part of a row times a column at least, and parts that keep a GPU busy
_MOST_DOT = 1 << 30  # elements of a part, whose places are 32-bit integers


def _size(dtype):
    """Bytes of an element."""
    return int(dtype.rpartition("float")[2].lstrip("uint").partition("_")[0]) // 8


def _has_units(p):
    """Whether the matrix units of Hopper multiply such operands."""
    if elsewhere().arch != "sm_90a":
        return False
    if p.dtype == "float32":
        return p.tf32
    if p.dtype == "int8":
        return p.scales is not None or (p.result == "int32" and p.alpha == 1)
    return p.dtype in ("bfloat16", "float16", "float8_e4m3")


def _sums(dtype):
    """The type of the sums of products."""
    return "float64" if dtype == "float64" else "float32" if "float" in dtype else "int64"


def product(problem):
    """One launch over the tiles of all matrices; others before and after it, where layouts or shapes ask for them."""
    p, x = problem, problem.matrices()
    if p.packed:
        x = x._replace(b_k=1, b_stride=x.k)
    batch = _merged(x.batch)
    some = x.m * x.n * x.k * prod(size for size, *_ in batch) > 0
    if some and x.m == x.n == 1 and p.dtype in (*FEW, "float64") and (x.k == 1 or x.a_k == x.b_k == 1):
        return _dots(p, x, batch)
    if some and not batch and p.dtype in FEW and x.a_k == x.b_k == 1:
        few, halves, row = min(x.m, x.n), p.dtype != "float32", -(-x.k // 8) * 8
        x = x._replace(a_stride=row if x.m == 1 else x.a_stride)  # a row without a next one begins as it may
        x = x._replace(b_stride=row if x.n == 1 else x.b_stride)
        if halves and few <= MOST_FEW and (x.a_stride | x.b_stride) % 8 == 0:
            return _few_rows(p, x, True)
        small = x.m > MOST_FEW or -(-few // AT_A_TIME) * x.n * x.k <= _SMALL
        if few <= (MOST_FEW if small and not halves else AT_A_TIME):
            return _few_rows(p, x, False)
    if some and len(batch) <= 2 and _has_units(p):
        return _on_matrix_units(p, x, batch)
    if some and (p.dtype == "float32" or (p.dtype == "float64" and elsewhere().arch == "sm_90a")):
        return _on_fma(p, x, batch)
    across, batch = -(-x.n // TILE), x.batch
    tiles = -(-x.m // TILE) * across
    types = {"T": p.dtype, "R": p.result, "A": _sums(p.dtype), "ACT": p.activation}
    one = launch(
        kernel("gemm.tiled.product", **types), PRODUCT, tiles * prod(d[0] for d in batch), 1, _absent(p), rows=x.m,
        columns=x.n, k=x.k, a_stride=x.a_stride, a_k=x.a_k, b_k=x.b_k, b_stride=x.b_stride, across=across, tiles=tiles,
        alpha=float_bits(p.alpha) if "float" in p.result else int(p.alpha), ndim=len(batch), **_steps(p),
        dims=[d[i] for i in range(4) for d in batch],
    )  # fmt: skip
    return Plan((one,))


def _dots(p, x, batch):
    """The plan of products of rows and columns: a part of k for a team of threads, and the sums of parts."""
    count, lanes, sums = prod(size for size, *_ in batch), 16 // _size(p.dtype), _sums(p.dtype)
    splits = max(1, min(-(-_DOTS // count), x.k // _DOT), -(-x.k // _MOST_DOT))
    part = -(-x.k // (splits * lanes)) * lanes
    splits = -(-x.k // part)
    vectors = -(-(part + lanes - 1) // lanes)
    team = next((team for team in (4, 8, 16, 32) if vectors <= team * (4 if team < 32 else 16)), ROW_THREADS)
    numbers = dict(
        rows=1, columns=1, k=x.k, a_stride=0, a_k=1, b_k=1, b_stride=0, across=1, tiles=count, splits=splits, part=part,
        alpha=float_bits(p.alpha), ndim=len(batch), dims=[d[i] for i in range(4) for d in batch],
    )  # fmt: skip
    types = {"R": p.result, "A": sums, "ACT": p.activation, "TEAM": team}
    handle, n = kernel("gemm.dot.product", T=p.dtype, **types, CUT=splits > 1), -(-count * splits * team // ROW_THREADS)
    first = launch(handle, PRODUCT, n, 1, _absent(p) if splits == 1 else _PARTS_ALONE, **numbers)
    if splits == 1:
        return Plan((first,))
    at = _absent(p) | {"a": ("parts", 0), "b": None}
    handle = kernel("gemm.dot.join", **types | {"TEAM": ROW_THREADS})
    second = launch(handle, PRODUCT, count, 1, at, **numbers)
    return Plan((first, second), (("parts", count * splits * (8 if sums == "float64" else 4)),))


def _on_fma(p, x, batch):
    """The plan of a product of float32 or float64."""
    count = prod(size for size, *_ in batch)
    one, splits = _tiles_on_fma(p, x, batch, False)
    if splits == 1:
        return Plan((one,))
    nbytes = count * splits * x.m * x.n * (8 if p.dtype == "float64" else 4)
    return Plan((one, _join(p, x, count, splits)), (("parts", nbytes),))


def parts_of(problem):
    """(the plan of products of float32 whose sum is asked for, how many parts of it they leave in "c")."""
    x = problem.matrices()
    batch = _merged(x.batch)
    one, splits = _tiles_on_fma(problem, x, batch, True)
    return Plan((one,)), splits * prod(size for size, *_ in batch)


def _tiles_on_fma(p, x, batch, in_parts):
    """(the launch over all tiles, parts of k): those, if there are some, go to "parts", or (`in_parts`) to "c"."""
    count = prod(size for size, *_ in batch)
    tile, splits, steps = _tiling(FMA[p.dtype], FMA_DEPTH, x.m, x.n, x.k, count)
    layout = ("t" if x.a_stride == 1 != x.a_k else "n") + ("n" if x.b_stride == 1 != x.b_k else "t")
    across, alone = -(-x.n // tile.columns), splits == 1 and not in_parts
    tiles = -(-x.m // tile.rows) * across
    types = {"T": p.dtype, "R": p.result, "ACT": p.activation} if alone else {"T": p.dtype, "R": p.dtype, "ACT": None}
    at = _absent(p) if alone else _PARTS_ALONE | ({"c": ("c", 0)} if in_parts else {})
    one = launch(
        kernel(f"gemm.fma.{p.dtype}_{layout}_{tile.rows}_{tile.columns}", **types), PRODUCT, tiles * splits * count, 1,
        at, rows=x.m, columns=x.n, k=x.k, a_stride=x.a_stride, a_k=x.a_k, b_k=x.b_k, b_stride=x.b_stride,
        across=across, tiles=tiles, alpha=float_bits(p.alpha if alone else 1.0), splits=splits, part=steps * FMA_DEPTH,
        ndim=len(batch), dims=[d[i] for i in range(4) for d in batch],
    )  # fmt: skip
    return one, splits


def _join(p, x, count, splits):
    """The launch that adds up parts of k."""
    return launch(
        kernel("gemm.wgmma.join", T=p.dtype, R=p.result, A=_parts(p.dtype), ACT=p.activation), JOIN,
        count * x.m * -(-x.n // 4), 1, _absent(p), rows=x.m, columns=x.n, splits=splits, alpha=float_bits(p.alpha),
        **_steps(p),
    )  # fmt: skip


def _few_rows(p, x, on_units):
    """The plan of a product whose result has few rows or columns: some rows of the larger matrix for a block."""
    if x.m <= x.n:
        names, m, n, strides, steps = ("b", "a"), x.n, x.m, (x.b_stride, x.a_stride), (1, x.n)
    else:
        names, m, n, strides, steps = ("a", "b"), x.m, x.n, (x.a_stride, x.b_stride), (x.n, 1)
    common = dict(
        rows=m, tokens=n, k=x.k, w_stride=strides[0], x_stride=strides[1], row_step=steps[0], token_step=steps[1],
        bias_of_tokens=int(x.m > x.n), alpha=float_bits(p.alpha), aligned=int(on_units),
    )  # fmt: skip
    at = {**_absent(p), "w": (names[0], 0), "x": (names[1], 0), "out": ("c", 0)}
    if on_units and x.k % 64 == 0 and elsewhere().arch == "sm_90a":
        return Plan((_stream(p, x.k, names, strides, common, at),))
    if on_units:
        tokens, rows = 8 if n <= 8 else 16, FEW_BAND
        name = f"few.product_{tokens}"
    else:
        tokens, rows = 1 if n == 1 else 2 if n == 2 else AT_A_TIME, 2
        name = f"rows.product_{tokens}"
    groups, lanes = -(-n // tokens), 4 if p.dtype == "float32" else 8
    common["aligned"] = int(all(s % lanes == 0 for s in strides))
    few = kernel(f"gemm.{name}", T=p.dtype, R=p.result, ACT=p.activation)
    return Plan((launch(few, FEW_ROWS, -(-m // rows) * groups, 1, at, **common, groups=groups),))


def _stream(p, k, names, strides, common, at):
    """The launch of a product with few rows on Hopper."""
    m, n = common["rows"], common["tokens"]
    share, tokens = share_of(m, 16 * STREAM_BANDS[-1]), 8 if n <= 8 else 16
    bands = -(-share // 16)
    slabs, stages = stream_ring(stream_head(tokens, bands), share, n, k)
    whole = whole_bytes(n, k) > 0
    one = launch(
        kernel(f"gemm.stream.product_{tokens}_{bands}", T=p.dtype, R=p.result, ACT=p.activation), STREAM,
        -(-m // share), 1, at, **common, groups=1, share=share, stages=stages, slabs=slabs, ahead=AHEAD,
        whole=int(whole), map_w=slabs_map(p.dtype, m, k, strides[0], slabs, share),
        map_x=slabs_map(p.dtype, n, k, strides[1], k // 64 if whole else slabs),
    )  # fmt: skip
    return one._replace(places=(*one.places, (STREAM.map_w, names[0], 0), (STREAM.map_x, names[1], 0)))


def slabs_map(dtype, rows, k, stride, slabs, share=None):
    """The map of a matrix by (64 of k, row, slab of 64 of k), of which a copy takes `slabs` of `share` (all) rows."""
    width = DEPTH // 2
    box = width, share or rows, slabs, 1
    return elsewhere().tensor_map(dtype, (width, rows, k // width, 1), (2 * stride, DEPTH, 16), box)


def share_of(rows, most, unit=8):
    """How many of so many rows a block of this GPU has at a time: `gemm/sizes.py`."""
    return sizes.share_of(rows, most, unit, elsewhere().multiprocessors)


_PARTS_ALONE = {**dict.fromkeys(("bias", "residual", "a_scales", "b_scales")), "c": ("parts", 0)}


def _absent(p):
    """Tensors of a block that the problem lacks."""
    scaled = p.scales is not None
    given = {"bias": p.bias, "residual": p.residual, "a_scales": scaled, "b_scales": scaled}
    return {field: None for field, there in given.items() if not there}


def _steps(p):
    """What a block says of scales."""
    a_step, b_step = p.scales or (0, 0)
    return {"a_step": a_step, "b_step": b_step}


def _parts(dtype):
    """The dtype of parts of k that a second launch joins."""
    return "int32" if dtype == "int8" else _sums(dtype)


def _merged(batch):
    """The dims of a batch without those of one matrix, and those in one that follow one another as one dim."""
    found = []
    for size, *strides in batch:
        if size == 1:
            continue
        if found and all(outer == size * inner for outer, inner in zip(found[-1][1:], strides)):
            found[-1] = (found[-1][0] * size, *strides)
        else:
            found.append((size, *strides))
    return found


def _tiling(kinds, depth, m, n, k, batch):
    """(kind of tile, parts of k, steps of a part) that should take the shortest time."""
    found = []
    steps, most = -(-k // depth), elsewhere().multiprocessors
    for kind in kinds:
        tiles = -(-m // kind.rows) * -(-n // kind.columns) * batch * kind.blocks
        for wanted in range(1, min(MOST_SPLITS, max(1, k // 256)) + 1):
            each = -(-steps // wanted)
            splits = -(-steps // each)
            turns, rest = divmod(-(-tiles * splits // most), kind.resident)  # of a multiprocessor
            time = turns * (each * kind.resident * kind.step + kind.around)
            time += each * max(kind.least, rest * kind.step) + kind.around if rest else 0
            if splits > 1:
                time += JOINED + batch * m * n * 4 * splits / JOINED_BYTES
            found.append((time, splits, kind, each))
    _, splits, kind, each = min(found)
    return kind, splits, each


class _Operand(NamedTuple):
    """An operand as the copy engine reads it.

    `across`: its rows lie across k; `map` describes it; then its strides along rows, k, outer and inner batch; `copy`
    is the launch that brings it into this layout, in a workspace of `nbytes`, or None.
    """

    across: bool
    map: tuple
    stride: int
    k_stride: int
    outer: int
    inner: int
    copy: object = None
    nbytes: int = 0


def _operand(name, dtype, rows, k, stride, k_stride, batch, box_rows):
    """The `_Operand` of [rows, k] with these strides; `batch` has two pairs (size, stride)."""
    size = _size(dtype)
    across, depth = size == 2 and stride == 1 and k_stride != 1 and rows > 1 and k > 1, DEPTH // size
    batch = [(count, by) if by else (1, 0) for count, by in batch]
    lines, length, step, unit = (k, rows, k_stride, stride) if across else (rows, k, stride, k_stride)
    if lines == 1:
        step = _rounded(length, size)
    if (unit == 1 or length == 1) and step > 0 and all(by * size % 16 == 0 for by in (step, batch[0][1], batch[1][1])):
        strides = [by * size or 16 for by in (step, batch[1][1], batch[0][1])]
        box = (depth, depth if across else box_rows, 1, 1)
        tensor = elsewhere().tensor_map(dtype, (length, lines, batch[1][0], batch[0][0]), strides, box)
        return _Operand(across, tensor, stride, k_stride, batch[0][1], batch[1][1])
    step = _rounded(length, size)  # rows of a copy are multiples of 16 bytes
    inner = lines * step
    outer = inner * batch[1][0]
    shape = (batch[0][0], batch[1][0], lines, length)
    x_strides = (batch[0][1], batch[1][1], (k_stride if across else stride), unit)
    brought = _brought(name, Copy(shape, (outer, inner, step, 1), x_strides, size))
    strides = (1, step) if across else (step, 1)
    batch = [(count, by if count > 1 else 0) for (count, _), by in zip(batch, (outer, inner))]
    found = _operand(name, dtype, rows, k, *strides, batch, box_rows)
    return found._replace(copy=brought, nbytes=size * outer * shape[0])


def _brought(name, problem):
    """The launch of a copy of an operand, to the workspace of its name."""
    own, one = {"y": f"{name}_rows", "x": name}, copy(problem).launches[0]
    return one._replace(places=tuple((place, own[tensor], offset) for place, tensor, offset in one.places))


def _rounded(length, size):
    """The elements of so many bytes in whole 16 bytes."""
    return -(-length * size // 16) * 16 // size


def _on_matrix_units(p, x, batch):
    """The plan of a product on Hopper."""
    count, depth = prod(size for size, *_ in batch), DEPTH // _size(p.dtype)
    units = FLOAT8_UNITS if p.dtype == "float8_e4m3" else UNITS
    tile, splits, split_steps = _tiling(units, depth, x.m, x.n, x.k, count)
    columns = tile.columns
    batch = ([(1, 0, 0, 0)] * 2 + batch)[-2:]
    a = _operand("a", p.dtype, x.m, x.k, x.a_stride, x.a_k, [(d[0], d[1]) for d in batch], ROWS)
    b = _operand("b", p.dtype, x.n, x.k, x.b_stride, x.b_k, [(d[0], d[2]) for d in batch], columns // tile.blocks)
    layout = ("t" if a.across else "n") + ("n" if b.across else "t")
    down, wide, steps = -(-x.m // tile.rows), -(-x.n // columns), -(-x.k // depth)
    alone = splits == 1
    types = {"T": p.dtype, "R": p.result if alone else _parts(p.dtype), "ACT": p.activation if alone else None}
    main = launch(
        kernel(f"gemm.wgmma.{layout}_{columns}", **types), WGMMA, down * wide * splits * count * tile.blocks, 1,
        _absent(p) if alone else _PARTS_ALONE,
        alpha=float_bits(p.alpha if alone else 1.0), rows=x.m, columns=x.n, k=x.k, across=wide, down=down,
        splits=splits, inner=batch[1][0], steps=steps, map_a=a.map, map_b=b.map, split_steps=split_steps,
        a_stride=a.stride, a_k=a.k_stride, b_stride=b.stride, b_k=b.k_stride, a_outer=int(a.outer != 0),
        a_inner=int(a.inner != 0), b_outer=int(b.outer != 0), b_inner=int(b.inner != 0), a_outer_stride=a.outer,
        a_inner_stride=a.inner, b_outer_stride=b.outer, b_inner_stride=b.inner, **_steps(p),
    )  # fmt: skip
    scratch, launches = [], []
    for place, name, operand in ((WGMMA.map_a, "a", a), (WGMMA.map_b, "b", b)):
        if operand.copy is not None:
            name = f"{name}_rows"
            scratch.append((name, operand.nbytes))
            launches.append(operand.copy)
        main = main._replace(places=(*main.places, (place, name, 0)))
    launches.append(main)
    if not alone:
        scratch.append(("parts", count * splits * x.m * x.n * 4))
        launches.append(_join(p, x, count, splits))
    return Plan(tuple(launches), tuple(scratch))


def pack_weight(problem):
    """A row-major copy."""
    p, size = problem, 1 if problem.dtype == "bool" else _size(problem.dtype)
    numbers = {"rows": p.n, "k": p.k, "stride": p.strides[0], "k_stride": p.strides[1]}
    one = launch(kernel("gemm.tiled.pack_weight", T=p.dtype), PANELS, p.n * p.k, 1, **numbers)
    return Plan((one,), (("panels", max(1, p.n * p.k * size)),))


_PART_ROWS, _PARTS = 16, 4 * 132  # rows of a chunk at least, and chunks at most: their sums are written and read again


def activation_grad(problem):
    """One pass over chunks of rows, which follow from the shape alone; a second launch joins their sums."""
    p, compute = problem, "float64" if problem.dtype == "float64" else "float32"
    chunk = max(_PART_ROWS, -(-p.rows // _PARTS))
    chunks, shape = -(-p.rows // chunk), shape_of("gemm.epilogue.backward")
    size = {"float64": 8, "float32": 4}.get(p.dtype, 2)
    first = launch(
        kernel("gemm.epilogue.backward", T=p.dtype, SLOPE=p.activation), ACTIVATION_GRAD,
        chunks * -(-p.columns // (shape.threads * 16 // size)), 1, rows=p.rows, columns=p.columns, stride=p.stride,
        chunk_rows=chunk, step=p.columns,
    )  # fmt: skip
    launches = (first,)
    if p.bias:
        launches += (join(compute, {"db": ("sums", 0)}, {"db": p.dtype}, p.columns, chunks, p.columns),)
    return Plan(launches, (("sums", chunks * p.columns * (8 if compute == "float64" else 4)),))


PLANNERS = {Product: product, PackWeight: pack_weight, ActivationGrad: activation_grad}
