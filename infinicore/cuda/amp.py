"""`torch.cuda.amp`: the mixed precision of `infinicore.amp` for GPUs, with PyTorch's old arguments."""

from .. import amp
from ..amp import custom_bwd, custom_fwd

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(amp.autocast):
    """`infinicore.autocast("cuda")`; the dtype is float16 unless given."""

    def __init__(self, enabled=True, dtype="float16", cache_enabled=True):
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(amp.GradScaler):
    """`infinicore.amp.GradScaler("cuda")`."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True):
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
