"""Sums and gathers by copy engines, of two ranks that are streams of one process on one GPU, with a window each."""

import numpy as np
import pytest
from infinicore.distributed.copies import Copies
from infinicore.distributed.transport import slices
from infinicore.kernels.blocks.comm import AVG, RECEIVE, SEND, SUM
from infinicore.kernels.cuda.comm import sizes

import infinicore as ic


@pytest.fixture(scope="module")
def pair(gpu):
    """`pair(act)`: `act(copies, rank)` of both, each in a stream of its own."""
    backend = gpu.backend
    windows = [backend.window(sizes.COPIES_BYTES)[0] for _ in range(2)]
    ranks = [Copies(backend, rank, 2, windows, 20.0) for rank in range(2)]
    streams = [backend.new_stream() for _ in ranks]

    def run(act):
        before = backend.stream
        backend.synchronize()
        try:
            for rank, stream in enumerate(streams):
                backend.stream = stream
                act(ranks[rank], rank)
        finally:
            backend.stream = before
        for stream in streams:
            backend.synchronize(stream)

    yield run
    for stream in streams:
        backend.drop_stream(stream)


@pytest.mark.parametrize("n, offset", [(300_001, 0), (5_000_003, 0), (12_345_678, 3)])
@pytest.mark.parametrize("dtype, how", [("float32", AVG), ("bfloat16", SUM), ("int8", SUM)])
def test_all_reduces(pair, gpu, rng, dtype, how, n, offset):
    every = [rng.integers(-8, 8, n).astype(ic.dtype(dtype).numpy) for _ in range(2)]
    wanted = every[0].astype("float32") + every[1].astype("float32")
    wanted = (wanted / 2 if how == AVG else wanted).astype(every[0].dtype)
    x = [ic.from_numpy(np.concatenate([one[:offset], one])).to(gpu)[offset:] for one in every]
    for _ in range(2):

        def act(copies, rank):
            copies.reduce("all_reduce", x[rank], x[rank], slices(n, 2, x[0].dtype.itemsize), how)

        pair(act)
        for one in x:
            assert one.cpu().numpy().tobytes() == wanted.tobytes()
        for one, start in zip(x, every, strict=True):
            one.copy_(ic.from_numpy(start).to(gpu))


def test_parts(pair, gpu, rng):
    """A reduce-scatter of unequal parts, and the gather of them, behind it in the same lanes."""
    counts = [3_000_001, 5_000_002]
    starts = (0, counts[0], sum(counts))
    every = [rng.integers(-8, 8, starts[-1]).astype(np.float32) for _ in range(2)]
    x = [ic.from_numpy(one).to(gpu) for one in every]
    y = [ic.zeros(count, device=gpu) for count in counts]
    z = [ic.zeros(counts[1 - rank], device=gpu) for rank in range(2)]

    def act(copies, rank):
        copies.reduce("reduce_scatter", x[rank], y[rank], starts, SUM, True)
        moves = [(SEND, 1 - rank, y[rank].address, 4 * counts[rank])]
        copies.all_gather([*moves, (RECEIVE, 1 - rank, z[rank].address, 4 * counts[1 - rank])])

    pair(act)
    total = every[0] + every[1]
    for rank in range(2):
        part = total[starts[rank] : starts[rank + 1]]
        assert (y[rank].cpu().numpy() == part).all() and (z[1 - rank].cpu().numpy() == part).all()
