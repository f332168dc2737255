"""Adamax, RAdam, Adadelta and Rprop: elementwise rules whose step size adapts."""

from ..kernels.blocks.optim import ADADELTA, ADAMAX, RADAM, RPROP
from .fused import Fused
from .optimizer import check_betas, check_lr, check_not_negative, check_unsupported


def _sign(group):
    return -1.0 if group["maximize"] else 1.0


class Adamax(Fused):
    """p -= lr / (1 - beta1^t) * m / u, m the running mean of g and u = max(beta2 u, |g| + eps).

    Kingma and Ba, arXiv 1412.6980. `weight_decay` adds weight_decay * p to the gradient. `foreach` is PyTorch's and
    changes nothing here.
    """

    kernel = "optim.adaptive.adamax"

    def __init__(
        self,
        params,
        lr=2e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        foreach=None,
        *,
        maximize=False,
        differentiable=False,
        capturable=False,
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
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults, master_weights)

    def _slots(self, group):
        return ("exp_avg", "exp_inf", None)

    def _numbers(self, group):
        beta1, beta2 = group["betas"]
        decay, eps = group["weight_decay"], group["eps"]
        return ADAMAX(lr=float(group["lr"]), beta1=beta1, beta2=beta2, eps=eps, weight_decay=decay, sign=_sign(group))[
            0
        ]


class RAdam(Fused):
    """Adam whose first steps are those of momentum alone, until the variance can be told (Liu, arXiv 1908.03265).

    `weight_decay` adds weight_decay * p to the gradient, or with `decoupled_weight_decay` takes lr * weight_decay * p
    from the parameter. `foreach` is PyTorch's and changes nothing here.
    """

    kernel = "optim.adaptive.radam"

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        decoupled_weight_decay=False,
        *,
        foreach=None,
        maximize=False,
        capturable=False,
        differentiable=False,
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
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "decoupled_weight_decay": decoupled_weight_decay,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults, master_weights)

    def _slots(self, group):
        return ("exp_avg", "exp_avg_sq", None)

    def _numbers(self, group):
        beta1, beta2 = group["betas"]
        return RADAM(
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            decoupled=1.0 if group["decoupled_weight_decay"] else 0.0,
            sign=_sign(group),
        )[0]


class Adadelta(Fused):
    """p -= lr * d, d = g sqrt(a + eps) / sqrt(v + eps), v and a the running means of g^2 and d^2.

    Zeiler, arXiv 1212.5701. `weight_decay` adds weight_decay * p to the gradient. `foreach` is PyTorch's and changes
    nothing here.
    """

    kernel = "optim.adaptive.adadelta"

    def __init__(
        self,
        params,
        lr=1.0,
        rho=0.9,
        eps=1e-6,
        weight_decay=0,
        foreach=None,
        *,
        capturable=False,
        maximize=False,
        differentiable=False,
        master_weights=False,
    ):
        check_lr(lr)
        check_not_negative(eps=eps, weight_decay=weight_decay)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"`rho` must be from 0 to 1, got {rho}")
        check_unsupported(capturable=capturable, differentiable=differentiable)
        defaults = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "capturable": capturable,
            "foreach": foreach,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults, master_weights)

    def _slots(self, group):
        return ("square_avg", "acc_delta", None)

    def _numbers(self, group):
        decay, eps = group["weight_decay"], group["eps"]
        return ADADELTA(lr=float(group["lr"]), rho=group["rho"], eps=eps, weight_decay=decay, sign=_sign(group))[0]


class Rprop(Fused):
    """p -= sign(g) * s, where s grows by `etas[1]` while g keeps its sign, and shrinks by `etas[0]` where it changes.

    s is within `step_sizes` (Riedmiller and Braun, 1993). `foreach` is PyTorch's and changes nothing here.
    """

    kernel = "optim.adaptive.rprop"

    def __init__(
        self,
        params,
        lr=1e-2,
        etas=(0.5, 1.2),
        step_sizes=(1e-6, 50),
        *,
        capturable=False,
        foreach=None,
        maximize=False,
        differentiable=False,
        master_weights=False,
    ):
        check_lr(lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"`etas` must be a number between 0 and 1 and one above 1, got {etas}")
        check_unsupported(capturable=capturable, differentiable=differentiable)
        defaults = {
            "lr": lr,
            "etas": etas,
            "step_sizes": step_sizes,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults, master_weights)

    def _slots(self, group):
        return ("prev", "step_size", None)

    def _initial(self, group, name):
        return float(group["lr"]) if name == "step_size" else 0.0

    def _numbers(self, group):
        (less, more), (least, most) = group["etas"], group["step_sizes"]
        return RPROP(less=less, more=more, least=least, most=most, sign=_sign(group))[0]
