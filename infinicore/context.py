"""The current device, its streams and synchronisation, threads."""

import sys

from .device import TYPES, current, device, forget_plans, set_current, usable
from .dispatch import known
from .dispatch.tensors import core_launch as launch  # from where the thread count of the start is set
from .dtype import get_default_dtype, make_default
from .kernels.cpu import threads
from .runtime.events import DeviceEvent


def get_device():
    """The device that new tensors are made on."""
    return current()


def set_device(value):
    """Make `value` the device that this thread makes new tensors on."""
    set_current(value)


def set_default_dtype(d):
    """Give new tensors and modules, Python's floats and float results of integers the dtype `d`, as PyTorch does.

    float16, bfloat16, float32 or float64 (TypeError for another); for all threads, and float32 at the start.
    """
    make_default(d)
    forget_plans()
    known.forget()  # calls, with their dtypes


def set_default_tensor_type(t):
    """`set_default_dtype` by a class as `FloatTensor`, or by a name like "torch.DoubleTensor"."""
    from .tensor import older

    name = t.rpartition(".")[2] if isinstance(t, str) else getattr(t, "__name__", None)
    if name not in older.NAMES:
        raise TypeError(f"`t` must be one of {', '.join(older.NAMES)}, or its name, got {t!r}")
    set_default_dtype(getattr(older, name).dtype)


def get_device_count(type="cpu"):
    """Devices of a type that kernels can run on."""
    if type not in TYPES:
        raise ValueError(f"`type` must be one of {', '.join(TYPES)}, got {type!r}")
    if type == "cuda":
        from .kernels.cuda.driver import device_count

        return device_count()
    return 1 if type == "cpu" else 0


class Stream:
    """A queue of launches and copies of a device, which run in their order.

    The CPU has one, and every launch on it has ended when the call returns. A GPU has a default one, and as many more
    as are made; in a `with` block, the calls of this thread's device go into the stream. Of two streams, that of the
    lower `priority` (0 or negative) runs first where both could.
    """

    def __init__(self, device=None, priority=0, handle=None):
        self.device = usable(device)
        self._backend = self.device.backend
        self._own = handle is None
        self.handle = self._backend.new_stream(priority) if handle is None else handle
        self._before = []

    def __del__(self):
        if getattr(self, "_own", False) and not sys.is_finalizing():
            self._backend.drop_stream(self.handle)

    @property
    def cuda_stream(self):
        """The handle, by the name that it has in PyTorch."""
        return self.handle

    def synchronize(self):
        """Wait for all launches and copies; raises what a kernel found wrong."""
        self._backend.synchronize(self.handle)

    def wait_event(self, event):
        """Let what comes next wait for an event."""
        event.wait(self)

    def wait_stream(self, other):
        """Let what comes next wait for what another stream has so far."""
        event = DeviceEvent(device=other.device)
        event.record(other)
        event.wait(self)

    def __enter__(self):
        self._before.append(self._backend.stream)
        self._backend.stream = self.handle
        return self

    def __exit__(self, *_):
        self._backend.stream = self._before.pop()

    def __repr__(self):
        return f"Stream({self.device}, {self.handle})"


def get_stream(device=None):
    """The current stream of a device (None: the current one)."""
    device = usable(device)
    return Stream(device, handle=device.backend.stream)


def sync_stream():
    """Wait for the current stream."""
    get_stream().synchronize()


def sync_device(device=None):
    """Wait for all streams of a device (None: the current one)."""
    usable(device).backend.synchronize_all()


def set_num_threads(count):
    """Use up to `count` threads per launch."""
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"`count` must be a positive integer, got {count!r}")
    launch.set_threads(min(count, threads.limit()))


class NumThreads:
    """A `with` block whose launches use another thread count, those of this thread; None leaves the count as it is."""

    def __init__(self, count):
        self.count = count
        self._before = []

    def __enter__(self):
        if self.count is not None:
            self._before.append(launch.set_own_threads(min(self.count, threads.limit())))

    def __exit__(self, *_):
        if self.count is not None:
            launch.set_own_threads(self._before.pop())


def get_num_threads():
    """Threads that a launch may use."""
    return launch.threads()


__all__ = [
    "Stream",
    "device",
    "get_default_dtype",
    "get_device",
    "get_device_count",
    "get_num_threads",
    "get_stream",
    "set_default_dtype",
    "set_device",
    "set_num_threads",
    "sync_device",
    "sync_stream",
]
