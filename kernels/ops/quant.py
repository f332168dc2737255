"""Quantised weights: packed from floats for products, and back."""

from ..blocks.quant import PACK, VALUES
from ..lang.formats import FORMATS, PER_ROW
from ..problems.quant import WeightLayout
from ..table.registry import FLOATS, op


class QuantizedWeight:
    """The weight [N, K] of a linear layer, packed by a device in a quantised format (`kernels/lang/formats.py`).

    `data` is a contiguous uint8 tensor, `format` a name in `FORMATS`; 32 << `shift` neighbours of a row share a scale
    where the format leaves that open. With `order` (int32 [K]), packed element k belongs to input order[k].
    """

    def __init__(self, data, shape, format, shift=0, order=None):
        self.data, self.shape, self.format = data, tuple(shape), FORMATS[format]
        self.shift, self.order, self.device = shift, order, data.device

    @property
    def nbytes(self):
        return self.data.numel()

    def to(self, device):
        """On another device, or one that a name like "cuda" names. NotImplementedError where that one packs weights in
        another way.
        """
        data = self.data.to(device)
        device = data.device
        if device is self.device:
            return self
        ours, theirs = (
            layout(place.backend, self.shape, self.format.name, self.shift) for place in (self.device, device)
        )
        if ours != theirs:
            raise NotImplementedError(
                f"a weight that was packed for {self.device} cannot be used on {device}: pack it there"
            )
        order = None if self.order is None else self.order.to(device)
        return QuantizedWeight(data, self.shape, self.format.name, self.shift, order)

    def __repr__(self):
        return f"QuantizedWeight({self.shape}, {self.format.name})"


def layout(backend, shape, format, shift):
    """The `Layout` of a packed weight on a device: its bytes, and how many rows are packed together."""
    return backend.plan(WeightLayout(format, *shape, shift))


def empty_weight(call, shape, format, shift=0, order=None):
    """A `QuantizedWeight` with memory that is still to be written."""
    data = call.empty((layout(call.backend, shape, format, shift).nbytes,), "uint8")
    return QuantizedWeight(data, shape, format, shift, order)


def check_operands(call, **tensors):
    """Refuse operands that are no tensors, and name those of a wrong dtype or number of dims: (x, dtypes, ndim)."""
    name = call.op.name
    for label, (x, dtypes, ndim) in tensors.items():
        if not hasattr(x, "address"):
            raise TypeError(f"`{label}` of `{name}` must be a tensor, got {type(x).__name__}")
        if x.dtype.name not in dtypes:
            raise TypeError(f"`{label}` of `{name}` must be {' or '.join(dtypes)}, got {x.dtype.name}")
        if x.ndim != ndim:
            raise ValueError(f"`{label}` of `{name}` must have {ndim} dims, got shape {tuple(x.shape)}")
        if x.numel() == 0:
            raise ValueError(f"`{label}` of `{name}` must have elements, got shape {tuple(x.shape)}")


def shift_of(group_size, name="quantize_weight"):
    """The shift of a group size: 32, 64, 128, or -1 for one scale per row."""
    shifts = {32: 0, 64: 1, 128: 2, -1: PER_ROW}
    if type(group_size) is not int or group_size not in shifts:
        raise ValueError(f"`group_size` of `{name}` must be 32, 64, 128 or -1 (one scale per row), got {group_size!r}")
    return shifts[group_size]


@op(outputs=(), gradient=None)
def quantize_weight(call, weight, format="int8", *, group_size=32, into=None, first=0):
    """The `QuantizedWeight` of a float weight [N, K], for `linear_quantized`; `weight` itself is no longer needed.

    "int8" has one float32 scale per row, its largest magnitude / 127. "int4" has a float16 scale for each `group_size`
    (32, 64 or 128) neighbours of a row: of seven multiples of 1 / the largest element, with the scale that fits each
    best, the one with the least squared error. Both round to nearest even.
    With `into`, a `QuantizedWeight` of more rows, the rows are written to it from row `first` on, a multiple of the
    panel's rows, and `into` is returned. Raises ValueError for NaN and infinity, and for sizes that do not match.
    """
    check_operands(call, weight=(weight, FLOATS, 2))
    if format not in ("int8", "int4"):
        raise ValueError(f"`format` of `quantize_weight` must be 'int8' or 'int4', got {format!r}")
    shift = PER_ROW if format == "int8" else shift_of(group_size)
    if format == "int4" and shift == PER_ROW:
        raise ValueError("`group_size` of `quantize_weight` must be 32, 64 or 128 for 'int4', got -1")
    n, k = weight.shape
    target = _target(call, into, first, (n, k), format, shift)
    if weight.strides[1] != 1:
        weight = weight.contiguous()
    block = PACK(x=weight, weight=target.data, n=n, k=k, stride=weight.strides[0], shift=shift, first=first)
    errors = {
        1: "`weight` of `quantize_weight` has NaN or infinity: check the checkpoint",
        2: "`weight` of `quantize_weight` has numbers too large for float16 scales: use format='int8'",
    }
    call.launch(f"quant.quantize.{format}", {"T": weight.dtype.name}, block, n, k, errors)
    return target


def _target(call, into, first, shape, format, shift):
    """`into`, checked, or a new weight."""
    if into is None:
        if first:
            raise ValueError(f"`first` of `quantize_weight` must be 0 without `into`, got {first}")
        return empty_weight(call, shape, format, shift)
    if not isinstance(into, QuantizedWeight):
        raise TypeError(f"`into` of `quantize_weight` must be a QuantizedWeight, got {type(into).__name__}")
    if into.format.name != format or into.shift != shift or into.shape[1] != shape[1]:
        raise ValueError(f"`into` of `quantize_weight` must be an {format} weight with K = {shape[1]}, got {into}")
    last, rows = first + shape[0], layout(call.backend, into.shape, format, shift).rows
    if first % rows or first < 0 or last > into.shape[0] or (last % rows and last != into.shape[0]):
        raise ValueError(
            f"`first` of `quantize_weight` must place whole panels of {rows} rows in {into}, got rows {first} to {last}"
        )
    return into


@op(outputs=(), gradient=None)
def empty_quantized(call, shape, format="int8", *, group_size=32):
    """A `QuantizedWeight` of `shape` [N, K] for "int8" or "int4", to be filled by `quantize_weight(..., into=it)`."""
    if format not in ("int8", "int4"):
        raise ValueError(f"`format` of `empty_quantized` must be 'int8' or 'int4', got {format!r}")
    shift = PER_ROW if format == "int8" else shift_of(group_size, "empty_quantized")
    return empty_weight(call, tuple(shape), format, shift)


@op(gradient=None)
def dequantize_weight(call, weight, dtype="float32"):
    """The float weight [N, K] of a `QuantizedWeight` in any format, columns in the order of the inputs.

    For tests and for looking at values: products read the panels.
    """
    if not isinstance(weight, QuantizedWeight):
        raise TypeError(f"`weight` of `dequantize_weight` must be a QuantizedWeight, got {type(weight).__name__}")
    n, k = weight.shape
    y = call.out((n, k), dtype)
    if y.dtype.name not in FLOATS:
        raise TypeError(f"`dtype` of `dequantize_weight` must be {', '.join(FLOATS)}, got {y.dtype.name}")
    block = VALUES(weight=weight.data, order=weight.order, y=y, n=n, k=k, shift=weight.shift)
    call.launch("quant.expand.dequantize", {"F": weight.format.name, "T": y.dtype.name}, block, n, k)
    return y
