"""Training on long sequences that ranks share: `infinicore run -n 2 examples/context_parallel.py [TEXT [STEPS]]`.

Every rank has the whole model and a part of each sequence, and keys and values go round in attention.
`mpiexec -n 2 python examples/context_parallel.py` does the same.
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
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 50

mesh = dist.Mesh(cp=-1)
ic.manual_seed(0)
dataset, _, tokenizer = character_datasets(text, sequence_length=512)
sizes = {"vocab_size": len(tokenizer), "n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 512}
dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
own = dist.parallelize(from_config({"model_type": "gpt2", **sizes, **dropout}), mesh)
model = dist.DistributedDataParallel(own, mesh.group("dp", "cp"))
optimizer = optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.1)
loader = DataLoader(dataset, batch_size=2)  # all ranks of `cp` see the same batches
batches = itertools.chain.from_iterable(itertools.repeat(loader))

for step, (inputs, targets) in enumerate(itertools.islice(batches, steps), 1):
    loss = model.loss(inputs, targets)  # of the whole sequences
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if mesh.cp.rank == 0 and (step == 1 or step % 10 == 0):
        print(f"step {step}: loss {loss.item():.5f} on {mesh.cp.size} ranks")

tokens = dist.all_gather_object(own.hidden(inputs).shape[1], mesh.cp)
if mesh.cp.rank == 0:
    print(f"of {inputs.shape[1]} tokens of a sequence, the ranks have {tokens}")
