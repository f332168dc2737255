"""Dtypes by the names of other libraries, as in InfiniCore's `utils`. PyTorch is imported when it is asked for."""

import numpy as np

from ..dtype import dtype as to_dtype

__all__ = ["infinicore_to_numpy_dtype", "numpy_to_infinicore_dtype", "to_infinicore_dtype", "to_torch_dtype"]

_TORCH = {"float8_e4m3": "float8_e4m3fn"}  # names that differ


def to_torch_dtype(dtype):
    """The dtype of PyTorch that is a dtype of ours. Raises ImportError without PyTorch."""
    try:
        import torch
    except ImportError:
        raise ImportError("`to_torch_dtype` needs PyTorch: pip install torch") from None
    name = to_dtype(dtype).name
    return getattr(torch, _TORCH.get(name, name))


def to_infinicore_dtype(torch_dtype):
    """Our dtype that is a dtype of PyTorch. Raises TypeError for what is none, or tensors do not have."""
    if type(torch_dtype).__module__ != "torch":
        raise TypeError(f"`torch_dtype` must be a dtype of PyTorch, got {torch_dtype!r}")
    return to_dtype(torch_dtype)


def numpy_to_infinicore_dtype(numpy_dtype):
    """Our dtype that is a dtype of NumPy. Raises TypeError for those that tensors do not have."""
    return to_dtype(np.dtype(numpy_dtype))


def infinicore_to_numpy_dtype(dtype):
    """The dtype of NumPy that is a dtype of ours; bfloat16 and float8 are those of ml_dtypes."""
    return to_dtype(dtype).numpy
