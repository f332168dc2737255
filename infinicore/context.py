"""The current device, its streams and synchronisation, threads."""

from .device import CPU, TYPES, current, device, set_current
from .dispatch.tensors import core_launch as launch  # from where the thread count of the start is set
from .kernels.cpu import threads


def get_device():
    """The device that new tensors are made on."""
    return current()


def set_device(value):
    """Make `value` the current device."""
    set_current(value)


def get_device_count(type="cpu"):
    """Devices of a type that kernels can run on."""
    if type not in TYPES:
        raise ValueError(f"`type` must be one of {', '.join(TYPES)}, got {type!r}")
    return 1 if type == "cpu" else 0


class Stream:
    """A queue of launches. The CPU has one, and every launch on it has ended when the call returns."""

    def __init__(self, device):
        self.device = device

    def synchronize(self):
        """Wait for all launches."""

    def __repr__(self):
        return f"Stream({self.device})"


_cpu_stream = Stream(CPU)


def get_stream():
    """The current stream."""
    return _cpu_stream


def sync_stream():
    """Wait for the current stream."""
    _cpu_stream.synchronize()


def sync_device():
    """Wait for the current device."""
    _cpu_stream.synchronize()


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
    "get_device",
    "get_device_count",
    "get_num_threads",
    "get_stream",
    "set_device",
    "set_num_threads",
    "sync_device",
    "sync_stream",
]
