"""Indexing by tensors, several at once, and the positions of what is not zero."""

import numpy as np

from ..blocks.array import COUNT_NONZERO, INDEX, NONZERO, OFFSETS
from ..problems.array import PutRows
from ..table.registry import ALL, ANY, INEXACT, op
from ._counted import CHUNK, counted, selected
from ._layout import UNSIGNED, check, product, rows
from .copy import copy_into, fill, row_major
from .gather import add_rows, gather_rows

_INTEGERS = ("int64", "int32", "int16", "int8")
_MASKS = ("bool", "uint8")


# ---- nonzero -----------------------------------------------------------------------------------


def _nonzero_samples(rng):
    for shape in ((17,), (3, 5), (2, 3, 40), ()):
        yield (np.round(rng.standard_normal(shape)),), {}


def _positions(call, input, result=None):
    """The indices of elements that are not zero, [K, dims]; `result(shape)` makes the tensor that holds them."""
    x, ndim = input.contiguous(), len(input.shape_)
    types = {"T": x.dtype.name if x.dtype.is_floating_point else UNSIGNED[x.dtype.itemsize]}

    def count(counts, chunks):
        block = COUNT_NONZERO(x=x, counts=counts, numel=x.numel_, step=CHUNK)
        call.launch("array.create.count_nonzero", types, block, chunks, CHUNK)

    def write(made, counts, chunks):
        block = NONZERO(x=x, y=made[0], counts=counts, numel=x.numel_, step=CHUNK, ndim=ndim, sizes=x.shape_ or (1,))
        call.launch("array.create.nonzero", types, block, chunks, CHUNK)

    make = result or (lambda shape: call.empty(shape, "int64"))
    return counted(call, x.numel_, count, lambda most: (make((most, ndim)),), write)[0]


@op(dtypes=ANY, ref=lambda input: np.argwhere(input), samples=_nonzero_samples, gradient=None)
def nonzero(call, input, *, as_tuple=False):
    """int64 [K, dims]: the indices of the K elements that are not zero, in row-major order. Waits for the result.

    `as_tuple` gives a vector [K] for each dim instead, as an index takes them; a number counts as a vector of one.
    """
    check(call, input, "input")
    if not as_tuple:
        return _positions(call, input, lambda shape: call.out(shape, "int64"))
    if call.given:
        raise ValueError("`out` of `nonzero` takes no tuple: leave it out, or `as_tuple`")
    return _positions(call, input if input.shape_ else input.reshape(1)).unbind(1)


@op(dtypes=ALL, ref=np.argwhere, samples=_nonzero_samples, gradient=None)
def argwhere(call, input):
    """int64 [K, D]: the indices of the elements that are not 0, in row-major order."""
    check(call, input, "input")
    return _positions(call, input, lambda shape: call.out(shape, "int64"))


# ---- index -------------------------------------------------------------------------------------


class _Places:
    """Where indices lead in a contiguous tensor [outer, indexed dims, inner].

    `order` is the permutation that brings the tensor to this form (None: it has it), `result` the shape of what is
    read, [outer, K, inner] with the `shape` of the broadcast indices in place of K, `numbers` the int64 tensor [K] that
    says to which of the `rows` of `inner` elements they lead, `wrap` what its negative ones lack, and `errors` what is
    wrong with those that lead nowhere.
    """

    __slots__ = (
        "count", "errors", "inner", "inner_shape", "numbers", "order", "outer", "outer_shape", "rows", "shape", "wrap",
    )  # fmt: skip

    @property
    def result(self):
        return (*self.outer_shape, *self.shape, *self.inner_shape)


def _as_numbers(call, indices, shape):
    """(dim, int64 tensor) of each index: a mask stands for the dims that it covers."""
    if not isinstance(indices, (tuple, list)):
        got = type(indices).__name__
        raise TypeError(f"`indices` of `{call.op.name}` must be a tuple of tensors and None, got {got}")
    found, dim = [], 0
    for index in indices:
        if index is None:
            dim += 1
            continue
        if not hasattr(index, "strides_"):
            raise TypeError(f"`indices` of `{call.op.name}` must hold tensors and None, got {type(index).__name__}")
        name = index.dtype.name
        if name in _MASKS:
            covered = shape[dim : dim + len(index.shape_)]
            if index.shape_ != covered or not covered:
                raise IndexError(
                    f"a mask of shape {index.shape_} does not fit dims {dim} to {dim + len(index.shape_) - 1} of a "
                    f"tensor {shape}"
                )
            positions = _positions(call, index)
            found += [(dim + i, positions.select(1, i)) for i in range(len(covered))]
            dim += len(covered)
            continue
        if name not in _INTEGERS:
            raise TypeError(f"`indices` of `{call.op.name}` must be integer or bool tensors, got {name}")
        found.append((dim, index if name == "int64" else index.to(dtype="int64")))
        dim += 1
    if not found:
        raise ValueError(f"`indices` of `{call.op.name}` must hold at least one tensor, got {tuple(indices)}")
    if dim > len(shape):
        raise IndexError(f"`indices` of `{call.op.name}` names {dim} dims, but the tensor has {len(shape)}")
    return found


def _broadcast(call, shapes):
    ndim = max(len(s) for s in shapes)
    wide = [(1,) * (ndim - len(s)) + s for s in shapes]
    out = []
    for sizes in zip(*wide):
        others = {n for n in sizes if n != 1}
        if len(others) > 1:
            raise IndexError(f"`indices` of `{call.op.name}` must broadcast, got shapes {', '.join(map(str, shapes))}")
        out.append(others.pop() if others else 1)
    return tuple(out)


def _places(call, shape, indices, checked=True):
    """The `_Places` of indices in a tensor of `shape`; not `checked`, a single index may be one as it stands."""
    found = _as_numbers(call, indices, shape)
    dims = [d for d, _ in found]
    places = _Places()
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    first = dims[0] if adjacent else 0
    others = [d for d in range(len(shape)) if d not in dims]
    places.order = None if adjacent else (*dims, *others)
    places.outer_shape = shape[:first]
    places.inner_shape = tuple(shape[d] for d in others[first:])
    places.shape = _broadcast(call, [index.shape_ for _, index in found])
    places.outer, places.count = product(places.outer_shape), product(places.shape)
    places.inner = product(places.inner_shape)
    places.rows = product(shape[d] for d in dims)
    said = f"`indices` of `{call.op.name}` must be within the dims {tuple(dims)} of a tensor {shape}"
    places.errors, places.wrap = {1: said}, 0
    if places.count and not places.rows:  # also where nothing is read, for other dims are empty
        raise ValueError(said)
    if not checked and len(found) == 1 and (len(places.shape) == 1 or found[0][1].contiguous_):
        places.numbers, places.wrap = found[0][1], places.rows
        return places
    places.numbers = call.empty((places.count,), "int64")
    layouts, steps, step, ndim = [], [], 1, len(places.shape)
    for d, index in reversed(found):
        own = [0 if n == 1 else stride for n, stride in zip(index.shape_, index.strides_)]
        layouts.append([0] * (ndim - len(own)) + own)
        steps.append(step)
        step *= shape[d]
    sizes, tensors = [shape[d] for d in reversed(dims)], [index for _, index in reversed(found)]
    own = INDEX.many(x=tensors, size=sizes, step=steps, strides=layouts)
    block = OFFSETS(y=places.numbers, num_tensors=len(found), num_dims=ndim, sizes=places.shape, tensors=own)
    call.launch("array.scatter.offsets", {}, block, places.count, 1, places.errors)
    return places


def _index_ref(input, indices):
    return input[tuple(slice(None) if i is None else i for i in indices)]


def _index_samples(rng):
    x = rng.standard_normal((5, 6, 7))
    a, b = rng.integers(-5, 5, (2, 3)), rng.integers(0, 6, 3)
    yield (x, (a,)), {}
    yield (x, (a, b)), {}
    yield (x, (None, rng.integers(0, 6, 4))), {}
    yield (x, (a, None, rng.integers(0, 7, (2, 1)))), {}
    yield (x, (None, b, rng.integers(0, 7, 3))), {}
    yield (x, (a[0], b, rng.integers(0, 7, 3))), {}
    yield (x, (rng.uniform(size=(5, 6)) < 0.5,)), {}
    yield (x, (None, np.array([True, False, True, True, False, True]))), {}


@op(dtypes=ANY, ref=_index_ref, samples=_index_samples)
def index(call, input, indices):
    """`input[indices]` for a tuple of one integer tensor or mask, or None (all of the dim), for each dim.

    Integer tensors broadcast, and count from the end where negative; a mask (bool or uint8) covers as many dims as it
    has. Where the indexed dims are neighbours, those of the index take their place, else they come first.
    Raises ValueError for an index outside of its dim.
    """
    check(call, input, "input")
    call.save(input_shape=input.shape_)
    mask = indices[0] if isinstance(indices, (tuple, list)) and len(indices) == 1 else None
    if getattr(mask, "shape_", ()) == input.shape_ != () and mask.dtype.name == "bool":
        return selected(call, row_major(call, input), row_major(call, mask))
    places = _places(call, input.shape_, indices, checked=False)
    x = input if places.order is None else input.permute(*places.order)
    x, _, _, stride = rows(x, len(places.outer_shape))
    y = call.out(places.result, input.dtype)
    strides = (places.inner, stride if places.outer_shape else 0)
    sizes, everything = (places.outer, places.inner), (0, places.rows)
    return gather_rows(call, x, places.numbers, y, *sizes, strides, everything, 0, places.errors, places.wrap)


@index.grad("input")
def _(f, g, indices, input_shape):
    return f.index_backward(g, indices, input_shape)


def _index_backward_ref(grad, indices, shape):
    return _index_put_ref(np.zeros(shape), indices, grad, True)


def _index_backward_samples(rng):
    for (x, indices), _ in list(_index_samples(rng))[:5]:
        yield (rng.standard_normal(_index_ref(x, indices).shape), indices, x.shape), {}


@op(ref=_index_backward_ref, samples=_index_backward_samples, dtypes=INEXACT)
def index_backward(call, grad, indices, shape):
    """The gradient of `index` from a tensor of `shape`: zeros, with `grad` added where it came from."""
    check(call, grad, "grad")
    y = call.out(shape, grad.dtype)
    fill(call, y, 0)
    _put(call, y, indices, grad, True)
    return y


@index_backward.grad("grad")
def _(f, g, indices):
    return f.index(g, indices)


_ROW = 8  # elements of rows that are added up in registers; of shorter ones, the whole tensor is widened
_SUMMED_IN = {"bfloat16": "float32", "float16": "float32", "bool": "int64"}


def _put(call, y, indices, values, accumulate):
    """Write (or add) values, which broadcast, to the contiguous tensor y.

    16-bit sums are those in float32, rounded once; sums of bools say whether any is true.
    """
    places = _places(call, y.shape_, indices)
    shape, wide = places.result, _SUMMED_IN.get(y.dtype.name) if accumulate else None
    in_rows = wide == "float32" and places.inner >= _ROW and values.numel_ > 1
    wide = None if in_rows else wide
    target = y if places.order is None else y.permute(*places.order)
    t = target.contiguous() if wide is None else target.to(dtype=wide).contiguous()
    values = values.to(dtype=wide) if wide == "int64" else values
    missing = len(shape) - len(values.shape_)
    if missing < 0 or any(n not in (1, m) for n, m in zip(values.shape_, shape[missing:])):
        raise ValueError(f"`values` of `{call.op.name}` must broadcast to {shape}, got shape {values.shape_}")
    if values.numel_ == 1:
        v_strides = (0, 0, 0)
    else:
        values = values.expand(shape).contiguous()
        v_strides = (places.count * places.inner, places.inner, 1)
    if in_rows:
        add_rows(call, t, values, places.numbers, places.outer, places.rows, places.inner)
        if t is not target:
            copy_into(call, target, t)
        return
    bits = UNSIGNED[y.dtype.itemsize]
    types = (t.dtype.name, values.dtype.name) if accumulate else (bits, bits)
    sizes = places.outer, places.count, places.inner, places.rows
    problem = PutRows(*types, bool(accumulate), *sizes, v_strides)
    call.run(problem, t=t, v=values, index=places.numbers)
    if wide == "int64":
        call.elementwise("ne", t, 0, out=target)
    elif wide is not None:
        call.elementwise("cast", t, out=target)
    elif t is not target:
        copy_into(call, target, t)


def _index_put_ref(input, indices, values, accumulate=False):
    y, where = input.copy(), tuple(slice(None) if i is None else i for i in indices)
    if accumulate:
        np.add.at(y, where, values)
    else:
        y[where] = values
    return y


def _index_put_samples(rng):
    x = rng.standard_normal((5, 6, 7))
    rows_, columns = np.array([3, -1, 0]), np.array([[1], [5]])
    yield (x, (rows_,), rng.standard_normal((3, 6, 7))), {}
    yield (x, (None, rows_), rng.standard_normal(7)), {}
    yield (x, (rows_, columns), rng.standard_normal((2, 3, 1))), {}
    yield (x, (rows_, None, columns), rng.standard_normal((2, 3, 6))), {}
    yield (x, (rng.uniform(size=(5, 6, 7)) < 0.5,), np.array(2.5)), {}
    yield (x, (rng.uniform(size=5) < 0.5,), 1.5), {}
    yield (x, (rng.integers(0, 5, 40), rng.integers(0, 6, 40)), rng.standard_normal((40, 7))), {"accumulate": True}
    yield (x, (None, None, rng.integers(0, 7, 20)), rng.standard_normal((5, 6, 20))), {"accumulate": True}


@op(dtypes=ANY, ref=_index_put_ref, samples=_index_put_samples, amp="promote")
def index_put(call, input, indices, values, accumulate=False):
    """`input` with `values` written to (or added at) `input[indices]`, to which they broadcast; indices as for `index`.

    `values` is a tensor of the dtype of `input`, or a number. Of equal indices the last one counts, or with
    `accumulate` they are added in their order, 16-bit floats in float32, bools as `or`. With `out=input` it is changed
    in place.
    """
    check(call, input, "input")
    if not hasattr(values, "strides_"):
        number, values = values, call.empty((), input.dtype)
        fill(call, values, number)
    if values.dtype is not input.dtype:
        raise TypeError(f"`values` of `index_put` must be {input.dtype.name} as `input`, got {values.dtype.name}")
    call.save(values_shape=values.shape_)
    y = call.out(input.shape_, input.dtype, overlap="same")
    if values.storage is y.storage:
        values = values.clone()
    if y.address != input.address or y.strides_ != input.strides_:
        copy_into(call, y, input)
    _put(call, y, indices, values, accumulate)
    return y


@index_put.grad("input")
def _(f, g, indices, accumulate):
    return g if accumulate else f.index_put(g, indices, 0.0)


@index_put.grad("values")
def _(f, g, indices, values_shape):
    y = f.index(g, indices)
    added = len(y.shape_) - len(values_shape)
    dims = [*range(added), *(d + added for d, n in enumerate(values_shape) if n == 1)]
    return (f.sum(y, dims) if dims else y).reshape(values_shape)
