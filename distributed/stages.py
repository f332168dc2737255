"""Cutting a model into stages of a pipeline: by cost, each rank keeping its own.

A model names its pieces: `pieces()` is a list with the paths of each one's submodules, in the order of computing, and
`run_pieces(x, first, stop)` computes pieces [first, stop) of what the piece before returned (of the model's input, for
piece 0). Language models of infinicore do, and a `Sequential` is taken as one piece for each of its modules.
"""

import itertools
import statistics
import time

from .. import nn
from ..autograd import no_grad
from ..nn import init
from . import collectives as c
from .objects import broadcast_object

MEASURED = 3  # passes through a piece, of which the median counts


def pieces(module):
    """Paths of the submodules of each piece. TypeError for a module that names none."""
    if hasattr(module, "pieces") and hasattr(module, "run_pieces"):
        return module.pieces()
    if type(module) is nn.Sequential:
        return [[name] for name in module._modules]
    raise TypeError(
        f"`module` must be a Sequential or have `pieces` and `run_pieces`, got {type(module).__name__}: see "
        "infinicore.distributed.Pipeline"
    )


def runner(module):
    """`run(x, first, stop)` of a module's pieces."""
    if hasattr(module, "run_pieces"):
        return module.run_pieces

    def run(x, first, stop):
        for layer in list(module._modules.values())[first:stop]:
            x = layer(x)
        return x

    return run


def guessed_costs(module):
    """Cost of each piece: the weights that it multiplies by."""
    costs = []
    for paths in pieces(module):
        layers = [layer for path in paths for layer in module.get_submodule(path).modules()]
        costs.append(1 + sum(x.weight.numel() for x in layers if isinstance(x, nn.Linear) and x.weight is not None))
    return costs


def measured_costs(module, loss, inputs, targets, group):
    """Seconds that each piece takes forward and backward on rank 0 of the group, the loss being part of the last."""
    costs, run, count = None, runner(module), len(pieces(module))
    if group.rank == 0:
        times = [_measure(run, loss, inputs, targets, count) for _ in range(MEASURED + 1)][1:]  # the first one compiles
        costs = [statistics.median(column) for column in zip(*times)]
        module.zero_grad()
    return broadcast_object(costs, 0, group)


def _measure(run, loss, x, targets, count):
    times = []
    for piece in range(count):
        x = x.detach()
        x.requires_grad = x.dtype.is_floating_point
        begin = time.perf_counter()
        y = run(x, piece, piece + 1)
        if piece + 1 == count:
            loss(y, targets).backward()
        else:
            y.backward(y.detach())
        times.append(time.perf_counter() - begin)
        x = y
    return times


def cut(costs, stages):
    """Bounds [0, ..., len(costs)] of `stages` runs of pieces, whose dearest is as cheap as can be.

    ValueError where there are fewer pieces than stages.
    """
    count = len(costs)
    if stages > count:
        raise ValueError(f"a pipeline of {stages} stages needs as many pieces, and `module` has {count}")
    sums = [0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best = [[(sums[k], 0) for k in range(count + 1)]]
    for stage in range(1, stages):
        row = [(float("inf"), 0)] * (count + 1)
        for k in range(stage + 1, count + 1):
            row[k] = min((max(best[-1][j][0], sums[k] - sums[j]), j) for j in range(stage, k))
        best.append(row)
    bounds = [count]
    for row in reversed(best):
        bounds.append(row[bounds[-1]][1])
    return bounds[::-1]


def cut_module(module, costs, stages):
    """As `cut`, of a module's pieces: every stage has parameters, if enough pieces have.

    A piece without any (an activation) stays with the one before it: its few microseconds, measured on a busy machine,
    may pass for those of a layer.
    """
    starts = [0]
    for i, paths in enumerate(pieces(module)):
        if i and any(True for path in paths for _ in module.get_submodule(path).parameters()):
            starts.append(i)
    if len(starts) < stages:
        return cut(costs, stages)
    ends = [*starts[1:], len(costs)]
    bounds = cut([sum(costs[a:b]) for a, b in zip(starts, ends)], stages)
    return [[*starts, len(costs)][at] for at in bounds]


def owners(module, bounds, ranks):
    """Ranks of each parameter that several have, by its name: `{name: [rank, ...]}`, such as a tied embedding's."""
    found, names = {}, {}
    for name, parameter in module.named_parameters():
        names.setdefault(id(parameter), name)
    paths = pieces(module)
    for stage, (first, stop) in enumerate(itertools.pairwise(bounds)):
        for path in (path for piece in paths[first:stop] for path in piece):
            for parameter in module.get_submodule(path).parameters():
                found.setdefault(names[id(parameter)], set()).add(stage % ranks)
    return {name: sorted(where) for name, where in found.items() if len(where) > 1}


def keep(module, chunks):
    """Drop the submodules of all pieces but those of `chunks`, [(first, stop), ...]."""
    paths = pieces(module)
    kept = {path for first, stop in chunks for piece in paths[first:stop] for path in piece}
    for path in {path for piece in paths for path in piece} - kept:
        parent, _, last = path.rpartition(".")
        module.get_submodule(parent)._modules[last] = None


@no_grad()
def give(module, group):
    """Parameters and buffers of rank 0 of the group, for all."""
    for x in [*module.parameters(), *module.buffers()]:
        if not init.is_deferred(x):
            c.broadcast(x.detach(), 0, group)
