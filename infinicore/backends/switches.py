"""PyTorch's switches of precision, determinism, devices and threads, for scripts that set them.

Sums here are cut by shapes, not by threads, so most have nothing to change; that of precision lets GPUs of sm_90a
multiply float32 as TF32.
"""

from ..device import current, set_current, usable
from ..dispatch import known
from ..kernels.problems.gemm import allow_tf32, allows_tf32

__all__ = [
    "are_deterministic_algorithms_enabled",
    "get_default_device",
    "get_float32_matmul_precision",
    "get_num_interop_threads",
    "set_default_device",
    "set_float32_matmul_precision",
    "set_flush_denormal",
    "set_num_interop_threads",
    "use_deterministic_algorithms",
]

_PRECISIONS = ("highest", "high", "medium")
_set = {"precision": "highest", "deterministic": False}


def set_float32_matmul_precision(precision):
    """Let matrix products of float32 be less exact: with "high" or "medium", GPUs of sm_90a multiply them as TF32.

    That rounds operands to 10 bits of mantissa, and sums stay float32. "highest", the default, is true float32; CPUs
    and other GPUs multiply it whatever is set, as do convolutions and products of up to 16 rows or columns. A recorded
    graph keeps what was set when it was recorded.
    """
    if precision not in _PRECISIONS:
        raise ValueError(f"`precision` must be one of {', '.join(_PRECISIONS)}, got {precision!r}")
    _set["precision"] = precision
    if allows_tf32() != (precision != "highest"):
        allow_tf32(precision != "highest")
        known.forget()


def get_float32_matmul_precision():
    """What was set: "highest", "high" or "medium"."""
    return _set["precision"]


def use_deterministic_algorithms(mode, *, warn_only=False):
    """Ask for the same results in every run; kernels here give them whether asked or not."""
    _set["deterministic"] = bool(mode)


def are_deterministic_algorithms_enabled():
    """What `use_deterministic_algorithms` was told."""
    return _set["deterministic"]


def set_flush_denormal(mode):
    """Whether subnormal numbers can be taken for 0: False, since kernels keep them."""
    return False


def set_default_device(device):
    """Make new tensors on `device`, where no other is named; None is the CPU."""
    set_current(usable("cpu" if device is None else device))


def get_default_device():
    """The device that new tensors are made on."""
    return current()


def set_num_interop_threads(count):
    """Accepted: operations run one after another, each on `set_num_threads` threads."""
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"`count` must be a positive integer, got {count!r}")


def get_num_interop_threads():
    """Operations that run side by side: 1."""
    return 1
