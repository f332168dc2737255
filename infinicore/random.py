"""Seeds, generators and random tensors (NumPy's Philox: counter-based, the same on every machine)."""

import numpy as np

from .core import layout
from .dtype import dtype as to_dtype
from .dtype import float32, int64
from .interop.numpy import from_numpy


class Generator:
    """A source of random numbers with its own state."""

    def __init__(self, seed=None):
        self.manual_seed(seed)

    def manual_seed(self, seed):
        """Restart from `seed` (None: from the system's entropy); returns the generator."""
        if seed is not None and (not isinstance(seed, (int, np.integer)) or seed < 0):
            raise ValueError(f"`seed` must be an integer of 0 or more, got {seed!r}")
        self._numpy = np.random.Generator(np.random.Philox(seed))
        return self

    def uniform(self):
        """One number in [0, 1)."""
        return self._numpy.random()


_default = Generator()


def manual_seed(seed):
    """Restart the default generator; returns it."""
    return _default.manual_seed(seed)


def _sizes(size):
    return layout.checked_shape(size[0] if len(size) == 1 else size)


def rand(*size, dtype=None, device=None, generator=None):
    """Uniform numbers in [0, 1)."""
    values = (generator or _default)._numpy.random(_sizes(size), np.float32)
    return from_numpy(np.asarray(values), dtype=dtype or float32, device=device)


def randn(*size, dtype=None, device=None, generator=None):
    """Standard normal numbers."""
    values = (generator or _default)._numpy.standard_normal(_sizes(size), np.float32)
    return from_numpy(np.asarray(values), dtype=dtype or float32, device=device)


def randint(low, high, size, *, dtype=None, device=None, generator=None):
    """Integers in [low, high)."""
    if low >= high:
        raise ValueError(f"`low` {low} must be below `high` {high}")
    values = (generator or _default)._numpy.integers(low, high, layout.checked_shape(size))
    return from_numpy(np.asarray(values), dtype=to_dtype(dtype) if dtype else int64, device=device)
