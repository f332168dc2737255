"""What PyTorch keeps in `torch.utils`: `data` and `checkpoint`, under those names."""

from . import checkpoint, data

__all__ = ["checkpoint", "data"]
