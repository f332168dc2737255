"""Pipeline-parallel training of a GPT-2: `infinicore run -n 2 examples/pipeline.py [TEXT [STEPS]]`.

Every rank has some of the layers. `mpiexec -n 2 python examples/pipeline.py` does the same.
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

mesh = dist.Mesh(pp=-1)
ic.manual_seed(0)
dataset, _, tokenizer = character_datasets(text, sequence_length=64)
loader = DataLoader(dataset, batch_size=12)  # all ranks see the same batches
batches = itertools.chain.from_iterable(itertools.repeat(loader))

sizes = {"vocab_size": len(tokenizer), "n_layer": 4, "n_head": 4, "n_embd": 64, "n_positions": 64}
model = from_config({"model_type": "gpt2", **sizes})
pipeline = dist.Pipeline(model, mesh, micro_batches=4, example=next(batches))
optimizer = optim.AdamW(pipeline.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.1)

for step, (inputs, targets) in enumerate(itertools.islice(batches, steps), 1):
    loss = pipeline.step(inputs, targets)
    optimizer.step()
    optimizer.zero_grad()
    if mesh.pp.rank == 0 and (step == 1 or step % 10 == 0):
        print(f"step {step}: loss {loss.item():.2f} on {mesh.pp.size} ranks")

waits = dist.all_gather_object(pipeline.report.waited / pipeline.report.seconds, mesh.pp)
if mesh.pp.rank == 0:
    print(f"stages: pieces {pipeline.parts} of {len(pipeline.costs)}")
    waited, expected = 100 * sum(waits) / len(waits), 100 * pipeline.expected.bubble
    print(f"waiting: {waited:.0f} % of the last step, by theory {expected:.0f} %")
