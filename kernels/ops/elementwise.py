"""Elementwise operators. The rule is the definition: real Python, rendered into the vector loop."""

import builtins
import operator

import numpy as np

from ..lang import scalar_math as m
from ..table.registry import ALL, ANY, INEXACT, NUMERIC, alias, elementwise
from ._layout import check_holds

NUMBERS = tuple(d for d in ALL if d != "bool")
_erf = m.erf


@elementwise(ref=np.add, dtypes=ANY)
def add(input, other):
    """Sum of two tensors, element by element; with `alpha`, input + alpha * other."""
    return input + other


@add.grad("input", "other")
def _(g):
    return g


@elementwise(ref=np.subtract, dtypes=NUMERIC, refuses=("bool",))
def sub(input, other):
    """Difference of two tensors, neither of which may be bool; with `alpha`, input - alpha * other."""
    return input - other


@elementwise(ref=lambda x, y, a: x + a * y, dtypes=NUMERIC, result="input", amp="promote", step=True)
def plus_scaled(input, other, alpha):
    """input + alpha * other, in one pass."""
    return input + alpha * other


@plus_scaled.grad("input")
def _(g):
    return g


@plus_scaled.grad("other")
def _(g, alpha):
    return g * alpha


def _plus_scaled(f, input, other, alpha, out, name):
    """input + alpha * other, of 16-bit floats rounded once."""
    dtype = getattr(other, "dtype", None)
    alike = dtype is not None and dtype.kind == "f" and getattr(input, "dtype", None) is dtype
    if alike and type(alpha) in (int, float) and -6e4 < alpha < 6e4:  # what nearly all calls are
        return f.plus_scaled(input, other, alpha, out=out)
    if not isinstance(alpha, (int, float, np.number)):
        raise TypeError(f"`alpha` of `{name}` must be a number, got {type(alpha).__name__}")
    kinds = {x.dtype.kind if hasattr(x, "dtype") else "f" if isinstance(x, float) else "b" for x in (input, other)}
    whole = isinstance(alpha, (int, np.integer))
    if "f" not in kinds and "c" not in kinds and not whole:
        raise TypeError(f"`alpha` of `{name}` must be an integer beside integer tensors, got {alpha}")
    if isinstance(alpha, (bool, np.bool_)) and kinds != {"b"}:
        raise TypeError(f"`alpha` of `{name}` must be a number beside tensors of numbers, got {alpha}")
    common = f.result_type(input, other)
    check_holds(name, common, alpha=alpha)
    if common.name == "bool":  # one or the other, which counts where `alpha` is not 0
        alpha = bool(alpha)
        return f.add(input, f.mul(other, alpha) if hasattr(other, "dtype") else other and alpha, out=out)
    if not hasattr(other, "dtype"):
        return f.add(input, other * alpha, out=out)
    if getattr(input, "dtype", None) is other.dtype:
        return f.plus_scaled(input, other, alpha, out=out)
    if common.itemsize == 2 and common.is_floating_point:
        wide = f.add(input, f.mul(other.to(dtype="float32"), alpha)).to(dtype=common)
        return wide if out is None else f.mul(wide, 1, out=out)  # which looks at the dtype of `out`
    return f.add(input, f.mul(other.to(dtype=common), alpha), out=out)


@add.form("alpha")
def _(f, input, other, *, alpha, out=None):
    return _plus_scaled(f, input, other, alpha, out, "add")


@sub.form("alpha")
def _(f, input, other, *, alpha, out=None):
    for x in (input, other):
        if getattr(x, "dtype", None) is not None and x.dtype.kind == "b":
            raise TypeError("`sub` takes no bool tensors: use `logical_xor`, or cast them first")
    return _plus_scaled(f, input, other, -alpha, out, "sub")


@sub.grad("input")
def _(g):
    return g


@sub.grad("other")
def _(g):
    return -g


@elementwise(ref=np.multiply, dtypes=ANY)
def mul(input, other):
    """Product of two tensors."""
    return input * other


@mul.grad("input", "other")
def _(g, other):
    return g * other


@elementwise(ref=np.true_divide, dtypes=ANY, result="float")
def div(input, other):
    """Quotient of two tensors; integers are divided as float32.

    `rounding_mode` "floor" or "trunc" rounds it down or towards 0, as `floor_divide` and `trunc_divide`.
    """
    return input / other


@div.form("rounding_mode")
def _(f, input, other, *, rounding_mode, out=None):
    if rounding_mode not in ("floor", "trunc"):
        raise ValueError(f"`rounding_mode` of `div` must be None, 'floor' or 'trunc', got {rounding_mode!r}")
    return (f.floor_divide if rounding_mode == "floor" else f.trunc_divide)(input, other, out=out)


alias(div, "divide", "true_divide")


@div.grad("input")
def _(g, other):
    return g / other


@div.grad("other")
def _(g, other, out):
    return -g * out / other


@elementwise(ref=np.negative, dtypes=NUMERIC, exact=True)
def neg(input):
    """Each element negated."""
    return -input


@neg.of_words
def _(input):
    return input ^ -0x8000


@neg.grad("input")
def _(g):
    return -g


@elementwise(ref=np.abs, dtypes=NUMERIC, exact=True)
def abs_(input):
    """Absolute value."""
    return m.abs(input)


@abs_.of_words
def _(input):
    return input & 0x7FFF


@abs_.grad("input")
def _(g, input):
    return m.where(input > 0, g, m.where(input < 0, -g, 0.0 * g))


@elementwise(ref=np.exp, dtypes=ANY, result="float", domain=(-5, 5))
def exp(input):
    """Exponential."""
    return m.exp(input)


@exp.grad("input")
def _(g, out):
    return g * out


@elementwise(ref=np.log, dtypes=ANY, result="float", domain=(0.01, 8))
def log(input):
    """Natural logarithm; NaN below 0."""
    return m.log(input)


@log.grad("input")
def _(g, input):
    return g / input


@elementwise(ref=np.sqrt, dtypes=ANY, result="float", domain=(0, 8))
def sqrt(input):
    """Square root."""
    return m.sqrt(input)


@sqrt.grad("input")
def _(g, out):
    return 0.5 * g / out


@elementwise(ref=lambda x: 1 / np.sqrt(x), dtypes=ANY, result="float", domain=(0.05, 8))
def rsqrt(input):
    """Reciprocal of the square root."""
    return 1.0 / m.sqrt(input)


@rsqrt.grad("input")
def _(g, out):
    return -0.5 * g * (out * out * out)


@elementwise(ref=lambda x: 1 / x, dtypes=ANY, result="float", domain=(0.1, 8))
def reciprocal(input):
    """1 / input."""
    return 1.0 / input


@reciprocal.grad("input")
def _(g, out):
    return -g * (out * out)


@elementwise(ref=np.sin, dtypes=ANY, result="float")
def sin(input):
    """Sine of radians."""
    return m.sin(input)


@sin.grad("input")
def _(g, input):
    return g * m.cos(input)


@elementwise(ref=np.cos, dtypes=ANY, result="float")
def cos(input):
    """Cosine of radians."""
    return m.cos(input)


@cos.grad("input")
def _(g, input):
    return -g * m.sin(input)


@elementwise(ref=np.tanh, dtypes=ANY, result="float")
def tanh(input):
    """Hyperbolic tangent."""
    return m.tanh(input)


@tanh.grad("input")
def _(g, out):
    return g * (1.0 - out * out)


@elementwise(ref=_erf, dtypes=ALL, result="float")
def erf(input):
    """Error function."""
    return m.erf(input)


@erf.grad("input")
def _(g, input):
    return g * (1.1283791670955126 * m.exp(-(input * input)))


@elementwise(ref=m.sigmoid, dtypes=ANY, result="float")
def sigmoid(input):
    """Logistic function 1 / (1 + exp(-x))."""
    return m.sigmoid(input)


@sigmoid.grad("input")
def _(g, out):
    return g * (out * (1.0 - out))


@elementwise(ref=lambda x: np.maximum(x, 0), dtypes=NUMBERS, exact=True)
def relu(input):
    """max(x, 0)."""
    return m.where(input < 0, 0, input)  # keeps NaN, as `maximum` does, for less


@relu.grad("input")
def _(g, out):
    return m.where(out <= 0, 0.0, g)  # of NaN, too


@elementwise(ref=lambda x: x * m.sigmoid(x), dtypes=INEXACT)
def silu(input):
    """x * sigmoid(x) (Elfwing et al., arXiv 1702.03118)."""
    return input / (1.0 + m.exp(-input))


@silu.grad("input")
def _(g, input):
    s = m.sigmoid(input)
    return g * (s * (1.0 + input * (1.0 - s)))


@elementwise(ref=lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))), tolerance={"bfloat16": (2e-2, 2e-2)})
def gelu(input):
    """x * Phi(x), Phi the normal distribution function (Hendrycks and Gimpel, arXiv 1606.08415)."""
    return input * m.normal_cdf(input)


@gelu.grad("input")
def _(g, input):
    return g * (m.normal_cdf(input) + input * (0.3989422804014327 * m.exp(-0.5 * input * input)))


@elementwise(ref=lambda x: 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))))
def gelu_tanh(input):
    """GELU in its tanh approximation, with 1 + tanh(u) as 2 sigmoid(2 u): half the time, and nothing cancels."""
    return input / (1.0 + m.exp(-1.5957691216057308 * (input + 0.044715 * input * input * input)))


@gelu_tanh.grad("input")
def _(g, input):
    square = input * input
    s = m.sigmoid(1.5957691216057308 * input * (1.0 + 0.044715 * square))
    slope = 1.5957691216057308 * (1.0 + 0.134145 * square)
    return g * (s + input * (s * (1.0 - s)) * slope)


@elementwise(ref=lambda x, y: x * (y * m.sigmoid(y)))
def swiglu(input, other):
    """input * silu(other): the gate is the second argument."""
    return input * (other / (1.0 + m.exp(-other)))


@swiglu.grad("input")
def _(g, other):
    return g * (other * m.sigmoid(other))


@swiglu.grad("other")
def _(g, input, other):
    s = m.sigmoid(other)
    return g * input * (s * (1.0 + other * (1.0 - s)))


def _check_exponent(dtype, input, exponent):
    if dtype.kind in "iu" and not hasattr(exponent, "strides_") and not 0 <= exponent <= np.iinfo(dtype.numpy).max:
        what = (
            "have no negative powers" if exponent < 0 else f"of {dtype} have no larger exponents than those they hold"
        )
        raise ValueError(f"`exponent` of `pow` is {exponent}, but integers {what}: cast `input` to another dtype")


@elementwise(
    ref=np.power,
    dtypes=NUMERIC,
    domain=(0.1, 4),
    tolerance={"float32": (1e-5, 1e-5)},
    check=_check_exponent,
)
def pow_(input, exponent):
    """input ** exponent; integers stay integers, modulo 2^bits as their products are.

    Raises ValueError for integers to the power of a negative number. Tensors may hold negative exponents of integers:
    the power is that of 1 or -1, and 0 of all other bases. Floats to the power of the numbers 2, 3, -1, -2, 0.5 and
    -0.5 are products, quotients and roots, as PyTorch's: the root of -infinity is NaN, that of -0 is -0.
    """
    return m.pow(input, exponent)


@pow_.grad("input")
def _(g, input, exponent):
    return m.where(exponent == 0.0, 0.0, g * exponent * m.pow(input, exponent - 1.0))


@pow_.grad("exponent")
def _(g, input, exponent, out):
    slope = g * out * m.log(input)
    return m.where(input == 0.0, m.where(m.real(exponent) >= 0.0, 0.0, slope), slope)


@elementwise(ref=lambda x: x**3, dtypes=NUMERIC, step=True)
def cube(input):
    """input * input * input."""
    return input * input * input


@cube.grad("input")
def _(g, input):
    return 3.0 * g * (input * input)


@elementwise(ref=lambda x: 1 / x**2, dtypes=ANY, result="float", domain=(0.1, 8), step=True)
def reciprocal_square(input):
    """1 / (input * input)."""
    return 1.0 / (input * input)


@reciprocal_square.grad("input")
def _(g, input, out):
    return -2.0 * g * out / input


# A million x ** 2 took 8.4 ms with one thread, its gradient as long; x * x takes 0.2.
pow_.at(2)(lambda f, input, out=None: f.square(input, out=out))
pow_.at(3)(lambda f, input, out=None: f.cube(input, out=out))
pow_.at(-1)(lambda f, input, out=None: f.reciprocal(input, out=out))
pow_.at(-2)(lambda f, input, out=None: f.reciprocal_square(input, out=out))
pow_.at(0.5)(lambda f, input, out=None: f.sqrt(input, out=out))
pow_.at(-0.5)(lambda f, input, out=None: f.rsqrt(input, out=out))


@elementwise(ref=np.square, dtypes=NUMERIC)
def square(input):
    """input * input."""
    return input * input


@square.on("b")
def _(f, input):
    return input.to(dtype="int64")


@square.grad("input")
def _(g, input):
    return 2.0 * g * input


@elementwise(ref=np.floor, exact=True)
def floor(input):
    """Largest integer not above."""
    return m.floor(input)


@elementwise(ref=np.ceil, exact=True)
def ceil(input):
    """Smallest integer not below."""
    return m.ceil(input)


@elementwise(ref=np.rint, exact=True)
def round_(input):
    """Nearest integer, ties to even; with `decimals`, nearest multiple of 10 ** -decimals."""
    return m.round(input)


@round_.form("decimals")
def _(f, input, *, decimals, out=None):
    """Nearest multiple of 10 ** -decimals; 16-bit floats are rounded in float32."""
    decimals = operator.index(decimals)
    if not input.dtype.is_floating_point:
        raise TypeError(f"`decimals` of `round` goes with floats, got {input.dtype}: cast `input`")
    wide = input.to(dtype="float32") if input.dtype.itemsize < 4 else input
    scale = float(f"1e{builtins.abs(decimals)}")
    before, after = (f.div, f.mul) if decimals < 0 else (f.mul, f.div)
    y = after(f.round(before(wide, scale)), scale, out=out)
    return y.to(dtype=input.dtype) if out is None else y


for _row in (floor, ceil, round_):

    @_row.grad("input")
    def _(g):
        return 0.0 * g


@elementwise(ref=np.maximum, dtypes=ALL, exact=True)
def maximum(input, other):
    """The larger of two elements; NaN if either is."""
    return m.maximum(input, other)


@maximum.grad("input", "other")
def _(g, input, other):
    return m.where(input < other, 0.0, m.where(input == other, 0.5 * g, g))  # NaN hands it to both


@elementwise(ref=np.minimum, dtypes=ALL, exact=True)
def minimum(input, other):
    """The smaller of two elements; NaN if either is."""
    return m.minimum(input, other)


@minimum.grad("input", "other")
def _(g, input, other):
    return m.where(input > other, 0.0, m.where(input == other, 0.5 * g, g))


def _check_where(dtype, condition, input, other):
    check_holds("where", dtype, input=input, other=other)


@elementwise(ref=np.where, dtypes=ANY, check=_check_where)
def where(condition, input=None, other=None):
    """`input` where the bool tensor `condition` is true, else `other`; of a tensor alone, `nonzero(as_tuple=True)`."""
    return m.where(condition, input, other)


@where.form("other")
def _(f, condition, input, other, out=None):
    if input is not None or out is not None:
        raise TypeError("`where` takes a condition alone, or also `input` and `other`: `other` is missing")
    return f.nonzero(condition, as_tuple=True)


@where.on("u")
def _(f, condition, input=None, other=None):
    """PyTorch's old masks of bytes."""
    if condition.dtype.name != "uint8":
        raise TypeError(f"`condition` of `where` must be a bool tensor, got {condition.dtype}: compare it with 0")
    return f.where(f.ne(condition, 0), input, other)


@where.grad("input")
def _(condition, g):
    return m.where(condition, g, 0.0)


@where.grad("other")
def _(condition, g):
    return m.where(condition, 0.0, g)


@elementwise(ref=np.equal, dtypes=ANY, result="bool")
def eq(input, other):
    """Where the elements are equal."""
    return input == other


@elementwise(ref=np.not_equal, dtypes=ANY, result="bool")
def ne(input, other):
    """Where the elements differ."""
    return input != other


@elementwise(ref=np.less, dtypes=ALL, result="bool")
def lt(input, other):
    """Where input < other."""
    return input < other


@elementwise(ref=np.less_equal, dtypes=ALL, result="bool")
def le(input, other):
    """Where input <= other."""
    return input <= other


@elementwise(ref=np.greater, dtypes=ALL, result="bool")
def gt(input, other):
    """Where input > other."""
    return input > other


@elementwise(ref=np.greater_equal, dtypes=ALL, result="bool")
def ge(input, other):
    """Where input >= other."""
    return input >= other


@elementwise(ref=lambda x: x, dtypes=ANY, result="given")
def cast(input):
    """Each element as another dtype; floats become integers by truncation."""
    return input


@cast.grad("input")
def _(g):
    return g
