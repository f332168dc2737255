"""Dtypes by the names of other libraries, where InfiniCore's programs look for them."""

from .dtypes import infinicore_to_numpy_dtype, numpy_to_infinicore_dtype, to_infinicore_dtype, to_torch_dtype

__all__ = ["infinicore_to_numpy_dtype", "numpy_to_infinicore_dtype", "to_infinicore_dtype", "to_torch_dtype"]
