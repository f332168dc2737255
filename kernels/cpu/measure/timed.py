"""A launch of a kernel that is timed by itself, beside everything that launches are recorded and watched for."""

import ctypes
import time

import numpy as np

from ...build.load import kernel
from .. import threads


def _function(address):
    return ctypes.CFUNCTYPE(*[ctypes.c_int64] * 5)(address)


class Timed:
    """A kernel over [0, n) in as many parts as `blocks/pool.py` says, with a filled block."""

    def __init__(self, name, block, n, parts=1):
        self._values = np.array(block[0], np.int64)
        address, block = kernel(name), self._values.ctypes.data
        if parts == 1:  # as every launch of one part
            self._function, self._call = _function(address), (block, 0, n, 0)
        else:
            self._function, self._call = _function(threads.driver()), (address, block, n, parts)

    def seconds(self):
        """Run it once; seconds."""
        start = time.perf_counter()
        self._function(*self._call)
        return time.perf_counter() - start


def aligned(nbytes):
    """A buffer of bytes that starts on a page."""
    raw = np.empty(nbytes + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start : start + nbytes]
