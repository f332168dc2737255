"""`infinicore info`: what this installation runs on."""

from ..info import add_arguments
from ..info import show as run

__all__ = ["add_arguments", "run"]
