"""Activations."""

import warnings

import infinicore


def _activate(function, input, inplace, *args, out=None):
    """`function(input, *args)`, into the memory of `input` or into `out` if asked to."""
    if out is not None:
        if inplace:
            raise ValueError("`inplace` and `out` both say where the result goes: leave one out")
        return function(input, *args, out=out)
    if not inplace:
        return function(input, *args)
    if input.requires_grad and infinicore.is_grad_enabled():
        # The derivative needs what the input was: a copy of it is kept, and the result is written over the original.
        return input.copy_(function(input.clone(), *args))
    return function(input, *args, out=input)


def relu(input, inplace=False):
    """max(x, 0)."""
    return input.relu_() if inplace else infinicore.relu(input)


def relu6(input, inplace=False, *, out=None):
    """min(max(x, 0), 6)."""
    return _activate(infinicore.hardtanh, input, inplace, 0.0, 6.0, out=out)


def leaky_relu(input, negative_slope=0.01, inplace=False):
    """x where x > 0, else negative_slope * x."""
    return _activate(infinicore.leaky_relu, input, inplace, float(negative_slope))


def prelu(input, weight):
    """leaky_relu whose slope `weight` ([] or [C]) is learned: one, or one for each channel (dim 1)."""
    if weight.ndim > 1:
        raise ValueError(f"`weight` must be a number or [C], got shape {tuple(weight.shape)}: flatten it")
    if weight.numel() == 1:
        slope = weight.reshape(())
    else:
        channels = input.shape[1] if input.ndim > 1 else 1
        if weight.numel() != channels:
            raise ValueError(f"`weight` has {weight.numel()} slopes, but `input` of shape {input.shape} has {channels}")
        slope = weight.reshape((-1,) + (1,) * (input.ndim - 2))
    return infinicore.leaky_relu(input, slope)


def rrelu(input, lower=1.0 / 8, upper=1.0 / 3, training=False, inplace=False):
    """leaky_relu whose slopes are drawn from [lower, upper) in training, else their mean (Xu, arXiv 1505.00853)."""
    if not lower <= upper:
        raise ValueError(f"`lower` {lower} must not be above `upper` {upper}")
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    slope = infinicore.rand(input.shape, dtype=input.dtype, device=input.device) * (upper - lower) + lower
    result = infinicore.where(input > 0.0, input, (input.clone() if inplace else input) * slope)
    return input.copy_(result) if inplace else result


def elu(input, alpha=1.0, inplace=False):
    """x where x > 0, else alpha * (exp(x) - 1)."""
    return _activate(infinicore.elu, input, inplace, float(alpha))


def selu(input, inplace=False, *, out=None):
    """elu with the constants that keep mean 0 and variance 1 (Klambauer et al., arXiv 1706.02515)."""
    return _activate(infinicore.selu, input, inplace, out=out)


def celu(input, alpha=1.0, inplace=False):
    """x where x > 0, else alpha * (exp(x / alpha) - 1)."""
    if not alpha:
        raise ValueError("`alpha` of celu must not be 0")
    return _activate(infinicore.celu, input, inplace, float(alpha))


def silu(input, inplace=False, *, out=None):
    """`input * sigmoid(input)`."""
    return infinicore.silu(input, out=out) if out is not None else _activate(infinicore.silu, input, inplace)


def mish(input, inplace=False):
    """`input * tanh(softplus(input))`."""
    return _activate(infinicore.mish, input, inplace)


def gelu(input, approximate="none", *, out=None):
    """`input * Phi(input)`; approximate="tanh" takes the formula with tanh."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"`approximate` must be 'none' or 'tanh', got {approximate!r}")
    return (infinicore.gelu if approximate == "none" else infinicore.gelu_tanh)(input, out=out)


def swiglu(input, other, *, out=None):
    """`input * silu(other)`: the gate is the second argument."""
    return infinicore.swiglu(input, other, out=out)


def silu_and_mul(input, out=None):
    """`silu(input[..., :d]) * input[..., d:]`: the gate is the first half of the last dim."""
    return infinicore.silu_and_mul(input, out=out)


def glu(input, dim=-1):
    """`a * sigmoid(b)` of the two halves of `dim`."""
    if not input.ndim or input.size(dim) % 2:
        raise ValueError(f"`dim` {dim} of glu must have an even size, got shape {input.shape}")
    a, b = input.chunk(2, dim)
    return infinicore.gated_sigmoid(a, b)


def softplus(input, beta=1.0, threshold=20.0, *, out=None):
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""
    return infinicore.softplus(input, float(beta), float(threshold), out=out)


def softsign(input, *, out=None):
    """x / (1 + |x|)."""
    return infinicore.softsign(input, out=out)


def sigmoid(input, *, out=None):
    """1 / (1 + exp(-x))."""
    return infinicore.sigmoid(input, out=out)


def logsigmoid(input, *, out=None):
    """log(sigmoid(x))."""
    return infinicore.logsigmoid(input, out=out)


def tanh(input, *, out=None):
    """Hyperbolic tangent."""
    return infinicore.tanh(input, out=out)


def tanhshrink(input, *, out=None):
    """x - tanh(x)."""
    return infinicore.tanhshrink(input, out=out)


def hardtanh(input, min_val=-1.0, max_val=1.0, inplace=False, *, out=None):
    """x limited to [min_val, max_val]."""
    if min_val > max_val:
        raise ValueError(f"`min_val` {min_val} must not be above `max_val` {max_val}")
    return _activate(infinicore.hardtanh, input, inplace, min_val, max_val, out=out)


def hardsigmoid(input, inplace=False):
    """min(max(x + 3, 0), 6) / 6."""
    return _activate(infinicore.hardsigmoid, input, inplace)


def hardswish(input, inplace=False, *, out=None):
    """x * hardsigmoid(x)."""
    return _activate(infinicore.hardswish, input, inplace, out=out)


def hardshrink(input, lambd=0.5, *, out=None):
    """x where |x| > lambd, else 0."""
    return infinicore.hardshrink(input, float(lambd), out=out)


def softshrink(input, lambd=0.5, *, out=None):
    """x moved towards 0 by lambd, and 0 where |x| <= lambd."""
    if lambd < 0:
        raise ValueError(f"`lambd` of softshrink must be at least 0, got {lambd}")
    return infinicore.softshrink(input, float(lambd), out=out)


def threshold(input, threshold, value, inplace=False):
    """x where x > threshold, else value."""
    return _activate(infinicore.threshold, input, inplace, threshold, value)


def _implicit_dim(input):
    """The dim of a softmax that names none, as PyTorch still has it: 0 of 0, 1 or 3 dims, else 1."""
    dim = 0 if input.ndim in (0, 1, 3) else 1
    warnings.warn(f"`dim` of a softmax should be given: of {input.ndim} dims, {dim} is taken", stacklevel=3)
    return dim


def softmax(input, dim=None, dtype=None, *, out=None):
    """Softmax along `dim` (None, with a warning: 0 of 0, 1 or 3 dims, else 1); `dtype` converts the input first."""
    dim = _implicit_dim(input) if dim is None else dim
    if dtype is not None:
        input = input.to(dtype)
    return infinicore.softmax(input, dim, out=out)


def softmin(input, dim=None, dtype=None):
    """Softmax of the negated input, with the arguments of `softmax`."""
    return softmax(-input, _implicit_dim(input) if dim is None else dim, dtype)


def log_softmax(input, dim=None, dtype=None, *, out=None):
    """The logarithm of softmax, with its arguments."""
    dim = _implicit_dim(input) if dim is None else dim
    if dtype is not None:
        input = input.to(dtype)
    return infinicore.log_softmax(input, dim, out=out)


def causal_softmax(input, out=None):
    """Softmax of [..., S, T] along T, where row i sees columns up to T - S + i and the rest is zero."""
    return infinicore.causal_softmax(input, out=out)


def gumbel_softmax(logits, tau=1, hard=False, eps=1e-10, dim=-1):
    """Softmax of (`logits` + Gumbel noise) / `tau`: a sample of the distribution that has a gradient.

    With `hard` it is one-hot, with the gradient of the soft one (Jang, Gu and Poole, arXiv 1611.01144). `eps` is
    PyTorch's and changes nothing.
    """
    exponential = (-infinicore.log1p(-infinicore.rand(logits.shape, device=logits.device))).maximum(1e-30)
    soft = infinicore.softmax((logits - exponential.log().to(logits.dtype)) / tau, dim)
    if not hard:
        return soft
    chosen = infinicore.argmax(soft.detach(), dim, keepdim=True)
    ones = infinicore.scatter(infinicore.zeros_like(logits), dim, chosen, value=1.0)
    return ones - soft.detach() + soft


def _in_place(function):
    """The form of an activation that writes over its input, as PyTorch names it."""

    def apply(input, *args, **kwargs):
        return function(input, *args, **kwargs, inplace=True)

    apply.__name__, apply.__doc__ = f"{function.__name__}_", f"`{function.__name__}`, in place."
    return apply


relu_, elu_, celu_, selu_ = map(_in_place, (relu, elu, celu, selu))
leaky_relu_, hardtanh_, threshold_, rrelu_ = map(_in_place, (leaky_relu, hardtanh, threshold, rrelu))
