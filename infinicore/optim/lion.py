"""Lion (Chen et al., arXiv 2302.06675)."""

from ..kernels.blocks.optim import LION
from .fused import Fused
from .optimizer import check_betas, check_lr, check_not_negative


class Lion(Fused):
    """p -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * p), then m = beta2 * m + (1 - beta2) * g."""

    kernel = "optim.update.lion"
    counts = False

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, *, maximize=False, master_weights=False):
        check_lr(lr)
        check_betas(betas)
        check_not_negative(weight_decay=weight_decay)
        betas = tuple(map(float, betas))
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults, master_weights)

    def _slots(self, group):
        return ("exp_avg", None, None)

    def _numbers(self, group):
        beta1, beta2 = group["betas"]
        return LION(
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            sign=-1.0 if group["maximize"] else 1.0,
        )[0]
