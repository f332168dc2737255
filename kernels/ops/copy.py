"""Copies: between layouts, and of several tensors into one."""

from itertools import accumulate

import numpy as np

from ..blocks.array import FILLED, FILLED_PAIRS, JOINED, PIECE
from ..problems.array import Copy
from ..table.registry import ANY, op
from ._layout import UNSIGNED, check, check_dim, product

_PIECE = 256  # bytes of a tensor in each row from which tensors are joined in one launch
_MOST_PIECES = 128  # of a launch: the parameters of a GPU's kernel are at most 512 numbers
_STORABLE = (*ANY, "float8_e4m3", "float8_e5m2")


def copy_into(call, destination, source):
    """Copy between tensors of one shape and dtype, at any strides; they must not overlap.

    Of `call` only the launching counts: also for the copies that are no op of their own.
    """
    if destination.numel_:
        problem = Copy(destination.shape_, destination.strides_, source.strides_, source.dtype.itemsize)
        call.run(problem, y=destination, x=source)


def row_major(call, x):
    """`x`, or a copy of it as an intermediate result: contiguous."""
    if x.contiguous_:
        return x
    y = call.empty(x.shape_, x.dtype)
    copy_into(call, y, x)
    return y


def copy_part(call, y, starts, x):
    """Write x to the part of y that begins at the indices `starts`."""
    if x.numel_:
        offset = sum([start * stride for start, stride in zip(starts, y.strides_)])
        copy_into(call, call.view(y, x.shape_, y.strides_, offset), x)


def fill(call, y, value):
    """Set every element of a contiguous tensor to a Python number."""
    number = np.asarray(value)
    if number.shape or number.dtype.kind in "OSU":  # bfloat16 is of kind V
        raise TypeError(f"`{call.name}` takes a tensor or a number for a value, got {type(value).__name__} {value!r}")
    if y.dtype.kind in "iu":
        call.check_fits(number, y.dtype)
    bits = number.astype(y.dtype.numpy).tobytes()
    if len(bits) == 16:
        low, high = np.frombuffer(bits, np.int64).tolist()
        call.launch("array.create.filled_pairs", {}, FILLED_PAIRS(y=y, low=low, high=high), y.numel_, len(bits))
        return
    block = FILLED(y=y, value=int.from_bytes(bits, "little", signed=True))
    call.launch("array.create.filled", {"E": UNSIGNED[len(bits)]}, block, y.numel_, len(bits))


def _rearrange_samples(rng):
    x = rng.standard_normal((3, 17, 40))
    yield (x,), {}
    yield (x.transpose(2, 0, 1),), {}
    yield (x[:, ::2, 1:],), {}
    yield (np.broadcast_to(x[:, :1], (3, 5, 40)),), {}
    yield (rng.standard_normal((257, 33)).T,), {}
    yield (np.array(1.0),), {}


@op(dtypes=_STORABLE, ref=lambda input: np.array(input), samples=_rearrange_samples)
def rearrange(call, input):
    """A row-major copy of a tensor with any strides."""
    check(call, input, "input")
    y = call.out(input.shape_, input.dtype)
    copy_into(call, y, input)
    return y


@rearrange.grad("input")
def _(g):
    return g


def _same(call, tensors):
    """The tensors as a list, after checks of what `cat` and `stack` share."""
    if hasattr(tensors, "strides_"):
        raise TypeError(f"`tensors` of `{call.op.name}` must be a list of tensors, got one tensor: put it in a list")
    if not hasattr(tensors, "__iter__"):
        raise TypeError(f"`tensors` of `{call.op.name}` must be a list of tensors, got {type(tensors).__name__}")
    tensors = list(tensors)
    if not tensors:
        raise ValueError(f"`tensors` of `{call.op.name}` must hold at least one tensor, got none")
    for x in tensors:
        check(call, x, "tensors")
    if all([x.dtype is tensors[0].dtype for x in tensors]):
        return tensors
    kind = call.written_as(call.result_type(*tensors))  # so no integer is bfloat16 on its way to float64
    return [x.to(dtype=kind) for x in tensors]


def _join(call, y, parts, lengths):
    """Join tensors in one launch, if they are contiguous and large: rows of y have `lengths` elements of each."""
    size, width = y.dtype.itemsize, sum(lengths)
    if len(parts) > _MOST_PIECES:
        return False
    if not all([x.contiguous_ and (not x.numel_ or n * size >= _PIECE) for x, n in zip(parts, lengths)]):
        return False
    pieces = PIECE.many(x=parts, start=list(accumulate(lengths, initial=0))[:-1], length=lengths)
    block = JOINED(y=y, numel=y.numel_, width=width, itemsize=size, pieces=pieces)
    call.launch("array.copy.joined", {"E": UNSIGNED[size]}, block, y.numel_ * size, 1)
    return True


def _cat_ref(tensors, dim=0):
    return np.concatenate(tensors, dim)


def _cat_samples(rng):
    yield ([rng.standard_normal((n, 17)) for n in (1, 3, 257)],), {}
    yield ([rng.standard_normal((3, n, 5)) for n in (1, 0, 17)],), {"dim": 1}
    yield ([rng.standard_normal((3, n)) for n in (64, 3)],), {"dim": -1}
    yield ([rng.standard_normal((5, n, 40)) for n in (300, 70, 129)],), {"dim": 1}
    yield ([rng.standard_normal(n) for n in (40000, 300, 9000)],), {}


@op(dtypes=_STORABLE, ref=_cat_ref, samples=_cat_samples, amp="promote")
def cat(call, tensors, dim=0):
    """The tensors of a sequence joined along `dim`; they have equal sizes of all other dims, and their dtypes
    are promoted to one.

    Tensors of shape (0,) are left out, as in PyTorch. Raises ValueError for an `out` that shares memory with one.
    """
    tensors = _same(call, tensors)
    call.save(shapes=tuple(x.shape_ for x in tensors))
    parts = [x for x in tensors if x.shape_ != (0,)] or tensors[:1]
    shape = parts[0].shape_
    if not shape:
        raise ValueError("`tensors` of `cat` must have at least one dim, got a 0-dim tensor: use `stack`")
    dim = check_dim(dim, len(shape))
    for x in parts:
        if x.shape_[:dim] != shape[:dim] or x.shape_[dim + 1 :] != shape[dim + 1 :]:
            raise ValueError(f"`tensors` of `cat` must agree in all dims but {dim}, got {shape} and {x.shape_}")
    total = sum(x.shape_[dim] for x in parts)
    y = call.out((*shape[:dim], total, *shape[dim + 1 :]), parts[0].dtype, overlap="refused", casts=True)
    inner = product(shape[dim + 1 :])
    if _join(call, y, parts, [x.shape_[dim] * inner for x in parts]):
        return y
    start = 0
    for x in parts:
        copy_into(call, call.view(y, x.shape_, y.strides_, start * y.strides_[dim]), x)
        start += x.shape_[dim]
    return y


@cat.grad("tensors")
def _(g, shapes, dim):
    parts, start, d = [], 0, check_dim(dim, g.ndim)
    for shape in shapes:
        length = 0 if shape == (0,) else shape[d]
        part = g.narrow(d, start, length)
        parts.append(part.reshape(0) if shape == (0,) else part)
        start += length
    return parts


def _stack_samples(rng):
    yield ([rng.standard_normal((3, 17)) for _ in range(3)],), {}
    yield ([rng.standard_normal((3, 17)) for _ in range(2)],), {"dim": -1}
    yield ([rng.standard_normal(()) for _ in range(2)],), {}


@op(dtypes=_STORABLE, ref=lambda tensors, dim=0: np.stack(tensors, dim), samples=_stack_samples, amp="promote")
def stack(call, tensors, dim=0):
    """Tensors of one shape and dtype joined along a new dim, in an `out` that shares memory with none of them."""
    tensors = _same(call, tensors)
    shape = tensors[0].shape_
    for x in tensors:
        if x.shape_ != shape:
            raise ValueError(f"`tensors` of `stack` must have one shape, got {shape} and {x.shape_}")
    dim = check_dim(dim, len(shape) + 1)
    y = call.out((*shape[:dim], len(tensors), *shape[dim:]), tensors[0].dtype, overlap="refused", casts=True)
    if _join(call, y, tensors, [product(shape[dim:])] * len(tensors)):
        return y
    strides = y.strides_[:dim] + y.strides_[dim + 1 :]
    for i, x in enumerate(tensors):
        copy_into(call, call.view(y, shape, strides, i * y.strides_[dim]), x)
    return y


@stack.grad("tensors")
def _(g, dim):
    return list(g.unbind(dim))
