"""`torch.cuda.amp`: the mixed precision of `infinicore.amp`."""

from ..amp import GradScaler, custom_bwd, custom_fwd
from ..amp import autocast as _autocast

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(_autocast):
    """`infinicore.autocast` with PyTorch's old arguments; the dtype is float16 unless given."""

    def __init__(self, enabled=True, dtype="float16", cache_enabled=True):
        super().__init__("cpu", dtype, enabled, cache_enabled)

    def _recreate_cm(self):
        return type(self)(self.enabled, self.dtype, self.cache_enabled)
