"""Adamax, RAdam, Adadelta and Rprop: elementwise rules whose step size adapts."""

from ..kernels.blocks.optim import ADADELTA, ADAMAX, RADAM, RPROP
from .fused import Fused
from .optimizer import options


class Adamax(Fused):
    """p -= lr / (1 - beta1^t) * m / u, m the running mean of g and u = max(beta2 u, |g| + eps).

    Kingma and Ba, arXiv 1412.6980. `weight_decay` adds weight_decay * p to the gradient. `foreach` is PyTorch's and
    changes nothing here.
    """

    kernel = "optim.adaptive.adamax"
    numbers = ADAMAX

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
        super().__init__(params, options(locals()), master_weights)

    def _slots(self, group):
        return ("exp_avg", "exp_inf", None)


class RAdam(Fused):
    """Adam whose first steps are those of momentum alone, until the variance can be told (Liu, arXiv 1908.03265).

    `weight_decay` adds weight_decay * p to the gradient, or with `decoupled_weight_decay` takes lr * weight_decay * p
    from the parameter. `foreach` is PyTorch's and changes nothing here.
    """

    kernel = "optim.adaptive.radam"
    numbers = RADAM

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
        super().__init__(params, options(locals()), master_weights)

    def _slots(self, group):
        return ("exp_avg", "exp_avg_sq", None)


class Adadelta(Fused):
    """p -= lr * d, d = g sqrt(a + eps) / sqrt(v + eps), v and a the running means of g^2 and d^2.

    Zeiler, arXiv 1212.5701. `weight_decay` adds weight_decay * p to the gradient. `foreach` is PyTorch's and changes
    nothing here.
    """

    kernel = "optim.adaptive.adadelta"
    numbers = ADADELTA

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
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"`rho` must be from 0 to 1, got {rho}")
        super().__init__(params, options(locals()), master_weights)

    def _slots(self, group):
        return ("square_avg", "acc_delta", None)


class Rprop(Fused):
    """p -= sign(g) * s, where s grows by `etas[1]` while g keeps its sign, and shrinks by `etas[0]` where it changes.

    s is within `step_sizes` (Riedmiller and Braun, 1993). `foreach` is PyTorch's and changes nothing here.
    """

    kernel = "optim.adaptive.rprop"
    numbers = RPROP

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
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"`etas` must be a number between 0 and 1 and one above 1, got {etas}")
        super().__init__(params, options(locals()), master_weights)

    def _slots(self, group):
        return ("prev", "step_size", None)

    def _initial(self, group, name):
        return float(group["lr"]) if name == "step_size" else 0.0
