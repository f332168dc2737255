"""Functions of `nn.functional` by their names in `torch` itself, where their arguments are others.

There `reduction` is a number (0 none, 1 mean, 2 sum; names are taken, too), by default 0, and some options have no
default.
"""

import numpy as np

import infinicore

from . import ctc, loss
from .activation import rrelu
from .dropout import alpha_dropout, drop_channels, dropout, feature_alpha_dropout
from .linear import _bags
from .linear import embedding_bag as _embedding_bag
from .normalization import instance_norm as _instance_norm

_REDUCTIONS = ("none", "mean", "sum")


def _reduction(number):
    """The name that a number stands for; a name is itself."""
    if number in _REDUCTIONS:
        return number
    if isinstance(number, bool) or number not in (0, 1, 2):
        raise ValueError(f"`reduction` must be 0 (none), 1 (mean) or 2 (sum), or one of these names, got {number!r}")
    return _REDUCTIONS[number]


def kl_div(input, target, reduction=0, *, log_target=False):
    """`nn.functional.kl_div`, of which "batchmean" is no number."""
    return loss.kl_div(input, target, _reduction(reduction), log_target)


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction=0, zero_infinity=False):
    """`nn.functional.ctc_loss`."""
    lengths = input_lengths, target_lengths
    return ctc.ctc_loss(log_probs, targets, *lengths, blank, _reduction(reduction), zero_infinity)


def embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=0,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=None,
):
    """`nn.functional.embedding_bag` with `mode` 0 (sum), 1 (mean) or 2 (max): (bags, bag of each index, sizes, places).

    `indices` are [T] and `offsets` [B]. Sizes count no index of `padding_idx`. Places say which id each maximum comes
    from, [B, D] (-1 in an empty bag), and are the sizes of other modes.
    """
    if isinstance(mode, bool) or mode not in (0, 1, 2):
        raise ValueError(f"`mode` must be 0 (sum), 1 (mean) or 2 (max), got {mode!r}")
    if indices.ndim != 1 or offsets.ndim != 1:
        raise ValueError(f"`indices` and `offsets` must be vectors, got shapes {indices.shape_} and {offsets.shape_}")
    options = scale_grad_by_freq, ("sum", "mean", "max")[mode], sparse
    result = _embedding_bag(
        indices, weight, offsets, None, 2.0, *options, per_sample_weights, include_last_offset, padding_idx
    )
    bags, count = _bags(indices, offsets, include_last_offset)
    ids = indices.cpu().numpy()
    counted = np.ones(len(ids), bool) if padding_idx is None else ids != padding_idx % weight.shape_[0]
    there = lambda a: infinicore.from_numpy(a.astype(ids.dtype), device=weight.device)
    sizes = there(np.bincount(bags[counted], minlength=count))
    if mode != 2:
        return result, there(bags), sizes, sizes.clone()
    rows, largest = (x.detach().cpu().float().numpy() for x in (weight, result))
    places = np.full(largest.shape, -1)
    for i in np.flatnonzero(counted)[::-1]:
        places[bags[i]] = np.where(rows[ids[i]] == largest[bags[i]], ids[i], places[bags[i]])
    return result, there(bags), sizes, there(places)


def rrelu_(input, lower=1.0 / 8, upper=1.0 / 3, training=False):
    """`rrelu`, in place."""
    return rrelu(input, lower, upper, training, inplace=True)


def cosine_embedding_loss(input1, input2, target, margin=0.0, reduction=0):
    """`nn.functional.cosine_embedding_loss`."""
    return loss.cosine_embedding_loss(input1, input2, target, margin, _reduction(reduction))


def hinge_embedding_loss(input, target, margin=1.0, reduction=0):
    """`nn.functional.hinge_embedding_loss`."""
    return loss.hinge_embedding_loss(input, target, margin, _reduction(reduction))


def margin_ranking_loss(input1, input2, target, margin=0.0, reduction=0):
    """`nn.functional.margin_ranking_loss`."""
    return loss.margin_ranking_loss(input1, input2, target, margin, _reduction(reduction))


def poisson_nll_loss(input, target, log_input, full, eps, reduction):
    """`nn.functional.poisson_nll_loss`."""
    return loss.poisson_nll_loss(input, target, log_input, full, eps, _reduction(reduction))


def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=False, reduction=0):
    """`nn.functional.triplet_margin_loss`."""
    return loss.triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, _reduction(reduction))


def instance_norm(
    input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled=False
):  # fmt: skip
    """`nn.functional.instance_norm`; `cudnn_enabled` changes nothing."""
    return _instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def dropout_(input, p, train):
    """`dropout`, in place."""
    return dropout(input, p, train, inplace=True)


def alpha_dropout_(input, p, train):
    """`alpha_dropout`, in place."""
    return alpha_dropout(input, p, train, inplace=True)


def feature_alpha_dropout_(input, p, train):
    """`feature_alpha_dropout`, in place."""
    return feature_alpha_dropout(input, p, train, inplace=True)


def feature_dropout(input, p, train):
    """`dropout` of whole channels of [N, C, *]."""
    return drop_channels(input, p, train, False, None)


def feature_dropout_(input, p, train):
    """`feature_dropout`, in place."""
    return drop_channels(input, p, train, True, None)
