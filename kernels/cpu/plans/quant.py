"""Products with quantised weights: activations are laid out once for all weights of a kind, then each weight is read.

Few rows multiply panels as they lie; for many rows of floats, panels are expanded for the blocked product.
"""

from ...blocks.quant import PANELS, PRODUCT, REORDER, TILES
from ...build.load import kernel
from ...lang.formats import FORMATS, UNIT
from ...plan import Plan, launch
from ...problems.quant import Layout, QuantizedProduct, WeightLayout
from ..gemm import blocking
from ..quant import panels
from ..quant.panels import EXPANDED_UNITS, LANES, TILE_ROWS, TILED_ROWS

_GRAIN_BYTES = 1 << 17  # of a weight: some 8 us of reading
_GRAIN_WORK = 1 << 23  # products of integers x 2: some 30 us
_GRAIN_ELEMENTS = 1 << 15  # activations that are quantised in some 30 us
_FEW_ROWS = 16  # that multiply panels as they lie, where activations stay floats
_LEAST_TILED = 16  # rows of integers that tile registers multiply


def _quads(form):
    """What quantised activations depend on."""
    return form.flat, form.zero, form.groups, form.has_min, panels.words(form)


def _integers(form):
    """What the product with integers depends on."""
    return form.bits, form.group, form.parameters, form.table


def _values(form):
    """What the values of a weight depend on."""
    return form.bits, form.group, form.parameters, form.table, form.zero, form.float8


def _alike(form, what):
    """The name of the first format that agrees in `what`: one kernel serves both."""
    return next(name for name, other in FORMATS.items() if what(other) == what(form))


def _up(nbytes):
    return -(-nbytes // 64) * 64


class _Launches:
    """The launches of a problem, in the making."""

    def __init__(self, problem, threads):
        self.problem, self.threads, self.units = problem, threads, -(-problem.k // UNIT)
        self.sizes = {"rows": problem.rows, "k": problem.k}
        self.pair = 2 if blocking.pairs(problem.dtype) else 1
        self.launches, self.scratch, self.laid_out = [], {}, {}

    def add(self, name, types, block, n, grain, at, **numbers):
        address = kernel(name, **types, T=self.problem.dtype)
        self.launches.append(launch(address, block, n, grain, at, **numbers))

    def activations(self, kind, order):
        """Whose addresses are x, scales and fixes of a product; the first product of a kind lays its activations out.

        `kind` is a format (integers, as it wants them) and the rows of a tile, or "floats" or "panels".
        """
        found = self.laid_out.get((kind, order))
        if found is None:
            place = f"activations{len(self.laid_out)}"
            found = self.laid_out[kind, order] = {"x": (place, 0), "scales": None, "fixes": None}
            (self._panels if kind == "panels" else self._tiles)(kind, order, place, found)
        return found

    def _tiles(self, kind, order, place, found):
        """Tiles of rows of floats, or of integers with their scales and corrections."""
        p, kernel, types, units, high = self.problem, "products.spread_rows", {}, self.units, TILE_ROWS
        if kind == "floats":
            padded = -(-p.rows // high) * high
            self.scratch[place] = 4 * padded * units * UNIT
        else:
            name, high = kind
            form, kernel, types = FORMATS[name], "products.quantize_rows", {"F": name}
            padded = -(-p.rows // high) * high
            if high == TILED_ROWS:
                kernel, units = "tiled_rows.quantize_rows", panels.tiled_units(self.units)
                padded = -(-p.rows // panels.SPAN) * panels.SPAN  # that many are read together
            scales = 4 * padded * (1 if form.flat else units)
            first = _up(padded * units * UNIT * panels.words(form))
            second = first + _up(scales)
            self.scratch[place] = second + scales * form.groups
            found |= {"scales": (place, first), "fixes": (place, second)}
        at = {"tiles": found["x"], "scales": found["scales"], "fixes": found["fixes"]}
        at["order"] = None if order is None else (f"order{order}", 0)
        grain = 1 + _GRAIN_ELEMENTS // (min(high, p.rows) * p.k)
        n = -(-p.rows // high)
        self.add(f"quant.{kernel}", types, TILES, n, grain, at, stride=p.k, units=units, **self.sizes)

    def _panels(self, kind, order, place, found):
        """Panels of the blocked product, with room for the vectors that packing writes beyond k."""
        p, x = self.problem, ("x", 0)
        if order is not None:
            x = (f"ordered{order}", 0)
            self.scratch[x[0]] = p.rows * p.k * (4 if p.dtype == "float32" else 2)
            at = {"order": (f"order{order}", 0), "y": x}
            self.add("quant.expand.reorder", {}, REORDER, p.rows, 1 + _GRAIN_ELEMENTS // p.k, at, k=p.k)
        n, at = -(-p.rows // blocking.ROWS), {"x": x, "panels": (place, 0)}
        numbers = {"stride": p.k, "panel_bytes": self._panel_bytes(), **self.sizes}
        self.scratch[place] = n * numbers["panel_bytes"]
        grain = 1 + _GRAIN_ELEMENTS // (blocking.ROWS * p.k)
        self.add("quant.expand.pack_rows", {}, PANELS, n, grain, at, **numbers)

    def _panel_bytes(self):
        return (-(-self.problem.k // self.pair) + LANES) * blocking.ROWS * 4

    def multiply(self, number, column, columns):
        """Launch the product with one weight, into the columns of y from `column` on."""
        p, weight = self.problem, self.problem.weights[number]
        form = FORMATS[weight.format]
        floats = not p.rounded or form.float8 is not None
        item = 4 if p.dtype == "float32" else 2
        numbers = {"columns": weight.n, "units": self.units, "shift": weight.shift, "y_stride": columns, **self.sizes}
        numbers["panel_bytes"] = panels.panel_bytes(form, p.k, weight.shift)
        many = floats and p.rows > _FEW_ROWS
        tiled = blocking.byte_tiles() and not floats and form.groups == 1 and p.rows >= _LEAST_TILED
        integers = _alike(form, _quads), TILED_ROWS if tiled else TILE_ROWS
        kind = "panels" if many else "floats" if floats else integers
        at = {"weight": (f"weight{number}", 0), "scratch": None, **self.activations(kind, weight.order)}
        at |= {name: (name, column * item) for name in ("y", "bias")}
        if many:
            return self._expand(form, weight.n, at, numbers)
        name = "stream_floats" if floats else "stream_flat" if form.flat else "stream"
        work = 2 * p.rows * self.units * UNIT * LANES * (4 if floats else 1) // (2 if tiled else 1)
        grain = 1 + min(_GRAIN_BYTES // numbers["panel_bytes"], _GRAIN_WORK // work)
        types = {"F": _alike(form, _values if floats or tiled else _integers)}
        file, numbers["item_bytes"] = "amx" if tiled else "products", numbers["panel_bytes"]
        self.add(f"quant.{file}.{name}", types, PRODUCT, -(-weight.n // LANES), -grain, at, **numbers)

    def _expand(self, form, n, at, numbers):
        """Pairs of panels, expanded in scratch of each thread, times all rows."""
        p, across = self.problem, blocking.across(self.problem.dtype)
        items = -(-n // across)
        thread_bytes = (EXPANDED_UNITS * UNIT // self.pair + p.rows) * across * 4
        self.scratch["expanded"] = max(thread_bytes * min(self.threads, items), self.scratch.get("expanded", 0))
        at["scratch"] = ("expanded", 0)
        numbers |= {"x_bytes": self._panel_bytes(), "thread_bytes": thread_bytes}
        grain = 1 + blocking.PARALLEL_WORK // (2 * p.rows * p.k * across)
        types = {"thread": True, "F": _alike(form, _values)}
        self.add("quant.expand.expanded", types, PRODUCT, items, -grain, at, **numbers)


def product(problem, threads):
    """Activations first, once for all weights that want them alike, then weight by weight."""
    making, column, columns = _Launches(problem, threads), 0, sum(weight.n for weight in problem.weights)
    for number, weight in enumerate(problem.weights):
        if weight.n:
            making.multiply(number, column, columns)
        column += weight.n
    return Plan(tuple(making.launches), tuple(making.scratch.items()))


def layout(problem, threads):
    """Panels of LANES rows."""
    return Layout(panels.weight_bytes(*problem), LANES)


PLANNERS = {QuantizedProduct: product, WeightLayout: layout}
