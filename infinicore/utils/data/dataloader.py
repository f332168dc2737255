"""`torch.utils.data.dataloader`."""

from ...data import DataLoader, default_collate, get_worker_info

__all__ = ["DataLoader", "default_collate", "get_worker_info"]
