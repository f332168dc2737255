"""Norms, scaling and clamping of many tensors at once: what gradients go through before an optimizer's step."""

import math

import numpy as np

from ..blocks.optim import FINISH, MANY, TENSOR, UNIT
from ..table.registry import op
from ._layout import check

_KERNELS = {2.0: "squares", 1.0: "magnitudes", 0.0: "nonzeros", math.inf: "maxima", -math.inf: "minima"}
_KINDS = {math.inf: 1, -math.inf: 2}  # of `optim.norm.finish`; 0 is a sum

_TOGETHER = 240  # tensors in a launch


def _checked(call, tensors):
    """The tensors of a sequence, none sharing memory with itself."""
    if hasattr(tensors, "strides_"):
        raise TypeError(f"`tensors` of `{call.op.name}` must be a list of tensors, got one tensor: put it in a list")
    tensors = list(tensors)
    for x in tensors:
        check(call, x, "tensors")
    return tensors


def _by_dtype(tensors):
    """(dtype name, tensors that have elements), as many as an argument block of a GPU has room for."""
    groups = {}
    for x in tensors:
        if x.numel_:
            groups.setdefault(x.dtype.name, []).append(x)
    return [(name, own[i : i + _TOGETHER]) for name, own in groups.items() for i in range(0, len(own), _TOGETHER)]


def _table(tensors):
    """The rows of an argument block, and the number of units."""
    sizes = [x.numel_ for x in tensors]
    return TENSOR.many(x=tensors, numel=sizes), sum([-(-size // UNIT) for size in sizes])


def _multi_norm_ref(tensors, ord=2.0):
    return np.linalg.norm(np.concatenate([np.ravel(x) for x in tensors]), ord)


def _multi_norm_samples(rng):
    tensors = [rng.standard_normal(shape) for shape in ((3, 17), (1,), (40000,), (257,), (2, 3, 4))]
    for ord in (2.0, 1.0, math.inf, -math.inf, 3.0, 0.0):
        yield (tensors,), {"ord": ord}


@op(ref=_multi_norm_ref, samples=_multi_norm_samples, gradient=None, amp="as_is")
def multi_norm(call, tensors, ord=2.0):
    """The p-norm of all elements of a sequence of tensors, as if they were one vector: a 0-dim tensor.

    (sum |x|^p)^(1/p) for p = `ord`; the largest |x| for inf, the smallest for -inf, the number of elements that are
    not 0 for 0. Accumulated in float64 in an order that does not depend on threads. The result is float64 if a tensor
    is, else float32; without any elements it is 0.
    """
    tensors = _checked(call, tensors)
    ord = float(ord)
    if ord != ord:
        raise ValueError("`ord` of `multi_norm` must be a number or inf, got nan")
    wide = any(x.dtype.name == "float64" for x in tensors)
    groups = [(name, [x.contiguous() for x in group]) for name, group in _by_dtype(tensors)]
    tables = [(name, *_table(group)) for name, group in groups]
    total = sum(units for _, _, units in tables)
    y = call.out((), "float64" if wide else "float32")
    partial = call.empty((max(1, total),), "float64")
    if not total:
        partial.zero_()
    done = 0
    for name, table, units in tables:
        block = MANY(result=call.view(partial, (units,), (1,), done), number=ord, tensors=table)
        call.launch("optim.norm." + _KERNELS.get(ord, "powers"), {"T": name}, block, units, UNIT)
        done += units
    root = 1.0 / ord if ord not in (0.0, math.inf, -math.inf) and total else 1.0
    block = FINISH(partial=partial, y=y, count=max(1, total), kind=_KINDS.get(ord, 0), root=root)
    call.launch("optim.norm.finish", {"T": y.dtype.name}, block, 1, total)
    return y


def _in_place(call, tensors, kernel, number, types=None, **operands):
    """Run a kernel over all tensors; what is not contiguous goes through a copy."""
    for name, group in _by_dtype(tensors):
        dense = [x.contiguous() for x in group]
        table, units = _table(dense)
        block = MANY(number=number, tensors=table, **operands)
        call.launch(kernel, {"T": name, **(types or {})}, block, units, UNIT)
        for x, copy in zip(group, dense):
            x.storage.version += 1  # a write that backward must know of
            if copy is not x:
                call.elementwise("mul", copy, 1.0, out=x)


def _multi_scale_ref(tensors, factor):
    return np.array(not all(np.isfinite(x).all() for x in tensors))


def _multi_scale_samples(rng):
    tensors = [rng.standard_normal(shape) for shape in ((3, 17), (40000,))]
    yield (tensors, 0.5), {}
    yield ([*tensors, np.array([1.0, math.nan])], 2.0), {}
    yield ([np.array([[1.0, 2.0], [-math.inf, 0.0]]), *tensors], 1.0), {}


@op(ref=_multi_scale_ref, samples=_multi_scale_samples, outputs=(), gradient=None, amp="as_is")
def multi_scale(call, tensors, factor):
    """Multiply all tensors of a sequence by a number, in place, in one launch for each dtype.

    Returns a 0-dim bool tensor: whether an element was infinite or NaN before.
    """
    tensors = _checked(call, tensors)
    found = call.empty((), "int64")
    found.zero_()
    _in_place(call, tensors, "optim.norm.scale", float(factor), {"R": "float32"}, result=found)
    return call.elementwise("ne", found, 0)


@op(outputs=(), gradient=None, amp="as_is")
def multi_clip(call, tensors, total_norm, max_norm):
    """Multiply all tensors of a sequence, in place, by max_norm / (total_norm + 1e-6) where that is below 1.

    `total_norm` is a tensor of one float, which a GPU reads by itself: nobody waits. Returns the list of tensors.
    """
    tensors = _checked(call, tensors)
    check(call, total_norm, "total_norm")
    if total_norm.numel_ != 1 or not total_norm.dtype.is_floating_point:
        raise ValueError(
            f"`total_norm` of `multi_clip` must be one float, got {total_norm.dtype} of shape {total_norm.shape_}: "
            "take what `multi_norm` returns"
        )
    types = {"R": total_norm.dtype.name}
    _in_place(call, tensors, "optim.norm.scale", float(max_norm), types, total=total_norm)
    return tensors


@op(outputs=(), gradient=None, amp="as_is")
def multi_clamp(call, tensors, limit):
    """Clamp all tensors of a sequence to [-limit, limit], in place; NaN stays. Returns the list of them."""
    tensors = _checked(call, tensors)
    if not float(limit) >= 0:
        raise ValueError(f"`limit` of `multi_clamp` must be at least 0, got {limit}")
    _in_place(call, tensors, "optim.norm.clamp", float(limit))
    return tensors
