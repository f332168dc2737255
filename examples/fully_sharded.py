"""A GPT-2 whose parameters, gradients and states are divided: `infinicore run -n 2 examples/fully_sharded.py [TEXT]`.

`mpiexec -n 2 python examples/fully_sharded.py` does the same, and `python examples/fully_sharded.py` trains alone.
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
model = dist.deferred_init(from_config, {"model_type": "gpt2", **sizes})  # no values, no memory yet
whole = sum(p.numel() for p in model.parameters())
for block in model.transformer.h:
    dist.fully_shard(block)  # gathered before it computes, released after
dist.fully_shard(model)  # all else; now each rank gets its part of the values
optimizer = optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.1)
mesh = dist.Mesh(dp=-1)
sampler = DistributedSampler(dataset, group.size, group.rank)
loader = DataLoader(dataset, batch_size=max(1, 12 // group.size), sampler=sampler)

for step, (inputs, targets) in enumerate(itertools.islice(itertools.cycle(loader), steps), 1):
    loss = model.loss(inputs, targets)
    loss.backward()  # averages of gradients go to the ranks that own them
    dist.clip_grad_norm_(model, mesh, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step == 1 or step % 10 == 0:
        mean = dist.all_reduce(loss.detach().clone(), "avg").item()
        if group.rank == 0:
            print(f"step {step}: loss {mean:.2f} on {group.size} ranks")

shares = dist.all_gather_object(sum(p.numel() for p in model.parameters()))
if group.rank == 0:
    print(f"parameters of the ranks: {shares}, of the model: {whole}")
