"""Training: the loop, checkpoints that resume bit for bit, and the tools around them."""

from .checkpoint import checkpoint_values, checkpoints, latest, load_checkpoint, save_checkpoint
from .record import Record
from .trainer import Trainer, default_loss, flops_per_token

__all__ = [
    "Record",
    "Trainer",
    "checkpoint_values",
    "checkpoints",
    "default_loss",
    "flops_per_token",
    "latest",
    "load_checkpoint",
    "save_checkpoint",
]
