"""Data-parallel training of a GPT-2 on characters: `infinicore run -n 2 examples/data_parallel.py [TEXT [STEPS]]`.

`mpiexec -n 2 python examples/data_parallel.py` does the same, and `python examples/data_parallel.py` trains alone.
"""

import argparse
import itertools
import sys
from pathlib import Path

import infinicore.distributed as dist

import infinicore as ic
from infinicore import optim
from infinicore.data import DataLoader, DistributedSampler, character_datasets
from infinicore.models import from_config

text = Path(sys.argv[1] if len(sys.argv) > 1 else argparse.__file__)
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 100

group = dist.init()
ic.manual_seed(0)
dataset, _, tokenizer = character_datasets(text, sequence_length=64)
sizes = {"vocab_size": len(tokenizer), "n_layer": 4, "n_head": 4, "n_embd": 64, "n_positions": 64}
model = dist.DistributedDataParallel(from_config({"model_type": "gpt2", **sizes}))
optimizer = optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.1)
sampler = DistributedSampler(dataset, group.size, group.rank)  # each rank sees its own share of every epoch
loader = DataLoader(dataset, batch_size=max(1, 12 // group.size), sampler=sampler)


def batches():
    """The same number of steps on every rank, over as many epochs as that takes."""
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


for step, (inputs, targets) in enumerate(itertools.islice(batches(), steps), 1):
    loss = model.loss(inputs, targets)
    loss.backward()  # gradients are averaged over the ranks on the way
    optimizer.step()
    optimizer.zero_grad()
    if step == 1 or step % 10 == 0:
        mean = dist.all_reduce(loss.detach().clone(), "avg").item()
        if group.rank == 0:
            print(f"step {step}: loss {mean:.2f} on {group.size} ranks")

everyone = dist.all_gather_object(sum(p.detach().double().sum().item() for p in model.parameters()))
if group.rank == 0:
    print(f"the same parameters on all ranks: {len(set(everyone)) == 1}")
