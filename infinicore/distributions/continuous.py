"""Distributions of real numbers with a location, or a rate."""

import math

import infinicore

from . import constraints
from .distribution import Distribution, broadcast_all

_LOG_2PI = math.log(2 * math.pi)
EULER = 0.5772156649015329


class _LocScale(Distribution):
    """loc + scale * a draw of a standard distribution."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support, has_rsample, names = constraints.real, True, ("loc", "scale")

    def __init__(self, loc, scale, validate_args=None):
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)

    def rsample(self, sample_shape=()):
        return self.loc + self.scale * self._standard(self._shape(sample_shape))

    def _standard(self, shape):
        """Draws of the distribution with location 0 and scale 1, here by its `icdf`."""
        u = infinicore.rand(shape, dtype=self.loc.dtype, device=self.loc.device)
        edge = infinicore.finfo(u.dtype).eps / 2  # away from 0 and 1, whose quantiles may be infinite
        return self._quantile(u.clamp(edge, 1 - edge))

    def icdf(self, value):
        return self.loc + self.scale * self._quantile(value)

    def _z(self, value):
        self._check(value)
        return (value - self.loc) / self.scale

    @property
    def mean(self):
        """`loc`."""
        return self.loc

    @property
    def mode(self):
        """`loc`."""
        return self.loc


class Normal(_LocScale):
    """The normal distribution with mean `loc` and standard deviation `scale`."""

    def _standard(self, shape):
        return infinicore.randn(shape, dtype=self.loc.dtype, device=self.loc.device)

    def _quantile(self, p):
        return math.sqrt(2) * infinicore.erfinv(2 * p - 1)

    def log_prob(self, value):
        return -0.5 * self._z(value).square() - self.scale.log() - 0.5 * _LOG_2PI

    def cdf(self, value):
        return 0.5 * infinicore.erfc(self._z(value) * -math.sqrt(0.5))

    def entropy(self):
        return 0.5 + 0.5 * _LOG_2PI + self.scale.log()

    @property
    def stddev(self):
        """`scale`."""
        return self.scale

    @property
    def variance(self):
        """scale^2."""
        return self.scale.square()


class Laplace(_LocScale):
    """exp(-|x - loc| / scale) / (2 scale)."""

    def _quantile(self, p):
        t = p - 0.5
        return -t.sign() * infinicore.log1p(-2 * t.abs())

    def log_prob(self, value):
        return -self._z(value).abs() - (2 * self.scale).log()

    def cdf(self, value):
        z = self._z(value)
        return 0.5 - 0.5 * z.sign() * infinicore.expm1(-z.abs())

    def entropy(self):
        return 1 + (2 * self.scale).log()

    @property
    def variance(self):
        """2 scale^2."""
        return 2 * self.scale.square()


class Cauchy(_LocScale):
    """1 / (pi scale (1 + ((x - loc) / scale)^2)), whose mean and variance do not exist."""

    def _quantile(self, p):
        return infinicore.tan(math.pi * (p - 0.5))

    def log_prob(self, value):
        return -math.log(math.pi) - self.scale.log() - infinicore.log1p(self._z(value).square())

    def cdf(self, value):
        return infinicore.atan(self._z(value)) / math.pi + 0.5

    def entropy(self):
        return math.log(4 * math.pi) + self.scale.log()

    @property
    def mean(self):
        """NaN."""
        return infinicore.full_like(self.loc, math.nan)

    @property
    def variance(self):
        """Infinite."""
        return infinicore.full_like(self.loc, math.inf)


class Gumbel(_LocScale):
    """The distribution of the largest of many draws: cdf exp(-exp(-(x - loc) / scale))."""

    def _quantile(self, p):
        return -(-p.log()).log()

    def log_prob(self, value):
        z = self._z(value)
        return -z - (-z).exp() - self.scale.log()

    def cdf(self, value):
        return (-(-self._z(value)).exp()).exp()

    def entropy(self):
        return self.scale.log() + (1 + EULER)

    @property
    def mean(self):
        """loc + 0.5772 scale."""
        return self.loc + self.scale * EULER

    @property
    def variance(self):
        """(pi scale)^2 / 6."""
        return (math.pi / math.sqrt(6) * self.scale).square()


class HalfNormal(Distribution):
    """|x| of a normal x with mean 0 and standard deviation `scale`."""

    arg_constraints = {"scale": constraints.positive}
    support, has_rsample, names = constraints.nonnegative, True, ("scale",)

    def __init__(self, scale, validate_args=None):
        (self.scale,) = broadcast_all(scale)
        super().__init__(self.scale.shape, (), validate_args)

    def rsample(self, sample_shape=()):
        draws = infinicore.randn(self._shape(sample_shape), dtype=self.scale.dtype, device=self.scale.device)
        return self.scale * draws.abs()

    def log_prob(self, value):
        self._check(value)
        z = value / self.scale
        inside = -0.5 * z.square() - self.scale.log() + (math.log(2) - 0.5 * _LOG_2PI)
        return infinicore.where(value >= 0, inside, -math.inf)

    def cdf(self, value):
        self._check(value)
        return infinicore.erf(value / (self.scale * math.sqrt(2)))

    def icdf(self, value):
        return self.scale * math.sqrt(2) * infinicore.erfinv(value)

    def entropy(self):
        return self.scale.log() + (0.5 + 0.5 * _LOG_2PI - math.log(2))

    @property
    def mean(self):
        """scale sqrt(2 / pi)."""
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def mode(self):
        """0."""
        return infinicore.zeros_like(self.scale)

    @property
    def variance(self):
        """scale^2 (1 - 2 / pi)."""
        return self.scale.square() * (1 - 2 / math.pi)


class Uniform(Distribution):
    """Numbers from `low` (included) to `high`."""

    arg_constraints = {"low": constraints.real, "high": constraints.real}
    has_rsample, names = True, ("low", "high")

    def __init__(self, low, high, validate_args=None):
        self.low, self.high = broadcast_all(low, high)
        super().__init__(self.low.shape, (), validate_args)
        if self._validates and not (self.low < self.high).all().item():
            raise ValueError(f"`low` of Uniform must be below `high`, got {self.low} and {self.high}")

    @property
    def support(self):
        """From `low` to `high`."""
        return constraints.interval(self.low, self.high)

    def rsample(self, sample_shape=()):
        u = infinicore.rand(self._shape(sample_shape), dtype=self.low.dtype, device=self.low.device)
        return self.low + u * (self.high - self.low)

    def log_prob(self, value):
        self._check(value)
        inside = (value >= self.low).logical_and(value < self.high)
        return infinicore.where(inside, 0.0, -math.inf).to(self.low.dtype) - (self.high - self.low).log()

    def cdf(self, value):
        self._check(value)
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value):
        return self.low + value * (self.high - self.low)

    def entropy(self):
        return (self.high - self.low).log()

    @property
    def mean(self):
        """(low + high) / 2."""
        return 0.5 * (self.low + self.high)

    @property
    def mode(self):
        """NaN: all numbers are equally likely."""
        return infinicore.full_like(self.low, math.nan)

    @property
    def variance(self):
        """(high - low)^2 / 12."""
        return (self.high - self.low).square() / 12


class Exponential(Distribution):
    """rate exp(-rate x)."""

    arg_constraints = {"rate": constraints.positive}
    support, has_rsample, names = constraints.nonnegative, True, ("rate",)

    def __init__(self, rate, validate_args=None):
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, (), validate_args)

    def rsample(self, sample_shape=()):
        draws = infinicore.empty(self._shape(sample_shape), dtype=self.rate.dtype, device=self.rate.device)
        return draws.exponential_() / self.rate

    def log_prob(self, value):
        self._check(value)
        return self.rate.log() - self.rate * value

    def cdf(self, value):
        self._check(value)
        return -infinicore.expm1(-self.rate * value)

    def icdf(self, value):
        return -infinicore.log1p(-value) / self.rate

    def entropy(self):
        return 1.0 - self.rate.log()

    @property
    def mean(self):
        """1 / rate."""
        return self.rate.reciprocal()

    @property
    def stddev(self):
        """1 / rate."""
        return self.rate.reciprocal()

    @property
    def mode(self):
        """0."""
        return infinicore.zeros_like(self.rate)

    @property
    def variance(self):
        """1 / rate^2."""
        return self.rate.reciprocal().square()
