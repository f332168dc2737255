"""NumPy's functions of tensors (`numpy.sum(x)`, `numpy.concatenate([x, y])`): where there is an op, a tensor with its
place in the graph, else NumPy's array of the values.
"""

import functools
import inspect

import numpy as np

from ..core import launch as core_launch
from ..core.node_cy import GRAD
from ..core.tensor_cy import TensorBase
from ..dispatch.functions import FUNCTIONS as f
from .numpy import operand, to_numpy

# ---- NumPy's arguments as ours ---------------------------------------------------------------------


def _floats(x):
    return x if x.dtype.kind not in "iub" else x.to(dtype="float32")


def _reduction(name, floats=False):
    def function(a, axis=None, dtype=None, keepdims=False):
        a = a if dtype is None else a.to(dtype=dtype)
        return f[name](_floats(a) if floats else a, axis, keepdims)

    return function


def _place(name):
    return lambda a, axis=None, keepdims=False: f[name](a, axis, keepdims)


def _spread(name):
    return lambda a, axis=None, dtype=None, ddof=0, keepdims=False: f[name](
        _floats(a if dtype is None else a.to(dtype=dtype)), axis, correction=ddof, keepdim=keepdims
    )


def _running(name):
    def function(a, axis=None, dtype=None):
        return f[name](a.reshape(-1) if axis is None else a, 0 if axis is None else axis, dtype)

    return function


def _quantile(a, q, axis=None, keepdims=False):
    q = q if isinstance(q, TensorBase) else _floats(a).new_tensor(q)
    return f["quantile"](_floats(a), q, axis, keepdims)


def _sort(name):
    def function(a, axis=-1):
        found = f[name](a.reshape(-1) if axis is None else a, 0 if axis is None else axis)
        return found[0] if isinstance(found, tuple) else found

    return function


def _transpose(a, axes=None):
    return a.permute(range(a.ndim)[::-1] if axes is None else axes)


def _pieces(a, indices_or_sections, axis=0):
    return list(f["tensor_split"](a, indices_or_sections, axis))


def _dot(a, b):
    return f["matmul"](a, b) if a.ndim and b.ndim else f["mul"](a, b)


def _norm(x, ord=None, axis=None, keepdims=False):
    return f["linalg_norm"](_floats(x), ord, axis, keepdims)


def _axes(name):
    """A function that takes the axes to move, and nothing else."""
    return lambda a, *axes: f[name](a, *axes)


_TABLE = {
    "sum": _reduction("sum"), "prod": _reduction("prod"), "mean": _reduction("mean", floats=True),
    "nansum": _reduction("nansum"), "nanmean": _reduction("nanmean", floats=True),
    "max": _reduction("amax"), "min": _reduction("amin"), "amax": _reduction("amax"), "amin": _reduction("amin"),
    "all": _reduction("all"), "any": _reduction("any"), "argmax": _place("argmax"), "argmin": _place("argmin"),
    "std": _spread("std"), "var": _spread("var"), "cumsum": _running("cumsum"), "cumprod": _running("cumprod"),
    "median": lambda a, axis=None, keepdims=False: _quantile(a, 0.5, axis, keepdims), "quantile": _quantile,
    "percentile": lambda a, q, axis=None, keepdims=False: _quantile(a, np.divide(q, 100.0), axis, keepdims),
    "count_nonzero": lambda a, axis=None: f["count_nonzero"](a, axis),
    "sort": _sort("sort"), "argsort": _sort("argsort"),
    "concatenate": lambda arrays, axis=0: f["cat"]([a.reshape(-1) for a in arrays] if axis is None else list(arrays),
                                                   axis or 0),
    "stack": lambda arrays, axis=0: f["stack"](list(arrays), axis),
    "hstack": lambda tup: f["hstack"](list(tup)), "vstack": lambda tup: f["vstack"](list(tup)),
    "dstack": lambda tup: f["dstack"](list(tup)), "column_stack": lambda tup: f["column_stack"](list(tup)),
    "atleast_1d": lambda *arys: f["atleast_1d"](*arys), "atleast_2d": lambda *arys: f["atleast_2d"](*arys),
    "broadcast_to": lambda array, shape: array.expand(shape),
    "reshape": lambda a, shape: a.reshape(shape), "ravel": lambda a: a.reshape(-1), "transpose": _transpose,
    "matrix_transpose": lambda x: x.mT, "swapaxes": _axes("transpose"), "moveaxis": _axes("movedim"),
    "expand_dims": lambda a, axis: a.unsqueeze(axis), "flip": lambda m, axis=None: f["flip"](
        m, range(m.ndim) if axis is None else axis),
    "squeeze": lambda a, axis=None: a.squeeze() if axis is None else a.squeeze(axis),
    "roll": lambda a, shift, axis=None: f["roll"](a, shift, axis), "tile": lambda A, reps: f["tile"](A, reps),
    "split": _pieces, "array_split": _pieces, "diagonal": _axes("diagonal"), "diag": _axes("diag"),
    "tril": lambda m, k=0: f["tril"](m, k), "triu": lambda m, k=0: f["triu"](m, k), "trace": lambda a: f["trace"](a),
    "where": lambda condition, x, y: f["where"](condition, x, y), "clip": lambda a, a_min=None, a_max=None, *,
    min=None, max=None: f["clamp"](a, a_min if min is None else min, a_max if max is None else max),
    "take": lambda a, indices, axis=None: f["take"](a, indices) if axis is None else f["index_select"](
        a, axis, indices),
    "take_along_axis": lambda arr, indices, axis: f["gather"](arr, axis, indices),
    "round": lambda a, decimals=0: f["round"](a, decimals=decimals) if decimals else f["round"](a),
    "nan_to_num": lambda x, copy=True, nan=0.0, posinf=None, neginf=None: f["nan_to_num"](x, nan, posinf, neginf),
    "diff": lambda a, n=1, axis=-1: f["diff"](a, n, axis), "dot": _dot, "vdot": lambda a, b: f["dot"](
        a.reshape(-1), b.reshape(-1)),
    "inner": lambda a, b: f["inner"](a, b), "outer": lambda a, b: f["outer"](a.reshape(-1), b.reshape(-1)),
    "kron": lambda a, b: f["kron"](a, b), "tensordot": lambda a, b, axes=2: f["tensordot"](a, b, axes),
    "einsum": lambda subscripts, *operands: f["einsum"](subscripts, *operands),
    "zeros_like": lambda a, dtype=None: a.new_zeros(a.shape_, dtype=dtype),
    "ones_like": lambda a, dtype=None: a.new_ones(a.shape_, dtype=dtype),
    "full_like": lambda a, fill_value, dtype=None: a.new_full(a.shape_, fill_value, dtype=dtype),
    "empty_like": lambda prototype, dtype=None: prototype.new_empty(prototype.shape_, dtype=dtype),
    "copy": lambda a: a.clone(), "shape": lambda a: tuple(a.shape_), "ndim": lambda a: a.ndim,
    "size": lambda a, axis=None: a.numel_ if axis is None else a.shape_[axis],
    "isclose": lambda a, b, rtol=1e-5, atol=1e-8, equal_nan=False: f["isclose"](a, b, rtol, atol, equal_nan),
    "linalg.norm": _norm, "linalg.inv": lambda a: f["linalg_inv"](_floats(a)),
    "linalg.det": lambda a: f["linalg_det"](_floats(a)), "linalg.solve": lambda a, b: f["linalg_solve"](a, b),
    "linalg.cholesky": lambda a: f["linalg_cholesky"](a), "linalg.slogdet": lambda a: f["linalg_slogdet"](_floats(a)),
    "linalg.matrix_power": lambda a, n: f["linalg_matrix_power"](a, n),
}  # fmt: skip


@functools.cache
def _known():
    """NumPy's functions with ours and their signatures."""
    found = {}
    for name, function in _TABLE.items():
        module, _, last = name.rpartition(".")
        theirs = getattr(np.linalg if module else np, last, None)
        if theirs is not None:
            found[theirs] = function, inspect.signature(function)
    return found


# ---- the call --------------------------------------------------------------------------------------


def _each(value, change):
    if isinstance(value, (list, tuple)):
        return type(value)([_each(v, change) for v in value])
    if isinstance(value, dict):
        return {key: _each(v, change) for key, v in value.items()}
    return change(value)


def _tensors(value, found):
    _each(value, lambda x: found.append(x) if isinstance(x, TensorBase) else None)
    return found


def array_function(function, args, kwargs):
    """A call of one of NumPy's functions with tensors among its arguments.

    Where there is an op for it, and for these keywords, the result is a tensor, by the promotion of tensors; else it is
    NumPy's, of the values. Raises TypeError where that would lose gradients.
    """
    tensors = _tensors((args, kwargs), [])
    ours, signature = _known().get(function, (None, None))
    if ours is not None:
        named = {key: value for key, value in kwargs.items() if value is not None and value is not np._NoValue}
        try:
            bound = signature.bind(*args, **named)
        except TypeError:  # a keyword that we do not have
            bound = None
        if bound is not None:
            beside = tensors[0]
            return ours(
                *_each(bound.args, lambda x: operand(x, beside)), **_each(bound.kwargs, lambda x: operand(x, beside))
            )
    if core_launch.mode() & GRAD and core_launch.tracked(tensors):
        raise TypeError(f"`numpy.{function.__name__}` records no gradients here: call `.detach()` on the tensor first")
    plain = lambda x: to_numpy(x) if isinstance(x, TensorBase) else x
    return function(*_each(args, plain), **_each(kwargs, plain))
