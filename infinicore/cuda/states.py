"""Random states, initialisation and facts of GPUs, by the names that scripts for PyTorch use."""

from types import SimpleNamespace

from ..device import Device, gpu
from ..dispatch.generator import get_rng_state as _state
from ..dispatch.generator import initial_seed, seed
from ..dispatch.generator import set_rng_state as _set_state
from ..kernels.cuda.driver import device_count

OutOfMemoryError = MemoryError  # what is raised where a GPU has no more memory
seed_all = seed


def get_rng_state(device=None):
    """The state of the default generator, which all devices draw from."""
    return _state()


def set_rng_state(new_state, device=None):
    """Continue the default generator from a state."""
    _set_state(new_state)


def get_rng_state_all():
    """The state for each GPU: the same one, at least once."""
    return [_state() for _ in range(max(1, device_count()))]


def set_rng_state_all(new_states):
    """Continue from the first of several states."""
    _set_state(next(iter(new_states)))


def init():
    """GPUs are set up when they are first used."""


def is_initialized():
    """Whether there is a GPU."""
    return device_count() > 0


def ipc_collect():
    """Nothing is shared between processes."""


def is_current_stream_capturing():
    """Whether a stream is recorded by CUDA: no, graphs are recorded by `start_graph_recording`."""
    return False


def device(device):
    """A `with` block in which new tensors are made on a GPU, given by its number or name."""
    return Device(f"cuda:{device}") if isinstance(device, int) else Device(device)


def get_device_properties(device=None):
    """name, major, minor, total_memory (bytes) and multi_processor_count of a GPU."""
    place = gpu() if device is None else Device(f"cuda:{device}") if isinstance(device, int) else Device(device)
    backend = place.backend
    backend.enter()
    major, minor = backend.gpu.capability
    return SimpleNamespace(
        name=backend.gpu.name,
        major=major,
        minor=minor,
        total_memory=backend.gpu.memory()[1],
        multi_processor_count=backend.gpu.attribute("multiprocessors"),
    )


__all__ = [
    "OutOfMemoryError", "device", "get_device_properties", "get_rng_state", "get_rng_state_all", "init", "initial_seed",
    "ipc_collect", "is_current_stream_capturing", "is_initialized", "seed", "seed_all", "set_rng_state",
    "set_rng_state_all",
]  # fmt: skip
