"""`torch.utils.dlpack`: tensors of other libraries without copies."""

from ..tensor import from_dlpack

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor):
    """The capsule of a tensor, for libraries that take no tensors; `from_dlpack` here takes tensors alone."""
    return tensor.__dlpack__()
