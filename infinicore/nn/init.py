"""Filling parameters with numbers, as PyTorch's `nn.init`; every function works in place and returns its tensor."""

import contextlib
import math
import threading

from ..tensor import Tensor

_local = threading.local()


@contextlib.contextmanager
def skipped():
    """Modules made inside keep uninitialised parameters: for models whose weights are loaded next."""
    before = getattr(_local, "skip", False)
    _local.skip = True
    try:
        yield
    finally:
        _local.skip = before


def wanted():
    """Whether a new module shall initialise its parameters."""
    return not getattr(_local, "skip", False)


def _check(tensor):
    if not isinstance(tensor, Tensor) or not tensor.dtype.is_floating_point:
        raise TypeError(
            f"`tensor` must be a floating-point Tensor, got {getattr(tensor, 'dtype', type(tensor).__name__)}"
        )


def uniform_(tensor, a=0.0, b=1.0):
    """Uniform numbers from [a, b)."""
    import infinicore

    _check(tensor)
    tensor.copy_(infinicore.rand(tuple(tensor.shape)) * (b - a) + a)
    return tensor


def normal_(tensor, mean=0.0, std=1.0):
    """Normal numbers."""
    import infinicore

    _check(tensor)
    tensor.copy_(infinicore.randn(tuple(tensor.shape)) * std + mean)
    return tensor


def constant_(tensor, val):
    """One number everywhere."""
    import infinicore

    tensor.copy_(infinicore.full(tuple(tensor.shape), val, dtype=tensor.dtype))
    return tensor


def zeros_(tensor):
    """Zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor):
    """Ones."""
    return constant_(tensor, 1.0)


def _fans(tensor):
    """(inputs, outputs) of a weight [out, in, ...]."""
    if tensor.ndim < 2:
        raise ValueError(
            f"`tensor` must have at least 2 dims to count inputs and outputs, got shape {tuple(tensor.shape)}"
        )
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def xavier_uniform_(tensor, gain=1.0):
    """Glorot's uniform rule: variance 2 gain^2 / (inputs + outputs)."""
    bound = gain * math.sqrt(6.0 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound)


def kaiming_uniform_(tensor, a=0.0):
    """He's uniform rule for a leaky rectifier of slope `a`: variance 2 / ((1 + a^2) inputs)."""
    bound = math.sqrt(6.0 / ((1 + a * a) * max(1, _fans(tensor)[0])))
    return uniform_(tensor, -bound, bound)
