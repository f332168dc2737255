"""Functions of `kernels/lang` that are for GPUs alone, evaluated by NumPy: what they are made of has stand-ins here.

Vectors are arrays of float32, and each operation and single instruction rounds once, on every machine: NumPy's own
functions of float32 differ by some units in the last place from one instruction set to the next. A branch that asks
whether any lane is special is taken for all of an array, as in a vector.
"""

import types

import numpy as np


def _muladd(a, b, c):
    found = np.multiply(a, b, dtype=np.float64) + c  # a product of float32 is exact there
    return found if any(getattr(x, "dtype", None) == np.float64 for x in (a, b, c)) else found.astype(np.float32)


def _bitcast(x, T):
    return np.asarray(x).view(T.name)


def _convert(x, T):
    return np.asarray(x).astype(T.name)


def _select(mask, a, b):
    kind = next(x.dtype for x in (a, b) if isinstance(x, np.ndarray))
    return np.where(mask, np.asarray(a, kind), np.asarray(b, kind))


def _once(f):
    """A function of NumPy, rounded once."""
    return lambda x: f(np.asarray(x).astype(np.float64)).astype(np.asarray(x).dtype)


def _flushed(f):
    def function(x):
        y = f(np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x))
        return np.where(np.abs(y) < 2.0**-126, np.copysign(np.float32(0), y), y).astype(np.float32)

    return function


PTX = types.SimpleNamespace(
    exp2=_once(np.exp2), exp2_small=_flushed(_once(np.exp2)), log2=_once(np.log2), log2_normal=_flushed(_once(np.log2)),
    square_root=_flushed(np.sqrt), reciprocal=_flushed(lambda x: np.float32(1) / x),
    quotient=np.divide, reciprocal_wide=lambda x: ((1.0 / x).view(np.int64) & -(1 << 32)).view(np.float64),
)  # fmt: skip
STAND_INS = {
    "ptx": PTX, "muladd": _muladd, "bitcast": _bitcast, "convert": _convert, "select": _select, "vabs": np.abs,
    "vfloor": np.floor, "vround": np.rint, "vmin": np.minimum, "vmax": np.maximum, "vsqrt": np.sqrt,
    "vtrunc": np.trunc, "reduce_or": np.any, "copysign": np.copysign, "fmod": np.fmod, "rare_fmod": np.fmod,
    "rare_pow": lambda x, y: np.power(x.astype("f8"), y.astype("f8")).astype("f4"),
    "exp": _once(np.exp), "_quotient": np.divide,
    "libm": lambda name, x: getattr(np, name)(x.astype("f8")).astype("f4"),
    "rare_libm": lambda name, x: getattr(np, name)(x.astype("f8")).astype("f4"),
}  # fmt: skip


def evaluated(function, found=None):
    """The function for arrays, with all that it calls."""
    found = {} if found is None else found
    function = getattr(function, "py_func", function)
    if function not in found:
        scope = dict(function.__globals__)
        found[function] = types.FunctionType(function.__code__, scope, function.__name__)
        for name in function.__code__.co_names:
            value = scope.get(name)
            if name in STAND_INS:
                scope[name] = STAND_INS[name]
            elif hasattr(value, "py_func"):
                scope[name] = evaluated(value, found)
            elif isinstance(value, types.ModuleType):
                inner = {k: v for k, v in vars(value).items() if hasattr(v, "py_func")}
                scope[name] = types.SimpleNamespace(**{k: evaluated(v, found) for k, v in inner.items()})
    return found[function]
