"""A GPU that is not there: calls on it compile their kernels for an architecture, and compute nothing."""

import ctypes

from ..kernels.cuda import load
from . import memory
from .cuda import GpuBackend


class CompileOnly(GpuBackend):
    """The backend of such a device; the PTX of its kernels is in `kernels.found`, by name. Its memory is all zeros."""

    shares_memory = False

    def __init__(self, device, arch):
        super().__init__(device)
        self.kernels = load.CompiledOnly(arch)

    def allocate(self, nbytes):
        """A new `Storage` of zeros."""
        storage = memory.allocate(nbytes)
        storage.backend = self
        ctypes.memset(storage.address, 0, nbytes)
        return storage
