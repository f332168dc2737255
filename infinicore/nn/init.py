"""Filling parameters with numbers, as PyTorch's `nn.init`; every function works in place and returns its tensor.

None of them is recorded for gradients. `generator` is an `infinicore.Generator`; without one, numbers come from the
default generator, which `infinicore.manual_seed` restarts.
"""

import contextlib
import functools
import math
import threading
import warnings

import numpy as np

import infinicore

from ..tensor.tensor import Tensor
from .parameter import Parameter

_local = threading.local()


@contextlib.contextmanager
def skipped():
    """Modules made inside keep uninitialised parameters: for models whose weights are loaded next."""
    before = getattr(_local, "skip", False)
    _local.skip = True
    try:
        yield
    finally:
        _local.skip = before


def wanted():
    """Whether a new module shall initialise its parameters."""
    return not getattr(_local, "skip", False)


class Deferred:
    """What is to be written to parameters later, in this order: see `deferred`.

    An entry is (parameter, part, fill): `fill(tensor)` writes to the part (offset, shape, strides) of it.
    """

    def __init__(self):
        self.entries, self._homes = [], {}

    def add(self, tensor, fill):
        """Put off filling a parameter, or a view of one; False for any other tensor."""
        if isinstance(tensor, Parameter):
            self._homes.setdefault(id(tensor.storage), {})[id(tensor)] = tensor, tensor.address
            tensor.deferred = self
        for p, address in self._homes.get(id(tensor.storage), {}).values():
            offset = (tensor.address - address) // p.dtype.itemsize
            if 0 <= offset < p.numel() and (p is tensor or not isinstance(tensor, Parameter)):
                if tensor.numel() != p.numel() and (not self.entries or self.entries[-1][0] is not p):
                    raise NotImplementedError(
                        f"`tensor` is a part {tuple(tensor.shape)} of a parameter {tuple(p.shape)} that waits for its "
                        "values: fill it right after the whole parameter, or build the model without `deferred_init`"
                    )
                self.entries.append((p, (offset, tuple(tensor.shape), tuple(tensor.stride())), fill))
                return True
        return False


@contextlib.contextmanager
def deferred():
    """Parameters made inside stay without values, and take memory only when they get them; gives the `Deferred`."""
    before, _local.log = getattr(_local, "log", None), Deferred()
    try:
        yield _local.log
    finally:
        _local.log = before


def deferring():
    """Whether modules are made inside `deferred`."""
    return getattr(_local, "log", None) is not None


def is_deferred(parameter):
    """Whether a parameter waits for its values."""
    return getattr(parameter, "deferred", None) is not None


def put_off(tensor, fill):
    """Within `deferred`, note that `fill(tensor)` shall be called later; whether it was."""
    return deferring() and _local.log.add(tensor, fill)


def _filler(function):
    """Check the tensor, and run without recording gradients (or later: `deferred`)."""

    @functools.wraps(function)
    def fill(tensor, *args, **kwargs):
        if not isinstance(tensor, Tensor) or not tensor.dtype.is_floating_point:
            raise TypeError(
                f"`tensor` must be a floating-point Tensor, got {getattr(tensor, 'dtype', type(tensor).__name__)}"
            )
        if not put_off(tensor, lambda x: fill(x, *args, **kwargs)):
            with infinicore.no_grad():
                function(tensor, *args, **kwargs)
        return tensor

    return fill


def _matrix(tensor, least=2, most=None):
    if not least <= tensor.ndim <= (most or tensor.ndim):
        raise ValueError(
            f"`tensor` must have {f'at least {least}' if most is None else f'{least} to {most}'} dims, "
            f"got shape {tuple(tensor.shape)}"
        )


@_filler
def uniform_(tensor, a=0.0, b=1.0, generator=None):
    """Uniform numbers from [a, b)."""
    if a > b:
        raise ValueError(f"`a` {a} must be at most `b` {b}")
    values = infinicore.rand(tuple(tensor.shape), generator=generator, device=tensor.device)
    tensor.copy_(values.mul_(b - a).add_(a))


@_filler
def normal_(tensor, mean=0.0, std=1.0, generator=None):
    """Normal numbers."""
    if std < 0:
        raise ValueError(f"`std` must be at least 0, got {std}")
    values = infinicore.randn(tuple(tensor.shape), generator=generator, device=tensor.device)
    tensor.copy_(values.mul_(std).add_(mean))


@_filler
def trunc_normal_(tensor, mean=0.0, std=1.0, a=-2.0, b=2.0, generator=None):
    """Normal numbers, those outside of [a, b] drawn again: by the inverse of the distribution function."""
    if not a < b:
        raise ValueError(f"`a` {a} must be below `b` {b}")
    low, high = (2 * _normal_cdf((limit - mean) / std) - 1 for limit in (a, b))
    uniform = (
        infinicore.rand(tuple(tensor.shape), dtype="float64", generator=generator, device=tensor.device) * (high - low)
        + low
    )
    limit = 1 - 2.0**-30  # rand has 24 bits: the ends of a wide range would become infinite
    values = _inverse_erf(uniform.clamp(-limit, limit)) * (std * math.sqrt(2)) + mean
    tensor.copy_(values.clamp(a, b))


def _normal_cdf(x):
    return (1 + math.erf(x / math.sqrt(2))) / 2


# Giles, "Approximating the erfinv function" (GPU Computing Gems, 2011): relative error 3.5e-7
_CENTRE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503)
_CENTRE += (-0.00417768164, 0.246640727, 1.50140941)
_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613)
_TAIL += (0.00943887047, 1.00167406, 2.83297682)


def _inverse_erf(x):
    w = -((1.0 - x) * (1.0 + x)).log()

    def polynomial(coefficients, t):
        value = infinicore.full_like(t, coefficients[0])
        for c in coefficients[1:]:
            value = value * t + c
        return value

    tail = polynomial(_TAIL, w.maximum(5.0).sqrt() - 3.0)
    return infinicore.where(w < 5.0, polynomial(_CENTRE, w - 2.5), tail) * x


def constant_(tensor, val):
    """One number everywhere."""
    if not put_off(tensor, lambda x: constant_(x, val)):
        with infinicore.no_grad():
            tensor.fill_(val)
    return tensor


def zeros_(tensor):
    """Zeros."""
    return constant_(tensor, 0)


def ones_(tensor):
    """Ones."""
    return constant_(tensor, 1)


@_filler
def eye_(tensor):
    """The identity matrix (ones on the diagonal, also of a rectangle)."""
    _matrix(tensor, 2, 2)
    tensor.copy_(infinicore.eye(*tensor.shape, device=tensor.device))


@_filler
def dirac_(tensor, groups=1):
    """A convolution weight [out, in, ...] that passes its input on: ones in the centre of the field."""
    _matrix(tensor, 3, 5)
    out, channels = tensor.shape[:2]
    if out % groups:
        raise ValueError(f"`groups` {groups} must divide the {out} output channels of `tensor`")
    tensor.zero_()
    centre = tuple(size // 2 for size in tensor.shape[2:])
    for group in range(groups):
        for channel in range(min(out // groups, channels)):
            tensor[(group * (out // groups) + channel, channel, *centre)] = 1.0


def _fans(tensor):
    """(inputs, outputs) of a weight [out, in, ...]."""
    if tensor.ndim < 2:
        raise ValueError(
            f"`tensor` must have at least 2 dims to count inputs and outputs, got shape {tuple(tensor.shape)}"
        )
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def _fan(tensor, mode):
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"`mode` must be 'fan_in' or 'fan_out', got {mode!r}")
    return max(1, _fans(tensor)[mode == "fan_out"])


_LINEAR = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_GAINS = dict.fromkeys((*_LINEAR, "sigmoid"), 1.0) | {"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}


def calculate_gain(nonlinearity, param=None):
    """The factor that keeps variances through a layer followed by `nonlinearity`; `param` is leaky_relu's slope."""
    if nonlinearity == "leaky_relu":
        if isinstance(param, bool) or not isinstance(param, (int, float, type(None))):
            raise ValueError(f"`param` must be the slope of leaky_relu, got {param!r}")
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise ValueError(f"`nonlinearity` must be one of {', '.join([*_GAINS, 'leaky_relu'])}, got {nonlinearity!r}")
    return _GAINS[nonlinearity]


@_filler
def xavier_uniform_(tensor, gain=1.0, generator=None):
    """Glorot's uniform rule: variance 2 gain^2 / (inputs + outputs) (Glorot and Bengio, 2010)."""
    bound = gain * math.sqrt(6.0 / sum(_fans(tensor)))
    uniform_(tensor, -bound, bound, generator)


@_filler
def xavier_normal_(tensor, gain=1.0, generator=None):
    """Glorot's normal rule: variance 2 gain^2 / (inputs + outputs) (Glorot and Bengio, 2010)."""
    normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans(tensor))), generator)


@_filler
def kaiming_uniform_(tensor, a=0.0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    """He's uniform rule: variance gain^2 / fan (He et al., arXiv 1502.01852); `a` is leaky_relu's slope."""
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3.0 / _fan(tensor, mode))
    uniform_(tensor, -bound, bound, generator)


@_filler
def kaiming_normal_(tensor, a=0.0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    """He's normal rule: variance gain^2 / fan (He et al., arXiv 1502.01852); `a` is leaky_relu's slope."""
    normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode)), generator)


@_filler
def orthogonal_(tensor, gain=1.0, generator=None):
    """A (semi-)orthogonal matrix times `gain`, uniform among them (Saxe et al., arXiv 1312.6120).

    It is the orthogonal factor of a normal matrix in its polar decomposition, found by Newton-Schulz iterations.
    """
    _matrix(tensor)
    if not tensor.numel():
        return
    rows, columns = tensor.shape[0], tensor.numel() // tensor.shape[0]
    x = infinicore.randn(
        (max(rows, columns), min(rows, columns)), dtype="float64", generator=generator, device=tensor.device
    )
    x = x / float(x.square().sum().sqrt())
    one = infinicore.eye(x.shape[1], dtype="float64", device=x.device)
    for _ in range(200):
        gram = x.T @ x
        x = x @ (one * 1.5 - gram * 0.5)
        if float((gram - one).abs().amax()) < 1e-7:  # the step just made squares it
            break
    tensor.copy_(((x if rows >= columns else x.T) * gain).reshape(tensor.shape))


@_filler
def sparse_(tensor, sparsity, std=0.01, generator=None):
    """Normal numbers with the fraction `sparsity` of each column zero (Martens, 2010)."""
    _matrix(tensor, 2, 2)
    rows, columns = tensor.shape
    order = infinicore.rand((rows, columns), generator=generator, device="cpu").numpy().argsort(axis=0, kind="stable")
    zeros = math.ceil(sparsity * rows)
    keep = np.ones((rows, columns), bool)
    keep[order[:zeros], np.arange(columns)] = False
    normal_(tensor, 0.0, std, generator)
    tensor.copy_(infinicore.where(infinicore.from_numpy(keep, device=tensor.device), tensor.detach(), 0.0))


def _older(name):
    """The name without underscore that PyTorch has deprecated."""
    filler = globals()[f"{name}_"]

    @functools.wraps(filler)
    def fill(*args, **kwargs):
        warnings.warn(f"`nn.init.{name}` is deprecated: use `nn.init.{name}_`", FutureWarning, stacklevel=2)
        return filler(*args, **kwargs)

    return fill


constant, dirac, eye, kaiming_normal, kaiming_uniform, normal = map(
    _older, ("constant", "dirac", "eye", "kaiming_normal", "kaiming_uniform", "normal")
)
orthogonal, sparse, uniform, xavier_normal, xavier_uniform = map(
    _older, ("orthogonal", "sparse", "uniform", "xavier_normal", "xavier_uniform")
)
