"""Adafactor (Shazeer and Stern, arXiv 1804.04235) in PyTorch's form: relative step sizes, no momentum."""

import math

from ..dtype import float32
from ..tensor.tensor import FUNCTIONS as ops
from .optimizer import Optimizer, check_not_negative, options, zeros


class Adafactor(Optimizer):
    """Adam without momentum, whose second moments of matrices are products of a mean per row and one per column.

    With t the step: the moments move by t^beta2_decay towards g^2; the update g / sqrt(moments), with moments of at
    least eps[0]^2, is divided by max(1, RMS(update) / d); the parameter moves by it times max(eps[1], RMS(p)) *
    min(lr, 1 / sqrt(t)), after a decay of lr * weight_decay * p. Moments factor over the last two dims. eps[0] of
    None is the resolution of the parameter's dtype. `foreach` is PyTorch's and changes nothing here.
    """

    takes_grad_scale, takes_complex = True, False

    def __init__(
        self,
        params,
        lr=1e-2,
        beta2_decay=-0.8,
        eps=(None, 1e-3),
        d=1.0,
        weight_decay=0.0,
        *,
        foreach=None,
        maximize=False,
    ):
        check_not_negative(**{"eps[1]": eps[1], "eps[0]": 0.0 if eps[0] is None else eps[0]})
        if not beta2_decay <= 0:
            raise ValueError(f"`beta2_decay` must be at most 0, got {beta2_decay}")
        if not d >= 1:
            raise ValueError(f"`d` must be at least 1, got {d}")
        super().__init__(params, options(locals()))

    def _check_state(self, p, name, value):
        shape = p.shape_
        if name in ("row_var", "col_var"):
            shape = (*shape[:-1], 1) if name == "row_var" else (*shape[:-2], 1, shape[-1])
            if value.shape_ != shape:
                raise ValueError(f"`{name}` in `state_dict` must have shape {shape}, got {value.shape_}")
        else:
            super()._check_state(p, name, value)

    def _step(self):
        factor = self._scale()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(group, p, -factor if group["maximize"] else factor)

    def _start(self, p):
        own = self.state[p]
        if not own:
            own["step"] = zeros((), float32)
            if len(p.shape_) > 1:
                own["row_var"] = zeros((*p.shape_[:-1], 1), p.dtype, device=p.device)
                own["col_var"] = zeros((*p.shape_[:-2], 1, p.shape_[-1]), p.dtype, device=p.device)
            else:
                own["variance"] = zeros(p.shape_, p.dtype, device=p.device)
        return own

    def _update(self, group, p, factor):
        own = self._start(p)
        own["step"].add_(1)
        if not p.numel_:
            return
        step, lr = float(own["step"]), float(group["lr"])
        value, g = _wide(p.detach()), _wide(p.grad.detach())
        if factor != 1.0:
            g = g * factor
        eps1, eps2 = group["eps"]
        eps1 = _resolution(p) if eps1 is None else eps1
        moved = step ** group["beta2_decay"]
        alpha = max(eps2, _rms(value)) * min(lr, 1.0 / math.sqrt(step))
        squared = g * g
        if len(p.shape_) > 1:
            row = _lerp(own["row_var"], squared.mean(-1, keepdim=True), moved)
            column = _lerp(own["col_var"], squared.mean(-2, keepdim=True), moved)
            estimate = (row / ops["maximum"](row.mean(-2, keepdim=True), eps1)) * column
        else:
            estimate = _lerp(own["variance"], squared, moved)
        update = g * ops["maximum"](estimate, eps1 * eps1).rsqrt()
        alpha /= max(1.0, _rms(update) / group["d"])
        p.detach().copy_(value * (1.0 - lr * group["weight_decay"]) - update * alpha)


def _wide(x):
    """`x` in the dtype that is computed in."""
    return x.to(float32) if x.dtype.itemsize == 2 else x


def _rms(x):
    """The root of the mean square, as a number."""
    return ops["multi_norm"]([x]).item() / math.sqrt(x.numel_)


def _resolution(p):
    """The distance from 1 to the next number of a dtype."""
    return {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[p.dtype.name]


def _lerp(state, target, weight):
    """Move a state towards `target`; its new values in the dtype of `target`."""
    wide = _wide(state)
    moved = wide + (target - wide) * weight
    state.copy_(moved)
    return moved
