"""What values are: tensors or not, the dtypes that they lead to; numbers with names."""

from math import e, inf, nan, pi

from .. import dispatch
from ..core.tensor_cy import TensorBase

__all__ = ["e", "inf", "is_tensor", "nan", "pi", "result_type"]


def is_tensor(obj):
    """Whether a value is a tensor."""
    return isinstance(obj, TensorBase)


def result_type(tensor1, tensor2):
    """The dtype of an operation on two tensors or numbers, by PyTorch's rules."""
    return dispatch.result_type(tensor1, tensor2)
