"""Reductions over one dim, several, or all. Sums of 16-bit floats are taken in float32."""

import functools

import numpy as np

from .. import kernel
from ..build import isa
from ..table.registry import ALL, FLOATS, op
from ._layout import check, check_dim, merged, product

_WIDE = 4 * isa.lanes()  # WIDE of cpu/reduce.py
_PAIR = 2 * isa.lanes()  # PAIR of cpu/argmax.py
_UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
CHUNK = 65536  # elements of a slice of a long reduction: 3 us
_WHOLE = 1 << 62  # "not in chunks"


# ---- layouts -----------------------------------------------------------------------------------


def reduced_dims(dim, ndim):
    """The reduced dims of `dim` (None, an int or a sequence), sorted; None and () mean all."""
    if dim is None:
        return tuple(range(ndim))
    if isinstance(dim, (tuple, list)):
        dims = sorted(check_dim(d, ndim) for d in dim)
        if len(set(dims)) < len(dims):
            raise ValueError(f"`dim` names a dim twice: {tuple(dim)}")
        return tuple(dims) or tuple(range(ndim))
    return (check_dim(dim, ndim),) if ndim else (check_dim(dim, 0),)[:0]


def _two(groups):
    """Two (size, stride) pairs, outer and inner."""
    return [(1, 0)] * (2 - len(groups)) + groups


class _Layout:
    """What a reduction of a layout over dims is for the kernels.

    "inner": the reduced elements are contiguous; "outer": neighbouring results are. Kernels take at most
    two merged kept dims and `max_reduced` reduced ones; where there are more, the tensor is copied in the
    order `copy`. A long reduction with few results goes in `chunks` of `step`.
    """

    __slots__ = ("chunks", "copy", "count", "dims", "kept", "kind", "launches", "reduced", "result", "results", "step")

    def __init__(self, shape, strides, dim, keepdim, max_reduced):
        self.dims = dims = reduced_dims(dim, len(shape))
        others = [d for d in range(len(shape)) if d not in dims]
        self.result = tuple(n if d in others else 1 for d, n in enumerate(shape) if keepdim or d in others)
        self.count = product(shape[d] for d in dims)
        self.results = product(self.result)
        kept = merged([shape[d] for d in others], [strides[d] for d in others])
        reduced = merged([shape[d] for d in dims], [strides[d] for d in dims]) or [(1, 1)]
        self.copy = None
        if len(kept) > 2 or len(reduced) > max_reduced:
            self.kind = None
        else:
            self.kind = "inner" if reduced[-1][1] == 1 else "outer" if kept and kept[-1][1] == 1 else None
        if self.kind is None:
            self.copy, self.kind = (*others, *dims), "inner"
            kept, reduced = merged([self.results], [self.count]), [(self.count, 1)]
        self.kept, self.reduced = _two(kept), _two(reduced)
        units = self.results if self.kind == "inner" else -(-self.results // _WIDE)
        one_group = len(kept) <= 1 and len(reduced) == 1
        self.step = max(1, CHUNK // (self.results if self.kind == "outer" and self.results else 1))
        long = one_group and units < 4 and self.count * self.results >= 4 * CHUNK
        self.chunks = -(-self.count // self.step) if long else 1
        self.launches = {}  # what a reduction of this layout launches, by its name and types


_layout = functools.lru_cache(maxsize=4096)(_Layout)


def plan_of(x, dim, keepdim, max_reduced=2):
    """(x, or a copy of it that kernels take, and its `_Layout`)."""
    plan = _layout(x.shape_, x.strides_, tuple(dim) if isinstance(dim, list) else dim, keepdim, max_reduced)
    return (x if plan.copy is None else x.permute(*plan.copy).contiguous()), plan


# ---- sum, mean, product, maximum, minimum, any, all ----------------------------------------------


class Reduction:
    """A reduction of `cpu/reduce.py`: the names of its kernels and of those that join partial results; its identity."""

    def __init__(self, name, identity, join=None):
        self.name, self.identity, self.join = name, identity, join or name

    def _launch(self, call, name, kind, kept, reduced, types, whole=_WHOLE, divisor=1.0):
        """(address of the kernel, arguments behind the addresses, units, grain)."""
        ((outer, outer_stride), (inner, inner_stride)), ((num_rows, row_stride), (length, stride)) = kept, reduced
        bits = call.float_bits(self.identity) if types["A"] in FLOATS else int(self.identity)
        args = [outer, inner, outer_stride, inner_stride, num_rows, length, row_stride, stride]
        args += [bits, whole, call.float_bits(divisor)]
        n, width = (outer * inner, 1) if kind == "inner" else (outer * -(-inner // _WIDE), min(inner, _WIDE))
        return (
            kernel(f"reduce.fold.{name}_{kind}", **types),
            args,
            n,
            max(1, CHUNK // max(1, num_rows * length * width)),
        )

    def launches(self, call, plan, types, name, divisor):
        """The launches of a plan: one, or one for partial results and one for the whole."""
        if plan.chunks == 1:
            return (self._launch(call, name, plan.kind, plan.kept, plan.reduced, types, divisor=divisor),)
        length, stride = plan.reduced[1]
        kept, reduced = [(plan.chunks, plan.step * stride), plan.kept[1]], _two([(plan.step, stride)])
        first = self._launch(call, self.name, plan.kind, kept, reduced, {**types, "O": types["A"]}, length)
        reduced, kind = _two([(plan.chunks, plan.results)]), "inner" if plan.results == 1 else "outer"
        kept, second = _two([] if plan.results == 1 else [(plan.results, 1)]), {**types, "T": types["A"]}
        name = self.join if name == self.name else name
        return first, self._launch(call, name, kind, kept, reduced, second, divisor=divisor)

    def run(self, call, x, plan, y, types, name=None, divisor=1.0):
        """Reduce x into y by its plan; `name` and `divisor` belong to the last launch."""
        name = name or self.name
        key = self, name, types["T"], types["A"], types["O"]
        launches = plan.launches.get(key)
        if launches is None:
            launches = plan.launches[key] = self.launches(call, plan, types, name, divisor)
        launch(call, x, y, launches, plan, types["A"])


def launch(call, x, y, launches, plan, partial_dtype):
    """Reduce x into y, by way of partial results where there are two launches."""
    if len(launches) == 2:
        address, args, n, grain = launches[0]
        partial = call.empty((plan.chunks, plan.results), partial_dtype)
        call.launch_at(address, None, [x.address, partial.address, *args], n, grain, (x, partial))
        x = partial
    address, args, n, grain = launches[-1]
    call.launch_at(address, None, [x.address, y.address, *args], n, grain, (x, y))


_SUM, _PRODUCT = Reduction("sum", 0.0), Reduction("prod", 1.0)
_ANY, _ALL = Reduction("any", 0), Reduction("all", 1)


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


def compute_type(dtype):
    """The type that values of a dtype are computed in."""
    return "float32" if dtype.is_floating_point and dtype.itemsize < 4 else _storage(dtype)


def _accumulate(call, reduction, input, dim, keepdim, mean=False, dtype=None):
    """Sum, mean or product."""
    call.save(input_shape=getattr(input, "shape_", None), input_dtype=getattr(input, "dtype", None))
    if dtype is not None:
        input = input.to(dtype=dtype)
    check(call, input, "input")
    x, plan = plan_of(input, dim, keepdim)
    key = reduction, mean, input.dtype
    known = plan.launches.get(key)
    if known is None:
        own, result = input.dtype.name, input.dtype.name if input.dtype.is_floating_point else "int64"
        types = {"T": own, "A": compute_type(input.dtype) if result == own else result, "O": result}
        name, divisor = ("mean", float(plan.count)) if mean else (reduction.name, 1.0)
        launches = reduction.launches(call, plan, types, name, divisor)
        known = plan.launches[key] = call.empty((0,), result).dtype, launches, types["A"]
    y = call.out(plan.result, known[0])
    launch(call, x, y, known[1], plan, known[2])
    return y


def reduce_samples(rng):
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


SUM_TOLERANCE = {"float32": (1e-5, 1e-5), "bfloat16": (1e-2, 1e-2), "float16": (2e-3, 2e-3)}


@op(dtypes=ALL, ref=_over(np.sum), samples=reduce_samples, tolerance=SUM_TOLERANCE, amp="float32")
def sum_(call, input, dim=None, keepdim=False, dtype=None):
    """Sum over `dim` (an int, several, or None for all); integers and bools sum to int64.

    16-bit floats are summed in float32 and rounded once; `dtype` converts the input first. A sum of
    nothing is 0.
    """
    return _accumulate(call, _SUM, input, dim, keepdim, dtype=dtype)


def restored(g, shape, dim, keepdim):
    """A result of a reduction of `shape` over `dim` with the reduced dims again, of size 1."""
    if not keepdim:
        for d in reduced_dims(dim, len(shape)):
            g = g.unsqueeze(d)
    return g


@sum_.grad("input")
def _(g, input_shape, input_dtype, dim, keepdim):
    return restored(g, input_shape, dim, keepdim).expand(input_shape).to(dtype=input_dtype)


@op(ref=_over(np.mean), samples=reduce_samples, tolerance=SUM_TOLERANCE, amp="float32")
def mean(call, input, dim=None, keepdim=False, dtype=None):
    """Mean over `dim` (an int, several, or None for all) of a floating-point tensor; NaN of nothing.

    `dtype` converts the input first: an integer tensor has no mean of its own dtype.
    """
    return _accumulate(call, _SUM, input, dim, keepdim, mean=True, dtype=dtype)


@mean.grad("input")
def _(f, g, input_shape, input_dtype, dim, keepdim):
    count = product(input_shape[d] for d in reduced_dims(dim, len(input_shape)))
    g = f.mul(g, 1.0 / count) if count else g
    return restored(g, input_shape, dim, keepdim).expand(input_shape).to(dtype=input_dtype)


@op(dtypes=ALL, ref=_over(np.prod), samples=reduce_samples, tolerance=SUM_TOLERANCE, amp="float32")
def prod(call, input, dim=None, keepdim=False, dtype=None):
    """Product over `dim`, under the rules of `sum`; the product of nothing is 1."""
    return _accumulate(call, _PRODUCT, input, dim, keepdim, dtype=dtype)


def _others(f, x):
    """For each element the product of the others along the last dim, of any order of derivative: n^2 products."""
    n = x.shape_[-1]
    zero = f.eq(x, 0.0)
    ones = f.logical_or(zero, f.logical_not(zero)).unsqueeze(-1).expand(*x.shape_, n)
    own = f.tril(f.triu(ones))
    return f.prod(f.masked_fill(x.unsqueeze(-2).expand(*x.shape_, n), own, 1.0), -1)


@prod.grad("input")
def _(f, g, input, dim, keepdim, dtype, create_graph):
    x = input if dtype is None else input.to(dtype=dtype)
    shape, dims = x.shape_, reduced_dims(dim, len(x.shape_))
    g = restored(g, shape, dim, keepdim)
    if create_graph:
        order = [*(d for d in range(len(shape)) if d not in dims), *dims]
        moved = x.permute(order)
        others = _others(f, moved.reshape(*moved.shape_[: len(shape) - len(dims)], -1)).reshape(moved.shape_)
        back = [order.index(d) for d in range(len(shape))]
        return f.mul(g, others.permute(back)).to(dtype=input.dtype)
    zero = f.eq(x, 0.0)
    zeros, rest = f.sum(zero, dims, True), f.where(zero, 1.0, x)
    product_of_rest = f.prod(rest, dims, True)
    elsewhere = f.div(f.where(f.eq(zeros, 0), product_of_rest, 0.0), rest)  # 0 where a zero is among the others
    there = f.where(f.eq(zeros, 1), product_of_rest, 0.0)
    return f.mul(g, f.where(zero, there, elsewhere)).to(dtype=input.dtype)


def need_elements(call, shape, plan):
    if plan.count == 0 and plan.results:
        d = next(d for d in plan.dims if shape[d] == 0)
        raise ValueError(f"`{call.op.name}` needs at least one element along `dim` {d}, got shape {shape}")


def _extreme(call, input, dim, keepdim, name, index):
    """amax or amin."""
    check(call, input, "input")
    x, plan = plan_of(input, dim, keepdim)
    need_elements(call, input.shape_, plan)
    y = call.out(plan.result, input.dtype)
    types = {"T": _storage(input.dtype), "A": compute_type(input.dtype), "O": _storage(input.dtype)}
    _extremes(name, input.dtype, index).run(call, x, plan, y, types)
    return y


@functools.cache
def _extremes(name, dtype, index):
    return Reduction(name, _bounds(dtype)[index])


@op(dtypes=ALL, ref=_over(np.max), samples=reduce_samples)
def amax(call, input, dim=None, keepdim=False):
    """Maximum over `dim` (an int, several, or None for all); NaN if one element is."""
    return _extreme(call, input, dim, keepdim, "max", 0)


def shared(f, g, input, out, dim, keepdim):
    """The gradient of an extreme value: shared evenly by the elements that equal it."""
    g, out = restored(g, input.shape_, dim, keepdim), restored(out, input.shape_, dim, keepdim)
    equal = f.eq(input, out)
    count = f.sum(equal, reduced_dims(dim, len(input.shape_)), True)
    return f.where(equal, f.div(g, count.to(dtype=g.dtype)), 0.0)


@amax.grad("input")
def _(f, g, input, out, dim, keepdim):
    return shared(f, g, input, out, dim, keepdim)


@op(dtypes=ALL, ref=_over(np.min), samples=reduce_samples)
def amin(call, input, dim=None, keepdim=False):
    """Minimum over `dim` (an int, several, or None for all); NaN if one element is."""
    return _extreme(call, input, dim, keepdim, "min", 1)


@amin.grad("input")
def _(f, g, input, out, dim, keepdim):
    return shared(f, g, input, out, dim, keepdim)


def _truth(call, reduction, input, dim, keepdim):
    check(call, input, "input")
    x, plan = plan_of(input, dim, keepdim)
    y = call.out(plan.result, "bool")
    kind = input.dtype.name if input.dtype.is_floating_point else _UNSIGNED[input.dtype.itemsize]
    reduction.run(call, x, plan, y, {"T": kind, "A": "bool", "O": "bool"})
    return y


def _truth_samples(rng):
    for args, options in reduce_samples(rng):
        yield (np.asarray(args[0] > 1.2, dtype=np.float64),), options


@op(dtypes=ALL, ref=_over(np.any), samples=_truth_samples, gradient=None)
def any_(call, input, dim=None, keepdim=False):
    """Whether any element over `dim` is not zero (NaN is not); False of nothing."""
    return _truth(call, _ANY, input, dim, keepdim)


@op(dtypes=ALL, ref=_over(np.all), samples=_truth_samples, gradient=None)
def all_(call, input, dim=None, keepdim=False):
    """Whether all elements over `dim` are not zero; True of nothing."""
    return _truth(call, _ALL, input, dim, keepdim)


# ---- positions ---------------------------------------------------------------------------------


def _search(call, x, plan, values, indices, name):
    """Positions (and values) of the maximum or minimum by a plan with one reduced dim."""
    (outer, outer_stride), (inner, inner_stride) = plan.kept
    length, stride = plan.reduced[1]
    types = {"T": _storage(x.dtype)}

    def launch(source, values, indices, n, args):
        grain = max(1, CHUNK // max(1, args[3] * (1 if plan.kind == "inner" else _PAIR)))
        block = [source.address, 0 if values is None else values.address, indices.address, *args]
        call.launch_at(f"reduce.argmax.{name}_{plan.kind}", types, block, n, grain, (source, values, indices, x))

    if plan.chunks > 1 and plan.results == 1 and plan.kind == "inner":
        best, where = call.empty((plan.chunks,), x.dtype), call.empty((plan.chunks,), "int64")
        launch(x, best, where, plan.chunks, [1, plan.step, 0, plan.step, 1, length, 0, 0])
        launch(best, values, indices, 1, [1, 0, 0, plan.chunks, 1, _WHOLE, where.address, plan.step])
        return
    n = outer * inner if plan.kind == "inner" else outer * -(-inner // _PAIR)
    launch(x, values, indices, n, [inner, outer_stride, inner_stride, length, stride, _WHOLE, 0, 0])


def _position(call, input, dim, keepdim, name):
    """argmax or argmin."""
    check(call, input, "input")
    if dim is not None:
        check_dim(dim, len(input.shape_))
    # a position in the flattened tensor needs it flat
    x, plan = plan_of(input.contiguous() if dim is None else input, dim, keepdim, 1)
    need_elements(call, input.shape_, plan)
    y = call.out(plan.result, "int64")
    _search(call, x, plan, None, y, name)
    return y


def _position_ref(function):
    def ref(input, dim=None, keepdim=False):
        return function(input, axis=dim, keepdims=keepdim)

    return ref


def _position_samples(rng):
    for args, options in reduce_samples(rng):
        if not isinstance(options.get("dim"), tuple):
            # values with ties, exact in every float
            yield (np.asarray(np.round(args[0] * 8 + rng.integers(-8, 8, args[0].shape))),), options


def _distinct_samples(rng):
    for args, options in reduce_samples(rng):
        if not isinstance(options.get("dim"), tuple):
            yield args, options


@op(dtypes=ALL, ref=_position_ref(np.argmax), samples=_position_samples, gradient=None)
def argmax(call, input, dim=None, keepdim=False):
    """int64 position of the maximum along `dim`, or in the flattened tensor; the first of equal ones.

    NaN counts as the maximum.
    """
    return _position(call, input, dim, keepdim, "argmax")


@op(dtypes=ALL, ref=_position_ref(np.argmin), samples=_position_samples, gradient=None)
def argmin(call, input, dim=None, keepdim=False):
    """int64 position of the minimum, under the rules of `argmax`."""
    return _position(call, input, dim, keepdim, "argmin")


def _value_and_position(call, input, dim, keepdim, name, index):
    """max or min: a value over all dims, or (values, indices) along one."""
    if hasattr(dim, "strides_"):
        raise TypeError(f"`dim` of `{name}` must be an integer, got a tensor: `{name}imum` compares two tensors")
    if dim is None:
        call.save(kept=input, where=None, input_shape=None)
        return _extreme(call, input, None, keepdim, name, index)
    check(call, input, "input")
    check_dim(dim, len(input.shape_))
    x, plan = plan_of(input, dim, keepdim, 1)
    need_elements(call, input.shape_, plan)
    values, indices = call.out(plan.result, input.dtype), call.out(plan.result, "int64", key="indices")
    call.save(kept=None, where=indices, input_shape=input.shape_)
    _search(call, x, plan, values, indices, f"arg{name}")
    return values, indices


def _value_gradient(f, g, kept, out, dim, keepdim, where, shape):
    """The gradient of max or min: to the element that the index `where` names, or shared among equal ones."""
    if dim is None:
        return shared(f, g, kept, out, None, keepdim)
    if not shape:
        return g
    return f.gather_backward(restored(g, shape, dim, keepdim), dim, restored(where, shape, dim, keepdim), shape)


def _pair_ref(value, position):
    def ref(input, dim=None, keepdim=False):
        found = value(input, axis=dim, keepdims=keepdim)
        return found if dim is None else (found, position(input, axis=dim, keepdims=keepdim))

    return ref


@op(
    dtypes=ALL,
    ref=_pair_ref(np.max, np.argmax),
    samples=_position_samples,
    grad_samples=_distinct_samples,
    outputs=("out", "indices"),
    fields=("values", "indices"),
)
def max_(call, input, dim=None, keepdim=False):
    """The maximum of all elements, or along `dim` a pair (values, int64 indices of the first ones).

    NaN counts as the maximum. Raises ValueError for a maximum of nothing.
    """
    return _value_and_position(call, input, dim, keepdim, "max", 0)


@max_.grad("input")
def _(f, g, kept, out, dim, keepdim, where, input_shape):
    return _value_gradient(f, g, kept, out, dim, keepdim, where, input_shape)


@op(
    dtypes=ALL,
    ref=_pair_ref(np.min, np.argmin),
    samples=_position_samples,
    grad_samples=_distinct_samples,
    outputs=("out", "indices"),
    fields=("values", "indices"),
)
def min_(call, input, dim=None, keepdim=False):
    """The minimum, under the rules of `max`."""
    return _value_and_position(call, input, dim, keepdim, "min", 1)


@min_.grad("input")
def _(f, g, kept, out, dim, keepdim, where, input_shape):
    return _value_gradient(f, g, kept, out, dim, keepdim, where, input_shape)
