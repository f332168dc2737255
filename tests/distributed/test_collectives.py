"""Collectives on 1, 2 and 4 ranks: one program has all cases."""

import itertools

import pytest

import infinicore
from infinicore import distributed, nn


@pytest.mark.parametrize("count", [1, 2, 4])
def test_collectives(ranks, count):
    done = ranks(count, "collectives.py")
    assert done.stdout.count("done") == count


@pytest.mark.parametrize("how", [(), ("direct",), ("windows",)])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_collectives_of_another_device(ranks, count, how):
    """What the host cannot reach: staged in chunks, by an MPI that takes addresses there, or by windows."""
    done = ranks(count, "collectives.py", "host2", *how)
    assert done.stdout.count("done") == count


def test_one_process_without_mpi():
    """What a script calls does the same in a process that was started alone."""
    group = distributed.init()
    assert (group.rank, group.size, distributed.get_rank(), distributed.get_world_size()) == (0, 1, 0, 1)
    x = infinicore.tensor([1.0, 2.0])
    assert distributed.all_reduce(x, "avg").tolist() == [1.0, 2.0]
    assert distributed.all_reduce(x, async_op=True).wait() is x
    assert distributed.all_gather(infinicore.empty(1, 2), x).tolist() == [[1.0, 2.0]]
    assert distributed.Mesh(dp=-1).dp.size == 1


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x: distributed.all_reduce(x, "xor"), "`op` must be one of"),
        (lambda x: distributed.broadcast(x, 1), "`src` must be a rank of the group"),
        (lambda x: distributed.send(x, 0), "`dst` must be another rank"),
        (lambda x: distributed.all_gather([x, x], x), "`output` must be a list of 1 tensors"),
        (lambda x: distributed.init(timeout=3), "call it once"),
        (lambda x: distributed.Mesh(tp=3), "does not have the 1 ranks"),
        (lambda x: distributed.P2P("put", x, 0), "`kind` must be 'send' or 'recv'"),
        (lambda x: distributed.batch([x]), "`messages` must hold `P2P`s, got Tensor"),
        (lambda x: distributed.new_group([1]), "`ranks` must be different ranks of the 1 of this job"),
        (lambda x: distributed.new_group([]), "`ranks` must be different ranks"),
        (lambda x: distributed.scatter_object([1, 2]), "`values` must be a list of 1 objects"),
        (lambda x: distributed.DistributedDataParallel(nn.Linear(2, 2), bucket_mb="1"), "`bucket_mb` must be above 0"),
        (lambda x: distributed.DistributedDataParallel(nn.Linear(2, 2), compression="int4"), "`compression` must be"),
        (lambda x: distributed.Pipeline(nn.Sequential(nn.Linear(2, 2)), distributed.Mesh(), 1, loss=3), "`loss` must"),
        (lambda x: distributed.parallelize(nn.Linear(2, 2), distributed.Mesh(), ["a"]), "`plan` must map"),
        (lambda x: distributed.parallelize(nn.Linear(2, 2), distributed.Mesh(), {"a": 3}), "`plan` must map 'a' to"),
        (lambda x: distributed.save_checkpoint("nowhere", 3), "`model` must be a Module"),
    ],
)
def test_wrong_arguments(call, words):
    distributed.init()
    with pytest.raises((ValueError, TypeError), match=words):
        call(infinicore.ones(3))


def test_slices_cover_everything_in_whole_lines():
    from infinicore.distributed.transport import slices

    for n in (0, 1, 15, 16, 1000, 1_000_003):
        for size in (2, 3, 16):
            for item in (1, 2, 4, 8):
                starts = slices(n, size, item)
                assert len(starts) == size + 1 and starts[0] == 0 and starts[-1] == n
                assert all(a <= b for a, b in itertools.pairwise(starts))
                assert all(start * item % 64 == 0 for start in starts[:-1])
