"""Products with quantised weights: `linear_quantized`.

Activations are quantised on the way, 32 neighbours of a row with one scale (all of a row where the weight has one
scale per row), and multiplied as integers of 8 bits: sums of a group are exact, and scaled in float32. With
`activations="float"` they stay as they are, and the weight's integers are converted in registers.
"""

import functools

from ..cpu.formats import (
    FLAT_ROWS,
    FORMATS,
    LANES,
    PRODUCT_PANELS,
    PRODUCT_ROWS,
    PRODUCT_UNITS,
    QUADS,
    STREAM_ROWS,
    UNIT,
)
from ..registry import op

_DTYPES = ("float32", "bfloat16", "float16")
_GRAIN_BYTES = 1 << 19  # of a weight: some 30 us of reading
_GRAIN_WORK = 1 << 23  # products of integers x 2: some 30 us
_GRAIN_ELEMENTS = 1 << 15  # activations that are quantised in some 30 us
_FLAT_K = 1 << 17  # beyond, int32 could not hold the sum of a row


class QuantizedWeight:
    """The weight [N, K] of a linear layer in panels of a quantised format: `cpu/formats.py` says how they lie.

    `data` is a contiguous uint8 tensor, `format` a name in `FORMATS`; 32 << `shift` neighbours of a row share a scale
    where the format leaves that open. With `order` (int32 [K]), packed element k belongs to input order[k].
    """

    def __init__(self, data, shape, format, shift=0, order=None):
        self.data, self.address = data, data.address
        self.shape, self.format, self.shift, self.order = tuple(shape), FORMATS[format], shift, order
        self.panel_bytes = self.format.panel_bytes(self.shape[1], shift)

    @property
    def nbytes(self):
        return self.data.numel()

    def __repr__(self):
        return f"QuantizedWeight({self.shape}, {self.format.name})"


@functools.cache
def _alike(name, *fields):
    """The first format that agrees with `name` in these fields: one kernel serves both."""
    wanted = [getattr(FORMATS[name], field) for field in fields]
    return next(n for n, form in FORMATS.items() if [getattr(form, field) for field in fields] == wanted)


class _Activations:
    """The rows of an input as one kind of weight wants them; made when first asked for, then shared."""

    def __init__(self, call, input, rows, k, stride):
        self.call, self.input, self.rows, self.k, self.stride = call, input, rows, k, stride
        self.units = -(-k // UNIT)
        self.made = {}

    def _launch(self, kernel, parameters, tile, sizes, order):
        """Run a kernel that lays out rows in tiles of `tile`; (addresses, memory to keep) of its results."""
        buffers = [self.call.scratch(max(1, size)) for size in sizes]
        addresses = [b.address for b in buffers] + [0] * (3 - len(buffers))
        args = [self.input.address, self.stride, self.rows, self.k, self.units, tile, *addresses]
        args.append(order.address if order is not None else 0)
        grain = 1 + _GRAIN_ELEMENTS // (min(tile, self.rows) * self.k + 1)
        keep = (self.input, *buffers, order)
        self.call.launch(kernel, parameters, args, n=-(-self.rows // tile), grain=grain, keep=keep)
        return addresses, keep

    def floats(self, order, tile):
        key = ("float", id(order))
        if key not in self.made:
            size = -(-self.rows // tile) * tile * self.units * UNIT * 4
            self.made[key] = self._launch("quant_gemm.spread_rows", {"T": self.input.dtype.name}, tile, [size], order)
        return self.made[key]

    def integers(self, weight, tile):
        name = _alike(weight.format.name, "flat", "zero", "groups", "has_min")
        key = (name, id(weight.order))
        if key not in self.made:
            form, rows = FORMATS[name], -(-self.rows // tile) * tile
            scales = rows * 4 * (1 if form.flat else self.units)
            sizes = [rows * self.units * UNIT, scales, scales * form.groups]
            parameters = {"F": name, "T": self.input.dtype.name}
            self.made[key] = self._launch("quant_gemm.quantize_rows", parameters, tile, sizes, weight.order)
        return self.made[key]


def _multiply(call, activations, weight, y, column, bias, floats):
    """Launch the product of the activations with one weight, into the columns of `y` from `column` on."""
    form, rows, dtype = weight.format, activations.rows, y.dtype
    n, k = weight.shape
    item, panels, units = dtype.itemsize, -(-n // LANES), activations.units
    few = rows <= STREAM_ROWS
    tile = STREAM_ROWS if few or floats else FLAT_ROWS if form.flat else PRODUCT_ROWS
    inputs, kept = activations.floats(weight.order, tile) if floats else activations.integers(weight, tile)
    args = [*inputs, weight.address, y.address + column * item, bias.address + column * item if bias is not None else 0]
    args += [rows, n, units, weight.panel_bytes, weight.shift, y.shape[-1], tile]
    keep, parameters = (*kept, weight.data, y, bias), {"T": dtype.name}
    items, grain = panels, 1 + _GRAIN_BYTES // weight.panel_bytes
    if floats:
        kernel, parameters = "stream_floats", {"F": _alike(form.name, *_FIELDS, "zero", "float8")} | parameters
    elif form.flat:
        kernel = "stream_flat" if few else "product_flat"
    else:
        kernel, parameters = "stream" if few else "product", {"F": _alike(form.name, *_FIELDS)} | parameters
    if not few and not floats:
        items = -(-panels // PRODUCT_PANELS)
        grain = 1 + _GRAIN_WORK // (2 * rows * units * UNIT * PRODUCT_PANELS * LANES)
    if kernel == "product":
        scratch, more = _product_scratch(call, form, -(-rows // tile) * tile, items)
        args += [scratch.address, *more]
        keep += (scratch,)
    call.launch(f"quant_gemm.{kernel}", parameters, args, n=items, grain=grain, keep=keep)


_FIELDS = ("bits", "group", "parameters", "table")


def _product_scratch(call, form, rows, items):
    """Workspace for every thread: scales, minimums and bytes of a pair of panels, and sums of all rows."""
    unit = 4 * LANES * PRODUCT_PANELS * (2 * form.groups + (0 if form.bits == 8 else QUADS))
    totals = PRODUCT_UNITS * unit
    size = -(-(totals + rows * PRODUCT_PANELS * LANES * 4) // 64) * 64
    scratch = call.scratch(size * min(call.threads, items))
    return scratch, (size, -(-items // call.threads), totals)


def _checked(input, weight, bias, activations):
    """The weights as a tuple, and the common K; ValueError or TypeError for what does not fit."""
    weights = (weight,) if isinstance(weight, QuantizedWeight) else tuple(weight)
    for w in weights:
        if not isinstance(w, QuantizedWeight):
            raise TypeError(f"`weight` of `linear_quantized` must be a QuantizedWeight, got {type(w).__name__}")
    if not hasattr(input, "address"):
        raise TypeError(f"`input` of `linear_quantized` must be a tensor, got {type(input).__name__}")
    if input.dtype.name not in _DTYPES:
        raise TypeError(
            f"`linear_quantized` takes {', '.join(_DTYPES)}, got {input.dtype.name}; cast `input` with `.to()`"
        )
    if activations not in ("int8", "float"):
        raise ValueError(f"`activations` must be 'int8' or 'float', got {activations!r}")
    shape = tuple(input.shape)
    for w in weights:
        if not shape or shape[-1] != w.shape[1]:
            raise ValueError(f"`linear_quantized` needs `input` [..., K] and `weight` [N, K], got {shape} and {w.shape}")
        if w.format.flat and w.shape[1] > _FLAT_K:
            raise ValueError(f"`weight` of one scale per row may have K of {_FLAT_K} at most, got {w.shape[1]}; use int4")
    n = sum(w.shape[0] for w in weights)
    if bias is not None:
        if tuple(bias.shape) != (n,):
            raise ValueError(f"`bias` of `linear_quantized` must have shape ({n},), got {tuple(bias.shape)}")
        if bias.dtype is not input.dtype:
            raise TypeError(f"`bias` must have the dtype of `input`, {input.dtype.name}, got {bias.dtype.name}")
    return weights, n


@op(dtypes=_DTYPES)
def linear_quantized(call, input, weight, bias=None, *, activations="int8"):
    """`input @ weight.T + bias` for input [..., K] and a `QuantizedWeight` [N, K] -> [..., N].

    Several weights with the same K (a sequence) give their results one after another, [..., sum of N], and `bias` is
    as long. `activations` "int8" quantises `input` on the way, "float" does not (weights of float8 never do).
    Raises ValueError for sizes that do not match, TypeError for other dtypes than float32, bfloat16 and float16.
    """
    weights, n = _checked(input, weight, bias, activations)
    shape = tuple(input.shape)
    y = call.out((*shape[:-1], n), input.dtype)
    if y.numel() == 0:
        return y
    input = input.contiguous()
    bias = bias.contiguous() if bias is not None else None
    k = shape[-1]
    laid_out, column = _Activations(call, input, y.numel() // n, k, k), 0
    for w in weights:
        if w.shape[0]:
            _multiply(call, laid_out, w, y, column, bias, activations == "float" or w.format.float8 is not None)
        column += w.shape[0]
    return y
