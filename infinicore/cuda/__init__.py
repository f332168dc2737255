"""What scripts ask `torch.cuda`: whether there is a GPU, and its seeds and memory."""

from ..device import Device
from ..dispatch.generator import manual_seed
from ..kernels.cuda.driver import device_count
from . import amp

__all__ = [
    "amp",
    "device_count",
    "empty_cache",
    "is_available",
    "is_bf16_supported",
    "manual_seed",
    "manual_seed_all",
    "synchronize",
]

manual_seed_all = manual_seed


def is_available():
    """Whether there is a GPU whose kernels can be compiled and launched."""
    if not device_count():
        return False
    try:
        return Device("cuda").backend is not None
    except (NotImplementedError, ImportError, RuntimeError):
        return False


def is_bf16_supported(including_emulation=True):
    """Whether tensors of bfloat16 can be computed with on a GPU: wherever there is one."""
    return is_available()


def synchronize(device=None):
    """Wait for a GPU, if there is one."""
    if is_available():
        Device("cuda" if device is None else device).backend.synchronize()


def empty_cache():
    """Nothing to do: memory that nobody uses is given back when it is needed."""
