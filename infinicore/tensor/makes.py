"""Methods of `Tensor` that make new tensors of its dtype, on its device."""

from .. import dispatch
from ..core import layout
from ..device import usable
from ..dispatch import derive
from ..dtype import dtype as to_dtype
from .gradients import makes_leaf


class Makes:
    """Methods of `Tensor` that make others."""

    __slots__ = ()

    @makes_leaf
    def new_empty(self, *size, dtype=None, device=None):
        """An uninitialised tensor of another shape (ints, or one sequence of them)."""
        wanted = self.dtype if dtype is None else to_dtype(dtype)
        shape = layout.checked_shape(size[0] if len(size) == 1 else size)
        if device is None and self.device.backend.of_samples:
            return derive.blank(shape, self, wanted)
        return dispatch.empty(shape, wanted, None, self.device if device is None else usable(device))

    @makes_leaf
    def new_zeros(self, *size, dtype=None, device=None):
        """A tensor of zeros."""
        return Makes.new_empty(self, *size, dtype=dtype, device=device).zero_()

    @makes_leaf
    def new_ones(self, *size, dtype=None, device=None):
        """A tensor of ones."""
        return Makes.new_empty(self, *size, dtype=dtype, device=device).fill_(1)

    @makes_leaf
    def new_full(self, size, fill_value, *, dtype=None, device=None):
        """A tensor of one value."""
        return Makes.new_empty(self, size, dtype=dtype, device=device).fill_(fill_value)

    @makes_leaf
    def new_empty_strided(self, size, stride, *, dtype=None, device=None):
        """An uninitialised tensor with the given strides (in elements)."""
        from .creation import strided_empty

        return strided_empty(size, stride, dtype=dtype or self.dtype, device=device or self.device)

    @makes_leaf
    def new_tensor(self, data, *, dtype=None, device=None):
        """A tensor of the values of `data`, always a copy, in the dtype of this one unless given."""
        from .creation import tensor

        return tensor(data, dtype=dtype or self.dtype, device=device or self.device)
