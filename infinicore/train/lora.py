"""LoRA (Hu et al., arXiv 2106.09685): training two thin matrices beside a frozen weight.

An adapted layer computes `W x + b + (alpha / rank) B A x`. Adapters are written and read in the format of PEFT: a
folder with adapter_config.json and adapter_model.safetensors.
"""

import contextlib
import json
import math
import os
from pathlib import Path

import infinicore
from infinicore import nn

from ..amp import is_autocast_enabled
from ..autograd import no_grad
from ..distributed import tensor_parallel
from ..io import peft, save_file
from ..models import LanguageModel
from ..models.registry import architecture_for
from ..nn.modules.linear import AdaptedLinear

_HEAD = "lm_head"  # what "all-linear" leaves out
_ALL = "all-linear"


class LoRALinear(AdaptedLinear):
    """A `Linear` with an adapter: `W x + b + scaling * B A dropout(x)`, where `W` and `b` are those of `base`.

    `lora_A` [rank, in_features] begins as Kaiming's uniform numbers (a = sqrt 5) and `lora_B` [out_features, rank] as
    zeros, so that at first nothing changes. `scaling` is alpha / rank, or alpha / sqrt(rank) with `rslora`
    (Kalajdzievski, arXiv 2312.03732). Names in `state_dict()` are those of `base`, and lora_A.weight, lora_B.weight.
    Both have dtype `dtype`: by default that of the weight, but float32 beside 16-bit and quantised weights.
    """

    def __init__(self, base, rank, alpha, dropout=0.0, rslora=False, dtype=None):
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            raise ValueError(f"`rank` must be a positive integer, got {rank!r}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"`dropout` must be at least 0 and below 1, got {dropout}")
        super().__init__(base)
        self.rank, self.lora_alpha, self.dropout, self.rslora = rank, float(alpha), float(dropout), bool(rslora)
        self.scaling = peft.scaling(self.lora_alpha, rank, rslora)
        self.merged, self.enabled = False, True
        if dtype is None:
            wide = base.quantized is None and base.weight.dtype.itemsize > 2
            dtype = base.weight.dtype if wide else infinicore.float32
        with nn.init.skipped():
            place = (base.weight if base.quantized is None else base.quantized).device
            self.lora_A = nn.Linear(self.in_features, rank, bias=False, device=place, dtype=dtype)
            self.lora_B = nn.Linear(rank, self.out_features, bias=False, device=place, dtype=dtype)
        self.reset_adapter()

    def reset_adapter(self):
        """Fill `lora_A` and `lora_B` as at first."""
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def added(self, input):
        """`scaling * B A dropout(input)` in the dtype of `input`; None while merged or disabled."""
        if self.merged or not self.enabled:
            return None
        x = nn.functional.dropout(input, self.dropout, self.training) if self.dropout else input
        first, second = self.lora_A.weight, self.lora_B.weight
        if is_autocast_enabled() or input.dtype is first.dtype:
            return infinicore.linear(infinicore.linear(x, first), second, alpha=self.scaling)
        inner = infinicore.linear(infinicore.cast(x, first.dtype), first)
        return infinicore.cast(infinicore.linear(inner, second, alpha=self.scaling), input.dtype)

    def difference(self):
        """What the adapter adds to the weight, `scaling * B @ A` [out_features, in_features], in its own dtype."""
        return infinicore.matmul(self.lora_B.weight, self.lora_A.weight, alpha=self.scaling / self.alpha)

    @no_grad()
    def merge(self):
        """Add the adapter to the weight: the plain product then gives the same, to rounding."""
        if not self.merged:
            self._add_to_weight(1.0)
            self.merged = True

    @no_grad()
    def unmerge(self):
        """Take the adapter out of the weight again: what it was, to rounding."""
        if self.merged:
            self._add_to_weight(-1.0)
            self.merged = False

    def _add_to_weight(self, sign):
        if self.quantized is not None:
            raise NotImplementedError("an adapter cannot be merged into a quantised weight: load without `quantize`")
        difference = self.difference()
        wide = infinicore.add(infinicore.cast(self.weight, difference.dtype), difference * sign)
        self.weight.copy_(infinicore.cast(wide, self.weight.dtype))  # in place: it may be a part of a pack

    def plain(self):
        """The layer as a `Linear` without adapter, with the weight as it is now."""
        return super().plain(("rank", "lora_alpha", "dropout", "rslora", "scaling", "merged", "enabled"))

    def extra_repr(self):
        state = ", merged" if self.merged else ""
        return f"{super().extra_repr()}, rank={self.rank}, alpha={self.lora_alpha:g}, dropout={self.dropout}{state}"


class _DividedLoRA:
    """A `LoRALinear` whose weight the ranks of a mesh divide; `parallelize` makes it."""

    merged, enabled = False, True
    added = LoRALinear.added

    def adapt(self, source, kind):
        """Take the adapter of a `LoRALinear`; its matrices are divided, and their values come later."""
        if source.merged or not source.enabled:
            raise ValueError("an adapter that is merged or disabled cannot be divided: unmerge it first")
        self.rank, self.lora_alpha, self.dropout = source.rank, source.lora_alpha, source.dropout
        self.rslora, self.scaling = source.rslora, source.scaling
        tensor_parallel.divide_adapter(self, source, kind)


class _ColumnLoRA(_DividedLoRA, tensor_parallel.ColumnParallelLinear):
    pass


class _RowLoRA(_DividedLoRA, tensor_parallel.RowParallelLinear):
    pass


LoRALinear.divided = {"column": _ColumnLoRA, "row": _RowLoRA}


# ---- models --------------------------------------------------------------------------------------


def layers(model):
    """{path: LoRALinear} of the adapted layers of a model, in its order."""
    return {path: module for path, module in model.named_modules() if isinstance(module, LoRALinear)}


def _adapted(model):
    found = layers(model)
    if not found:
        raise ValueError("`model` has no adapter: call `lora.inject` or `lora.load` first")
    return found


def parameters(model):
    """The parameters of all adapters, for an optimizer."""
    return [p for layer in _adapted(model).values() for p in (layer.lora_A.weight, layer.lora_B.weight)]


def _targets(model, target_modules):
    """The paths that `target_modules` means, in the model's order."""
    modules = {path: module for path, module in model.named_modules() if path}
    linear = peft.linear_paths(model)
    if target_modules is None or target_modules == _ALL:
        return [path for path in linear if not peft.ends_with(path, _HEAD)]
    wanted = [target_modules] if isinstance(target_modules, str) else list(target_modules)
    found = set()
    for suffix in wanted:
        if not isinstance(suffix, str):
            raise TypeError(f"`target_modules` must be texts, got {suffix!r}")
        hits = [path for path in modules if peft.ends_with(path, suffix)]
        if not hits:
            raise ValueError(
                f"`target_modules` names {suffix!r}, which no module's path ends with: {peft.near(suffix, linear)}"
            )
        for path in hits:
            if not isinstance(modules[path], nn.Linear):
                kind = type(modules[path]).__name__
                raise NotImplementedError(f"`target_modules` names {path!r} ({kind}): only Linear layers take adapters")
        found.update(hits)
    return [path for path in linear if path in found]


def inject(model, rank=8, alpha=16, target_modules=None, dropout=0.0, *, rslora=False, dtype=None):
    """Put an adapter beside each target and freeze all other parameters, in place; returns the model.

    `target_modules` is the end of the targets' dotted paths ("q_proj", "mlp.c_fc", a whole path), a list of such, or
    "all-linear" (the default): every `Linear` but `lm_head`. `rank`, `alpha`, `dropout`, `rslora` and `dtype` are those
    of `LoRALinear`. Raises ValueError for a name that no path ends with (and says which are near) and for a layer that
    has an adapter, NotImplementedError for targets that are not `Linear`.
    """
    paths = _targets(model, target_modules)
    if not paths:
        raise ValueError("`model` has no Linear layer to adapt")
    made = {}
    for path in paths:
        base = model.get_submodule(path)
        if isinstance(base, LoRALinear):
            raise ValueError(f"`target_modules` names {path!r}, which has an adapter: call `lora.unload` first")
        made[path] = LoRALinear(base, rank, alpha, dropout, rslora, dtype)
    _put(model, made)
    return model


def _put(model, made):
    """Freeze the model and put adapted layers into it; those of earlier calls stay trainable."""
    trainable = [p for layer in layers(model).values() for p in (layer.lora_A.weight, layer.lora_B.weight)]
    wanted = [p for p in trainable if p.requires_grad]
    model.requires_grad_(False)
    for path, layer in made.items():
        model.set_submodule(path, layer)
    for parameter in wanted:
        parameter.requires_grad_(True)


def merge(model):
    """Add all adapters to their weights: the model computes the same to rounding, at the cost of a plain one.

    A weight that another module shares (a tied head) becomes the layer's own first.
    """
    for path, layer in _adapted(model).items():
        if not layer.merged and layer.quantized is None and _shared(model, path, layer.weight):
            layer.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
        layer.merge()


def _shared(model, path, weight):
    names = [name for name, p in model.named_parameters(remove_duplicate=False) if p is weight]
    return names != [f"{path}.weight"]


def unmerge(model):
    """Take all adapters out of the weights again: what they were, to rounding."""
    for layer in _adapted(model).values():
        layer.unmerge()


def unload(model):
    """Put plain layers in place of the adapted ones, with the weights as they are now (merged or not).

    In place; returns the model.
    """
    for path, layer in _adapted(model).items():
        model.set_submodule(path, layer.plain())
    return model


def merge_and_unload(model):
    """The model with its adapters in the weights and plain layers, in place; returns it."""
    merge(model)
    return unload(model)


@contextlib.contextmanager
def disabled(model):
    """Inside, the model computes as if it had no adapters. ValueError if they are merged."""
    found = _adapted(model)
    for path, layer in found.items():
        if layer.merged:
            raise ValueError(f"the adapter of {path!r} is merged and cannot be disabled: call `lora.unmerge` first")
    before = {path: layer.enabled for path, layer in found.items()}
    try:
        for layer in found.values():
            layer.enabled = False
        yield model
    finally:
        for path, layer in found.items():
            layer.enabled = before[path]


def summary(model):
    """One line: how many layers are adapted, and how many parameters of how many are trained."""
    found = _adapted(model)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    return f"{len(found)} adapters: {trained:,} of {total:,} parameters are trained ({100 * trained / total:.3g} %)"


# ---- files ---------------------------------------------------------------------------------------


def save(model, folder):
    """Write the adapters into `folder` as adapter_config.json and adapter_model.safetensors, in the format of PEFT.

    Each file is written under a temporary name and renamed. Returns the folder.
    """
    folder = Path(folder)
    found = _adapted(model)
    tensors = {}
    for path, layer in found.items():
        tensors[f"{peft.PREFIX}{path}.lora_A.weight"] = layer.lora_A.weight.detach().contiguous()
        tensors[f"{peft.PREFIX}{path}.lora_B.weight"] = layer.lora_B.weight.detach().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / peft.WEIGHTS, metadata={"format": "pt"})
    temporary = folder / f".{peft.CONFIG}.{os.getpid()}"
    temporary.write_text(json.dumps(_config(model, found), indent=2, sort_keys=True) + "\n")
    os.replace(temporary, folder / peft.CONFIG)
    return folder


def _config(model, found):
    """adapter_config.json: the fields of PEFT's LoraConfig that readers need."""
    first = next(iter(found.values()))
    if len({(layer.dropout, layer.rslora) for layer in found.values()}) > 1:
        raise NotImplementedError("adapters of several `dropout` or `rslora` do not fit into one adapter_config.json")
    language = isinstance(model, LanguageModel)
    transposed = getattr(architecture_for(model.config).names, "TRANSPOSED", ()) if language else ()
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if language else None,
        "base_model_name_or_path": str(model.path) if getattr(model, "path", None) else None,
        "r": first.rank,
        "lora_alpha": _number(first.lora_alpha),
        "lora_dropout": first.dropout,
        "use_rslora": first.rslora,
        "rank_pattern": {path: layer.rank for path, layer in found.items() if layer.rank != first.rank},
        "alpha_pattern": {
            path: _number(layer.lora_alpha) for path, layer in found.items() if layer.lora_alpha != first.lora_alpha
        },
        "target_modules": _suffixes(model, found),
        # whether the checkpoint has these weights as [in, out]; an adapter's matrices are the same either way
        "fan_in_fan_out": any(f"{path}.weight".endswith(transposed) for path in found) if transposed else False,
        "bias": "none",
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
        "use_dora": False,
    }


def _number(value):
    return int(value) if value == int(value) else value


def _suffixes(model, found):
    """Last parts of the adapted paths where they mean just these layers, else the paths."""
    last = sorted({path.rpartition(".")[2] for path in found})
    meant = {path for path, _ in model.named_modules() if any(peft.ends_with(path, name) for name in last)}
    return last if meant == set(found) else sorted(found)


def load(model, folder, *, trainable=False):
    """Inject the adapters of a folder that `save` or PEFT wrote, in place; returns the model.

    All parameters are frozen but, with `trainable`, those of the adapters. A model that has adapters gets their values,
    if they are the same layers and ranks. Raises FileNotFoundError, ValueError for a damaged folder or one of another
    model, and NotImplementedError for what goes beyond LoRA on linear layers (DoRA, biases, whole modules).
    """
    config, pairs = peft.read(folder)
    known = layers(model)
    if known and set(known) != set(pairs):
        other = sorted(set(known) ^ set(pairs))[0]
        raise ValueError(
            f"{folder} does not adapt the layers that `model` adapts (not both have {other!r}): unload them"
        )
    peft.check_fits(model, folder, pairs)
    made = {}
    for path, (first, _) in pairs.items():
        rank = first.shape[0]
        if path in known:
            if known[path].rank != rank or known[path].merged:
                raise ValueError(f"the adapter of {path!r} has another rank or is merged: call `lora.unload` first")
            made[path] = known[path]
        else:
            alpha, base = peft.alpha_of(config, path), model.get_submodule(path)
            made[path] = LoRALinear(base, rank, alpha, config["lora_dropout"], config["use_rslora"])
    if not known:
        _put(model, made)
    with no_grad():
        for path, (first, second) in pairs.items():
            for part, value in ((made[path].lora_A, first), (made[path].lora_B, second)):
                part.weight.copy_(value.to(part.weight.dtype))
                part.weight.requires_grad_(trainable)
    return model
