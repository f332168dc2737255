"""What PyTorch keeps in `torch.utils` (`data`, `checkpoint`), and InfiniCore's names of dtypes in other libraries."""

from . import checkpoint, data, dlpack
from .dtypes import infinicore_to_numpy_dtype, numpy_to_infinicore_dtype, to_infinicore_dtype, to_torch_dtype

__all__ = [
    "checkpoint",
    "data",
    "dlpack",
    "infinicore_to_numpy_dtype",
    "numpy_to_infinicore_dtype",
    "to_infinicore_dtype",
    "to_torch_dtype",
]
