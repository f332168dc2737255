"""Views: the same memory with another layout."""

import operator

import numpy as np

from ..table.view import view as declare


def _sampled(*cases):
    """Samples: a tensor of a shape, and arguments."""

    def samples(rng):
        for shape, *args in cases:
            yield (rng.standard_normal(shape), *args), {}

    return samples


def _integer(value, name):
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` must be an integer, got {value!r}") from None


def _order_back(order):
    """The inverse of a permutation."""
    return sorted(range(len(order)), key=order.__getitem__)


# ---- another shape -----------------------------------------------------------------------------


def _reshaped(shape, g):
    return g.reshape(shape)


def _shaped(v, input, target):
    """`input` with the shape `target`, by a copy where no view has it."""
    own, strides = input.shape_, input.strides_
    return target, strides if target == own else v.view_strides(own, strides, target), 0, (_reshaped, own)


@declare(
    ref=lambda x, *shape: x.reshape(*shape),
    samples=_sampled(((3, 4), 2, -1), ((2, 3, 4), (6, 4)), ((), 1, 1), ((0, 3), 3, 0), ((5,), (5,))),
)
def reshape(v, input, *shape):
    """The same elements in row-major order with another shape, without a copy where a view has it.

    One size may be -1, which stands for what is left. Takes `reshape(x, 2, 3)` and `reshape(x, (2, 3))`.
    """
    target = v.sizes(shape)
    return _shaped(v, input, target if target == input.shape_ else v.inferred_shape(target, input.numel_))


@declare(ref=lambda x, *shape: x.reshape(*shape), samples=_sampled(((3, 4), 3, 2, -1), ((2, 3, 1), (2, 3)), ((), (1,))))
def view(v, input, *shape):
    """The same memory with another shape, of which one size may be -1; a ValueError where that takes a copy."""
    target = v.inferred_shape(v.sizes(shape), input.numel_)
    found = _shaped(v, input, target)
    if found[1] is None:
        raise ValueError(
            f"`view` of shape {input.shape_} with strides {input.strides_} as {target} needs a copy, use `.reshape()`"
        )
    return found


def _flatten_ref(x, start_dim=0, end_dim=-1):
    if not x.shape:
        return x.reshape(1)
    end = end_dim % x.ndim + 1
    return x.reshape(
        *x.shape[: start_dim % x.ndim], np.prod(x.shape[start_dim % x.ndim : end], dtype=int), *x.shape[end:]
    )


@declare(
    ref=_flatten_ref, samples=_sampled(((2, 3, 4),), ((2, 3, 4), 1), ((2, 3, 4, 5), -3, 2), ((),), ((2, 0, 3), 0, 1))
)
def flatten(v, input, start_dim=0, end_dim=-1):
    """Dims `start_dim` to `end_dim` merged into one."""
    own = input.shape_
    first, last = v.checked_dim(start_dim, len(own), "start_dim"), v.checked_dim(end_dim, len(own), "end_dim")
    if first > last:
        raise ValueError(f"`start_dim` {start_dim} must not lie behind `end_dim` {end_dim}")
    return _shaped(v, input, (*own[:first], v.count(own[first : last + 1]), *own[last + 1 :]))


@declare(ref=np.ravel, samples=_sampled(((2, 3, 4),), ((),), ((0, 3),)))
def ravel(v, input):
    """All elements in row-major order as one dim, without a copy where they lie so."""
    found = _shaped(v, input, (input.numel_,))
    return found if found[1] == (1,) or input.numel_ < 2 else (found[0], None, *found[2:])


@declare(
    ref=lambda x, dim, sizes: x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :]),
    samples=_sampled(((2, 12), 1, (3, -1)), ((6, 5), 0, (3, 2)), ((4,), 0, (2, 1, 2))),
)
def unflatten(v, input, dim, sizes):
    """One dim as several of `sizes`, of which one may be -1."""
    own = input.shape_
    d = v.checked_dim(dim, len(own))
    if not own:
        raise ValueError("`unflatten` needs a tensor of at least one dim, got a 0-dim one")
    return _shaped(v, input, (*own[:d], *v.inferred_shape(v.sizes((sizes,)), own[d]), *own[d + 1 :]))


def _squeeze_ref(x, dim=None):
    dims = range(x.ndim) if dim is None else np.atleast_1d(dim) % max(1, x.ndim)
    return x.reshape([n for d, n in enumerate(x.shape) if n != 1 or d not in dims])


@declare(
    ref=_squeeze_ref, samples=_sampled(((1, 3, 1),), ((1, 3, 1), 0), ((1, 3, 1), 1), ((1, 3, 1), (0, -1)), ((), 0))
)
def squeeze(v, input, dim=None):
    """Without the dims of size 1, or without the one or those of `dim` whose size is 1."""
    own, strides = input.shape_, input.strides_
    if dim is None:
        keep = [d for d, n in enumerate(own) if n != 1]
    else:
        named = [v.checked_dim(d, len(own)) for d in v.sizes((dim,))]
        if len(set(named)) < len(named):
            raise ValueError(f"`dim` of `squeeze` names a dim twice: {dim}")
        keep = [d for d, n in enumerate(own) if n != 1 or d not in named]
    return tuple([own[d] for d in keep]), tuple([strides[d] for d in keep]), 0, (_reshaped, own)


@declare(ref=np.expand_dims, samples=_sampled(((3, 4), 0), ((3, 4), 1), ((3, 4), -1), ((), 0)))
def unsqueeze(v, input, dim):
    """With a dim of size 1 inserted before `dim`."""
    own, strides = input.shape_, input.strides_
    d = v.checked_dim(dim, len(own) + 1)
    step = own[d] * strides[d] if d < len(own) else 1
    return (*own[:d], 1, *own[d:]), (*strides[:d], step, *strides[d:]), 0, (_reshaped, own)


# ---- another order -----------------------------------------------------------------------------


def _permuted(order, g):
    return g.permute(order)


def _turned(g):
    return g.transpose(0, 1)


def _in_order(input, order):
    own, strides = input.shape_, input.strides_
    back = (_permuted, _order_back(order)) if input.tracked else None
    return tuple([own[d] for d in order]), tuple([strides[d] for d in order]), 0, back


@declare(
    ref=lambda x, *dims: x.transpose(*dims), samples=_sampled(((2, 3, 4), 2, 0, 1), ((2, 3, 4), (-1, 1, 0)), ((), ()))
)
def permute(v, input, *dims):
    """The dims in another order; takes `permute(x, 1, 0)` and `permute(x, (1, 0))`."""
    named, ndim = v.sizes(dims), len(input.shape_)
    order = [v.checked_dim(d, ndim, "dims") for d in named]
    if sorted(order) != list(range(ndim)):
        raise ValueError(f"`dims` must name each of the {ndim} dims once, got {named}")
    return _in_order(input, order)


_BOTH = frozenset((a, b) for a in (0, 1, -1, -2) for b in (0, 1, -1, -2) if (a - b) % 2)  # the two dims of a matrix


@declare(
    ref=lambda x, a, b: np.swapaxes(x, a, b) if x.ndim else x,
    samples=_sampled(((3, 4), 0, 1), ((2, 3, 4), 0, -1), ((2, 3, 4), 1, 1), ((), 0, -1)),
)
def transpose(v, input, dim0, dim1):
    """Two dims swapped."""
    own = input.shape_
    if len(own) == 2 and (dim0, dim1) in _BOTH:  # half the time of the general way
        return own[::-1], input.strides_[::-1], 0, (_turned,)
    order = list(range(len(own)))
    a, b = v.checked_dim(dim0, len(own), "dim0"), v.checked_dim(dim1, len(own), "dim1")
    if order:
        order[a], order[b] = order[b], order[a]
    return _in_order(input, order)


def _swapaxes_ref(x, a, b):
    return np.swapaxes(x, a, b) if x.ndim else x


@declare(ref=_swapaxes_ref, samples=_sampled(((2, 3, 4), 0, -1), ((3, 4), 1, 0), ((), 0, -1)))
def swapaxes(v, input, axis0, axis1):
    """As `transpose`, by NumPy's name."""
    return transpose.function(v, input, axis0, axis1)


@declare(ref=_swapaxes_ref, samples=_sampled(((2, 3, 4), 0, -1), ((3, 4), 1, 0), ((), 0, -1)))
def swapdims(v, input, dim0, dim1):
    """As `transpose`."""
    return transpose.function(v, input, dim0, dim1)


@declare(ref=np.transpose, samples=_sampled(((3, 4),), ((5,),), ((),)))
def t(v, input):
    """A matrix transposed; vectors and numbers as they are."""
    if len(input.shape_) > 2:
        raise ValueError(f"`t` takes a tensor of at most 2 dims, got {len(input.shape_)}; use `.transpose()`")
    return input.shape_[::-1], input.strides_[::-1], 0, (_permuted, list(range(len(input.shape_)))[::-1])


@declare(ref=np.moveaxis, samples=_sampled(((2, 3, 4), 0, 2), ((2, 3, 4), -1, 0), ((2, 3, 4, 5), (0, 1), (-1, 0))))
def movedim(v, input, source, destination):
    """One dim (or several) at another place, the others in their order."""
    ndim, named, wanted = len(input.shape_), v.sizes((source,)), v.sizes((destination,))
    sources = [v.checked_dim(d, ndim, "source") for d in named]
    targets = [v.checked_dim(d, ndim, "destination") for d in wanted]
    if not len(set(sources)) == len(sources) == len(set(targets)) == len(targets):
        raise ValueError(f"`source` {source} and `destination` {destination} must name as many different dims")
    order = [d for d in range(ndim) if d not in sources]
    for target, d in sorted(zip(targets, sources)) if ndim else ():
        order.insert(target, d)
    return _in_order(input, order)


@declare(ref=np.moveaxis, samples=_sampled(((2, 3, 4), 0, 2), ((2, 3, 4, 5), (0, 1), (-1, 0))))
def moveaxis(v, input, source, destination):
    """As `movedim`, by NumPy's name."""
    return movedim.function(v, input, source, destination)


# ---- more of each element ----------------------------------------------------------------------


def shown_once(shape, g):
    """The gradient of what was expanded: the sum over all the places where an element was shown."""
    added = len(g.shape_) - len(shape)
    dims = [*range(added), *[added + d for d, n in enumerate(shape) if n == 1 and g.shape_[added + d] != 1]]
    return (g.sum(dims) if dims else g).reshape(shape)


def _expanded(v, input, wanted):
    own = input.shape_
    pad = len(wanted) - len(own)
    target = tuple([own[i - pad] if n == -1 and i >= pad else n for i, n in enumerate(wanted)])
    target = v.checked_shape(target, "sizes")
    return target, v.expand_strides(own, input.strides_, target), 0, (shown_once, own)


@declare(
    ref=lambda x, *sizes: np.broadcast_to(x, [x.shape[i - len(sizes)] if n == -1 else n for i, n in enumerate(sizes)]),
    samples=_sampled(((3, 1), 3, 4), ((3, 1), 2, -1, 5), ((4,), 2, 3, 4), ((), 3), ((1, 4), 0, 4)),
)
def expand(v, input, *sizes):
    """Sizes of 1 shown as larger ones, without a copy; -1 keeps a size, and new dims come first."""
    return _expanded(v, input, v.sizes(sizes))


@declare(
    ref=lambda x, size: np.broadcast_to(x, [x.shape[i - len(size)] if n == -1 else n for i, n in enumerate(size)]),
    samples=_sampled(((3, 1), (3, 4)), ((4,), (2, 3, 4)), ((), ()), ((3, 1), (2, -1, 5)), ((1, 4), (0, 4))),
)
def broadcast_to(v, input, size):
    """`expand`, with the sizes in a tuple or a list: the same memory, so call `.clone()` on it before writing to it."""
    return _expanded(v, input, v.sizes((size,)))


def _unfold_ref(x, dimension, size, step):
    if not x.ndim:
        return x.reshape(1)[:size]
    d = dimension % x.ndim
    parts = [np.take(x, range(i, i + size), d) for i in range(0, x.shape[d] - size + 1, step)]
    return np.moveaxis(np.stack(parts, d), d + 1, -1)


@declare(
    ref=_unfold_ref,
    samples=_sampled(((7,), 0, 3, 2), ((3, 8), 1, 2, 2), ((5, 3), -2, 4, 1), ((2, 6), 1, 2, 3), ((), 0, 1, 1)),
)
def unfold(v, input, dimension, size, step):
    """Every window of `size` elements along a dim, `step` apart, without a copy: its elements are a new last dim."""
    own, strides = input.shape_ or (1,), input.strides_
    d = v.checked_dim(dimension, len(input.shape_), "dimension")
    size, step = _integer(size, "size"), _integer(step, "step")
    if not 0 <= size <= own[d]:
        raise ValueError(f"`size` {size} of `unfold` must be from 0 to {own[d]}, the size of dim {d}")
    if step <= 0:
        raise ValueError(f"`step` of `unfold` must be positive, got {step}")
    if not input.shape_:
        return (size,), (1,), 0, ()
    windows = (own[d] - size) // step + 1
    shape = (*own[:d], windows, *own[d + 1 :], size)
    return shape, (*strides[:d], step * strides[d], *strides[d + 1 :], strides[d]), 0, ()


# ---- parts -------------------------------------------------------------------------------------


@declare(
    ref=lambda x, dim, start, length: np.take(
        x, np.arange(start % (x.shape[dim] + 1), start % (x.shape[dim] + 1) + length), dim
    ),
    samples=_sampled(((3, 5), 1, 1, 3), ((3, 5), 0, 2, 1), ((3, 5), -1, 5, 0), ((4,), 0, 0, 4)),
)
def narrow(v, input, dim, start, length):
    """The `length` elements from `start` on along one dim; a negative start counts from the end."""
    return (*v.part(input.shape_, input.strides_, dim, start, length), None)


@declare(
    ref=lambda x, dim, index: np.take(x, index, dim),
    samples=_sampled(((3, 5), 0, 1), ((3, 5), 1, -1), ((2, 3, 4), -2, 2)),
)
def select(v, input, dim, index):
    """The slice at `index` of one dim, without that dim; a negative index counts from the end."""
    return (*v.slice_at(input.shape_, input.strides_, dim, index), None)


def _pieces(v, input, d, sizes):
    start, found = 0, []
    for size in sizes:
        found.append(v.part(input.shape_, input.strides_, d, start, size))
        start += size
    return found


def _even(v, input, dim, size):
    """Pieces of `size` along `dim`, the last one smaller where they do not come out even; at least one."""
    d = v.checked_dim(dim, len(input.shape_))
    total = input.shape_[d]
    return _pieces(v, input, d, [min(size, total - i) for i in range(0, total, size)] or [0])


def _need_dim(input, name):
    if not input.shape_:
        raise ValueError(f"`{name}` needs a tensor of at least one dim, got a 0-dim one: use `.reshape(1)` first")


def _split_ref(x, split_size_or_sections, dim=0):
    sizes = split_size_or_sections
    every = range(sizes, x.shape[dim], sizes) if isinstance(sizes, int) else np.cumsum(sizes)[:-1]
    return tuple(np.split(x, list(every), dim))


@declare(
    ref=_split_ref,
    samples=_sampled(((7, 3), 3), ((3, 6), (1, 2, 3), 1), ((4, 2), 4, -2), ((5,), (0, 5)), ((0,), 3)),
)
def split(v, input, split_size_or_sections, dim=0):
    """Pieces of the sizes given along `dim`; an int: pieces of that size, of which the last may be smaller."""
    _need_dim(input, "split")
    given = split_size_or_sections
    if hasattr(given, "__iter__"):
        d, sizes = v.checked_dim(dim, len(input.shape_)), v.sizes((given,))
        if sum(sizes) != input.shape_[d] or any(n < 0 for n in sizes):
            raise ValueError(
                f"`split_size_or_sections` {list(sizes)} must add up to {input.shape_[d]}, the size of dim {d}"
            )
        return _pieces(v, input, d, sizes)
    size = _integer(given, "split_size_or_sections")
    if size < 0 or (size == 0 and input.shape_[v.checked_dim(dim, len(input.shape_))]):
        raise ValueError(f"`split_size_or_sections` must be positive, got {size}")
    return _even(v, input, dim, max(size, 1))


def _chunk_ref(x, chunks, dim=0):
    return _split_ref(x, -(-x.shape[dim] // chunks) or [0] * chunks, dim)


@declare(ref=_chunk_ref, samples=_sampled(((7, 3), 3), ((3, 6), 4, 1), ((2, 5), 9, -1), ((2, 0), 3, 1)))
def chunk(v, input, chunks, dim=0):
    """At most `chunks` pieces of equal size along `dim`, of which the last may be smaller; of size 0, just `chunks`."""
    _need_dim(input, "chunk")
    if _integer(chunks, "chunks") <= 0:
        raise ValueError(f"`chunks` must be positive, got {chunks}")
    d = v.checked_dim(dim, len(input.shape_))
    total = input.shape_[d]
    return _even(v, input, d, -(-total // chunks)) if total else _pieces(v, input, d, [0] * chunks)


def _diagonal_ref(x, offset=0, dim1=0, dim2=1):
    return np.diagonal(x, offset, dim1, dim2)


@declare(
    ref=_diagonal_ref,
    samples=_sampled(((3, 5),), ((3, 5), 2), ((5, 3), -1), ((2, 3, 4), 1, 0, -1), ((3, 4), 7), ((2, 3, 4), 0, 2, 1)),
)
def diagonal(v, input, offset=0, dim1=0, dim2=1):
    """The elements whose index in `dim2` is that in `dim1` plus `offset`, as a new last dim in place of the two."""
    own, strides, offset = input.shape_, input.strides_, _integer(offset, "offset")
    one, two = v.checked_dim(dim1, len(own), "dim1"), v.checked_dim(dim2, len(own), "dim2")
    if one == two:
        raise ValueError(f"`dim1` {dim1} and `dim2` {dim2} of `diagonal` must name two dims of {len(own)}")
    length = max(0, min(own[one], own[two] - offset) if offset > 0 else min(own[one] + offset, own[two]))
    first = (offset * strides[two] if offset > 0 else -offset * strides[one]) if length else 0
    kept = [d for d in range(len(own)) if d not in (one, two)]
    steps = (*(strides[d] for d in kept), strides[one] + strides[two])
    return (*(own[d] for d in kept), length), steps, first, None


@declare(ref=lambda x, dim=0: tuple(np.moveaxis(x, dim, 0)), samples=_sampled(((3, 5),), ((3, 5), -1), ((2, 3, 4), 1)))
def unbind(v, input, dim=0):
    """All slices along `dim`, without that dim."""
    _need_dim(input, "unbind")
    own, strides = input.shape_, input.strides_
    return [v.slice_at(own, strides, dim, i) for i in range(own[v.checked_dim(dim, len(own))])]
