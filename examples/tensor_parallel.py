"""Tensor-parallel training of a GPT-2: `infinicore run -n 2 examples/tensor_parallel.py [TEXT [STEPS]]`.

Every rank has a part of each layer. `mpiexec -n 2 python examples/tensor_parallel.py` does the same.
"""

import argparse
import itertools
import sys
from pathlib import Path

import infinicore.distributed as dist

import infinicore as ic
from infinicore import optim
from infinicore.data import DataLoader, character_datasets
from infinicore.models import from_config

text = Path(sys.argv[1] if len(sys.argv) > 1 else argparse.__file__)
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 100

mesh = dist.Mesh(tp=-1)
ic.manual_seed(0)
dataset, _, tokenizer = character_datasets(text, sequence_length=64)
sizes = {"vocab_size": len(tokenizer), "n_layer": 4, "n_head": 4, "n_embd": 64, "n_positions": 64}
model = dist.parallelize(from_config({"model_type": "gpt2", **sizes}), mesh)
optimizer = optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.1)
loader = DataLoader(dataset, batch_size=12)  # all ranks see the same batches
batches = itertools.chain.from_iterable(itertools.repeat(loader))

for step, (inputs, targets) in enumerate(itertools.islice(batches, steps), 1):
    loss = model.loss(inputs, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if mesh.tp.rank == 0 and (step == 1 or step % 10 == 0):
        print(f"step {step}: loss {loss.item():.2f} on {mesh.tp.size} ranks")

counts = dist.all_gather_object(sum(p.numel() for p in model.parameters()), mesh.tp)
whole = sum(x.numel() for x in dist.whole_state_dict(model, mesh).values())
if mesh.tp.rank == 0:
    print(f"numbers of parameters on the ranks: {counts}; of the whole model, with its head: {whole}")
