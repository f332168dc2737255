"""Elementwise operators of two or three tensors, and the parts of numbers: signs, fractions, exponents."""

import numpy as np

from ..blocks.array import ALIKE, FREXP
from ..lang import scalar_math as m
from ..table.composite import composite
from ..table.registry import ALL, ANY, FLOATS, INEXACT, INTEGERS, NUMERIC, alias, elementwise, op
from ._layout import UNSIGNED, as_it_lies, check, check_alike
from .copy import fill, row_major
from .elementwise import NUMBERS, abs_, ge, gt, le, lt, mul, ne, neg, sub

# ---- signs and fractions -----------------------------------------------------------------------


@elementwise(ref=lambda x: x if x.dtype == bool else np.sign(x), dtypes=ALL, exact=True)
def sign(input):
    """1, -1 or 0: the sign of each element, 0 for NaN."""
    zero = m.where(input != 0, 0, input) + 0
    return m.where(input > 0, 1, m.where(input < 0, -1, zero))


@elementwise(ref=np.trunc, exact=True)
def trunc(input):
    """Each element without its fraction."""
    return m.trunc(input)


for _row in (sign, trunc):

    @_row.grad("input")
    def _(g):
        return 0.0 * g


@elementwise(ref=lambda x: x - np.trunc(x))
def frac(input):
    """The fraction of each element, with its sign."""
    return input - m.trunc(input)


@frac.grad("input")
def _(g):
    return g


@elementwise(ref=np.signbit, dtypes=FLOATS, result="bool")
def signbit(input):
    """Where the sign bit is set: below 0, and at -0."""
    return m.negative(input)


@signbit.of_words
def _(input):
    return input < 0


@elementwise(ref=np.isnan, dtypes=INEXACT, result="bool")
def isnan(input):
    """Where elements are NaN."""
    return input != input


@elementwise(ref=np.isfinite, dtypes=INEXACT, result="bool")
def isfinite(input):
    """Where elements are neither infinite nor NaN."""
    return input - input == 0


alias(trunc, "fix")


@elementwise(ref=np.copysign, result="float", exact=True)
def copysign(input, other):
    """The magnitude of `input` with the sign of `other`, which zeros have as well."""
    return m.copysign(input, other)


@copysign.of_words
def _(input, other):
    return (input & 0x7FFF) | (other & -0x8000)


@copysign.grad("input")
def _(g, input, out):
    return m.where(input == 0.0, 0.0, g * (out / m.where(input == 0.0, 1.0, input)))


@copysign.grad("other")
def _(g):
    return 0.0 * g


def _check_nextafter(dtype, input, other):
    kinds = [getattr(getattr(x, "dtype", None), "name", type(x).__name__) for x in (input, other)]
    if dtype.itemsize == 2 and kinds != [dtype.name] * 2:
        raise TypeError(f"`nextafter` in {dtype} needs one dtype, got {kinds[0]} and {kinds[1]}: cast them first")


@elementwise(ref=np.nextafter, check=_check_nextafter)
def nextafter(input, other):
    """The next number of the dtype from `input` towards `other`."""
    return m.nextafter(input, other)


@nextafter.of_words
def _(input, other, infinity):
    # By what GPUs have for two words at once: by comparisons it took 37 instructions an element.
    left, right = m.below_zero(input), m.below_zero(other)
    place = (input ^ (left & 0x7FFF)) + (left & 1)  # the number's place among all, that of both zeros being 0
    target = (other ^ (right & 0x7FFF)) + (right & 1)
    found = m.maximum(m.minimum(target, place + 1), place + -1)
    size = input & 0x7FFF
    sign = left ^ ((left ^ right) & m.below_zero(size + -1))  # of 0, that of `other`
    found = ((found ^ sign) + (sign & 1)) | (sign & -0x8000)
    missing = m.below_zero((m.maximum(size, other & 0x7FFF) ^ -1) + (infinity + 1))  # where one is NaN
    return found ^ ((found ^ 0x7FFF) & missing)


@nextafter.grad("input")
def _(g):
    return g


@nextafter.grad("other")
def _(g):
    return 0.0 * g


def _check_heaviside(_, input, values):
    check_alike("heaviside", input, values=values)


def _heaviside_ref(x, values):
    return np.where(x == 0, values, x > 0).astype(values.dtype)


@elementwise(ref=_heaviside_ref, dtypes=NUMBERS, gradient=None, check=_check_heaviside)
def heaviside(input, values):
    """0 below 0, 1 above, and `values` at 0; 0 for NaN."""
    return m.where(input == 0, values, m.where(input > 0, 1, m.where(input != 0, 0, input)))


@heaviside.on("b")
def _(f, input, values):
    check_alike("heaviside", input, values=values)
    return f.logical_or(input, values)


# ---- extremes and integers -----------------------------------------------------------------------


@elementwise(ref=np.fmax, dtypes=ALL, exact=True)
def fmax(input, other):
    """The larger of two elements, or the one that is not NaN."""
    return m.where((other != other) | (input >= other), input, other)


@fmax.grad("input")
def _(g, input, other):
    return m.where((other != other) | (input >= other), g, 0.0)


@fmax.grad("other")
def _(g, input, other):
    return m.where((other != other) | (input >= other), 0.0, g)


@elementwise(ref=np.fmin, dtypes=ALL, exact=True)
def fmin(input, other):
    """The smaller of two elements, or the one that is not NaN."""
    return m.where((other != other) | (input <= other), input, other)


@fmin.grad("input")
def _(g, input, other):
    return m.where((other != other) | (input <= other), g, 0.0)


@fmin.grad("other")
def _(g, input, other):
    return m.where((other != other) | (input <= other), 0.0, g)


@elementwise(ref=np.gcd, dtypes=INTEGERS, gradient=None)
def gcd(input, other):
    """The greatest common divisor of two integers, not negative; that of 0 and n is |n|."""
    return m.gcd(input, other)


@elementwise(ref=np.lcm, dtypes=INTEGERS, gradient=None)
def lcm(input, other):
    """The least common multiple of two integers, not negative; that of 0 and n is 0."""
    return m.abs(m.trunc_divide(input, m.gcd(input, other)) * other)


# ---- sums ----------------------------------------------------------------------------------------


@elementwise(ref=np.logaddexp, amp="float32")
def logaddexp(input, other):
    """log(exp(input) + exp(other)), without overflow."""
    top, d = m.maximum(input, other), m.abs(input - other)
    return m.where(input == other, top + 0.6931471805599453, top + m.log1p(m.exp(-d)))


@logaddexp.grad("input", "other")
def _(g, input, other):
    return g * m.sigmoid(input - other)


@elementwise(ref=np.logaddexp2, amp="float32")
def logaddexp2(input, other):
    """log2(2^input + 2^other), without overflow."""
    top, d = m.maximum(input, other), m.abs(input - other)
    return m.where(input == other, top + 1.0, top + 1.4426950408889634 * m.log1p(m.exp(-0.6931471805599453 * d)))


@logaddexp2.grad("input", "other")
def _(g, input, other):
    return g * m.sigmoid(0.6931471805599453 * (input - other))


def _check_lerp(_, input, end, weight):
    weight = weight if getattr(weight, "shape_", ()) else 0.5  # of another dtype, a 0-dim one is a number
    check_alike("lerp", input, end=end, weight=weight)
    if input.dtype.kind in "iub":
        raise TypeError(f"`input` of `lerp` must be of floats, got {input.dtype}: cast it")


@elementwise(ref=lambda a, b, w: a + w * (b - a), amp="promote", dtypes=INEXACT, check=_check_lerp)
def lerp(input, end, weight):
    """input + weight * (end - input), exactly `end` where `weight` is 1."""
    d = end - input
    return m.where(m.abs(weight) < 0.5, input + weight * d, end - d * (1.0 - weight))


@lerp.grad("input")
def _(g, weight):
    return g * (1.0 - weight)


@lerp.grad("end")
def _(g, weight):
    return g * weight


@lerp.grad("weight")
def _(g, input, end):
    return g * (end - input)


@elementwise(ref=lambda x, a, b, value=1: x + value * a * b, dtypes=NUMERIC, result="input", amp="promote")
def addcmul(input, tensor1, tensor2, value=1):
    """input + value * tensor1 * tensor2."""
    return input + value * tensor1 * tensor2


@addcmul.grad("input")
def _(g):
    return g


@addcmul.grad("tensor1")
def _(g, tensor2, value):
    return g * value * tensor2


@addcmul.grad("tensor2")
def _(g, tensor1, value):
    return g * value * tensor1


def _check_addcdiv(_, input, tensor1, tensor2, value=1):
    if all(getattr(x, "dtype", None) is not None and x.dtype.kind in "iub" for x in (tensor1, tensor2)):
        raise TypeError(
            f"`tensor1` and `tensor2` of `addcdiv` are divided, got {tensor1.dtype} and {tensor2.dtype}: for quotients "
            "of integers, add `div` with its `rounding_mode`; for one of floats, cast them"
        )


@elementwise(
    ref=lambda x, a, b, value=1: x + value * a / b,
    domain=(0.3, 4),
    amp="promote",
    dtypes=INEXACT,
    check=_check_addcdiv,
)
def addcdiv(input, tensor1, tensor2, value=1):
    """input + value * tensor1 / tensor2, of floats."""
    return input + value * (tensor1 / tensor2)


@addcdiv.grad("input")
def _(g):
    return g


@addcdiv.grad("tensor1")
def _(g, tensor2, value):
    return g * value / tensor2


@addcdiv.grad("tensor2")
def _(g, tensor1, tensor2, value):
    return -g * value * tensor1 / (tensor2 * tensor2)


# ---- written with others -------------------------------------------------------------------------


def _one(rng):
    yield (rng.uniform(-3, 3, (3, 17)),), {}
    yield (np.array(0.75),), {}


@composite(ref=np.deg2rad, samples=_one)
def deg2rad(f, input):
    """Degrees as radians."""
    return f.mul(input, np.pi / 180)


@composite(ref=np.rad2deg, samples=_one, tolerance={"bfloat16": (1e-2, 1)})
def rad2deg(f, input):
    """Radians as degrees."""
    return f.mul(input, 180 / np.pi)


@elementwise(
    ref=np.sinc, dtypes=ANY, result="float", domain=(-3, 3), tolerance={"float32": (1e-5, 1e-6)}, amp="float32"
)  # fmt: skip
def sinc(input):
    """sin(pi x) / (pi x), and 1 at 0."""
    near = m.abs(input) < 1e-18  # what is near 0 has no quotient of some devices
    t = m.where(near, 1.0, input * 3.141592653589793)
    return m.where(near, 1.0, m.sin(t) / t)


@sinc.grad("input")
def _(g, input):
    t = m.where(input == 0, 1.0, input * 3.141592653589793)
    return m.where(input == 0, 0.0, g * (m.cos(t) - m.sin(t) / t) / m.where(input == 0, 1.0, input))


def _specials(rng):
    yield (np.array([[np.nan, np.inf, -np.inf, 1.0], [0.0, -0.0, -2.0, 3.5]]),), {}
    yield (rng.standard_normal((3, 5)),), {}


def _asked(function):
    """Samples and a reference without derivatives: of questions."""
    return {"ref": function, "samples": _specials, "gradient": None}


@composite(**_asked(np.isinf), dtypes=INEXACT)
def isinf(f, input):
    """Where elements are infinite."""
    check(f, input, "input", integers=True)
    return f.eq(f.abs(input), np.inf) if input.dtype.differentiable else f.ne(input, input)


@composite(**_asked(np.isposinf))
def isposinf(f, input):
    """Where elements are positive infinity."""
    return f.eq(input, np.inf)


@composite(**_asked(np.isneginf))
def isneginf(f, input):
    """Where elements are negative infinity."""
    return f.eq(input, -np.inf)


@composite(**_asked(np.isreal), dtypes=INEXACT)
def isreal(f, input):
    """Where elements have no imaginary part: everywhere, of real numbers."""
    if input.dtype.kind == "c":
        return f.eq(f.imag(input), 0)
    return input.new_full(input.shape_, True, dtype="bool")


def _near_ref(x, y, rtol, atol):
    error = np.abs(x - y)
    return (x == y) | ((error < np.inf) & (error <= atol + rtol * np.abs(y)))


@elementwise(ref=_near_ref, dtypes=FLOATS, result="bool", step=True)
def is_near(input, other, rtol, atol):
    """Where |input - other| <= atol + rtol * |other|, or both are equal; 16-bit floats are compared as float32."""
    error = m.abs(input - other)
    return (input == other) | ((error - error == 0.0) & (error <= atol + rtol * m.abs(other)))


def _isclose_samples(rng):
    x = np.array([1.0, 1.0, np.nan, np.inf, np.inf, 100.0])
    yield (x, np.array([1.0, 1.5, np.nan, np.inf, -np.inf, 100.0])), {}
    yield (x, x + 0.01), {"rtol": 1e-3, "atol": 0.02, "equal_nan": True}


@composite(dtypes=ANY, ref=np.isclose, samples=_isclose_samples, gradient=None)
def isclose(f, input, other, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False):
    """Where |input - other| <= atol + rtol * |other|, or both are the same infinity (or NaN, with `equal_nan`)."""
    check(f, input, "input")
    check(f, other, "other")
    if input.dtype is not other.dtype:
        raise ValueError(f"`other` of `{f.op.name}` must be {input.dtype.name} as `input`, got {other.dtype.name}")
    if rtol < 0 or atol < 0:
        raise ValueError(f"`rtol` and `atol` of `{f.op.name}` must not be negative, got {rtol} and {atol}")
    if input.dtype.kind == "c":
        error = f.abs(f.sub(input, other))
        close = f.logical_and(f.lt(error, np.inf), f.le(error, f.add(f.mul(f.abs(other), rtol), atol)))
        close = f.logical_or(f.eq(input, other), close)
    elif rtol or atol:
        a, b = (x if x.dtype.is_floating_point else x.to(dtype="float64") for x in (input, other))
        close = f.is_near(a, b, rtol, atol)
    else:
        close = f.eq(input, other)
    if equal_nan:
        close = f.logical_or(close, f.logical_and(f.ne(input, input), f.ne(other, other)))
    return close


@composite(dtypes=ANY, ref=np.allclose, samples=None, gradient=None)
def allclose(f, input, other, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False):
    """Whether all elements are close, under the rules of `isclose`: a Python bool."""
    return bool(f.all(f.isclose(input, other, rtol, atol, equal_nan)))


_FIRST, _CHUNK = 1024, 16384  # elements that `equal` looks at before the others, and of those at a time


def _beginning(shape):
    """The sizes of the part with the first elements in their order, about _FIRST of them."""
    found, left = [], _FIRST
    for size in reversed(shape):
        found.append(max(1, min(size, left)))
        left = left // size if found[-1] == size else 0
    return tuple(reversed(found))


@op(dtypes=ANY, ref=np.array_equal, samples=None, gradient=None)
def equal(call, input, other):
    """Whether two tensors have the same shape and elements: a Python bool."""
    check(call, input, "input")
    check(call, other, "other")
    if input.shape_ != other.shape_ or not input.numel_:
        return input.shape_ == other.shape_
    if input.dtype is not other.dtype:
        return bool(call.elementwise("eq", input, other).all())
    if input.strides_ == other.strides_ and not input.contiguous_:
        input, other = as_it_lies(call, input), as_it_lies(call, other)
    alike, pair = call.empty((1,), "int64"), 1 if input.dtype.kind != "c" else 2
    dtype = input.dtype if pair == 1 else input.dtype.real
    types = {"T": dtype.name if dtype.is_floating_point else UNSIGNED[dtype.itemsize]}
    if not (input.contiguous_ and other.contiguous_):
        fill(call, alike, 1)  # a known call looks at it behind each launch, and the first ones are copies
    start, shape = 0, _beginning(input.shape_)  # most of those that differ do so early
    for sizes in (shape, input.shape_) if shape != input.shape_ else (shape,):
        x, y = (row_major(call, call.view(t, sizes, t.strides_)) for t in (input, other))
        stop = x.numel_ * pair
        step = min(_CHUNK, stop - start)
        block = ALIKE(x=x, y=y, alike=alike, numel=stop, step=step, start=start)
        call.launch("array.chosen.alike", types, block, -(-(stop - start) // step), step)
        start = stop
    return call.read(alike) != 0


def _nan_to_num_samples(rng):
    yield (np.array([np.nan, 1.0, -2.0, np.inf, -np.inf]),), {"posinf": 3.0, "neginf": -4.0}
    yield (rng.standard_normal((3, 5)),), {}


def _replaced(x, nan, posinf, neginf):
    return np.where(np.isnan(x), nan, np.where(x == np.inf, posinf, np.where(x == -np.inf, neginf, x)))


@elementwise(ref=_replaced, result="input", step=True)
def replace_nonfinite(input, nan, posinf, neginf):
    """`input` with `nan` for NaN, `posinf` for infinity and `neginf` for -infinity: `nan_to_num` of floats."""
    other = m.where(input == input, m.where(input > 0.0, posinf, neginf), nan)
    return m.where(input - input == 0.0, input, other)


@replace_nonfinite.grad("input")
def _(g, input):
    return m.where(input - input == 0.0, g, 0.0)


@composite(dtypes=ALL, ref=np.nan_to_num, samples=_nan_to_num_samples)
def nan_to_num(f, input, nan=0.0, posinf=None, neginf=None):
    """NaN, infinity and -infinity replaced by numbers, by default 0 and the largest and smallest of the dtype."""
    check(f, input, "input")
    if not input.dtype.is_floating_point:
        return f.rearrange(input)
    most = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
    top = most.get(input.dtype.name, 1.7976931348623157e308)
    posinf, neginf = top if posinf is None else posinf, -top if neginf is None else neginf
    return f.replace_nonfinite(input, 0.0 if nan is None else nan, posinf, neginf)


@elementwise(ref=lambda x, n: x * 2.0**n, dtypes=ANY, result="float")
def ldexp(input, other):
    """input * 2^other, in three steps: the power alone may be infinite or 0 where the product is not."""
    power = m.minimum(m.maximum(other, -3300.0), 3300.0)  # beyond which nothing is left, or finite
    part = m.floor(power * 0.33)
    return input * m.exp2(part) * m.exp2(part) * m.exp2(power - 2.0 * part)


@ldexp.on("c")
def _(f, input, other):
    return f.mul(input, f.exp2(other))


@ldexp.grad("input")
def _(g, other):
    power = m.minimum(m.maximum(other, -3300.0), 3300.0)
    part = m.floor(power * 0.33)
    return g * m.exp2(part) * m.exp2(part) * m.exp2(power - 2.0 * part)


@ldexp.grad("other")
def _(g, out):
    return g * out * 0.6931471805599453


def _float_power_samples(rng):
    yield (rng.uniform(0.3, 3, (3, 5)), 2.5), {}
    yield (rng.uniform(0.3, 3, (3, 5)), rng.uniform(-2, 2, 5)), {}


@composite(dtypes=ANY, ref=np.float_power, samples=_float_power_samples)
def float_power(f, input, exponent):
    """input ** exponent in float64, or in complex128 where one is complex."""
    is_complex = any(
        isinstance(x, complex) or getattr(getattr(x, "dtype", None), "kind", "") == "c" for x in (input, exponent)
    )
    wide, number = ("complex128", complex) if is_complex else ("float64", float)
    wide = [x.to(dtype=wide) if hasattr(x, "strides_") else number(x) for x in (input, exponent)]
    return f.pow(*wide)


def _frexp_grad_samples(rng):
    yield (rng.uniform(1.1, 1.9, (3, 5)) * 4,), {}


def _frexp_samples(rng):
    yield (rng.standard_normal((3, 17)) * 100,), {}
    yield (np.array([0.0, -0.0, 1.0, -8.0, 0.3, 6e-5]),), {}


@op(
    ref=np.frexp, samples=_frexp_samples, grad_samples=_frexp_grad_samples, outputs=("out", "exponent"),
    fields=("mantissa", "exponent"),
)  # fmt: skip
def frexp(call, input):
    """(mantissa, int32 exponent), input = mantissa * 2^exponent and 0.5 <= |mantissa| < 1; infinity and NaN stay."""
    check(call, input, "input")
    x = row_major(call, input)
    mantissa, exponent = call.out(x.shape_, x.dtype, overlap="same"), call.out(x.shape_, "int32", key="exponent")
    block = FREXP(x=x, mantissa=mantissa, exponent=exponent)
    call.launch("array.parts.frexp", {"T": x.dtype.name}, block, x.numel_, 1)
    return mantissa, exponent


@frexp.grad("input")
def _(f, g, exponent):
    return f.ldexp(g, f.neg(exponent))


def _rsub_samples(rng):
    yield (rng.standard_normal((3, 5)), rng.standard_normal(5)), {"alpha": 2}
    yield (rng.standard_normal((3, 5)), 1.5), {}


@composite(dtypes=NUMERIC, ref=lambda x, y, alpha=1: y - alpha * x, samples=_rsub_samples)
def rsub(f, input, other, *, alpha: float = 1):
    """other - alpha * input."""
    return f.sub(other, input) if alpha == 1 else f.sub(other, input, alpha=alpha)


_NAMES = {"subtract": sub, "multiply": mul, "negative": neg, "absolute": abs_, "greater": gt, "greater_equal": ge}
_NAMES |= {"less": lt, "less_equal": le, "not_equal": ne}
for _name, _row in _NAMES.items():
    alias(_row, _name)
