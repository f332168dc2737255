"""A rank behind the first ends in the midst of a step: the first says so, and the job ends."""

import os
import sys

import infinicore.distributed as dist

from infinicore.models import from_pretrained

mesh = dist.Mesh(tp=2)
model = from_pretrained(sys.argv[1], mesh=mesh)
if mesh.world.rank:
    compute, calls = model.ranks._compute, []

    def stumble(*args):
        calls.append(args)
        return os._exit(0) if len(calls) == 2 else compute(*args)

    model.ranks._compute = stumble
    model.ranks.follow()
for _ in model.generate([5, 6, 7], max_new_tokens=50, temperature=0.0, ignore_eos=True):
    pass
