"""`__cuda_array_interface__`, by which CuPy, Numba and others take arrays on NVIDIA's GPUs from one another.

Version 3: https://nvidia.github.io/numba-cuda/user/cuda_array_interface.html
"""

from .. import dispatch
from ..core import layout
from ..device import Device
from ..dtype import dtype as to_dtype
from ..kernels.cuda import driver

_KINDS = {"i": "int", "u": "uint", "f": "float", "b": "bool"}


def describe(tensor):
    """The interface of a tensor on a GPU. AttributeError for one that lies elsewhere: it has none."""
    if tensor.device.type != "cuda":
        raise AttributeError(f"a tensor on {tensor.device} has no `__cuda_array_interface__`")
    tensor.storage.backend.hand_out()
    size = tensor.dtype.itemsize
    plain = tensor.dtype.kind in _KINDS and tensor.dtype.name != "bfloat16"
    return {
        "shape": tensor.shape_,
        "strides": None if tensor.contiguous_ else tuple(size * step for step in tensor.strides_),
        "typestr": f"{'|' if size == 1 else '<'}{tensor.dtype.kind if plain else 'V'}{size}",
        "data": (tensor.address if tensor.numel_ else 0, False),
        "stream": tensor.device.backend.stream or 1,  # 1: the default one
        "version": 3,
    }


def take(source):
    """A tensor of the memory of an object that has the interface."""
    found = source.__cuda_array_interface__
    if found.get("mask") is not None:
        raise NotImplementedError("`source` has a mask, which tensors do not have")
    name = found["typestr"]
    kind, size = name[1], int(name[2:])
    if kind not in _KINDS or name[0] == ">":
        raise TypeError(f"`source` has elements of type {name!r}, which tensors do not have")
    dtype = to_dtype("bool" if kind == "b" else f"{_KINDS[kind]}{8 * size}")
    shape, strides = tuple(found["shape"]), found.get("strides")
    address, _ = found["data"]
    device = Device("cuda", driver.gpu_of(address) if address else 0)
    if not address:
        return dispatch.empty(shape, dtype, device=device)
    if strides is None:
        strides = layout.contiguous_strides(shape)
    else:
        strides = tuple(step // size for step in strides)
    stream = found.get("stream")
    if stream is not None:
        device.backend.follow(stream)
    return dispatch.wrap(address, shape, strides, dtype, source, device)
