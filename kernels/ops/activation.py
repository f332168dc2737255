"""Activations that are more than a rule: gated halves, limits."""

import numpy as np

from .. import scalar_math as m
from ..registry import FLOATS, INTEGERS, op


def _halves(rng):
    for shape in ((2,), (3, 34), (17, 2, 514)):
        yield (rng.standard_normal(shape),), {}


def _silu_and_mul(x):
    gate, value = np.split(x, 2, axis=-1)
    return gate * m.sigmoid(gate) * value


@op(dtypes=FLOATS, ref=_silu_and_mul, samples=_halves)
def silu_and_mul(call, input):
    """silu(input[..., :d]) * input[..., d:] for input [..., 2 d]; the result is [..., d].

    Raises ValueError when the last dim has an odd size.
    """
    if not input.ndim or input.shape[-1] % 2:
        raise ValueError(f"`input` of `silu_and_mul` needs an even last size, got shape {tuple(input.shape)}")
    half = input.shape[-1] // 2
    out = call.out((*input.shape[:-1], half), input.dtype)
    return call.elementwise("swiglu", input.narrow(-1, half, half), input.narrow(-1, 0, half), out=out)


def _limits(rng):
    for size in (1, 3, 17, 257):
        yield (rng.uniform(-4, 4, size),), {"min": -1.5, "max": 2.0}
    yield (rng.uniform(-4, 4, 5),), {"max": 0.5}


@op(dtypes=(*FLOATS, *INTEGERS), ref=lambda x, min=None, max=None: np.clip(x, min, max), samples=_limits)
def clamp(call, input, min=None, max=None):
    """`input` limited to [min, max] (numbers; None: no limit). NaN stays NaN.

    Raises ValueError when both limits are None.
    """
    if min is None and max is None:
        raise ValueError("`min` and `max` of `clamp` must not both be None")
    out = call.out(input.shape, input.dtype, overlap="same")
    if min is not None:
        input = call.elementwise("maximum", input, min, out=out)
    return input if max is None else call.elementwise("minimum", input, max, out=out)
