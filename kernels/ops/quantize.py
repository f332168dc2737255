"""Weights into quantised panels, from floats and from the layouts of checkpoints, and back: see `cpu/formats.py`."""

import numpy as np

from ..cpu.quant.formats import FORMATS, LANES, SUPER, UNIT
from ..table.registry import FLOATS, op
from .quantized import QuantizedWeight

_PARAMETERS = ("half", "half_min", "half_zero", "single", "exponent", "super", "super_min")
_PER_ROW = 31  # the shift of one scale for a row
_GRAIN = 1 << 14  # weights: some 20 us
_SCALES = ("float16", "bfloat16", "float32")
_COLUMNS = 128  # of AWQ words that are packed together, as in cpu/quant_layouts.py
_NOT_FINITE = "`{}` of `{}` has NaN or infinity, or is too large for float16: check the checkpoint"


def _check(call, **tensors):
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
    shifts = {32: 0, 64: 1, 128: 2, -1: _PER_ROW}
    if type(group_size) is not int or group_size not in shifts:
        raise ValueError(f"`group_size` of `{name}` must be 32, 64, 128 or -1 (one scale per row), got {group_size!r}")
    return shifts[group_size]


def empty_weight(call, shape, format, shift=0, order=None):
    """A `QuantizedWeight` with memory that is still to be written."""
    n, k = shape
    panels = -(-n // LANES)
    data = call.scratch(panels * FORMATS[format].panel_bytes(k, shift))
    return QuantizedWeight(data, (n, k), format, shift, order)


def _units(weight):
    return -(-weight.shape[1] // UNIT)


def _grain(k, panels=1):
    return 1 + _GRAIN // (panels * LANES * k + 1)


# ---- floats ------------------------------------------------------------------------------------


@op(outputs=(), gradient=None)
def quantize_weight(call, weight, format="int8", *, group_size=32, into=None, first=0):
    """The `QuantizedWeight` of a float weight [N, K], for `linear_quantized`; `weight` itself is no longer needed.

    "int8" has one float32 scale per row, its largest magnitude / 127. "int4" has a float16 scale for each `group_size`
    (32, 64 or 128) neighbours of a row: of seven multiples of 1 / the largest element, with the scale that fits each
    best, the one with the least squared error. Both round to nearest even.
    With `into`, a `QuantizedWeight` of more rows, the rows are written to it from row `first` on, a multiple of the
    panel's rows, and `into` is returned. Raises ValueError for NaN and infinity, and for sizes that do not match.
    """
    _check(call, weight=(weight, FLOATS, 2))
    if format not in ("int8", "int4"):
        raise ValueError(f"`format` of `quantize_weight` must be 'int8' or 'int4', got {format!r}")
    shift = _PER_ROW if format == "int8" else shift_of(group_size)
    if format == "int4" and shift == _PER_ROW:
        raise ValueError("`group_size` of `quantize_weight` must be 32, 64 or 128 for 'int4', got -1")
    n, k = weight.shape
    target = _target(call, into, first, (n, k), format, shift)
    if weight.strides[1] != 1:
        weight = weight.contiguous()
    start = target.address + first // LANES * target.panel_bytes
    args = [weight.address, start, n, k, weight.strides[0], target.panel_bytes, _units(target), 1 << min(shift, 8)]
    errors = {
        1: "`weight` of `quantize_weight` has NaN or infinity: check the checkpoint",
        2: "`weight` of `quantize_weight` has numbers too large for float16 scales: use format='int8'",
    }
    keep = (weight, target.data)
    call.launch_at(f"quant.quantize.{format}", {"T": weight.dtype.name}, args, -(-n // LANES), _grain(k), keep, errors)
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
    last = first + shape[0]
    if first % LANES or first < 0 or last > into.shape[0] or (last % LANES and last != into.shape[0]):
        raise ValueError(
            f"`first` of `quantize_weight` must place whole panels of {LANES} rows in {into}, "
            f"got rows {first} to {last}"
        )
    return into


@op(outputs=(), gradient=None)
def empty_quantized(call, shape, format="int8", *, group_size=32):
    """A `QuantizedWeight` of `shape` [N, K] for "int8" or "int4", to be filled by `quantize_weight(..., into=it)`."""
    if format not in ("int8", "int4"):
        raise ValueError(f"`format` of `empty_quantized` must be 'int8' or 'int4', got {format!r}")
    shift = _PER_ROW if format == "int8" else shift_of(group_size, "empty_quantized")
    return empty_weight(call, tuple(shape), format, shift)


@op(gradient=None)
def dequantize_weight(call, weight, dtype="float32"):
    """The float weight [N, K] of a `QuantizedWeight` in any format, columns in the order of the inputs.

    For tests and for looking at values: products read the panels.
    """
    if not isinstance(weight, QuantizedWeight):
        raise TypeError(f"`weight` of `dequantize_weight` must be a QuantizedWeight, got {type(weight).__name__}")
    (n, k), form = weight.shape, weight.format
    y = call.out((n, k), dtype)
    if y.dtype.name not in FLOATS:
        raise TypeError(f"`dtype` of `dequantize_weight` must be {', '.join(FLOATS)}, got {y.dtype.name}")
    order = weight.order
    grouped = form.parameters.startswith("super")
    shared = form.group if grouped else UNIT << weight.shift
    args = [y.address, weight.address, n, k, k, weight.panel_bytes, _units(weight), shared]
    args += [order.address if order is not None else 0, *(form.table or ())]
    parameters = {
        "T": y.dtype.name,
        "Q": form.float8 or "uint8",
        "BITS": form.bits,
        "PARAMETERS": _PARAMETERS.index(form.parameters),
        "GROUPS": SUPER // form.group if grouped else 1,
        "ZERO": form.zero,
        "TABLE": form.table is not None,
    }
    call.launch_at("quant.quantize.dequantize", parameters, args, -(-n // LANES), _grain(k), (y, weight.data, order))
    return y


# ---- layouts of checkpoints --------------------------------------------------------------------


def _args(source, distance, target, scales, strides, shared):
    """The head of the argument block of a packer."""
    n, k = target.shape
    units = _units(target)
    records = target.format.records(units, target.shift)
    head = [source.address, target.address, n, k, distance, target.panel_bytes, units, records]
    return [*head, scales.address, *strides, shared]


def _pack_rows(call, source, target, scales, strides, shared, flip, scales_name):
    kinds = {"single": ("float32", 4), "half": ("float16", 2), "exponent": ("uint8", 1)}
    out, scale_bytes = kinds[target.format.parameters]
    args = _args(source, source.strides[0] * source.dtype.itemsize, target, scales, strides, shared)
    n, k = target.shape
    kernel = "quant.layouts.byte_rows" if target.format.bits == 8 else "quant.layouts.nibble_rows"
    parameters = {"FLIP": flip, "SCALES": scales.dtype.name, "OUT": out, "SCALE_BYTES": scale_bytes}
    errors = {1: _NOT_FINITE.format(scales_name, call.op.name)}
    keep = (source, scales, target.data)
    call.launch_at(kernel, parameters, args, -(-n // LANES), _grain(k), keep, errors)
    return target


def _scale_shape(call, scales, wanted):
    if tuple(scales.shape) not in wanted:
        shapes = " or ".join(str(list(shape)) for shape in dict.fromkeys(wanted))
        raise ValueError(f"`scales` of `{call.op.name}` must have shape {shapes}, got {list(scales.shape)}")


@op(outputs=(), gradient=None)
def pack_int8(call, weight, scales):
    """The "int8" `QuantizedWeight` of int8 [N, K] and scales, one for each row ([N, 1]) or for all ([1, 1])."""
    _check(call, weight=(weight, ("int8",), 2), scales=(scales, _SCALES, 2))
    n, k = weight.shape
    _scale_shape(call, scales, [(n, 1), (1, 1)])
    weight, scales = weight.contiguous(), scales.contiguous()
    strides = (1 if scales.numel() == n else 0, 0)
    return _pack_rows(call, weight, empty_weight(call, (n, k), "int8", _PER_ROW), scales, strides, 1, 128, "scales")


@op(outputs=(), gradient=None)
def pack_float8(call, weight, scales):
    """The `QuantizedWeight` of float8 [N, K] (e4m3 or e5m2) and its scales: w = scale * weight.

    Scales are one for each 128 x 128 block ([ceil(N / 128), ceil(K / 128)]), for each row ([N, 1]) or for all ([1, 1]).
    """
    _check(call, weight=(weight, ("float8_e4m3", "float8_e5m2"), 2), scales=(scales, _SCALES, 2))
    n, k = weight.shape
    blocks = -(-n // 128), -(-k // 128)
    _scale_shape(call, scales, [blocks, (n, 1), (1, 1)])
    weight, scales = weight.contiguous(), scales.contiguous()
    shape = tuple(scales.shape)
    shift, strides, shared = _PER_ROW, (0, 0), 1
    if shape == (n, 1):
        strides = (1, 0)
    elif shape != (1, 1):
        shift, strides, shared = 2, (blocks[1], 1), 128
    target = empty_weight(call, (n, k), weight.dtype.name, shift)
    return _pack_rows(call, weight, target, scales, strides, shared, 0, "scales")


@op(outputs=(), gradient=None)
def pack_mxfp4(call, blocks, scales):
    """The "mxfp4" `QuantizedWeight` of nibbles uint8 [N, K / 2] (low one first) and exponents uint8 [N, K / 32].

    A weight is the OCP E2M1 number of its nibble times 2^(exponent - 127). Raises ValueError for exponent 255 (NaN).
    """
    _check(call, blocks=(blocks, ("uint8",), 2), scales=(scales, ("uint8",), 2))
    n, k = blocks.shape[0], 2 * blocks.shape[1]
    if k % UNIT:
        raise ValueError(f"`blocks` of `pack_mxfp4` must have a multiple of 16 bytes in a row, got {blocks.shape[1]}")
    _scale_shape(call, scales, [(n, k // UNIT)])
    blocks, scales = blocks.contiguous(), scales.contiguous()
    return _pack_rows(call, blocks, empty_weight(call, (n, k), "mxfp4"), scales, (k // UNIT, 1), 1, 0, "scales")


@op(outputs=(), gradient=None)
def pack_groups(call, weight, scales, *, bits=4, group_size=128):
    """The `QuantizedWeight` of words along rows, int32 [N, K / per] with per = 32 / bits and the first element in the
    low bits, and scales [N, groups].

    w = scale * (q - 2^(bits - 1)); `group_size` is 32, 64, 128, or -1 for one scale per row.
    """
    _check(call, weight=(weight, ("int32",), 2), scales=(scales, _SCALES, 2))
    if bits not in (4, 8):
        raise ValueError(f"`bits` of `pack_groups` must be 4 or 8, got {bits!r}")
    shift = shift_of(group_size, "pack_groups")
    n, k = weight.shape[0], 32 // bits * weight.shape[1]
    groups = 1 if group_size == -1 else -(-k // group_size)
    _scale_shape(call, scales, [(n, groups)])
    weight, scales = weight.contiguous(), scales.contiguous()
    target = empty_weight(call, (n, k), "int4" if bits == 4 else "q8_0", shift)
    return _pack_rows(call, weight, target, scales, (groups, 1), 1, 0, "scales")


def _column_weight(call, shape, bits, zeros, added, scales, group_size, order, per):
    """(target, whether zeros are stored, argument block after the source) for AWQ and GPTQ."""
    n, k = shape
    shift = shift_of(group_size, call.op.name)
    groups = 1 if group_size == -1 else -(-k // group_size)
    _scale_shape(call, scales, [(groups, n)])
    if tuple(zeros.shape) != (groups, n // per):
        raise ValueError(f"`qzeros` of `{call.op.name}` must have shape {[groups, n // per]}, got {list(zeros.shape)}")
    middle = (1 << bits - 1) - added  # as stored, where the format's own zero is meant
    word = sum((middle & (1 << bits) - 1) << bits * i for i in range(per))
    own = bool((zeros.numpy().view("uint32") == word).all())
    name = ("int4" if bits == 4 else "q8_0") if own else f"uint{bits}"
    return empty_weight(call, shape, name, shift, order), not own


def _pack_columns(call, kernel, parameters, qweight, qzeros, scales, target, has_zeros, added, items, panels):
    n, k = target.shape
    args = _args(qweight, qweight.strides[0], target, scales, (1, n), 1)
    order = target.order
    args += [qzeros.address, qzeros.shape[1], added, order.address if order is not None else 0]
    parameters = {**parameters, "ZEROS": has_zeros, "SCALES": scales.dtype.name}
    name = call.op.name
    errors = {
        1: _NOT_FINITE.format("scales", name),
        2: f"`qzeros` of `{name}` has a zero of 256, which no byte holds: check the checkpoint",
    }
    keep = (qweight, qzeros, scales, order, target.data)
    call.launch_at(kernel, parameters, args, items, _grain(k, panels), keep, errors)
    return target


@op(outputs=(), gradient=None)
def pack_gptq(call, qweight, qzeros, scales, *, bits=4, group_size=128, order=None, zero_offset=1):
    """The `QuantizedWeight` of a GPTQ layer: qweight int32 [K / per, N], qzeros int32 [groups, N / per], scales
    [groups, N], with per = 32 / bits.

    w = scale * (q - (zero + zero_offset)): the offset is 1 for checkpoint_format "gptq" and 0 for "gptq_v2". With
    act-order, `order` (int32 [K]) has the inputs sorted by group, so that each `group_size` of them share scales.
    """
    if bits not in (4, 8):
        raise ValueError(f"`bits` of `pack_gptq` must be 4 or 8, got {bits!r}")
    if zero_offset not in (0, 1):
        raise ValueError(f"`zero_offset` of `pack_gptq` must be 0 or 1, got {zero_offset!r}")
    tensors = {"qweight": (qweight, ("int32",), 2), "qzeros": (qzeros, ("int32",), 2), "scales": (scales, _SCALES, 2)}
    _check(call, **tensors)
    per = 32 // bits
    n, k = qweight.shape[1], per * qweight.shape[0]
    if n % per:
        raise ValueError(f"`qweight` of `pack_gptq` must have a multiple of {per} columns, got {n}")
    if order is not None:
        _check_order(call, order, k)
    qweight, qzeros, scales = (x.contiguous() for x in (qweight, qzeros, scales))
    target, zeros = _column_weight(call, (n, k), bits, qzeros, zero_offset, scales, group_size, order, per)
    items = -(-n // LANES)
    parameters = {"BITS": bits}
    rest = (qweight, qzeros, scales, target, zeros, zero_offset, items, 1)
    return _pack_columns(call, "quant.layouts.gptq", parameters, *rest)


def _check_order(call, order, k):
    """Refuse an order that is no permutation: kernels take it as it is."""
    _check(call, order=(order, ("int32",), 1))
    if order.numel() != k or not order.is_contiguous() or (np.sort(order.numpy()) != np.arange(k)).any():
        raise ValueError(f"`order` of `{call.op.name}` must be a contiguous permutation of 0 to {k - 1}")


@op(outputs=(), gradient=None)
def pack_awq(call, qweight, qzeros, scales, *, group_size=128):
    """The `QuantizedWeight` of an AWQ layer (version "gemm"): qweight int32 [K, N / 8], qzeros int32 [groups, N / 8],
    scales [groups, N].

    w = scale * (q - zero); nibble i of a word is column (0, 2, 4, 6, 1, 3, 5, 7)[i] of its eight.
    """
    tensors = {"qweight": (qweight, ("int32",), 2), "qzeros": (qzeros, ("int32",), 2), "scales": (scales, _SCALES, 2)}
    _check(call, **tensors)
    k, n = qweight.shape[0], 8 * qweight.shape[1]
    qweight, qzeros, scales = (x.contiguous() for x in (qweight, qzeros, scales))
    target, zeros = _column_weight(call, (n, k), 4, qzeros, 0, scales, group_size, None, 8)
    rest = (qweight, qzeros, scales, target, zeros, 0, -(-n // _COLUMNS), _COLUMNS // LANES)
    return _pack_columns(call, "quant.layouts.awq", {}, *rest)


# ---- and back, for checkpoints that are written ------------------------------------------------


def _check_format(call, weight, format):
    if not isinstance(weight, QuantizedWeight) or weight.format.name != format:
        got = weight.format.name if isinstance(weight, QuantizedWeight) else type(weight).__name__
        raise TypeError(f"`weight` of `{call.op.name}` must be a QuantizedWeight of format {format!r}, got {got}")


@op(outputs=(), gradient=None)
def unpack_int8(call, weight):
    """(int8 [N, K], float32 scales [N, 1]) of an "int8" `QuantizedWeight`: what `pack_int8` takes."""
    _check_format(call, weight, "int8")
    n, k = weight.shape
    rows, scales = call.empty((n, k), "int8"), call.empty((n, 1), "float32")
    args = [rows.address, weight.address, scales.address, n, k, weight.panel_bytes, _units(weight)]
    call.launch_at("quant.layouts.to_int8", {}, args, -(-n // LANES), _grain(k), (rows, scales, weight.data))
    return rows, scales


@op(outputs=(), gradient=None)
def unpack_gptq(call, weight):
    """(qweight int32 [K / 8, N], scales float16 [groups, N]) of an "int4" `QuantizedWeight`: what `pack_gptq` takes,
    with zeros of 8. Raises ValueError where N or K is no multiple of 8.
    """
    _check_format(call, weight, "int4")
    n, k = weight.shape
    if n % 8 or k % 8:
        raise ValueError(f"`weight` of `unpack_gptq` must have multiples of 8 as sizes, got {weight.shape}")
    units = _units(weight)
    records = weight.format.records(units, weight.shift)
    words, scales = call.empty((k // 8, n), "int32"), call.empty((records, n), "float16")
    args = [words.address, weight.address, scales.address, n, k, weight.panel_bytes, units, records]
    call.launch_at("quant.layouts.to_gptq", {}, args, -(-n // LANES), _grain(k), (words, scales, weight.data))
    return words, scales
