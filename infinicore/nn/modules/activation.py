"""Activations as modules: the functions of `functional`, with their options as attributes."""

import infinicore

from .. import functional as F
from .. import init
from ..module import Module
from ..parameter import Parameter


class _Plain(Module):
    """An activation without options; `function` is that of `functional`."""

    function = None

    def forward(self, input):
        return type(self).function(input)


class _InPlace(Module):
    """An activation whose only option is `inplace`."""

    function = None

    def __init__(self, inplace=False):
        super().__init__()
        self.inplace = inplace

    def forward(self, input):
        return type(self).function(input, self.inplace)

    def extra_repr(self):
        return "inplace=True" if self.inplace else ""


class ReLU(_InPlace):
    """max(x, 0)."""

    function = staticmethod(F.relu)


class ReLU6(_InPlace):
    """min(max(x, 0), 6)."""

    function = staticmethod(F.relu6)


class SELU(_InPlace):
    """See `functional.selu`."""

    function = staticmethod(F.selu)


class SiLU(_InPlace):
    """x * sigmoid(x)."""

    function = staticmethod(F.silu)


class Mish(_InPlace):
    """x * tanh(softplus(x))."""

    function = staticmethod(F.mish)


class Hardsigmoid(_InPlace):
    """min(max(x + 3, 0), 6) / 6."""

    function = staticmethod(F.hardsigmoid)

    def extra_repr(self):
        return ""


class Hardswish(_InPlace):
    """x * hardsigmoid(x)."""

    function = staticmethod(F.hardswish)

    def extra_repr(self):
        return ""


class Sigmoid(_Plain):
    """1 / (1 + exp(-x))."""

    function = staticmethod(F.sigmoid)


class LogSigmoid(_Plain):
    """log(sigmoid(x))."""

    function = staticmethod(F.logsigmoid)


class Tanh(_Plain):
    """Hyperbolic tangent."""

    function = staticmethod(F.tanh)


class Tanhshrink(_Plain):
    """x - tanh(x)."""

    function = staticmethod(F.tanhshrink)


class Softsign(_Plain):
    """x / (1 + |x|)."""

    function = staticmethod(F.softsign)


def _in_place(module):
    return ", inplace=True" if module.inplace else ""


class LeakyReLU(Module):
    """x where x > 0, else negative_slope * x."""

    def __init__(self, negative_slope=1e-2, inplace=False):
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace

    def forward(self, input):
        return F.leaky_relu(input, self.negative_slope, self.inplace)

    def extra_repr(self):
        return f"negative_slope={self.negative_slope}{_in_place(self)}"


class PReLU(Module):
    """LeakyReLU whose slope is learned: one (`num_parameters` 1), or one for each channel (dim 1)."""

    def __init__(self, num_parameters=1, init=0.25, device=None, dtype=None):
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        options = {"dtype": dtype or infinicore.get_default_dtype(), "device": device}
        self.weight = Parameter(infinicore.empty((num_parameters,), **options))
        self.reset_parameters()

    def reset_parameters(self):
        """All slopes `init`."""
        if init.wanted():
            init.constant_(self.weight, self.init)

    def forward(self, input):
        return F.prelu(input, self.weight)

    def extra_repr(self):
        return f"num_parameters={self.num_parameters}"


class ELU(Module):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha=1.0, inplace=False):
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input):
        return F.elu(input, self.alpha, self.inplace)

    def extra_repr(self):
        return f"alpha={self.alpha}{_in_place(self)}"


class CELU(Module):
    """x where x > 0, else alpha * (exp(x / alpha) - 1)."""

    def __init__(self, alpha=1.0, inplace=False):
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input):
        return F.celu(input, self.alpha, self.inplace)

    def extra_repr(self):
        return f"alpha={self.alpha}{_in_place(self)}"


class GELU(Module):
    """x * Phi(x); approximate="tanh" takes the formula with tanh."""

    def __init__(self, approximate="none"):
        super().__init__()
        self.approximate = approximate

    def forward(self, input):
        return F.gelu(input, self.approximate)

    def extra_repr(self):
        return f"approximate={self.approximate!r}"


class GLU(Module):
    """a * sigmoid(b) of the two halves of `dim`."""

    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, input):
        return F.glu(input, self.dim)

    def extra_repr(self):
        return f"dim={self.dim}"


class Softplus(Module):
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""

    def __init__(self, beta=1.0, threshold=20.0):
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input):
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self):
        return f"beta={self.beta}, threshold={self.threshold}"


class Hardtanh(Module):
    """x limited to [min_val, max_val]."""

    def __init__(self, min_val=-1.0, max_val=1.0, inplace=False):
        super().__init__()
        if not min_val < max_val:
            raise ValueError(f"`min_val` {min_val} must be below `max_val` {max_val}")
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace

    def forward(self, input):
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self):
        return f"min_val={self.min_val}, max_val={self.max_val}{_in_place(self)}"


class _Shrink(Module):
    function = None

    def __init__(self, lambd=0.5):
        super().__init__()
        self.lambd = lambd

    def forward(self, input):
        return type(self).function(input, self.lambd)

    def extra_repr(self):
        return f"{self.lambd}"


class Hardshrink(_Shrink):
    """x where |x| > lambd, else 0."""

    function = staticmethod(F.hardshrink)


class Softshrink(_Shrink):
    """x moved towards 0 by lambd, and 0 where |x| <= lambd."""

    function = staticmethod(F.softshrink)


class Threshold(Module):
    """x where x > threshold, else value."""

    def __init__(self, threshold, value, inplace=False):
        super().__init__()
        self.threshold, self.value, self.inplace = threshold, value, inplace

    def forward(self, input):
        return F.threshold(input, self.threshold, self.value, self.inplace)

    def extra_repr(self):
        return f"threshold={self.threshold}, value={self.value}{_in_place(self)}"


class _AlongDim(Module):
    function = None

    def __init__(self, dim=None):
        super().__init__()
        self.dim = dim

    def forward(self, input):
        return type(self).function(input, self.dim)

    def extra_repr(self):
        return f"dim={self.dim}"


class Softmax(_AlongDim):
    """Softmax along `dim`."""

    function = staticmethod(F.softmax)


class Softmin(_AlongDim):
    """Softmax of the negated input along `dim`."""

    function = staticmethod(F.softmin)


class LogSoftmax(_AlongDim):
    """The logarithm of softmax along `dim`."""

    function = staticmethod(F.log_softmax)

    def extra_repr(self):
        return f"dim={self.dim}"


class RReLU(Module):
    """LeakyReLU whose slopes are drawn from [lower, upper) in training, else their mean (Xu, arXiv 1505.00853)."""

    def __init__(self, lower=1.0 / 8, upper=1.0 / 3, inplace=False):
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input):
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self):
        return f"lower={self.lower}, upper={self.upper}{_in_place(self)}"


class Softmax2d(Module):
    """Softmax over the channels of [N, C, H, W] or [C, H, W]."""

    def forward(self, input):
        if input.ndim not in (3, 4):
            raise ValueError(f"`input` must have 3 or 4 dims, got shape {tuple(input.shape)}")
        return F.softmax(input, -3)
