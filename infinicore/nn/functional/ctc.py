"""Connectionist temporal classification (Graves et al., ICML 2006): the loss of all alignments of a sequence."""

import functools

import numpy as np

import infinicore

from ...autograd import Function
from .loss import reduced

_NEVER = float("-inf")


def _join(*terms):
    """log of the sum of exponentials of tensors, minus infinity of nothing but those."""
    top = terms[0]
    for x in terms[1:]:
        top = infinicore.maximum(top, x)
    base = infinicore.where(top == _NEVER, 0.0, top)
    total = None
    for x in terms:
        part = (x - base).exp()
        total = part if total is None else total + part
    return total.log() + base


def _behind(x, k):
    """Rows [N, S] moved by k states: minus infinity comes in."""
    return infinicore.pad(x, (k, -k), value=_NEVER)


def _recursion(emitted, step, skips, first, last):
    """log probabilities [T, N, S] of all paths that reach each state, from `first` [N, S] on in the order of `step`.

    `last` [N] are the numbers of steps of the sequences: beyond them nothing changes.
    """
    states, found = first, [first]
    for t in range(1, emitted.shape_[0]):
        moved = _join(states, _behind(states, step), infinicore.where(skips, _behind(states, 2 * step), _NEVER))
        states = infinicore.where((last > t).unsqueeze(1), moved + emitted[t], states)
        found.append(states)
    return infinicore.stack(found)


class _Ctc(Function):
    """-log p of log probabilities [T, N, C] for the states `labels` [N, S] (blanks between the targets)."""

    @staticmethod
    def forward(ctx, log_probs, labels, lengths, ends):
        steps, count, classes = log_probs.shape_
        width = labels.shape[1]
        there = functools.partial(infinicore.from_numpy, device=log_probs.device)
        ids = there(labels)
        emitted = infinicore.gather(log_probs, 2, ids.expand(steps, count, width))
        state, ends = np.arange(width)[None], np.asarray(ends)[:, None]
        same = np.ones_like(labels, dtype=bool)
        same[:, 2:] = labels[:, 2:] == labels[:, :-2]
        inside = state < ends
        start = there(np.broadcast_to(state < 2, labels.shape) & inside)
        last = there(np.asarray(lengths))
        open_ = there(~same & inside)
        emitted = infinicore.where(there(inside), emitted, _NEVER)
        first = infinicore.where(start.logical_and((last > 0).unsqueeze(1)), emitted[0], _NEVER) if steps else None
        alpha = _recursion(emitted, 1, open_, first, last)
        final = there((state == ends - 1) | (state == ends - 2))
        total = infinicore.where(final, alpha[steps - 1], _NEVER)
        top = infinicore.amax(total, 1)
        base = infinicore.where(top == _NEVER, 0.0, top)
        loss = -((total - base.unsqueeze(1)).exp().sum(1).log() + base)
        nothing = there((np.asarray(lengths) == 0) & (ends[:, 0] == 1))  # of nothing, nothing is sure
        loss = infinicore.where(nothing, 0.0, loss)
        ctx.save_for_backward(log_probs, alpha, loss, emitted)
        ctx.rest = ids, lengths, ends, same, classes
        return loss

    @staticmethod
    def backward(ctx, g):
        log_probs, alpha, loss, emitted = ctx.saved_tensors
        ids, lengths, ends, same, classes = ctx.rest
        steps, count, width = emitted.shape_
        there = functools.partial(infinicore.from_numpy, device=log_probs.device)
        # From the end: each sequence turned round within its own steps, and the states with them.
        lengths, time = np.asarray(lengths), np.arange(steps)[:, None]
        turned = np.where(time < lengths[None], lengths[None] - 1 - time, time)
        index = there(turned[..., None].repeat(width, 2))
        state = np.arange(width)[None]
        skips = np.zeros_like(same)
        skips[:, :-2] = ~same[:, 2:] & (state[:, 2:] < ends)
        backwards = infinicore.gather(emitted, 0, index)
        final = there((state == ends - 1) | (state == ends - 2))
        last = there(lengths)
        first = infinicore.where(final.logical_and((last > 0).unsqueeze(1)), backwards[0], _NEVER)
        beta = infinicore.gather(_recursion(backwards, -1, there(skips), first, last), 0, index)
        # How likely each state is at each step, given the targets; both recursions count its own emission.
        certain = alpha + beta + loss.unsqueeze(1)
        share = infinicore.where(certain == _NEVER, 0.0, (certain - emitted).exp())
        share = infinicore.where(emitted == _NEVER, 0.0, share)
        zeros = infinicore.zeros((steps, count, classes), dtype=log_probs.dtype, device=log_probs.device)
        found = infinicore.scatter_add(zeros, 2, ids.expand(steps, count, width), share)
        gradient = (log_probs.exp() - found) * g.reshape(1, -1, 1)
        without = (loss == float("inf")).logical_and(g == 0.0)  # no alignment, and not asked for
        gradient = infinicore.where(without.reshape(1, -1, 1), 0.0, gradient)
        active = there(time < lengths[None]).unsqueeze(2)
        return infinicore.where(active, gradient, 0.0), None, None, None


def _counts(value, name, count):
    values = value.tolist() if isinstance(value, infinicore.Tensor) else value
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    if len(values) != count or not all(isinstance(v, int) and v >= 0 for v in values):
        raise ValueError(f"`{name}` must hold {count} integers of at least 0, one for each sequence, got {values}")
    return values


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """-log of the probability of all alignments of `targets` with `log_probs` [T, N, C] or [T, C] (of log_softmax).

    `targets` are class ids [N, S], or those of all sequences one after the other; the lengths are those of the N
    sequences, tensors or lists. `blank` is the class of no label. A "mean" divides each loss by its target's length
    first. `zero_infinity` sets losses without an alignment, and their gradients, to 0. The gradient is PyTorch's, which
    is meant for a log_softmax before it. ValueError for lengths and classes that do not fit.
    """
    if log_probs.ndim not in (2, 3) or not log_probs.dtype.is_floating_point:
        raise ValueError(f"`log_probs` must be floats [T, N, C] or [T, C], got {log_probs.dtype} {log_probs.shape_}")
    batch = log_probs.ndim == 3
    x = log_probs if batch else log_probs.unsqueeze(1)
    steps, count, classes = x.shape_
    lengths = _counts(input_lengths, "input_lengths", count)
    sizes = _counts(target_lengths, "target_lengths", count)
    if not 0 <= blank < classes:
        raise ValueError(f"`blank` must be a class from 0 to {classes - 1}, got {blank}")
    if (lengths and max(lengths) > steps) or not steps:
        raise ValueError(f"`input_lengths` must be at most the {steps} steps of `log_probs`, got {lengths}")
    if targets.dtype.is_floating_point:
        raise TypeError(f"`targets` must be class ids as integers, got {targets.dtype}")
    rows = targets.detach().cpu().numpy()
    if rows.ndim == 1 and (batch or rows.size == sum(sizes)):
        if rows.size != sum(sizes):
            raise ValueError(f"`targets` must have the {sum(sizes)} labels that `target_lengths` adds up to")
        rows = np.split(rows, np.cumsum(sizes)[:-1])
    else:
        rows = rows.reshape(count, -1)
        if max(sizes, default=0) > rows.shape[1]:
            raise ValueError(f"`target_lengths` must be at most {rows.shape[1]}, the width of `targets`, got {sizes}")
    labels = np.full((count, 2 * max(sizes, default=0) + 1), blank, np.int64)
    for i, (row, size) in enumerate(zip(rows, sizes)):
        labels[i, 1 : 2 * size : 2] = row[:size]
        if size and not (row[:size].min() >= 0 and row[:size].max() < classes):
            raise ValueError(f"`targets` must be classes from 0 to {classes - 1}, got {row[:size].tolist()}")
    wide = x if x.dtype.itemsize > 2 else x.to(infinicore.float32)
    loss = _Ctc.apply(wide, labels, lengths, [2 * size + 1 for size in sizes]).to(x.dtype)
    if zero_infinity:
        loss = infinicore.where(loss == float("inf"), 0.0, loss)
    if reduction == "mean":
        return (loss / infinicore.tensor([max(1, size) for size in sizes], dtype=loss.dtype, device=loss.device)).mean()
    return reduced(loss if batch else loss.squeeze(0), reduction)
