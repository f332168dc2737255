"""Tensors in tuples, lists and dicts."""

from ..core.tensor_cy import TensorBase


def map_tensors(value, function):
    """`value` with each tensor in it replaced."""
    if isinstance(value, TensorBase):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(x, function) for x in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(x, function) for x in value)
    if isinstance(value, dict):
        return {name: map_tensors(x, function) for name, x in value.items()}
    return value


def tensors_in(value):
    """The tensors of `value`, in order."""
    found = []
    map_tensors(value, found.append)
    return found


def replaced(value, tensors):
    """`value` with its tensors replaced by others, in order."""
    following = iter(tensors)
    return map_tensors(value, lambda _: next(following))
