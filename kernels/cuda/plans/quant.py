"""Products with quantised weights: few rows read the weight as it lies, for many it becomes floats first."""

from ...blocks.quant import PRODUCT, VALUES
from ...build.load import kernel
from ...cpu.quant import panels
from ...cpu.quant.panels import LANES
from ...lang.formats import FORMATS, UNIT
from ...plan import Plan, launch
from ...problems.gemm import Product
from ...problems.quant import QuantizedProduct
from . import gemm

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
    for number, weight in enumerate(p.weights):
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
    return Plan(tuple(launches))


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
