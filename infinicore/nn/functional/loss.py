"""Losses: one number, or one for each sample or element with reduction="none"."""

import math
import warnings

import infinicore

from ...dispatch.functions import FUNCTIONS
from .checks import integer, number
from .linear import pairwise_distance

_REDUCTIONS = ("none", "mean", "sum")


def reduced(loss, reduction):
    """The losses of elements as `reduction` says."""
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise ValueError(f"`reduction` must be 'none', 'mean' or 'sum', got {reduction!r}")


def _tensors(input, target, name="target"):
    for label, x in (("input", input), (name, target)):
        if not isinstance(x, infinicore.Tensor):
            raise TypeError(f"`{label}` of a loss must be a tensor, got {type(x).__name__}: use `infinicore.tensor`")


def _broadcast(input, target):
    """Warn of two shapes, whose common one is often not what was meant."""
    _tensors(input, target)
    if input.shape != target.shape:
        message = f"`input` {tuple(input.shape)} and `target` {tuple(target.shape)} of a loss are broadcast"
        warnings.warn(message, UserWarning, stacklevel=3)


def _same_shape(input, target, name="target"):
    _tensors(input, target, name)
    if input.shape != target.shape:
        raise ValueError(f"`{name}` must have the shape of `input`, {tuple(input.shape)}, got {tuple(target.shape)}")


def _loss(loss, inputs, weight, reduction):
    """A loss of the op table, each element times its weight."""
    if weight is None and reduction in _REDUCTIONS:
        return loss(*inputs, reduction=reduction)
    elements = loss(*inputs, reduction="none")
    return reduced(elements if weight is None else elements * weight, reduction)


def cross_entropy(input, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """-log softmax(input)[target]: logits [N, C], [C] or [N, C, ...], class ids [N], [], [N, ...] or probabilities."""
    ignore_index, _ = integer(ignore_index, "ignore_index"), number(label_smoothing, "label_smoothing")
    if ignore_index >= 0 and target.dtype.is_floating_point:
        raise ValueError(
            f"`ignore_index` goes with class ids, `target` are probabilities of {target.dtype}: leave it out, got "
            f"{ignore_index}"
        )
    return infinicore.cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


def linear_cross_entropy(
    input,
    linear_weight,
    target,
    *,
    linear_bias=None,
    weight=None,
    reduction="mean",
    ignore_index=None,
    label_smoothing=0.0,
    options=None,
):
    """cross_entropy(linear(input, linear_weight, linear_bias), target), with cross_entropy's options.

    `input` is [N, K] or [K], `linear_weight` [C, K] or [C, d1, ..., K], `linear_bias` [C] or [C, d1, ...]. A mean or
    sum of class ids without bias, weights and smoothing never holds the logits (`infinicore.linear_cross_entropy`).
    `options` say how PyTorch divides its work (`LinearCrossEntropyOptions`), which changes no result: here chunks are
    chosen by size.
    """
    if options is not None and not hasattr(options, "batch_chunk_size"):
        raise TypeError(f"`options` of linear_cross_entropy must be LinearCrossEntropyOptions, got {options!r}")
    if getattr(options, "acc_dtype", None) is not None:
        raise NotImplementedError("`acc_dtype` of `options` must be None: sums are float32, or float64 of float64")
    if ignore_index is not None and target.dtype.is_floating_point:
        raise ValueError(
            f"`ignore_index` goes with class ids, `target` are probabilities of {target.dtype}: leave it out"
        )
    if linear_weight.ndim > 2 and input.ndim < 2:
        raise ValueError(f"`input` must be [N, K] beside `linear_weight` {linear_weight.shape_}, got {input.shape_}")
    ignored = -100 if ignore_index is None else integer(ignore_index, "ignore_index")
    number(label_smoothing, "label_smoothing")
    plain = linear_bias is None and weight is None and not label_smoothing and linear_weight.ndim == 2
    if plain and not target.dtype.is_floating_point and reduction in ("mean", "sum"):
        loss = infinicore.linear_cross_entropy(input, linear_weight, target, ignore_index=ignored, reduction=reduction)
        return loss.to(input.dtype)
    *sizes, features = linear_weight.shape_
    if linear_bias is not None and linear_bias.shape_ != tuple(sizes):
        raise ValueError(f"`linear_bias` must have shape {tuple(sizes)}, got {linear_bias.shape_}")
    bias = None if linear_bias is None else linear_bias.reshape(-1)
    logits = infinicore.linear(input, linear_weight.reshape(-1, features), bias)
    if linear_weight.ndim > 2:
        logits = logits.reshape(*input.shape_[:-1], *sizes)
    return infinicore.cross_entropy(logits, target, weight, ignored, reduction, label_smoothing)


def nll_loss(input, target, weight=None, ignore_index=-100, reduction="mean"):
    """-input[target] of log probabilities [N, C], [C] or [N, C, ...] and class ids."""
    return infinicore.nll_loss(input, target, weight, integer(ignore_index, "ignore_index"), reduction)


def mse_loss(input, target, reduction="mean", weight=None):
    """(input - target)^2."""
    _broadcast(input, target)
    if weight is not None and reduction == "mean":
        return infinicore.mse_loss(input, target, reduction="none").mul(weight).sum() / weight.sum()
    return _loss(infinicore.mse_loss, (input, target), weight, reduction)


def _complex_l1(input, target, reduction):
    return reduced((input - target).abs(), reduction)


def l1_loss(input, target, reduction="mean", weight=None):
    """|input - target|."""
    _broadcast(input, target)
    loss = _complex_l1 if "c" in (input.dtype.kind, target.dtype.kind) else infinicore.l1_loss
    if weight is not None and reduction == "mean":
        return loss(input, target, reduction="none").mul(weight).sum() / weight.sum()
    return _loss(loss, (input, target), weight, reduction)


def smooth_l1_loss(input, target, reduction="mean", beta=1.0):
    """d^2 / (2 beta) where d = |input - target| < beta, else d - beta / 2; beta 0 is l1_loss."""
    _broadcast(input, target)
    if beta < 0:
        raise ValueError(f"`beta` of smooth_l1_loss must be at least 0, got {beta}")
    if beta == 0:
        return l1_loss(input, target, reduction)
    return _loss(infinicore.smooth_l1_loss, (input, target, float(beta)), None, reduction)


def huber_loss(input, target, reduction="mean", delta=1.0, weight=None):
    """d^2 / 2 where d = |input - target| <= delta, else delta (d - delta / 2)."""
    _broadcast(input, target)
    if delta <= 0:
        raise ValueError(f"`delta` of huber_loss must be above 0, got {delta}")
    return _loss(infinicore.huber_loss, (input, target, float(delta)), weight, reduction)


def binary_cross_entropy(input, target, weight=None, reduction="mean"):
    """-(t log(x) + (1 - t) log(1 - x)) of probabilities x; logarithms count as at least -100."""
    _same_shape(input, target)
    if input.numel() and not (bool((input >= 0.0).all()) and bool((input <= 1.0).all())):
        raise ValueError("`input` of binary_cross_entropy must be probabilities from 0 to 1: apply sigmoid first")
    return _loss(infinicore.binary_cross_entropy, (input, target), weight, reduction)


def binary_cross_entropy_with_logits(input, target, weight=None, reduction="mean", pos_weight=None):
    """binary_cross_entropy of sigmoid(input), stable for any input; `pos_weight` multiplies the term of ones."""
    _same_shape(input, target)
    positive = 1.0 if pos_weight is None else pos_weight
    return _loss(infinicore.binary_cross_entropy_with_logits, (input, target, positive), weight, reduction)


def kl_div(input, target, reduction="mean", log_target=False):
    """target (log(target) - input), where `input` holds log probabilities, and `target` too with `log_target`.

    reduction="batchmean" is the sum over the size of dim 0, the divergence itself.
    """
    loss = FUNCTIONS["kl_divergence_log" if log_target else "kl_divergence"]
    if reduction == "batchmean":
        return loss(input, target, reduction="sum") / (input.shape[0] if input.ndim else 1)
    return _loss(loss, (input, target), None, reduction)


def poisson_nll_loss(input, target, log_input=True, full=False, eps=1e-8, reduction="mean"):
    """exp(input) - target input, or input - target log(input + eps) without `log_input`; `full` adds log(target!)."""
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        stirling = target * target.log() - target + 0.5 * (2 * math.pi * target).log()
        loss = loss + infinicore.where(target > 1.0, stirling, 0.0)
    return reduced(loss, reduction)


def gaussian_nll_loss(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """(log(var) + (input - target)^2 / var) / 2, var at least eps; `full` adds log(2 pi) / 2."""
    if not isinstance(var, infinicore.Tensor):
        if var < 0:
            raise ValueError(f"`var` must be at least 0, got {var}")
        var = infinicore.full_like(input, float(var))
    elif bool((var < 0.0).any()):
        raise ValueError("`var` must hold no negative numbers")
    if var.ndim == input.ndim - 1 and var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    elif var.ndim != input.ndim or sum(n for n, own in zip(var.shape, input.shape) if n != own) > 1:
        raise ValueError(
            f"`var` must have the shape of `input`, {tuple(input.shape)}, or one size of 1, got {tuple(var.shape)}"
        )
    # Limited without a gradient to the limit, as in PyTorch.
    limited = infinicore.where(var < eps, eps, var.detach()) + (var - var.detach())
    loss = 0.5 * (limited.log() + infinicore.mse_loss(input, target, reduction="none") / limited)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def cosine_embedding_loss(input1, input2, target, margin=0.0, reduction="mean"):
    """1 - cos(input1, input2) where target is 1, max(0, cos - margin) where it is -1, else 0; rows [N, D] or [D]."""
    a, b = (x if x.dtype.differentiable else x.float() for x in (input1, input2))
    cosine = (a * b).sum(-1) / (((a * a).sum(-1) + 1e-12) * ((b * b).sum(-1) + 1e-12)).sqrt()  # for rows of 0
    other = infinicore.where(target == -1, (cosine - margin).clamp(0.0), 0.0)
    loss = infinicore.where(target == 1, 1.0 - cosine, other)
    return reduced(loss, reduction)


def margin_ranking_loss(input1, input2, target, margin=0.0, reduction="mean"):
    """max(0, -target (input1 - input2) + margin), target 1 or -1."""
    if not input1.ndim == input2.ndim == target.ndim:
        raise ValueError(
            f"`input1`, `input2` and `target` must have as many dims, got {tuple(input1.shape)}, {tuple(input2.shape)} "
            f"and {tuple(target.shape)}"
        )
    return reduced((target * (input2 - input1) + margin).clamp(0.0), reduction)


def hinge_embedding_loss(input, target, margin=1.0, reduction="mean"):
    """`input` where target is 1, max(0, margin - input) where it is -1, the sum of both where it is neither."""
    similar = infinicore.where(target != -1, input, 0.0)
    return reduced(similar + infinicore.where(target != 1, (margin - input).clamp(0.0), 0.0), reduction)


def soft_margin_loss(input, target, reduction="mean"):
    """log(1 + exp(-target input)), target 1 or -1."""
    _tensors(input, target)
    return reduced(-infinicore.logsigmoid(target * input), reduction)


def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=False, reduction="mean"):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), d the p-norm of the difference.

    `swap` takes d(positive, negative) where that is smaller (Balntas et al., 2016). `margin` is above 0.
    """
    if margin <= 0:
        raise ValueError(f"`margin` of triplet_margin_loss must be above 0, got {margin}")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise ValueError(
            f"`anchor`, `positive` and `negative` must have as many dims, got {tuple(anchor.shape)}, "
            f"{tuple(positive.shape)} and {tuple(negative.shape)}"
        )
    near, far = pairwise_distance(anchor, positive, p, eps), pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = infinicore.minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduced((near - far + margin).clamp(0.0), reduction)
