"""Weights of GGUF files, straight from their raw blocks: values, rows of an embedding, and packed panels."""

from ..blocks.quant import GGUF_PACK, GGUF_VALUES
from ..lang.formats import KINDS
from ..table.registry import FLOATS, op
from ._layout import check_index
from .quant import empty_weight


def _checked(call, raw, kind, shape):
    """The row of `KINDS` of raw blocks, which must be those of `shape`."""
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
    nbytes = count * (length // row.block) * row.block_bytes
    if getattr(raw, "dtype", None) is None or raw.dtype.name != "uint8" or not raw.contiguous_:
        raise TypeError(f"`raw` of `{call.op.name}` must be a contiguous uint8 tensor, got {type(raw).__name__}")
    if raw.numel_ != nbytes:
        raise ValueError(
            f"`raw` of `{call.op.name}` has {raw.numel_} bytes, and {kind} blocks of shape {(count, length)} take "
            f"{nbytes}"
        )
    return row


def _float_name(call, dtype):
    name = getattr(dtype, "name", dtype)
    if name not in FLOATS:
        raise TypeError(f"`dtype` of `{call.op.name}` must be one of {', '.join(FLOATS)}, got {name!r}")
    return name


def _dequantize(call, y, raw, row, shape, index=None, errors=None):
    count, length = shape
    types = {"F": row.format.name, "T": y.dtype.name, "I": "int64" if index is None else index.dtype.name}
    types |= {"KIND": row.number, "GROUPS": row.groups}
    block = GGUF_VALUES(raw=raw, index=index, y=y, length=length, block_bytes=row.block_bytes, count=count)
    call.launch("quant.gguf.dequantize", types, block, count if index is None else index.numel_, length, errors)
    return y


@op(dtypes=FLOATS, gradient=None)
def gguf_dequantize(call, raw, kind, shape, dtype="float32"):
    """The values [N, K] of raw blocks of a GGUF file, equal to the reference's bit for bit in float32.

    `raw` is a contiguous uint8 tensor, `kind` the type's name ("Q4_K", ...), `shape` (N, K). Raises ValueError for an
    unknown kind, or where the bytes of `raw` are not those of `shape`.
    """
    row = _checked(call, raw, kind, shape)
    return _dequantize(call, call.out(tuple(shape), _float_name(call, dtype)), raw, row, shape)


@op(dtypes=FLOATS, gradient=None)
def gguf_embedding(call, indices, raw, kind, shape, dtype="float32"):
    """Rows of raw blocks [V, D] of a GGUF file by `indices` (any shape, int32 or int64): indices.shape + [D].

    Only the rows asked for are read. The other arguments are those of `gguf_dequantize`. Raises ValueError for an
    index outside of 0 to V - 1.
    """
    check_index(call, indices, "indices")
    row = _checked(call, raw, kind, shape)
    y = call.out((*indices.shape_, shape[1]), _float_name(call, dtype))
    errors = {1: f"`indices` of `{call.op.name}` must be from 0 to {shape[0] - 1}, the rows: check the token ids"}
    return _dequantize(call, y, raw, row, shape, indices.contiguous(), errors)


@op(dtypes=("uint8",), outputs=(), gradient=None)
def gguf_pack(call, raw, kind, shape, rows=None):
    """Raw blocks [N, K] of a GGUF file as a `QuantizedWeight` for `linear_quantized`; nothing is lost or rounded.

    With `rows` (int64 [N]), packed row r is row rows[r] of the file. The other arguments are those of
    `gguf_dequantize`.
    """
    row, (count, length) = _checked(call, raw, kind, shape), shape
    if rows is not None:
        if rows.dtype.name != "int64" or rows.shape_ != (count,):
            raise ValueError(f"`rows` of `gguf_pack` must be int64 [{count}], got {rows.dtype.name} {rows.shape_}")
        if count and not 0 <= int(rows.min().item()) <= int(rows.max().item()) < count:
            raise ValueError(f"`rows` of `gguf_pack` must be from 0 to {count - 1}, the rows of `raw`")
        rows = rows.contiguous()
    weight = empty_weight(call, (count, length), row.format.name)
    block = GGUF_PACK(
        raw=raw, index=rows, weight=weight.data, length=length, block_bytes=row.block_bytes, count=count
    )  # fmt: skip
    types = {"F": row.format.name, "KIND": row.number, "GROUPS": row.groups}
    call.launch("quant.gguf.pack", types, block, count, length)
    return weight
