"""Random tensors, seeds and generators."""

from .core import layout
from .device import usable
from .dispatch.generator import (
    Generator,
    default_generator,
    fork_rng,
    get_rng_state,
    manual_seed,
    set_rng_state,
)
from .dtype import dtype as to_dtype
from .dtype import float32, int64
from .interop.numpy import from_numpy
from .tensor import FUNCTIONS
from .tensor.gradients import makes_leaf

__all__ = [
    "Generator",
    "default_generator",
    "dropout",
    "fork_rng",
    "get_rng_state",
    "manual_seed",
    "rand",
    "randint",
    "randn",
    "set_rng_state",
]


def _sizes(sizes, size):
    if size is not None and sizes:
        raise TypeError(f"the sizes {sizes} and `size` {size} are the same argument: leave one out")
    return layout.checked_shape(size if size is not None else sizes[0] if len(sizes) == 1 else sizes)


@makes_leaf
def rand(*sizes, size=None, dtype=None, device=None, generator=None):
    """Uniform numbers in [0, 1)."""
    values = (generator or default_generator()).uniforms(_sizes(sizes, size))
    return from_numpy(values, dtype=dtype or float32, device=usable(device))


@makes_leaf
def randn(*sizes, size=None, dtype=None, device=None, generator=None):
    """Standard normal numbers."""
    values = (generator or default_generator()).normals(_sizes(sizes, size))
    return from_numpy(values, dtype=dtype or float32, device=usable(device))


def randint(low=0, high=None, size=None, *, dtype=None, device=None, generator=None):
    """Integers in [low, high); of two arguments, `randint(high, size)`, in [0, high)."""
    if size is None:
        if high is None or isinstance(high, int):
            raise TypeError("`size` of `randint` is missing: it takes `randint(high, size)` or all three")
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    if low >= high:
        raise ValueError(f"`low` {low} must be below `high` {high}")
    values = (generator or default_generator()).integers(low, high, layout.checked_shape(size))
    return from_numpy(values, dtype=to_dtype(dtype) if dtype else int64, device=usable(device))


def dropout(input, p, train):
    """Each element of `input` zero with probability `p`, else divided by 1 - p; `input` itself unless `train`.

    `seeded_dropout` with a seed of the default generator. Raises ValueError for a `p` that is not from 0 to 1,
    TypeError for a `train` that is no bool.
    """
    if not isinstance(train, bool):
        got = type(train).__name__
        raise TypeError(f"`train` of `dropout` must be a bool, got {got}: a seed is for `seeded_dropout`")
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"`p` of `dropout` must be from 0 to 1, got {p!r}")
    return FUNCTIONS["seeded_dropout"](input, p, default_generator().kernel_seed()) if train else input
