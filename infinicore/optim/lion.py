"""Lion (Chen et al., arXiv 2302.06675)."""

from ..kernels.blocks.optim import LION
from .fused import Fused
from .optimizer import options


class Lion(Fused):
    """p -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * p), then m = beta2 * m + (1 - beta2) * g."""

    kernel = "optim.update.lion"
    numbers = LION
    counts = False

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, *, maximize=False, master_weights=False):
        super().__init__(params, options(locals()), master_weights)

    def _slots(self, group):
        return ("exp_avg", None, None)
