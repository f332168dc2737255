"""Tensors put together from others, taken apart, turned, and laid on diagonals: written with views and copies."""

import itertools
import math
import operator

import numpy as np

from ..table.composite import composite
from ..table.registry import ANY, INTEGERS, NUMERIC, alias
from ..table.view import view
from ._layout import broadcast, check, check_dim
from .copy import cat
from .view import _pieces

# ---- several tensors -----------------------------------------------------------------------------


def several(f, tensors, name="tensors"):
    """The tensors of `f(a, b)` or `f([a, b])`, at least one."""
    found = tuple(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tuple(tensors)
    if not found:
        raise ValueError(f"`{name}` of `{f.op.name}` must hold at least one tensor")
    for x in found:
        check(f, x, name)
    return found


def _lists(*shapes):
    def samples(rng):
        for own in shapes:
            yield ([rng.standard_normal(s) for s in own],), {}

    return samples


def _all(function):
    """One tensor, or a tuple of several."""
    return lambda x: tuple(function(a) for a in x) if isinstance(x, list) else function(x)


_SHAPES = _lists([(), (3,), (2, 3), (2, 3, 4), (2, 1, 2, 3)])


def _at_least(f, tensors, shaped):
    found = several(f, tensors)
    results = tuple([shaped(x) for x in found])
    alone = len(tensors) == 1 and not isinstance(tensors[0], (list, tuple))
    return results[0] if alone else results


@composite(dtypes=ANY, ref=_all(np.atleast_1d), samples=_SHAPES)
def atleast_1d(f, *tensors):
    """A tensor, or each of several, with at least one dim; views."""
    return _at_least(f, tensors, lambda x: x if x.shape_ else x.reshape(1))


@composite(dtypes=ANY, ref=_all(np.atleast_2d), samples=_SHAPES)
def atleast_2d(f, *tensors):
    """A tensor, or each of several, with at least two dims, vectors as rows; views."""
    return _at_least(f, tensors, lambda x: x if len(x.shape_) > 1 else x.reshape(1, -1))


def _with_three(x):
    return x if len(x.shape_) > 2 else x.unsqueeze(-1) if len(x.shape_) == 2 else x.reshape(1, -1, 1)


@composite(dtypes=ANY, ref=_all(np.atleast_3d), samples=_SHAPES)
def atleast_3d(f, *tensors):
    """A tensor, or each of several, with at least three dims, matrices as [M, N, 1], vectors as [1, N, 1]; views."""
    return _at_least(f, tensors, _with_three)


@composite(dtypes=ANY, ref=np.hstack, samples=_lists([(3,), (2,)], [(2, 3), (2, 1)]))
def hstack(f, tensors, out=None):
    """Tensors joined side by side: along the first dim if they are vectors, else along the second."""
    found = f.atleast_1d(several(f, (tensors,)))
    return f.cat(list(found), 0 if len(found[0].shape_) == 1 else 1, out=out)


@composite(dtypes=ANY, ref=np.vstack, samples=_lists([(3,), (3,)], [(2, 3), (1, 3)]))
def vstack(f, tensors, out=None):
    """Tensors joined along the first dim, vectors as rows."""
    return f.cat(list(f.atleast_2d(several(f, (tensors,)))), 0, out=out)


alias(vstack, "row_stack")


@composite(dtypes=ANY, ref=np.dstack, samples=_lists([(3,), (3,)], [(2, 3), (2, 3)]))
def dstack(f, tensors, out=None):
    """Tensors joined along the third dim."""
    return f.cat(list(f.atleast_3d(several(f, (tensors,)))), 2, out=out)


@composite(dtypes=ANY, ref=np.column_stack, samples=_lists([(3,), (3,)], [(3, 2), (3,)]))
def column_stack(f, tensors, out=None):
    """Tensors joined along the second dim, vectors as columns."""
    found = several(f, (tensors,))
    return f.cat([x if len(x.shape_) > 1 else x.reshape(-1, 1) for x in found], 1, out=out)


alias(cat, "concat", "concatenate")


def _block_ref(x):
    y = np.zeros([sum(np.atleast_2d(a).shape[d] for a in x) for d in (0, 1)])
    row = column = 0
    for a in map(np.atleast_2d, x):
        y[row : row + a.shape[0], column : column + a.shape[1]] = a
        row, column = row + a.shape[0], column + a.shape[1]
    return y


_LARGE = 65536  # elements of a matrix of blocks from which on only what lies beside them is set to zero, not all of it


@composite(dtypes=ANY, ref=_block_ref, samples=_lists([(2, 3), (4,), (), (1, 2)]))
def block_diag(f, *tensors):
    """Matrices (vectors as rows) along the diagonal of a matrix of zeros, in the dtype that they are promoted to."""
    given = several(f, tensors)
    found = [x.reshape(1, -1) if len(x.shape_) < 2 else x for x in given]
    if any(len(x.shape_) > 2 for x in found):
        raise ValueError(f"`tensors` of `block_diag` must have at most 2 dims, got {[x.shape_ for x in found]}")
    size = [sum(x.shape_[d] for x in found) for d in (0, 1)]
    large = size[0] * size[1] >= _LARGE
    y, row, column = (found[0].new_empty if large else found[0].new_zeros)(*size, dtype=f.result_type(*given)), 0, 0
    places = []
    for x in found:
        height, width = x.shape_
        places.append((slice(row, row + height), slice(column, column + width)))
        if large:
            y[row : row + height, :column].zero_()
            y[row : row + height, column + width :].zero_()
        row, column = row + height, column + width
    for x, place in zip(found, places):
        y[place].copy_(x)
    return y


@composite(dtypes=ANY, ref=lambda x: tuple(np.broadcast_arrays(*x)), samples=_lists([(3, 1), (4,), ()]))
def broadcast_tensors(f, *tensors):
    """Tensors expanded to their common shape; views."""
    found = several(f, tensors)
    shape = broadcast(*[x.shape_ for x in found])
    return tuple([x.expand(shape) for x in found])


def _meshgrid_ref(x, indexing="ij"):
    return tuple(np.meshgrid(*x, indexing=indexing))


def _meshgrid_samples(rng):
    yield ([rng.standard_normal(3), rng.standard_normal(4), np.array(2.0)],), {"indexing": "ij"}
    yield ([rng.standard_normal(3), rng.standard_normal(4)],), {"indexing": "xy"}


@composite(dtypes=ANY, ref=_meshgrid_ref, samples=_meshgrid_samples)
def meshgrid(f, *tensors, indexing="ij"):
    """The coordinates of a grid from those of its axes, vectors; views. `indexing` "xy" swaps the first two dims."""
    found = [x.reshape(-1) for x in several(f, tensors)]
    if indexing not in ("ij", "xy"):
        raise ValueError(f"`indexing` of `meshgrid` must be 'ij' or 'xy', got {indexing!r}")
    order = list(range(len(found)))
    if indexing == "xy" and len(found) > 1:
        order[:2] = 1, 0
    shape = [found[i].numel_ for i in order]
    at = [order.index(i) for i in range(len(found))]
    shaped = [x.reshape([-1 if d == at[i] else 1 for d in range(len(found))]) for i, x in enumerate(found)]
    return tuple([x.expand(shape) for x in shaped])


def _cartesian_ref(x):
    grid = np.stack(np.meshgrid(*x, indexing="ij"), -1).reshape(-1, len(x))
    return grid if len(x) > 1 else grid[:, 0]


@composite(dtypes=ANY, ref=_cartesian_ref, samples=_lists([(3,), (4,), (2,)], [(3,)]))
def cartesian_prod(f, *tensors):
    """[K, n]: all combinations of one element from each of n vectors; of one vector, itself."""
    found = several(f, tensors)
    if any(len(x.shape_) != 1 for x in found):
        raise ValueError(f"`tensors` of `cartesian_prod` must be vectors, got shapes {[x.shape_ for x in found]}")
    if len(found) == 1:
        return f.rearrange(found[0])
    return f.stack([x.reshape(-1) for x in f.meshgrid(*found)], 1)


def _combinations_ref(x, r=2, with_replacement=False):
    chosen = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    return np.array(list(chosen(x, r))).reshape(-1, r)


def _combinations_samples(rng):
    yield (rng.standard_normal(5),), {}
    yield (rng.standard_normal(4), 3, True), {}


@composite(dtypes=ANY, ref=_combinations_ref, samples=_combinations_samples)
def combinations(f, input, r: int = 2, with_replacement=False):
    """[K, r]: all combinations of `r` elements of a vector, in its order."""
    check(f, input, "input")
    if len(input.shape_) != 1 or r < 0:
        raise ValueError(f"`combinations` takes a vector and an `r` of 0 or more, got shape {input.shape_} and {r}")
    if r == 0:
        return input.new_empty(0)
    size, again = input.numel_, int(bool(with_replacement))

    def counted(count):
        return f.cumsum(input.new_ones(count, dtype="int64"), 0)  # 1, 2, ..., where the tensor lies

    places = [f.sub(counted(size), 1)]  # of the first ones; what is chosen so far is followed by all that may follow
    for k in range(2, r + 1):
        follow = f.sub(size - 1 + again, places[-1])
        count = math.comb(size + again * (k - 1), k)
        which = f.repeat_index(follow, follow.numel_, count)
        first = f.sub(f.sub(places[-1], f.sub(f.cumsum(follow, 0), follow)), again)
        places = [f.index_select(x, 0, which) for x in (*places, first)]
        places[-1] = f.add(places[-1], counted(count))
    return f.index(input, (f.stack(places, 1),))


# ---- parts ---------------------------------------------------------------------------------------


def _tensor_split_ref(x, indices_or_sections, dim=0):
    return tuple(np.array_split(x, indices_or_sections, dim))


def _tensor_split_samples(rng):
    yield (rng.standard_normal((7, 3)), 3), {}
    yield (rng.standard_normal((3, 7)), (2, 5), 1), {}


@view(ref=_tensor_split_ref, samples=_tensor_split_samples)
def tensor_split(v, input, indices_or_sections, dim=0):
    """Pieces along `dim`: as many as `indices_or_sections` says, nearly equal, or cut at the places that it lists."""
    if not input.shape_:
        raise ValueError("`tensor_split` needs a tensor of at least one dim, got a 0-dim one")
    d, given = v.checked_dim(dim, len(input.shape_)), indices_or_sections
    total = input.shape_[d]
    if hasattr(given, "tolist"):
        given = given.tolist()
    if isinstance(given, int):
        if given < 1:
            raise ValueError(f"`indices_or_sections` of `tensor_split` must be positive, got {given}")
        small, more = divmod(total, given)
        return _pieces(v, input, d, [small + (i < more) for i in range(given)])
    places = [min(max(i + total if i < 0 else i, 0), total) for i in v.sizes((given,))]
    cuts = [0, *places, total]
    if sorted(cuts) != cuts:
        parts = [(a, max(a, b)) for a, b in itertools.pairwise(cuts)]
        raise NotImplementedError(f"`indices_or_sections` of `tensor_split` must rise, got {list(given)} ({parts})")
    return _pieces(v, input, d, [b - a for a, b in itertools.pairwise(cuts)])


def _split_along(f, input, given, dim, least):
    check(f, input, "input")
    if len(input.shape_) < least:
        raise ValueError(f"`input` of `{f.op.name}` must have at least {least} dims, got shape {input.shape_}")
    if isinstance(given, int) and (given < 1 or input.shape_[dim] % given):
        raise ValueError(f"`{f.op.name}` into {given} parts must divide {input.shape_[dim]}, the size of dim {dim}")
    return f.tensor_split(input, given, dim)


def _split_samples(shape):
    def samples(rng):
        yield (rng.standard_normal(shape), 2), {}
        yield (rng.standard_normal(shape), (1, 3)), {}

    return samples


def _parts(function):
    return lambda x, n: tuple(function(x, n))


@composite(dtypes=ANY, ref=_parts(np.hsplit), samples=_split_samples((3, 4)))
def hsplit(f, input, indices_or_sections):
    """Pieces along the second dim (of a vector, the first), as `tensor_split`; a number must divide it. Views."""
    return _split_along(f, input, indices_or_sections, min(1, max(0, len(input.shape_) - 1)), 1)


@composite(dtypes=ANY, ref=_parts(np.vsplit), samples=_split_samples((4, 3)))
def vsplit(f, input, indices_or_sections):
    """Pieces along the first dim, as `hsplit`."""
    return _split_along(f, input, indices_or_sections, 0, 2)


@composite(dtypes=ANY, ref=_parts(np.dsplit), samples=_split_samples((2, 3, 4)))
def dsplit(f, input, indices_or_sections):
    """Pieces along the third dim, as `hsplit`."""
    return _split_along(f, input, indices_or_sections, 2, 3)


def _narrow_samples(rng):
    yield (rng.standard_normal((3, 5)), 1, 1, 3), {}


@composite(dtypes=ANY, ref=lambda x, d, a, n: np.take(x, range(a, a + n), d), samples=_narrow_samples)
def narrow_copy(f, input, dim, start, length):
    """A copy of `narrow`."""
    return f.rearrange(input.narrow(dim, start, length))


# ---- order ---------------------------------------------------------------------------------------


def _matrix(rng):
    yield (rng.standard_normal((3, 5)),), {}


@composite(dtypes=ANY, ref=np.fliplr, samples=_matrix)
def fliplr(f, input):
    """The second dim in reversed order."""
    if len(input.shape_) < 2:
        raise ValueError(f"`input` of `fliplr` must have at least 2 dims, got shape {input.shape_}")
    return f.flip(input, 1)


@composite(dtypes=ANY, ref=np.flipud, samples=_matrix)
def flipud(f, input):
    """The first dim in reversed order."""
    if not input.shape_:
        raise ValueError("`input` of `flipud` must have at least one dim, got a 0-dim tensor")
    return f.flip(input, 0)


def _rot_samples(rng):
    for k in range(4):
        yield (rng.standard_normal((2, 3, 4)), k, (1, 2)), {}
    yield (rng.standard_normal((2, 3)), -1), {}


@composite(dtypes=ANY, ref=lambda x, k=1, dims=(0, 1): np.rot90(x, k, dims), samples=_rot_samples)
def rot90(f, input, k: int = 1, dims=(0, 1)):
    """`input` turned `k` times by 90 degrees, from the first of `dims` towards the second."""
    check(f, input, "input")
    plane = [check_dim(d, len(input.shape_), "dims") for d in dims]
    if len(plane) != 2 or plane[0] == plane[1]:
        raise ValueError(f"`dims` of `rot90` must name two dims, got {tuple(dims)}")
    (a, b), k = plane, k % 4
    if k == 2:
        return f.flip(input, (a, b))
    if not k:
        return f.rearrange(input)
    return f.flip(input, b if k == 1 else a).transpose(a, b)


# ---- diagonals and triangles -----------------------------------------------------------------------


def _diag_embed_ref(x, offset=0, dim1=-2, dim2=-1):
    n = x.shape[-1] + abs(offset)
    y = np.zeros((*x.shape[:-1], n, n), x.dtype)
    at = np.arange(x.shape[-1])
    y[..., at + max(0, -offset), at + max(0, offset)] = x
    return np.moveaxis(y, (-2, -1), (dim1, dim2))


def _diag_embed_samples(rng):
    for offset in (0, 2, -1):
        yield (rng.standard_normal((2, 3)), offset), {}
    yield (rng.standard_normal((2, 3)), 1, 0, 2), {}


@composite(dtypes=ANY, ref=_diag_embed_ref, samples=_diag_embed_samples)
def diag_embed(f, input, offset: int = 0, dim1=-2, dim2=-1):
    """Matrices of zeros in the dims `dim1` and `dim2`, with the last dim of `input` on a diagonal."""
    check(f, input, "input")
    if not input.shape_:
        raise ValueError("`input` of `diag_embed` must have at least one dim, got a 0-dim tensor")
    ndim = len(input.shape_) + 1
    one, two, offset = check_dim(dim1, ndim, "dim1"), check_dim(dim2, ndim, "dim2"), operator.index(offset)
    if one == two:
        raise ValueError(f"`dim1` {dim1} and `dim2` {dim2} of `diag_embed` must name two dims")
    n = input.shape_[-1] + abs(offset)
    y = input.new_zeros(*input.shape_[:-1], n, n)
    y.diagonal(offset, -2, -1).copy_(input)
    if (one, two) == (ndim - 2, ndim - 1):
        return y
    return f.rearrange(y.movedim((-2, -1), (one, two)))


def _diag_samples(rng):
    for offset in (0, 2, -1):
        yield (rng.standard_normal(4), offset), {}
        yield (rng.standard_normal((3, 5)), offset), {}


@composite(dtypes=ANY, ref=lambda x, diagonal=0: np.diag(x, diagonal), samples=_diag_samples)
def diag(f, input, diagonal: int = 0):
    """The matrix with a vector on a diagonal; of a matrix, a copy of its diagonal."""
    check(f, input, "input")
    if len(input.shape_) not in (1, 2):
        raise ValueError(f"`input` of `diag` must have 1 or 2 dims, got shape {input.shape_}")
    return f.diag_embed(input, diagonal) if len(input.shape_) == 1 else f.rearrange(input.diagonal(diagonal))


@composite(dtypes=ANY, ref=lambda x, offset=0: np.diagflat(x, offset), samples=_diag_samples)
def diagflat(f, input, offset: int = 0):
    """The matrix with all elements on a diagonal."""
    return f.diag_embed(input.reshape(-1), offset)


def _vander_samples(rng):
    yield (rng.uniform(0.5, 1.5, 5),), {}
    yield (rng.uniform(0.5, 1.5, 4), 3, True), {}


@composite(dtypes=NUMERIC, ref=lambda x, N=None, increasing=False: np.vander(x, N, increasing), samples=_vander_samples)
def vander(f, x, N=None, increasing=False):
    """[n, N]: the powers 0 to N - 1 (by default n of them) of the elements of a vector, the highest first."""
    check(f, x, "x")
    if len(x.shape_) != 1:
        raise ValueError(f"`x` of `vander` must be a vector, got shape {x.shape_}")
    count = x.numel_ if N is None else operator.index(N)
    if count < 0:
        raise ValueError(f"`N` of `vander` must not be negative, got {count}")
    kind = x.dtype if x.dtype.differentiable else "int64"
    column = x.to(dtype=kind).unsqueeze(1)
    if count < 2:
        return column.new_ones(x.numel_, count)
    sides = (1, 0) if increasing else (0, 1)
    return f.cumprod(f.pad(column.expand(x.numel_, count - 1), sides, value=1), 1, reverse=not increasing)


@composite(
    dtypes=NUMERIC,
    ref=lambda x, *, N=None: np.vander(x, N, True),
    samples=lambda rng: [((rng.uniform(0.5, 1.5, 4),), {})],
)
def linalg_vander(f, x, *, N=None):
    """[..., n, N]: the powers 0 to N - 1 (by default n of them) of the elements of vectors [..., n], rising."""
    check(f, x, "x")
    count = (x.shape_ or (0,))[-1] if N is None else operator.index(N)
    if (not x.shape_ and N is None) or (N is not None and count <= 1):
        raise ValueError(f"`linalg_vander` needs `x` [..., n] and `N` above 1, got shape {x.shape_} and {N}")
    kind = x.dtype if x.dtype.differentiable else "int64"
    x = x if x.shape_ else x.unsqueeze(0)
    column = x.to(dtype=kind).unsqueeze(-1)
    powers = f.cumprod(column.expand(*x.shape_, max(count - 1, 0)), -1)
    return f.cat([column.new_ones(*x.shape_, min(count, 1)), powers], -1)


def _unravel_ref(indices, shape):
    return tuple(np.unravel_index(indices, shape))


def _unravel_samples(rng):
    yield (rng.integers(0, 24, (3, 2)), (2, 3, 4)), {}


@composite(dtypes=INTEGERS, ref=_unravel_ref, samples=_unravel_samples, gradient=None)
def unravel_index(f, indices, shape):
    """int64 indices in each dim of a tensor of `shape` for places in its row-major order."""
    check(f, indices, "indices")
    indices = indices.to(dtype="int64")
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if indices.numel_:
        low, high = f.aminmax(indices)
        if not 0 <= low.item() <= high.item() < math.prod(shape):
            raise ValueError(f"`indices` of `unravel_index` must be from 0 to {math.prod(shape) - 1} for {shape}")
    found, rest = [], indices
    for size in shape[:0:-1]:
        found.append(f.remainder(rest, size))
        rest = f.floor_divide(rest, size)
    if shape:  # what is left is below the first size
        found.append(f.rearrange(rest) if rest is indices else rest)
    return tuple(reversed(found))


# ---- scattered parts -------------------------------------------------------------------------------


def _written(f, input, src, part):
    """A copy of `input`, of which the view `part(copy)` holds `src`."""
    check(f, input, "input")
    check(f, src, "src")
    y = f.rearrange(input)
    target = part(y)
    if target.shape_ != src.shape_:
        raise ValueError(f"`src` of `{f.op.name}` must have shape {target.shape_}, got {src.shape_}")
    target.copy_(src)
    return y


def _select_scatter_ref(x, src, dim, index):
    y = np.moveaxis(x.copy(), dim, 0)
    y[index] = src
    return np.moveaxis(y, 0, dim)


def _select_scatter_samples(rng):
    yield (rng.standard_normal((3, 5)), rng.standard_normal(3), 1, -2), {}


@composite(dtypes=ANY, ref=_select_scatter_ref, samples=_select_scatter_samples, amp="promote")
def select_scatter(f, input, src, dim, index):
    """`input` with `src` as its slice at `index` of `dim`."""
    return _written(f, input, src, lambda y: y.select(dim, index))


def _slice_scatter_ref(x, src, dim=0, start=None, end=None, step=1):
    y = np.moveaxis(x.copy(), dim, 0)
    y[start:end:step] = np.moveaxis(src, dim, 0)
    return np.moveaxis(y, 0, dim)


def _slice_scatter_samples(rng):
    yield (rng.standard_normal((3, 8)), rng.standard_normal((3, 3)), 1, 2, 8, 2), {}
    yield (rng.standard_normal((4, 2)), rng.standard_normal((2, 2))), {"start": -2}


@composite(dtypes=ANY, ref=_slice_scatter_ref, samples=_slice_scatter_samples, amp="promote")
def slice_scatter(f, input, src, dim=0, start=None, end=None, step=1):
    """`input` with `src` in the places `start:end:step` of `dim`."""
    d = check_dim(dim, len(input.shape_))
    return _written(f, input, src, lambda y: y[(slice(None),) * d + (slice(start, end, step),)])


def _diagonal_scatter_ref(x, src, offset=0, dim1=0, dim2=1):
    y = x.copy()
    view_ = np.moveaxis(y, (dim1, dim2), (0, 1))
    at = np.arange(src.shape[-1])
    view_[at + max(0, -offset), at + max(0, offset)] = np.moveaxis(src, -1, 0)
    return y


def _diagonal_scatter_samples(rng):
    yield (rng.standard_normal((3, 5)), rng.standard_normal(3), 1), {}
    yield (rng.standard_normal((2, 3, 4)), rng.standard_normal((3, 2))), {"dim1": 0, "dim2": 2}


@composite(dtypes=ANY, ref=_diagonal_scatter_ref, samples=_diagonal_scatter_samples, amp="promote")
def diagonal_scatter(f, input, src, offset=0, dim1=0, dim2=1):
    """`input` with `src` on a diagonal."""
    return _written(f, input, src, lambda y: y.diagonal(offset, dim1, dim2))
