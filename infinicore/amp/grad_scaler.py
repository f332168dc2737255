"""Loss scaling: keeps small gradients of float16 from becoming zero (Micikevicius et al., arXiv 1710.03740)."""

import math

import numpy as np

from ..tensor.tensor import FUNCTIONS, Tensor
from .autocast import lacks


class _Progress:
    """What was done with an optimizer since the last `update`."""

    def __init__(self):
        self.unscaled = self.stepped = False
        self.found_inf = None


class GradScaler:
    """Multiplies the loss by a factor that grows while gradients stay finite, and shrinks when they do not.

        scaler.scale(loss).backward()
        scaler.step(optimizer)      # divides the gradients; leaves the step out if one is infinite or NaN
        scaler.update()

    The factor begins at `init_scale`, is multiplied by `growth_factor` after `growth_interval` steps in a row with
    finite gradients, and by `backoff_factor` after one without. With `enabled=False` all methods pass through; for
    "cuda" without a GPU it is disabled, with a warning.
    """

    def __init__(
        self,
        device="cpu",
        init_scale=2.0**16,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        enabled=True,
    ):
        enabled = enabled and not lacks(device, "GradScaler")
        if growth_factor <= 1.0:
            raise ValueError(f"`growth_factor` must be above 1, got {growth_factor}")
        if not 0.0 < backoff_factor < 1.0:
            raise ValueError(f"`backoff_factor` must be between 0 and 1, got {backoff_factor}")
        if growth_interval < 1:
            raise ValueError(f"`growth_interval` must be at least 1, got {growth_interval}")
        self._enabled = enabled
        self._scale, self._growth_tracker = float(init_scale), 0
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval = growth_interval
        self._progress = {}  # id of an optimizer -> (it, its progress)

    def _of(self, optimizer):
        return self._progress.setdefault(id(optimizer), (optimizer, _Progress()))[1]

    def scale(self, outputs):
        """A tensor, or every tensor of nested lists and tuples, times the factor."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        if isinstance(outputs, (list, tuple)):
            return type(outputs)([self.scale(x) for x in outputs])
        raise TypeError(f"`outputs` must be a tensor or a list of tensors, got {type(outputs).__name__}")

    def unscale_(self, optimizer):
        """Divide the gradients of an optimizer's parameters by the factor, for what looks at them before the step.

        Clipping, for example. Once between updates, before `step`; not for float16 gradients, which would become zero.
        """
        if not self._enabled:
            return
        progress = self._of(optimizer)
        if progress.unscaled or progress.stepped:
            done = "step()" if progress.stepped else "unscale_()"
            raise RuntimeError(f"`unscale_` was called after {done} of this optimizer: call `update()` before")
        gradients = _gradients(optimizer)
        for g in gradients:
            if g.dtype.name == "float16":
                raise ValueError(
                    "`unscale_` of float16 gradients would make small ones zero: keep parameters in float32 "
                    "(autocast), or let `step` unscale"
                )
        self._unscale(progress, gradients)

    def _unscale(self, progress, gradients):
        inverse = float(np.float32(1.0 / self._scale))
        progress.found_inf = FUNCTIONS["multi_scale"](gradients, inverse).item()
        progress.unscaled = True

    def agree(self, optimizer, most):
        """After `unscale_`: tell all ranks whether one has found an infinite gradient; `most` is their maximum."""
        progress = self._of(optimizer)
        progress.found_inf = bool(most(float(progress.found_inf)))

    def step(self, optimizer, *args, **kwargs):
        """`optimizer.step(*args, **kwargs)` with unscaled gradients, left out if one of them is infinite or NaN.

        Returns what the step returns, or None. Optimizers of this package divide gradients on the way, so those in
        `.grad` stay scaled unless `unscale_` was called.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if args or "closure" in kwargs:
            raise NotImplementedError("`step` with a closure is not supported: a step might need several scales")
        progress = self._of(optimizer)
        if progress.stepped:
            raise RuntimeError("`step` was called twice since the last `update()`: call `update()` after each step")
        scale = None
        if not progress.unscaled:
            gradients = _gradients(optimizer)
            if not gradients:
                raise ValueError("`optimizer` has no gradients: call `scaler.scale(loss).backward()` before `step`")
            if getattr(optimizer, "takes_grad_scale", False):
                largest = FUNCTIONS["multi_norm"](gradients, math.inf).item()
                progress.found_inf, scale = not math.isfinite(largest), self._scale
            else:
                self._unscale(progress, gradients)
        progress.stepped = True
        if progress.found_inf:
            return None
        optimizer.grad_scale = scale
        try:
            return optimizer.step(**kwargs)
        finally:
            optimizer.grad_scale = None

    def update(self, new_scale=None):
        """Set the factor of the next iteration: from what `step` found, or `new_scale`."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        else:
            found = [p.found_inf for _, p in self._progress.values() if p.found_inf is not None]
            if not found:
                raise RuntimeError("`update` needs a `step` or an `unscale_` before it, which look at the gradients")
            if any(found):
                self._scale = float(np.float32(self._scale * self._backoff_factor))
                self._growth_tracker = 0
            else:
                self._growth_tracker += 1
                if self._growth_tracker == self._growth_interval:
                    with np.errstate(over="ignore"):
                        grown = float(np.float32(self._scale * self._growth_factor))
                    self._scale = grown if math.isfinite(grown) else self._scale
                    self._growth_tracker = 0
        self._progress.clear()

    def is_enabled(self):
        """Whether this scaler does anything."""
        return self._enabled

    def get_scale(self):
        """The factor; 1.0 if disabled."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self):
        """What the factor grows by."""
        return self._growth_factor

    def set_growth_factor(self, new_factor):
        """Change what the factor grows by."""
        self._growth_factor = new_factor

    def get_backoff_factor(self):
        """What the factor shrinks by."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor):
        """Change what the factor shrinks by."""
        self._backoff_factor = new_factor

    def get_growth_interval(self):
        """After how many good steps the factor grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval):
        """Change after how many good steps the factor grows."""
        self._growth_interval = new_interval

    def state_dict(self):
        """{"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}; empty if disabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict):
        """Take over what `state_dict` returned. ValueError for the empty one of a disabled scaler."""
        if not self._enabled:
            return
        if not state_dict:
            raise ValueError("`state_dict` is empty: it was saved by a GradScaler with `enabled=False`")
        self._scale, self._growth_tracker = float(state_dict["scale"]), state_dict["_growth_tracker"]
        self._growth_factor, self._backoff_factor = state_dict["growth_factor"], state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]


def _gradients(optimizer):
    return [p.grad.detach() for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
