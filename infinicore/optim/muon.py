"""Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): momentum whose matrices are made orthogonal."""

import math

from ..dtype import dtype
from ..tensor.tensor import FUNCTIONS as ops
from .optimizer import Optimizer, check_not_negative, options, zeros

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Jordan: the steepest quintic at 0 that stays near 1


def orthogonalize(x, coefficients=COEFFICIENTS, steps=5, eps=1e-7):
    """A matrix with the singular vectors of `x` [M, N] and singular values near 1 (about 0.7 to 1.2), in bfloat16.

    `steps` Newton-Schulz iterations X <- a X + (b A + c A^2) X with A = X X^T, begun at x / max(|x|, eps).
    """
    a, b, c = coefficients
    tall = x.shape_[0] > x.shape_[1]
    x = (x.mT if tall else x).contiguous()
    x = (x * (1.0 / max(ops["multi_norm"]([x]).item(), eps))).to(dtype("bfloat16"))
    for _ in range(steps):
        gram = ops["linear"](x, x)
        polynomial = ops["linear"](gram, gram, alpha=c, residual=gram * b)
        x = ops["linear"](polynomial, x.mT, residual=x * a)
    return x.mT if tall else x


class Muon(Optimizer):
    """For the matrices of hidden layers: p -= lr' * orthogonalize(momentum), after a decay of lr * weight_decay * p.

    The buffer moves by 1 - momentum towards the gradient; with `nesterov` the gradient, moved by `momentum` towards
    the buffer, is taken. lr' is lr * sqrt(max(1, rows / columns)), or with `adjust_lr_fn="match_rms_adamw"` 0.2 * lr *
    sqrt(max(rows, columns)) (Liu et al., arXiv 2502.16982). ValueError for parameters that are no matrices: those,
    embeddings and the output layer belong to AdamW.
    """

    takes_grad_scale = True

    def __init__(
        self,
        params,
        lr=1e-3,
        weight_decay=0.1,
        momentum=0.95,
        nesterov=True,
        ns_coefficients=COEFFICIENTS,
        eps=1e-7,
        ns_steps=5,
        adjust_lr_fn=None,
    ):
        check_not_negative(momentum=momentum)
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"`adjust_lr_fn` must be None, 'original' or 'match_rms_adamw', got {adjust_lr_fn!r}")
        if len(ns_coefficients) != 3:
            raise ValueError(f"`ns_coefficients` must be 3 numbers, got {ns_coefficients}")
        if not 0 <= ns_steps < 100:
            raise ValueError(f"`ns_steps` must be between 0 and 99, got {ns_steps}")
        super().__init__(params, options(locals()))

    def add_param_group(self, param_group):
        """As `Optimizer.add_param_group`; ValueError for parameters that are no matrices."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if len(p.shape_) != 2:
                self.param_groups.pop()
                raise ValueError(f"`params` of Muon must be matrices, got shape {p.shape_}: use AdamW for it")

    def _step(self):
        factor = self._scale()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(group, p, factor)

    def _update(self, group, p, factor):
        own = self.state[p]
        if "momentum_buffer" not in own:
            own["momentum_buffer"] = zeros(p.shape_, p.grad.dtype, device=p.device)
        if not p.numel_:
            return
        g, buffer = p.grad.detach(), own["momentum_buffer"]
        if factor != 1.0:
            g = g * factor
        momentum, lr = group["momentum"], float(group["lr"])
        buffer.copy_(buffer + (g - buffer) * (1.0 - momentum))
        update = g + (buffer - g) * momentum if group["nesterov"] else buffer
        update = orthogonalize(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rows, columns = p.shape_
        if group["adjust_lr_fn"] == "match_rms_adamw":
            adjusted = 0.2 * lr * math.sqrt(max(rows, columns))
        else:
            adjusted = lr * math.sqrt(max(1.0, rows / columns))
        value = p.detach()
        value.copy_(value * (1.0 - lr * group["weight_decay"]) - update.to(value.dtype) * adjusted)
