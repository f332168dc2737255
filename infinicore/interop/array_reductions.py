"""The reductions and running sums of the array API standard, which say how wide sums of integers are."""

from ..core import layout
from ..dispatch.functions import FUNCTIONS
from ..dtype import dtype as _dtype


def _reduction(name, op):
    compute = FUNCTIONS[op]

    def function(x, /, *, axis=None, keepdims=False):
        if axis == ():
            x, axis, keepdims = x.unsqueeze(-1), -1, False
        return compute(x, axis, keepdims)

    function.__name__, function.__doc__ = name, f"`{name}` of the array API, over `axis` (an int, a tuple, or all)."
    return function


def _wide(x, dtype):
    """The dtype in which elements are added or multiplied."""
    if dtype is not None:
        return _dtype(dtype)
    return _dtype({"b": "int64", "i": "int64", "u": "uint64"}.get(x.dtype.kind, x.dtype.name))


def _accumulation(name, op):
    compute = FUNCTIONS[op]

    def function(x, /, *, axis=None, dtype=None, keepdims=False):
        if axis == ():
            x, axis, keepdims = x.unsqueeze(-1), -1, False
        wide = _wide(x, dtype)
        return compute(x.to(wide), axis, keepdims).to(wide)

    function.__name__, function.__doc__ = name, f"`{name}` of the array API; integers in 64 bits unless `dtype` says."
    return function


def _spread(name, op):
    compute = FUNCTIONS[op]

    def function(x, /, *, axis=None, correction=0.0, keepdims=False):
        if axis == ():
            x, axis, keepdims = x.unsqueeze(-1), -1, False
        return compute(x, axis, correction=correction, keepdim=keepdims)

    function.__name__, function.__doc__ = name, f"`{name}` of the array API: divided by the count less `correction`."
    return function


def _cumulative(name, op, first):
    compute = FUNCTIONS[op]

    def function(x, /, *, axis=None, dtype=None, include_initial=False):
        if axis is None and x.ndim != 1:
            raise ValueError(f"`axis` of `{name}` must be given for a tensor of {x.ndim} dims")
        axis = layout.checked_dim(0 if axis is None else axis, x.ndim)
        wide = _wide(x, dtype)
        result = compute(x.to(wide), axis).to(wide)
        if include_initial:
            edge = [n if dim != axis else 1 for dim, n in enumerate(x.shape_)]
            result = FUNCTIONS["cat"]([result.new_full(edge, first), result], axis)
        return result

    function.__name__, function.__doc__ = name, f"`{name}` of the array API, `include_initial` with a {first} in front."
    return function


mean, all, any, max, min = (
    _reduction(name, op)
    for name, op in (("mean", "mean"), ("all", "all"), ("any", "any"), ("max", "amax"), ("min", "amin"))
)
sum, prod = _accumulation("sum", "sum"), _accumulation("prod", "prod")
std, var = _spread("std", "std"), _spread("var", "var")
cumulative_sum, cumulative_prod = (
    _cumulative("cumulative_sum", "cumsum", 0),
    _cumulative("cumulative_prod", "cumprod", 1),
)
argmax, argmin = _reduction("argmax", "argmax"), _reduction("argmin", "argmin")


def count_nonzero(x, /, *, axis=None, keepdims=False):
    """How many elements are not 0."""
    return sum(x != 0, axis=axis, keepdims=keepdims)


def diff(x, /, *, axis=-1, n=1, prepend=None, append=None):
    """Differences of neighbours along `axis`, `n` times."""
    return FUNCTIONS["diff"](x, n, axis, prepend, append)
