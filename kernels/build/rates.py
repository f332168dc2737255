"""How fast this machine does what kernels choose between, and what follows from it.

The rates are measured once for a type of machine (`cpu/measure/survey.py`, a tenth of a second) and kept in the
folder of compiled kernels: for a CPU, the features that kernels use, and a number of threads. An instruction that a CPU
has is used unless what stands in for it is faster: `vdpbf16ps` does twice the float32 rate on a Zen 4, and half of it
on an Emerald Rapids, where products of 1024 in bfloat16, without tile registers, do 50 GFLOP/s by it on one thread, and
145 as float32. A launch takes as many threads as end it first, by what it costs to begin them (`teams`): 62 small
launches on 16 cores of that took 1.06 times as long as with the best of 1, 2, 4, 8 and 16 threads (geometric mean),
and 1.16 where 2 grains took 8 threads and 4 took 16.

What depends on how caches are filled, and not on one rate, follows from the CPU's family instead (`isa.py`).
`INFINICORE_RATES=fixed` measures nothing: features decide, and launches cost what they do on a usual machine.
"""

import functools
import json
import os
import threading
from typing import NamedTuple

from . import host, isa

SETTINGS = ("auto", "fixed")
_FORMAT = 2  # of what is kept: a change of `Rates` or of how they are measured takes a new number
_CLEAR = 1.1  # how much faster the other way has to be: rates of a machine that others use, too, differ by less

GRAIN_BYTES = 1 << 20  # what kernels do in a grain, in bytes that come from the second-level cache: some 10 us
SIXTEENTHS = 16  # of a grain, in which `teams` counts
TEAMS = 9  # 2, 4, 8, ... 512 threads
_WORTH = 1.1  # how much sooner a launch has to end, to take twice as many threads
_FIND_ASLEEP = 32  # one in so many launches, say, finds workers asleep: they look for one for 100 us before


class Rates(NamedTuple):
    """Of one thread, unless it says otherwise; 0: the CPU has no such instruction.

    Floating-point operations and bytes are counted in 10^9 a second.
    """

    multiply: float  # multiply-adds of float32 in registers
    divide: float  # divisions of float32
    widened: float  # products of bfloat16, from the first-level cache, as float32
    dots: float  # the same in registers, pairs at a time
    byte_dots: float  # products of bytes, four at a time
    tiles: float  # products of bfloat16 by tile registers
    float16_tiles: float
    byte_tiles: float
    near: float  # bytes from the second-level cache
    one_core: float  # bytes from memory
    all_cores: float  # the same, all threads
    launches: tuple  # (threads, microseconds that a launch takes longer than a call, more where its workers sleep)


class Choices(NamedTuple):
    """What kernels do in the faster of two ways."""

    pairs: bool  # bfloat16 by pairs, where panels have them: blocked products, attention of prompts, convolution
    vector_pairs: bool  # the same where tile registers have no part in it
    row_pairs: bool  # the same of rows that are multiplied as they lie
    byte_dots: bool
    tiles: bool  # bfloat16 by tile registers
    float16_tiles: bool
    byte_tiles: bool
    reciprocals: bool  # a quotient by an approximated reciprocal, and not by a division


# What launches cost where nothing is measured: of 16 cores of an Emerald Rapids.
USUAL = ((2, 0.4, 3.0), (4, 1.4, 5.6), (8, 2.1, 13.0), (16, 3.5, 24.0))
_USUAL_NEAR = 110.0

_survey = None  # (threads that it starts, function that measures) of whoever can run kernels: see `surveyed_by`
_known = []  # the rates of this process, or None in their place
_asking = threading.RLock()


def _after_fork():
    """A child has not the thread that held the lock."""
    global _asking
    _asking = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def setting():
    """The value of `INFINICORE_RATES`, checked."""
    choice = os.environ.get("INFINICORE_RATES") or "auto"
    if choice not in SETTINGS:
        raise ValueError(f"`INFINICORE_RATES` must be one of {', '.join(SETTINGS)}, got {choice!r}")
    return choice


def surveyed_by(threads, function):
    """Name who measures: `function()` gives `Rates` (None: it cannot now), with up to `threads()` threads."""
    global _survey
    _survey = threads, function


def rates():
    """The `Rates` of this machine, measured now unless they are kept; None where features decide."""
    if not _known:
        with _asking:
            if not _known:
                _known.append(_found())
    return _known[0]


def _found():
    if setting() == "fixed" or isa.is_foreign() or _survey is None:
        return None
    threads, measure = _survey
    machine = f"{_FORMAT} {host.described()} {isa.feature_string()} {threads()}"
    path = host.root() / f"rates-{host.digest(machine, 10)}.json"
    found = _kept(path)
    if found is None:
        with host.turn(path):  # several processes at once would measure each other
            found = _kept(path) or measure()
            if found is not None:
                host.keep(path, json.dumps(found._asdict()))
    return found


def _kept(path):
    text = host.kept(path)
    if text is None:
        return None
    found = json.loads(text)
    return Rates(**{**found, "launches": tuple(map(tuple, found["launches"]))})


def choices():
    """The `Choices` of this machine."""
    return _for_gpus() if isa.plans_for_gpu() else _choices()


@functools.cache
def _choices():
    return choose(rates())


@functools.cache
def _for_gpus():
    return choose(None)


def choose(r):
    """What follows from `Rates`, or from None: every instruction that the CPU has."""
    dots, byte_dots, tiles = isa.has_bf16_dot(), isa.has_int8_dot(), isa.has_amx()
    float16_tiles = isa.has_amx_float16()
    if r is None:
        return Choices(dots, dots, dots, byte_dots, tiles, float16_tiles, tiles, isa.divides_slowly())
    tiled = tiles and _CLEAR * r.tiles >= max(r.multiply, r.dots)
    paired = dots and _CLEAR * r.dots >= r.multiply
    return Choices(
        pairs=tiled or paired,
        vector_pairs=paired,
        row_pairs=dots and _CLEAR * r.dots >= r.widened,
        byte_dots=byte_dots and _CLEAR * r.byte_dots >= 2 * r.multiply,  # what pairs do at most (`cpu/quant/tile.py`)
        tiles=tiled,
        float16_tiles=float16_tiles and _CLEAR * r.float16_tiles >= r.multiply,
        byte_tiles=tiles and _CLEAR * r.byte_tiles >= r.byte_dots,
        # Where a division takes as long as 12 multiply-adds: 20 on an Emerald Rapids, 6 on a Zen 4.
        reciprocals=isa.vector_bytes() == 64 and r.multiply > 2 * 12 * r.divide,
    )


def teams():
    """From how much work on a launch takes 2, 4, 8, ... 512 threads: sixteenths of its grain, at least one grain.

    With T threads it takes work / T, and what it costs to begin T. Doubling T has to end it a tenth sooner.
    """
    r = rates()
    near, launches = (r.near, r.launches) if r else (_USUAL_NEAR, USUAL)
    grain = GRAIN_BYTES / (1000 * near)  # us
    costs = {1: 0.0} | {threads: warm + asleep / _FIND_ASLEEP for threads, warm, asleep in launches or USUAL}
    found, least = [], SIXTEENTHS
    for bit in range(1, TEAMS + 1):
        threads, fewer = 1 << bit, _cost(costs, 1 << bit - 1)
        work = (_WORTH * _cost(costs, threads) - fewer) * threads / (2 - _WORTH)
        least = max(least, round(SIXTEENTHS * work / grain))
        found.append(least)
    return tuple(found)


def _cost(costs, threads):
    """What a launch of so many threads costs: beyond the largest that was measured, as much for each thread more."""
    below, above = max(n for n in costs if n <= threads), min((n for n in costs if n >= threads), default=None)
    if above is None:
        return costs[below] * threads / below
    if above == below:
        return costs[below]
    return costs[below] + (costs[above] - costs[below]) * (threads - below) / (above - below)
