"""Switches of the libraries that PyTorch calls, of which there are none here: all can be set, and only
`cuda.matmul.allow_tf32` changes something."""

from . import cuda, cudnn, mps
from .libraries import mkl, mkldnn, openmp, opt_einsum

__all__ = ["cuda", "cudnn", "mkl", "mkldnn", "mps", "openmp", "opt_einsum"]
