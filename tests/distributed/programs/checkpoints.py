"""Checkpoints: `checkpoints.py save|load|broken FOLDER MESH`, MESH as `tp=2,dp=2`, `dp=2,zero` or `pp=2,dp=2,zero3`.

Prints the next losses.

Every mesh trains as one process would, so that losses after loading are the same on any.
"""

import shutil
import sys
import time
from pathlib import Path

import infinicore.distributed as dist
import numpy as np
from data_parallel_models import GPT2

import infinicore as ic
from infinicore import optim
from infinicore.models import from_config

action, folder, words = sys.argv[1:4]
group = dist.init()
sizes = dict(word.split("=") for word in words.split(",") if "=" in word)
mesh = dist.Mesh(**{axis: int(size) for axis, size in sizes.items()})
ic.manual_seed(5 if action == "load" else 0)
model = from_config(GPT2)
if mesh.tp.size > 1:
    dist.parallelize(model, mesh)
if mesh.pp.size > 1:
    model = pipeline = dist.Pipeline(model, mesh, 2)
    if "zero3" in words:
        model = dist.ZeroDataParallel(pipeline.module, mesh.dp, stage=3)
elif "zero" in words:
    model = dist.ZeroDataParallel(model, mesh.dp, stage=3 if "zero3" in words else 2)
elif mesh.dp.size > 1:
    model = dist.DistributedDataParallel(model, mesh.dp)
adam = optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
rows = 4 // mesh.dp.size


def steps(first, stop):
    losses = []
    for step in range(first, stop):
        ids = np.random.default_rng(step).integers(0, 97, (4, 9))[mesh.dp.rank * rows :][:rows].astype(np.int64)
        x, y = ic.from_numpy(ids[:, :-1].copy()), ic.from_numpy(ids[:, 1:].copy())
        if mesh.pp.size > 1:
            loss = pipeline.step(x, y)
        else:
            loss = model.loss(x, y)
            loss.backward()
        adam.step()
        adam.zero_grad()
        losses.append(dist.all_reduce(loss.detach().reshape(1).clone(), "avg").item())
    return losses


def leave_something():
    """What a broken-off save left, which takes the first rank a while to delete: no rank may begin before."""
    left = Path(folder).with_name(f".{Path(folder).name}.writing")
    if group.rank == 0:
        left.mkdir(parents=True)
        (left / "old").touch()
        delete = shutil.rmtree
        shutil.rmtree = lambda *args, **options: (time.sleep(0.2), delete(*args, **options))
    dist.barrier()
    make = Path.mkdir

    def mkdir(path, *args, **options):
        assert path != left or not (left / "old").exists(), f"rank {group.rank} began before what was left had gone"
        return make(path, *args, **options)

    Path.mkdir = mkdir


if action == "save":
    steps(0, 3)
    leave_something()
    dist.save_checkpoint(folder, model, adam, mesh, extra={"step": 3, "note": "text"})
    found = steps(3, 6)
elif action == "load":
    extra = dist.load_checkpoint(folder, model, adam, mesh)
    assert extra == {"step": 3, "note": "text"}, extra
    found = steps(3, 6)
else:
    before = steps(0, 1)
    try:
        dist.load_checkpoint(folder, model, adam, mesh)
    except ValueError as error:
        found = str(error)
if group.rank == 0:
    print("found", repr(found), flush=True)
