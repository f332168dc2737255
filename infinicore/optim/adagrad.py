"""Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011)."""

from ..kernels.blocks.optim import ADAGRAD
from .fused import Fused
from .optimizer import check_lr, check_not_negative, check_unsupported


class Adagrad(Fused):
    """p -= lr / (1 + (step - 1) * lr_decay) * g / (sqrt(sum of g^2) + eps).

    `weight_decay` adds weight_decay * p to the gradient. The sums exist from the start, at
    `initial_accumulator_value`. `foreach` and `fused` are PyTorch's and change nothing here.
    """

    kernel = "optim.update.adagrad"

    def __init__(
        self,
        params,
        lr=1e-2,
        lr_decay=0,
        weight_decay=0,
        initial_accumulator_value=0,
        eps=1e-10,
        foreach=None,
        *,
        maximize=False,
        differentiable=False,
        fused=None,
        master_weights=False,
    ):
        check_lr(lr)
        check_not_negative(
            lr_decay=lr_decay, weight_decay=weight_decay, initial_accumulator_value=initial_accumulator_value, eps=eps
        )
        check_unsupported(differentiable=differentiable)
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults, master_weights)

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        self._make_states([(group, p) for p in group["params"]])
        self._share_steps(group["params"])

    def _slots(self, group):
        return ("sum", None, None)

    def _initial(self, group, name):
        return float(group["initial_accumulator_value"])

    def _numbers(self, group):
        return ADAGRAD(
            lr=float(group["lr"]),
            lr_decay=group["lr_decay"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            sign=-1.0 if group["maximize"] else 1.0,
        )[0]
