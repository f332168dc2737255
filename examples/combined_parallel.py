"""Training along several axes: `mpiexec -n 4 python examples/combined_parallel.py [dp=2,tp=2 [TEXT [STEPS]]]`.

`tp=2,pp=2` or, on eight ranks, `dp=2,tp=2,pp=2` are other meshes. With FOLDER as a fourth argument a run that is broken
off goes on from its last checkpoint, on any mesh.
"""

import argparse
import sys
from pathlib import Path

import infinicore.distributed as dist

import infinicore as ic
from infinicore import optim
from infinicore.data import DataLoader, character_datasets
from infinicore.models import from_config
from infinicore.train import Trainer

words = sys.argv[1] if len(sys.argv) > 1 else "dp=2,tp=2"
text = Path(sys.argv[2] if len(sys.argv) > 2 else argparse.__file__)
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 100
folder = sys.argv[4] if len(sys.argv) > 4 else None

mesh = dist.Mesh(**{axis: int(size) for axis, size in (word.split("=") for word in words.split(","))})
ic.manual_seed(0)
dataset, _, tokenizer = character_datasets(text, sequence_length=64)
sizes = {"vocab_size": len(tokenizer), "n_layer": 4, "n_head": 4, "n_embd": 64, "n_positions": 64}
model = dist.ParallelModel(
    from_config({"model_type": "gpt2", **sizes}),
    mesh,
    zero=1 if mesh.dp.size > 1 else 0,  # optimizer states divided among the replicas
    sequence_parallel=mesh.tp.size > 1,
    micro_batches=4 if mesh.pp.size > 1 else 1,
)
optimizer = optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.1)
loader = DataLoader(dataset, batch_size=12, shuffle=True, drop_last=True)  # of all ranks together; each reads its part


def report(trainer, row):
    """Every rank has the figures of all; one prints them."""
    if mesh.world.rank == 0:
        print(f"step {row['step']}: loss {row['loss']:.4f} on {mesh}")


trainer = Trainer(model, optimizer, loader, steps=steps, clip=1.0, folder=folder, progress=False, callbacks=[report])
trainer.fit()
