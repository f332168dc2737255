"""Quotients, remainders and shifts of vectors, of floats and of all integers.

Of integers, the quotient by 0 may be anything (but ends no process), and the lowest by -1 is itself.
"""

from numba import types
from numba.extending import intrinsic

from ..build import isa, jit
from . import gpu, libm
from .by_type import by_type
from .libm import rare_fmod
from .simd import convert, reduce_or, select, vabs, vfloor, vtrunc
from .vector import is_float

F32, F64 = types.float32, types.float64


@intrinsic
def _divide(typingctx, a, b):
    """The processor's quotient of integers; it traps where there is none."""

    def codegen(context, builder, sig, args):
        return (builder.sdiv if a.dtype.signed else builder.udiv)(*args)

    return a(a, b), codegen


@jit.inline
def _are_short(a, b):
    """Whether all magnitudes are below 2^20: of these float32 finds quotients in a tenth of the time of a GPU."""
    return not reduce_or((vabs(a) | vabs(b)) >> 20 != 0)


@by_type
def trunc_divide(a, b):
    """a / b without its fraction."""
    T = a.dtype
    if is_float(T):
        return lambda a, b: vtrunc(a / b)
    if T.bitwidth == 64 and T.signed and isa.is_gpu():

        def on_gpu(a, b):
            divisor = select((b == 0) | (b == -1), 1, b)
            if _are_short(a, b):
                n, _ = gpu.whole_part(convert(vabs(a), F32), convert(vabs(divisor), F32))
                n = convert(n, T)
                n = select((a < 0) ^ (divisor < 0), -n, n)
            else:
                n = _divide(a, divisor)
            return select(b == -1, -a, n)

        return on_gpu
    if T.bitwidth == 64:
        if not T.signed:
            return lambda a, b: _divide(a, select(b == 0, 1, b))
        return lambda a, b: select(b == -1, -a, _divide(a, select((b == 0) | (b == -1), 1, b)))
    # In float64: a quotient of 32 bits that is not whole is further from the next whole number than rounding moves it.
    if not T.signed:
        return lambda a, b: convert(convert(a, F64) / convert(b, F64), T)
    return lambda a, b: select(b == -1, -a, convert(convert(a, F64) / convert(b, F64), T))


def _fmod_f32(a, b):
    # Below 2^28, the quotient in float64 has the right whole part, of whose product with b no bit is lost.
    x, y = convert(a, F64), convert(b, F64)
    quotient = x / y
    if reduce_or(vabs(quotient) >= 268435456.0):
        return rare_fmod(a, b)
    whole = vtrunc(quotient)
    rest = convert(x - whole * y, F32)
    return select(whole == 0.0, a, select(rest == 0.0, a * 0.0, rest))


def _fmod_f32_gpu(a, b):
    x, y = vabs(a), vabs(b)
    if gpu.are_far(x, y):
        return rare_fmod(a, b)
    _, rest = gpu.whole_part(x, y)
    return gpu.signed(rest, a)


@by_type
def fmod(a, b):
    """The remainder of `trunc_divide`: a - n b, with the sign of a."""
    if a.dtype == F32:
        return _fmod_f32_gpu if isa.is_gpu() else _fmod_f32
    if a.dtype == F64:
        return lambda a, b: libm.fmod(a, b)
    return lambda a, b: a - trunc_divide(a, b) * b


@jit.inline
def _apart(rest, b):
    """Whether a remainder of the sign of the dividend has another sign than the divisor."""
    return (rest != 0) & ((rest < 0) ^ (b < 0))


@jit.inline
def remainder(a, b):
    """The remainder of `floor_divide`: a - n b, with the sign of b."""
    rest = fmod(a, b)
    return select(_apart(rest, b), rest + b, rest)


def _floor_divide_floats(a, b):
    # From the exact remainder: a / b may have been rounded up to a whole number.
    rest, quotient = fmod(a, b), a / b
    n = (a - rest) / b
    n = select(_apart(rest, b), n - 1.0, n)
    whole = vfloor(n)
    whole = select(n - whole > 0.5, whole + 1.0, whole)
    return select(b == 0.0, quotient, select(n == 0.0, quotient * 0.0, whole))


_floor_divide_any = jit.inline(_floor_divide_floats)


def _floor_divide_f32_gpu(a, b):
    x, y = vabs(a), vabs(b)
    if gpu.are_far(x, y):
        return _floor_divide_any(a, b)
    n, rest = gpu.whole_part(x, y)
    apart = gpu.are_apart(a, b)
    return select(apart, -select(rest != 0.0, n + 1.0, n), n)


def _floor_divide_integers(a, b):
    n = trunc_divide(a, b)
    return select(_apart(a - n * b, b), n - 1, n)


@by_type
def floor_divide(a, b):
    """The largest whole number not above a / b; a / b itself where a float is divided by 0."""
    if a.dtype == F32 and isa.is_gpu():
        return _floor_divide_f32_gpu
    return _floor_divide_floats if is_float(a.dtype) else _floor_divide_integers


@jit.inline
def _euclid(a, b):
    while reduce_or(b != 0):
        rest = fmod(a, select(b == 0, 1, b))
        a, b = select(b == 0, a, b), select(b == 0, 0, rest)
    return a


@jit.inline
def _short_euclid(a, b):
    """Of whole numbers from 0 to 2^20 as float32."""
    while reduce_or(b != 0.0):
        _, rest = gpu.whole_part(a, select(b == 0.0, 1.0, b))
        a, b = select(b == 0.0, a, b), select(b == 0.0, 0.0, rest)
    return a


@by_type
def gcd(a, b):
    """The greatest common divisor of integers, by Euclid's algorithm."""
    T = a.dtype
    if not (isa.is_gpu() and T.signed and T.bitwidth == 64):
        return lambda a, b: _euclid(vabs(a), vabs(b))

    def on_gpu(a, b):
        if _are_short(a, b):
            return convert(_short_euclid(convert(vabs(a), F32), convert(vabs(b), F32)), T)
        return _euclid(vabs(a), vabs(b))

    return on_gpu


@by_type
def left_shift(a, b):
    """The bits of a, b places higher; 0 where b is negative or not below the number of bits."""
    bits = a.dtype.bitwidth
    return lambda a, b: select((b < 0) | (b >= bits), 0, a << b)


@by_type
def right_shift(a, b):
    """a / 2^b rounded down; 0 or -1 where b is negative or not below the number of bits."""
    last = a.dtype.bitwidth - 1
    if not a.dtype.signed:
        return lambda a, b: select(b > last, 0, a >> b)
    return lambda a, b: a >> select((b < 0) | (b > last), last, b)
