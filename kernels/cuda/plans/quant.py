"""Products with quantised weights: few rows read the weight as it lies, for many it becomes floats first."""

from typing import NamedTuple

from ...blocks.cuda import PACKED_STREAM
from ...blocks.quant import PRODUCT, VALUES
from ...build.load import elsewhere, kernel
from ...cpu.quant import panels
from ...cpu.quant.panels import LANES
from ...lang.formats import FORMATS, SUPER, UNIT
from ...plan import Plan, launch
from ...problems.gemm import Product
from ...problems.quant import QuantizedProduct
from ..gemm.sizes import (
    DIGIT_ROWS,
    PACKED_AHEAD,
    PACKED_WARPS,
    STREAM_BYTES,
    STREAM_PANELS,
    digit_bytes,
    panel_step,
    rounded,
    stages_of,
    stream_head,
    whole_bytes,
)
from . import gemm

AT_ONCE = 3  # weights of a launch of `cuda/quant/stream.py`
ROWS, TOKENS = 16, 8  # of a weight and of x, for a block of `cuda/quant/rows.py`
FEW = 16  # rows of x that are worth reading the weight for twice
PARAMETERS = ("half", "half_min", "half_zero", "single", "super_min")


def _as_it_lies(weight):
    """Whether `cuda/quant/rows.py` has the format: plain integers of 4 or 8 bits, a scale for 32 of them or more."""
    form = FORMATS[weight.format]
    plain = form.table is None and form.float8 is None and form.groups == 1
    return plain and form.bits in (4, 8) and form.parameters in PARAMETERS and weight.order is None


def product(problem):
    """A launch for each weight; activations stay floats."""
    p = problem
    if p.dtype not in ("bfloat16", "float16") or p.rows > FEW or not all(map(_as_it_lies, p.weights)):
        return _expanded(p)
    launches, column, columns, groups = [], 0, sum(weight.n for weight in p.weights), -(-p.rows // TOKENS)
    together = _streamed(p, columns)
    for number, weight in enumerate(() if together else p.weights):
        at = {"weight": (f"weight{number}", 0), "scratch": None, "scales": None, "fixes": None}
        at |= {name: (name, 2 * column) for name in ("y", "bias")}
        if weight.n:
            size = panels.panel_bytes(FORMATS[weight.format], p.k, weight.shift)
            launches.append(launch(
                kernel("quant.rows.product", F=weight.format, T=p.dtype), PRODUCT, -(-weight.n // ROWS) * groups, 1, at,
                rows=p.rows, columns=weight.n, k=p.k, units=-(-p.k // UNIT), y_stride=columns, shift=weight.shift,
                panel_bytes=size,
            ))  # fmt: skip
        column += weight.n
    return Plan(together or tuple(launches))


class _Sizes(NamedTuple):
    """Of a launch on Hopper: the kernel, panels of a block at a time, slabs of 64 of k in a step, stages of the ring,
    and rows of x in shared memory, as a whole or (0) not.
    """

    kernel: str
    share: int
    slabs: int
    stages: int
    lines: int
    whole: int


def _streamed(p, columns):
    """The launches for up to three weights of a format at a time on Hopper; () where they do not lie as these ask."""
    kinds = {(weight.format, weight.shift) for weight in p.weights}
    if elsewhere().arch != "sm_90a" or LANES != 16 or len(kinds) > 1 or p.k % 64 or any(w.n == 0 for w in p.weights):
        return ()
    ((name, shift),) = kinds
    form, launches, column = FORMATS[name], [], 0
    for first in range(0, len(p.weights), AT_ONCE):
        weights = p.weights[first : first + AT_ONCE]
        sizes = _sizes(p, form, shift, sum(weight.n for weight in weights))
        if sizes is None:
            return ()
        launches.append(_stream(p, form, shift, columns, (first, column), weights, sizes))
        column += sum(weight.n for weight in weights)
    return tuple(launches)


def _units_each(form, shift):
    """Units of 32 of k with a record of parameters."""
    return 1 if form.flat else SUPER // UNIT if form.is_super else 1 << shift


def _params(form, shift, slabs):
    """Bytes of the parameters of a panel in a step."""
    return 0 if form.flat else 2 * slabs // _units_each(form, shift) * panels.record_bytes(form)


def _sizes(p, form, shift, n):
    """Those of a launch for n rows of weights; None where no step fits."""
    few = p.rows <= DIGIT_ROWS and whole_bytes(p.rows, p.k) > 0
    lines, warps = (p.rows, PACKED_WARPS) if few else (8, 16) if p.rows <= 8 else (16, 8)
    share, whole = gemm.share_of(n, LANES * STREAM_PANELS[-1], LANES) // LANES, whole_bytes(lines, p.k)
    bands = next(count for count in STREAM_PANELS if count >= share)
    slabs = panel_step(p.k, _units_each(form, shift), 2 * panels.unit_bytes(form), share, warps, 0 if whole else lines)
    if not slabs:
        return None
    stage = rounded(share * 2 * slabs * panels.unit_bytes(form)) + rounded(share * _params(form, shift, slabs))
    stage += 0 if whole else rounded(slabs * 128 * lines)
    beside = stream_head(DIGIT_ROWS if few else lines, bands) + whole + (digit_bytes(p.rows, p.k) if few else 0)
    beside += (bands - share) * 2 * slabs * panels.unit_bytes(form)  # what the last bands read behind their rows
    name = f"stream.product_{DIGIT_ROWS}" if few else f"floats.product_{lines}"
    return _Sizes(f"{name}_{bands}", share, slabs, stages_of(STREAM_BYTES - beside, stage), lines, whole)


def _stream(p, form, shift, columns, begin, weights, sizes):
    """One of these launches."""
    (first, column), units, share, slabs = begin, p.k // UNIT, sizes.share, sizes.slabs
    size, planes = panels.panel_bytes(form, p.k, shift), units * panels.unit_bytes(form)
    params = _params(form, shift, slabs)
    width = max((w for w in range(16, 257, 16) if params % w == 0), default=16)
    numbers, items, maps, at = {}, [0], {}, {name: (name, 2 * column) for name in ("y", "bias")}
    for i in range(AT_ONCE):
        weight = weights[min(i, len(weights) - 1)]
        count = -(-weight.n // LANES)
        numbers[f"columns{i}"] = weight.n
        numbers[f"column{i}"] = sum(w.n for w in weights[:i])
        items.append(items[-1] + (-(-count // share) if i < len(weights) else 0))
        at[f"weight{i}"] = (f"weight{first + min(i, len(weights) - 1)}", 0)
        maps[f"map_w{i}"] = elsewhere().tensor_map(
            "int8", (128, planes // 128, count, 1), (128, size, 16),
            (128, 2 * slabs * panels.unit_bytes(form) // 128, share, 1),
        )  # fmt: skip
        maps[f"map_p{i}"] = (0,) * 16 if form.flat else elsewhere().tensor_map(
            "int8", (width, params // width, p.k // (64 * slabs), count), (width, params, size),
            (width, params // width, 1, share), swizzled=False,
        )  # fmt: skip
    ends = [end if number < len(weights) else 1 << 40 for number, end in enumerate(items[1:], 1)]
    del numbers["column0"]
    in_step = p.k // 64 if sizes.whole else slabs
    one = launch(
        kernel(f"quant.{sizes.kernel}", F=form.name, T=p.dtype, SLABS=slabs, PARAMS=params),
        PACKED_STREAM, items[-1], 1, at, tokens=p.rows, k=p.k, y_stride=columns, share=share, stages=sizes.stages,
        shift=shift, panel_bytes=size, items1=ends[0], items2=ends[1], ahead=PACKED_AHEAD, whole=int(sizes.whole > 0),
        map_x=gemm.slabs_map(p.dtype, p.rows, p.k, p.k, in_step, sizes.lines), **numbers, **maps,
    )  # fmt: skip
    places = [(PACKED_STREAM.map_x, "x", 0)]
    for i in range(AT_ONCE):
        name = at[f"weight{i}"][0]
        places += [(getattr(PACKED_STREAM, f"map_w{i}"), name, 0), (getattr(PACKED_STREAM, f"map_p{i}"), name, planes)]
    return one._replace(places=(*one.places, *places))


def _expanded(p):
    """Launches that write all weights as one matrix, and those of a product with it."""
    launches, row, size, units = [], 0, 4 if p.dtype == "float32" else 2, -(-p.k // UNIT)
    for number, weight in enumerate(p.weights):
        at = {"weight": (f"weight{number}", 0), "y": ("expanded", row * p.k * size)}
        at["order"] = None if weight.order is None else (f"order{weight.order}", 0)
        if weight.n * p.k:
            expand = kernel("quant.expand.expand", F=weight.format, T=p.dtype)
            n = -(-weight.n // LANES) * units * LANES
            launches.append(launch(expand, VALUES, n, 1, at, n=weight.n, k=p.k, shift=weight.shift))
        row += weight.n
    plan = gemm.product(Product(p.dtype, (p.rows, p.k), (p.k, 1), (p.k, row), (1, p.k), p.dtype, bias=True))
    names = {"a": "x", "b": "expanded", "c": "y"}
    for one in plan.launches:
        places = tuple((place, names.get(name, name), offset) for place, name, offset in one.places)
        launches.append(one._replace(places=places))
    return Plan(tuple(launches), (("expanded", row * p.k * size), *plan.scratch))


PLANNERS = {QuantizedProduct: product}
