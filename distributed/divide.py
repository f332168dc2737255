"""`parallelize`: the layers of a module, made on every rank, divided among the ranks of `mesh.tp`."""

import fnmatch
import math

from .. import nn
from ..autograd import no_grad
from ..device import CPU
from ..dispatch import empty, empty_beside
from ..dtype import float64
from ..nn import init
from ..nn.modules.linear import AdaptedLinear
from ..random import get_rng_state, set_rng_state
from . import collectives as c
from .deferred import put_parts_off
from .flat import Shard
from .fsdp import summon_full_params
from .mesh import Mesh
from .objects import all_gather_object, broadcast_object
from .tensor_parallel import (
    ColumnParallelLinear,
    GatheringLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    give,
    sum_gradients,
)
from .units import units_of

_LAYERS = {
    "column": ColumnParallelLinear,
    "row": RowParallelLinear,
    "vocab": VocabParallelEmbedding,
    "gathering": GatheringLinear,
}
_KINDS = (*_LAYERS, "partial", "replicated")


def parallelize(module, mesh, plan=None, *, sequence_parallel=False, values=True):
    """Divide the layers of `module` among the ranks of `mesh.tp`, in place; returns it. All its ranks call it alike.

    `plan` maps patterns of submodules' names (as of `fnmatch`) to what becomes of them, or to that and its options:
    "column" and "row" (of a `Linear`), "vocab" (of an `Embedding`), `("column", {"parts": 3})`; "partial" for others
    that each rank applies to a part of the heads or of the sequence, so that their gradients are sums; "replicated" for
    those that each applies to the whole. "gathering" is for weights that cannot be cut along their inputs (inference
    alone). Language models of infinicore have a plan of their own. Sizes that the ranks do not divide are divided
    unequally, heads too; models refuse fewer heads than ranks.

    A language model on a mesh with several ranks of `cp` computes a part of each sequence on each of them; a module of
    another kind calls `ring_attention`, or is called within `context_parallel`.

    `sequence_parallel`, or a mesh with `sp`, divides what lies between row- and column-parallel layers, [B, T, ...],
    along T, which must be a multiple of the ranks (language models of infinicore fill up sequences themselves); a plan
    must then say "partial" or "replicated" for each other module with parameters.
    Parameters, buffers and the state of the default generator become those of rank 0 of `mesh.tp`; with `values=False`
    parameters are left unset, to be loaded. Optimizers are made afterwards. Raises ValueError for a pattern that no
    submodule has, TypeError for one of another class; then the module is as it was.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"`module` must be a Module, got {type(module).__name__}")
    if not isinstance(mesh, Mesh):
        raise TypeError(f"`mesh` must be a Mesh, got {type(mesh).__name__}")
    group, own_plan = mesh.tp, getattr(module, "tensor_parallel", None)
    sequence_parallel = sequence_parallel or mesh.sp.size > 1
    if plan is None:
        if own_plan is None:
            raise ValueError(f"`plan` is needed: {type(module).__name__} has none of its own")
        plan, sequence_parallel = {}, sequence_parallel and group.size > 1
        if group.size > 1:
            plan = own_plan(group, sequence_parallel)
    if (mesh.cp.size > 1 or sequence_parallel) and hasattr(module, "context_parallel"):
        module.context_parallel(mesh.cp)
    jobs = _jobs(module, plan, sequence_parallel)
    made = {path: _layer(module.get_submodule(path), *job, group) for path, job in jobs.items() if job[0] in _LAYERS}
    made |= {f"{path}.{name}": child for path, layer in made.items() for name, child in layer.named_children()}
    if values:
        for path, layer in module.named_modules():
            give(made.get(path, layer), layer, group)  # what waits for its values waits on
        set_rng_state(broadcast_object(get_rng_state(), 0, group))
    _put(module, made, values, group.rank)
    for path, (kind, _) in jobs.items():
        if kind == "partial":
            for parameter in module.get_submodule(path).parameters():
                sum_gradients(parameter, group)
    return module


def _jobs(module, plan, sequence_parallel):
    """Path of a submodule to (kind, options), after checking all."""
    modules, jobs = dict(module.named_modules()), {}
    if not isinstance(plan, dict):
        raise TypeError(f"`plan` must map patterns of names to kinds of layers, got {type(plan).__name__}")
    for pattern, job in plan.items():
        kind, options = job if isinstance(job, tuple) and len(job) == 2 else (job, {})
        if kind not in _KINDS or not isinstance(options, dict):
            raise ValueError(f"`plan` must map {pattern!r} to one of {', '.join(_KINDS)}, got {job!r}")
        paths = [path for path in modules if fnmatch.fnmatchcase(path, pattern)]
        if not paths and kind in _LAYERS:
            raise ValueError(f"`plan` names {pattern!r}, and `module` has no such submodule")
        for path in paths:
            wanted = nn.Embedding if kind == "vocab" else nn.Linear
            if kind in _LAYERS and type(modules[path]) is not wanted and kind not in _adapted(modules[path]):
                raise TypeError(
                    f"{path!r} must be an nn.{wanted.__name__} to become {kind!r}, got {type(modules[path]).__name__}"
                )
            if kind in _LAYERS and kind != "gathering":
                options = {"sequence_parallel": sequence_parallel} | options
            jobs[path] = kind, options
    for path, found in modules.items():
        packed = isinstance(found, nn.PackedLinear)
        kinds = {jobs.get(f"{path}.{name}".lstrip("."), (None,))[0] for name in found._part_names} if packed else ()
        if packed and kinds != {"column"} and kinds & {"column", "row"}:
            raise ValueError(f"`plan` must map all parts of {path!r} to 'column', or none of them")
        planned = path in jobs or _adapted(modules.get(path.rpartition(".")[0]))  # an adapter goes with its layer
        if sequence_parallel and not planned and any(True for _ in found.parameters(recurse=False)):
            raise ValueError(
                f"`plan` must map {path!r} to 'partial' (it is applied to a part of the sequence) or 'replicated' "
                "with `sequence_parallel`"
            )
    return jobs


def _layer(module, kind, options, group):
    """The divided layer in place of a module; its parameters are unset."""
    if kind != "vocab" and (module.quantized is not None or module.alpha != 1.0):
        raise NotImplementedError("a Linear that is quantised, or whose `alpha` is not 1, cannot be divided")
    if kind == "vocab" and (module.weight is None or module.max_norm is not None or module.padding_idx is not None
                            or module.scale_grad_by_freq):  # fmt: skip
        raise NotImplementedError("an Embedding with options, or a quantised one, cannot be divided")
    options = {"group": group, "dtype": module.weight.dtype} | options
    with init.skipped(), module.weight.device:
        if kind == "vocab":
            return VocabParallelEmbedding(module.num_embeddings, module.embedding_dim, **options)
        classes = _adapted(module) or _LAYERS
        layer = classes[kind](module.in_features, module.out_features, module.bias is not None, **options)
        if classes is not _LAYERS:
            layer.adapt(module, kind)
    return layer


def _adapted(module):
    """The classes of divided layers, by kind, of a layer with an adapter that can be divided; else nothing."""
    return getattr(module, "divided", {}) if isinstance(module, AdaptedLinear) else {}


def _put(module, made, values, rank):
    """Set the new layers; parameters that were one stay one. Without `values`, nothing is copied."""
    old, new = {}, []
    values = values and not any(map(init.is_deferred, module.parameters()))
    for path, layer in made.items():
        name, _, last = path.rpartition(".")
        parent = module.get_submodule(name)
        before = parent._modules[last]
        for key, parameter in before.named_parameters(recurse=False):
            own = getattr(layer, key)
            own.requires_grad = parameter.requires_grad
            first = old.setdefault(id(parameter), (parameter, own, layer.shares.get(key)))
            if first[1] is not own:
                if first[2] != layer.shares.get(key):
                    raise ValueError(
                        f"`plan` divides {path + '.' + key!r} and the tensor that it is tied to differently"
                    )
                setattr(layer, key, first[1])
        parent._modules[last] = layer.train(before.training)
        if isinstance(parent, nn.PackedLinear):
            new.append(parent)
    for parent in dict.fromkeys(new):
        parent._pack_again(values)
    put_parts_off(module, old, rank)


def shares(module):
    """Name of each divided parameter to its `Share`."""
    return {
        f"{path}.{name}".lstrip("."): share
        for path, layer in module.named_modules()
        for name, share in getattr(layer, "shares", {}).items()
    }


def clip_grad_norm_(module, mesh, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """`nn.utils.clip_grad_norm_` of a divided module (`parallelize`, `Pipeline`): by the norm over all its ranks.

    Returns the norm before, the same on every rank. What several ranks have alike counts once.
    """
    if not norm_type > 0:
        raise ValueError(f"`norm_type` must be above 0, got {norm_type!r}")
    parameters = [p for p in module.parameters() if p.grad is not None]
    counted = [p for p in parameters if getattr(p, "staged", None) != "again"]
    infinite, powers = math.isinf(norm_type), []
    for divided in (True, False):
        alike = [p for p in counted if getattr(p, "divided", getattr(p, "sharded", False)) is divided]
        shards = [p.grad for p in alike if isinstance(p, Shard) and p.numel()]
        wholes = [p.grad for p in alike if not isinstance(p, Shard)]
        for gradients in (shards, wholes):
            norm = float(nn.utils.get_total_norm(gradients, norm_type)) if gradients else 0.0
            powers.append(norm if infinite else norm**norm_type)
    powers = _over_shards(powers, infinite, mesh.group("dp", "cp"), any(isinstance(p, Shard) for p in counted))
    total = empty((1,), float64).fill_(powers[0])
    c.all_reduce(total, "max" if infinite else "sum", mesh.tp)
    total.fill_(max(total.item(), powers[1]) if infinite else total.item() + powers[1])
    c.all_reduce(total, "max" if infinite else "sum", mesh.pp)
    norm = total.item() if infinite else total.item() ** (1 / norm_type)
    if error_if_nonfinite and not math.isfinite(norm):
        raise ValueError(
            f"the norm of order {norm_type} of the gradients is {norm}, so they cannot be clipped: look for the "
            "overflow, or set `error_if_nonfinite` to False"
        )
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return empty((), float64).fill_(norm)


def _over_shards(powers, infinite, group, sharded):
    """Of what is divided along `tp` and what is not: shards of all ranks of `group`, and whole gradients."""
    if sharded:
        total = empty((2,), float64)
        total[0], total[1] = powers[0], powers[2]
        powers[0], powers[2] = c.all_reduce(total, "max" if infinite else "sum", group).tolist()
    joined = max if infinite else lambda a, b: a + b
    return joined(*powers[:2]), joined(*powers[2:])


def whole_state_dict(module, mesh):
    """`module.state_dict()` of a divided module, with whole tensors, on every rank of `mesh`."""
    with summon_full_params(module, writeback=False), no_grad():
        return _whole_state_dict(module, mesh, bool(units_of(module)))


def _whole_state_dict(module, mesh, passing):
    """`passing`: the parameters are whole for the moment."""
    group, divided, found = mesh.tp, shares(module), {}
    for name, tensor in module.state_dict().items():
        share, tensor = divided.get(name), tensor.detach()
        if share is not None:
            shape = list(tensor.shape)
            shape[share.dim] = share.size
            whole, parts = empty_beside(tensor, shape), []
            for rank in range(group.size):
                shape[share.dim] = share.length(rank)
                parts.append(empty_beside(tensor, shape))
            for rank, part in enumerate(c.all_gather(parts, tensor.contiguous(), group)):
                share.put(part, whole, rank)
            tensor = whole
        elif passing:
            tensor = tensor.clone()
        found[name] = tensor
    return _of_all_stages(found, mesh.pp)


def _of_all_stages(state, group):
    """The tensors of all ranks of a pipeline, in the order of the ranks."""
    if group.size == 1:
        return state
    whole, device = {}, next((x.device for x in state.values()), CPU)
    names = all_gather_object([(name, tuple(x.shape), x.dtype) for name, x in state.items()], group)
    for rank, entries in enumerate(names):
        for name, shape, kind in entries:
            if name not in whole:
                mine = rank == group.rank
                own = state[name].contiguous() if mine else empty(shape, kind, None, device)
                whole[name] = c.broadcast(own, rank, group)
    return whole
