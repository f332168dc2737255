"""Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011)."""

from ..kernels.blocks.optim import ADAGRAD
from .fused import Fused
from .optimizer import check_not_negative, options


class Adagrad(Fused):
    """p -= lr / (1 + (step - 1) * lr_decay) * g / (sqrt(sum of g^2) + eps).

    `weight_decay` adds weight_decay * p to the gradient. The sums exist from the start, at
    `initial_accumulator_value`. `foreach` and `fused` are PyTorch's and change nothing here.
    """

    kernel = "optim.update.adagrad"
    numbers = ADAGRAD

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
        check_not_negative(lr_decay=lr_decay, initial_accumulator_value=initial_accumulator_value)
        super().__init__(params, options(locals()), master_weights)

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        self._make_states([(group, p) for p in group["params"]])
        self._share_steps(group["params"])

    def _slots(self, group):
        return ("sum", None, None)

    def _initial(self, group, name):
        return float(group["initial_accumulator_value"])
