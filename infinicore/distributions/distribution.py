"""What distributions share: shapes, samples, checks of parameters and values."""

import infinicore

from ..context import get_default_dtype


def broadcast_all(*values):
    """Numbers and tensors as tensors of one shape; numbers take the dtype of the tensors, or the default one."""
    tensors = [x for x in values if isinstance(x, infinicore.Tensor)]
    for x in values:
        if not isinstance(x, (infinicore.Tensor, int, float)):
            raise TypeError(f"parameters of a distribution must be numbers or tensors, got {type(x).__name__}")
    floats = [x for x in tensors if x.dtype.is_floating_point]
    kind = floats[0].dtype if floats else get_default_dtype()
    device = tensors[0].device if tensors else None
    whole = [x if isinstance(x, infinicore.Tensor) else infinicore.tensor(x, dtype=kind, device=device) for x in values]
    return infinicore.broadcast_tensors(*whole)


class Distribution:
    """Random tensors of `batch_shape` distributions that are independent, each of one event of `event_shape`.

    A subclass names its parameters in `arg_constraints`, with what each may be, and what its values are in `support`.
    Parameters, and values whose `log_prob` or `cdf` is asked for, are checked unless `validate_args` is False, which
    spares reading them on the host. `sample` has no gradient; `rsample`, where `has_rsample`, has that of the
    parameters.
    """

    has_rsample = has_enumerate_support = False
    arg_constraints, support, names = {}, None, ()
    _validates = True

    def __init__(self, batch_shape=(), event_shape=(), validate_args=None):
        self._batch_shape, self._event_shape = infinicore.Size(batch_shape), infinicore.Size(event_shape)
        if validate_args is not None:
            self._validates = bool(validate_args)
        if not self._validates:
            return
        for name, wanted in self.arg_constraints.items():
            value = self.__dict__.get(name)  # what follows from other parameters is not made for a check
            if isinstance(value, infinicore.Tensor) and not wanted.check(value.detach()).all().item():
                raise ValueError(f"`{name}` of {type(self).__name__} must be {wanted}, got {value.detach()}")

    @staticmethod
    def set_default_validate_args(value):
        """Whether distributions that are not told check parameters and values; True at first."""
        Distribution._validates = bool(value)

    @property
    def batch_shape(self):
        """How many distributions there are."""
        return self._batch_shape

    @property
    def event_shape(self):
        """The shape of one draw of one of them."""
        return self._event_shape

    def expand(self, batch_shape):
        """The same distributions, in a larger `batch_shape` to which theirs broadcasts."""
        shape, own = tuple(batch_shape), {}
        for name in self.names:
            value = self.__dict__[name]
            inner = tuple(value.shape[value.ndim - self.arg_constraints[name].event_dim :])
            own[name] = value.expand(*shape, *inner)
        return type(self)(**own, validate_args=False)

    def _shape(self, sample_shape):
        return (*sample_shape, *self._batch_shape, *self._event_shape)

    def _check(self, value):
        """Refuse values of which the distribution has none."""
        if not self._validates:
            return
        if not isinstance(value, infinicore.Tensor):
            raise TypeError(f"`value` must be a tensor, got {type(value).__name__}: use `infinicore.tensor`")
        event = tuple(self._event_shape)
        if event and tuple(value.shape[-len(event) :]) != event:
            raise ValueError(f"`value` of {type(self).__name__} must be [..., {event}], got {tuple(value.shape)}")
        try:
            infinicore.broadcast_shapes(tuple(value.shape), self._shape(()))
        except ValueError:
            raise ValueError(f"`value` must broadcast to {self._shape(())}, got {tuple(value.shape)}") from None
        support = self.support
        if support is not None and not support.check(value.detach()).all().item():
            raise ValueError(f"`value` of {type(self).__name__} must be {support}, got {value.detach()}")

    def sample(self, sample_shape=()):
        """Draws [*sample_shape, *batch_shape, *event_shape], without gradients."""
        with infinicore.no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape=()):
        """Draws whose gradient reaches the parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no `rsample`: use `sample`, and `log_prob` for gradients")

    def sample_n(self, n):
        """n draws."""
        return self.sample((n,))

    def log_prob(self, value):
        """The logarithm of the density, or probability, of values."""
        raise NotImplementedError(f"{type(self).__name__} has no `log_prob`")

    def cdf(self, value):
        """The probability of what is not above `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no `cdf`")

    def icdf(self, value):
        """The number whose `cdf` is `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no `icdf`")

    def entropy(self):
        """The entropy in nats."""
        raise NotImplementedError(f"{type(self).__name__} has no `entropy`")

    def enumerate_support(self, expand=True):
        """All values, along a new first dim."""
        raise NotImplementedError(f"{type(self).__name__} has no `enumerate_support`")

    def perplexity(self):
        """exp(entropy)."""
        return self.entropy().exp()

    @property
    def stddev(self):
        """The square root of the variance."""
        return self.variance.sqrt()

    def __repr__(self):
        shown = [f"{name}: {self.__dict__[name]}" if self.__dict__[name].numel() == 1 else
                 f"{name}: {tuple(self.__dict__[name].shape)}" for name in self.names]  # fmt: skip
        return f"{type(self).__name__}({', '.join(shown)})"
