"""Norms and clipping of gradients, and parameters as one vector, under PyTorch's names."""

import math

from ...autograd import no_grad
from ...dtype import float64
from ...tensor.creation import full
from ...tensor.tensor import FUNCTIONS, Tensor

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "parameters_to_vector",
    "vector_to_parameters",
]


def _gradients(parameters):
    """The gradients of a parameter, or of all that have one."""
    parameters = [parameters] if isinstance(parameters, Tensor) else parameters
    return [p.grad.detach() for p in parameters if p.grad is not None]


def check_whole(parameters):
    """Refuse parameters of which other ranks have other parts: what they have here is not the norm of all."""
    if any(getattr(p, "sharded", False) or getattr(p, "staged", False) for p in parameters):
        raise ValueError(
            "`parameters` are those of a model that is divided among ranks, and their norm is not that of all: use "
            "`ZeroDataParallel.clip_grad_norm_`, or `infinicore.distributed.clip_grad_norm_` of a divided module"
        )


def get_total_norm(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """The p-norm of all elements of some tensors as one vector, a 0-dim tensor: see `infinicore.multi_norm`.

    ValueError if it is infinite or NaN and `error_if_nonfinite` is set. `foreach` is PyTorch's and changes nothing.
    """
    with no_grad():
        total = FUNCTIONS["multi_norm"]([tensors] if isinstance(tensors, Tensor) else tensors, norm_type)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise ValueError(
            f"the norm of order {norm_type} of the gradients is {total.item()}, so they cannot be clipped: look for "
            "the overflow, or set `error_if_nonfinite` to False"
        )
    return total


def clip_grads_with_norm_(parameters, max_norm, total_norm, foreach=None):
    """Scale the gradients by max_norm / (total_norm + 1e-6), in place, where that is below 1."""
    gradients = _gradients(parameters)
    if not gradients:
        return
    with no_grad():
        if not isinstance(total_norm, Tensor) or total_norm.device != gradients[0].device:
            total_norm = full((), float(total_norm), dtype=float64, device=gradients[0].device)
        FUNCTIONS["multi_clip"](gradients, total_norm, float(max_norm))


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Scale the gradients of `parameters`, in place, so that their norm together is at most `max_norm`.

    Returns the norm before, a 0-dim tensor. ValueError if it is infinite or NaN and `error_if_nonfinite` is set.
    """
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    check_whole(parameters)
    total = get_total_norm(_gradients(parameters), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(parameters, max_norm, total)
    return total


def clip_grad_value_(parameters, clip_value, foreach=None):
    """Clamp the gradients of `parameters` to [-clip_value, clip_value], in place."""
    with no_grad():
        FUNCTIONS["multi_clamp"](_gradients(parameters), float(clip_value))


def parameters_to_vector(parameters):
    """All parameters one after the other, as one vector; gradients flow through it."""
    return FUNCTIONS["cat"]([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec, parameters):
    """Write the pieces of a vector [N] into parameters, which have N elements together."""
    if not isinstance(vec, Tensor):
        raise TypeError(f"`vec` must be a tensor, got {type(vec).__name__}")
    parameters = list(parameters)
    total = sum(p.numel_ for p in parameters)
    if vec.shape_ != (total,):
        raise ValueError(f"`vec` must have shape {(total,)}, the elements of all parameters, got {vec.shape_}")
    start = 0
    with no_grad():
        for p in parameters:
            p.copy_(vec[start : start + p.numel_].reshape(p.shape_))
            start += p.numel_
