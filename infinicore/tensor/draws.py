"""Methods of `Tensor` that fill it with random numbers."""

import math
from numbers import Integral

import numpy as np

from .. import dispatch
from ..core import launch
from ..core.node_cy import GRAD
from ..core.tensor_cy import TensorBase
from ..device import CPU
from ..dispatch.functions import FUNCTIONS
from ..dispatch.generator import default_generator
from ..dtype import finfo, float32
from ..interop.numpy import from_numpy


def wide(dtype):
    """The NumPy dtype in which numbers are drawn for floats of a dtype."""
    return np.float32 if made_by_kernels(dtype) else np.float64


def made_by_kernels(dtype):
    """Whether a device makes uniform and normal numbers of a dtype by itself: floats of up to 32 bits."""
    return dtype.is_floating_point and dtype.itemsize <= 4


def uniforms(shape, low, high, dtype, device, generator):
    """Uniform numbers from [low, high) that the device makes: `low` where rounding would make them `high`."""
    y = _made("seeded_uniform", shape, low, high, device, generator)
    if y.dtype is dtype:
        return y
    rounded = y.to(dtype).to(float32)
    end = float(np.asarray(high, dtype.numpy))
    return FUNCTIONS["where"](rounded == end, low, rounded).to(dtype)


def normals(shape, mean, std, dtype, device, generator):
    """Normal numbers that the device makes."""
    return _made("seeded_normal", shape, mean, std, device, generator).to(dtype)


def _made(name, shape, first, second, device, generator):
    """A new tensor of float32 that a kernel fills."""
    if device.backend.of_samples:
        return _made(name, shape, first, second, CPU, generator).to(device)
    return _fill(name, dispatch.empty(tuple(shape), float32, None, device), first, second, generator)


def _fill(name, y, first, second, generator):
    """Have a kernel fill a tensor of float32."""
    return FUNCTIONS[name](y, first, second, (generator or default_generator()).kernel_seed())


def _may_fill(x):
    """Whether a kernel may write to a tensor as it is."""
    written = not (x.tracked and launch.mode() & GRAD)  # else `copy_` has a say
    return x.dtype is float32 and x.contiguous_ and written and not x.device.backend.of_samples


def below(values, low, high, dtype):
    """An array of numbers from [low, high) in a dtype: `low` where rounding would make them `high`, as in PyTorch."""
    found = values.astype(dtype.numpy, copy=False)
    found[found == np.asarray(high, dtype.numpy)] = low
    return found


def refuse_beyond(name, low, high, dtype):
    """A ValueError where integers from `low` to `high` - 1 lie beyond the ends of a dtype."""
    if dtype.kind == "b":
        least, most = 0, 1
    elif dtype.kind in "iu":
        least, most = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
    else:
        least, most = finfo(dtype).min, finfo(dtype).max
    if not least <= low <= high - 1 <= most:
        raise ValueError(f"`{name}` draws integers from {low} to {high - 1}, but {dtype} holds {least} to {most}")


def _uniform(shape, generator, kind=np.float32):
    """Uniform numbers from [0, 1), with the digits of float32 or float64: a float64 array."""
    return (generator or default_generator()).uniforms(shape, kind).astype(np.float64)


def bernoulli(input, p=None, *, generator=None):
    """1 with the probability that each element of `input` says (or `p`), else 0, in the dtype of `input`."""
    if p is None and not input.dtype.is_floating_point:
        raise TypeError(f"`input` of `bernoulli` must hold probabilities, got {input.dtype}")
    chance = input if p is None else p
    if hasattr(chance, "strides_"):
        if chance.numel_ and not 0 <= chance.amin().item() <= chance.amax().item() <= 1:
            raise ValueError("`input` of `bernoulli` must hold probabilities, from 0 to 1")
    elif not 0 <= chance <= 1:
        raise ValueError(f"`p` of `bernoulli` must be from 0 to 1, got {chance}")
    return (uniforms(input.shape_, 0.0, 1.0, float32, input.device, generator) < chance).to(dtype=input.dtype)


def multinomial(input, num_samples, replacement=False, *, generator=None):
    """int64 [num_samples] or [N, num_samples]: indices drawn from the weights of a vector, or of each row of [N, C].

    Without `replacement`, each is drawn once, and there must be as many weights that are not 0.
    """
    if not hasattr(input, "strides_") or not input.dtype.is_floating_point or len(input.shape_) not in (1, 2):
        raise TypeError("`input` of `multinomial` must hold the weights of a vector, or of rows, as floats")
    if not isinstance(num_samples, Integral) or num_samples < 1:
        raise ValueError(f"`num_samples` of `multinomial` must be a positive integer, got {num_samples!r}")
    num_samples = int(num_samples)
    x = input.detach().to(dtype="float64")
    total = x.sum(-1, True)
    if x.numel_ == 0 or not (x.amin().item() >= 0 and total.amin().item() > 0 and total.amax().item() < math.inf):
        raise ValueError("`input` of `multinomial` must hold finite weights of 0 or more, and in each row one above 0")
    f, shape = FUNCTIONS, input.shape_[:-1]
    if replacement:
        drawn = from_numpy(_uniform((*shape, num_samples), generator), device=input.device) * total
        return f["searchsorted"](x.cumsum(-1), drawn, right=True)
    most = int((x > 0).sum(-1).amin().item())
    if num_samples > most:
        raise ValueError(f"`num_samples` of `multinomial` is {num_samples}, but a row has {most} weights above 0")
    # the order of weight / E for exponential numbers E is that of drawing one after the other
    wait = from_numpy(-np.log1p(-_uniform(input.shape_, generator)) + 1e-300, device=input.device)
    return f["topk"](x / wait, num_samples)[1]


def _number(x, name, method):
    """An argument of a method as a float."""
    try:
        return float(x + 0.0)
    except (TypeError, OverflowError):
        raise TypeError(f"`{name}` of `{method}` must be a number that a float64 holds, got {x!r}") from None


class Draws:
    """Methods of `Tensor` that draw; they return it, and take a `generator`, by default that of `manual_seed`."""

    __slots__ = ()

    def normal_(self, mean=0.0, std=1.0, *, generator=None):
        """Set every element to a normal number; returns the tensor."""
        kind = self._wide("normal_")
        mean, std = _number(mean, "mean", "normal_"), _number(std, "std", "normal_")
        if not std >= 0:
            raise ValueError(f"`std` of `normal_` must be 0 or more, got {std}")
        if _may_fill(self):
            return _fill("seeded_normal", self, mean, std, generator)
        if made_by_kernels(self.dtype):
            return self.copy_(normals(self.shape_, mean, std, self.dtype, self.device, generator))
        return self._drawn((generator or default_generator()).normals(self.shape_, kind), std, mean)

    def uniform_(self, low=0.0, high=1.0, *, generator=None):
        """Set every element to a uniform number from [low, high); returns the tensor."""
        kind, largest = self._wide("uniform_"), finfo(self.dtype).max
        low, high = _number(low, "low", "uniform_"), _number(high, "high", "uniform_")
        if not low <= high:
            raise ValueError(f"`low` {low} of `uniform_` must not be above `high` {high}")
        for bound, what in ((low, "`low`"), (high, "`high`"), (high - low, "the distance from `low` to `high`")):
            if not abs(bound) <= largest:
                raise ValueError(f"{what} of `uniform_` is {bound}, but {self.dtype} goes up to {largest}")
        if _may_fill(self):
            return _fill("seeded_uniform", self, low, high, generator)
        if made_by_kernels(self.dtype):
            return self.copy_(uniforms(self.shape_, low, high, self.dtype, self.device, generator))
        values = (generator or default_generator()).uniforms(self.shape_, kind)
        values *= high - low
        values += low
        return self.copy_(from_numpy(below(values, low, high, self.dtype), device=self.device))

    def _wide(self, name):
        """`wide` of the elements, which must be floats."""
        if not self.dtype.is_floating_point:
            raise TypeError(f"`{name}` needs a tensor of floats, got {self.dtype}; use `infinicore.randint`")
        return wide(self.dtype)

    def _drawn(self, values, factor, shift):
        """Set the elements to `values` (an array) * `factor` + `shift`."""
        return self.copy_(from_numpy(values, device=self.device) * factor + shift)

    def exponential_(self, lambd=1.0, *, generator=None):
        """Set every element to a number of the exponential distribution with the rate `lambd`; returns the tensor."""
        if not lambd > 0:
            raise ValueError(f"`lambd` of `exponential_` must be positive, got {lambd}")
        kind = self._wide("exponential_")
        return self._drawn(-np.log1p(-_uniform(self.shape_, generator, kind)), 1.0 / lambd, 0.0)

    def cauchy_(self, median=0.0, sigma=1.0, *, generator=None):
        """Set every element to a number of Cauchy's distribution; returns the tensor."""
        if not sigma > 0:
            raise ValueError(f"`sigma` of `cauchy_` must be positive, got {sigma}")
        kind = self._wide("cauchy_")
        return self._drawn(np.tan(np.pi * (_uniform(self.shape_, generator, kind) - 0.5)), sigma, median)

    def log_normal_(self, mean=1.0, std=2.0, *, generator=None):
        """Set every element to e to the power of a normal number; returns the tensor."""
        if not std > 0:
            raise ValueError(f"`std` of `log_normal_` must be positive, got {std}")
        kind = self._wide("log_normal_")
        values = (generator or default_generator()).normals(self.shape_, kind).astype(np.float64)
        return self._drawn(np.exp(values * std + mean), 1.0, 0.0)

    def geometric_(self, p, *, generator=None):
        """Set every element to the number of trials, of probability `p`, up to a success; returns the tensor."""
        if not 0 < p < 1:
            raise ValueError(f"`p` of `geometric_` must be between 0 and 1, got {p}")
        trials = np.ceil(np.log1p(-_uniform(self.shape_, generator)) / np.log1p(-p))
        return self.copy_(from_numpy(np.maximum(trials, 1.0), device=self.device).to(self.dtype))

    def bernoulli_(self, p=0.5, *, generator=None):
        """Set every element to 1 with the probability `p` (a number, or a tensor that broadcasts), else to 0."""
        chance = p
        if isinstance(p, (TensorBase, np.ndarray, list, tuple)):
            values = np.asarray(p.detach().cpu().numpy() if isinstance(p, TensorBase) else p, np.float64)
            low, high, chance = values.min(initial=1), values.max(initial=0), from_numpy(values, device=self.device)
        else:
            low = high = _number(p, "p", "bernoulli_")
        if not (low >= 0 and high <= 1):
            reach = f"{low}" if low == high else f"{low} to {high}"
            raise ValueError(f"`p` of `bernoulli_` must be from 0 to 1, got {reach}")
        return self.copy_(uniforms(self.shape_, 0.0, 1.0, float32, self.device, generator) < chance)

    def random_(self, low=0, high=None, *, generator=None):
        """Set every element to an integer from [low, high); of one number, `random_(high)`, from [0, high).

        Without any, of those that the dtype holds (floats: exactly) and that are not negative; returns the tensor.
        """
        floats = self.dtype.is_floating_point
        most = 1 << self.dtype.digits if floats else 2 if self.dtype.kind == "b" else np.iinfo(self.dtype.numpy).max
        if high is None:
            low, high = (0, low) if low else (0, int(most) + floats)
        if low >= high:
            raise ValueError(f"`low` {low} of `random_` must be below `high` {high}")
        refuse_beyond("random_", low, high, self.dtype)
        values = np.asarray((generator or default_generator()).integers(low, high, self.shape_))
        return self.copy_(from_numpy(values, device=self.device).to(self.dtype))

    bernoulli, multinomial = bernoulli, multinomial
