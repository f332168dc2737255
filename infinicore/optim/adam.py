"""Adam (Kingma and Ba, arXiv 1412.6980), AMSGrad (Reddi et al., ICLR 2018) and AdamW (Loshchilov, arXiv 1711.05101)."""

from ..kernels.blocks.optim import ADAM
from .fused import Fused
from .optimizer import options


class Adam(Fused):
    """p -= lr * m' / (sqrt(v') + eps), where m and v are running means of g and g^2, and m', v' undo their start at 0.

    `weight_decay` adds weight_decay * p to the gradient, or with `decoupled_weight_decay` takes lr * weight_decay * p
    from the parameter. `amsgrad` divides by the largest v so far. `foreach` and `fused` are PyTorch's and change
    nothing here.
    """

    kernel = "optim.update.adam"
    numbers = ADAM

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        amsgrad=False,
        *,
        foreach=None,
        maximize=False,
        capturable=False,
        differentiable=False,
        fused=None,
        decoupled_weight_decay=False,
        master_weights=False,
    ):
        super().__init__(params, options(locals()), master_weights)

    def _slots(self, group):
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq" if group["amsgrad"] else None)


class AdamW(Adam):
    """Adam whose weight decay is decoupled: lr * weight_decay * p is taken from the parameter, not put into g."""

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=1e-2,
        amsgrad=False,
        *,
        maximize=False,
        foreach=None,
        capturable=False,
        differentiable=False,
        fused=None,
        master_weights=False,
    ):
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
            master_weights=master_weights,
        )

    def _changed(self):
        super()._changed()
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True  # whatever a loaded state says
