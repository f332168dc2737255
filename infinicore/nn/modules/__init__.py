"""The modules, one noun per file."""

from .container import ModuleList, Sequential
from .embedding import Embedding
from .linear import Linear, PackedLinear
from .normalization import LayerNorm, RMSNorm
from .rope import RoPE

__all__ = ["Embedding", "LayerNorm", "Linear", "ModuleList", "PackedLinear", "RMSNorm", "RoPE", "Sequential"]
