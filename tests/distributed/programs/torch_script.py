"""Data-parallel training as people write it for `torchrun`: nothing but the imports names infinicore."""

import os

import infinicore.distributed as dist

import infinicore as torch
from infinicore import nn
from infinicore.nn.parallel import DistributedDataParallel as DDP
from infinicore.utils.data import DataLoader, TensorDataset
from infinicore.utils.data.distributed import DistributedSampler


def setup():
    dist.init_process_group("gloo" if not torch.cuda.is_available() else "nccl")
    assert dist.is_available() and dist.is_initialized() and dist.get_backend() == "mpi"
    rank, world = dist.get_rank(), dist.get_world_size()
    assert int(os.environ["RANK"]) == int(os.environ["LOCAL_RANK"]) == rank == dist.get_node_local_rank()
    assert int(os.environ["WORLD_SIZE"]) == int(os.environ["LOCAL_WORLD_SIZE"]) == world
    return rank, world


def collectives(rank, world):
    t = torch.full((3,), float(rank))
    dist.all_reduce(t, op=dist.ReduceOp.SUM)
    assert t.tolist() == [sum(range(world))] * 3
    t = torch.tensor([rank + 1])
    dist.reduce(t, dst=0, op=dist.ReduceOp.PRODUCT)
    assert rank or t.item() == [1, 1, 2, 6, 24][world]
    parts = [torch.zeros(2) for _ in range(world)]
    dist.all_gather(tensor_list=parts, tensor=torch.full((2,), float(rank)))
    assert torch.stack(parts).tolist() == [[r, r] for r in range(world)]
    out = torch.zeros(2 * world)
    assert dist.all_gather_into_tensor(out, torch.full((2,), float(rank))) is None
    assert out.tolist() == [r for r in range(world) for _ in range(2)]
    dist.gather(t, gather_list=[torch.zeros_like(t) for _ in range(world)] if rank == 0 else None, dst=0)
    dist.scatter(t, scatter_list=[torch.tensor([7 + r]) for r in range(world)] if rank == 0 else None, src=0)
    assert t.item() == 7 + rank
    mine = torch.zeros(2)
    dist.reduce_scatter_tensor(mine, torch.arange(2.0 * world))
    assert mine.tolist() == [2.0 * rank * world, (2.0 * rank + 1) * world]
    given = torch.arange(rank + 1.0).repeat(world)  # rank r sends r + 1 rows to each
    taken = torch.full((sum(range(1, world + 1)),), -1.0)
    dist.all_to_all_single(taken, given, [r + 1 for r in range(world)], [rank + 1] * world)
    assert taken.tolist() == [i for r in range(world) for i in range(r + 1)]
    ahead, behind = (rank + 1) % world, (rank - 1) % world
    got = torch.zeros(2)
    ring = [dist.P2POp(dist.isend, torch.full((2,), float(rank)), ahead), dist.P2POp(dist.irecv, got, behind)]
    for request in dist.batch_isend_irecv(ring):
        request.wait()
    assert got.tolist() == [behind] * 2
    objects = [{"from": rank}, rank] if rank == 0 else [None, None]
    dist.broadcast_object_list(objects, src=0)
    assert objects == [{"from": 0}, 0]
    one = [None]
    dist.scatter_object_list(one, [f"for {r}" for r in range(world)] if rank == 0 else None, src=0)
    assert one == [f"for {rank}"]
    pair = dist.new_group([0, world - 1])
    if pair is not None:
        assert dist.get_process_group_ranks(pair) == [0, world - 1]
        assert dist.get_group_rank(pair, world - 1) == 1 and dist.get_global_rank(pair, 1) == world - 1
    dist.monitored_barrier()
    dist.barrier(device_ids=[rank])


def train(rank, world):
    torch.manual_seed(rank)  # DDP gives the weights of rank 0 to all
    x = torch.linspace(-1, 1, 32).reshape(32, 1)
    data = TensorDataset(x, 3 * x + 1)
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DDP(nn.Linear(1, 1), device_ids=None, process_group=None, bucket_cap_mb=25, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for epoch in range(20):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
    assert loss.item() < 0.05
    state = model.module.state_dict()
    every = [torch.zeros(1, 1) for _ in range(world)]
    dist.all_gather(every, state["weight"])
    assert all(torch.equal(w, every[0]) for w in every)


rank, world = setup()
collectives(rank, world)
train(rank, world)
dist.destroy_process_group()
print("done")
