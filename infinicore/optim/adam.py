"""Adam (Kingma and Ba, arXiv 1412.6980), AMSGrad (Reddi et al., ICLR 2018) and AdamW (Loshchilov, arXiv 1711.05101)."""

from ..kernels.blocks.optim import ADAM
from .fused import Fused
from .optimizer import check_betas, check_lr, check_not_negative, check_unsupported


class Adam(Fused):
    """p -= lr * m' / (sqrt(v') + eps), where m and v are running means of g and g^2, and m', v' undo their start at 0.

    `weight_decay` adds weight_decay * p to the gradient, or with `decoupled_weight_decay` takes lr * weight_decay * p
    from the parameter. `amsgrad` divides by the largest v so far. `foreach` and `fused` are PyTorch's and change
    nothing here.
    """

    kernel = "optim.update.adam"

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
        check_lr(lr)
        check_not_negative(eps=eps, weight_decay=weight_decay)
        check_betas(betas)
        check_unsupported(capturable=capturable, differentiable=differentiable)
        defaults = {
            "lr": lr,
            "betas": tuple(map(float, betas)),
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults, master_weights)

    def _slots(self, group):
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq" if group["amsgrad"] else None)

    def _numbers(self, group):
        beta1, beta2 = group["betas"]
        return ADAM(
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            decoupled=1.0 if group["decoupled_weight_decay"] else 0.0,
            amsgrad=1.0 if group["amsgrad"] else 0.0,
            sign=-1.0 if group["maximize"] else 1.0,
        )[0]


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
