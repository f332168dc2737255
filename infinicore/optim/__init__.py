"""Optimizers and learning-rate schedulers under PyTorch's names, with steps fused over all parameters."""

import importlib as _importlib

from . import lr_scheduler
from .adafactor import Adafactor
from .adagrad import Adagrad
from .adam import Adam, AdamW
from .adaptive import Adadelta, Adamax, RAdam, Rprop
from .averaged import ASGD, NAdam
from .lbfgs import LBFGS
from .lion import Lion
from .muon import Muon
from .optimizer import Optimizer
from .rmsprop import RMSprop
from .sgd import SGD

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lion",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "lr_scheduler",
    "swa_utils",
]


def __getattr__(name):
    if name != "swa_utils":  # it lies above `nn`, which imports nothing from here
        raise AttributeError(f"module 'infinicore.optim' has no attribute {name!r}")
    return _importlib.import_module(f"{__name__}.swa_utils")
