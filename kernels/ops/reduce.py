"""Reductions over one dim, several, or all. Sums of 16-bit floats are taken in float32."""

import numpy as np

from .. import isa
from ..registry import ALL, FLOATS, op
from ._layout import check, check_dim, merged, product

_WIDE = 4 * isa.lanes()  # WIDE of cpu/reduce.py
_PAIR = 2 * isa.lanes()  # PAIR of cpu/argmax.py
_UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
_CHUNK = 65536  # elements of a slice of a long reduction: 3 us
_WHOLE = 1 << 62  # "not in chunks"


# ---- layouts -----------------------------------------------------------------------------------


def _dims(dim, ndim):
    """The reduced dims of `dim` (None, an int or a sequence), sorted; None and () mean all."""
    if dim is None:
        return tuple(range(ndim))
    if isinstance(dim, (tuple, list)):
        dims = sorted(check_dim(d, ndim) for d in dim)
        if len(set(dims)) < len(dims):
            raise ValueError(f"`dim` names a dim twice: {tuple(dim)}")
        return tuple(dims) or tuple(range(ndim))
    return (check_dim(dim, ndim),) if ndim else (check_dim(dim, 0),)[:0]


def _result_shape(shape, dims, keepdim):
    if keepdim:
        return tuple(1 if d in dims else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in dims)


def _plan(x, dims, max_reduced):
    """(x or a copy, "inner" or "outer", merged kept dims, merged reduced dims), as (size, stride) pairs.

    "inner": reduced elements are contiguous. "outer": neighbouring results are. At most two kept and
    `max_reduced` reduced groups; what does not fit is copied so that it does.
    """
    shape, strides = x.shape_, x.strides_
    others = [d for d in range(len(shape)) if d not in dims]
    kept = merged([shape[d] for d in others], [strides[d] for d in others])
    reduced = merged([shape[d] for d in dims], [strides[d] for d in dims])
    if not reduced:
        reduced = [(1, 1)]
    if len(kept) <= 2 and len(reduced) <= max_reduced:
        if reduced[-1][1] == 1:
            return x, "inner", kept, reduced
        if kept and kept[-1][1] == 1:
            return x, "outer", kept, reduced
    x = x.permute(*others, *dims).contiguous()
    size = product(shape[d] for d in dims)
    return x, "inner", [(product(shape[d] for d in others), size)], [(size, 1)]


def _two(groups, default):
    """Two (size, stride) pairs, outer and inner."""
    missing = 2 - len(groups)
    return [default] * missing + groups


# ---- sum, mean, product, maximum, minimum, any, all ----------------------------------------------


class _Reduction:
    """How a reduction's kernels are called: the file's function, the identity, dtypes of the sums."""

    def __init__(self, name, identity):
        self.name, self.identity = name, identity

    def launch(self, call, x, y, kind, kept, reduced, types, whole=_WHOLE, divisor=None, name=None):
        (outer, outer_stride), (inner, inner_stride) = _two(kept, (1, 0))
        (num_rows, row_stride), (length, stride) = _two(reduced, (1, 0))
        bits = call.float_bits(self.identity) if types["A"] in FLOATS else int(self.identity)
        args = [x.address, y.address, outer, inner, outer_stride, inner_stride, num_rows, length, row_stride, stride]
        args += [bits, whole, call.float_bits(1.0 if divisor is None else divisor)]
        n = outer * inner if kind == "inner" else outer * -(-inner // _WIDE)
        grain = max(1, _CHUNK // max(1, num_rows * length * (1 if kind == "inner" else min(inner, _WIDE))))
        call.launch(f"reduce.{name or self.name}_{kind}", types, args, n, grain, (x, y))

    def run(self, call, x, y, dims, types, divisor=None):
        """Reduce `dims` of x into y; a long reduction with few results goes in chunks, for the threads."""
        final = "mean" if divisor is not None else self.name
        x, kind, kept, reduced = _plan(x, dims, 2)
        results = product(n for n, _ in kept)
        units = results if kind == "inner" else -(-results // _WIDE)
        long = len(kept) <= 1 and len(reduced) == 1 and units < 4 and reduced[0][0] * results >= 4 * _CHUNK
        if not long:
            self.launch(call, x, y, kind, kept, reduced, types, divisor=divisor, name=final)
            return
        (length, stride) = reduced[0]
        step = max(1, _CHUNK // (results if kind == "outer" else 1))
        chunks = -(-length // step)
        partial = call.empty((chunks, results), types["A"])
        first = {**types, "O": types["A"]}
        groups = [(chunks, step * stride), *_two(kept, (1, 0))[1:]]
        self.launch(call, x, partial, kind, groups, [(step, stride)], first, length)
        second = {**types, "T": types["A"]}
        kind, kept = ("inner", []) if results == 1 else ("outer", [(results, 1)])
        self.launch(call, partial, y, kind, kept, [(chunks, results)], second, divisor=divisor, name=final)


_SUM, _PRODUCT = _Reduction("sum", 0.0), _Reduction("prod", 1.0)
_ANY, _ALL = _Reduction("any", 0), _Reduction("all", 1)


def _bounds(dtype):
    """(lowest, highest) value of a dtype; uint64's highest as the int64 of the same bits."""
    if dtype.is_floating_point:
        return -float("inf"), float("inf")
    if dtype.name == "bool":
        return 0, 1
    bits = 8 * dtype.itemsize
    if dtype.name.startswith("u"):
        return 0, -1 if bits == 64 else (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _storage(dtype):
    """The type that a kernel reads: bools as bytes, which order as they should."""
    return "uint8" if dtype.name == "bool" else dtype.name


def _compute(dtype):
    """The type that values of a dtype are computed in."""
    return "float32" if dtype.is_floating_point and dtype.itemsize < 4 else _storage(dtype)


def _accumulate(call, reduction, input, dim, keepdim, mean=False, dtype=None):
    """Sum, mean or product."""
    if dtype is not None:
        input = input.to(dtype=dtype)
    check(call, input, "input")
    shape = input.shape_
    dims = _dims(dim, len(shape))
    floating = input.dtype.is_floating_point
    result = input.dtype.name if floating else "int64"
    y = call.out(_result_shape(shape, dims, keepdim), result)
    types = {"T": input.dtype.name, "A": _compute(input.dtype) if floating else "int64", "O": result}
    divisor = float(product(shape[d] for d in dims)) if mean else None
    reduction.run(call, input, y, dims, types, divisor)
    return y


def _reduce_samples(rng):
    for size in (1, 3, 17, 257):
        yield (rng.uniform(0.5, 2, (4, size)),), {"dim": -1}
        yield (rng.uniform(0.5, 2, (size, 5)),), {"dim": 0, "keepdim": True}
    yield (rng.uniform(0.9, 1.1, (3, 5, 7)),), {}
    yield (rng.uniform(0.9, 1.1, (3, 5, 7, 2)),), {"dim": (0, 2)}
    yield (rng.uniform(0.9, 1.1, (3, 5, 7, 2)),), {"dim": (1, -1), "keepdim": True}
    yield (np.array(1.5),), {}


def _over(function):
    """A NumPy reduction under the names of PyTorch."""

    def ref(input, dim=None, keepdim=False):
        return function(input, axis=tuple(dim) if isinstance(dim, list) else dim, keepdims=keepdim)

    return ref


_SUM_TOLERANCE = {"float32": (1e-5, 1e-5), "bfloat16": (1e-2, 1e-2), "float16": (2e-3, 2e-3)}


@op(dtypes=ALL, ref=_over(np.sum), samples=_reduce_samples, tolerance=_SUM_TOLERANCE)
def sum_(call, input, dim=None, keepdim=False, dtype=None):
    """Sum over `dim` (an int, several, or None for all); integers and bools sum to int64.

    16-bit floats are summed in float32 and rounded once; `dtype` converts the input first. A sum of
    nothing is 0.
    """
    return _accumulate(call, _SUM, input, dim, keepdim, dtype=dtype)


@op(ref=_over(np.mean), samples=_reduce_samples, tolerance=_SUM_TOLERANCE)
def mean(call, input, dim=None, keepdim=False, dtype=None):
    """Mean over `dim` (an int, several, or None for all) of a floating-point tensor; NaN of nothing.

    `dtype` converts the input first: an integer tensor has no mean of its own dtype.
    """
    return _accumulate(call, _SUM, input, dim, keepdim, mean=True, dtype=dtype)


@op(dtypes=ALL, ref=_over(np.prod), samples=_reduce_samples, tolerance=_SUM_TOLERANCE)
def prod(call, input, dim=None, keepdim=False, dtype=None):
    """Product over `dim`, under the rules of `sum`; the product of nothing is 1."""
    return _accumulate(call, _PRODUCT, input, dim, keepdim, dtype=dtype)


def _need_elements(call, shape, dims):
    if product(shape) == 0:
        for d in dims:
            if shape[d] == 0 and product(_result_shape(shape, dims, False)):
                raise ValueError(f"`{call.op.name}` needs at least one element along `dim` {d}, got shape {shape}")


def _extreme(call, input, dim, keepdim, name, index):
    """amax or amin."""
    check(call, input, "input")
    shape = input.shape_
    dims = _dims(dim, len(shape))
    _need_elements(call, shape, dims)
    y = call.out(_result_shape(shape, dims, keepdim), input.dtype)
    types = {"T": _storage(input.dtype), "A": _compute(input.dtype), "O": _storage(input.dtype)}
    _Reduction(name, _bounds(input.dtype)[index]).run(call, input, y, dims, types)
    return y


@op(dtypes=ALL, ref=_over(np.max), samples=_reduce_samples)
def amax(call, input, dim=None, keepdim=False):
    """Maximum over `dim` (an int, several, or None for all); NaN if one element is."""
    return _extreme(call, input, dim, keepdim, "max", 0)


@op(dtypes=ALL, ref=_over(np.min), samples=_reduce_samples)
def amin(call, input, dim=None, keepdim=False):
    """Minimum over `dim` (an int, several, or None for all); NaN if one element is."""
    return _extreme(call, input, dim, keepdim, "min", 1)


def _truth(call, reduction, input, dim, keepdim):
    check(call, input, "input")
    dims = _dims(dim, len(input.shape_))
    y = call.out(_result_shape(input.shape_, dims, keepdim), "bool")
    kind = input.dtype.name if input.dtype.is_floating_point else _UNSIGNED[input.dtype.itemsize]
    reduction.run(call, input, y, dims, {"T": kind, "A": "bool", "O": "bool"})
    return y


def _truth_samples(rng):
    for args, options in _reduce_samples(rng):
        yield (np.asarray(args[0] > 1.2, dtype=np.float64),), options


@op(dtypes=ALL, ref=_over(np.any), samples=_truth_samples)
def any_(call, input, dim=None, keepdim=False):
    """Whether any element over `dim` is not zero (NaN is not); False of nothing."""
    return _truth(call, _ANY, input, dim, keepdim)


@op(dtypes=ALL, ref=_over(np.all), samples=_truth_samples)
def all_(call, input, dim=None, keepdim=False):
    """Whether all elements over `dim` are not zero; True of nothing."""
    return _truth(call, _ALL, input, dim, keepdim)


# ---- positions ---------------------------------------------------------------------------------


def _search(call, x, values, indices, dims, name):
    """Positions (and values) of the maximum or minimum over one dim, or over all dims of a contiguous x."""
    x, kind, kept, reduced = _plan(x, dims, 1)
    (outer, outer_stride), (inner, inner_stride) = _two(kept, (1, 0))
    ((length, stride),) = reduced
    types = {"T": _storage(x.dtype)}

    def launch(source, values, indices, n, args):
        grain = max(1, _CHUNK // max(1, args[3] * (1 if kind == "inner" else _PAIR)))
        block = [source.address, 0 if values is None else values.address, indices.address, *args]
        call.launch(f"argmax.{name}_{kind}", types, block, n, grain, (source, values, indices, x))

    if kind == "inner" and outer * inner == 1 and length >= 4 * _CHUNK:
        chunks = -(-length // _CHUNK)
        best, where = call.empty((chunks,), x.dtype), call.empty((chunks,), "int64")
        launch(x, best, where, chunks, [1, _CHUNK, 0, _CHUNK, 1, length, 0, 0])
        launch(best, values, indices, 1, [1, 0, 0, chunks, 1, _WHOLE, where.address, _CHUNK])
        return
    n = outer * inner if kind == "inner" else outer * -(-inner // _PAIR)
    launch(x, values, indices, n, [inner, outer_stride, inner_stride, length, stride, _WHOLE, 0, 0])


def _position(call, input, dim, keepdim, name):
    """argmax or argmin."""
    check(call, input, "input")
    shape = input.shape_
    dims = _dims(None if dim is None else check_dim(dim, len(shape)), len(shape))
    _need_elements(call, shape, dims)
    y = call.out(_result_shape(shape, dims, keepdim), "int64")
    _search(call, input.contiguous() if dim is None else input, None, y, dims, name)
    return y


def _position_ref(function):
    def ref(input, dim=None, keepdim=False):
        return function(input, axis=dim, keepdims=keepdim)

    return ref


def _position_samples(rng):
    for args, options in _reduce_samples(rng):
        if not isinstance(options.get("dim"), tuple):
            # values with ties, exact in every float
            yield (np.asarray(np.round(args[0] * 8 + rng.integers(-8, 8, args[0].shape))),), options


@op(dtypes=ALL, ref=_position_ref(np.argmax), samples=_position_samples)
def argmax(call, input, dim=None, keepdim=False):
    """int64 position of the maximum along `dim`, or in the flattened tensor; the first of equal ones.

    NaN counts as the maximum.
    """
    return _position(call, input, dim, keepdim, "argmax")


@op(dtypes=ALL, ref=_position_ref(np.argmin), samples=_position_samples)
def argmin(call, input, dim=None, keepdim=False):
    """int64 position of the minimum, under the rules of `argmax`."""
    return _position(call, input, dim, keepdim, "argmin")


def _value_and_position(call, input, dim, keepdim, name, index):
    """max or min: a value over all dims, or (values, indices) along one."""
    if hasattr(dim, "strides_"):
        raise TypeError(f"`dim` of `{name}` must be an integer, got a tensor: `{name}imum` compares two tensors")
    if dim is None:
        return _extreme(call, input, None, keepdim, name, index)
    check(call, input, "input")
    shape = input.shape_
    dims = _dims(check_dim(dim, len(shape)), len(shape))
    _need_elements(call, shape, dims)
    result = _result_shape(shape, dims, keepdim)
    values, indices = call.out(result, input.dtype), call.out(result, "int64", key="indices")
    _search(call, input, values, indices, dims, f"arg{name}")
    return values, indices


def _pair_ref(value, position):
    def ref(input, dim=None, keepdim=False):
        found = value(input, axis=dim, keepdims=keepdim)
        return found if dim is None else (found, position(input, axis=dim, keepdims=keepdim))

    return ref


@op(dtypes=ALL, ref=_pair_ref(np.max, np.argmax), samples=_position_samples, outputs=("out", "indices"))
def max_(call, input, dim=None, keepdim=False):
    """The maximum of all elements, or along `dim` a pair (values, int64 indices of the first ones).

    NaN counts as the maximum. Raises ValueError for a maximum of nothing.
    """
    return _value_and_position(call, input, dim, keepdim, "max", 0)


@op(dtypes=ALL, ref=_pair_ref(np.min, np.argmin), samples=_position_samples, outputs=("out", "indices"))
def min_(call, input, dim=None, keepdim=False):
    """The minimum, under the rules of `max`."""
    return _value_and_position(call, input, dim, keepdim, "min", 1)


# ---- variance ----------------------------------------------------------------------------------


def _var_ref(input, dim=None, unbiased=True, keepdim=False):
    with np.errstate(all="ignore"):
        return np.var(input, axis=dim, ddof=int(unbiased), keepdims=keepdim)


def _var_samples(rng):
    for shape, dim in (((4, 3), -1), ((257, 5), 0), ((3, 17, 7), None), ((3, 5, 7), (0, 2))):
        options = {} if dim is None else {"dim": dim}
        yield (rng.standard_normal(shape) + 2,), options
        yield (rng.standard_normal(shape) + 2,), {**options, "unbiased": False, "keepdim": True}


@op(ref=_var_ref, samples=_var_samples, tolerance={"bfloat16": (2e-2, 1e-2)})
def var(call, input, dim=None, unbiased=True, keepdim=False):
    """Variance over `dim` (an int, several, or None for all): squares about the mean, summed.

    The sum is divided by the count less one if `unbiased`, else by the count.
    """
    check(call, input, "input")
    shape = input.shape_
    dims = _dims(dim, len(shape))
    others = [d for d in range(len(shape)) if d not in dims]
    x = input.permute(*others, *dims).contiguous() if dims else input
    y = call.out(_result_shape(shape, dims, keepdim), input.dtype)
    size = product(shape[d] for d in dims)
    divisor = call.float_bits(float(max(0, size - bool(unbiased))))
    args = [x.address, y.address, size, size, divisor]
    grain = max(1, _CHUNK // (size or 1))
    call.launch("norm.variance", {"T": x.dtype.name}, args, product(y.shape_), grain, (x, y))
    return y
