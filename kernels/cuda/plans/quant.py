"""Products with quantised weights: a kernel of our own for the common formats beside 16-bit activations."""

from ...blocks.quant import PRODUCT
from ...build.load import kernel
from ...cpu.plans import quant as cpu
from ...cpu.quant import panels
from ...lang.formats import FORMATS, UNIT
from ...plan import Plan, launch
from ...problems.quant import QuantizedProduct
from . import SLOTS

ROWS, TOKENS = 16, 8  # of a weight and of x, for a block
PARAMETERS = ("half", "half_min", "half_zero", "single", "super_min")


def _is_own(weight):
    form = FORMATS[weight.format]
    plain = form.table is None and form.float8 is None and form.groups == 1
    return plain and form.bits in (4, 8) and form.parameters in PARAMETERS and weight.order is None


def product(problem):
    """A launch for each weight; other formats, dtypes and orders of inputs go the CPU's way, an item a thread."""
    p = problem
    if p.dtype not in ("bfloat16", "float16") or not all(map(_is_own, p.weights)):
        return cpu.product(p, SLOTS)
    launches, column, columns, groups = [], 0, sum(weight.n for weight in p.weights), -(-p.rows // TOKENS)
    for number, weight in enumerate(p.weights):
        form = FORMATS[weight.format]
        at = {"weight": (f"weight{number}", 0), "scratch": None, "scales": None, "fixes": None}
        at |= {name: (name, 2 * column) for name in ("y", "bias")}
        if weight.n:
            launches.append(launch(
                kernel("quant.rows.product", F=weight.format, T=p.dtype), PRODUCT, -(-weight.n // ROWS) * groups, 1, at,
                rows=p.rows, columns=weight.n, k=p.k, units=-(-p.k // UNIT), y_stride=columns, shift=weight.shift,
                panel_bytes=panels.panel_bytes(form, p.k, weight.shift),
            ))  # fmt: skip
        column += weight.n
    return Plan(tuple(launches))


PLANNERS = {QuantizedProduct: product}
