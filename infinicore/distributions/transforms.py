"""Functions of random numbers that can be undone."""

import math

import infinicore

from . import constraints
from .distribution import broadcast_all


class Transform:
    """A function that rises or falls everywhere, with its inverse and the logarithm of its slope."""

    bijective, codomain = True, constraints.real

    def __call__(self, x):
        raise NotImplementedError(f"{type(self).__name__} has no `__call__`")

    def inv(self, y):
        """The x whose value is y."""
        raise NotImplementedError(f"{type(self).__name__} has no `inv`")

    def log_abs_det_jacobian(self, x, y):
        """log |dy / dx|."""
        raise NotImplementedError(f"{type(self).__name__} has no `log_abs_det_jacobian`")

    sign = 1


class ExpTransform(Transform):
    """exp(x)."""

    codomain = constraints.positive

    def __call__(self, x):
        return x.exp()

    def inv(self, y):
        return y.log()

    def log_abs_det_jacobian(self, x, y):
        return x


class SigmoidTransform(Transform):
    """1 / (1 + exp(-x))."""

    codomain = constraints.unit_interval

    def __call__(self, x):
        tiny, eps = (getattr(infinicore.finfo(x.dtype), name) for name in ("tiny", "eps"))
        return infinicore.sigmoid(x).clamp(tiny, 1 - eps)

    def inv(self, y):
        tiny, eps = (getattr(infinicore.finfo(y.dtype), name) for name in ("tiny", "eps"))
        y = y.clamp(tiny, 1 - eps)
        return y.log() - infinicore.log1p(-y)

    def log_abs_det_jacobian(self, x, y):
        return infinicore.logsigmoid(x) + infinicore.logsigmoid(-x)


class TanhTransform(Transform):
    """tanh(x); to take log-probabilities of draws, let `TransformedDistribution(..., cache_size=1)` keep x."""

    codomain = constraints.interval(-1.0, 1.0)

    def __init__(self, cache_size=0):
        self._kept = None if cache_size == 0 else ()

    def __call__(self, x):
        y = infinicore.tanh(x)
        if self._kept is not None:
            self._kept = (x, y)
        return y

    def inv(self, y):
        if self._kept and self._kept[1] is y:
            return self._kept[0]
        return infinicore.atanh(y)

    def log_abs_det_jacobian(self, x, y):
        # log(1 - tanh(x)^2), of which nothing cancels
        return 2.0 * (math.log(2.0) - x + infinicore.logsigmoid(2.0 * x))


class AffineTransform(Transform):
    """loc + scale x."""

    def __init__(self, loc, scale):
        self.loc, self.scale = loc, scale

    @property
    def sign(self):
        """Whether it rises, or falls."""
        return self.scale.sign() if hasattr(self.scale, "sign") else math.copysign(1, self.scale)

    def __call__(self, x):
        return self.loc + self.scale * x

    def inv(self, y):
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x, y):
        (scale, _) = broadcast_all(self.scale, x)
        return scale.abs().log()
