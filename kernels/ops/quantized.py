"""Products with quantised weights: `linear_quantized`.

Activations are quantised on the way, 32 neighbours of a row with one scale (all of a row where the weight has one
scale per row), and multiplied as integers of 8 bits: sums of a group are exact, and scaled in float32. With
`activations="float"` they stay as they are, and the weight's integers are converted in registers.
"""

import functools

from ..cpu.gemm import blocking
from ..cpu.quant.formats import EXPANDED_UNITS, FORMATS, LANES, TILE_ROWS, UNIT
from ..table.registry import op

_DTYPES = ("float32", "bfloat16", "float16")
_GRAIN_BYTES = 1 << 17  # of a weight: some 8 us of reading
_GRAIN_WORK = 1 << 23  # products of integers x 2: some 30 us
_GRAIN_ELEMENTS = 1 << 15  # activations that are quantised in some 30 us
_FEW_ROWS = 16  # that multiply panels as they lie, where activations stay floats
_FIELDS = ("bits", "group", "parameters", "table", "zero", "float8")  # that tell one format's floats from another's
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

    def __init__(self, call, input, rows, k):
        self.call, self.input, self.rows, self.k = call, input, rows, k
        self.units, self.padded = -(-k // UNIT), -(-rows // TILE_ROWS) * TILE_ROWS
        self.made = {}

    def packed(self, order):
        """The rows as panels of the blocked product; (address, bytes of a panel, K), and memory to keep."""
        key = ("packed", id(order))
        if key not in self.made:
            input, dtype = self.input if order is None else self.input.index_select(-1, order), self.input.dtype.name
            steps = -(-self.k // (2 if blocking.pairs(dtype) else 1))
            nbytes, tiles = (steps + LANES) * blocking.ROWS * 4, -(-self.rows // blocking.ROWS)
            data = self.call.scratch(tiles * nbytes)
            args = [input.address, self.k, self.rows, self.k, data.address, nbytes]
            grain = 1 + _GRAIN_ELEMENTS // (blocking.ROWS * self.k)
            keep = (input, data)
            self.call.launch_at("quant.expand.pack_rows", {"T": dtype}, args, n=tiles, grain=grain, keep=keep)
            self.made[key] = (data.address, nbytes, self.k), keep
        return self.made[key]

    def _launch(self, kernel, parameters, sizes, order):
        """Run a kernel that lays out rows in tiles; (addresses, memory to keep) of its three results."""
        buffers = [self.call.scratch(size) if size else None for size in sizes]
        addresses = [buffer.address if buffer is not None else 0 for buffer in buffers]
        args = [self.input.address, self.k, self.rows, self.k, self.units, *addresses]
        args.append(order.address if order is not None else 0)
        grain = 1 + _GRAIN_ELEMENTS // (min(TILE_ROWS, self.rows) * self.k + 1)
        keep, parameters = (self.input, *buffers, order), parameters | {"T": self.input.dtype.name}
        self.call.launch_at(
            f"quant.products.{kernel}", parameters, args, n=self.padded // TILE_ROWS, grain=grain, keep=keep
        )
        return addresses, keep

    def for_weight(self, weight, floats):
        name = "float" if floats else _alike(weight.format.name, "flat", "zero", "groups", "has_min", "words")
        key = (name, id(weight.order))
        if key not in self.made:
            size = self.padded * self.units * UNIT
            if floats:
                self.made[key] = self._launch("spread_rows", {}, [4 * size, 0, 0], weight.order)
            else:
                scales = 4 * self.padded * (1 if weight.format.flat else self.units)
                sizes = [size * weight.format.words, scales, scales * weight.format.groups]
                self.made[key] = self._launch("quantize_rows", {"F": name}, sizes, weight.order)
        return self.made[key]


def _multiply(activations, weight, y, column, bias, floats):
    """Launch the product of the activations with one weight, into the columns of `y` from `column` on."""
    form, rows, item = weight.format, activations.rows, y.dtype.itemsize
    n, units, many = weight.shape[0], activations.units, floats and activations.rows > _FEW_ROWS
    inputs, kept = activations.packed(weight.order) if many else activations.for_weight(weight, floats)
    args = [*inputs, weight.address, y.address + column * item, bias.address + column * item if bias is not None else 0]
    args += [rows, n, units, weight.panel_bytes, weight.shift, y.shape[-1]]
    parameters = {"T": y.dtype.name}
    if many:
        return _multiply_expanded(activations.call, form, args, (*kept, weight.data, y, bias), y.dtype.name)
    if floats:
        kernel, fields = "stream_floats", _FIELDS
    else:
        kernel, fields = "stream", ("bits", "group", "parameters", "table")
    if form.flat and not floats:
        kernel = "stream_flat"
    parameters = {"F": _alike(form.name, *fields)} | parameters
    work = 2 * rows * units * UNIT * LANES * (4 if floats else 1)
    grain = 1 + min(_GRAIN_BYTES // weight.panel_bytes, _GRAIN_WORK // work)
    keep = (*kept, weight.data, y, bias)
    activations.call.launch_at(f"quant.products.{kernel}", parameters, args, n=-(-n // LANES), grain=grain, keep=keep)


def _multiply_expanded(call, form, args, keep, dtype):
    """Launch `quant_expand.expanded`: pairs of panels times all rows."""
    rows, n, k = args[6], args[7], args[2]
    items, size = -(-n // blocking.across(dtype)), blocking.across(dtype) * 4
    panel = EXPANDED_UNITS * UNIT // (2 if blocking.pairs(dtype) else 1) * size
    slice_bytes = panel + rows * size
    scratch = call.scratch(slice_bytes * min(call.threads, items))
    args = [*args, scratch.address, slice_bytes, -(-items // call.threads)]
    grain = 1 + blocking.PARALLEL_WORK // (2 * rows * k * blocking.across(dtype))
    parameters = {"F": _alike(form.name, *_FIELDS), "T": dtype}
    call.launch_at("quant.expand.expanded", parameters, args, n=items, grain=grain, keep=(*keep, scratch))


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
            raise ValueError(
                f"`linear_quantized` needs `input` [..., K] and `weight` [N, K], got {shape} and {w.shape}"
            )
        if w.format.flat and w.shape[1] > _FLAT_K:
            raise ValueError(
                f"`weight` of one scale per row may have K of {_FLAT_K} at most, got {w.shape[1]}; use int4"
            )
    n = sum(w.shape[0] for w in weights)
    if bias is not None:
        if tuple(bias.shape) != (n,):
            raise ValueError(f"`bias` of `linear_quantized` must have shape ({n},), got {tuple(bias.shape)}")
        if bias.dtype is not input.dtype:
            raise TypeError(f"`bias` must have the dtype of `input`, {input.dtype.name}, got {bias.dtype.name}")
    return weights, n


@op(dtypes=_DTYPES, gradient="missing")
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
    laid_out, column = _Activations(call, input, y.numel() // n, shape[-1]), 0
    for w in weights:
        if w.shape[0]:
            _multiply(laid_out, w, y, column, bias, activations == "float" or w.format.float8 is not None)
        column += w.shape[0]
    return y
