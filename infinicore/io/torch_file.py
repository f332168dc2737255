"""Objects with tensors in PyTorch's own file format: a zip of a pickle and the bytes of each storage.

`torch.load` reads what `save` writes, and `load` what `torch.save` writes, without PyTorch. A file is not trusted:
unless told otherwise, `load` makes tensors, parameters and plain Python values, and nothing else.
"""

import collections
import io
import os
import pickle
import tempfile
import zipfile
from math import prod
from pathlib import Path

import numpy as np

import infinicore

from ..device import usable
from ..interop.numpy import from_numpy
from ..nn.parameter import Parameter
from ..tensor.tensor import Size, Tensor

_STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
_NAMES = {dtype: name for name, dtype in _STORAGES.items()}
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


class _Global:
    """A name of PyTorch's, which is written without importing it."""

    def __init__(self, module, name):
        self.module, self.name = module, name

    def __call__(self, *args):
        raise NotImplementedError(f"{self.module}.{self.name} is only a name here")


class _Storage:
    def __init__(self, key, dtype, count):
        self.key, self.dtype, self.count = key, dtype, count


class _Pickler(pickle._Pickler):  # the one in Python: names are written that do not exist here
    def __init__(self, file, protocol):
        super().__init__(file, protocol)
        self.bytes, self._known, self._kept = [], {}, []

    def save(self, obj, save_persistent_id=True):
        if type(obj) is _Global:
            self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
        else:
            super().save(obj, save_persistent_id)

    def persistent_id(self, obj):
        if type(obj) is not _Storage:
            return None
        return ("storage", _Global("torch", _NAMES[obj.dtype]), obj.key, "cpu", obj.count)

    def reducer_override(self, obj):
        if isinstance(obj, Parameter) and type(obj) is Parameter:
            data = obj.detach()
            return _Global("torch._utils", "_rebuild_parameter"), (data, obj.requires_grad, collections.OrderedDict())
        if isinstance(obj, Tensor):
            strides = _row_major(obj.shape_)
            options = (self._storage(obj), 0, tuple(obj.shape_), strides, obj.tracked, collections.OrderedDict())
            return _Global("torch._utils", "_rebuild_tensor_v2"), options
        return NotImplemented

    def _storage(self, x):
        """The storage of a tensor's elements; of tensors that are the same memory, one."""
        if x.dtype.name not in _NAMES:
            raise TypeError(f"`obj` holds a tensor of {x.dtype}, which PyTorch's files do not have: cast it first")
        key = x.address, x.dtype.name, tuple(x.shape_), tuple(x.stride())
        found = self._known.get(key)
        if found is None:
            values = x.detach().cpu().contiguous().view(-1).numpy()
            found = self._known[key] = _Storage(str(len(self.bytes)), x.dtype.name, values.size)
            self.bytes.append(values.view(_BITS[x.dtype.itemsize]).tobytes())
            self._kept.append(x)  # its memory is not given to another tensor before the end
        return found


def _row_major(shape):
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def save(obj, f, pickle_module=None, pickle_protocol=2, _use_new_zipfile_serialization=True):
    """Write an object (a state dict, a checkpoint, a module) to `f`, a path or a binary file; as `torch.save`.

    Tensors that are the same memory stay one; other views of one memory become tensors of their own. A path is written
    under a temporary name first. The other arguments are PyTorch's and change nothing, but `pickle_protocol`.
    """
    data = io.BytesIO()
    pickler = _Pickler(data, pickle_protocol)
    pickler.dump(obj)
    if not isinstance(f, (str, os.PathLike)):
        _write(f, data.getvalue(), pickler.bytes, "archive")
        return
    path = Path(f)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            _write(file, data.getvalue(), pickler.bytes, path.stem or "archive")
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _write(file, data, storages, name):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{name}/data.pkl", data)
        archive.writestr(f"{name}/byteorder", "little")
        for i, content in enumerate(storages):
            archive.writestr(f"{name}/data/{i}", content)
        archive.writestr(f"{name}/version", "3\n")


# ---- reading -----------------------------------------------------------------------------------


def _rebuild_tensor(storage, offset, size, stride, requires_grad=False, hooks=None, metadata=None):
    values, size, stride = storage, tuple(size), tuple(stride)
    last = offset + sum((n - 1) * s for n, s in zip(size, stride)) if 0 not in size else 0
    sound = all(type(n) is int and n >= 0 for n in (offset, *size, *stride)) and len(size) == len(stride)
    if not sound or last >= max(values.numel_, 1) or (prod(size) and not values.numel_):
        raise ValueError(f"a tensor of shape {size}, strides {stride} and offset {offset} is not in its storage")
    if not prod(size):
        return infinicore.empty(size, dtype=values.dtype).requires_grad_(bool(requires_grad))
    tensor = values.as_strided(size, stride, offset)
    return tensor.requires_grad_(True) if requires_grad else tensor


def _rebuild_parameter(data, requires_grad=True, hooks=None):
    return Parameter(data, requires_grad)


_ALLOWED = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch", "Size"): Size,
    ("torch", "device"): infinicore.device,
    ("torch.nn.parameter", "Parameter"): Parameter,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
    ("collections", "Counter"): collections.Counter,
    ("builtins", "set"): set,
    ("builtins", "dict"): dict,
    ("builtins", "complex"): complex,
    ("builtins", "bytearray"): bytearray,
    ("infinicore.device", "Device"): infinicore.device,
    ("infinicore.dtype", "dtype"): infinicore.dtype,
    ("infinicore.tensor.tensor", "Size"): Size,
}
_ALLOWED |= {("torch", name): dtype for name, dtype in _STORAGES.items()}
_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, storage, trusted):
        super().__init__(file)
        self._storage, self._trusted = storage, trusted

    def find_class(self, module, name):
        found = _ALLOWED.get((module, name))
        if found is not None:
            return found
        if module == "torch" and name in _DTYPES:
            return getattr(infinicore, name)
        if not self._trusted:
            raise pickle.UnpicklingError(
                f"the file asks for {module}.{name}, which is code: pass weights_only=False if you trust its author"
            )
        if module == "torch" or module.startswith("torch."):
            module = "infinicore" + module.removeprefix("torch")
        return super().find_class(module, name)

    def persistent_load(self, pid):
        kind, dtype, key, _, count = pid
        if kind != "storage" or not isinstance(dtype, str) or not str(key).isalnum():
            raise pickle.UnpicklingError(f"the file has a storage that is not one: {pid!r}")
        return self._storage(dtype, str(key), count)


def load(f, map_location=None, pickle_module=None, *, weights_only=True, mmap=None):
    """Read what `save` or `torch.save` wrote to `f`, a path or a binary file.

    `map_location` (a device or its name) says where tensors go: the CPU unless given. With `weights_only` the file may
    hold tensors, parameters and plain Python values alone; without, it may run any code, so its author must be
    trusted, and names of `torch` are looked up in `infinicore`. `mmap` is PyTorch's and changes nothing. ValueError for
    what is no such file, pickle.UnpicklingError for what is not allowed.
    """
    if callable(map_location) or isinstance(map_location, dict):
        raise NotImplementedError("`map_location` must be a device or None, got a function or dict")
    device = None if map_location is None else usable(map_location)
    try:
        archive = zipfile.ZipFile(f)
    except zipfile.BadZipFile:
        raise ValueError(f"`f` {f!r} is no file of `save`: PyTorch's old format has to be saved again") from None
    with archive:
        names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(names) != 1:
            raise ValueError(f"`f` {f!r} is no file of `save`: it has no data.pkl")
        root, storages = names[0].removesuffix("data.pkl"), {}
        order = archive.read(root + "byteorder") if root + "byteorder" in archive.namelist() else b"little"
        if order.strip() != b"little":
            raise ValueError(f"`f` {f!r} was written on a machine with another order of bytes")

        def storage(dtype, key, count):
            if key not in storages:
                content, dtype = archive.read(f"{root}data/{key}"), infinicore.dtype(dtype)
                if len(content) != count * dtype.itemsize:
                    raise ValueError(f"storage {key} of {f!r} must have {count * dtype.itemsize} bytes")
                values = np.frombuffer(bytearray(content), dtype.numpy)
                tensor = from_numpy(values)
                storages[key] = tensor if device is None else tensor.to(device=device)
            return storages[key]

        return _Unpickler(io.BytesIO(archive.read(names[0])), storage, not weights_only).load()
