"""`torch.utils.checkpoint`: parts of a model that are run again in backward."""

from ..autograd import checkpoint

__all__ = ["checkpoint"]
