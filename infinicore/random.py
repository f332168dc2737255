"""Random tensors, seeds and generators."""

from numbers import Integral

import numpy as np

from .core import layout
from .device import usable
from .dispatch.generator import (
    Generator,
    default_generator,
    fork_rng,
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)
from .dtype import dtype as to_dtype
from .dtype import get_default_dtype, int64
from .interop.numpy import from_numpy
from .tensor import FUNCTIONS
from .tensor.creation import into_out
from .tensor.draws import below, bernoulli, made_by_kernels, multinomial, normals, refuse_beyond, uniforms, wide
from .tensor.gradients import makes_leaf

__all__ = [
    "Generator",
    "bernoulli",
    "binomial",
    "default_generator",
    "dropout",
    "fork_rng",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "multinomial",
    "normal",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "seed",
    "set_rng_state",
]


def _sizes(sizes, size):
    if size is not None and sizes:
        raise TypeError(f"the sizes {sizes} and `size` {size} are the same argument: leave one out")
    return layout.checked_shape(size if size is not None else sizes[0] if len(sizes) == 1 else sizes)


def _drawn(name, make, draw, shape, dtype, device, generator, scale=1.0, end=None):
    """A tensor of numbers that are drawn for a dtype (None: the default one); of a complex one two each, scaled.

    `make` has a device make them; else `draw` does, of a shape and a NumPy dtype, float32 or float64; where there is an
    `end`, they stay below it.
    """
    kind = get_default_dtype() if dtype is None else to_dtype(dtype)
    if not kind.differentiable:
        raise TypeError(f"`dtype` of `{name}` must be a floating-point or complex dtype, got {kind}: use `randint`")
    if made_by_kernels(kind):
        return make(shape, 0.0, 1.0, kind, usable(device), generator)
    if kind.is_complex:
        pairs = draw((*shape, 2), kind.real.numpy) * scale
        values = np.asarray(pairs[..., 0] + 1j * pairs[..., 1])
    else:
        values = draw(shape, wide(kind))
        values = values if end is None else below(values, 0.0, end, kind)
    return from_numpy(values, dtype=kind, device=usable(device))


@makes_leaf
@into_out
def rand(*sizes, size=None, dtype=None, device=None, generator=None):
    """Uniform numbers in [0, 1); of a complex dtype, both parts."""
    draw = (generator or default_generator()).uniforms
    return _drawn("rand", uniforms, draw, _sizes(sizes, size), dtype, device, generator, end=1.0)


@makes_leaf
@into_out
def randn(*sizes, size=None, dtype=None, device=None, generator=None):
    """Standard normal numbers; of a complex dtype, with parts of variance 1/2."""
    draw = (generator or default_generator()).normals
    return _drawn("randn", normals, draw, _sizes(sizes, size), dtype, device, generator, 0.5**0.5)


@makes_leaf
@into_out
def randint(low=0, high=None, size=None, *, dtype=None, device=None, generator=None):
    """Integers in [low, high); of two arguments, `randint(high, size)`, in [0, high)."""
    if size is None:
        if high is None or isinstance(high, Integral):
            raise TypeError("`size` of `randint` is missing: it takes `randint(high, size)` or all three")
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    if not (isinstance(low, Integral) and isinstance(high, Integral)):
        raise TypeError(f"`low` and `high` of `randint` must be integers, got {low!r} and {high!r}")
    if low >= high:
        raise ValueError(f"`low` {low} must be below `high` {high}")
    kind = to_dtype(dtype) if dtype else int64
    refuse_beyond("randint", low, high, kind)
    values = (generator or default_generator()).integers(low, high, layout.checked_shape(size))
    return from_numpy(values, dtype=kind, device=usable(device))


@makes_leaf
def rand_like(input, *, dtype=None, device=None, generator=None):
    """Uniform numbers in [0, 1), in the shape and dtype of `input`."""
    return rand(input.shape_, dtype=dtype or input.dtype, device=device or input.device, generator=generator)


@makes_leaf
def randn_like(input, *, dtype=None, device=None, generator=None):
    """Standard normal numbers, in the shape and dtype of `input`."""
    return randn(input.shape_, dtype=dtype or input.dtype, device=device or input.device, generator=generator)


@makes_leaf
def randint_like(input, low, high=None, *, dtype=None, device=None, generator=None):
    """Integers in [low, high), or in [0, low) without `high`, in the shape and dtype of `input`."""
    low, high = (0, low) if high is None else (low, high)
    options = {"dtype": dtype or input.dtype, "device": device or input.device}
    return randint(low, high, input.shape_, generator=generator, **options)


@makes_leaf
@into_out
def randperm(n, *, dtype=None, device=None, generator=None):
    """The integers 0 to n - 1 in random order."""
    if not isinstance(n, Integral) or n < 0:
        raise ValueError(f"`n` of `randperm` must be an integer of 0 or more, got {n!r}")
    kind = int64 if dtype is None else to_dtype(dtype)
    most = 1 << kind.digits if kind.is_floating_point else n  # floats hold all integers up to this one
    if n - 1 > most:
        raise ValueError(f"`n` of `randperm` is {n}, but {kind} holds integers up to {most} alone: use another `dtype`")
    refuse_beyond("randperm", 0, max(1, n), kind)
    values = (generator or default_generator()).permutation(n)
    return from_numpy(values, dtype=kind, device=usable(device))


@makes_leaf
@into_out
def normal(mean=0.0, std=1.0, size=None, *, dtype=None, device=None, generator=None):
    """Normal numbers: of a `size`, or in the common shape of `mean` and `std`, of which one or both are tensors.

    The dtype is that of `mean` then, or of `std` where this alone is a tensor.
    """
    given = [x for x in (mean, std) if hasattr(x, "strides_")]
    if (size is None) != bool(given):
        raise TypeError("`normal` takes either `mean` and `std` as tensors, or numbers and `size`")
    low = min(float(x.amin().item()) if x.numel_ else 0.0 for x in [std]) if hasattr(std, "strides_") else std
    if low < 0:
        raise ValueError(f"`std` of `normal` must not be negative, got {low}")
    if not given:
        return randn(size, dtype=dtype, device=device, generator=generator) * std + mean
    shape = given[0].shape_ if len(given) == 1 else layout.broadcast_shapes(given[0].shape_, given[1].shape_)
    kind = given[0].dtype
    return (randn(shape, dtype=kind, device=given[0].device, generator=generator) * std + mean).to(kind)


def poisson(input, *, generator=None):
    """Numbers of Poisson's distribution with the rates in `input`, in its shape and dtype."""
    if not input.dtype.is_floating_point:
        raise TypeError(f"`input` of `poisson` must hold floats, got {input.dtype}: cast it")
    rates = input.detach().to(dtype="float64").cpu().numpy()
    if rates.size and not (rates >= 0).all():
        raise ValueError("`input` of `poisson` must hold rates of 0 or more")
    values = (generator or default_generator()).poissons(rates)
    return from_numpy(values, dtype=input.dtype, device=input.device)


def binomial(count, prob, *, generator=None):
    """Numbers of successes in `count` trials of probability `prob`, two tensors of one float dtype that broadcast."""
    for name, x in (("count", count), ("prob", prob)):
        if not x.dtype.is_floating_point or x.dtype is not count.dtype:
            raise TypeError(f"`{name}` of `binomial` must hold floats, in the dtype of `count`, got {x.dtype}: cast it")
    trials, chances = (x.detach().to(dtype="float64").cpu().numpy() for x in (count, prob))
    if not ((trials >= 0).all() and (trials < 2**63).all()):
        raise ValueError("`count` of `binomial` must hold numbers of trials, from 0 to 2**63")
    if not ((chances >= 0) & (chances <= 1)).all():
        raise ValueError("`prob` of `binomial` must hold probabilities, from 0 to 1")
    values = (generator or default_generator()).binomials(trials.astype(np.int64), chances)
    return from_numpy(values, dtype=count.dtype, device=count.device)


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
