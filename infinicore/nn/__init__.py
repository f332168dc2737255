"""Neural networks: modules and functions with PyTorch's names (the inference side)."""

from . import functional, init
from .module import Module
from .modules import Embedding, LayerNorm, Linear, ModuleList, PackedLinear, RMSNorm, RoPE, Sequential
from .parameter import Parameter

__all__ = [
    "Embedding",
    "LayerNorm",
    "Linear",
    "Module",
    "ModuleList",
    "PackedLinear",
    "Parameter",
    "RMSNorm",
    "RoPE",
    "Sequential",
    "functional",
    "init",
]
