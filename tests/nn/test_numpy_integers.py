"""Sizes and options that are integers of NumPy, such as a product of sizes: they are taken as ints."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import nn
from infinicore.nn import functional as F

n = np.int64

MODULES = {
    "Linear": (lambda: nn.Linear(np.prod((3, 2)), n(2)), (4, 6), (4, 2)),
    "Conv1d": (lambda: nn.Conv1d(n(3), n(4), (n(3),), dilation=n(2)), (1, 3, 8), (1, 4, 4)),
    "Conv2d": (lambda: nn.Conv2d(n(3), n(4), n(3), n(2), n(1)), (1, 3, 8, 8), (1, 4, 4, 4)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 4, n(3), stride=n(2)), (1, 3, 8, 8), (1, 4, 17, 17)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(n(3)), (2, 3, 4, 4), (2, 3, 4, 4)),
    "LayerNorm": (lambda: nn.LayerNorm(n(3)), (2, 3), (2, 3)),
    "LayerNorm of two": (lambda: nn.LayerNorm((n(2), n(3))), (4, 2, 3), (4, 2, 3)),
    "MaxPool2d": (lambda: nn.MaxPool2d(n(2), n(2)), (1, 3, 8, 8), (1, 3, 4, 4)),
    "AvgPool1d": (lambda: nn.AvgPool1d(n(2)), (1, 3, 8), (1, 3, 4)),
    "ZeroPad2d": (lambda: nn.ZeroPad2d(n(2)), (1, 3, 8, 8), (1, 3, 12, 12)),
    "Unfold": (lambda: nn.Unfold(n(3), padding=n(1)), (1, 3, 8, 8), (1, 27, 64)),
    "Fold": (lambda: nn.Fold((n(8), n(8)), n(3), padding=n(1)), (1, 27, 64), (1, 3, 8, 8)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(n(8), n(2), n(16)), (3, 2, 8), (3, 2, 8)),
}
FUNCTIONS = {
    "zeros": lambda: ic.zeros(n(3)),
    "rand": lambda: ic.rand(n(3)),
    "a size in a tensor": lambda: ic.empty(ic.tensor(3)),
    "new_zeros": lambda: ic.ones(2).new_zeros(n(3)),
    "randperm": lambda: ic.randperm(n(3)),
    "randint": lambda: ic.randint(n(5), (n(3),)),
    "topk": lambda: ic.topk(ic.ones(5), n(3))[0],
    "one_hot": lambda: F.one_hot(ic.tensor(1), n(3)),
    "bincount": lambda: ic.bincount(ic.tensor([1]), minlength=n(3)),
    "repeat_interleave": lambda: ic.repeat_interleave(ic.ones(1), n(3)),
    "multinomial": lambda: ic.multinomial(ic.ones(4), n(3)),
    "matrix_power": lambda: ic.linalg.matrix_power(ic.eye(3), n(2))[0],
    "hann_window": lambda: ic.signal.windows.hann(n(3)),
    "layer_norm": lambda: F.layer_norm(ic.ones(3), n(3)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name):
    make, shape, result = MODULES[name]
    module = make()
    y = module(ic.ones(*shape))
    assert y.shape == result and all(type(size) is int for size in y.shape)
    assert not any("int64" in repr(p.shape) for p in module.parameters())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    found = FUNCTIONS[name]()
    assert found.shape == (3,) and type(found.shape[0]) is int


def test_what_is_no_integer():
    for value in (np.float64(3), np.array([3]), 3.0, "3"):
        with pytest.raises((TypeError, ValueError), match=r"integer|number"):
            nn.Linear(value, 2)
    for value in (np.float64(3), ic.tensor(3.0), 3.0):
        with pytest.raises(TypeError, match=r"`size`"):
            ic.zeros(value)
