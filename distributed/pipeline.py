"""`Pipeline`: each rank computes some layers of a model, and micro-batches follow each other through the ranks."""

import contextlib
import itertools
import time
from typing import NamedTuple

from .. import nn
from ..autograd import is_grad_enabled, no_grad
from ..core.tensor_cy import TensorBase
from ..device import CPU
from ..dispatch import empty, empty_beside, refuse_recording
from ..dtype import dtype, float64
from . import collectives as c
from . import stages
from .ddp import Averaging, averages_context
from .deferred import materialize_kept, materialize_module
from .flat import Shard
from .functional import bounds
from .mesh import Mesh
from .objects import broadcast_object
from .schedule import schedule as make_schedule
from .schedule import simulate
from .units import computing, passing, units_of

_BUCKET = 25 << 20  # bytes of gradients that are averaged together


class Report(NamedTuple):
    """A step as this rank saw it: `seconds`, those of them that it `waited` for others, activations `kept` at most."""

    seconds: float
    waited: float
    kept: int


class _Messages:
    """What goes one way between neighbours: activations to the next rank, or gradients to the one before.

    The receiver knows the shape of what it has seen once; before, the shape is sent ahead. What comes lies on `device`.
    """

    def __init__(self, group, step, device):
        self.device = device
        self.group = group.split([list(range(group.size))], f"{group.name} {'forward' if step > 0 else 'backward'}")
        self.to, self.source = (group.rank + step) % group.size, (group.rank - step) % group.size
        self.told, self.known = set(), {}
        self.sending = []

    def send(self, tensor, key):
        """Begin to send the tensor of a stage; `key` is of what its shape depends on."""
        tensor = tensor.detach().contiguous()
        if key not in self.told:
            self.told.add(key)
            self.group.comm.send((tuple(tensor.shape), tensor.dtype.name), self.to)
        self.sending.append((c.isend(tensor, self.to, self.group), tensor))
        self.sending = [one for one in self.sending if not one[0].is_completed()]

    def receive(self, key):
        """What the pass needs whose turn it is."""
        if key not in self.known:
            shape, name = self.group.comm.recv(source=self.source)
            self.known[key] = shape, dtype(name), None, self.device
        return c.recv(empty(*self.known[key]), self.source, self.group)

    def finish(self):
        """Wait until all has been sent."""
        for work, _ in self.sending:
            work.wait()
        self.sending = []


class Pipeline(Averaging):
    """Divide `module` into `mesh.pp.size * chunks` stages, in place; this rank keeps its own, `pipeline.module`.

    All ranks of the mesh make the same module (parameters become those of rank 0) and call `step` with the same batch
    of their `mesh.dp` rank. A module is a `Sequential`, or has two methods: `pieces()`, the paths of the submodules of
    each piece that it can be cut into, and `run_pieces(x, first, stop)`, what pieces [first, stop) make of the result
    of the piece before (of the inputs, for piece 0). Language models have them. One tensor goes from piece to piece.

    `loss(output, targets)` is a mean over rows; language models have one. `micro_batches` are parts of a batch along
    its first dim. `schedule` is "gpipe", "1f1b" or, with several `chunks` a rank, "interleaved": see
    `infinicore.distributed.schedule`. Stages have equal costs as far as they can: what pieces take where `example`, a
    pair (inputs, targets), is given, else the number of their weights.

    Make optimizers of `pipeline.parameters()`, after `parallelize` and `Pipeline`. A parameter that several stages use
    (a tied embedding) is kept by each, and its gradients are summed. Gradients are averaged over `dp` and `cp`.

    What a rank keeps may be divided among these by `fully_shard`: of `pipeline.module`, after its blocks, or by
    `ZeroDataParallel(pipeline.module, mesh.group("dp", "cp"), stage=3)`. Parameters are then whole for each pass of a
    micro-batch alone, and its gradients are averaged at once. Only the unit of a parameter that several stages use has
    whole gradients until the step is over.
    """

    def __init__(self, module, mesh, micro_batches, schedule="1f1b", chunks=1, loss=None, example=None):
        if not isinstance(module, nn.Module):
            raise TypeError(f"`module` must be a Module, got {type(module).__name__}")
        if not isinstance(mesh, Mesh):
            raise TypeError(f"`mesh` must be a Mesh, got {type(mesh).__name__}")
        for name, value in {"micro_batches": micro_batches, "chunks": chunks}.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"`{name}` must be a number of at least 1, got {value!r}")
        if units_of(module):
            raise ValueError("`module` is divided by `fully_shard`: make the Pipeline first, and divide what it keeps")
        if loss is None and not hasattr(module, "hidden_loss"):
            raise ValueError(f"`loss` is needed: {type(module).__name__} has none of its own")
        if loss is not None and not callable(loss):
            raise TypeError(f"`loss` must be a function of (output, targets), got {type(loss).__name__}")
        if example is not None:  # to be run
            materialize_module(module)
        self.module, self.mesh, self.group = module, mesh, mesh.pp
        self.averaging = mesh.group("dp", "cp")
        averages_context(module, self.averaging)
        self.loss = module.hidden_loss if loss is None else loss
        self._weigh = module.labels if loss is None else lambda targets: targets.shape[0]
        self.micro_batches, size = micro_batches, self.group.size
        passes = make_schedule(schedule, size, micro_batches, chunks)
        self.expected = simulate(passes)
        self.passes = passes[self.group.rank]
        stages.give(module, self.group)
        stages.give(module, self.averaging)
        self.costs = self._costs(example)
        cuts = stages.cut_module(module, self.costs, size * chunks)
        self.parts = list(itertools.pairwise(cuts))
        self.last = self.group.rank == size - 1
        tied = stages.owners(module, cuts, size)
        self._run = stages.runner(module)
        named = dict(module.named_parameters())
        stages.keep(module, [self.parts[chunk * size + self.group.rank] for chunk in range(chunks)])
        materialize_kept(module, mesh.world)
        self._tie(tied, named)
        device = next((p.device for p in module.parameters()), CPU)
        self.forward, self.backward = _Messages(self.group, 1, device), _Messages(self.group, -1, device)
        self.report = None

    def _costs(self, example):
        if example is None:
            return stages.guessed_costs(self.module)
        inputs, targets = (x[: bounds(x.shape[0], 0, self.micro_batches)[1]] for x in example)
        costs = stages.measured_costs(self.module, self.loss, inputs, targets, self.group)
        return broadcast_object(costs, 0, self.mesh.world)  # pipelines side by side are cut alike

    def _tie(self, tied, named):
        """Make groups of the ranks that share parameters."""
        self.tied, groups, rank = [], {}, self.group.rank
        for name, ranks in tied.items():
            key = tuple(ranks)
            if key not in groups:
                rest = [[r] for r in range(self.group.size) if r not in ranks]
                groups[key] = self.group.split([ranks, *rest], "tied")
            if rank in ranks and named[name].requires_grad:
                self.tied.append((named[name], groups[key]))
        again = {id(named[name]) for name, ranks in tied.items() if rank in ranks[1:]}
        for parameter in self.parameters():
            parameter.staged = "again" if id(parameter) in again else "here"

    def parameters(self):
        """Those of this rank."""
        return self.module.parameters()

    def step(self, inputs, targets, *, scale=1.0, within=contextlib.nullcontext):
        """Forward and backward of a batch in micro-batches: the mean loss, on every rank of `mesh.pp`.

        Gradients are those of `scale` times the mean loss over the whole batch, added to what there is, as `backward`
        does. Forward passes run `within()` (autocast, say). Under `no_grad` nothing goes backward, and a batch may have
        fewer rows than there are micro-batches; else that is a ValueError.
        """
        refuse_recording("a pipeline's step", "record the parts of a model, not its pipeline")
        batch = self._micro_batches(inputs, targets)
        train = is_grad_enabled()
        begin, passes = time.perf_counter(), self.passes
        if not train:
            passes = [one for one in passes if one.forward and one.micro < len(batch[0])]
        run = _Step(self, *batch, train, scale, within)
        with self._joined() if train else contextlib.nullcontext():
            for one in passes:
                run.go(one)
            self.forward.finish()
            self.backward.finish()
            self.report = Report(time.perf_counter() - begin, run.waited, run.most)
        total = empty((1,), float64).fill_(run.total if self.last else 0.0)
        return c.broadcast(total, self.group.size - 1, self.group).reshape(()).to(run.dtype)

    def _micro_batches(self, inputs, targets):
        """(inputs, targets, weights) of the micro-batches."""
        for name, x in (("inputs", inputs), ("targets", targets)):
            if not isinstance(x, TensorBase) or not x.shape:
                raise TypeError(f"`{name}` must be a tensor with a batch dim, got {type(x).__name__}")
        rows, count = inputs.shape[0], self.micro_batches
        if targets.shape[0] != rows:
            raise ValueError(f"`targets` must have the {rows} rows of `inputs`, got {targets.shape[0]}")
        if not is_grad_enabled():
            count = min(rows, count)
            if units_of(self.module):  # ranks that gather parameters together have as many passes
                count = int(c.all_reduce(empty((1,), float64).fill_(count), "min", self.averaging).item())
        if rows < count or not rows:
            raise ValueError(f"`inputs` has {rows} rows, too few for {count} micro-batches: give at least {count}")
        ends = [bounds(rows, k, count) for k in range(count)]
        targets = [targets[first:stop] for first, stop in ends]
        counts = [self._weigh(x) for x in targets]
        whole = sum(counts)
        weights = [n / whole if whole else 1 / count for n in counts]
        return [inputs[first:stop] for first, stop in ends], targets, weights

    @contextlib.contextmanager
    def _joined(self):
        """Passes whose gradients are then summed over the ranks of shared parameters, and averaged over `dp`."""
        tied = [(computing(p), group) for p, group in self.tied]
        homes = [p.home[0] for p, _ in self.tied if isinstance(p, Shard)]
        units = {unit: unit.sync and self._sync for unit in units_of(self.module)}
        late = [unit for unit in units if any(flat in homes for flat in unit.flats)]  # sums come before averages
        held = [p.grad for p, _ in tied]
        for p, _ in tied:
            p.grad = None
        before = {unit: unit.sync for unit in units}
        for unit, sync in units.items():
            unit.sync = sync and unit not in late
        try:
            yield
        finally:
            for unit, sync in before.items():
                unit.sync = sync
        with no_grad():
            for (p, group), own in zip(tied, held):
                _sum(p, own, group)
            for unit in late:
                if units[unit]:
                    unit.average()
            if self._sync and self.averaging.size > 1:
                rest = [p for p in self.parameters() if p.requires_grad and not isinstance(p, Shard)]
                _average(rest, self.averaging)


class _Step:
    """One step on this rank: what it computed, and waits for."""

    def __init__(self, pipeline, inputs, targets, weights, train, scale, within):
        self.pipeline, self.inputs, self.targets, self.weights, self.train = pipeline, inputs, targets, weights, train
        self.scale, self.within = scale, within
        self.kept, self.most, self.waited, self.total = {}, 0, 0.0, 0.0
        self.dtype = next((p.dtype for p in pipeline.parameters()), None)

    def _stage(self, one):
        return one.chunk * self.pipeline.group.size + self.pipeline.group.rank

    def _key(self, one, stage):
        return stage, tuple(self.inputs[one.micro].shape), tuple(self.targets[one.micro].shape)

    def go(self, one):
        """Do a pass."""
        pipeline, stage = self.pipeline, self._stage(one)
        began, x = time.perf_counter(), None
        if self._needs(one):
            x = (pipeline.forward if one.forward else pipeline.backward).receive(self._key(one, stage))
        self.waited += time.perf_counter() - began
        if one.forward:
            y = self._forward(one, stage, x)
            if stage + 1 < len(pipeline.parts):
                pipeline.forward.send(y, self._key(one, stage + 1))
        else:
            g = self._backward(one, x)
            if stage > 0:
                pipeline.backward.send(g, self._key(one, stage - 1))

    def _needs(self, one):
        """Whether a pass needs what another rank sends."""
        stage, alone = self._stage(one), self.pipeline.group.size == 1
        return not alone and (stage > 0 if one.forward else stage + 1 < len(self.pipeline.parts))

    def _forward(self, one, stage, x):
        pipeline, last = self.pipeline, stage + 1 == len(self.pipeline.parts)
        if stage == 0:
            x = self.inputs[one.micro]
        elif self.train:
            x.requires_grad = True
        with self.within():
            y = passing(pipeline.module, self._computed, x, stage, one.micro, last)
        if self.train:
            self.kept[one.chunk, one.micro] = x, y
            self.most = max(self.most, len(self.kept))
        return y

    def _computed(self, x, stage, micro, last):
        y = self.pipeline._run(x, *self.pipeline.parts[stage])
        return self._loss(y, micro) if last else y

    def _loss(self, output, micro):
        """The part of this micro-batch in the mean loss of all rows."""
        weight = self.weights[micro]
        if not weight:  # it has no label that counts, and the mean of none would be NaN
            return (output * 0.0).sum()
        loss = self.pipeline.loss(output, self.targets[micro])
        self.dtype = loss.dtype
        loss = loss * weight if weight != 1.0 else loss
        self.total += loss.item()
        return loss * self.scale if self.scale != 1.0 else loss

    def _backward(self, one, g):
        x, y = self.kept.pop((one.chunk, one.micro))
        y.backward(g)
        return x.grad


def _sum(p, before, group):
    """Sum the gradients that ranks have of a parameter, and add what this rank had `before`."""
    if p.grad is None:
        p.grad = empty_beside(p, p.shape_).zero_()
    c.all_reduce(p.grad, "sum", group)
    if before is not None:
        p.grad += before


def _average(parameters, group):
    """Average gradients over the ranks of a group, many in one message. Who has none takes part with zeros."""
    buckets = {}
    for p in parameters:
        if p.grad is None:
            p.grad = empty_beside(p, p.shape_).zero_()
        whole = buckets.setdefault(p.grad.dtype, [[]])
        if whole[-1] and sum(q.grad.nbytes for q in whole[-1]) + p.grad.nbytes > _BUCKET:
            whole.append([])
        whole[-1].append(p)
    for kind, lists in buckets.items():
        for some in lists:
            flat, at = empty_beside(some[0], (sum(p.numel() for p in some),), kind), 0
            views = []
            for p in some:
                views.append(flat[at : at + p.numel()].view(p.shape))
                views[-1].copy_(p.grad)
                at += p.numel()
            c.all_reduce(flat, "avg", group)
            for p, view in zip(some, views):
                p.grad.copy_(view)
