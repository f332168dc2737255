"""BLAS level 1 (Lawson et al., ACM TOMS 5, 1979) on vectors and 1-element tensors, as InfiniCore has it.

What BLAS overwrites is overwritten: those ops return the tensors that they changed and record no gradients.
"""

import math

import numpy as np

from ..table.composite import composite
from ..table.registry import FLOATS, op
from ._layout import check

_WIDE = ("float32", "float64")
_ORDER = {"float32": (1e-5, 1e-5), "bfloat16": (2e-2, 2e-2), "float16": (3e-3, 3e-3)}


def _vectors(call, **given):
    """Refuse what are no vectors of one dtype and length."""
    (_, first), *_ = given.items()
    for name, x in given.items():
        check(call, x, name)
        if len(x.shape_) != 1 or x.shape_ != first.shape_ or x.dtype is not first.dtype:
            raise ValueError(
                f"`{name}` of `{call.op.name}` must be a vector, of one length and dtype with the others, got shape "
                f"{x.shape_} {x.dtype.name}"
            )


def _scalars(call, **given):
    """The tensors of one element as 0-dim views; others are refused."""
    for name, x in given.items():
        check(call, x, name)
        if x.numel_ != 1:
            raise ValueError(f"`{name}` of `{call.op.name}` must have one element, got shape {x.shape_}")
    return [x.reshape(()) for x in given.values()]


def _pairs(rng):
    for size in (1, 3, 257):
        yield (rng.standard_normal(size), rng.standard_normal(size)), {}


def _one(rng):
    for (x, _), _ in _pairs(rng):
        yield (x,), {}


def _with_factor(rng):
    for (x, y), _ in _pairs(rng):
        yield (np.array([-1.5]), x, y), {}


# ---- results of their own ----------------------------------------------------------------------


@composite(ref=lambda x: np.abs(x).sum(), samples=_one, tolerance=_ORDER)
def asum(f, x):
    """The sum of the magnitudes of a vector, 0-dim."""
    _vectors(f, x=x)
    return f.norm(x, 1)


@composite(ref=lambda x: np.sqrt((x * x).sum()), samples=_one, tolerance=_ORDER)
def nrm2(f, x):
    """The Euclidean length of a vector, 0-dim."""
    _vectors(f, x=x)
    return f.norm(x)


@composite(ref=np.dot, samples=_pairs, tolerance={**_ORDER, "bfloat16": (2e-2, 1e-1), "float16": (3e-3, 2e-2)})
def blas_dot(f, x, y):
    """The sum of the products of two vectors, 0-dim."""
    _vectors(f, x=x, y=y)
    return f.matmul(x, y)


def _extreme(f, x, function):
    _vectors(f, x=x)
    if not x.numel_:
        raise ValueError(f"`x` of `{f.op.name}` must have elements, got shape {x.shape_}")
    return f.cast(f.add(function(f.abs(x)), 1), "int32")


@composite(dtypes=FLOATS, ref=lambda x: np.int32(np.abs(x).argmax() + 1), samples=_one, gradient=None)
def blas_amax(f, x):
    """Where the (first) largest magnitude of a vector lies, counted from 1: 0-dim int32."""
    return _extreme(f, x, f.argmax)


@composite(dtypes=FLOATS, ref=lambda x: np.int32(np.abs(x).argmin() + 1), samples=_one, gradient=None)
def blas_amin(f, x):
    """Where the (first) smallest magnitude of a vector lies, counted from 1: 0-dim int32."""
    return _extreme(f, x, f.argmin)


# ---- in place ----------------------------------------------------------------------------------


@op(ref=lambda x, y: x, samples=_pairs, outputs=(), gradient="missing")
def blas_copy(call, x, y):
    """Overwrite the vector `y` by `x`; returns y."""
    _vectors(call, x=x, y=y)
    y.copy_(x)
    return y


@op(ref=lambda x, y: (y, x), samples=_pairs, outputs=(), gradient="missing")
def swap(call, x, y):
    """Exchange the elements of two vectors; returns (x, y)."""
    _vectors(call, x=x, y=y)
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return x, y


@op(
    ref=lambda alpha, x, y: alpha * x + y, samples=_with_factor, outputs=(), gradient="missing",
    tolerance={"bfloat16": (2e-2, 4e-2), "float16": (3e-3, 4e-3)},
)  # fmt: skip
def axpy(call, alpha, x, y):
    """Add `alpha` (a tensor of one element) times `x` to the vector `y`; returns y."""
    _vectors(call, x=x, y=y)
    (alpha,) = _scalars(call, alpha=alpha)
    y.add_(call.elementwise("mul", x, alpha))
    return y


def _scaled(rng):
    for (alpha, x, _), _ in _with_factor(rng):
        yield (x, alpha), {}


@op(ref=lambda x, alpha: alpha * x, samples=_scaled, outputs=(), gradient="missing")
def scal(call, x, alpha):
    """Multiply the vector `x` by `alpha`, a tensor of one element; returns x."""
    _vectors(call, x=x)
    x.mul_(_scalars(call, alpha=alpha)[0])
    return x


def _rotated(call, x, y, h11, h12, h21, h22):
    """(x, y) overwritten by (h11 x + h12 y, h21 x + h22 y); None is 1."""
    term = lambda v, h: v if h is None else call.elementwise("mul", v, h)
    upper = call.elementwise("add", term(x, h11), term(y, h12))
    lower = call.elementwise("add", term(x, h21), term(y, h22))
    x.copy_(upper)
    y.copy_(lower)
    return x, y


def _rot_samples(rng):
    for (x, y), _ in _pairs(rng):
        yield (x, y, np.array(0.6), np.array([0.8])), {}


@op(dtypes=_WIDE, ref=lambda x, y, c, s: (c * x + s * y, c * y - s * x), samples=_rot_samples, outputs=(),
    gradient="missing")  # fmt: skip
def rot(call, x, y, c, s):
    """Turn the points (x[i], y[i]) in place by the angle of cosine `c` and sine `s`, of one element each: (x, y)."""
    _vectors(call, x=x, y=y)
    c, s = _scalars(call, c=c, s=s)
    return _rotated(call, x, y, c, s, call.elementwise("neg", s), c)


def _rotg_values(a, b):
    r = math.copysign(math.hypot(a, b), a if abs(a) > abs(b) else b)
    if r == 0:
        return 0.0, 0.0, 1.0, 0.0
    c, s = a / r, b / r
    return r, s if abs(a) > abs(b) else 1 / c if c != 0 else 1.0, c, s


def _rotg_ref(a, b, c, s):
    return tuple(np.full(np.shape(a), v) for v in _rotg_values(a.item(), b.item()))


def _rotg_samples(rng):
    for a, b in ((3.0, 4.0), (-5.0, 2.0), (0.0, 0.0), (0.0, -2.0), (1.0, 0.0)):
        yield tuple(np.array([v]) for v in (a, b, 0.0, 0.0)), {}


def _read(call, **given):
    """The values of tensors of one element as Python numbers: these ops compute on the host, in float64."""
    return [float(x.item()) for x in _scalars(call, **given)]


def _write(values, *tensors):
    for value, x in zip(values, tensors):
        x.fill_(value)
    return tensors


@op(dtypes=_WIDE, ref=_rotg_ref, samples=_rotg_samples, outputs=(), gradient="missing")
def rotg(call, a, b, c, s):
    """The rotation that turns (a, b) to (r, 0): a, b, c, s, of one element each, become r, z, cosine and sine.

    r has the sign of the larger of a and b; z is that one number from which BLAS finds both again.
    """
    return _write(_rotg_values(*_read(call, a=a, b=b, c=c, s=s)[:2]), a, b, c, s)


def _modified(flag, h11, h21, h12, h22):
    """The matrix of a modified rotation by its flag; None is an entry of 1 that needs no product."""
    if flag == -2:
        return None
    return {-1: (h11, h12, h21, h22), 0: (None, h12, h21, None), 1: (h11, 1.0, -1.0, h22)}[flag]


def _rotm_ref(x, y, param):
    h = _modified(int(param[0]), *param[1:])
    if h is None:
        return x, y
    h11, h12, h21, h22 = (1.0 if v is None else v for v in h)
    return h11 * x + h12 * y, h21 * x + h22 * y


def _rotm_samples(rng):
    for flag in (-2.0, -1.0, 0.0, 1.0):
        yield (rng.standard_normal(33), rng.standard_normal(33), np.array([flag, 0.5, -1.5, 2.0, 0.25])), {}


@op(dtypes=_WIDE, ref=_rotm_ref, samples=_rotm_samples, outputs=(), gradient="missing")
def rotm(call, x, y, param):
    """Apply a modified rotation, `param` [5] as `rotmg` makes it (flag, h11, h21, h12, h22), in place: (x, y)."""
    _vectors(call, x=x, y=y)
    check(call, param, "param")
    if param.shape_ != (5,):
        raise ValueError(f"`param` of `rotm` must have shape (5,), got {param.shape_}")
    flag, *entries = param.tolist()
    if flag not in (-2.0, -1.0, 0.0, 1.0):
        raise ValueError(f"`param` of `rotm` must begin with a flag of -2, -1, 0 or 1, got {flag}")
    h = _modified(int(flag), *entries)
    return (x, y) if h is None else _rotated(call, x, y, *h)


_GAMMA = 4096.0


def _rescaled(d, first, second, others):
    """(d, first row scaled, x) within [1 / gamma^2, gamma^2], and whether that took a step."""
    steps = 0
    while d != 0 and math.isfinite(d) and not _GAMMA**-2 < abs(d) < _GAMMA**2:
        up = abs(d) <= _GAMMA**-2
        d, by = (d * _GAMMA**2, 1 / _GAMMA) if up else (d / _GAMMA**2, _GAMMA)
        first, second, others = first * by, second * by, others * by
        steps += 1
    return d, first, second, others, steps


def _rotmg_values(d1, d2, x1, y1):
    """(d1, d2, x1, flag, h11, h21, h12, h22) by the definition."""
    if d1 < 0:
        return 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0
    p2 = d2 * y1
    if p2 == 0:
        return d1, d2, x1, -2.0, 0.0, 0.0, 0.0, 0.0
    p1, q1, q2 = d1 * x1, d1 * x1 * x1, p2 * y1
    if abs(q1) > abs(q2):
        flag, h11, h21, h12, h22 = 0.0, 1.0, -y1 / x1, p2 / p1, 1.0
        u = 1 - h12 * h21
        if u <= 0:
            return 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0
        d1, d2, x1 = d1 / u, d2 / u, x1 * u
    elif q2 < 0:
        return 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0
    else:
        flag, h11, h21, h12, h22 = 1.0, p1 / p2, -1.0, 1.0, x1 / y1
        u = 1 + h11 * h22
        d1, d2, x1 = d2 / u, d1 / u, y1 * u
    d1, h11, h12, x1, steps = _rescaled(d1, h11, h12, x1)
    d2, h21, h22, _, more = _rescaled(d2, h21, h22, 0.0)
    if steps or more:
        flag = -1.0
    elif flag == 0:
        h11 = h22 = 0.0  # implied by the flag, and not stored
    else:
        h21 = h12 = 0.0
    return d1, d2, x1, flag, h11, h21, h12, h22


def _rotmg_ref(d1, d2, x1, y1, param):
    found = _rotmg_values(*(v.item() for v in (d1, d2, x1, y1)))
    return (*(np.full(np.shape(d1), v) for v in found[:3]), np.array(found[3:]))


def _rotmg_samples(rng):
    cases = (
        (1.0, 2.0, 3.0, 4.0), (3.0, 0.5, -1.2, 0.75), (1.5, 1.5, 2.0, 0.0), (-1.0, 1.0, 1.0, 1.0), (2e8, 3e-9, 1.0, 2.0)
    )  # fmt: skip
    for values in cases:
        yield (*(np.array([v]) for v in values), np.zeros(5)), {}


@op(dtypes=_WIDE, ref=_rotmg_ref, samples=_rotmg_samples, outputs=(), gradient="missing")
def rotmg(call, d1, d2, x1, y1, param):
    """The modified rotation that turns (sqrt(d1) x1, sqrt(d2) y1) to (r, 0): (d1, d2, x1, param), overwritten.

    `d1`, `d2`, `x1`, `y1` have one element, `param` [5] becomes (flag, h11, h21, h12, h22); entries that the flag
    implies are 0.
    """
    found = _rotmg_values(*_read(call, d1=d1, d2=d2, x1=x1, y1=y1))
    check(call, param, "param")
    if param.shape_ != (5,):
        raise ValueError(f"`param` of `rotmg` must have shape (5,), got {param.shape_}")
    _write(found[:3], d1, d2, x1)
    _write(found[3:], *param.unbind())
    return d1, d2, x1, param


# ---- products ----------------------------------------------------------------------------------


def _bmm_samples(rng):
    yield (rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 5, 2))), {}
    yield (rng.standard_normal((2, 17, 33)), rng.standard_normal((2, 33, 9))), {}


@composite(ref=np.matmul, samples=_bmm_samples, tolerance={"bfloat16": (2e-2, 1e-1), "float16": (3e-3, 1e-2)})
def bmm_strided(f, a, b, out=None):
    """Products of the matrices of two batches: [B, M, K] and [B, K, N] of any strides to [B, M, N]."""
    for name, x in (("a", a), ("b", b)):
        check(f, x, name)
    if len(a.shape_) != 3 or len(b.shape_) != 3 or a.shape_[0] != b.shape_[0]:
        raise ValueError(f"`a` and `b` of `bmm_strided` must be [B, M, K] and [B, K, N], got {a.shape_} and {b.shape_}")
    return f.matmul(a, b, out=out)


@composite(
    ref=lambda input, alpha: input * alpha, samples=lambda rng: iter([((rng.standard_normal((3, 17)), 1.5), {})])
)
def mul_scalar(f, input, alpha, out=None):
    """`input` times a number; an integer `input` times a fraction is float32, as for `mul`."""
    check(f, input, "input")
    if hasattr(alpha, "strides_") or not hasattr(alpha, "__float__"):
        raise TypeError(f"`alpha` of `mul_scalar` must be a number, got {type(alpha).__name__}: use `mul` for tensors")
    return f.mul(input, alpha, out=out)
