"""PyTorch's switches of precision, determinism, devices and threads, for scripts that set them.

Sums here are cut by shapes, not by threads, so most have nothing to change; that of precision lets GPUs of sm_90a
multiply float32 as TF32, that of determinism keeps GPUs from adding up elements by index in any order.
"""

from ..device import current, set_current, usable
from ..dispatch import known
from ..kernels.problems.array import keep_order, keeps_order
from ..kernels.problems.gemm import allow_tf32, allows_tf32

__all__ = [
    "are_deterministic_algorithms_enabled",
    "get_default_device",
    "get_deterministic_debug_mode",
    "get_float32_matmul_precision",
    "get_num_interop_threads",
    "is_deterministic_algorithms_warn_only_enabled",
    "is_warn_always_enabled",
    "set_default_device",
    "set_deterministic_debug_mode",
    "set_float32_matmul_precision",
    "set_flush_denormal",
    "set_num_interop_threads",
    "set_warn_always",
    "use_deterministic_algorithms",
]

_PRECISIONS = ("highest", "high", "medium")
_DEBUG_MODES = ("default", "warn", "error")
_set = {"precision": "highest", "deterministic": False, "warn_only": False, "warn_always": False}


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
    """Ask for the same results in every run. On the CPU, kernels give them whether asked or not.

    GPUs add up floats with equal indices (`scatter_add`, `scatter_reduce`, gradients of `gather`) in the order in which
    their threads come, and rounding depends on it; with `mode` a thread adds all of a line, which takes ten times as
    long. A recorded graph keeps what was asked for when it was recorded.
    """
    _set["deterministic"], _set["warn_only"] = bool(mode), bool(mode and warn_only)
    if keeps_order() != bool(mode):
        keep_order(mode)
        known.forget()


def are_deterministic_algorithms_enabled():
    """What `use_deterministic_algorithms` was told."""
    return _set["deterministic"]


def is_deterministic_algorithms_warn_only_enabled():
    """Whether `use_deterministic_algorithms` was told to warn only."""
    return _set["warn_only"]


def set_deterministic_debug_mode(debug_mode):
    """`use_deterministic_algorithms` by a word or number: "default" (0), "warn" (1) or "error" (2)."""
    known_ = debug_mode in _DEBUG_MODES or (type(debug_mode) is int and 0 <= debug_mode < 3)
    if not known_:
        raise ValueError(f"`debug_mode` must be one of {', '.join(_DEBUG_MODES)}, or 0 to 2, got {debug_mode!r}")
    level = _DEBUG_MODES.index(debug_mode) if isinstance(debug_mode, str) else debug_mode
    use_deterministic_algorithms(level > 0, warn_only=level == 1)


def get_deterministic_debug_mode():
    """0, 1 or 2, as `set_deterministic_debug_mode` takes it."""
    return (1 if _set["warn_only"] else 2) if _set["deterministic"] else 0


def set_warn_always(b):
    """Remember whether warnings should come every time; Python's `warnings` decides it here."""
    _set["warn_always"] = bool(b)


def is_warn_always_enabled():
    """What `set_warn_always` was told."""
    return _set["warn_always"]


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
