"""Activations that are one scalar rule, and the functions that they are made of."""

import numpy as np

from ..lang import scalar_math as m
from ..table.registry import ANY, elementwise
from .elementwise import NUMBERS


@elementwise(ref=np.expm1, dtypes=ANY, result="float", domain=(-5, 5), amp="float32")
def expm1(input):
    """exp(x) - 1, exact for small x."""
    return m.expm1(input)


@expm1.grad("input")
def _(g, out):
    return g * (out + 1.0)


@elementwise(ref=np.log1p, dtypes=ANY, result="float", domain=(-0.9, 8), amp="float32")
def log1p(input):
    """log(1 + x), exact for small x; NaN below -1."""
    return m.log1p(input)


@log1p.grad("input")
def _(g, input):
    return g / (input + 1.0)


@elementwise(ref=lambda x, slope: np.where(x > 0, x, x * slope))
def leaky_relu(input, negative_slope=0.01):
    """x where x > 0, else negative_slope * x; the slope may be a tensor (PReLU: He et al., arXiv 1502.01852)."""
    return m.where(input > 0.0, input, input * negative_slope)


@leaky_relu.grad("input")
def _(g, input, negative_slope):
    return m.where(input > 0.0, g, g * negative_slope)


@leaky_relu.grad("negative_slope")
def _(g, input):
    return m.where(input > 0.0, 0.0, g * input)


@elementwise(ref=lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x)))
def elu(input, alpha=1.0):
    """x where x > 0, else alpha * (exp(x) - 1) (Clevert et al., arXiv 1511.07289)."""
    return m.where(input > 0.0, input, alpha * m.expm1(input))


@elu.grad("input")
def _(g, input, alpha):
    return m.where(input > 0.0, g, g * alpha * m.exp(m.minimum(input, 0.0)))


@elementwise(ref=lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)))
def selu(input):
    """elu with the alpha and the scale that keep mean 0 and variance 1 (Klambauer et al., arXiv 1706.02515)."""
    return 1.0507009873554805 * m.where(input > 0.0, input, 1.6732632423543772 * m.expm1(input))


@selu.grad("input")
def _(g, input):
    return 1.0507009873554805 * m.where(input > 0.0, g, g * 1.6732632423543772 * m.exp(m.minimum(input, 0.0)))


@elementwise(ref=lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x / alpha)), domain=(0.2, 4))
def celu(input, alpha=1.0):
    """x where x > 0, else alpha * (exp(x / alpha) - 1) (Barron, arXiv 1704.07483)."""
    # A million positive bfloat16, one thread: 0.28 ms, computing what nobody chooses 0.51; of both signs 0.54 and 0.51.
    below = m.expm1_below(input * (1.0 / alpha), input)  # PyTorch's too; a division less
    return m.where(input > 0.0, input, alpha * below)


@celu.grad("input")
def _(g, input, alpha):
    return m.where(input > 0.0, g, g * m.exp(m.minimum(input, 0.0) * (1.0 / alpha)))


@elementwise(
    ref=lambda x, beta, threshold: np.where(x * beta > threshold, x, np.log1p(np.exp(x * beta)) / beta),
    domain=(0.2, 4),
    amp="float32",
)
def softplus(input, beta=1.0, threshold=20.0):
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""
    return m.where(input * beta > threshold, input, m.log1p(m.exp(m.minimum(input * beta, threshold))) / beta)


@softplus.grad("input")
def _(g, input, beta, threshold):
    return m.where(input * beta > threshold, g, g * m.sigmoid(input * beta))


@elementwise(ref=lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))))
def logsigmoid(input):
    """log(sigmoid(x))."""
    return m.minimum(input, 0.0) - m.log1p(m.exp(-m.abs(input)))


@logsigmoid.grad("input")
def _(g, input):
    return g * m.sigmoid(-input)


@elementwise(ref=lambda x: x * np.tanh(np.log1p(np.exp(x))))
def mish(input):
    """x * tanh(softplus(x)) (Misra, arXiv 1908.08681)."""
    e = m.exp(m.minimum(input, 20.0))
    n = e * (e + 2.0)  # tanh(log(1 + e)) = n / (n + 2)
    return input * (n / (n + 2.0))


@mish.grad("input")
def _(g, input):
    x = m.minimum(input, 20.0)  # from there on the slope is 1
    e = m.exp(x)
    n = e * (e + 2.0)
    return g * (n / (n + 2.0) + x * (4.0 * e * (e + 1.0) / ((n + 2.0) * (n + 2.0))))


@elementwise(ref=lambda x: x / (1 + np.abs(x)), dtypes=NUMBERS, result="float")
def softsign(input):
    """x / (1 + |x|)."""
    return input / (1.0 + m.abs(input))


@softsign.grad("input")
def _(g, input):
    d = 1.0 + m.abs(input)
    return g / (d * d)


@elementwise(ref=lambda x, low, high: np.minimum(np.maximum(x, low), high), dtypes=NUMBERS, result="input")
def hardtanh(input, min_val=-1.0, max_val=1.0):
    """x limited to [min_val, max_val]; the gradient is zero at the limits too. Integers stay integers."""
    return m.minimum(m.maximum(input, min_val), max_val)


@hardtanh.grad("input")
def _(g, input, min_val, max_val):
    return m.where(input > min_val, m.where(input < max_val, g, 0.0), 0.0)


@elementwise(ref=lambda x: np.clip(x + 3, 0, 6) / 6)
def hardsigmoid(input):
    """min(max(x + 3, 0), 6) / 6 (Courbariaux et al., arXiv 1511.00363)."""
    return m.minimum(m.maximum(input + 3.0, 0.0), 6.0) * 0.16666666666666666


@hardsigmoid.grad("input")
def _(g, input):
    return m.where(m.abs(input) < 3.0, g * 0.16666666666666666, 0.0)


@elementwise(ref=lambda x: x * np.clip(x + 3, 0, 6) / 6)
def hardswish(input):
    """x * hardsigmoid(x) (Howard et al., arXiv 1905.02244)."""
    return input * (m.minimum(m.maximum(input + 3.0, 0.0), 6.0) * 0.16666666666666666)


@hardswish.grad("input")
def _(g, input):
    return m.where(input <= -3.0, 0.0, m.where(input >= 3.0, g, g * (input * 0.3333333333333333 + 0.5)))


@elementwise(ref=lambda x: x - np.tanh(x), dtypes=NUMBERS, result="float")
def tanhshrink(input):
    """x - tanh(x)."""
    return input - m.tanh(input)


@tanhshrink.grad("input")
def _(g, input):
    t = m.tanh(input)
    return g * t * t


@elementwise(ref=lambda x, limit: np.where(np.abs(x) > limit, x, 0))
def hardshrink(input, lambd=0.5):
    """x, and 0 where |x| <= lambd."""
    return m.where(m.abs(input) <= lambd, 0.0, input)


@hardshrink.grad("input")
def _(g, input, lambd):
    return m.where(m.abs(input) <= lambd, 0.0, g)


@elementwise(ref=lambda x, limit: np.where(x > limit, x - limit, np.where(x < -limit, x + limit, 0)), domain=(0, 4))
def softshrink(input, lambd=0.5):
    """x moved towards 0 by lambd, and 0 where |x| <= lambd."""
    return m.where(input > lambd, input - lambd, m.where(input < -lambd, input + lambd, 0.0 * input))


@softshrink.grad("input")
def _(g, input, lambd):
    return m.where(m.abs(input) <= lambd, 0.0, g)


@elementwise(ref=lambda x, threshold, value: np.where(x <= threshold, value, x), dtypes=NUMBERS, result="input")
def threshold(input, threshold, value):
    """`value` where x <= threshold, else x, also of NaN. Integers stay integers."""
    return m.where(input <= threshold, value, input)


@threshold.grad("input")
def _(g, input, threshold):
    return m.where(input <= threshold, 0.0, g)


@elementwise(ref=lambda x, y: x * m.sigmoid(y))
def gated_sigmoid(input, other):
    """input * sigmoid(other): the two halves of a gated linear unit (Dauphin et al., arXiv 1612.08083)."""
    return input * m.sigmoid(other)


@gated_sigmoid.grad("input")
def _(g, other):
    return g * m.sigmoid(other)


@gated_sigmoid.grad("other")
def _(g, input, other):
    s = m.sigmoid(other)
    return g * input * s * (1.0 - s)
