"""Distributions of functions of random numbers, and mixtures."""

import infinicore

from . import constraints
from .continuous import Normal
from .distribution import Distribution
from .transforms import ExpTransform, Transform


class TransformedDistribution(Distribution):
    """`transforms`, one after the other, of draws of `base_distribution`."""

    def __init__(self, base_distribution, transforms, validate_args=None):
        self.base_dist = base_distribution
        self.transforms = list(transforms) if isinstance(transforms, (list, tuple)) else [transforms]
        for t in self.transforms:
            if not isinstance(t, Transform):
                raise TypeError(f"`transforms` must be one or several Transforms, got {type(t).__name__}")
        super().__init__(base_distribution.batch_shape, base_distribution.event_shape, validate_args)

    @property
    def has_rsample(self):
        """Whether the base has."""
        return self.base_dist.has_rsample

    @property
    def support(self):
        """What the last transform gives."""
        last = self.transforms[-1].codomain if self.transforms else self.base_dist.support
        return constraints.independent(last, len(self._event_shape)) if self.transforms else last

    def expand(self, batch_shape):
        return TransformedDistribution(self.base_dist.expand(batch_shape), self.transforms, validate_args=False)

    def _through(self, x):
        for t in self.transforms:
            x = t(x)
        return x

    def sample(self, sample_shape=()):
        with infinicore.no_grad():
            return self._through(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape=()):
        return self._through(self.base_dist.rsample(sample_shape))

    def log_prob(self, value):
        self._check(value)
        total, y = 0.0, value
        for t in reversed(self.transforms):
            x = t.inv(y)
            slope = t.log_abs_det_jacobian(x, y)
            for _ in self._event_shape:
                slope = slope.sum(-1)
            total, y = total - slope, x
        return self.base_dist.log_prob(y) + total

    def cdf(self, value):
        sign, y = 1, value
        for t in reversed(self.transforms):
            sign, y = sign * t.sign, t.inv(y)
        below = self.base_dist.cdf(y)
        return sign * (below - 0.5) + 0.5

    def icdf(self, value):
        sign = 1
        for t in self.transforms:
            sign = sign * t.sign
        return self._through(self.base_dist.icdf(sign * (value - 0.5) + 0.5))

    def __repr__(self):
        return f"{type(self).__name__}({self.base_dist}, {[type(t).__name__ for t in self.transforms]})"


class LogNormal(TransformedDistribution):
    """exp of a normal number with mean `loc` and standard deviation `scale`."""

    arg_constraints = Normal.arg_constraints

    def __init__(self, loc, scale, validate_args=None):
        super().__init__(Normal(loc, scale, validate_args), ExpTransform(), validate_args)

    def expand(self, batch_shape):
        own = self.base_dist.expand(batch_shape)
        return LogNormal(own.loc, own.scale, validate_args=False)

    @property
    def loc(self):
        """The mean of the logarithm."""
        return self.base_dist.loc

    @property
    def scale(self):
        """The standard deviation of the logarithm."""
        return self.base_dist.scale

    @property
    def mean(self):
        """exp(loc + scale^2 / 2)."""
        return (self.loc + 0.5 * self.scale.square()).exp()

    @property
    def mode(self):
        """exp(loc - scale^2)."""
        return (self.loc - self.scale.square()).exp()

    @property
    def variance(self):
        """(exp(scale^2) - 1) exp(2 loc + scale^2)."""
        square = self.scale.square()
        return infinicore.expm1(square) * (2 * self.loc + square).exp()

    def entropy(self):
        return self.base_dist.entropy() + self.loc


class MixtureSameFamily(Distribution):
    """One of the last batch dim of `component_distribution`, chosen by a `Categorical`."""

    def __init__(self, mixture_distribution, component_distribution, validate_args=None):
        mixture, parts = mixture_distribution, component_distribution
        if not parts.batch_shape or parts.batch_shape[-1] != mixture._num_events:
            raise ValueError(
                f"`component_distribution` must have the {mixture._num_events} classes of `mixture_distribution` as "
                f"its last batch dim, got {tuple(parts.batch_shape)}"
            )
        self.mixture_distribution, self.component_distribution = mixture, parts
        super().__init__(parts.batch_shape[:-1], parts.event_shape, validate_args)

    @property
    def support(self):
        """That of the components."""
        return self.component_distribution.support

    def _of(self, x):
        """The probabilities beside something of each component."""
        p = self.mixture_distribution.probs
        return p.reshape(*p.shape, *(1,) * (x.ndim - p.ndim)) if x.ndim > p.ndim else p

    def sample(self, sample_shape=()):
        with infinicore.no_grad():
            drawn = self.component_distribution.sample(sample_shape)
            at, dims = self.mixture_distribution.expand(self._batch_shape).sample(sample_shape), len(self._event_shape)
            index = at.reshape(*at.shape, 1, *(1,) * dims).expand(*at.shape, 1, *self._event_shape)
            return drawn.gather(at.ndim, index).squeeze(at.ndim)

    def log_prob(self, value):
        self._check(value)
        at = value.ndim - len(self._event_shape)
        each = self.component_distribution.log_prob(value.unsqueeze(at))
        return (each + self.mixture_distribution.logits).logsumexp(-1)

    def cdf(self, value):
        return (self.component_distribution.cdf(value.unsqueeze(-1)) * self.mixture_distribution.probs).sum(-1)

    @property
    def mean(self):
        """The mean of the components' means."""
        each = self.component_distribution.mean
        return (self._of(each) * each).sum(-1 - len(self._event_shape))

    @property
    def variance(self):
        """The mean of the variances, and the variance of the means."""
        each, dim = self.component_distribution, -1 - len(self._event_shape)
        apart = (each.mean - self.mean.unsqueeze(dim)).square()
        return (self._of(apart) * (each.variance + apart)).sum(dim)
