"""Parameters: tensors that a module owns."""

from ..tensor import Tensor


class Parameter(Tensor):
    """A tensor that a `Module` registers when it is assigned to an attribute. It shares memory with `data`."""

    def __new__(cls, data):
        if not isinstance(data, Tensor):
            raise TypeError(f"`data` must be a Tensor, got {type(data).__name__}")
        parameter = super().__new__(cls)
        parameter.set_layout(
            data.storage,
            data.address,
            data.dtype,
            data.device,
            tuple(data.shape),
            tuple(data.stride()),
            data.numel(),
            data.is_contiguous(),
        )
        return parameter

    def __init__(self, data):
        pass

    def __repr__(self):
        return "Parameter containing:\n" + super().__repr__()

    def __deepcopy__(self, memo):
        copy = memo.get(id(self))
        if copy is None:
            copy = memo[id(self)] = Parameter(self.clone())
        return copy
