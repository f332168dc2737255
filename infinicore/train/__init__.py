"""Training: the loop, checkpoints that resume bit for bit, and the tools around them."""

from . import lora, precision
from .checkpoint import checkpoint_values, checkpoints, latest, load_checkpoint, save_checkpoint
from .precision import check_precision
from .profiler import profile
from .record import Record
from .trainer import Trainer, default_loss, flops_per_token

__all__ = [
    "Record",
    "Trainer",
    "check_precision",
    "checkpoint_values",
    "checkpoints",
    "default_loss",
    "flops_per_token",
    "latest",
    "load_checkpoint",
    "lora",
    "precision",
    "profile",
    "save_checkpoint",
]
