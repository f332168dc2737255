"""Losses of several classes at once: margins between them, one label or several for a sample."""

import infinicore

from .linear import pairwise_distance
from .loss import reduced


def _classes(input, target, several):
    """(input [N, C], target [N] or [N, C], whether there was a batch); one score alone is one class."""
    input = input if input.ndim else input.reshape(1)
    if several and input.ndim == 1 and input.numel() == target.numel() == 1:
        target = target.reshape(1)
    if input.ndim not in (1, 2) or not input.shape_[-1]:
        raise ValueError(f"`input` must be [N, C] or [C] with classes, got shape {input.shape_}")
    wanted = input.shape_ if several else input.shape_[:-1]
    if target.shape_ != wanted and not (target.numel() == 1 and not several and input.numel() == input.shape_[-1]):
        raise ValueError(f"`target` must have shape {wanted} for `input` of {input.shape_}, got {target.shape_}")
    if target.dtype.is_floating_point:
        raise TypeError(f"`target` must be class ids as integers, got {target.dtype}")
    batch = input.ndim == 2 if several else target.ndim == 1
    x = input.reshape(-1, input.shape_[-1])
    target, count = target.to(infinicore.int64), x.shape_[1]
    least = -1 if several else 0
    if target.numel() and not (int(target.min()) >= least and int(target.max()) < count):
        raise ValueError(f"`target` must be classes from {least} to {count - 1}, got {target.tolist()}")
    return x, target.reshape(-1, count) if several else target.reshape(-1), batch


def multi_margin_loss(input, target, p=1, margin=1.0, weight=None, reduction="mean"):
    """The sum over other classes of max(0, margin - x[y] + x[i])^p over C, for scores [N, C] or [C] and class ids.

    `p` is 1 or 2; `weight` [C] weighs samples by their class.
    """
    if p not in (1, 2):
        raise ValueError(f"`p` must be 1 or 2, got {p}")
    x, target, batch = _classes(input, target, several=False)
    if weight is not None and weight.shape_ != x.shape_[1:]:
        raise ValueError(f"`weight` must have shape {x.shape_[1:]}, one for each class, got {weight.shape_}")
    own = infinicore.gather(x, 1, target.unsqueeze(1))
    z = infinicore.relu(margin - own + x)  # with no gradient at 0: other losses have one, in PyTorch as here
    z = z * z if p == 2 else z
    if weight is not None:
        z = z * infinicore.index_select(weight, 0, target).unsqueeze(1)
    others = infinicore.arange(x.shape_[1], device=x.device) != target.unsqueeze(1)
    losses = infinicore.where(others, z, 0.0).sum(1) / float(x.shape_[1])
    return reduced(losses if batch else losses.reshape(()), reduction)


def multilabel_margin_loss(input, target, reduction="mean"):
    """The sum of max(0, 1 - x[y] + x[i]) over the labels y of a sample and the other classes i, over C.

    `input` are scores [N, C] or [C], `target` of the same shape labels, of which those before the first -1 count.
    """
    x, target, batch = _classes(input, target, several=True)
    rows, count = x.shape_
    valid = infinicore.cumsum((target < 0).to(infinicore.int64), 1) == 0
    labels = target.clamp(0)
    marks = infinicore.zeros((rows, count), dtype=infinicore.int64, device=target.device)
    other = infinicore.scatter_add(marks, 1, labels, valid.to(infinicore.int64)) == 0
    own = infinicore.gather(x, 1, labels)
    z = infinicore.relu(1.0 - own.unsqueeze(2) + x.unsqueeze(1))
    pairs = valid.unsqueeze(2).logical_and(other.unsqueeze(1))
    losses = infinicore.where(pairs, z, 0.0).flatten(1).sum(1) / float(count)
    return reduced(losses if batch else losses.reshape(()), reduction)


def multilabel_soft_margin_loss(input, target, weight=None, reduction="mean"):
    """The mean over classes of -(t log(sigmoid(x)) + (1 - t) log(sigmoid(-x))), x and t [..., C], which broadcast.

    `weight`, which broadcasts, multiplies the classes.
    """
    loss = -(target * infinicore.logsigmoid(input) + (1 - target) * infinicore.logsigmoid(-input))
    loss = loss if weight is None else loss * weight
    return reduced(loss.sum(-1) / float(loss.shape_[-1]), reduction)


def triplet_margin_with_distance_loss(
    anchor, positive, negative, *, distance_function=None, margin=1.0, swap=False, reduction="mean"
):
    """`triplet_margin_loss` with a distance of one's own: `distance_function(a, b)` gives that of each pair of rows.

    None is `pairwise_distance`. `margin` is above 0.
    """
    if margin <= 0:
        raise ValueError(f"`margin` must be above 0, got {margin}")
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = infinicore.minimum(far, distance(positive, negative))
    return reduced((near - far + margin).clamp(0.0), reduction)
