"""Mixed precision: `autocast` chooses dtypes, `GradScaler` keeps float16 gradients in range."""

from .autocast import autocast, get_autocast_dtype, is_autocast_enabled
from .grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "get_autocast_dtype", "is_autocast_enabled"]
