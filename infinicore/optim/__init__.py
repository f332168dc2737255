"""Optimizers and learning-rate schedulers under PyTorch's names, with steps fused over all parameters."""

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
]
