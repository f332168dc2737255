"""Random numbers that follow from a seed, the same to the last bit on every machine and for any number of threads."""

import math

import numpy as np

from ..blocks.array import DRAWS
from ..table.registry import op
from ._layout import check
from .dropout import checked_seed, words_of


def _samples(rng):
    for size in (1, 15, 64, 257, 5000):
        yield (np.zeros(size), -1.5, 2.25, 2**63 + 12345), {}
    yield (np.zeros((3, 5, 17)), 0.0, 1.0, 7), {}


def _uniform_ref(input, low, high, seed):
    found = np.float32((words_of(input.size, seed) >> 8) * 2.0**-24) * np.float32(high - low) + np.float32(low)
    return np.where(found >= np.float32(high), np.float32(low), found).reshape(input.shape)


@op(dtypes=("float32",), ref=_uniform_ref, samples=_samples, gradient=None, step=True)
def seeded_uniform(call, input, low, high, seed):
    """Uniform numbers from [low, high), of which there are 2^24, in the shape of `input`, whose values do not matter.

    `seed` (an int, of which 64 bits count) and the position in row-major order decide: the words of Philox-4x32-10
    (Salmon et al., SC 2011). The result may overwrite `input`.
    """
    return _drawn(call, input, seed, "uniform", scale=high - low, shift=low, high=high)


def _normal_ref(input, mean, std, seed):
    tiles = -(-input.size // 64)
    words = words_of(64 * tiles, seed).reshape(tiles, 2, 2, 16).astype(np.float64)
    radius = np.sqrt(-2 * np.log((words[:, :, 0] // 2 + 1) * 2.0**-31))
    angle = words[:, :, 1] * (2 * math.pi * 2.0**-32)
    found = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 2).reshape(-1)
    return (found[: input.size] * std + mean).reshape(input.shape)


@op(dtypes=("float32",), ref=_normal_ref, samples=_samples, gradient=None, step=True)
def seeded_normal(call, input, mean, std, seed):
    """Normal numbers in the shape of `input`, whose values do not matter, up to 6.56 times `std` from `mean`.

    `seed` and the position decide, as those of `seeded_uniform`: pairs of words become pairs of numbers (Box and
    Muller, "A note on the generation of random normal deviates", 1958). The result may overwrite `input`.
    """
    return _drawn(call, input, seed, "normal", scale=std, shift=mean)


def _drawn(call, input, seed, kernel, **numbers):
    check(call, input, "input")
    y = call.out(input.shape_, input.dtype, overlap="same")
    block = DRAWS(y=y, numel=y.numel_, seed=checked_seed(call, seed), **numbers)
    call.launch(f"array.draws.{kernel}", {}, block, y.numel_, 1)
    return y
