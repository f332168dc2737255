"""Distributions of vectors, and distributions whose dims are taken for one event."""

import math

import infinicore

from . import constraints
from .distribution import Distribution


class Independent(Distribution):
    """A distribution of whose batch the last dims are one event: `log_prob` and `entropy` are sums over them."""

    def __init__(self, base_distribution, reinterpreted_batch_ndims, validate_args=None):
        shape, event = tuple(base_distribution.batch_shape), tuple(base_distribution.event_shape)
        dims = reinterpreted_batch_ndims
        if not 0 <= dims <= len(shape):
            raise ValueError(f"`reinterpreted_batch_ndims` must be from 0 to {len(shape)}, got {dims}")
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, dims
        super().__init__(shape[: len(shape) - dims], shape[len(shape) - dims :] + event, validate_args)

    @property
    def has_rsample(self):
        """Whether the distribution itself has."""
        return self.base_dist.has_rsample

    @property
    def support(self):
        """That of the distribution, in all dims of the event."""
        return constraints.independent(self.base_dist.support, self.reinterpreted_batch_ndims)

    def expand(self, batch_shape):
        dims = self.reinterpreted_batch_ndims
        inner = tuple(self.base_dist.batch_shape)[len(self.base_dist.batch_shape) - dims :]
        return Independent(self.base_dist.expand((*batch_shape, *inner)), dims, validate_args=False)

    def _summed(self, x):
        for _ in range(self.reinterpreted_batch_ndims):
            x = x.sum(-1)
        return x

    def sample(self, sample_shape=()):
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape=()):
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value):
        return self._summed(self.base_dist.log_prob(value))

    def entropy(self):
        return self._summed(self.base_dist.entropy())

    @property
    def mean(self):
        """That of the distribution."""
        return self.base_dist.mean

    @property
    def mode(self):
        """That of the distribution."""
        return self.base_dist.mode

    @property
    def variance(self):
        """That of the distribution."""
        return self.base_dist.variance

    def __repr__(self):
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"


class MultivariateNormal(Distribution):
    """Vectors [..., K] with mean `loc` and a covariance matrix [..., K, K], its inverse, or its Cholesky factor."""

    arg_constraints = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support, has_rsample = constraints.real_vector, True

    def __init__(self, loc, covariance_matrix=None, precision_matrix=None, scale_tril=None, validate_args=None):
        given = {"covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix, "scale_tril": scale_tril}
        given = {name: x for name, x in given.items() if x is not None}
        if len(given) != 1:
            raise ValueError("give one of `covariance_matrix`, `precision_matrix` and `scale_tril`")
        ((name, matrix),) = given.items()
        if matrix.ndim < 2 or loc.ndim < 1:
            raise ValueError(f"`loc` must be [..., K] and `{name}` [..., K, K], got {loc.shape_} and {matrix.shape_}")
        shape = infinicore.broadcast_shapes(tuple(loc.shape[:-1]), tuple(matrix.shape[:-2]))
        self.loc = loc.expand(*shape, loc.shape[-1])
        setattr(self, name, matrix.expand(*shape, *matrix.shape[-2:]))
        self.names = ("loc", name)
        super().__init__(shape, loc.shape[-1:], validate_args)
        if name == "precision_matrix":  # P = U U^T of the reversed matrix gives the factor of the inverse
            factor = infinicore.linalg.cholesky(matrix.flip((-2, -1))).flip((-2, -1)).mT
            one = infinicore.eye(loc.shape[-1], dtype=loc.dtype, device=loc.device)
            self._factor = infinicore.linalg.solve_triangular(factor, one, upper=False)
        else:
            self._factor = matrix if name == "scale_tril" else infinicore.linalg.cholesky(matrix)

    def __getattr__(self, name):
        if "_factor" not in self.__dict__ or name not in ("scale_tril", "covariance_matrix", "precision_matrix"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        size = self._event_shape[0]
        factor = self._factor.expand(*self._batch_shape, size, size)
        if name == "scale_tril":
            return factor
        return factor @ factor.mT if name == "covariance_matrix" else infinicore.linalg.inv(factor @ factor.mT)

    def rsample(self, sample_shape=()):
        draws = infinicore.randn(self._shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + (self._factor @ draws.unsqueeze(-1)).squeeze(-1)

    def _half_log_det(self):
        return self._factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def log_prob(self, value):
        self._check(value)
        apart = (value - self.loc).unsqueeze(-1)
        factor = self._factor.expand(*apart.shape[:-2], *self._factor.shape[-2:])
        z = infinicore.linalg.solve_triangular(factor, apart, upper=False)
        distance = z.square().sum((-2, -1))
        return -0.5 * (self._event_shape[0] * math.log(2 * math.pi) + distance) - self._half_log_det()

    def entropy(self):
        own = 0.5 * self._event_shape[0] * (1.0 + math.log(2 * math.pi)) + self._half_log_det()
        return own.expand(tuple(self._batch_shape))

    @property
    def mean(self):
        """`loc`."""
        return self.loc

    @property
    def mode(self):
        """`loc`."""
        return self.loc

    @property
    def variance(self):
        """The diagonal of the covariance."""
        return self._factor.square().sum(-1).expand(*self._batch_shape, *self._event_shape)
