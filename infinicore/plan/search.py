"""Meshes that fit a memory limit, the fastest first."""

import heapq
import math

from .estimate import AXES, Job, estimate

_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def divisors(n):
    """The numbers that divide n."""
    small = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
    return sorted({*small, *(n // k for k in small)})


def meshes(ranks, network, sequence, context):
    """Meshes of so many ranks on which a model can be divided; with `context`, along the sequence too."""
    for tp in divisors(ranks):
        if tp > network.kv_heads:
            break
        for pp in divisors(ranks // tp):
            if pp > network.layers + 2:
                break
            for cp in divisors(ranks // tp // pp) if context else (1,):
                if sequence % cp == 0:
                    yield dict(zip(AXES, (tp, cp, ranks // tp // pp // cp, pp)))


def search(network, figures, ranks, memory, best=10, context=True, **options):
    """The `best` plans of `ranks` ranks whose memory is at most `memory` bytes, most tokens a second first.

    `options` are those of `Job`; mesh, micro-batches, ZeRO and checkpointing are tried. Of plans that differ in ZeRO
    and checkpointing alone the fastest that fits is kept, and of equals the one that needs less memory. ValueError
    where none fits, with the least that is needed.
    """
    found, least = [], math.inf
    for mesh in meshes(ranks, network, options["sequence"], context):
        for micro in _MICRO_BATCHES:
            if options["batch"] % (mesh["dp"] * micro):
                continue
            fitting = []
            for zero in (0, 1, 2, 3) if mesh["dp"] * mesh["cp"] > 1 else (0,):
                for checkpointing in (False, True):
                    tried = {"mesh": mesh, "micro_batches": micro, "zero": zero, "checkpointing": checkpointing}
                    plan = estimate(network, Job(**options | tried), figures)
                    least = min(least, plan.total)
                    if plan.total <= memory:
                        fitting.append(plan)
            if fitting:
                found.append(max(fitting, key=_merit))
    if not found:
        what = f"the least found is {least / 1e9:.2f} GB a rank" if least < math.inf else "none divides `batch`"
        raise ValueError(f"`memory` of {memory / 1e9:.2f} GB holds no mesh of {ranks} ranks: {what}")
    return heapq.nlargest(best, found, key=_merit)


def _merit(plan):
    return plan.tokens_per_s, -plan.total
