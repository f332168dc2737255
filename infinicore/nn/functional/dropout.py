"""Dropout: elements, or whole channels, set to zero at random. Seeds come from the default generator."""

import infinicore
from infinicore.dispatch.generator import default_generator

from .checks import number


def _checked(p):
    if not 0.0 <= number(p, "p") <= 1.0:
        raise ValueError(f"`p` must be a probability from 0 to 1, got {p}")
    return p


def seed():
    """63 random bits for a kernel that makes its own random numbers."""
    return default_generator().kernel_seed()


def _into(input, result, inplace):
    return input.copy_(result) if inplace else result


def dropout(input, p=0.5, training=True, inplace=False):
    """Each element zero with probability `p`, else divided by 1 - p; the input itself outside of training."""
    _checked(p)
    if not training or p == 0.0:
        return input
    return _into(input, infinicore.dropout(input, p, True), inplace)


def _channels(input, dims):
    """Ones [N, C, 1, ...] for an input [N, C, ...] with `dims` dims of space, or [C, 1, ...] without N."""
    if dims is None:
        if input.ndim < 2:
            raise ValueError(f"`input` must be [N, C, *], got shape {input.shape}")
        dims = input.ndim - 2
    if input.ndim not in (dims + 1, dims + 2):
        raise ValueError(f"`input` of dropout{dims}d must have {dims + 1} or {dims + 2} dims, got shape {input.shape}")
    return infinicore.ones((*input.shape[: input.ndim - dims], *(1,) * dims), dtype=input.dtype, device=input.device)


def drop_channels(input, p, training, inplace, dims):
    """`dropout` of whole channels of an input with `dims` dims of space; None: any number of them, with N."""
    _checked(p)
    ones = _channels(input, dims)
    if not training or p == 0.0:
        return input
    return _into(input, input * infinicore.dropout(ones, p, True), inplace)


def dropout1d(input, p=0.5, training=True, inplace=False):
    """As `dropout`, for whole channels of [N, C, L] or [C, L]."""
    return drop_channels(input, p, training, inplace, 1)


def dropout2d(input, p=0.5, training=True, inplace=False):
    """As `dropout`, for whole channels of [N, C, H, W] or [C, H, W]."""
    return drop_channels(input, p, training, inplace, 2)


def dropout3d(input, p=0.5, training=True, inplace=False):
    """As `dropout`, for whole channels of [N, C, D, H, W] or [C, D, H, W]."""
    return drop_channels(input, p, training, inplace, 3)


_SATURATED = -1.7580993408473766  # where selu goes for x to minus infinity


def _alpha(input, p, training, inplace, ones):
    _checked(p)
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return _into(input, input * 0.0, inplace)
    scale = ((1 - p) * (1 + p * _SATURATED**2)) ** -0.5
    shift = -scale * _SATURATED * p
    kept = infinicore.dropout(ones(), p, True) > 0.0
    return _into(input, infinicore.where(kept, input * scale + shift, _SATURATED * scale + shift), inplace)


def alpha_dropout(input, p=0.5, training=False, inplace=False):
    """Dropout that keeps mean 0 and variance 1 of selu's results (Klambauer et al., arXiv 1706.02515)."""
    return _alpha(
        input, p, training, inplace, lambda: infinicore.ones(input.shape, dtype=input.dtype, device=input.device)
    )


def feature_alpha_dropout(input, p=0.5, training=False, inplace=False):
    """As `alpha_dropout`, for whole channels of [N, C, *]."""
    return _alpha(input, p, training, inplace, lambda: _channels(input, None))
