"""Optimizers and learning-rate schedulers under PyTorch's names, with steps fused over all parameters."""

from . import lr_scheduler
from .adafactor import Adafactor
from .adagrad import Adagrad
from .adam import Adam, AdamW
from .lion import Lion
from .muon import Muon
from .optimizer import Optimizer
from .rmsprop import RMSprop
from .sgd import SGD

__all__ = [
    "SGD",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Lion",
    "Muon",
    "Optimizer",
    "RMSprop",
    "lr_scheduler",
]
