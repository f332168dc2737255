"""The functions of rules on GPUs where everything in memory is a 16-bit float: `m` of such kernels.

The numbers in between are float32, and right to 1e-5: bfloat16 rounds to 4e-3, float16 to 5e-4. With the exact
functions arithmetic, not memory, bounded the time: 0.6 x torch for silu, 205 us for the way back through 16384 x 3072
of GELU, which memory allows in 70.
"""

from numba import types

from . import functions, ptx
from .by_type import by_type
from .functions import *  # noqa: F403 (all others are the same)
from .simd import muladd, select, vabs
from .vector import Vector
from .vmath import LOG2E

F32 = types.float32


def _of_float32(name, float32):
    """`name(x)`: `float32` of vectors of that type, else the exact function."""
    exact = getattr(functions, name)

    def choose(x):
        return float32 if isinstance(x, Vector) and x.dtype == F32 else lambda x: exact(x)

    choose.__name__ = choose.__qualname__ = name
    return by_type(choose)


def _exp(x):
    return ptx.exp2_small(x * LOG2E)  # subnormal results are 0


exp = _of_float32("exp", _exp)


def _sigmoid(x):
    return ptx.reciprocal(1.0 + ptx.exp2_small(x * -LOG2E))


sigmoid = _of_float32("sigmoid", _sigmoid)


def _tanh(x):
    # 1 - 2 / (exp(2x) + 1) cancels for small x, for which two terms of the series serve.
    far = muladd(ptx.reciprocal(ptx.exp2_small(x * (2.0 * LOG2E)) + 1.0), -2.0, 1.0)
    return select(vabs(x) < 0.1, muladd(x * x * x, -1.0 / 3.0, x), far)


tanh = _of_float32("tanh", _tanh)


def _normal_cdf(x):
    # log2 of Phi(-a), a polynomial of a = |x| fitted on a < 6.5, of relative error 4e-6 (3e-5 from 4 on, where it is
    # below 3e-5; from 7 on it goes to 0 sooner).
    a = vabs(x)
    p = muladd(a, -1.763282284628076e-06, 6.034511898178607e-05)
    p = muladd(p, a, -0.0009221306536346674)
    p = muladd(p, a, 0.00848079752177)
    p = muladd(p, a, -0.05391654744744301)
    p = muladd(p, a, -0.4584965407848358)
    p = muladd(p, a, -1.1512424945831299)
    p = ptx.exp2_small(muladd(p, a, -0.9999956488609314))
    return select(x > 0.0, 1.0 - p, p)


normal_cdf = _of_float32("normal_cdf", _normal_cdf)
