"""Devices, and the backend of each."""

import threading

from .core.backend import Backend

TYPES = ["cpu", "cuda", "mlu", "npu", "musa"]  # that a name may begin with; not all have a backend here


def _cuda(device):
    """The backend of an NVIDIA GPU; its files are read when the first one is asked for."""
    from .core.cuda import Cuda

    return Cuda(device)


_backends = {"cpu": Backend, "cuda": _cuda}  # type -> function(device) that makes the backend of a device
_place = [0]  # of this process among those of its machine, which take GPUs in turn
_devices = {}  # (type, index) -> the one device of that name


class Device:
    """Where a tensor lives: a type such as "cpu", and an index. There is one object for each, so `is` compares them.

    In a `with` block, this thread makes new tensors on the device.
    """

    __slots__ = ("_backend", "index", "type")

    def __new__(cls, type=None, index=None):
        if isinstance(type, Device):
            type, index = type.type, type.index if index is None else index
        name = "cpu" if type is None else type
        if not isinstance(name, str):
            raise TypeError(f"`type` of a device must be a string or a device, got {name!r}")
        name, colon, number = name.partition(":")
        if colon:
            if index is not None:
                raise ValueError(f"`type` {type!r} names an index already, so `index` {index!r} must be left out")
            if not number.isdigit():
                raise ValueError(f"`type` must look like 'cpu' or 'cuda:1', got {type!r}")
            index = int(number)
        if name not in TYPES:
            raise ValueError(f"`type` of a device must be one of {', '.join(TYPES)}, got {name!r}")
        key = name, _own_index(name) if index is None else index
        found = _devices.get(key)
        if found is None:
            found = super().__new__(cls)
            found.type, found.index = key
            found._backend = None
            found = _devices.setdefault(key, found)
        return found

    @property
    def backend(self):
        """What computes and holds memory there. Raises NotImplementedError where nothing does."""
        if self._backend is None:
            make = _backends.get(self.type)
            if make is None or (self.type == "cpu" and self.index):
                raise NotImplementedError(f"`device` {self} has no kernels in this version, use 'cpu'")
            self._backend = make(self)
        return self._backend

    def __enter__(self):
        before = current()
        set_current(self)
        _thread.before.append(before)
        return self

    def __exit__(self, *_):
        _thread.device = _thread.before.pop()

    def __reduce__(self):
        return Device, (self.type, self.index)

    def __repr__(self):
        return f"device(type={self.type!r}, index={self.index})"

    def __str__(self):
        return f"{self.type}:{self.index}"


def _own_index(type):
    """The index that a name without one means."""
    if type != "cuda" or not _place[0]:
        return 0
    from .kernels.cuda.driver import device_count

    return _place[0] % max(1, device_count())


def take_gpu(place):
    """Let "cuda" mean the GPU of process number `place` of this machine: one each, or by turns if there are fewer."""
    _place[0] = place


CPU = Device("cpu", 0)


def register(type, make):
    """Let `make(device)` make the backend of devices of this type (`infinicore.core.backend`)."""
    if type not in TYPES:
        TYPES.append(type)
    _backends[type] = make


def device(type=None, index=None):
    """A device from a name ("cpu", "cuda:1"), another device, or nothing (the CPU)."""
    return Device(type, index)


def named(value):
    """Whether a text is the name of a device."""
    return isinstance(value, str) and value.partition(":")[0] in TYPES


class _Thread(threading.local):
    """What each thread has of its own: the device that it makes tensors on, and those of the `with` blocks around."""

    def __init__(self):
        self.device, self.before = CPU, []


_thread = _Thread()


def current():
    """The device that this thread makes new tensors on: the CPU, until it says otherwise."""
    return _thread.device


def set_current(value):
    """Make `value` the device that this thread makes new tensors on."""
    _thread.device = usable(value)


def forget_plans():
    """Let every device plan its next calls afresh, after a change of what plans were made from."""
    for made in list(_devices.values()):
        if made._backend is not None:
            made._backend.plans.clear()


def gpu():
    """The GPU of a call that names none: the current device if it is one, else the first."""
    return current() if current().type == "cuda" else Device("cuda")


def usable(value):
    """The device that `value` names (None: the current one), if tensors can live there."""
    if value is None:
        return _thread.device
    return (value if type(value) is Device else Device(value)).backend.device
