"""`torch.accelerator`: the GPU, if there is one, whoever made it."""

from . import cuda
from .cuda import (
    current_stream,
    device_count,
    empty_cache,
    is_available,
    max_memory_allocated,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_peak_memory_stats,
    synchronize,
)
from .device import Device

__all__ = [
    "current_accelerator",
    "current_device_index",
    "current_stream",
    "device_count",
    "empty_cache",
    "is_available",
    "max_memory_allocated",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "set_device_index",
    "synchronize",
]


def current_accelerator(check_available=False):
    """`device("cuda")`, or None where there is no GPU."""
    return Device("cuda") if is_available() else None


def current_device_index():
    """The number of the current GPU."""
    return cuda.current_device()


def set_device_index(device):
    """Make a GPU the device that new tensors are made on."""
    cuda.set_device(device)
