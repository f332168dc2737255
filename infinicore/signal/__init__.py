"""Signals: windows under the names of `torch.signal`."""

from . import windows

__all__ = ["windows"]
