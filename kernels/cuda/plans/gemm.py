"""Matrix products: which kernel, and in which tiles."""

from math import prod
from typing import NamedTuple

from ...blocks import float_bits
from ...blocks.cuda import JOIN, PANELS, PRODUCT, WGMMA
from ...blocks.cuda import ROWS as FEW_ROWS
from ...build.load import elsewhere, kernel
from ...plan import Plan, launch
from ...problems.array import Copy
from ...problems.gemm import PackWeight, Product
from .array import copy

TILE = 64
ROWS, DEPTH = 128, 64  # of a tile of the matrix units, and of k at a time
CLUSTER = {256: 2, 128: 1, 64: 1}  # tiles below one another that share what they read of b
# Columns of their tiles, and the time of a step of 64 of k, in that of the widest one, which reads least for a product.
STEPS = {256: 1.0, 128: 0.56, 64: 0.36}
AROUND = 5  # such times for what comes before and after the steps of a tile
JOINED = (
    6  # and for a second launch, which joins parts of k; and for how many bytes of parts it takes as long as a step
)
JOINED_BYTES = 1 << 21
MOST_SPLITS = 32
# Rows or columns of c that are multiplied as the matrix comes from memory: 4 of 16 bits take 67 us for 14336 x 4096, on
# the matrix units 50, if the copy engine takes their layout.
FEW = {"bfloat16": 2, "float16": 2, "float32": 16}
AT_A_TIME = 4


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
    if some and not batch and p.dtype in FEW and x.a_k == x.b_k == 1:
        fits = (x.a_stride | x.b_stride) % 8 == 0
        if fits and min(x.m, x.n) <= 32 and os.environ.get("IC_FEW"):
            return _few(p, x)
        if min(x.m, x.n) <= (FEW[p.dtype] if fits else max(AT_A_TIME, FEW[p.dtype])):
            return _few_rows(p, x)
    if some and p.dtype in ("bfloat16", "float16") and len(batch) <= 2 and elsewhere().arch == "sm_90a":
        return _on_matrix_units(p, x, batch)
    if some and p.dtype in ("float32", "float64"):
        return _fma(p, x, batch)
    across, batch = -(-x.n // TILE), x.batch
    tiles = -(-x.m // TILE) * across
    types = {"T": p.dtype, "R": p.result, "A": _sums(p.dtype), "ACT": p.activation}
    one = launch(
        kernel("gemm.tiled.product", **types), PRODUCT, tiles * prod(d[0] for d in batch), 1, _absent(p), rows=x.m,
        columns=x.n, k=x.k, a_stride=x.a_stride, a_k=x.a_k, b_k=x.b_k, b_stride=x.b_stride, across=across, tiles=tiles,
        alpha=float_bits(p.alpha) if "float" in p.dtype else int(p.alpha), ndim=len(batch),
        dims=[d[i] for i in range(4) for d in batch],
    )  # fmt: skip
    return Plan((one,))


import os
def _few(p, x):
    if x.m <= x.n:
        names, m, n, strides, steps = ("b", "a"), x.n, x.m, (x.b_stride, x.a_stride), (1, x.n)
    else:
        names, m, n, strides, steps = ("a", "b"), x.m, x.n, (x.a_stride, x.b_stride), (x.n, 1)
    v = os.environ["IC_FEW"]
    tokens, rows = 8 if v[0] == "e" else 16, 16 if v[1] in "13" else 32
    groups = -(-n // tokens)
    one = launch(
        kernel(f"gemm.few.{v}", T=p.dtype, R=p.result, ACT=p.activation), FEW_ROWS, -(-m // rows) * groups,
        1, {**_absent(p), "w": (names[0], 0), "x": (names[1], 0), "out": ("c", 0)}, rows=m, tokens=n, groups=groups,
        k=x.k, w_stride=strides[0], x_stride=strides[1], row_step=steps[0], token_step=steps[1],
        aligned=1, bias_of_tokens=int(x.m > x.n), alpha=float_bits(p.alpha),
    )  # fmt: skip
    return Plan((one,))


def _fma(p, x, batch):
    name, r, c = os.environ["IC_" + p.dtype].split()
    r, c = int(r), int(c)
    splits = int(os.environ.get("IC_SPLITS", 1))
    part = -(-x.k // splits)
    splits = -(-x.k // part)
    count = prod(d[0] for d in batch)
    across = -(-x.n // c)
    tiles = -(-x.m // r) * across
    alone = splits == 1
    types = {"T": p.dtype, "R": p.result, "ACT": p.activation} if alone else {"T": p.dtype, "R": p.dtype, "ACT": None}
    main = launch(
        kernel(f"gemm.fma.{name}", **types), PRODUCT, tiles * splits * count, 1,
        _absent(p) if alone else {"bias": None, "residual": None, "c": ("parts", 0)},
        rows=x.m, columns=x.n, k=x.k, a_stride=x.a_stride, a_k=x.a_k, b_k=x.b_k, b_stride=x.b_stride, across=across,
        tiles=tiles, alpha=float_bits(p.alpha if alone else 1.0), splits=splits, part=part, ndim=len(batch),
        dims=[d[i] for i in range(4) for d in batch],
    )  # fmt: skip
    if alone:
        return Plan((main,))
    return Plan((main, _join(p, x, count, splits)), (("parts", count * splits * x.m * x.n * (8 if p.dtype == "float64" else 4)),))


def _join(p, x, count, splits):
    """The launch that adds up parts of k."""
    return launch(
        kernel("gemm.wgmma.join", T=p.dtype, R=p.result, A=_sums(p.dtype), ACT=p.activation), JOIN,
        count * x.m * -(-x.n // 4), 1, _absent(p), rows=x.m, columns=x.n, splits=splits, alpha=float_bits(p.alpha),
    )  # fmt: skip


def _few_rows(p, x):
    """The plan of a product whose result has few rows or columns: two rows of the larger matrix for a block."""
    if x.m <= x.n:
        names, m, n, strides, steps = ("b", "a"), x.n, x.m, (x.b_stride, x.a_stride), (1, x.n)
    else:
        names, m, n, strides, steps = ("a", "b"), x.m, x.n, (x.a_stride, x.b_stride), (x.n, 1)
    tokens = 1 if n == 1 else 2 if n == 2 else AT_A_TIME
    groups, lanes = -(-n // tokens), 4 if p.dtype == "float32" else 8
    one = launch(
        kernel(f"gemm.rows.product_{tokens}", T=p.dtype, R=p.result, ACT=p.activation), FEW_ROWS, -(-m // 2) * groups,
        1, {**_absent(p), "w": (names[0], 0), "x": (names[1], 0), "out": ("c", 0)}, rows=m, tokens=n, groups=groups,
        k=x.k, w_stride=strides[0], x_stride=strides[1], row_step=steps[0], token_step=steps[1],
        aligned=int(all(s % lanes == 0 for s in strides)), bias_of_tokens=int(x.m > x.n), alpha=float_bits(p.alpha),
    )  # fmt: skip
    return Plan((one,))


def _absent(p):
    return {field: None for field, given in (("bias", p.bias), ("residual", p.residual)) if not given}


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


def _tiling(m, n, k, batch, most):
    """(columns of a tile, parts of k) that should take the shortest time on `most` multiprocessors."""
    found = []
    steps = -(-k // DEPTH)
    for columns, step in STEPS.items():
        tiles = _down(m, columns) * -(-n // columns) * batch * CLUSTER[columns]
        for wanted in range(1, min(MOST_SPLITS, max(1, steps // 4)) + 1):
            each = -(-steps // wanted)
            splits = -(-steps // each)
            time = -(-tiles * splits // most) * (each * step + AROUND)
            if splits > 1:
                time += JOINED + batch * m * n * 4 * splits / JOINED_BYTES
            found.append((time, splits, columns))
    _, splits, columns = min(found)
    return columns, splits


def _down(m, columns):
    """How many clusters of tiles have m rows."""
    return -(-m // (ROWS * CLUSTER[columns]))


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
    across = stride == 1 and k_stride != 1 and rows > 1 and k > 1
    batch = [(size, by) if by else (1, 0) for size, by in batch]
    lines, length, step, unit = (k, rows, k_stride, stride) if across else (rows, k, stride, k_stride)
    if lines == 1:
        step = _rounded(length)
    if (unit == 1 or length == 1) and step > 0 and all(by % 8 == 0 for by in (step, batch[0][1], batch[1][1])):
        sizes, strides = (length, lines), [2 * (by or 8) for by in (step, batch[1][1], batch[0][1])]
        box = (DEPTH, DEPTH if across else box_rows, 1, 1)
        tensor = elsewhere().tensor_map(dtype, (*sizes, batch[1][0], batch[0][0]), strides, box)
        return _Operand(across, tensor, stride, k_stride, batch[0][1], batch[1][1])
    step = _rounded(length)  # rows of a copy are multiples of 16 bytes
    inner = lines * step
    outer = inner * batch[1][0]
    shape = (batch[0][0], batch[1][0], lines, length)
    made = copy(
        Copy(shape, (outer, inner, step, 1), (batch[0][1], batch[1][1], (k_stride if across else stride), unit), 2)
    )
    own = {"y": f"{name}_rows", "x": name}
    brought = made.launches[0]._replace(places=tuple((at, own[x], off) for at, x, off in made.launches[0].places))
    strides = (1, step) if across else (step, 1)
    batch = [(size, by if size > 1 else 0) for (size, _), by in zip(batch, (outer, inner))]
    found = _operand(name, dtype, rows, k, *strides, batch, box_rows)
    return found._replace(copy=brought, nbytes=2 * outer * shape[0])


def _rounded(length):
    return -(-length // 8) * 8


def _on_matrix_units(p, x, batch):
    """The plan of a product of 16-bit floats on Hopper."""
    count = prod(size for size, *_ in batch)
    columns, splits = _tiling(x.m, x.n, x.k, count, elsewhere().multiprocessors)
    batch = ([(1, 0, 0, 0)] * 2 + batch)[-2:]
    a = _operand("a", p.dtype, x.m, x.k, x.a_stride, x.a_k, [(d[0], d[1]) for d in batch], ROWS)
    b = _operand("b", p.dtype, x.n, x.k, x.b_stride, x.b_k, [(d[0], d[2]) for d in batch], min(columns, 128))
    layout = ("t" if a.across else "n") + ("n" if b.across else "t")
    down, wide, steps = _down(x.m, columns), -(-x.n // columns), -(-x.k // DEPTH)
    alone = splits == 1
    types = {"T": p.dtype, "R": p.result, "ACT": p.activation} if alone else {"T": p.dtype, "R": "float32", "ACT": None}
    main = launch(
        kernel(f"gemm.wgmma.{layout}_{columns}", **types), WGMMA, down * wide * splits * count * CLUSTER[columns], 1,
        _absent(p) if alone else {"bias": None, "residual": None, "c": ("parts", 0)},
        alpha=float_bits(p.alpha if alone else 1.0), rows=x.m, columns=x.n, k=x.k, across=wide, down=down,
        splits=splits, inner=batch[1][0], steps=steps, map_a=a.map, map_b=b.map, split_steps=-(-steps // splits),
        a_stride=a.stride, a_k=a.k_stride, b_stride=b.stride, b_k=b.k_stride, a_outer=int(a.outer != 0),
        a_inner=int(a.inner != 0), b_outer=int(b.outer != 0), b_inner=int(b.inner != 0), a_outer_stride=a.outer,
        a_inner_stride=a.inner, b_outer_stride=b.outer, b_inner_stride=b.inner,
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
    p, size = problem, 1 if problem.dtype == "bool" else int(problem.dtype.lstrip("bfloatuin")) // 8
    numbers = {"rows": p.n, "k": p.k, "stride": p.strides[0], "k_stride": p.strides[1]}
    one = launch(kernel("gemm.tiled.pack_weight", T=p.dtype), PANELS, p.n * p.k, 1, **numbers)
    return Plan((one,), (("panels", max(1, p.n * p.k * size)),))


PLANNERS = {Product: product, PackWeight: pack_weight}
