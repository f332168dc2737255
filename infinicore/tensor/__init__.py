"""Tensors: the class, its methods, and what makes, indexes and prints them."""

from .tensor import FUNCTIONS, Size, Tensor

__all__ = ["FUNCTIONS", "Size", "Tensor"]
