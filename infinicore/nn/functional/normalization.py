"""Normalisation."""

import math
from numbers import Integral

import infinicore

from .checks import integer, integers


def _checked(input, normalized_shape):
    """`normalized_shape` as a tuple, after checking that `input` ends in it."""
    one = isinstance(normalized_shape, Integral)
    shape = (int(normalized_shape),) if one else integers(normalized_shape, "normalized_shape")
    if tuple(input.shape)[-len(shape) :] != shape:
        raise ValueError(
            f"`normalized_shape` {list(shape)} must be the last dims of `input`, which has shape {tuple(input.shape)}"
        )
    return shape


def rms_norm(input, normalized_shape, weight=None, eps=1e-5, *, out=None):
    """`input / sqrt(mean(input^2) + eps) * weight` over the last dims.

    `eps` is 1e-5 unless given, as in InfiniCore. None, PyTorch's default, is that of the dtype the mean is taken in:
    2^-52 for float64, else 2^-23.
    """
    shape = _checked(input, normalized_shape)
    if eps is None:
        eps = 2.0**-52 if input.dtype is infinicore.float64 else 2.0**-23
    if weight is None:
        weight = infinicore.ones(shape, dtype=input.dtype, device=input.device)
    if len(shape) == 1:
        return infinicore.rms_norm(input, weight, eps, out=out)
    result = infinicore.rms_norm(input.flatten(-len(shape)), weight.flatten(), eps).reshape(input.shape)
    return result if out is None else out.copy_(result)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, *, out=None):
    """`(input - mean) / sqrt(variance + eps) * weight + bias` over the last dims `normalized_shape`."""
    shape = _checked(input, normalized_shape)
    return infinicore.layer_norm(input, shape, weight, bias, eps, out=out)


def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    """`(input - mean) / sqrt(variance + eps) * weight + bias` for each channel (dim 1).

    In training the statistics are those of the batch, and the running ones move towards them by `momentum`; else the
    running ones are used, if there are any.
    """
    if eps < 0 or (training and not eps):
        raise ValueError(f"`eps` of batch_norm must be {'above' if training else 'at least'} 0, got {eps}")
    return infinicore.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5):
    """Normalisation over each of `num_groups` groups of channels (dim 1) of each sample."""
    if input.ndim > 1 and input.numel() == num_groups:  # one group of one value, or PyTorch's error for all samples
        raise ValueError(f"`input` of group_norm must have more than one value for a group, got {tuple(input.shape)}")
    return infinicore.group_norm(input, integer(num_groups, "num_groups"), weight, bias, eps)


def instance_norm(
    input,
    running_mean=None,
    running_var=None,
    weight=None,
    bias=None,
    use_input_stats=True,
    momentum=0.1,
    eps=1e-5,
):
    """Normalisation of each channel of each sample of `input` [N, C, *] (Ulyanov et al., arXiv 1607.08022).

    The running statistics, if given, move by `momentum` towards the means over the samples, and are used instead
    without `use_input_stats`.
    """
    if input.ndim < 2:
        raise ValueError(f"`input` must be [N, C, *], got shape {input.shape_}")
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise ValueError("`running_mean` and `running_var` must be given where `use_input_stats` is False")
        return infinicore.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if math.prod(input.shape_[2:]) == 1:
        raise ValueError(
            f"`input` must have more than one element of space where `use_input_stats` is set, got shape {input.shape_}"
        )
    if running_mean is not None or running_var is not None:
        with infinicore.no_grad():
            flat = input.detach().flatten(2)
            for running, found in ((running_mean, flat.mean(-1)), (running_var, flat.var(-1))):
                if running is not None:
                    running.copy_(running * (1.0 - momentum) + found.mean(0).to(running.dtype) * momentum)
    return infinicore.group_norm(input, input.shape_[1], weight, bias, eps)
