"""Weights of GGUF files, straight from their raw blocks: values, rows of an embedding, and packed panels."""

from dataclasses import dataclass

from ..cpu.quant.formats import FORMATS, LANES, UNIT
from ..table.registry import FLOATS, op
from ._layout import check_index
from .quantize import empty_weight

_BLOCK = 256  # elements of a block of the kinds named K
_GRAIN = 65536  # elements: 20 to 60 us, by kind


@dataclass(frozen=True, slots=True)
class Kind:
    """One type of tensor: its number in `cpu/gguf_blocks.py`, the bytes of a block, and the format it packs to."""

    number: int
    block_bytes: int
    format: object

    @property
    def groups(self):
        """Scales of a block of 256 elements; 0 for blocks of 32."""
        return _BLOCK // self.format.group if self.format.parameters.startswith("super") else 0

    @property
    def block(self):
        return _BLOCK if self.groups else UNIT


KINDS = {
    name: Kind(number, nbytes, FORMATS[name.lower()])
    for number, (name, nbytes) in enumerate(
        {
            "Q8_0": 34,
            "Q4_0": 18,
            "Q4_1": 20,
            "Q5_0": 22,
            "Q5_1": 24,
            "IQ4_NL": 18,
            "MXFP4": 17,
            "Q2_K": 84,
            "Q3_K": 110,
            "Q4_K": 144,
            "Q5_K": 176,
            "Q6_K": 210,
        }.items()
    )
}


def _checked(call, raw, kind, shape):
    """(kind's row, rows, elements of a row, bytes of a row) of raw blocks, which must be those of `shape`."""
    if kind not in KINDS:
        raise ValueError(f"`kind` of `{call.op.name}` must be one of {', '.join(KINDS)}, got {kind!r}")
    if len(shape) != 2 or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"`shape` of `{call.op.name}` must be (rows, elements of a row), got {shape!r}")
    row, (count, length) = KINDS[kind], shape
    if length % row.block:
        raise ValueError(
            f"`shape` of `{call.op.name}` has rows of {length} elements, not a multiple of the {row.block} in a block "
            f"of {kind}"
        )
    row_bytes = length // row.block * row.block_bytes
    if getattr(raw, "dtype", None) is None or raw.dtype.name != "uint8" or not raw.contiguous_:
        raise TypeError(f"`raw` of `{call.op.name}` must be a contiguous uint8 tensor, got {type(raw).__name__}")
    if raw.numel_ != count * row_bytes:
        raise ValueError(
            f"`raw` of `{call.op.name}` has {raw.numel_} bytes, and {kind} blocks of shape {(count, length)} take "
            f"{count * row_bytes}"
        )
    return row, count, length, row_bytes


def _float_name(call, dtype):
    name = getattr(dtype, "name", dtype)
    if name not in FLOATS:
        raise TypeError(f"`dtype` of `{call.op.name}` must be one of {', '.join(FLOATS)}, got {name!r}")
    return name


def _dequantize(call, y, raw, kind, index, checked, n, errors=None):
    row, count, length, row_bytes = checked
    address, step = (0, 0) if index is None else (index.address, 1)
    types = {"T": y.dtype.name, "I": "int64" if index is None else index.dtype.name, "KIND": row.number}
    types |= {"GROUPS": row.groups, "ZERO": row.format.zero, "MIN": row.format.has_min}
    args = [y.address, raw.address, address, step, length, row_bytes, row.block_bytes, count]
    keep = (y, raw) if index is None else (y, raw, index)
    call.launch_at("quant.gguf.dequantize", types, args, n, max(1, _GRAIN // (length or 1)), keep, errors)
    return y


@op(dtypes=FLOATS, gradient=None)
def gguf_dequantize(call, raw, kind, shape, dtype="float32"):
    """The values [N, K] of raw blocks of a GGUF file, equal to the reference's bit for bit in float32.

    `raw` is a contiguous uint8 tensor, `kind` the type's name ("Q4_K", ...), `shape` (N, K). Raises ValueError for an
    unknown kind, or where the bytes of `raw` are not those of `shape`.
    """
    checked = _checked(call, raw, kind, shape)
    y = call.out(tuple(shape), _float_name(call, dtype))
    return _dequantize(call, y, raw, kind, None, checked, checked[1])


@op(dtypes=FLOATS, gradient=None)
def gguf_embedding(call, indices, raw, kind, shape, dtype="float32"):
    """Rows of raw blocks [V, D] of a GGUF file by `indices` (any shape, int32 or int64): indices.shape + [D].

    Only the rows asked for are read. The other arguments are those of `gguf_dequantize`. Raises ValueError for an
    index outside of 0 to V - 1.
    """
    check_index(call, indices, "indices")
    checked = _checked(call, raw, kind, shape)
    y = call.out((*indices.shape_, shape[1]), _float_name(call, dtype))
    errors = {1: f"`indices` of `{call.op.name}` must be from 0 to {shape[0] - 1}, the rows: check the token ids"}
    return _dequantize(call, y, raw, kind, indices.contiguous(), checked, indices.numel_, errors)


@op(dtypes=("uint8",), outputs=(), gradient=None)
def gguf_pack(call, raw, kind, shape, rows=None):
    """Raw blocks [N, K] of a GGUF file as a `QuantizedWeight` for `linear_quantized`; nothing is lost or rounded.

    With `rows` (int64 [N]), packed row r is row rows[r] of the file. The other arguments are those of
    `gguf_dequantize`.
    """
    row, count, length, row_bytes = _checked(call, raw, kind, shape)
    keep, address = [raw], 0
    if rows is not None:
        if rows.dtype.name != "int64" or rows.shape_ != (count,):
            raise ValueError(f"`rows` of `gguf_pack` must be int64 [{count}], got {rows.dtype.name} {rows.shape_}")
        if count and not 0 <= int(rows.min().item()) <= int(rows.max().item()) < count:
            raise ValueError(f"`rows` of `gguf_pack` must be from 0 to {count - 1}, the rows of `raw`")
        rows = rows.contiguous()
        keep, address = [raw, rows], rows.address
    weight, panels = empty_weight(call, (count, length), row.format.name), -(-count // LANES)
    types = {"KIND": row.number, "BITS": row.format.bits, "GROUPS": row.groups, "MIN": row.format.has_min}
    args = [weight.address, raw.address, address, count, length // row.block, row_bytes, row.block_bytes]
    args += [weight.panel_bytes, row.format.record()]
    call.launch_at(
        "quant.gguf.pack", types, args, panels, max(1, _GRAIN // (LANES * length or 1)), (weight.data, *keep)
    )
    return weight
