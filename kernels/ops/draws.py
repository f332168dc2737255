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


@op(dtypes=("float32",), ref=_uniform_ref, samples=_samples, outputs=(), gradient=None, step=True, for_any_numbers=True)
def seeded_uniform(call, input, low, high, seed):
    """Fill `input`, which is contiguous, with uniform numbers from [low, high), of which there are 2^24; returns it.

    `seed` (an int, of which 64 bits count) and the position in row-major order decide: the words of Philox-4x32-10
    (Salmon et al., SC 2011).
    """
    return _drawn(call, input, low, high, seed, "uniform")


def _normal_ref(input, mean, std, seed):
    tiles = -(-input.size // 64)
    words = words_of(64 * tiles, seed).reshape(tiles, 2, 2, 16).astype(np.float64)
    radius = np.sqrt(-2 * np.log((words[:, :, 0] // 2 + 1) * 2.0**-31))
    angle = words[:, :, 1] * (2 * math.pi * 2.0**-32)
    found = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 2).reshape(-1)
    return (found[: input.size] * std + mean).reshape(input.shape)


@op(dtypes=("float32",), ref=_normal_ref, samples=_samples, outputs=(), gradient=None, step=True, for_any_numbers=True)
def seeded_normal(call, input, mean, std, seed):
    """Fill `input`, which is contiguous, with normal numbers, up to 6.56 times `std` from `mean`; returns it.

    `seed` and the position decide, as those of `seeded_uniform`: pairs of words become pairs of numbers (Box and
    Muller, "A note on the generation of random normal deviates", 1958).
    """
    return _drawn(call, input, mean, std, seed, "normal")


def _drawn(call, input, first, second, seed, kernel):
    check(call, input, "input")
    if not input.contiguous_:
        raise ValueError(f"`input` of `{call.op.name}` must be contiguous, got strides {input.strides_}: fill a copy")
    input.storage.version += 1
    block = DRAWS(y=input, numel=input.numel_, seed=checked_seed(call, seed), first=first, second=second)
    call.numbers = (DRAWS.first, float), (DRAWS.second, float), (DRAWS.seed, int)
    call.launch(f"array.draws.{kernel}", {}, block, input.numel_, 1)
    return input
