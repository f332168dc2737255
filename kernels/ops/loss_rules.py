"""Losses that are a scalar rule: what one element adds."""

import numpy as np

from ..lang import scalar_math as m
from ..table.loss import loss


@loss(ref=lambda x, t: (x - t) ** 2)
def mse_loss(input, target):
    """(input - target)^2."""
    d = input - target
    return d * d


@mse_loss.grad("input", "target")
def _(g, input, target):
    return 2.0 * g * (input - target)


@loss(ref=lambda x, t: np.abs(x - t))
def l1_loss(input, target):
    """|input - target|; the gradient is 0 where they are equal."""
    return m.abs(input - target)


@l1_loss.grad("input", "target")
def _(g, input, target):
    return m.where(input > target, g, m.where(input < target, -g, 0.0 * g))


def _smooth_l1(x, t, beta):
    d = np.abs(x - t)
    return np.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta)


@loss(ref=_smooth_l1, domain=(0.1, 4))
def smooth_l1_loss(input, target, beta=1.0):
    """d^2 / (2 beta) where d = |input - target| < beta, else d - beta / 2 (Girshick, arXiv 1504.08083)."""
    d = m.abs(input - target)
    return m.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta)


@smooth_l1_loss.grad("input", "target")
def _(g, input, target, beta):
    d = input - target
    return m.where(m.abs(d) < beta, g * d / beta, m.where(d > 0.0, g, m.where(d < 0.0, -g, 0.0 * g)))


def _huber(x, t, delta):
    d = np.abs(x - t)
    return np.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))


@loss(ref=_huber, domain=(0.1, 4))
def huber_loss(input, target, delta=1.0):
    """d^2 / 2 where d = |input - target| <= delta, else delta (d - delta / 2) (Huber, 1964)."""
    d = m.abs(input - target)
    return m.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))


@huber_loss.grad("input", "target")
def _(g, input, target, delta):
    return g * m.minimum(m.maximum(input - target, -delta), delta)


def _bce(x, t):
    return -(t * np.maximum(np.log(x), -100) + (1 - t) * np.maximum(np.log1p(-x), -100))


@loss(ref=_bce, domain=(0.05, 0.95))
def binary_cross_entropy(input, target):
    """-(target log(input) + (1 - target) log(1 - input)) of probabilities; the logarithms are at least -100."""
    return -(target * m.maximum(m.log(input), -100.0) + (1.0 - target) * m.maximum(m.log1p(-input), -100.0))


@binary_cross_entropy.grad("input")
def _(g, input, target):
    return g * (input - target) / m.maximum(input * (1.0 - input), 1e-12)


@binary_cross_entropy.grad("target")
def _(g, input):
    return g * (m.log1p(-input) - m.log(input))  # which PyTorch does not limit


def _bce_logits(x, t, pos_weight):
    weight = 1 + (pos_weight - 1) * t
    return (1 - t) * x + weight * (np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, 0))


@loss(ref=_bce_logits, domain=(0.05, 2))
def binary_cross_entropy_with_logits(input, target, pos_weight=1.0):
    """binary_cross_entropy of sigmoid(input), where `pos_weight` multiplies the term of `target`."""
    weight = 1.0 + (pos_weight - 1.0) * target
    return (1.0 - target) * input + weight * (m.log1p(m.exp(-m.abs(input))) + m.maximum(-input, 0.0))


@binary_cross_entropy_with_logits.grad("input")
def _(g, input, target, pos_weight):
    return g * ((1.0 + (pos_weight - 1.0) * target) * m.sigmoid(input) - pos_weight * target)


@binary_cross_entropy_with_logits.grad("target")
def _(g, input, pos_weight):
    return g * ((pos_weight - 1.0) * (m.log1p(m.exp(-m.abs(input))) + m.maximum(-input, 0.0)) - input)


@loss(ref=lambda x, t: np.where(t == 0, 0, t * np.log(t)) - t * x, domain=(0.05, 2), step=True)
def kl_divergence(input, target):
    """target (log(target) - input): `input` holds logarithms, `target` probabilities; 0 log 0 is 0, of less NaN."""
    return m.where(target == 0.0, -target * input, target * (m.log(target) - input))


@kl_divergence.grad("input")
def _(g, target):
    return -g * target


@kl_divergence.grad("target")
def _(g, input, target):
    return g * (m.log(target) + target / target - input)  # NaN at 0, as PyTorch has it


@loss(ref=lambda x, t: np.exp(t) * (t - x), domain=(-3, 1), step=True)
def kl_divergence_log(input, target):
    """exp(target) (target - input): both hold logarithms."""
    return m.exp(target) * (target - input)


@kl_divergence_log.grad("input")
def _(g, target):
    return -g * m.exp(target)


@kl_divergence_log.grad("target")
def _(g, input, target):
    return g * m.exp(target) * (target - input + 1.0)
