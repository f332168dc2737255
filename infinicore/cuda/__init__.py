"""GPUs, by the names of `torch.cuda`: what there is, streams, events, memory, seeds. `docs/cuda.md` is the page."""

from ..context import Stream, get_stream, sync_device
from ..device import Device, gpu, set_current
from ..dispatch.generator import manual_seed
from ..kernels.cuda.driver import device_count
from ..runtime.events import DeviceEvent
from . import amp
from .own import kernel
from .states import (
    OutOfMemoryError,
    device,
    get_device_properties,
    get_rng_state,
    get_rng_state_all,
    init,
    initial_seed,
    ipc_collect,
    is_current_stream_capturing,
    is_initialized,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)

__all__ = [
    "Event",
    "OutOfMemoryError",
    "Stream",
    "amp",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "kernel",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "stream",
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


def _device(device):
    """The GPU that a number, a name or None (the current one, or the first) means."""
    if device is None:
        return gpu()
    return Device(f"cuda:{device}") if isinstance(device, int) else Device(device)


def _backend(device):
    return _device(device).backend


def current_device():
    """The number of the current GPU: that of the current device, or 0."""
    return _device(None).index


def set_device(device):
    """Make a GPU the device that new tensors are made on."""
    set_current(_device(device))


def current_stream(device=None):
    """The stream that calls on a GPU go into."""
    return get_stream(_device(device))


def stream(stream):
    """A `with` block whose calls go into a stream."""
    return stream


class Event(DeviceEvent):
    """A mark in a stream of a GPU."""

    def __init__(self, enable_timing=False, device=None):
        super().__init__(enable_timing, _device(device))


def synchronize(device=None):
    """Wait for all streams of a GPU, if there is one; raises what a kernel found wrong."""
    if device_count():
        sync_device(_device(device))


def get_device_name(device=None):
    """The name that the driver gives a GPU."""
    return _backend(device).gpu.name


def get_device_capability(device=None):
    """The compute capability of a GPU, as (major, minor)."""
    return _backend(device).gpu.capability


def mem_get_info(device=None):
    """(free, all) bytes of the memory of a GPU."""
    backend = _backend(device)
    backend.enter()
    return backend.gpu.memory()


def memory_stats(device=None):
    """Bytes of tensors ("used"), the most of them so far ("peak"), those kept for reuse ("cached").

    The same by PyTorch's names, and how often memory was short. Empty where there is no GPU.
    """
    if not is_available():
        return {}
    found = _backend(device).pool.stats()
    reserved = found["used"] + found["cached"]
    return {
        **found,
        "allocated_bytes.all.current": found["used"],
        "allocated_bytes.all.peak": found["peak"],
        "active_bytes.all.current": found["used"],
        "reserved_bytes.all.current": reserved,
        "num_ooms": found["refused"],
        "num_alloc_retries": found["retried"],
    }


def memory_allocated(device=None):
    """Bytes of tensors on a GPU."""
    return memory_stats(device).get("used", 0)


def max_memory_allocated(device=None):
    """The most bytes of tensors so far, since the start or `reset_peak_memory_stats`."""
    return memory_stats(device).get("peak", 0)


def memory_reserved(device=None):
    """Bytes of tensors and those kept for reuse."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def reset_peak_memory_stats(device=None):
    """Count the peak anew."""
    _backend(device).pool.stats(reset_peak=True)


reset_max_memory_allocated = reset_peak_memory_stats


def default_stream(device=None):
    """The stream that calls go into unless told otherwise."""
    return current_stream(device)


def empty_cache():
    """Give the memory that is kept for reuse back to the driver, on every GPU."""
    for index in range(device_count()):
        Device(f"cuda:{index}").backend.pool.trim()
