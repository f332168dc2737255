"""Views of `Tensor` that are no rows of the op table: of the storage, of bits, and by the shape of another tensor."""

import operator

from .. import dispatch
from ..core import layout
from ..core.tensor_cy import TensorBase
from ..dispatch import derive
from ..dispatch.functions import FUNCTIONS
from ..dtype import DType


def _shape_of(other, name):
    """The shape of the argument of `view_as` and the like."""
    if not isinstance(other, TensorBase):
        raise TypeError(f"`other` of `{name}` must be a tensor, got {type(other).__name__}")
    return other.shape_


def _turned(g):
    return g.T


class Views:
    """Methods of `Tensor` that share its memory."""

    __slots__ = ()

    def storage_offset(self):
        """Where the first element lies in the storage, in elements."""
        return (self.address - self.storage.address) // self.dtype.itemsize

    def as_strided(self, size, stride, storage_offset=None):
        """The same memory with any layout (in elements); it must stay inside of the storage.

        `storage_offset` counts from the beginning of the storage; None: where this tensor begins.
        """
        offset = 0 if storage_offset is None else operator.index(storage_offset) - self.storage_offset()
        shape, strides = layout.checked_shape(size), layout.sizes((stride,))
        if len(shape) != len(strides):
            raise ValueError(f"`size` {shape} and `stride` {strides} must have the same length")
        low, high = layout.extent(shape, strides)
        first = self.address + (offset + low) * self.dtype.itemsize
        last = self.address + (offset + high + 1) * self.dtype.itemsize
        begin = self.storage.address
        if high >= low and not (begin <= first and last <= begin + self.storage.nbytes):
            raise ValueError(
                f"`size` {shape}, `stride` {strides} and `storage_offset` {storage_offset} reach outside of the "
                f"storage of {self.storage.nbytes} bytes"
            )
        return derive.view(self, shape, strides, offset)

    def squeeze_(self, dim=None):
        """As `squeeze`, of this tensor itself; returns it."""
        return derive.take_layout(self, self.squeeze(dim), "squeeze_")

    def unsqueeze_(self, dim):
        """As `unsqueeze`, of this tensor itself; returns it."""
        return derive.take_layout(self, self.unsqueeze(dim), "unsqueeze_")

    def t_(self):
        """As `t`, of this tensor itself; returns it."""
        return derive.take_layout(self, self.t(), "t_")

    def transpose_(self, dim0, dim1):
        """As `transpose`, of this tensor itself; returns it."""
        return derive.take_layout(self, self.transpose(dim0, dim1), "transpose_")

    swapaxes_ = swapdims_ = transpose_

    def resize_(self, *sizes):
        """A row-major tensor of another shape, in the same memory if it is large enough; returns the tensor.

        Elements that were not there before are not initialised. Raises ValueError for a tensor that requires grad.
        """
        if self.tracked:
            raise ValueError("`resize_` takes no tensor that requires grad: call `.detach()` on it first")
        shape = layout.checked_shape(layout.sizes(sizes))
        count, left = layout.count(shape), self.storage.nbytes - (self.address - self.storage.address)
        if count * self.dtype.itemsize > left:
            t = dispatch.empty(shape, self.dtype, None, self.device)
            if self.numel_:
                dispatch.copy_into(t.view(-1)[: self.numel_], self)
            strides, source = t.strides_, t
        else:
            strides, source = layout.contiguous_strides(shape), self
        self.set_layout(source.storage, source.address, self.dtype, self.device, shape, strides, count, True)
        self.storage.version += 1
        return self

    def resize_as_(self, other):
        """As `resize_`, to the shape of another tensor."""
        return self.resize_(_shape_of(other, "resize_as_"))

    def view(self, *shape):
        """The same memory with another shape; one size may be -1. With a dtype: the bits as that dtype."""
        if len(shape) == 1 and isinstance(shape[0], DType):
            return self._view_dtype(shape[0])
        return FUNCTIONS["view"](self, *shape)

    def _view_dtype(self, target):
        shape, strides, own, new = list(self.shape_), list(self.strides_), self.dtype.itemsize, target.itemsize
        if new != own:
            if not shape:
                raise ValueError(f"`view` as {target} of a number needs elements of {own} bytes, got {new}")
            if strides[-1] != 1 and shape[-1] > 1:
                raise ValueError(f"`view` as {target} needs a last dim of stride 1, got strides {self.strides_}")
            wide, rest = max(new // own, 1), strides[:-1]
            if shape[-1] % wide or any(s % wide for s in rest) or self.address % new:
                raise ValueError(
                    f"`view` as {target} needs sizes, strides and an offset in whole elements of {new} bytes, "
                    f"got shape {self.shape_} of {self.dtype} with strides {self.strides_}"
                )
            shape[-1], strides = shape[-1] * own // new, [s * own // new for s in rest] + [1]
        t = dispatch.view(self, tuple(shape), tuple(strides))
        t.dtype = target
        return t

    def view_as(self, other):
        """The same memory with the shape of another tensor."""
        return self.view(_shape_of(other, "view_as"))

    def reshape_as(self, other):
        """As `view_as`, with a copy where it needs one."""
        return self.reshape(_shape_of(other, "reshape_as"))

    def expand_as(self, other):
        """Expanded to the shape of another tensor."""
        return self.expand(_shape_of(other, "expand_as"))

    @property
    def T(self):
        """All dims reversed."""
        if len(self.shape_) == 2:  # a third of the time of `permute`, for what every backward of a product asks for
            return derive.view(self, self.shape_[::-1], self.strides_[::-1], 0, _turned if self.tracked else None)
        return self.permute(range(self.ndim - 1, -1, -1))

    @property
    def mT(self):
        """The last two dims swapped."""
        return self.transpose(-1, -2)
