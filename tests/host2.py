"""A second device for tests: its memory is the same RAM, its kernels are the CPU's, and the host may not look at it.

What reads values by address instead of asking the backend fails here, as it would on a GPU.
"""

import ctypes

import infinicore as ic
from infinicore import dispatch
from infinicore.core import memory
from infinicore.core.backend import Backend
from infinicore.device import Device, register


class Host2(Backend):
    """Counts what it is asked for, so that tests see that nothing went past it."""

    shares_memory = False

    def __init__(self, device):
        super().__init__(device)
        self.asked = {"allocate": 0, "copy": 0, "read": 0, "launch": 0}

    def allocate(self, nbytes):
        self.asked["allocate"] += 1
        storage = memory.allocate(nbytes)
        storage.backend = self
        ctypes.memset(storage.address, 0xA5, nbytes)  # what was on the CPU before must not be right by chance
        return storage

    def copy(self, to, at, nbytes, source=None):
        self.asked["copy"] += 1
        super().copy(to, at, nbytes, source)

    def room(self, nbytes):
        return Room(nbytes)

    def read(self, to, at, nbytes):
        self.asked["read"] += 1
        super().read(to, at, nbytes)

    def launch(self, *args):
        self.asked["launch"] += 1
        return Backend.launch(*args)


class Room:
    """Memory that is all NaN when it is not held: whoever reads it then is seen."""

    def __init__(self, nbytes):
        self.memory, self.nbytes, self.held = memory.allocate(nbytes), nbytes, True
        self.address = self.memory.address
        self.release()

    def hold(self):
        self.held = True

    def release(self):
        if self.held:
            ctypes.memset(self.address, 0xFF, self.nbytes)
        self.held = False


def device():
    """The device, registered on the first call."""
    register("host2", Host2)
    return Device("host2")


def placed(value, device):
    """A tensor (or a list of them, or anything else) on a device, with its strides; itself where it lies there."""
    if isinstance(value, (list, tuple)):
        return type(value)(placed(x, device) for x in value)
    if not isinstance(value, ic.Tensor) or value.device is device:
        return value
    storage, size = value.storage, value.dtype.itemsize
    whole = dispatch.wrap(storage.address, (storage.nbytes // size,), (1,), value.dtype, value)
    moved = dispatch.to_device(whole, device)
    t = dispatch.view(moved, value.shape_, value.strides_, (value.address - storage.address) // size)
    return t.requires_grad_() if value.requires_grad else t
