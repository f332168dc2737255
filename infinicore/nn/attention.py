"""`torch.nn.attention`: the choice of a kernel of attention, of which there is one here that never holds the scores."""

import contextlib
import enum

__all__ = ["SDPBackend", "sdpa_kernel"]


class SDPBackend(enum.IntEnum):
    """PyTorch's kernels of `scaled_dot_product_attention`."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextlib.contextmanager
def sdpa_kernel(backends, set_priority=False):
    """A `with` block that may use some kernels alone; results are the same, and so is the kernel."""
    chosen = [backends] if isinstance(backends, SDPBackend) else list(backends)
    if not chosen or not all(isinstance(x, SDPBackend) for x in chosen):
        raise ValueError(f"`backends` must be one SDPBackend or several, got {backends!r}")
    yield
