"""Tensors: the class, its methods, and what makes, indexes and prints them."""

from ..interop.dlpack import from_dlpack
from ..interop.numpy import from_numpy
from .tensor import FUNCTIONS, Size, Tensor

__all__ = ["FUNCTIONS", "Size", "Tensor", "from_dlpack", "from_numpy"]
