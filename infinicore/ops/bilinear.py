"""`from infinicore.ops.bilinear import bilinear`."""

from ..nn.functional import bilinear

__all__ = ["bilinear"]
