"""Normalisation."""

import infinicore


def _checked(input, normalized_shape):
    """`normalized_shape` as a tuple, after checking that `input` ends in it."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
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
        weight = infinicore.ones(shape, dtype=input.dtype)
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
    return infinicore.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5):
    """Normalisation over each of `num_groups` groups of channels (dim 1) of each sample."""
    return infinicore.group_norm(input, num_groups, weight, bias, eps)
