"""Parameters and buffers: tensors that a module owns."""

from ..dispatch import empty
from ..dtype import float32
from ..tensor.tensor import Tensor


class _Owned(Tensor):
    """A tensor of a class of its own that shares the memory of the one it is made from."""

    def become(self, data):
        """Take the memory, dtype and layout of `data`; whoever holds this object goes on with the new values."""
        shape, strides = tuple(data.shape), tuple(data.stride())
        self.set_layout(
            data.storage, data.address, data.dtype, data.device, shape, strides, data.numel(), data.is_contiguous()
        )

    @classmethod
    def _of(cls, data):
        if data is None:
            data = empty((0,), float32)
        if not isinstance(data, Tensor):
            raise TypeError(f"`data` must be a Tensor, got {type(data).__name__}")
        owned = Tensor.__new__(cls)
        owned.become(data)
        return owned


class Parameter(_Owned):
    """A tensor that a `Module` registers when it is assigned to an attribute. It shares memory with `data`.

    It wants a gradient unless `requires_grad` is False, as it must be for integers.
    """

    def __new__(cls, data=None, requires_grad=True):
        parameter = cls._of(data)
        if requires_grad and not parameter.dtype.differentiable:
            raise ValueError(f"`requires_grad` must be False for a parameter of dtype {parameter.dtype}")
        parameter.requires_grad = bool(requires_grad)
        return parameter

    def __init__(self, data=None, requires_grad=True):
        pass

    def __repr__(self):
        return "Parameter containing:\n" + super().__repr__()

    def __copy__(self):
        return type(self)(self.detach(), self.requires_grad)

    def __deepcopy__(self, memo):
        copy = memo.get(id(self))
        if copy is None:
            copy = memo[id(self)] = type(self)(self.detach().clone(), self.requires_grad)
        return copy

    def __reduce__(self):
        build, arguments = super().__reduce__()
        return _rebuild, (type(self), build(*arguments), self.requires_grad)


class Buffer(_Owned):
    """A tensor that a `Module` registers as a buffer when it is assigned to an attribute.

    It is in `state_dict()` unless `persistent` is False.
    """

    def __new__(cls, data=None, *, persistent=True):
        buffer = cls._of(data)
        buffer.persistent = persistent
        return buffer

    def __init__(self, data=None, *, persistent=True):
        pass

    def __copy__(self):
        return type(self)(self, persistent=self.persistent)

    def __deepcopy__(self, memo):
        copy = memo.get(id(self))
        if copy is None:
            copy = memo[id(self)] = type(self)(self.clone(), persistent=self.persistent)
        return copy

    def __reduce__(self):
        build, arguments = super().__reduce__()
        return _rebuild_buffer, (type(self), build(*arguments), self.persistent)


def _rebuild(kind, data, requires_grad):
    return kind(data, requires_grad)


def _rebuild_buffer(kind, data, persistent):
    return kind(data, persistent=persistent)
