"""Tensors as calls see them: made, viewed, compared. Knows nothing of ops."""

import ctypes
import functools
import os
import struct

from ..core import launch as core_launch
from ..core import layout, memory
from ..core.backend import Mirror
from ..core.tensor_cy import TensorBase
from ..device import CPU, gpu
from ..dtype import DType, dtype
from ..kernels.cpu import threads

_new = TensorBase  # the class of new tensors


def set_tensor_class(cls):
    """Let new tensors be of this class."""
    global _new
    _new = cls
    core_launch.configure(threads, cls, CPU, DType)


def _after_fork():
    """A child runs serially: workers do not survive a fork."""
    threads.after_fork()
    core_launch.set_threads(1)
    core_launch.set_own_threads(0)


memory.set_host(CPU.backend)
core_launch.configure(threads, TensorBase, CPU, DType)
core_launch.set_threads(threads.default_threads())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def empty(shape, dtype, strides=None, device=CPU):
    """A new uninitialised tensor of `shape` (a tuple); `strides` are row-major, or a permutation of that."""
    t = core_launch.new_tensor(shape, dtype, device)
    return t if strides is None or strides == t.strides_ else core_launch.view_tensor(t, shape, strides, 0)


def empty_beside(x, shape, dtype=None):
    """A new uninitialised tensor on the device of x, of its dtype unless another one is given."""
    return core_launch.new_tensor(tuple(shape), dtype or x.dtype, x.device)


view = core_launch.view_tensor


def wrap(address, shape, strides, dtype, owner, device=CPU):
    """A tensor of foreign memory of a device that `owner` keeps alive."""
    shape, strides = tuple(shape), tuple(strides)
    low, high = layout.extent(shape, strides)
    storage = memory.Storage(
        address + low * dtype.itemsize, (high - low + 1) * dtype.itemsize, None, owner, device.backend
    )
    t = _new.__new__(_new)
    contiguous = layout.is_contiguous(shape, strides)
    t.set_layout(storage, address, dtype, device, shape, strides, layout.count(shape), contiguous)
    return t


def from_array(array, device=CPU):
    """A tensor of the memory of a NumPy array, or of a copy on a device that does not share the host's memory."""
    size = array.itemsize
    # 0.3 us, else 1.1; by `array.ctypes` 2. Dtypes of other packages have no buffers.
    if array.flags.carray and array.size and array.dtype.isbuiltin == 1:
        place = ctypes.addressof(ctypes.c_char.from_buffer(array))
    else:
        place = array.__array_interface__["data"][0]
    t = wrap(place, array.shape, tuple([s // size for s in array.strides]), dtype(array.dtype), array)
    return t if device is CPU else to_device(t, device)


def to_device(x, device, wait=True):
    """A contiguous tensor's values on another device: a new tensor; see `transfer`."""
    t = memory.beside_arena(empty, x.shape_, x.dtype, None, device)
    transfer(t, x, wait)
    return t


def transfer(t, x, wait=True):
    """Copy the values of a contiguous tensor into one on another device, of the same dtype, contiguous as well.

    Without `wait`, a copy from pinned memory may be under way when this returns: `x` must not change until then.
    """
    nbytes, source = x.numel_ * x.dtype.itemsize, x.storage.backend
    if not nbytes:
        return
    if t.device is CPU:
        source.read(t.address, x.address, nbytes)
    elif not wait and hasattr(x.storage.owner, "marks"):
        there = t.storage.backend
        there.copy_later(t.address, x.address, nbytes)
        mark = there.event()
        mark.record(there.stream)
        x.storage.owner.marks.append(mark)
    else:
        t.storage.backend.copy(t.address, x.address, nbytes, None if x.device is CPU else source)


_NUMBERS = {
    "bool": ctypes.c_bool, "int8": ctypes.c_int8, "int16": ctypes.c_int16, "int32": ctypes.c_int32,
    "int64": ctypes.c_int64, "uint8": ctypes.c_uint8, "uint16": ctypes.c_uint16, "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64, "float32": ctypes.c_float, "float64": ctypes.c_double, "float16": ctypes.c_uint16,
    "bfloat16": ctypes.c_uint16,
}  # fmt: skip


def number_of(x):
    """The one element of a tensor on a device; None: not known how.

    (On an H200 `item` took 28 to 33 us by way of a tensor of the CPU, PyTorch's takes 14.)
    """
    kind, backend = _NUMBERS.get(x.dtype.name), x.storage.backend
    if kind is None or backend.of_samples:
        return None
    refuse_reading()
    number = backend.read_number(x.address, kind)
    if x.dtype.name == "float16":
        return struct.unpack("e", struct.pack("H", number))[0]
    return struct.unpack("f", struct.pack("I", number << 16))[0] if x.dtype.name == "bfloat16" else number


def refuse_reading():
    """Raise where the values of a tensor are read while a graph is recorded."""
    refuse_recording("reading the values of a tensor", "replays would not read them again, so read them after")


def pinned(x):
    """The values of a contiguous tensor on the CPU in page-locked memory."""
    piece = gpu().backend.stage(x.numel_ * x.dtype.itemsize)
    t = wrap(piece.address, x.shape_, layout.contiguous_strides(x.shape_), x.dtype, piece)
    CPU.backend.copy(t.address, x.address, x.numel_ * x.dtype.itemsize)
    return t


def mirror(shape, dtype, device=CPU):
    """A `Mirror`: values that the host writes, and a tensor of them on a device."""
    return Mirror(empty(shape, dtype, device=device))


@functools.lru_cache(maxsize=1024)
def _scalar(value, kind, dtype, device, _sign, exact):
    import numpy as np

    if exact:
        check_fits(np.array(value), dtype)
    bits = np.array(value).astype(dtype.numpy).reshape(1)
    t = wrap(bits.ctypes.data, (), (), dtype, bits)  # not in the arena of a graph, which may write to it
    return t if device is CPU else to_device(t, device)


def scalar(value, dtype, device=CPU, exact=False):
    """A 0-dim tensor of a Python number; cached, so never write to it.

    An integer dtype takes a number modulo 2^bits, as arithmetic does, unless it must be `exact`.
    """
    try:
        sign = value == 0 and str(value)  # 0.0 and -0.0 are equal as keys
        return _scalar(value, type(value), dtype, device, sign, exact)
    except OverflowError:
        raise ValueError(f"the number {value!r} does not fit into {dtype}") from None


def check_fits(array, dtype):
    """Refuse numbers in an array that an integer dtype cannot hold, NaN among them; fractions are cut off later.

    A negative integer is its two's complement in an unsigned dtype, as in PyTorch.
    """
    import numpy as np

    if array.dtype.kind == "c" and dtype.kind != "c" and np.any(array.imag != 0):
        raise ValueError(f"a complex number does not fit into {dtype}: take its real part, or a complex dtype")
    if dtype.kind not in "iu" or array.dtype.kind not in "iuf" or not array.size:
        return
    ends = np.iinfo(dtype.numpy)
    low = -ends.max if dtype.kind == "u" and array.dtype.kind == "i" else ends.min
    for value in (array.min().item(), array.max().item()):  # NaN, if there is one
        if not low <= value <= ends.max:
            raise ValueError(f"the number {value} does not fit into {dtype}, which holds {ends.min} to {ends.max}")


def byte_range(x):
    """(first, past the last) address that a tensor reaches."""
    low, high = layout.extent(x.shape_, x.strides_)
    return x.address + low * x.dtype.itemsize, x.address + (high + 1) * x.dtype.itemsize


def overlap(a, b):
    """How two tensors share memory: "none", "same" (identical layout) or "partial"."""
    if a.storage is not b.storage and a.storage.block is not None and b.storage.block is not None:
        return "none"  # two blocks of the pool
    a_low, a_high = byte_range(a)
    b_low, b_high = byte_range(b)
    if a_high <= b_low or b_high <= a_low or not a.numel_ or not b.numel_:
        return "none"
    same = a.address == b.address and a.dtype is b.dtype and a.shape_ == b.shape_ and a.strides_ == b.strides_
    return "same" if same else "partial"


def writable(out, name="out"):
    """Refuse an output whose elements share memory (stride 0)."""
    for size, stride in zip(out.shape_, out.strides_):
        if stride == 0 and size > 1:
            raise ValueError(
                f"`{name}` has shape {out.shape_} and strides {out.strides_}: its elements share memory, "
                "so call `.clone()` on it first"
            )


def refuse_recording(what, instead):
    """Raise where what Python does now would be missing from the replays of the graph that is being recorded."""
    if core_launch.recording() is not None:
        raise NotImplementedError(f"{what} cannot be recorded in a graph: {instead}")


def one_device(name, names, values):
    """The device of a call's tensors. Raises ValueError where they lie on several; `names` are those of the values."""
    found = core_launch.device_of(values)
    if found is None:
        places = [f"`{n}` on {core_launch.device_of((x,)) or 'several'}" for n, x in zip(names, values) if _tensors(x)]
        raise ValueError(f"`{name}` needs its tensors on one device, got {', '.join(places)}: move them with `.to()`")
    return found


def _tensors(x):
    return core_launch.tensors((x,))


def as_dtype(value):
    return value if type(value) is DType else dtype(value)
