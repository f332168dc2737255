"""What a job of the suite `distributed` runs on each rank: `rank_worker.py ASKED ANSWER`, two JSON files."""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import infinicore as ic
import infinicore.distributed as dist

IN_GRAPH = 20  # all-reduces of a graph of a GPU, whose replay takes microseconds by itself


class Collective:
    """An all-reduce (or barrier) of each side, prepared."""

    def __init__(self, asked, group):
        self.asked, self.group, self.device = asked, group, ic.device(asked["device"])
        self.in_graph = IN_GRAPH if asked["kind"] == "recorded" and self.device.type == "cuda" else 1

    def call(self, side):
        """A function that does it once."""
        return getattr(self, f"_{side}")(self.asked["elements"])

    def _ours(self, n):
        if self.asked["op"] == "barrier":
            return dist.barrier
        x = self.group.empty((n,)) if self.asked["kind"] == "window" else self._zeros(n)
        x.zero_()
        if self.asked["kind"] != "recorded":
            return lambda: dist.all_reduce(x)
        dist.all_reduce(x)
        ic.start_graph_recording(self.device)
        for _ in range(self.in_graph):
            dist.all_reduce(x)
        return ic.stop_graph_recording().run

    def _zeros(self, n):
        return ic.zeros(n, dtype=self.asked["dtype"], device=self.device)

    def _nccl(self, n):
        from infinicore.distributed import nccl
        from infinicore.kernels.blocks.comm import SUM
        from infinicore.kernels.cuda import driver

        x, backend = self._zeros(n), self.device.backend
        one = nccl.start(self.group, backend)
        one.timeout = None  # marks of a watch have no place in a graph

        def call():
            one.reduce(x, x, (0,) * self.group.size + (n,), SUM, 0, False)

        if self.asked["kind"] != "recorded":
            return call
        call()
        backend.synchronize()
        before, backend.stream = backend.stream, backend.side_stream()
        try:
            with driver.Capture(backend.stream) as capture:
                for _ in range(self.in_graph):
                    call()
        finally:
            backend.stream = before
        return lambda: driver.launch_graph(capture.executable, backend.stream)

    def _mpi4py(self, n):
        from mpi4py import MPI

        if self.asked["op"] == "barrier":
            return MPI.COMM_WORLD.Barrier
        x, y = np.zeros(n, np.float32), np.zeros(n, np.float32)
        return lambda: MPI.COMM_WORLD.Allreduce(x, y)

    def _gloo(self, n):
        torch = start_gloo(self.group)
        if self.asked["op"] == "barrier":
            return torch.distributed.barrier
        x = torch.zeros(n)
        return lambda: torch.distributed.all_reduce(x)


class Step:
    """A step of data-parallel training of a GPT-2: forward, backward, AdamW."""

    def __init__(self, asked, group):
        from infinicore.perf import train_cases

        self.asked, self.group, self.device = asked, group, ic.device(asked["device"])
        self.in_graph = 1
        self.network = train_cases.TINY_GPT2 if asked["quick"] else train_cases.GPT2
        rng = np.random.default_rng(group.rank)
        self.ids = rng.integers(0, self.network.vocabulary, (asked.get("batch", 2), asked["tokens"] + 1))

    def call(self, side):
        """A function that does it once."""
        return getattr(self, f"_{side}")()

    def _ours(self):
        from infinicore import models, optim

        ic.manual_seed(0)
        model = dist.DistributedDataParallel(models.from_config(self.network.config(), device=self.device))
        adam = optim.AdamW(model.parameters(), lr=1e-4)
        x, y = (ic.from_numpy(a.copy()).to(self.device) for a in (self.ids[:, :-1], self.ids[:, 1:]))
        lower = self.asked["dtype"] == "bfloat16"

        def passes(x, y):
            with ic.autocast(self.device.type, ic.bfloat16) if lower else contextlib.nullcontext():
                loss = model.loss(x, y)
            loss.backward()

        if self.asked.get("recorded"):
            passes = ic.recorded(passes)

        def step():
            passes(x, y)
            adam.step()
            adam.zero_grad()

        return step

    def _gloo(self):
        torch = start_gloo(self.group)
        from infinicore.perf import torch_models

        torch.set_num_threads(1)
        decoder = torch_models.decoder(self.network)

        class Loss(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.decoder = decoder

            def forward(self, x, y):
                return self.decoder.loss(x, y)

        model = torch.nn.parallel.DistributedDataParallel(Loss())
        adam = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        x, y = (torch.from_numpy(a.copy()) for a in (self.ids[:, :-1], self.ids[:, 1:]))

        def step():
            model(x, y).backward()
            adam.step()
            adam.zero_grad()

        return step


def decode(asked, group):
    """{side: seconds of a token, each turn} of a divided model on the first rank; None on the others, which follow."""
    from infinicore import models

    mesh = dist.Mesh(**asked["axes"]) if asked["axes"] else None
    model = models.from_pretrained(asked["path"], mesh=mesh, device=asked["device"])
    if group.rank:
        model.ranks.follow()
        return None
    found, prompt, count = [], list(range(1, asked["prompt"] + 1)), 16
    for _ in range(asked["rounds"] + 1):  # the first one warms up
        generation = model.generate(prompt, max_new_tokens=1000, temperature=0.0, ignore_eos=True)
        for _ in range(4):
            next(generation)
        start = time.perf_counter()
        for _ in range(count):
            next(generation)
        found.append((time.perf_counter() - start) / count)
        count = max(16, min(512, int(asked["turn_s"] / found[-1])))
    return {"ours": found[1:]}


class PipelineStep:
    """A step of a GPT-2 through as many stages as there are ranks, in 8 micro-batches: forward, backward, AdamW."""

    in_graph = 1

    def __init__(self, asked, group):
        from infinicore.perf import train_cases

        self.network = train_cases.TINY_GPT2 if asked["quick"] else train_cases.EVEN_GPT2
        self.ids = np.random.default_rng(0).integers(0, self.network.vocabulary, (8, asked["tokens"] + 1))

    def call(self, side):
        """A function that does it once."""
        from infinicore import models, optim

        x, y = (ic.from_numpy(a.copy()) for a in (self.ids[:, :-1], self.ids[:, 1:]))
        model = models.from_config(self.network.config())
        pipeline = dist.Pipeline(model, dist.Mesh(pp=-1), 8, example=(x, y))
        adam = optim.AdamW(pipeline.parameters(), lr=1e-4)

        def step():
            pipeline.step(x, y)
            adam.step()
            adam.zero_grad()

        return step


class Saving:
    """A checkpoint of a GPT-2 with AdamW's states, divided by ZeRO; and a loop that writes as many bytes."""

    in_graph = 1

    def __init__(self, asked, group):
        from infinicore import models, optim
        from infinicore.perf import train_cases

        self.folder, self.group = Path(asked["folder"]), group
        ic.manual_seed(0)
        network = train_cases.TINY_GPT2 if asked["quick"] else train_cases.GPT2
        self.model = dist.ParallelModel(models.from_config(network.config()), dist.Mesh(dp=-1), zero=1)
        self.adam = optim.AdamW(self.model.parameters(), lr=1e-4)
        for p in self.model.parameters():  # a step makes the states
            p.grad = ic.randn(p.shape) if p.numel() else ic.empty(tuple(p.shape))
        self.adam.step()
        self.adam.zero_grad()

    def call(self, side):
        """A function that does it once."""
        return getattr(self, f"_{side}")

    def _ours(self):
        self.model.save_checkpoint(self.folder / "checkpoint", self.adam)

    def _write(self):
        if self.group.rank == 0:
            total, block = 12 * self.model.numel, np.random.default_rng(0).bytes(8 << 20)
            with open(self.folder / "plain", "wb", buffering=0) as file:
                for at in range(0, total, len(block)):
                    file.write(block[: total - at])
                os.fsync(file.fileno())
        dist.barrier()


def start_gloo(group):
    """torch, whose default process group is that of these ranks."""
    import socket

    import torch

    if not torch.distributed.is_initialized():
        port = None
        if group.rank == 0:
            with socket.socket() as one:
                one.bind(("127.0.0.1", 0))
                port = one.getsockname()[1]
        port = dist.broadcast_object(port)
        where = f"tcp://127.0.0.1:{port}"
        torch.distributed.init_process_group("gloo", where, rank=group.rank, world_size=group.size)
    return torch


def turn(function, repetitions, group, device):
    """Seconds of a call; ranks begin together."""
    device.backend.synchronize()
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(repetitions):
        function()
    device.backend.synchronize()
    return (time.perf_counter() - start) / repetitions


def write(path, found):
    """Write the answer."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file)


def main(asked_path, answer_path):
    """Measure what is asked, side by side; rank 0 writes the answer."""
    with open(asked_path, encoding="utf-8") as file:
        asked = {"device": "cpu"} | json.load(file)
    group = dist.init()
    if asked["op"] == "divided_decode":
        found = decode(asked, group)
        if found is not None:
            write(answer_path, found)
        return
    kind = {"ddp_step": Step, "pipeline_step": PipelineStep, "checkpoint": Saving}.get(asked["op"], Collective)
    prepared, calls, repetitions, device = kind(asked, group), {}, {}, ic.device(asked["device"])
    for side in asked["sides"]:
        calls[side] = prepared.call(side)
        once = min(turn(calls[side], 1, group, device) for _ in range(3))
        repetitions[side] = dist.broadcast_object(max(1, min(10_000, int(asked["turn_s"] / max(once, 1e-7)))))
    found = {side: [] for side in calls}
    for number in range(asked["rounds"]):
        order = list(calls)[number % len(calls) :] + list(calls)[: number % len(calls)]
        for side in order:
            turn(calls[side], 1, group, device)
            found[side].append(turn(calls[side], repetitions[side], group, device) / prepared.in_graph)
    if group.rank == 0:
        write(answer_path, found)
    if "torch" in sys.modules:  # else gloo aborts a process whose peers have gone first
        sys.modules["torch"].distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
