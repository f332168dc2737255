"""Stochastic gradient descent with momentum (Sutskever et al., ICML 2013), as PyTorch has it."""

from ..kernels.blocks.optim import SGD as SGD_GROUP
from .fused import Fused
from .optimizer import check_not_negative, options


class SGD(Fused):
    """p -= lr * d, where d is the gradient g + weight_decay * p, or with momentum its buffer.

    The buffer is momentum * buffer + (1 - dampening) * d and begins as d; with `nesterov`, d + momentum * buffer is
    taken. `maximize` turns the sign of the gradient. `foreach` and `fused` are PyTorch's and change nothing here.
    """

    kernel = "optim.update.sgd"
    numbers = SGD_GROUP
    counts = False
    starts_fresh = True

    def __init__(
        self,
        params,
        lr=1e-3,
        momentum=0,
        dampening=0,
        weight_decay=0,
        nesterov=False,
        *,
        maximize=False,
        foreach=None,
        differentiable=False,
        fused=None,
        master_weights=False,
    ):
        check_not_negative(momentum=momentum)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                f"`nesterov` needs a `momentum` above 0 and a `dampening` of 0, got {momentum} and {dampening}"
            )
        super().__init__(params, options(locals()), master_weights)

    def _slots(self, group):
        return ("momentum_buffer" if group["momentum"] else None, None, None)
