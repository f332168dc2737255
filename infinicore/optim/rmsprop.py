"""RMSprop (Hinton's lecture 6 of 2012; centered: Graves, arXiv 1308.0850), with eps outside of the root."""

from ..kernels.blocks.optim import RMSPROP
from .fused import Fused
from .optimizer import check_not_negative, options


class RMSprop(Fused):
    """p -= lr * g / (sqrt(v) + eps), where v is the running mean of g^2 with decay `alpha`.

    `centered` takes the square of the running mean of g from v. With `momentum`, p -= lr * buffer, where the buffer is
    momentum * buffer + g / (sqrt(v) + eps). `weight_decay` adds weight_decay * p to the gradient. `foreach` is
    PyTorch's and changes nothing here.
    """

    kernel = "optim.update.rmsprop"
    numbers = RMSPROP

    def __init__(
        self,
        params,
        lr=1e-2,
        alpha=0.99,
        eps=1e-8,
        weight_decay=0,
        momentum=0,
        centered=False,
        capturable=False,
        foreach=None,
        maximize=False,
        differentiable=False,
        *,
        master_weights=False,
    ):
        check_not_negative(momentum=momentum, alpha=alpha)
        super().__init__(params, options(locals()), master_weights)

    def _slots(self, group):
        buffer = "momentum_buffer" if group["momentum"] > 0 else None
        return ("square_avg", buffer, "grad_avg" if group["centered"] else None)
