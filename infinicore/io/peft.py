"""LoRA adapters (Hu et al., arXiv 2106.09685) as PEFT writes them: adapter_config.json, adapter_model.safetensors."""

import json
import math
from pathlib import Path

from .. import nn
from .safetensors import load_file

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of every name in PEFT's files


def read(folder):
    """(settings, {path of a layer: (lora_A [rank, in], lora_B [out, rank])}) of an adapter's folder.

    Settings: `lora_alpha`, `alpha_pattern`, `lora_dropout`, `use_rslora`. Raises FileNotFoundError, ValueError for
    a damaged folder, and NotImplementedError for what goes beyond LoRA on linear layers (DoRA, biases, whole modules).
    """
    folder = Path(folder)
    return _read_config(folder / CONFIG), _read_pairs(folder / WEIGHTS)


def _read_config(path):
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {str(error)[:200]}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else type(config).__name__
        raise ValueError(f"{path}: `peft_type` must be 'LORA', got {kind!r}")
    for name, usual in (("bias", "none"), ("use_dora", False), ("modules_to_save", None), ("layer_replication", None)):
        if config.get(name, usual) not in (usual, None, [], False):
            raise NotImplementedError(f"{path}: `{name}` = {config[name]!r} is not supported, only {usual!r}")
    found = {"lora_alpha": 8, "lora_dropout": 0.0, "use_rslora": False, "alpha_pattern": {}}  # PEFT's defaults
    found.update({name: config[name] for name in found if config.get(name) is not None})
    if not isinstance(found["lora_alpha"], (int, float)) or not isinstance(found["alpha_pattern"], dict):
        raise ValueError(f"{path}: `lora_alpha` must be a number and `alpha_pattern` an object")
    return found


def _read_pairs(path):
    found = {}
    for name, tensor in load_file(path).items():
        parts = name.removesuffix(".weight").removesuffix(".default").rsplit(".", 1)
        if not name.startswith(PREFIX) or not name.endswith(".weight") or parts[-1] not in ("lora_A", "lora_B"):
            raise NotImplementedError(
                f"{path}: the tensor {name!r} is no adapter of a linear layer, which would be named "
                f"{PREFIX}<path>.lora_A.weight or .lora_B.weight"
            )
        found.setdefault(parts[0].removeprefix(PREFIX), {})[parts[1]] = tensor
    for layer, pair in found.items():
        if len(pair) != 2 or any(tensor.ndim != 2 for tensor in pair.values()):
            raise ValueError(f"{path}: {layer!r} needs the matrices lora_A and lora_B, got {', '.join(sorted(pair))}")
    if not found:
        raise ValueError(f"{path} has no adapter")
    return {layer: (pair["lora_A"], pair["lora_B"]) for layer, pair in found.items()}


def check_fits(model, folder, pairs):
    """Raise ValueError unless each pair belongs to a `Linear` of a model, by its path and its shapes."""
    source, linear = Path(folder) / WEIGHTS, linear_paths(model)
    for path, (first, second) in pairs.items():
        if path not in linear:
            raise ValueError(f"{source} adapts {path!r}, which is no Linear of `model`: {near(path, linear)}")
        base, rank = model.get_submodule(path), first.shape[0]
        wanted = (rank, base.in_features), (base.out_features, rank)
        if (tuple(first.shape), tuple(second.shape)) != wanted:
            raise ValueError(
                f"{source}: the adapter of {path!r} has shapes {tuple(first.shape)} and "
                f"{tuple(second.shape)}, `model` needs {wanted[0]} and {wanted[1]}: it belongs to another model"
            )


def alpha_of(settings, path):
    """The `alpha` of a layer: by the first key of the pattern that is its path or the end of it."""
    pattern = settings["alpha_pattern"]
    return next((value for key, value in pattern.items() if ends_with(path, key.lstrip("^"))), settings["lora_alpha"])


def scaling(alpha, rank, rslora):
    """What the product of both matrices is multiplied by (rslora: Kalajdzievski, arXiv 2312.03732)."""
    return alpha / (math.sqrt(rank) if rslora else rank)


def linear_paths(model):
    """The paths of a model's linear layers, without the matrices of adapters."""
    named = ((path, module) for path, module in model.named_modules() if path)
    return [path for path, m in named if isinstance(m, nn.Linear) and not path.endswith((".lora_A", ".lora_B"))]


def ends_with(path, suffix):
    """Whether a dotted path ends with whole parts `suffix`."""
    return path == suffix or path.endswith("." + suffix)


def near(name, paths):
    """Words for the linear layers whose paths look most like a name."""
    ends = {}  # every suffix of a path -> the first path with it
    for path in paths:
        parts = path.split(".")
        for i in range(len(parts)):
            ends.setdefault(".".join(parts[i:]), path)
    import difflib

    close = difflib.get_close_matches(name, ends, n=3, cutoff=0.3)
    chosen = list(dict.fromkeys(ends[end] for end in close)) or paths[:3]
    return f"the nearest are {', '.join(map(repr, chosen))}" if chosen else "the model has no Linear layer"
