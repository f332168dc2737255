"""Switches of the libraries that PyTorch calls. There are none of them here: they can be set, and change nothing."""

from . import cuda, cudnn, mps

__all__ = ["cuda", "cudnn", "mps"]
