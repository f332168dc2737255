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
