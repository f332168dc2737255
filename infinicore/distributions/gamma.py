"""Gamma's distribution and those that are made of its draws."""

import math

import infinicore

from ..autograd.function import Function
from . import constraints
from .distribution import Distribution, broadcast_all


def gamma_slope(concentration, draw):
    """How a draw of the standard gamma distribution moves with `concentration`: -(dP / da) / p(x).

    P is the regularised incomplete gamma function, or 1 - Q where that is nearer to 1, differentiated by five points in
    float64, which is exact to 1e-9 of the slope.
    """
    a, x = concentration.double(), draw.double()
    step = 1e-3 * a
    lower = x < a

    def tail(shift):
        at = a + shift * step
        return infinicore.where(lower, infinicore.special.gammainc(at, x), -infinicore.special.gammaincc(at, x))

    by_a = (8 * (tail(1) - tail(-1)) - (tail(2) - tail(-2))) / (12 * step)
    density = infinicore.exp(infinicore.xlogy(a - 1, x) - x - infinicore.lgamma(a))
    return (-by_a / density).to(draw.dtype)


class _StandardGamma(Function):
    """Draws with rate 1, whose gradient is that of the quantile at which each lies."""

    @staticmethod
    def forward(ctx, concentration):
        draws = _standard_gamma(concentration)
        ctx.save_for_backward(concentration, draws)
        return draws

    @staticmethod
    def backward(ctx, g):
        return g * gamma_slope(*ctx.saved_tensors)


def _standard_gamma(concentration):
    """Draws with rate 1, by squeezing (Marsaglia and Tsang, 2000), at least 95 of 100 in the first round.

    Below 1, a draw for a + 1 times u^(1 / a).
    """
    a = concentration.double()
    d = infinicore.where(a < 1, a + 1, a) - 1 / 3
    c = 1 / (9 * d).sqrt()
    result, open_ = infinicore.ones_like(d), infinicore.ones_like(d, dtype=infinicore.bool)
    while open_.any().item():
        x = infinicore.randn_like(d)
        v = (1 + c * x) ** 3
        taken = infinicore.log(infinicore.rand_like(d)) < 0.5 * x * x + d - d * v + d * v.clamp(1e-300).log()
        taken = (taken & (v > 0)) & open_
        result, open_ = infinicore.where(taken, d * v, result), open_ & ~taken
    u = 1 - infinicore.rand_like(d)  # above 0
    result = infinicore.where(a < 1, result * u ** (1 / a), result)
    return result.to(concentration.dtype).clamp(infinicore.finfo(concentration.dtype).tiny)


def standard_gamma(concentration):
    """A draw of the gamma distribution with rate 1 for each element, with its gradient."""
    return _StandardGamma.apply(concentration)


class Gamma(Distribution):
    """rate^a x^(a - 1) exp(-rate x) / Gamma(a), a the `concentration`."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support, has_rsample, names = constraints.nonnegative, True, ("concentration", "rate")

    def __init__(self, concentration, rate, validate_args=None):
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, (), validate_args)

    def rsample(self, sample_shape=()):
        shape = self._shape(sample_shape)
        draws = standard_gamma(self.concentration.expand(shape)) / self.rate.expand(shape)
        return draws

    def log_prob(self, value):
        self._check(value)
        a, rate = self.concentration, self.rate
        return infinicore.xlogy(a, rate) + infinicore.xlogy(a - 1, value) - rate * value - infinicore.lgamma(a)

    def cdf(self, value):
        self._check(value)
        return infinicore.special.gammainc(self.concentration, self.rate * value)

    def entropy(self):
        a = self.concentration
        return a - self.rate.log() + infinicore.lgamma(a) + (1.0 - a) * infinicore.digamma(a)

    @property
    def mean(self):
        """a / rate."""
        return self.concentration / self.rate

    @property
    def mode(self):
        """(a - 1) / rate, or 0."""
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self):
        """a / rate^2."""
        return self.concentration / self.rate.square()


class Chi2(Gamma):
    """The sum of `df` squares of standard normal numbers."""

    arg_constraints, names = {"df": constraints.positive}, ("df",)

    def __init__(self, df, validate_args=None):
        (self.df,) = broadcast_all(df)
        super().__init__(0.5 * self.df, 0.5, validate_args)


class StudentT(Distribution):
    """loc + scale * Student's t with `df` degrees of freedom."""

    arg_constraints = {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}
    support, has_rsample, names = constraints.real, True, ("df", "loc", "scale")

    def __init__(self, df, loc=0.0, scale=1.0, validate_args=None):
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        super().__init__(self.df.shape, (), validate_args)

    def rsample(self, sample_shape=()):
        shape = self._shape(sample_shape)
        x = infinicore.randn(shape, dtype=self.df.dtype, device=self.df.device)
        z = 2 * standard_gamma(0.5 * self.df.expand(shape))
        return self.loc + self.scale * x * (self.df / z).sqrt()

    def _norm(self):
        half = 0.5 * self.df
        return (
            self.scale.log() + 0.5 * (self.df * math.pi).log() + infinicore.lgamma(half) - infinicore.lgamma(half + 0.5)
        )

    def log_prob(self, value):
        self._check(value)
        z = (value - self.loc) / self.scale
        return -0.5 * (self.df + 1) * infinicore.log1p(z.square() / self.df) - self._norm()

    def entropy(self):
        half, both = 0.5 * self.df, 0.5 * (self.df + 1)
        return self._norm() + both * (infinicore.digamma(both) - infinicore.digamma(half))

    @property
    def mean(self):
        """`loc`, where `df` is above 1."""
        return infinicore.where(self.df > 1, self.loc, math.nan)

    @property
    def mode(self):
        """`loc`."""
        return self.loc

    @property
    def variance(self):
        """scale^2 df / (df - 2) above 2, infinite above 1."""
        finite = self.scale.square() * self.df / (self.df - 2)
        return infinicore.where(self.df > 2, finite, infinicore.where(self.df > 1, math.inf, math.nan))


class Dirichlet(Distribution):
    """Shares [..., K] that add up to 1, with density in proportion to the product of x^(`concentration` - 1)."""

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support, has_rsample, names = constraints.simplex, True, ("concentration",)

    def __init__(self, concentration, validate_args=None):
        if concentration.ndim < 1:
            raise ValueError("`concentration` of Dirichlet must be [..., K], got a 0-dim tensor")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args)

    def rsample(self, sample_shape=()):
        draws = standard_gamma(self.concentration.expand(self._shape(sample_shape)))
        return draws / draws.sum(-1, True)

    def _log_norm(self):
        a = self.concentration
        return infinicore.lgamma(a).sum(-1) - infinicore.lgamma(a.sum(-1))

    def log_prob(self, value):
        self._check(value)
        return infinicore.xlogy(self.concentration - 1, value).sum(-1) - self._log_norm()

    def entropy(self):
        a, count, total = self.concentration, self.concentration.shape[-1], self.concentration.sum(-1)
        own = ((a - 1) * infinicore.digamma(a)).sum(-1)
        return self._log_norm() - (count - total) * infinicore.digamma(total) - own

    @property
    def mean(self):
        """concentration over its sum."""
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self):
        """(concentration - 1) over its sum; where none is above 1, the share of the largest one is 1."""
        less = (self.concentration - 1).clamp(min=0)
        mode, single = less / less.sum(-1, True), (self.concentration < 1).all(-1, True)
        index = self.concentration.argmax(-1, True)
        corner = infinicore.zeros_like(mode).scatter(-1, index, 1.0)
        return infinicore.where(single, corner, mode)

    @property
    def variance(self):
        """mean (1 - mean) / (sum of concentration + 1)."""
        mean = self.mean
        return mean * (1 - mean) / (self.concentration.sum(-1, True) + 1)


class Beta(Distribution):
    """x^(a - 1) (1 - x)^(b - 1) / B(a, b): a is `concentration1`, b `concentration0`."""

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support, has_rsample, names = constraints.unit_interval, True, ("concentration1", "concentration0")

    def __init__(self, concentration1, concentration0, validate_args=None):
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        super().__init__(self.concentration1.shape, (), validate_args)

    def rsample(self, sample_shape=()):
        shape = self._shape(sample_shape)
        x, y = (standard_gamma(a.expand(shape)) for a in (self.concentration1, self.concentration0))
        return x / (x + y)

    def _log_norm(self):
        a, b = self.concentration1, self.concentration0
        return infinicore.lgamma(a) + infinicore.lgamma(b) - infinicore.lgamma(a + b)

    def log_prob(self, value):
        self._check(value)
        inside = infinicore.xlogy(self.concentration1 - 1, value)
        return inside + infinicore.special.xlog1py(self.concentration0 - 1, -value) - self._log_norm()

    def entropy(self):
        a, b = self.concentration1, self.concentration0
        own = (a - 1) * infinicore.digamma(a) + (b - 1) * infinicore.digamma(b)
        return self._log_norm() - own + (a + b - 2) * infinicore.digamma(a + b)

    @property
    def mean(self):
        """a / (a + b)."""
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self):
        """(a - 1) / (a + b - 2) where both are above 1, else the end that is more likely."""
        both = infinicore.stack([self.concentration1, self.concentration0], -1)
        return Dirichlet(both, validate_args=False).mode[..., 0]

    @property
    def variance(self):
        """a b / ((a + b)^2 (a + b + 1))."""
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total.square() * (total + 1))
