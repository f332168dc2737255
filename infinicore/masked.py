"""Reductions and normalisations of the elements that a mask shows: the names of `torch.masked`.

`mask` is a bool tensor that broadcasts with `input`; without it every element counts. What is reduced over nothing is
the neutral element (0 of a sum, -inf of a maximum), or NaN where there is none, as of a mean.
"""

import math

from .core.tensor_cy import TensorBase
from .dtype import iinfo
from .tensor.tensor import FUNCTIONS as f

__all__ = [
    "amax", "amin", "argmax", "argmin", "cumprod", "cumsum", "log_softmax", "logaddexp", "logsumexp", "mean", "median",
    "norm", "normalize", "prod", "softmax", "softmin", "std", "sum", "var",
]  # fmt: skip


def _filled(input, mask, value, dtype=None):
    """`input`, as `dtype`, with `value` where the mask hides it; and the mask as large as it."""
    if not isinstance(input, TensorBase):
        raise TypeError(f"`input` must be a tensor, got {type(input).__name__}")
    input = input if dtype is None else input.to(dtype=dtype)
    if mask is None:
        return input, None
    if not isinstance(mask, TensorBase) or mask.dtype.kind != "b":
        raise TypeError(f"`mask` must be a bool tensor, got {getattr(mask, 'dtype', type(mask).__name__)}")
    mask = mask.expand(input.shape_)
    return f["where"](mask, input, input.new_full((), value)), mask


def _lowest(input, sign):
    """What every element of a dtype is at least (`sign` 1), or at most."""
    if input.dtype.differentiable:
        return -math.inf if sign > 0 else math.inf
    limits = iinfo(input.dtype)
    return limits.min if sign > 0 else limits.max


def _dims(input, dim):
    return tuple(range(input.ndim)) if dim is None or dim == () else dim


def _wide(input, dtype):
    """The dtype of sums: int64 for integers."""
    return dtype if dtype is not None or input.dtype.differentiable else "int64"


def sum(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The sums over `dim` (an int, several, or None for all) of the elements that the mask shows."""
    x, _ = _filled(input, mask, 0, _wide(input, dtype))
    return f["sum"](x, _dims(x, dim), keepdim)


def prod(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The products over `dim` of the elements that the mask shows."""
    x, _ = _filled(input, mask, 1, _wide(input, dtype))
    return f["prod"](x, _dims(x, dim), keepdim)


def amax(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The largest over `dim` of the elements that the mask shows."""
    x, _ = _filled(input, mask, _lowest(input, 1), dtype)
    return f["amax"](x, _dims(x, dim), keepdim)


def amin(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The smallest over `dim` of the elements that the mask shows."""
    x, _ = _filled(input, mask, _lowest(input, -1), dtype)
    return f["amin"](x, _dims(x, dim), keepdim)


def argmax(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The place along `dim` of the largest element that the mask shows, in the dtype of `input`, as PyTorch's."""
    found = f["argmax"](_filled(input, mask, _lowest(input, 1))[0], dim, keepdim)
    return found.to(dtype=dtype or input.dtype)


def argmin(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The place along `dim` of the smallest element that the mask shows, in the dtype of `input`, as PyTorch's."""
    found = f["argmin"](_filled(input, mask, _lowest(input, -1))[0], dim, keepdim)
    return found.to(dtype=dtype or input.dtype)


def cumsum(input, dim, *, dtype=None, mask=None):
    """The sums up to each place along `dim` of the elements that the mask shows."""
    x, _ = _filled(input, mask, 0, dtype)
    return f["cumsum"](x, dim, dtype=x.dtype)


def cumprod(input, dim, *, dtype=None, mask=None):
    """The products up to each place along `dim` of the elements that the mask shows."""
    x, _ = _filled(input, mask, 1, dtype)
    return f["cumprod"](x, dim, dtype=x.dtype)


def _count(x, mask, dims, keepdim):
    ones = x.detach().new_ones(x.shape_) if mask is None else mask.to(dtype=x.dtype)
    return f["sum"](ones, dims, keepdim)


def mean(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The means over `dim` of the elements that the mask shows; NaN of none."""
    x, shown = _filled(input, mask, 0, dtype)
    dims = _dims(x, dim)
    return f["sum"](x, dims, keepdim) / _count(x, shown, dims, keepdim)


def median(input, dim=-1, *, keepdim=False, dtype=None, mask=None):
    """The medians along `dim`, the lower of two, of the elements that the mask shows."""
    x, shown = _filled(input, mask, math.nan, dtype)
    return f["median" if shown is None else "nanmedian"](x, dim, keepdim)[0]


def var(input, dim=None, unbiased=None, *, correction=None, keepdim=False, dtype=None, mask=None):
    """The variances over `dim` of the elements that the mask shows, divided by their number less `correction`.

    That is 1 by default, and 0 where `unbiased` is False.
    """
    x, shown = _filled(input, mask, 0, dtype)
    dims = _dims(x, dim)
    less = correction if correction is not None else int(unbiased is None or bool(unbiased))
    kind = x.real if x.dtype.kind == "c" else x
    apart = x - f["sum"](x, dims, True) / _count(kind, shown, dims, True)
    apart = apart if shown is None else f["where"](shown, apart, 0.0)
    left = f["maximum"](_count(kind, shown, dims, keepdim) - less, 0.0)
    return f["sum"](apart * apart.conj(), dims, keepdim) / left


def std(input, dim=None, unbiased=None, *, correction=None, keepdim=False, dtype=None, mask=None):
    """The standard deviations over `dim`: roots of `var`, with its arguments."""
    return f["sqrt"](var(input, dim, unbiased, correction=correction, keepdim=keepdim, dtype=dtype, mask=mask))


def norm(input, ord=2.0, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The vector norms of order `ord` over `dim` of the elements that the mask shows."""
    x, _ = _filled(input, mask, math.inf if ord == -math.inf else 0, dtype)
    return f["linalg_vector_norm"](x, ord, _dims(x, dim), keepdim)


def logsumexp(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """log(sum(exp(x))) over `dim` of the elements that the mask shows, in the dtype of `input`, as PyTorch's.

    Of no elements it is -inf.
    """
    x = input if dtype is None else input.to(dtype=dtype)
    shown, _ = _filled(x, mask, _lowest(x, 1))
    return f["logsumexp"](shown, _dims(x, dim), keepdim).to(dtype=x.dtype)


def logaddexp(input, other, *, dtype=None, input_mask=None, other_mask=None):
    """log(exp(input) + exp(other)), where what a mask hides is -inf."""
    a, b = _filled(input, input_mask, -math.inf, dtype)[0], _filled(other, other_mask, -math.inf, dtype)[0]
    return f["logaddexp"](a, b)


def softmax(input, dim, *, dtype=None, mask=None):
    """The softmax along `dim` of the elements that the mask shows, 0 elsewhere; NaN where it shows none."""
    return f["softmax"](_filled(input, mask, -math.inf, dtype)[0], dim)


def log_softmax(input, dim, *, dtype=None, mask=None):
    """The logarithm of `softmax`."""
    return f["log_softmax"](_filled(input, mask, -math.inf, dtype)[0], dim)


def softmin(input, dim, *, dtype=None, mask=None):
    """The softmax of the negated elements."""
    return f["softmax"](-_filled(input, mask, math.inf, dtype)[0], dim)


def normalize(input, ord, dim, *, eps=1e-12, dtype=None, mask=None):
    """The elements divided by their `norm` along `dim`, or by `eps` where that is larger; 0 where hidden."""
    x, _ = _filled(input, mask, 0, dtype)
    return x / f["maximum"](norm(x, ord, dim, keepdim=True, mask=mask), eps)
