"""InfiniCore's entry points: what its Python functions call, with the `_underlying` of their tensors.

`name` is the op; `name_` writes to its first arguments, as many as the op has results, or works in place.
"""

import enum

import infinicore

from ..context import get_device, get_device_count, set_device, sync_device, sync_stream
from ..kernels import OPS

__all__ = ["DataType", "Device", "get_device", "get_device_count", "set_device", "sync_device", "sync_stream"]


class Device:
    """InfiniCore's names of devices."""

    Type = enum.IntEnum(
        "Type",
        "CPU NVIDIA CAMBRICON ASCEND METAX MOORE ILUVATAR KUNLUN HYGON QY ALI",
        start=0,
    )


# The numbers of InfiniCore's dtypes that have a name here.
DataType = enum.IntEnum(
    "DataType",
    {"BOOL": 2, "I8": 3, "I16": 4, "I32": 5, "I64": 6, "U8": 7, "U16": 8, "U32": 9, "U64": 10, "F8": 11, "F16": 12,
     "F32": 13, "F64": 14, "BF16": 19},
)  # fmt: skip


def topksoftmax(values, indices, x, topk, norm):
    """Write the `topk` largest of the softmax of `x` [T, E] to `values` float32 and `indices` int32, [T, topk]."""
    _copy((values, indices), infinicore.topksoftmax(x, topk, norm))


def moe_topk_softmax_(weights, indices, gating, bias=None, renormalize=False, softcap=0.0):
    """Write the experts of `gating` [T, E], as many as `weights` and `indices` [T, k] are wide, to these two."""
    _copy((weights, indices), infinicore.moe_topk_softmax(gating, weights.shape[-1], renormalize, bias, softcap))


def scaled_mm_i8(a_p, a_s, b_p, b_s, bias):
    """a_p int8 [M, K] @ b_p int8 [K, N], times their scales [M, 1] and [N, 1], plus `bias` [N] or None: [M, N]."""
    return infinicore.scaled_mm_w8a8(a_p, b_p, a_s, b_s.reshape(-1, 1), bias, False)


def scaled_mm_i8_(out, a_p, a_s, b_p, b_s, bias=None):
    """`scaled_mm_i8`, written to `out`."""
    infinicore.scaled_mm_w8a8(a_p, b_p, a_s, b_s.reshape(-1, 1), bias, False, out=out)


def per_channel_quant_i8_(x, x_packed, x_scale):
    """Write `x` [M, K] to `x_packed` int8 and `x_scale` float32 [M, 1], the largest magnitude of each row / 127."""
    wide = x.to(infinicore.float32)
    scale = wide.abs().amax(-1, True) / 127.0
    _copy((x_packed, x_scale), ((wide / scale.where(scale > 0, 1.0)).round().to(infinicore.int8), scale))


def select_last_token_hidden_(output, hidden_states, input_offsets):
    """Write the last token of each request, of packed `hidden_states` [1, T, D], to `output` [1, R, D].

    Request r has the tokens from `input_offsets[r]` to `input_offsets[r + 1]`, int32 [R + 1].
    """
    if hidden_states.ndim != 3 or output.shape != (1, input_offsets.numel() - 1, hidden_states.shape[-1]):
        raise ValueError(
            f"`output` must be [1, R, D] beside `hidden_states` [1, T, D] and `input_offsets` [R + 1], got "
            f"{tuple(output.shape)}, {tuple(hidden_states.shape)} and {tuple(input_offsets.shape)}"
        )
    output.copy_(hidden_states.index_select(1, input_offsets[1:] - 1))


def _copy(targets, results):
    for target, result in zip(targets, results):
        target.copy_(result)


def _writing(function, outputs):
    """`function` with its results written to its first arguments."""

    def entry(*args):
        results = function(*args[outputs:])
        _copy(args[:outputs], results if isinstance(results, tuple) else (results,))

    return entry


def __getattr__(name):
    found = OPS.get(name) or OPS.get(name.removesuffix("_"))
    if found is None:
        raise AttributeError(f"module '_infinicore' has no attribute {name!r}")
    function = getattr(infinicore, found.name)
    if name == found.name or not found.outputs:
        return function
    return _writing(function, len(found.outputs))
