"""Distributions of whole numbers and of classes."""

import math

import infinicore

from . import constraints
from .distribution import Distribution, broadcast_all


def _only_one(probs, logits):
    if (probs is None) == (logits is None):
        raise ValueError("give either `probs` or `logits`, not both and not none")


def _inside(probs):
    """Probabilities that are neither 0 nor 1, whose logarithms are finite."""
    eps = infinicore.finfo(probs.dtype).eps
    return probs.clamp(eps, 1 - eps)


class _Chances(Distribution):
    """Yes or no with a probability `probs`, or log(probs / (1 - probs)) as `logits`; each follows from the other."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}

    def __init__(self, probs=None, logits=None, validate_args=None):
        _only_one(probs, logits)
        self.names = ("logits",) if probs is None else ("probs",)
        (value,) = broadcast_all(logits if probs is None else probs)
        setattr(self, self.names[0], value)
        super().__init__(value.shape, (), validate_args)

    def __getattr__(self, name):
        if name == "probs" and "logits" in self.__dict__:
            self.probs = infinicore.sigmoid(self.logits)
            return self.probs
        if name == "logits" and "probs" in self.__dict__:
            p = _inside(self.probs)
            self.logits = p.log() - infinicore.log1p(-p)
            return self.logits
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _bit_entropy(self):
        """The entropy of one answer."""
        z, p = self.logits, self.probs
        return -(p * infinicore.logsigmoid(z) + (1 - p) * infinicore.logsigmoid(-z))


class Bernoulli(_Chances):
    """1 with probability `probs` (or sigmoid(`logits`)), else 0."""

    support, has_enumerate_support = constraints.boolean, True

    def sample(self, sample_shape=()):
        with infinicore.no_grad():
            return infinicore.bernoulli(self.probs.expand(self._shape(sample_shape)))

    def log_prob(self, value):
        self._check(value)
        z = self.logits
        return value * infinicore.logsigmoid(z) + (1 - value) * infinicore.logsigmoid(-z)

    def entropy(self):
        return self._bit_entropy()

    def enumerate_support(self, expand=True):
        shape = (2, *self._batch_shape)
        values = infinicore.arange(2, dtype=self.probs.dtype, device=self.probs.device)
        values = values.reshape(2, *(1,) * len(self._batch_shape))
        return values.expand(shape) if expand else values

    @property
    def mean(self):
        """`probs`."""
        return self.probs

    @property
    def mode(self):
        """What is more likely; NaN where both are equally so."""
        likely = (self.probs > 0.5).to(self.probs.dtype)
        return infinicore.where(self.probs == 0.5, math.nan, likely)

    @property
    def variance(self):
        """probs (1 - probs)."""
        return self.probs * (1 - self.probs)


class Geometric(_Chances):
    """How many trials fail before the first that does not, each with probability `probs`, above 0."""

    support = constraints.nonnegative_integer

    def sample(self, sample_shape=()):
        with infinicore.no_grad():
            u = infinicore.rand(self._shape(sample_shape), dtype=self.probs.dtype, device=self.probs.device)
            return (infinicore.log1p(-u) / infinicore.log1p(-self.probs)).floor()

    def log_prob(self, value):
        self._check(value)
        return infinicore.special.xlog1py(value.to(self.probs.dtype), -self.probs) + self.probs.log()

    def entropy(self):
        return self._bit_entropy() / self.probs

    @property
    def mean(self):
        """1 / probs - 1."""
        return self.probs.reciprocal() - 1

    @property
    def mode(self):
        """0."""
        return infinicore.zeros_like(self.probs)

    @property
    def variance(self):
        """(1 / probs - 1) / probs."""
        return (self.probs.reciprocal() - 1) / self.probs


class Binomial(_Chances):
    """How many of `total_count` trials succeed, each with probability `probs`."""

    arg_constraints = _Chances.arg_constraints | {"total_count": constraints.nonnegative_integer}

    def __init__(self, total_count=1, probs=None, logits=None, validate_args=None):
        _only_one(probs, logits)
        given, value = ("logits", logits) if probs is None else ("probs", probs)
        value, self.total_count = broadcast_all(value, total_count)
        super().__init__(**{given: value}, validate_args=validate_args)
        self.names = ("total_count", given)

    @property
    def support(self):
        """From 0 to `total_count`."""
        return constraints.integer_interval(0, self.total_count)

    def sample(self, sample_shape=()):
        shape = self._shape(sample_shape)
        with infinicore.no_grad():
            count = self.total_count.to(self.probs.dtype).expand(shape)
            return infinicore.binomial(count.contiguous(), self.probs.expand(shape).contiguous())

    def log_prob(self, value):
        self._check(value)
        n, z = self.total_count, self.logits
        ways = infinicore.lgamma(n + 1.0) - infinicore.lgamma(value + 1.0) - infinicore.lgamma(n - value + 1.0)
        return ways + value * infinicore.logsigmoid(z) + (n - value) * infinicore.logsigmoid(-z)

    @property
    def mean(self):
        """total_count probs."""
        return self.total_count * self.probs

    @property
    def mode(self):
        """floor((total_count + 1) probs)."""
        return ((self.total_count + 1) * self.probs).floor().minimum(self.total_count.to(self.probs.dtype))

    @property
    def variance(self):
        """total_count probs (1 - probs)."""
        return self.total_count * self.probs * (1 - self.probs)


class Poisson(Distribution):
    """rate^k exp(-rate) / k!."""

    arg_constraints = {"rate": constraints.nonnegative}
    support, names = constraints.nonnegative_integer, ("rate",)

    def __init__(self, rate, validate_args=None):
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, (), validate_args)

    def sample(self, sample_shape=()):
        with infinicore.no_grad():
            return infinicore.poisson(self.rate.expand(self._shape(sample_shape)).contiguous())

    def log_prob(self, value):
        self._check(value)
        return infinicore.xlogy(value, self.rate) - self.rate - infinicore.lgamma(value + 1.0)

    @property
    def mean(self):
        """`rate`."""
        return self.rate

    @property
    def mode(self):
        """floor(rate)."""
        return self.rate.floor()

    @property
    def variance(self):
        """`rate`."""
        return self.rate


class _Classes(Distribution):
    """One of K classes by `probs` [..., K], made to add up to 1, or by `logits`, of which the softmax is taken."""

    arg_constraints = {"probs": constraints.independent(constraints.nonnegative, 1), "logits": constraints.real_vector}
    has_enumerate_support = True

    def __init__(self, probs=None, logits=None, validate_args=None):
        _only_one(probs, logits)
        given, value = ("logits", logits) if probs is None else ("probs", probs)
        if value.ndim < 1:
            raise ValueError(f"`{given}` of {type(self).__name__} must be [..., K], got a 0-dim tensor")
        setattr(self, given, value)
        event = value.shape[-1:] if self._of_vectors else ()
        super().__init__(value.shape[:-1], event, validate_args)  # which checks what was given
        norm = value.logsumexp(-1, True) if probs is None else value.sum(-1, True)
        setattr(self, given, value - norm if probs is None else value / norm)
        self.names, self._num_events = (given,), value.shape[-1]

    def __getattr__(self, name):
        if name == "probs" and "logits" in self.__dict__:
            self.probs = self.logits.softmax(-1)
            return self.probs
        if name == "logits" and "probs" in self.__dict__:
            self.logits = _inside(self.probs).log()
            return self.logits
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def param_shape(self):
        """The shape of `probs`."""
        return self.__dict__[self.names[0]].shape

    def _drawn(self, sample_shape):
        with infinicore.no_grad():
            count = infinicore.Size(sample_shape).numel()
            rows = self.probs.reshape(-1, self._num_events)
            drawn = (
                infinicore.multinomial(rows, count, True)
                if count
                else rows.new_zeros((rows.shape[0], 0), dtype="int64")
            )
            return drawn.T.reshape(*sample_shape, *self._batch_shape)

    def entropy(self):
        logits = self.logits.clamp(infinicore.finfo(self.logits.dtype).min)
        return -(logits * self.probs).sum(-1)


class Categorical(_Classes):
    """A class from 0 to K - 1, as int64."""

    _of_vectors = False

    @property
    def support(self):
        """From 0 to K - 1."""
        return constraints.integer_interval(0, self._num_events - 1)

    def sample(self, sample_shape=()):
        return self._drawn(sample_shape)

    def log_prob(self, value):
        self._check(value)
        shape = infinicore.broadcast_shapes(tuple(value.shape), tuple(self._batch_shape))
        logits = self.logits.expand(*shape, self._num_events)
        return logits.gather(-1, value.long().expand(shape).unsqueeze(-1)).squeeze(-1)

    def enumerate_support(self, expand=True):
        values = infinicore.arange(self._num_events, device=self.probs.device)
        values = values.reshape(-1, *(1,) * len(self._batch_shape))
        return values.expand(self._num_events, *self._batch_shape) if expand else values

    @property
    def mean(self):
        """NaN: classes are no numbers."""
        return infinicore.full(tuple(self._batch_shape), math.nan, dtype=self.probs.dtype, device=self.probs.device)

    variance = mean

    @property
    def mode(self):
        """The most likely class."""
        return self.probs.argmax(-1)


class OneHotCategorical(_Classes):
    """A vector [K] of zeros and a single 1."""

    _of_vectors, support = True, constraints.one_hot

    def sample(self, sample_shape=()):
        drawn = self._drawn(sample_shape)
        return infinicore.one_hot(drawn, self._num_events).to(self.probs.dtype)

    def log_prob(self, value):
        self._check(value)
        shape = infinicore.broadcast_shapes(tuple(value.shape[:-1]), tuple(self._batch_shape))
        logits = self.logits.expand(*shape, self._num_events)
        return logits.gather(-1, value.argmax(-1).expand(shape).unsqueeze(-1)).squeeze(-1)

    def enumerate_support(self, expand=True):
        values = infinicore.eye(self._num_events, dtype=self.probs.dtype, device=self.probs.device)
        values = values.reshape(self._num_events, *(1,) * len(self._batch_shape), self._num_events)
        return values.expand(self._num_events, *self._batch_shape, self._num_events) if expand else values

    @property
    def mean(self):
        """`probs`."""
        return self.probs

    @property
    def mode(self):
        """The most likely one."""
        return infinicore.one_hot(self.probs.argmax(-1), self._num_events).to(self.probs.dtype)

    @property
    def variance(self):
        """probs (1 - probs)."""
        return self.probs * (1 - self.probs)


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """`OneHotCategorical` whose `rsample` has the gradient of the probabilities (Bengio et al., arXiv 1308.3432)."""

    has_rsample = True

    def rsample(self, sample_shape=()):
        return self.sample(sample_shape) + (self.probs - self.probs.detach())
