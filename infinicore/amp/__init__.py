"""Mixed precision: `autocast` chooses dtypes, `GradScaler` keeps float16 gradients in range."""

from .autocast import autocast, get_autocast_dtype, is_autocast_enabled
from .custom import custom_bwd, custom_fwd
from .grad_scaler import GradScaler

__all__ = [
    "GradScaler",
    "autocast",
    "custom_bwd",
    "custom_fwd",
    "get_autocast_cpu_dtype",
    "get_autocast_dtype",
    "get_autocast_gpu_dtype",
    "is_autocast_available",
    "is_autocast_cpu_enabled",
    "is_autocast_enabled",
]


def is_autocast_available(device_type):
    """Whether there is mixed precision on a kind of device: on CPUs and NVIDIA's GPUs."""
    return str(device_type).split(":")[0] in ("cpu", "cuda")


def is_autocast_cpu_enabled():
    """`is_autocast_enabled("cpu")`."""
    return is_autocast_enabled("cpu")


def get_autocast_cpu_dtype():
    """`get_autocast_dtype("cpu")`."""
    return get_autocast_dtype("cpu")


def get_autocast_gpu_dtype():
    """`get_autocast_dtype("cuda")`."""
    return get_autocast_dtype("cuda")
