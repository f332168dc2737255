"""NAdam and ASGD, whose steps also depend on numbers that each parameter keeps."""

import numpy as np

from ..dtype import float32
from .optimizer import Optimizer, check_not_negative, options, real_pairs, zeros


def _wide(x):
    """`x` in the dtype that is computed in."""
    return x.to(float32) if x.dtype.itemsize == 2 else x


class _Counting(Optimizer):
    """Steps of one parameter after the other; `numbers` are its states that are 0-dim float32, and their start."""

    takes_grad_scale = True
    numbers, tensors = (), ()

    def _check_state(self, p, name, value):
        if name not in self.numbers:
            super()._check_state(p, name, value)
        elif value.shape_:
            raise ValueError(f"`{name}` in `state_dict` must be a number, got shape {value.shape_}")

    def _state(self, group, p):
        own = self.state[p]
        if not own:
            own["step"] = zeros((), float32)
            for name in self.numbers:
                own[name] = zeros((), float32, float(group["lr"]) if name == "eta" else 1.0)
            for name in self.tensors:
                own[name] = zeros(p.shape_, p.dtype, device=p.device)
        return own

    def _step(self):
        factor = self._scale()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    own = self._state(group, p)
                    own["step"].fill_(own["step"].item() + 1.0)
                    scale = -factor if group["maximize"] else factor
                    g = _wide(real_pairs(p.grad.detach()))
                    pairs = own | {name: real_pairs(own[name]) for name in self.tensors}
                    self._update(group, real_pairs(p.detach()), g if scale == 1.0 else g * scale, pairs)


class NAdam(_Counting):
    """Adam with Nesterov's momentum (Dozat, 2016), whose weight approaches beta1 as `momentum_decay` says.

    `weight_decay` adds weight_decay * p to the gradient, or with `decoupled_weight_decay` takes lr * weight_decay * p
    from the parameter. `foreach` is PyTorch's and changes nothing here.
    """

    numbers, tensors = ("mu_product",), ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params,
        lr=2e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        momentum_decay=4e-3,
        decoupled_weight_decay=False,
        *,
        foreach=None,
        maximize=False,
        capturable=False,
        differentiable=False,
    ):
        check_not_negative(momentum_decay=momentum_decay)
        super().__init__(params, options(locals()))

    def _update(self, group, p, g, own):
        (beta1, beta2), lr, decay = group["betas"], float(group["lr"]), group["weight_decay"]
        step, value = own["step"].item(), _wide(p)
        if decay:
            if group["decoupled_weight_decay"]:
                value = value * (1.0 - lr * decay)
            else:
                g = g + value * decay
        now, after = (beta1 * (1.0 - 0.5 * 0.96 ** (t * group["momentum_decay"])) for t in (step, step + 1.0))
        number = np.float64 if own["mu_product"].dtype.itemsize == 8 else np.float32  # PyTorch's, unless it was loaded
        product = float(number(own["mu_product"].item()) * number(now))
        own["mu_product"].fill_(product)
        mean, square = _wide(own["exp_avg"]), _wide(own["exp_avg_sq"])
        mean = mean + (g - mean) * (1.0 - beta1)
        square = square * beta2 + g * g * (1.0 - beta2)
        own["exp_avg"].copy_(mean)
        own["exp_avg_sq"].copy_(square)
        size = (square / (1.0 - beta2**step)).sqrt() + group["eps"]
        way = g * (lr * (1.0 - now) / (1.0 - product)) + mean * (lr * after / (1.0 - product * after))
        p.copy_(value - way / size)


class ASGD(_Counting):
    """SGD with rate lr / (1 + lambd lr t)^alpha; `ax` in its state is the mean of the parameters since step `t0`.

    Polyak and Juditsky, 1992. `lambd` decays the parameters, `weight_decay` adds weight_decay * p to the gradient.
    `foreach` is PyTorch's and changes nothing here.
    """

    numbers, tensors = ("eta", "mu"), ("ax",)

    def __init__(
        self,
        params,
        lr=1e-2,
        lambd=1e-4,
        alpha=0.75,
        t0=1e6,
        weight_decay=0,
        foreach=None,
        maximize=False,
        differentiable=False,
        capturable=False,
    ):
        super().__init__(params, options(locals()))

    def _update(self, group, p, g, own):
        lr, lambd, eta, mu = float(group["lr"]), group["lambd"], own["eta"].item(), own["mu"].item()
        step, value = own["step"].item(), _wide(p)
        if group["weight_decay"]:
            g = g + value * group["weight_decay"]
        value = value * (1.0 - lambd * eta) - g * eta
        p.copy_(value)
        mean = _wide(own["ax"])
        own["ax"].copy_(value if mu == 1.0 else mean + (value - mean) * mu)
        for name, number in (
            ("eta", lr / (1.0 + lambd * lr * step) ** group["alpha"]),
            ("mu", 1.0 / max(1.0, step - group["t0"])),
        ):
            own[name].fill_(float(np.float32(number)))  # in PyTorch they are float32, also of float64 parameters
