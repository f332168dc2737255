"""Parts of tensors moved, repeated, masked or padded."""

import operator
from numbers import Integral

import numpy as np

from ..blocks.array import REPEATED
from ..problems.create import OneHot, Triangle
from ..problems.reduce import Scan
from ..table.composite import composite
from ..table.registry import ANY, op
from ._layout import check, check_dim, check_index, rows
from .copy import copy_into, copy_part, fill
from .scan import cumsum

# ---- masks -------------------------------------------------------------------------------------


def _mask_samples(rng):
    for shape, mask in (((5, 17), (5, 17)), ((3, 5, 7), (5, 1)), ((3, 5), (1, 5)), ((257,), ())):
        yield (rng.standard_normal(shape), np.asarray(rng.uniform(size=mask) < 0.4), -2.5), {}
    yield (rng.standard_normal((4, 6)), rng.uniform(size=(4, 6)) < 0.5, np.array(1.5)), {}


@composite(dtypes=ANY, ref=lambda input, mask, value: np.where(mask, value, input), samples=_mask_samples)
def masked_fill(f, input, mask, value, out=None):
    """`input` with `value` (a number or a 0-dim tensor) where the bool tensor `mask` is true; both broadcast.

    The result has the dtype of `input`, which it may overwrite where it has the shape of both.
    """
    check(f, input, "input")
    if not hasattr(mask, "strides_") or mask.dtype.name != "bool":
        got = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"`mask` of `masked_fill` must be a bool tensor, got {got}")
    if hasattr(value, "strides_"):
        if value.shape_:
            raise ValueError(f"`value` of `masked_fill` must be a number or a 0-dim tensor, got shape {value.shape_}")
        lost = value.dtype.kind == "c" != input.dtype.kind
        if input.dtype.kind in "iu" and value.dtype is not input.dtype and not lost:
            value = value.item()  # a number that may not fit; of the other dtypes, nothing is read
    else:
        lost = isinstance(value, complex) and input.dtype.kind != "c"
    if lost:
        raise TypeError(f"`value` of `masked_fill` is {value}, which {input.dtype.name} cannot hold: cast `input`")
    if hasattr(value, "strides_"):
        value = value.to(dtype=input.dtype)
    elif not input.dtype.differentiable:
        f.check_fits(np.array(value), input.dtype)
        value = bool(value) if input.dtype.name == "bool" else int(value)  # without its fraction
    shape = input.shape_
    try:
        whole = np.broadcast_shapes(shape, mask.shape_)
    except ValueError:
        whole = None
    if whole is None or (out is input and whole != shape):
        raise ValueError(f"`mask` of `masked_fill` must broadcast to the shape of `input` {shape}, got {mask.shape_}")
    return f.where(mask, value, input, out=out)


def _triangle_samples(rng):
    for shape in ((1, 1), (3, 17), (17, 3), (2, 33, 40)):
        for diagonal in (0, 2, -1, 50, -50):
            yield (rng.standard_normal(shape),), {"diagonal": diagonal}


def _triangle(call, input, diagonal, upper):
    check(call, input, "input")
    shape = input.shape_
    if len(shape) < 2:
        raise ValueError(f"`input` of `{call.op.name}` must have at least two dims, got shape {shape}")
    x, count, length, stride = rows(input, len(shape) - 1)
    y = call.out(shape, input.dtype, overlap="same" if input.contiguous_ else "never")
    if y.numel_:
        diagonal = max(-shape[-2] - 1, min(length + 1, operator.index(diagonal)))  # beyond these all are alike
        call.run(Triangle(x.dtype.itemsize, count, shape[-2], length, stride, diagonal, upper), x=x, y=y)
    return y


@op(dtypes=ANY, ref=lambda input, diagonal=0: np.tril(input, diagonal), samples=_triangle_samples)
def tril(call, input, diagonal: int = 0):
    """Matrices [..., R, C] with zeros above the diagonal, or that many diagonals above (below) it."""
    return _triangle(call, input, diagonal, 0)


@tril.grad("input")
def _(f, g, diagonal):
    return f.tril(g, diagonal)


@op(dtypes=ANY, ref=lambda input, diagonal=0: np.triu(input, diagonal), samples=_triangle_samples)
def triu(call, input, diagonal: int = 0):
    """Matrices [..., R, C] with zeros below the diagonal, or that many diagonals above (below) it."""
    return _triangle(call, input, diagonal, 1)


@triu.grad("input")
def _(f, g, diagonal):
    return f.triu(g, diagonal)


# ---- order -------------------------------------------------------------------------------------


def _flip_samples(rng):
    yield (rng.standard_normal(()), 0), {}
    yield (rng.standard_normal((3, 17)), -1), {}
    yield (rng.standard_normal((3, 5, 7)), (0, 2)), {}
    yield (rng.standard_normal((300, 7)), [0]), {}
    yield (rng.standard_normal((3, 5)), ()), {}


def _listed(value, name):
    """Integers as a list; an int means one."""
    try:
        return [operator.index(v) for v in (value if hasattr(value, "__iter__") else (value,))]
    except TypeError:
        raise TypeError(f"`{name}` must be an integer or several, got {value!r}") from None


def _several(value, ndim):
    """Dims as a list, counted from the front; an int means one."""
    dims = _listed(value, "dims")
    found = [check_dim(d, ndim, "dims") for d in dims]
    if len(set(found)) < len(found):
        raise ValueError(f"`dims` names a dim twice: {tuple(dims)}")
    return found


@op(dtypes=ANY, ref=lambda input, dims: np.flip(input, dims) if input.ndim else input, samples=_flip_samples)
def flip(call, input, dims):
    """A copy of `input` with the order of elements along `dims` (an int or several) reversed."""
    check(call, input, "input")
    dims = _several(dims, len(input.shape_))
    y = call.out(input.shape_, input.dtype, like=input)
    shape, to, of = y.shape_, list(y.strides_), list(input.strides_)
    y_start = x_start = 0
    for d in dims if shape else ():  # backwards on the side where the dim lies further out: the other has whole rows
        if to[d] > abs(of[d]):
            y_start, to[d] = y_start + (shape[d] - 1) * to[d], -to[d]
        else:
            x_start, of[d] = x_start + (shape[d] - 1) * of[d], -of[d]
    if y.numel_:
        copy_into(call, call.view(y, shape, tuple(to), y_start), call.view(input, shape, tuple(of), x_start))
    return y


@flip.grad("input")
def _(f, g, dims):
    return f.flip(g, dims)


def _roll_samples(rng):
    yield (rng.standard_normal((3, 17)), 5), {}
    yield (rng.standard_normal((3, 17)), -4, 1), {}
    yield (rng.standard_normal((3, 5, 7)), (1, -9), (0, 2)), {}
    yield (rng.standard_normal((4, 3)), 0, 0), {}


def _roll_parts(call, y, starts, x, turns):
    if not turns:
        copy_part(call, y, starts, x)
        return
    (dim, shift), *others = turns
    size = x.shape_[dim]
    for begin, length, target in ((0, size - shift, shift), (size - shift, shift, 0)):
        if length:
            at = [*starts[:dim], target, *starts[dim + 1 :]]
            _roll_parts(call, y, at, x.narrow(dim, begin, length), others)


@op(dtypes=ANY, ref=lambda input, shifts, dims=None: np.roll(input, shifts, dims), samples=_roll_samples)
def roll(call, input, shifts, dims=None):
    """`input` with elements moved by `shifts` along `dims` (ints or as many of each); those pushed out come in again.

    Without `dims`, or with (), the flattened tensor is rolled.
    """
    check(call, input, "input")
    steps, dims = _listed(shifts, "shifts"), [] if dims is None else _listed(dims, "dims")
    if not dims and len(steps) != 1:
        raise ValueError(f"`shifts` of `roll` must be one integer where `dims` names none, got {steps}")
    if dims and not input.shape_:
        raise IndexError(f"`dims` of `roll` names {dims}, but `input` has no dims: leave them out")
    axes = [check_dim(d, len(input.shape_), "dims") for d in dims] or [0]
    if len(steps) != len(axes):
        raise ValueError(f"`shifts` and `dims` of `roll` must be as many, got {len(steps)} and {len(axes)}")
    y = call.out(input.shape_, input.dtype)
    x, target = (input, y) if dims else (input.contiguous().view(-1), y.view(-1))
    if x.numel_:
        turned = {d: sum(s for axis, s in zip(axes, steps) if axis == d) for d in axes}  # a dim may be named twice
        turns = [(d, shift % x.shape_[d]) for d, shift in turned.items()]
        _roll_parts(call, target, [0] * len(x.shape_), x, turns)
    return y


@roll.grad("input")
def _(f, g, shifts, dims):
    return f.roll(g, [-s for s in _listed(shifts, "shifts")], dims)


# ---- more elements -----------------------------------------------------------------------------


def _one_hot_ref(input, num_classes=-1):
    return np.eye(num_classes if num_classes >= 0 else input.max() + 1, dtype=np.int64)[input]


def _one_hot_samples(rng):
    yield (rng.integers(0, 7, (3, 5)), 7), {}
    yield (rng.integers(0, 40, 17).astype(np.int32), 65), {}
    yield (rng.integers(0, 7, 9),), {}


@op(dtypes=("int32", "int64"), ref=_one_hot_ref, samples=_one_hot_samples, gradient=None)
def one_hot(call, input, num_classes: int = -1):
    """int64 [*input.shape, num_classes] with a 1 where the last index is the class id, else 0.

    -1 classes mean the largest id and one. Raises ValueError for an id outside of 0 to num_classes - 1.
    """
    check_index(call, input, "input")
    if num_classes < 0:
        if not input.numel_:
            raise ValueError("`num_classes` of `one_hot` must be given where `input` is empty")
        num_classes = int(input.amax().item()) + 1
    x, num_classes = input.contiguous(), int(num_classes)
    y = call.out((*input.shape_, num_classes), "int64")
    errors = {1: f"`input` of `one_hot` must be from 0 to {num_classes - 1}, `num_classes` less one"}
    if x.numel_ and not num_classes:
        raise ValueError(errors[1])
    if x.numel_:
        call.run(OneHot(x.dtype.name, x.numel_, num_classes), errors, index=x, y=y)
    return y


def _index_ref(repeats, size, output_size=None):
    return np.repeat(np.arange(size), repeats)


def _index_samples(rng):
    yield (np.array([2, 0, 1, 3]), 4), {}
    yield (np.array([3], np.int32), 5), {"output_size": 15}


def _repeat_ref(input, repeats, dim=None, output_size=None):
    return np.repeat(input, repeats, dim)


def _repeat_samples(rng):
    yield (rng.standard_normal((3, 5)), 3), {}
    yield (rng.standard_normal((3, 5, 2)), 2, 1), {}
    yield (rng.standard_normal((4, 5)), np.array([2, 0, 1, 3]), 0), {}
    yield (rng.standard_normal((2, 3)), np.array([1, 2, 3], np.int32)), {"dim": -1}


_FEW = 64  # numbers that are added up on the host, where a launch takes longer


@op(dtypes=("int32", "int64"), ref=_index_ref, samples=_index_samples, gradient=None, step=True)
def repeat_index(call, repeats, size, output_size=None):
    """int64: each of the numbers from 0 to `size` - 1 as often as `repeats` [size] (or [1], for all) says.

    `output_size` spares adding up `repeats`; it must be their sum.
    """
    check_index(call, repeats, "repeats")
    if repeats.shape_ not in ((size,), (1,), ()):
        raise ValueError(f"`repeats` of `repeat_interleave` must be one number or {size}, got shape {repeats.shape_}")
    counts = repeats if repeats.shape_ == (size,) and repeats.contiguous_ else repeats.expand(size).contiguous()
    ends, types, errors = None, {"I": counts.dtype.name}, {1: "`repeats` of `repeat_interleave` must not be negative"}
    if output_size is None and size <= _FEW:
        numbers = counts.tolist()
        if min(numbers, default=0) < 0:
            raise ValueError(errors[1])
        output_size = sum(numbers)
    elif size > _FEW:
        ends = call.empty((size,), "int64")
        call.run(Scan(cumsum.rule, counts.dtype.name, 1, size, 1, size, False), x=counts, y=ends)
    if output_size is None:
        output_size = max(0, ends.select(0, size - 1).item())  # below 0 only where a count is, which the kernel finds
    y = call.out((output_size,), "int64")
    block = REPEATED(counts=counts, ends=ends, y=y, size=size, total=output_size)
    call.launch("array.repeats.repeated", types, block, max(1, output_size), 8, errors)
    return y


@composite(dtypes=ANY, ref=_repeat_ref, samples=_repeat_samples)
def repeat_interleave(f, input, repeats, dim=None, output_size=None):
    """Each slice of `input` along `dim` repeated: `repeats` times (an int), or a number for each (a 1-dim tensor).

    Without `dim` the flattened tensor. `output_size` spares adding up the tensor; it must be its sum.
    """
    check(f, input, "input")
    x = input.reshape(-1) if dim is None or not input.shape_ else input
    dim = check_dim(0 if dim is None else dim, len(x.shape_))
    shape = x.shape_
    if not isinstance(repeats, Integral):
        return f.index_select(x, dim, f.repeat_index(repeats, shape[dim], output_size))
    if repeats < 0:
        raise ValueError(f"`repeats` of `repeat_interleave` must not be negative, got {repeats}")
    wide = x.unsqueeze(dim + 1).expand(*shape[: dim + 1], repeats, *shape[dim + 1 :])
    return f.rearrange(wide).reshape(*shape[:dim], shape[dim] * repeats, *shape[dim + 1 :])


def _sizes(call, given, name):
    """The integers of `f(2, 3)` or `f((2, 3))`, none of them negative."""
    sizes = given[0] if len(given) == 1 and hasattr(given[0], "__iter__") else given
    try:
        sizes = [operator.index(n) for n in sizes]
    except TypeError:
        raise TypeError(f"`{name}` of `{call.op.name}` must hold integers, got {tuple(sizes)!r}") from None
    if any(n < 0 for n in sizes):
        raise ValueError(f"`{name}` of `{call.op.name}` must not be negative, got {tuple(sizes)}")
    return sizes


def _repeated(f, input, times):
    """`input`, with dims of size 1 in front where `times` has more, laid side by side that often along each dim."""
    shape = (1,) * (len(times) - len(input.shape_)) + input.shape_
    apart = [n for size in shape for n in (1, size)]
    wide = [n for pair in zip(times, shape) for n in pair]
    return f.rearrange(input.reshape(apart).expand(wide)).reshape([n * size for n, size in zip(times, shape)])


def _repeat_all_ref(input, *repeats):
    return np.kron(np.ones(repeats[0] if isinstance(repeats[0], tuple) else repeats), input)


def _repeat_all_samples(rng):
    for shape, *repeats in (((3, 5), 2, 3), ((3, 5), (2, 1, 4)), ((), 3), ((2, 3), 0, 2), ((4, 1), 1, 7)):
        yield (rng.standard_normal(shape), *repeats), {}


@composite(dtypes=ANY, ref=_repeat_all_ref, samples=_repeat_all_samples)
def repeat(f, input, *repeats):
    """`input` laid side by side: `repeats` says how often along each dim, new dims first.

    Takes `repeat(x, 2, 3)` and `repeat(x, (2, 3))`; there must be a number for each dim, or more.
    """
    check(f, input, "input")
    times = _sizes(f, repeats, "repeats")
    if len(times) < len(input.shape_):
        raise ValueError(f"`repeats` of `repeat` must name each of the {len(input.shape_)} dims, got {tuple(times)}")
    return _repeated(f, input, times)


@composite(dtypes=ANY, ref=_repeat_all_ref, samples=_repeat_all_samples)
def tile(f, input, *dims):
    """As `repeat`; where there are fewer numbers than dims, they are those of the last dims."""
    check(f, input, "input")
    times = _sizes(f, dims, "dims")
    return _repeated(f, input, [1] * (len(input.shape_) - len(times)) + times)


_LARGE_PAD = 65536  # elements of a result from which on only its margins are filled: more launches, less to write


def _pad_ref(input, pad, mode="constant", value=0):
    pairs = [(0, 0)] * (input.ndim - len(pad) // 2)
    pairs += [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    cut = tuple(slice(max(0, -a), n - max(0, -b)) for (a, b), n in zip(pairs, input.shape))
    return np.pad(input[cut], [(max(0, a), max(0, b)) for a, b in pairs], constant_values=value or 0)


def _pad_samples(rng):
    yield (rng.standard_normal((3, 5)), (1, 2)), {}
    yield (rng.standard_normal((2, 3, 17)), (0, 3, 2, 0)), {"value": 1.5}
    yield (rng.standard_normal((4, 7)), (-2, 1, 0, -1)), {"value": -1.0}
    yield (rng.standard_normal((2, 3)), (1, 1, 1, 1)), {"mode": "constant"}
    yield (rng.standard_normal((260, 254)), (1, 2, 3, 0)), {"value": 0.5}


@op(dtypes=ANY, ref=_pad_ref, samples=_pad_samples)
def pad(call, input, pad, mode="constant", value=0.0):
    """`input` with `pad` = (before, after) elements of `value` around the last dim, then around the one before, ...

    Negative counts cut elements off. `mode` must be "constant".
    """
    check(call, input, "input")
    if mode != "constant":
        raise NotImplementedError(f"`mode` of `pad` must be 'constant', got {mode!r}")
    pad = [operator.index(n) for n in pad]
    shape = list(input.shape_)
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        raise ValueError(
            f"`pad` of `pad` must hold a pair for each of the last dims, at most {2 * len(shape)} numbers for `input` "
            f"{input.shape_}, got {len(pad)}"
        )
    starts, x = [0] * len(shape), input
    for i in range(0, len(pad), 2):
        d, (before, after) = len(shape) - 1 - i // 2, pad[i : i + 2]
        size = shape[d] + before + after
        if size < 0:
            raise ValueError(f"`pad` ({before}, {after}) of `pad` leaves {size} elements of dim {d} of size {shape[d]}")
        first, last = max(0, -before), shape[d] - max(0, -after)
        x = x.narrow(d, min(first, shape[d]), max(0, last - first))
        starts[d], shape[d] = max(0, before), size
    y = call.out(shape, input.dtype)
    if y.numel_ != x.numel_:
        value = 0 if value is None else value
        if y.numel_ < _LARGE_PAD or not x.numel_:
            fill(call, y, value)
        else:
            _fill_around(call, y, starts, x.shape_, value)
    copy_part(call, y, starts, x)
    return y


def _fill_around(call, y, starts, inner, value):
    """Set the elements of `y` around a part of the shape `inner` that begins at `starts`."""
    one = call.empty((), y.dtype)
    fill(call, one, value)
    for d, (start, size) in enumerate(zip(starts, inner)):
        for first, last in ((0, start), (start + size, y.shape_[d])):
            if last > first:
                shape = [last - first if k == d else n for k, n in enumerate(y.shape_)]
                copy_part(call, y, [first if k == d else 0 for k in range(len(shape))], one.expand(shape))


@pad.grad("input")
def _(f, g, pad):
    return f.pad(g, [-n for n in pad])
