"""The views of `Tensor`: the same memory with another layout. Each names its inverse, for its gradient."""

import functools
import operator

from .. import dispatch
from ..core import launch, layout
from ..core.node import GRAD
from ..core.tensor_cy import TensorBase
from ..dispatch import derive
from ..dtype import DType


def sizes_of(args):
    """The sizes of `f(2, 3)` or `f((2, 3))`."""
    if len(args) == 1 and not isinstance(args[0], int) and hasattr(args[0], "__iter__"):
        args = args[0]
    return tuple([v if type(v) is int else operator.index(v) for v in args])


_BOTH = frozenset((a, b) for a in (0, 1, -1, -2) for b in (0, 1, -1, -2) if (a - b) % 2)  # the two dims of a matrix

# ---- inverses: what the gradient of a view is for the tensor that it shows ------------------------


def _reshaped(shape, g):
    return g.reshape(shape)


def _permuted(order, g):
    return g.permute(order)


def _padded(shape, dim, start, g):
    full = dispatch.empty(shape, g.dtype, None, g.device).zero_()
    full.narrow(dim, start, g.shape_[dim]).copy_(g)
    return full


def _selected(shape, dim, index, g):
    full = dispatch.empty(shape, g.dtype, None, g.device).zero_()
    full.select(dim, index).copy_(g)
    return full


def _joined(shape, strides, dtype, dim, sizes, gradients):
    """The gradients of pieces along `dim` in one tensor; zeros where one is None."""
    device = next(g.device for g in gradients if g is not None)
    if launch.mode() & GRAD:
        parts = [
            dispatch.empty((*shape[:dim], n, *shape[dim + 1 :]), dtype, None, device).zero_() if g is None else g
            for n, g in zip(sizes, gradients)
        ]
        return derive.functions.cat(parts, dim)
    full = _neighbours(shape, strides, strides, [n * strides[dim] for n in sizes], gradients)
    if full is not None:
        return full
    full, start = dispatch.empty(shape, dtype, None, device), 0
    for size, g in zip(sizes, gradients):
        part = full.narrow(dim, start, size)
        start += size
        if g is None:
            part.zero_()
        else:
            part.copy_(g)
    return full


def _neighbours(shape, strides, own, steps, gradients):
    """The whole that gradients of strides `own`, so many `steps` apart, are pieces of already; or None.

    Those of attention over a packed projection are.
    """
    first = gradients[0]
    if first is None:
        return None
    address, item = first.address, first.dtype.itemsize
    for step, g in zip(steps, gradients):
        if g is None or g.storage is not first.storage or g.address != address or g.dtype is not first.dtype:
            return None
        if g.strides_ != own and any(n > 1 and a != b for n, a, b in zip(g.shape_, g.strides_, own)):
            return None
        address += step * item
    return dispatch.view(first, shape, strides)


def _stacked(shape, strides, dtype, dim, gradients):
    """The gradients of slices along `dim` in one tensor."""
    if not launch.mode() & GRAD:
        own = strides[:dim] + strides[dim + 1 :]
        full = _neighbours(shape, strides, own, [strides[dim]] * shape[dim], gradients)
        if full is not None:
            return full
    parts = [None if g is None else g.unsqueeze(dim) for g in gradients]
    return _joined(shape, strides, dtype, dim, [1] * shape[dim], parts)


def _shape_of(other, name):
    """The shape of the argument of `view_as` and the like."""
    if not isinstance(other, TensorBase):
        raise TypeError(f"`other` of `{name}` must be a tensor, got {type(other).__name__}")
    return other.shape_


class Views:
    """Methods of `Tensor` that share its memory."""

    __slots__ = ()

    def as_strided(self, size, stride, offset=0):
        """The same memory with any layout (in elements); it must stay inside of the storage."""
        shape, strides = layout.checked_shape(size), sizes_of((stride,))
        if len(shape) != len(strides):
            raise ValueError(f"`size` {shape} and `stride` {strides} must have the same length")
        low, high = layout.extent(shape, strides)
        first = self.address + (offset + low) * self.dtype.itemsize
        last = self.address + (offset + high + 1) * self.dtype.itemsize
        begin = self.storage.address
        if high >= low and not (begin <= first and last <= begin + self.storage.nbytes):
            raise ValueError(
                f"`size` {shape} with `stride` {strides} and `offset` {offset} reaches outside of the storage "
                f"of {self.storage.nbytes} bytes"
            )
        return derive.view(self, shape, strides, offset)

    def view(self, *shape):
        """The same memory with another shape; one size may be -1. With a dtype: the bits as that dtype."""
        if len(shape) == 1 and isinstance(shape[0], DType):
            return self._view_dtype(shape[0])
        target = layout.inferred_shape(sizes_of(shape), self.numel_)
        strides = layout.view_strides(self.shape_, self.strides_, target)
        if strides is None:
            raise ValueError(
                f"`view` of shape {self.shape_} with strides {self.strides_} as {target} needs a copy, use `.reshape()`"
            )
        return derive.view(self, target, strides, 0, self._back())

    def _view_dtype(self, target):
        if target.itemsize != self.dtype.itemsize:
            raise ValueError(f"`view` as {target} needs elements of {self.dtype.itemsize} bytes, got {target.itemsize}")
        t = dispatch.view(self, self.shape_, self.strides_)
        t.dtype = target
        return t

    def reshape(self, *shape):
        """As `view`, with a copy where it needs one."""
        target = sizes_of(shape)
        if target == self.shape_:
            return derive.view(self, target, self.strides_, 0, self._back())
        target = layout.inferred_shape(target, self.numel_)
        strides = layout.view_strides(self.shape_, self.strides_, target)
        if strides is None:
            return derive.functions.rearrange(self).view(target)
        return derive.view(self, target, strides, 0, self._back())

    def flatten(self, start_dim=0, end_dim=-1):
        """Dims `start_dim` to `end_dim` merged into one."""
        if not self.shape_:
            return self.reshape(1)
        a, b = layout.checked_dim(start_dim, self.ndim), layout.checked_dim(end_dim, self.ndim)
        if a > b:
            raise ValueError(f"`start_dim` {start_dim} must not lie behind `end_dim` {end_dim}")
        return self.reshape(*self.shape_[:a], layout.count(self.shape_[a : b + 1]), *self.shape_[b + 1 :])

    def unflatten(self, dim, sizes):
        """One dim as several of `sizes`, of which one may be -1."""
        d = layout.checked_dim(dim, self.ndim)
        inner = layout.inferred_shape(tuple(sizes), self.shape_[d])
        return self.reshape(*self.shape_[:d], *inner, *self.shape_[d + 1 :])

    def _back(self):
        """The inverse of a view that only changes the shape."""
        return functools.partial(_reshaped, self.shape_) if self.tracked else None

    def view_as(self, other):
        """The same memory with the shape of another tensor."""
        return self.view(_shape_of(other, "view_as"))

    def reshape_as(self, other):
        """As `view_as`, with a copy where it needs one."""
        return self.reshape(_shape_of(other, "reshape_as"))

    def permute(self, *dims):
        """Dims in another order."""
        order = [layout.checked_dim(d, self.ndim, "dims") for d in sizes_of(dims)]
        if sorted(order) != list(range(self.ndim)):
            raise ValueError(f"`dims` must name each of the {self.ndim} dims once, got {sizes_of(dims)}")
        shape = tuple(self.shape_[d] for d in order)
        strides = tuple(self.strides_[d] for d in order)
        back = None
        if self.tracked:
            back = functools.partial(_permuted, sorted(range(self.ndim), key=order.__getitem__))
        return derive.view(self, shape, strides, 0, back)

    def transpose(self, dim0, dim1):
        """Two dims swapped."""
        if len(self.shape_) == 2 and (dim0, dim1) in _BOTH:
            return self._turned()
        order = list(range(self.ndim))
        a, b = layout.checked_dim(dim0, self.ndim), layout.checked_dim(dim1, self.ndim)
        if order:
            order[a], order[b] = order[b], order[a]
        return self.permute(order)

    def _turned(self):
        """A matrix transposed: half the time of `permute`."""
        back = Views._turned if self.tracked else None
        return derive.view(self, self.shape_[::-1], self.strides_[::-1], 0, back)

    def movedim(self, source, destination):
        """One dim (or several) at another place, the others in their order."""
        sources = [layout.checked_dim(d, self.ndim) for d in ([source] if isinstance(source, int) else source)]
        targets = [
            layout.checked_dim(d, self.ndim) for d in ([destination] if isinstance(source, int) else destination)
        ]
        if len(set(sources)) != len(sources) or len(set(targets)) != len(targets) or len(sources) != len(targets):
            raise ValueError(f"`source` {source} and `destination` {destination} must name as many different dims")
        order = [d for d in range(self.ndim) if d not in sources]
        for target, d in sorted(zip(targets, sources)):
            order.insert(target, d)
        return self.permute(order)

    def t(self):
        """A matrix transposed."""
        if self.ndim > 2:
            raise ValueError(f"`t` takes a tensor of at most 2 dims, got {self.ndim}; use `.transpose()`")
        return self.transpose(0, 1) if self.ndim == 2 else self

    @property
    def T(self):
        """All dims reversed."""
        if len(self.shape_) == 2:
            return self._turned()
        return self.permute(range(self.ndim - 1, -1, -1))

    @property
    def mT(self):
        """The last two dims swapped."""
        return self.transpose(-1, -2)

    def squeeze(self, dim=None):
        """Without the dims of size 1 (or without the one named, if its size is 1)."""
        if dim is None:
            drop = {d for d in range(self.ndim) if self.shape_[d] == 1}
        else:
            dims = (dim,) if isinstance(dim, int) else dim
            named = {layout.checked_dim(d, self.ndim) for d in dims}
            drop = {d for d in named if self.shape_ and self.shape_[d] == 1}
        keep = [d for d in range(self.ndim) if d not in drop]
        shape, strides = tuple(self.shape_[d] for d in keep), tuple(self.strides_[d] for d in keep)
        return derive.view(self, shape, strides, 0, self._back())

    def unsqueeze(self, dim):
        """With a dim of size 1 inserted before `dim`."""
        d = layout.checked_dim(dim, self.ndim + 1)
        step = self.shape_[d] * self.strides_[d] if d < self.ndim else 1
        shape = (*self.shape_[:d], 1, *self.shape_[d:])
        strides = (*self.strides_[:d], step, *self.strides_[d:])
        return derive.view(self, shape, strides, 0, self._back())

    def narrow(self, dim, start, length):
        """The `length` elements from `start` on along one dim."""
        d, begin, shape = self._narrowed(dim, start, length)
        back = functools.partial(_padded, self.shape_, d, begin) if self.tracked else None
        return derive.view(self, shape, self.strides_, begin * self.strides_[d], back)

    def _narrowed(self, dim, start, length):
        """(dim from the front, start from the front, shape) of a narrow view."""
        d = layout.checked_dim(dim, self.ndim)
        size = self.shape_[d] if self.shape_ else 0
        begin = start + size if start < 0 else start
        if length < 0 or begin < 0 or begin + length > size:
            raise ValueError(f"`start` {start} and `length` {length} do not fit dim {dim} of size {size}")
        return d, begin, (*self.shape_[:d], length, *self.shape_[d + 1 :])

    def select(self, dim, index):
        """The slice at `index` of one dim, without that dim."""
        d, begin = self._selected(dim, index)
        shape, strides = self.shape_[:d] + self.shape_[d + 1 :], self.strides_[:d] + self.strides_[d + 1 :]
        back = functools.partial(_selected, self.shape_, d, begin) if self.tracked else None
        return derive.view(self, shape, strides, begin * self.strides_[d], back)

    def _selected(self, dim, index):
        d = layout.checked_dim(dim, self.ndim)
        size = self.shape_[d] if self.shape_ else 0
        if not -size <= index < size:
            raise IndexError(f"`index` {index} is out of range for dim {dim} of size {size}")
        return d, index + size if index < 0 else index

    def expand(self, *sizes):
        """Sizes of 1 shown as larger ones, without a copy; -1 keeps a size."""
        wanted = sizes_of(sizes)
        pad = len(wanted) - self.ndim
        target = tuple(self.shape_[i - pad] if size == -1 and i >= pad else size for i, size in enumerate(wanted))
        target = layout.checked_shape(target, "sizes")
        strides = layout.expand_strides(self.shape_, self.strides_, target)
        back = functools.partial(derive.fit, shape=self.shape_, dtype=self.dtype) if self.tracked else None
        return derive.view(self, target, strides, 0, back)

    def expand_as(self, other):
        """Expanded to the shape of another tensor."""
        return self.expand(other.shape_)

    def broadcast_to(self, size):
        """As `expand`."""
        return self.expand(size)

    def split(self, sizes, dim=0):
        """Pieces of `sizes` along `dim` (an int: pieces of that size, the last may be smaller)."""
        if not self.shape_:
            raise ValueError("`split` needs a tensor of at least one dim, got a 0-dim one: use `.reshape(1)` first")
        total = self.size(dim)
        if isinstance(sizes, int):
            if sizes <= 0:
                raise ValueError(f"`sizes` must be positive, got {sizes}")
            sizes = [min(sizes, total - i) for i in range(0, total, sizes)] or [0]
        if sum(sizes) != total:
            raise ValueError(f"`sizes` {list(sizes)} must add up to {total}, the size of dim {dim}")
        views, start = [], 0
        for size in sizes:
            d, begin, shape = self._narrowed(dim, start, size)
            views.append(dispatch.view(self, shape, self.strides_, begin * self.strides_[d]))
            start += size
        back = functools.partial(_joined, self.shape_, self.strides_, self.dtype, d, sizes) if self.tracked else None
        return tuple(derive.pieces(self, views, back))

    def chunk(self, chunks, dim=0):
        """At most `chunks` pieces of equal size along `dim`."""
        if chunks <= 0:
            raise ValueError(f"`chunks` must be positive, got {chunks}")
        return self.split(max(1, -(-self.size(dim) // chunks)), dim)

    def unbind(self, dim=0):
        """All slices along `dim`."""
        views = []
        for i in range(self.size(dim)):
            d, begin = self._selected(dim, i)
            shape, strides = self.shape_[:d] + self.shape_[d + 1 :], self.strides_[:d] + self.strides_[d + 1 :]
            views.append(dispatch.view(self, shape, strides, begin * self.strides_[d]))
        if not views:
            return ()
        back = functools.partial(_stacked, self.shape_, self.strides_, self.dtype, d) if self.tracked else None
        return tuple(derive.pieces(self, views, back))
