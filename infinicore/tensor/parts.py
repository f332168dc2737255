"""Complex tensors and their parts: views of the same memory, and conjugates."""

from ..core.tensor_cy import TensorBase
from ..dispatch import derive
from ..dispatch.functions import FUNCTIONS
from ..dtype import complex64, complex128, float32, float64

_PAIRS = {float32: complex64, float64: complex128}


def _check(x, name):
    if not isinstance(x, TensorBase):
        raise TypeError(f"`input` of `{name}` must be a tensor, got {type(x).__name__}")
    return x.dtype.kind == "c"


def view_as_real(input):
    """A complex tensor as a real one with a last dim of 2, the real and imaginary parts: the same memory."""
    if not _check(input, "view_as_real"):
        raise TypeError(f"`input` of `view_as_real` must be complex, got {input.dtype}")
    return derive.view_parts(input)


def view_as_complex(input):
    """A float32 or float64 tensor whose last dim has real and imaginary parts as a complex one: the same memory.

    Raises ValueError where that is no layout of complex elements: the last dim must have size 2 and stride 1, and all
    other strides must be even.
    """
    _check(input, "view_as_complex")
    target = _PAIRS.get(input.dtype)
    if target is None:
        raise TypeError(f"`input` of `view_as_complex` must be float32 or float64, got {input.dtype}")
    if not input.shape_ or input.shape_[-1] != 2:
        raise ValueError(f"`input` of `view_as_complex` must have a last dim of 2, got shape {input.shape_}")
    odd = any(s % 2 for n, s in zip(input.shape_[:-1], input.strides_[:-1]) if n > 1)
    if input.strides_[-1] != 1 or odd or input.storage_offset() % 2:
        raise ValueError(
            f"`input` of `view_as_complex` must have a last stride of 1, and even strides and an even offset else, got "
            f"{input.strides_} and {input.storage_offset()}: call `.contiguous()` on it first"
        )
    return derive.view_pairs(input, target)


def real(input):
    """The real parts of a complex tensor, a view; a real tensor itself."""
    return view_as_real(input).select(-1, 0) if _check(input, "real") else input


def imag(input):
    """The imaginary parts of a complex tensor, a view."""
    if not _check(input, "imag"):
        raise TypeError(f"`input` of `imag` must be complex, got {input.dtype}: real tensors have no imaginary part")
    return view_as_real(input).select(-1, 1)


def conj(input):
    """The conjugates of a complex tensor, in new memory; a real tensor itself."""
    return FUNCTIONS["conj_physical"](input) if _check(input, "conj") else input


def resolve_conj(input):
    """The tensor itself: conjugates are computed at once here."""
    _check(input, "resolve_conj")
    return input


def resolve_neg(input):
    """The tensor itself."""
    _check(input, "resolve_neg")
    return input


def is_conj(input):
    """Whether conjugation is still to be done: never."""
    _check(input, "is_conj")
    return False


def is_neg(input):
    """Whether negation is still to be done: never."""
    _check(input, "is_neg")
    return False


def adjoint(input):
    """The last two dims exchanged, and conjugated."""
    return conj(input).transpose(-1, -2)


OF_PARTS = {f.__name__: f for f in (
    view_as_real, view_as_complex, real, imag, conj, resolve_conj, resolve_neg, is_conj, is_neg, adjoint
)}  # fmt: skip
FUNCTIONS |= OF_PARTS


class Parts:
    """Members of `Tensor` that have to do with complex numbers."""

    __slots__ = ()

    @property
    def real(self):
        """The real parts: a view of a complex tensor, a real tensor itself."""
        return real(self)

    @real.setter
    def real(self, value):
        real(self).copy_(value if isinstance(value, TensorBase) else self.new_tensor(value, dtype=self.dtype.real))

    @property
    def imag(self):
        """The imaginary parts of a complex tensor, a view."""
        return imag(self)

    @imag.setter
    def imag(self, value):
        imag(self).copy_(value if isinstance(value, TensorBase) else self.new_tensor(value, dtype=self.dtype.real))

    def is_complex(self):
        """Whether the dtype is a complex one."""
        return self.dtype.kind == "c"

    def conj(self):
        """The conjugates of a complex tensor, in new memory; a real tensor itself."""
        return conj(self)

    def resolve_conj(self):
        """The tensor itself: conjugates are computed at once here."""
        return self

    def resolve_neg(self):
        """The tensor itself."""
        return self

    def is_conj(self):
        """Whether conjugation is still to be done: never."""
        return False

    def is_neg(self):
        """Whether negation is still to be done: never."""
        return False

    def adjoint(self):
        """The last two dims exchanged, and conjugated."""
        return adjoint(self)

    @property
    def H(self):
        """A matrix transposed and conjugated."""
        if self.ndim not in (0, 2):
            raise ValueError(f"`H` is of matrices, got {self.ndim} dims: use `mH`")
        return conj(self).T

    @property
    def mH(self):
        """The last two dims exchanged, and conjugated."""
        return adjoint(self)

    def __complex__(self):
        return complex(self.item())
