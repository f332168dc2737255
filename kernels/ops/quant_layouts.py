"""Quantised weights in the layouts of checkpoints: packed for products, and back."""

import numpy as np

from ..blocks.quant import LAYOUT, UNPACK
from ..lang.formats import PER_ROW, UNIT
from ..table.registry import op
from .quant import QuantizedWeight, check_operands, empty_weight, shift_of

_SCALES = ("float16", "bfloat16", "float32")
_NOT_FINITE = "`{}` of `{}` has NaN or infinity, or is too large for float16: check the checkpoint"


def _pack_rows(call, source, target, scales, steps, rows_each=1, flip=0):
    """Pack rows of bytes or nibbles; scales lie `steps` apart along rows and groups, one for `rows_each` rows."""
    n, k = target.shape
    block = LAYOUT(
        source=source, weight=target.data, scales=scales, n=n, k=k, shift=target.shift, row_step=steps[0],
        record_step=steps[1], rows_each=rows_each,
    )  # fmt: skip
    types = {"F": target.format.name, "SCALES": scales.dtype.name, "FLIP": flip}
    call.launch("quant.layouts.rows", types, block, n, k, {1: _NOT_FINITE.format("scales", call.op.name)})
    return target


def _scale_shape(call, scales, wanted):
    if tuple(scales.shape) not in wanted:
        shapes = " or ".join(str(list(shape)) for shape in dict.fromkeys(wanted))
        raise ValueError(f"`scales` of `{call.op.name}` must have shape {shapes}, got {list(scales.shape)}")


@op(outputs=(), gradient=None)
def pack_int8(call, weight, scales):
    """The "int8" `QuantizedWeight` of int8 [N, K] and scales, one for each row ([N, 1]) or for all ([1, 1])."""
    check_operands(call, weight=(weight, ("int8",), 2), scales=(scales, _SCALES, 2))
    n, k = weight.shape
    _scale_shape(call, scales, [(n, 1), (1, 1)])
    weight, scales = weight.contiguous(), scales.contiguous()
    steps = (1 if scales.numel() == n else 0, 0)
    return _pack_rows(call, weight, empty_weight(call, (n, k), "int8", PER_ROW), scales, steps, flip=128)


@op(outputs=(), gradient=None)
def pack_float8(call, weight, scales):
    """The `QuantizedWeight` of float8 [N, K] (e4m3 or e5m2) and its scales: w = scale * weight.

    Scales are one for each 128 x 128 block ([ceil(N / 128), ceil(K / 128)]), for each row ([N, 1]) or for all ([1, 1]).
    """
    check_operands(call, weight=(weight, ("float8_e4m3", "float8_e5m2"), 2), scales=(scales, _SCALES, 2))
    n, k = weight.shape
    blocks = -(-n // 128), -(-k // 128)
    _scale_shape(call, scales, [blocks, (n, 1), (1, 1)])
    weight, scales = weight.contiguous(), scales.contiguous()
    shape = tuple(scales.shape)
    shift, steps, rows_each = PER_ROW, (0, 0), 1
    if shape == (n, 1):
        steps = (1, 0)
    elif shape != (1, 1):
        shift, steps, rows_each = 2, (blocks[1], 1), 128
    return _pack_rows(call, weight, empty_weight(call, (n, k), weight.dtype.name, shift), scales, steps, rows_each)


@op(outputs=(), gradient=None)
def pack_mxfp4(call, blocks, scales):
    """The "mxfp4" `QuantizedWeight` of nibbles uint8 [N, K / 2] (low one first) and exponents uint8 [N, K / 32].

    A weight is the OCP E2M1 number of its nibble times 2^(exponent - 127). Raises ValueError for exponent 255 (NaN).
    """
    check_operands(call, blocks=(blocks, ("uint8",), 2), scales=(scales, ("uint8",), 2))
    n, k = blocks.shape[0], 2 * blocks.shape[1]
    if k % UNIT:
        raise ValueError(f"`blocks` of `pack_mxfp4` must have a multiple of 16 bytes in a row, got {blocks.shape[1]}")
    _scale_shape(call, scales, [(n, k // UNIT)])
    blocks, scales = blocks.contiguous(), scales.contiguous()
    return _pack_rows(call, blocks, empty_weight(call, (n, k), "mxfp4"), scales, (k // UNIT, 1))


@op(outputs=(), gradient=None)
def pack_groups(call, weight, scales, *, bits=4, group_size=128):
    """The `QuantizedWeight` of words along rows, int32 [N, K / per] with per = 32 / bits and the first element in the
    low bits, and scales [N, groups].

    w = scale * (q - 2^(bits - 1)); `group_size` is 32, 64, 128, or -1 for one scale per row.
    """
    check_operands(call, weight=(weight, ("int32",), 2), scales=(scales, _SCALES, 2))
    if bits not in (4, 8):
        raise ValueError(f"`bits` of `pack_groups` must be 4 or 8, got {bits!r}")
    shift = shift_of(group_size, "pack_groups")
    n, k = weight.shape[0], 32 // bits * weight.shape[1]
    groups = 1 if group_size == -1 else -(-k // group_size)
    _scale_shape(call, scales, [(n, groups)])
    weight, scales = weight.contiguous(), scales.contiguous()
    target = empty_weight(call, (n, k), "int4" if bits == 4 else "q8_0", shift)
    return _pack_rows(call, weight, target, scales, (groups, 1))


def _pack_columns(call, kernel, qweight, qzeros, scales, shape, bits, group_size, added=0, order=None):
    """Pack words of neighbouring columns; `added` is added to the zeros."""
    (n, k), per, name = shape, 32 // bits, call.op.name
    shift = shift_of(group_size, name)
    groups = 1 if group_size == -1 else -(-k // group_size)
    _scale_shape(call, scales, [(groups, n)])
    if tuple(qzeros.shape) != (groups, n // per):
        raise ValueError(f"`qzeros` of `{name}` must have shape {[groups, n // per]}, got {list(qzeros.shape)}")
    middle = (1 << bits - 1) - added  # as stored, where the format's own zero is meant
    word = sum((middle & (1 << bits) - 1) << bits * i for i in range(per))
    own = bool((qzeros.numpy().view("uint32") == word).all())
    form = ("int4" if bits == 4 else "q8_0") if own else f"uint{bits}"
    target = empty_weight(call, shape, form, shift, order)
    block = LAYOUT(
        source=qweight, weight=target.data, scales=scales, zeros=qzeros, order=order, n=n, k=k, shift=shift,
        row_step=1, record_step=n, added=added,
    )  # fmt: skip
    errors = {
        1: _NOT_FINITE.format("scales", name),
        2: f"`qzeros` of `{name}` has a zero of 256, which no byte holds: check the checkpoint",
    }
    call.launch(kernel, {"F": form, "SCALES": scales.dtype.name}, block, n, k, errors)
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
    check_operands(call, **tensors)
    per = 32 // bits
    n, k = qweight.shape[1], per * qweight.shape[0]
    if n % per:
        raise ValueError(f"`qweight` of `pack_gptq` must have a multiple of {per} columns, got {n}")
    if order is not None:
        _check_order(call, order, k)
    words = [x.contiguous() for x in (qweight, qzeros, scales)]
    return _pack_columns(call, "quant.layouts.gptq", *words, (n, k), bits, group_size, zero_offset, order)


def _check_order(call, order, k):
    """Refuse an order that is no permutation: kernels take it as it is."""
    check_operands(call, order=(order, ("int32",), 1))
    if order.numel() != k or not order.is_contiguous() or (np.sort(order.numpy()) != np.arange(k)).any():
        raise ValueError(f"`order` of `{call.op.name}` must be a contiguous permutation of 0 to {k - 1}")


@op(outputs=(), gradient=None)
def pack_awq(call, qweight, qzeros, scales, *, group_size=128):
    """The `QuantizedWeight` of an AWQ layer (version "gemm"): qweight int32 [K, N / 8], qzeros int32 [groups, N / 8],
    scales [groups, N].

    w = scale * (q - zero); nibble i of a word is column (0, 2, 4, 6, 1, 3, 5, 7)[i] of its eight.
    """
    tensors = {"qweight": (qweight, ("int32",), 2), "qzeros": (qzeros, ("int32",), 2), "scales": (scales, _SCALES, 2)}
    check_operands(call, **tensors)
    k, n = qweight.shape[0], 8 * qweight.shape[1]
    words = [x.contiguous() for x in (qweight, qzeros, scales)]
    return _pack_columns(call, "quant.layouts.awq", *words, (n, k), 4, group_size)


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
    block = UNPACK(weight=weight.data, values=rows, scales=scales, n=n, k=k, shift=weight.shift)
    call.launch("quant.layouts.to_int8", {}, block, n, k)
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
    records = weight.format.records(k, weight.shift)
    words, scales = call.empty((k // 8, n), "int32"), call.empty((records, n), "float16")
    block = UNPACK(weight=weight.data, values=words, scales=scales, n=n, k=k, shift=weight.shift)
    call.launch("quant.layouts.to_gptq", {}, block, n, k)
    return words, scales
