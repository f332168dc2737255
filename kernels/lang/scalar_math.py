"""The names of `lang/vmath.py` for plain Python and NumPy: what a rule means outside of a kernel."""

import math

import numpy as np

exp, log, sqrt, sin, cos, tanh = np.exp, np.log, np.sqrt, np.sin, np.cos, np.tanh
exp2, log2, copysign = np.exp2, np.log2, np.copysign
expm1, log1p = np.expm1, np.log1p
abs, floor, ceil, trunc, round = np.abs, np.floor, np.ceil, np.trunc, np.rint
pow = np.power
conj, real = np.conjugate, np.real
maximum, minimum, where = np.maximum, np.minimum, np.where
floor_divide, remainder, fmod = np.floor_divide, np.remainder, np.fmod
left_shift, right_shift = np.left_shift, np.right_shift
erf = np.vectorize(math.erf, otypes=[np.float64])
lgamma = np.vectorize(math.lgamma, otypes=[np.float64])


def divide(p, q):
    """p / q."""
    return p / q


def expm1_below(x, by):
    """exp(x) - 1."""
    return np.expm1(x)


def log1p_exp(x):
    """log(1 + exp(x)) for x <= 0."""
    return np.log1p(np.exp(x))


def trunc_divide(x, y):
    """x / y without its fraction."""
    x, y = np.asarray(x), np.asarray(y)
    return np.trunc(x / y) if np.result_type(x, y).kind == "f" else (x - np.fmod(x, y)) // y


def normal_cdf(x):
    """The standard normal distribution function."""
    return 0.5 + 0.5 * erf(np.multiply(x, 0.7071067811865476))


def sigmoid(x):
    """1 / (1 + exp(-x)) without overflow warnings."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)
