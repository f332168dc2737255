"""The functions of rules, `m` of rendered kernels; `lang/scalar_math.py` has those that plain Python needs too."""

from .division import gcd  # noqa: F401
from .inverse import acos, acosh, asin, asinh, atan, atan2, atanh, cosh, hypot, sinh  # noqa: F401
from .libm import nextafter  # noqa: F401
from .special import (  # noqa: F401
    digamma, erfcx, erfinv, gammainc, gammaincc, i0, i0e, i1, i1e, j0, j1, lgamma, y0, y1, zeta
)  # fmt: skip
from .vmath import (  # noqa: F401
    abs, ceil, copysign, cos, erf, erfc, exp, exp2, expm1, floor, floor_divide, fmod, left_shift, log, log1p, log2,
    log10, maximum, minimum, negative, normal_cdf, pow, remainder, right_shift, round, sigmoid, sin, sqrt, tan, tanh,
    trunc, trunc_divide, where
)  # fmt: skip
