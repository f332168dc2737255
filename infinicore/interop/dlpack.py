"""DLPack, version 0.8 of its C structures, in ctypes: tensors to and from any library without a copy."""

import ctypes

from .. import dispatch
from ..core import layout
from ..device import CPU, Device
from ..dtype import dtype as to_dtype

_CPU, _CUDA, _PINNED, _MANAGED = 1, 2, 3, 13  # kinds of DLPack devices
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4
_NAMES = {(0, n): f"int{n}" for n in (8, 16, 32, 64)} | {(1, n): f"uint{n}" for n in (8, 16, 32, 64)}
_NAMES |= {(2, n): f"float{n}" for n in (16, 32, 64)} | {
    (4, 16): "bfloat16",
    (5, 64): "complex64",
    (5, 128): "complex128",
    (6, 8): "bool",
}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]

_exported = {}  # address of the structure -> everything it points to
_USED = ctypes.c_char_p(b"used_dltensor")


@_DELETER
def _release(managed):
    _exported.pop(ctypes.addressof(managed.contents), None)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _capsule_gone(capsule):
    """Free an export that nobody consumed (a consumer renames the capsule)."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
    valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
    if valid(capsule, b"dltensor"):
        _exported.pop(get(capsule, b"dltensor"), None)


def to_dlpack(tensor, *, stream=None, max_version=None, dl_device=None, copy=None):
    """A capsule for `__dlpack__`; `copy=True` exports a copy.

    `stream` is that of a GPU that the taker works in, as DLPack numbers it: it waits for what is computed here. Raises
    BufferError for what other libraries cannot take: float8, unknown devices, and negative strides (PyTorch ends the
    process) without `copy`.
    """
    place = dlpack_device(tensor)
    if dl_device not in (None, place):
        raise BufferError(f"`dl_device` must be {place}, where the tensor is, got {dl_device}: move it with `.to()`")
    if tensor.dtype.kind == "s":
        raise BufferError(f"{tensor.dtype} cannot be exported through DLPack, cast it first")
    dispatch.refuse_recording("exporting a tensor", "replays would not export it again, so do it afterwards")
    if copy:
        tensor = tensor.clone()
    steps = [s if n > 1 and tensor.numel_ else abs(s) for n, s in zip(tensor.shape_, tensor.strides_)]
    if any(s < 0 for s in steps):
        raise BufferError(
            f"a tensor with negative strides, {tensor.strides_}, cannot be exported through DLPack, as most libraries "
            "do not take them: export `.contiguous()`"
        )
    n = max(1, tensor.ndim)
    shape, strides = (ctypes.c_int64 * n)(*tensor.shape_), (ctypes.c_int64 * n)(*steps)
    managed = _Managed()
    own = managed.tensor
    own.data = tensor.address if tensor.numel_ else None
    own.device_type, own.device_id, own.ndim = *place, tensor.ndim
    own.code = _BFLOAT if tensor.dtype.name == "bfloat16" else _CODES[tensor.dtype.kind]
    own.bits, own.lanes = tensor.dtype.bits, 1
    own.shape, own.strides = shape, strides
    managed.deleter = _release
    if place[0] == _CUDA and stream != -1:  # -1: the taker takes care of the order
        tensor.device.backend.let_follow(1 if stream is None else stream)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, tensor, shape, strides)
    return _api.PyCapsule_New(address, b"dltensor", ctypes.cast(_capsule_gone, ctypes.c_void_p))


def dlpack_device(tensor):
    """The (type, number) of a tensor's device. BufferError where DLPack has none."""
    tensor.storage.backend.hand_out()
    kind = {"cpu": _CPU, "cuda": _CUDA}.get(tensor.device.type)
    if kind is None:
        raise BufferError(f"a tensor on {tensor.device} cannot be exported through DLPack: call `.cpu()` on it first")
    return kind, tensor.device.index


class _Import:
    """Owner of imported memory: calls the exporter's deleter in the end."""

    def __init__(self, managed):
        self.managed = managed

    def __del__(self):
        if self.managed.contents.deleter:
            self.managed.contents.deleter(self.managed)


def from_dlpack(source):
    """A tensor of the memory of any object with `__dlpack__`, on the CPU or a GPU of NVIDIA's."""
    if not hasattr(source, "__dlpack__"):
        raise TypeError(f"`source` must have `__dlpack__`, got {type(source).__name__}")
    kind, number = map(int, source.__dlpack_device__())
    if kind in (_CPU, _PINNED):
        device, capsule = CPU, source.__dlpack__()
    elif kind in (_CUDA, _MANAGED):
        device = Device("cuda", number)
        capsule = source.__dlpack__(stream=device.backend.stream or 1)  # 1: the default stream
    else:
        raise NotImplementedError(f"`source` is on DLPack device {(kind, number)}, move it to the CPU first")
    if not _api.PyCapsule_IsValid(capsule, b"dltensor"):
        raise BufferError("`source` gave a DLPack capsule that is used up or of a newer version")
    managed = ctypes.cast(_api.PyCapsule_GetPointer(capsule, b"dltensor"), ctypes.POINTER(_Managed))
    _api.PyCapsule_SetName(capsule, _USED)
    owner = _Import(managed)
    other = managed.contents.tensor
    name = _NAMES.get((other.code, other.bits)) if other.lanes == 1 else None
    if name is None:
        raise TypeError(f"`source` has DLPack type code {other.code} of {other.bits} bits, which tensors do not have")
    shape = tuple(other.shape[i] for i in range(other.ndim))
    strides = layout.contiguous_strides(shape)
    if other.strides:
        strides = tuple(other.strides[i] for i in range(other.ndim))
    if layout.count(shape) == 0:
        return dispatch.empty(shape, to_dtype(name), device=device)
    return dispatch.wrap(other.data + other.byte_offset, shape, strides, to_dtype(name), owner, device)
