"""Dropout with a mask that follows from a seed."""

import operator

import numpy as np

from ..blocks.array import DROPOUT, DROPOUT_GROUP
from ..table.registry import op
from ._layout import check


def philox(counters, key):
    """The four 32-bit words of Philox-4x32-10 for uint32 counters [4, ...] and a key of two words.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
    """
    c = [np.asarray(word, np.uint64) for word in counters]
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    keys = [int(word) for word in key]
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        one, two = (np.uint64(k) for k in keys)
        c = [(second >> half) ^ c[1] ^ one, second & low, (first >> half) ^ c[3] ^ two, first & low]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c)


def _limit(p):
    """How many of the 2^32 words drop an element."""
    return round(p * 2.0**32)


def words_of(count, seed):
    """The words of so many elements, in their order."""
    groups = -(-count // DROPOUT_GROUP)
    blocks = np.arange(16 * groups, dtype=np.uint64)
    zero = np.zeros_like(blocks)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    seed %= 1 << 64
    words = philox((blocks & low, blocks >> half, zero, zero), (seed & 0xFFFFFFFF, seed >> 32))
    return words.reshape(4, groups, 16).transpose(1, 0, 2).reshape(-1)[:count]


def checked_seed(call, seed):
    """The 64 bits of a seed, as the signed integer of a block."""
    try:
        seed = operator.index(seed) % (1 << 64)
    except TypeError:
        raise TypeError(f"`seed` of `{call.op.name}` must be an int, got {type(seed).__name__}") from None
    return seed - (1 << 64) if seed >> 63 else seed


def _dropout_ref(input, p, seed):
    keep = (words_of(input.size, seed) >= _limit(p)).reshape(input.shape)
    return np.where(keep, input * (1 / (1 - p) if p < 1 else 0.0), 0.0)


def _samples(rng):
    for size in (1, 15, 64, 257, 5000):
        yield (rng.standard_normal(size), 0.3, 2**63 + 12345), {}
    for p in (0.0, 0.5, 1.0):
        yield (rng.standard_normal((3, 5, 17)), p, 7), {}


@op(ref=_dropout_ref, samples=_samples)
def seeded_dropout(call, input, p, seed):
    """`input` / (1 - p) with each element set to 0 with probability `p`; 0 gives `input` itself in value, 1 zeros.

    `seed` (an int, of which 64 bits count) and the position in row-major order decide which: the words of
    Philox-4x32-10 (Salmon et al., SC 2011), in the same order on every machine and for any number of threads. The
    gradient is the dropout of the gradient with the same seed. The result may overwrite `input`.
    """
    check(call, input, "input")
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"`p` of `seeded_dropout` must be from 0 to 1, got {p!r}")
    seed = checked_seed(call, seed)
    x = input.contiguous()
    y = call.out(input.shape_, input.dtype, overlap="same")
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    block = DROPOUT(x=x, y=y, numel=x.numel_, seed=seed, limit=_limit(p), scale=scale)
    call.launch("array.dropout.dropout", {"T": x.dtype.name}, block, x.numel_, 1)
    return y


@seeded_dropout.grad("input")
def _(f, g, p, seed):
    return f.seeded_dropout(g, p, seed)
