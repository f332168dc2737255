"""Schedules of pipeline parallelism: in which order a rank does the passes of its chunks of a model.

A model is cut into `ranks * chunks` stages; stage s is chunk `s // ranks` of rank `s % ranks`. Each of `micro`
micro-batches goes forward through all stages and backward through them again. A schedule is a list of `Pass` for every
rank:

* "gpipe" (Huang et al., arXiv 1811.06965): all forward passes, then all backward ones. A rank keeps the activations of
  all micro-batches.
* "1f1b" (Narayanan et al., arXiv 2104.04473): as soon as a micro-batch has come to the end, one pass forward and one
  backward in turn. Rank r keeps `min(micro, ranks - r)`.
* "interleaved" (the same paper): "1f1b" with several chunks a rank, micro-batches in groups of `ranks`. The ranks wait
  `chunks` times less, and keep more.

`simulate` plays one, which tells how long ranks wait and how many activations they keep.
"""

from typing import NamedTuple

NAMES = ("gpipe", "1f1b", "interleaved")


class Pass(NamedTuple):
    """The pass of a micro-batch through a chunk of a rank, forward or backward."""

    forward: bool
    chunk: int
    micro: int


class Timeline(NamedTuple):
    """What `simulate` found: `total` time, the time each rank is busy, and how many activations each keeps at most."""

    total: float
    busy: tuple
    peak: tuple

    @property
    def bubble(self):
        """The share of their time that the ranks wait, on average."""
        return 1.0 - sum(self.busy) / (self.total * len(self.busy))


def schedule(name, ranks, micro, chunks=1):
    """The passes of every rank, in order: a list of `Pass` for each.

    Any number of micro-batches will do ("interleaved" waits least with a multiple of `ranks`). ValueError for a name
    that is none of `NAMES`, and for several chunks with "1f1b", which has one.
    """
    if name not in NAMES:
        raise ValueError(f"`schedule` must be one of {', '.join(NAMES)}, got {name!r}")
    if name == "1f1b" and chunks != 1:
        raise ValueError(f"`schedule` must be 'interleaved' or 'gpipe' for {chunks} chunks a rank, got '1f1b'")
    if name == "gpipe":
        return [_gpipe(micro, chunks) for _ in range(ranks)]
    return [_one_by_one(rank, ranks, micro, chunks) for rank in range(ranks)]


def _gpipe(micro, chunks):
    forward = [Pass(True, chunk, m) for chunk in range(chunks) for m in range(micro)]
    return forward + [Pass(False, chunk, m) for chunk in reversed(range(chunks)) for m in range(micro)]


def _one_by_one(rank, ranks, micro, chunks):
    """Forward passes until the first micro-batch has come back, then one backward after each, then what is left."""
    groups = [range(first, first + ranks) for first in range(0, micro, ranks)]  # as if the last one were full
    forward = [Pass(True, chunk, m) for group in groups for chunk in range(chunks) for m in group]
    backward = [Pass(False, chunk, m) for group in groups for chunk in reversed(range(chunks)) for m in group]
    if chunks == 1:
        ahead = ranks - rank - 1
    else:
        # the first group runs through all chunks but the last, and each rank behind is one pass later, there and back
        ahead = ranks * (chunks - 1) + 2 * (ranks - rank - 1)
    ahead = min(ahead, len(forward))
    passes = forward[:ahead]
    for one, other in zip(forward[ahead:], backward):
        passes += one, other
    return [one for one in passes + backward[len(forward) - ahead :] if one.micro < micro]


def simulate(passes, forward=1.0, backward=2.0, link=0.0):
    """Play the passes of all ranks; a `Timeline`.

    `forward` and `backward` are times of a chunk's pass (numbers, or lists with one for each stage), `link` that of a
    message; sending makes nobody wait. RuntimeError for a schedule in which ranks wait for each other without end.
    """
    ranks, chunks = len(passes), 1 + max(one.chunk for one in passes[0])
    stages = ranks * chunks
    costs = [[cost] * stages if isinstance(cost, (int, float)) else list(cost) for cost in (backward, forward)]
    ends, clock, busy = {}, [0.0] * ranks, [0.0] * ranks  # (forward?, stage, micro-batch) -> when it ended
    at, kept, peak = [0] * ranks, [0] * ranks, [0] * ranks
    while any(at[rank] < len(passes[rank]) for rank in range(ranks)):
        moved = False
        for rank in range(ranks):
            while at[rank] < len(passes[rank]):
                one = passes[rank][at[rank]]
                stage = one.chunk * ranks + rank
                needs = _needs(one.forward, stage, one.micro, stages)
                if any(need not in ends for need in needs):
                    break
                ready = max([clock[rank], *[ends[need] + (link if need[1] != stage else 0.0) for need in needs]])
                cost = costs[one.forward][stage]
                clock[rank] = ends[one.forward, stage, one.micro] = ready + cost
                busy[rank] += cost
                kept[rank] += 1 if one.forward else -1
                peak[rank] = max(peak[rank], kept[rank])
                at[rank] += 1
                moved = True
        if not moved:
            raise RuntimeError(f"the ranks wait for each other without end, at passes {at} of {len(passes[0])}")
    return Timeline(max(clock), tuple(busy), tuple(peak))


def _needs(forward, stage, micro, stages):
    """What must have ended before a pass can begin."""
    if forward:
        return [(True, stage - 1, micro)] if stage else []
    return [(True, stage, micro)] + ([(False, stage + 1, micro)] if stage + 1 < stages else [])
